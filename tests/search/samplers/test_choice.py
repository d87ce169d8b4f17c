"""The sampler of a search for which nobody names one."""

import logging
from pathlib import Path

import pytest

from tilescout.costmodel.persistence import shipped_model
from tilescout.search import tune
from tilescout.search.samplers import SAMPLERS, choose_sampler


@pytest.mark.parametrize(("device", "sampler"), [("h200", "guided"), ("b200", "guided-cold")])
def test_a_cost_model_guides_where_one_is_shipped(device: str, sampler: str) -> None:
    assert (shipped_model("gemm_sm90", device) is not None) == (sampler == "guided")
    choice = choose_sampler("gemm_sm90", device)
    assert choice.sampler == sampler
    assert f"gemm_sm90 on {device}" in choice.reason
    assert sampler in SAMPLERS


def test_the_model_of_a_relative_guides_where_no_other_is_shipped() -> None:
    choice = choose_sampler("quack_sm90", "h200")
    assert choice.sampler == "guided"
    assert "no cost model of quack_sm90 on h200 is shipped, but one of a relative: gemm_sm90-h200" in choice.reason
    assert choose_sampler("softmax_sm90", "h200").sampler == "guided-cold"


def test_a_cost_model_that_is_named_guides_wherever_it_is_of() -> None:
    assert choose_sampler("own", "b200", with_model=True).sampler == "guided"


def test_a_search_without_a_sampler_says_which_it_took_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tilescout"):
        result = tune("gemm_sm90", "512x512x512:bf16", budget=1, device="replay", store=tmp_path, mlflow=False)
    assert result.info.sampler == "guided"
    assert "searched by guided: a cost model of gemm_sm90 on h200 is shipped" in caplog.text

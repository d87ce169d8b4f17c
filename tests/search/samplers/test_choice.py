"""The sampler of a search for which nobody names one."""

import logging
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.persistence import shipped_model
from tilescout.search import tune
from tilescout.search.samplers import SAMPLERS, choose_sampler
from tilescout.search.samplers.guided import SHIPPED, GuidedOptions, GuidedSampler
from tilescout.search.samplers.guided.prior import Prior
from tilescout.spaces.constraints import Columns
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.template import GemmSm90Template
from tilescout.spaces.libraries.quack import QuackSm90Template
from tilescout.spaces.tiling import Tiling


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


def test_the_model_of_a_sibling_of_the_device_guides_and_is_believed_less() -> None:
    choice = choose_sampler("gemm_sm90", "h100")
    assert choice.sampler == "guided"
    assert "no cost model of gemm_sm90 on h100 is shipped, but one of a sibling: gemm_sm90-h200" in choice.reason
    assert "but one of a relative: gemm_sm90-h200" in choose_sampler("quack_sm90", "h100").reason
    of = {}
    for device in ("h100", "h200"):
        space = GemmSm90Template().space(GemmProblem(512, 512, 4096), DEVICES[device])
        of[device] = Prior(space.subset(range(0, len(space), 300)), SHIPPED, None, GuidedOptions())
        assert of[device].model is not None
    assert of["h100"].of_sibling
    assert not of["h200"].of_sibling
    assert not of["h100"].of_relative
    less, own = of["h100"].of_model, of["h200"].of_model
    assert less is not None
    assert own is not None
    assert less.shift > own.shift


class Own(QuackSm90Template):
    """A kernel of one's own that divides products as Quack's do."""

    name = "own"


class Broken(Own):
    def tiling(self, columns: Columns, problem: GemmProblem) -> Tiling:
        return super().tiling({"tile": columns["tile_m"]}, problem)


def test_a_kernel_of_ones_own_that_describes_its_tiling_is_guided_by_a_relative_without_being_registered() -> None:
    assert choose_sampler(Own(), "h200").sampler == "guided"
    assert choose_sampler("own", "h200").sampler == "guided-cold"  # a name alone names no code
    space, known = (
        template.space(GemmProblem(512, 512, 4096), DEVICES["h200"]).subset(range(0, 9000, 300))
        for template in (Own(), QuackSm90Template())
    )
    told, expected = GuidedSampler(space, 0), GuidedSampler(known, 0).prior
    assert told.model_file == shipped_model("gemm_sm90", "h200")
    assert told.prior is not None
    assert expected is not None
    np.testing.assert_array_equal(told.prior.mean, expected.mean)


def test_a_tiling_that_fails_is_refused_with_its_error() -> None:
    space = Broken().space(GemmProblem(512, 512, 4096), DEVICES["h200"])
    with pytest.raises(SpaceError, match="own: the tiling of its template failed: KeyError"):
        _ = GuidedSampler(space, 0).prior


def test_a_model_whose_file_is_replaced_behind_it_is_told_by_the_bytes_that_were_read(tmp_path: Path) -> None:
    shipped = shipped_model("gemm_sm90", "h200")
    assert shipped is not None
    path, content = tmp_path / "model.npz", shipped.read_bytes()
    path.write_bytes(content)
    space = QuackSm90Template().space(GemmProblem(512, 512, 4096), DEVICES["h200"]).subset(range(0, 9000, 300))
    sampler = GuidedSampler(space, 0, model=path)
    assert sampler.prior is not None
    path.write_bytes(b"another model")
    assert sampler.model_sha256 == sha256(content).hexdigest()
    assert not GuidedSampler(space, 0, model=None).model_sha256


def test_a_cost_model_that_is_named_guides_wherever_it_is_of() -> None:
    assert choose_sampler("own", "b200", with_model=True).sampler == "guided"


def test_a_search_without_a_sampler_says_which_it_took_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tilescout"):
        result = tune("gemm_sm90", "512x512x512:bf16", budget=1, device="replay", store=tmp_path, mlflow=False)
    assert result.info.sampler == "guided"
    assert "searched by guided: a cost model of gemm_sm90 on h200 is shipped" in caplog.text

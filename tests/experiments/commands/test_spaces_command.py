"""``tilescout spaces``: what is said of a problem."""

import math

import pytest
from click.testing import CliRunner

from tilescout.experiments.commands.spaces import spaces
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm_sm90.template import GemmSm90Template
from tilescout.spaces.gemm_sm90.unmeasured import MARGIN, UNSURE_US
from tilescout.spaces.templates import Unmeasured, find_template

PROBLEM = "512x512x512:bf16"
TEMPLATE = find_template("gemm_sm90")
KERNEL = Unmeasured("gemm_sm90", TEMPLATE.portfolio(TEMPLATE.parse(PROBLEM), find_device("h200"))[0], math.log(1.5))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, f"run the library, since no kernel is expected to be faster by {MARGIN:.0%} and {UNSURE_US} µs besides"),
        (KERNEL, f"run gemm_sm90, expected at 1.50 times the library's speed: {KERNEL.configuration}"),
    ],
    ids=["library", "kernel"],
)
def test_what_runs_if_nothing_may_be_measured_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, answer: Unmeasured | None, said: str
) -> None:
    monkeypatch.setattr(GemmSm90Template, "default_or_library", lambda *given: answer)
    done = CliRunner().invoke(spaces, ["gemm_sm90", "--problem", PROBLEM], catch_exceptions=False)
    assert f"if nothing may be measured: {said}" in " ".join(done.output.split())
    assert "what to run if nothing may be measured" in " ".join(CliRunner().invoke(spaces, ["--help"]).output.split())


def test_a_template_that_says_no_margin_is_not_told_another_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    template = find_template("softmax_sm90")
    monkeypatch.setattr(type(template), "default_or_library", lambda *given: None)
    done = CliRunner().invoke(spaces, [template.name, "--problem", "8x4096:bf16"], catch_exceptions=False)
    assert "since no kernel is expected to be faster by a margin\n" in " ".join(done.output.split(" "))

"""The decision that a study's result gives, and the one that holds for a size that is known late."""

from collections.abc import Mapping
from typing import Any

import pytest

from tilescout.search.export.decisions import (
    INDIFFERENCE,
    Choice,
    Decision,
    Evidence,
    Outcome,
    best_of,
    judge,
)
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem

CONFIGURATION = {"tile_m": 128, "raster": "n"}


def result(value: float, low: float, high: float, **changes: Any) -> Mapping[str, Any]:
    """The result of a live search with a race, whose answer has this speed of the library's."""
    record = {
        "study": "s",
        "space": "gemm_sm90",
        "space_hash": "abc",
        "problem": "4096x4096x4096:bf16",
        "device": "h200",
        "measured_by": {"kind": "live", "description": "measured on NVIDIA H200"},
        "versions": {"torch": "2.11.0"},
        "best": {"trial": 3, "configuration": CONFIGURATION},
        "library": {"name": "torch.mm"},
        "race": {"speedup_over_library": {"value": value, "low": low, "high": high}, "rounds": 30},
        "not_raced": "",
    }
    return {**record, **changes}


@pytest.mark.parametrize(
    ("low", "choice"),
    [
        (1.01, Choice.OURS),
        (1.0, Choice.OURS),
        (1 / (1 + INDIFFERENCE) + 1e-9, Choice.OURS),
        (1 / (1 + INDIFFERENCE) - 1e-6, Choice.LIBRARY),
        (0.9, Choice.LIBRARY),
    ],
)
def test_the_worst_end_of_the_interval_decides(low: float, choice: Choice) -> None:
    outcome = judge(result(1.02, low, 1.03))
    assert outcome.choice is choice
    assert outcome.evidence.high == pytest.approx(1 / low)
    assert outcome.evidence.ratio == pytest.approx(1 / 1.02)
    assert (outcome.configuration is None) == (choice is Choice.LIBRARY)
    assert choice is Choice.LIBRARY or outcome.configuration == CONFIGURATION  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"measured_by": {"kind": "replay", "description": "a table"}}, "replayed"),
        ({"race": None}, "no race"),
        ({"race": None, "not_raced": "the race ended early: out of time"}, "out of time"),
    ],
)
def test_what_was_not_raced_on_a_gpu_is_the_librarys(changes: Mapping[str, Any], why: str) -> None:
    outcome = judge(result(2.0, 1.9, 2.1, **changes))
    assert outcome.choice is Choice.LIBRARY
    assert why in outcome.evidence.reason
    assert outcome.evidence.high is None


def test_of_several_studies_of_a_problem_the_surest_decides() -> None:
    slow, fast = judge(result(1.01, 0.99, 1.03, study="slow")), judge(result(1.02, 1.01, 1.03, study="fast"))
    unraced = judge(result(2, 2, 2, study="unraced", race=None))
    other = judge(result(1, 1, 1, problem="64x64x64:bf16"))
    assert [outcome.evidence.study for outcome in best_of([slow, unraced, fast, other])] == ["s", "fast"]


def test_studies_of_two_objectives_do_not_decide_on_one_problem_together() -> None:
    older = judge(result(1.02, 1.01, 1.03, study="older"))  # it names no objective: there was one
    chain = judge(result(1.03, 1.02, 1.04, study="chain", objective="chain"))
    sandwich = judge(result(1.01, 1.0, 1.02, study="sandwich", objective="sandwich"))
    other = judge(result(1, 1, 1, problem="64x64x64:bf16", objective="sandwich"))
    assert [outcome.evidence.study for outcome in best_of([older, chain, other])] == ["s", "chain"]
    with pytest.raises(ExportError, match=r"studies older and sandwich of .* two objectives \(chain, sandwich\)"):
        best_of([older, sandwich])


def decision(m: int, choice: Choice = Choice.OURS) -> Decision:
    return Decision(GemmProblem(m, 64, 64), choice, Evidence("s", "r"), "k" if choice is Choice.OURS else "")


def test_decisions_survive_json() -> None:
    whole = Evidence("s", "r", 0.9, 0.8, 1.0, 4, "h200", {"torch": "2.11"})
    for written in (Decision(GemmProblem(1, 2, 3), Choice.OURS, whole, "k"), decision(16, Choice.LIBRARY)):
        assert Decision.from_dict(written.to_dict()) == written


def test_something_else_is_no_result() -> None:
    with pytest.raises(KeyError):
        judge({})
    assert isinstance(judge(result(1, 1, 1)), Outcome)

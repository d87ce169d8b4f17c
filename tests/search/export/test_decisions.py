"""The decision that a study's result gives, and the one that holds for a size that is known late."""

from collections.abc import Mapping
from dataclasses import replace
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
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.race import Estimate
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

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


def best(ratio: float, over: float | None, guess: int = 3, high: float = 0.001) -> dict[str, Any]:
    """The library's best candidate, whose time is `ratio` of the library's, the answer's being `over` times that."""
    told = Estimate(ratio, ratio - 0.001, ratio + high)
    beside = None if over is None else Estimate(over, over - 0.001, over + 0.001)
    made = LibraryBest("cuBLASLt", "13.1.0", "cublaslt", Configuration.of({"guess": guess}), 8, told, beside)
    return made.to_dict()


@pytest.mark.parametrize(
    ("speed", "candidate", "choice"),
    [
        (1.05, best(0.90, 1.06), Choice.ALGORITHM),  # both are proven, and ours is slower in the same rounds
        (1.05, best(0.97, 0.98), Choice.OURS),
        (0.90, best(0.95, 1.17), Choice.ALGORITHM),  # ours is not proven
        (0.90, best(1.01, 1.10), Choice.LIBRARY),  # and neither is the candidate
        (0.90, best(0.99, 1.12, high=0.02), Choice.LIBRARY),
        (0.90, best(1.0, 1.11, guess=1), Choice.LIBRARY),  # the library runs that one anyway
        (1.05, best(0.90, None), Choice.OURS),  # it did not race
        (1.05, {"unknown": "why"}, Choice.OURS),
    ],
)
def test_the_faster_in_the_race_is_chosen_if_it_is_proven(
    speed: float, candidate: dict[str, Any], choice: Choice
) -> None:
    told = result(speed, speed - 0.001, speed + 0.001, library_best=candidate)
    outcome = judge(told)

    assert outcome.choice is choice
    assert outcome.library == ("13.1.0" if choice is Choice.ALGORITHM else "")
    if choice is Choice.OURS:
        assert outcome.space == "gemm_sm90"
    if choice is Choice.ALGORITHM:
        assert outcome.space == "cublaslt"
        assert outcome.configuration == {"guess": 3}  # type: ignore[comparison-overlap]
        assert outcome.evidence.high == pytest.approx(candidate["ratio"]["high"])
        assert "cuBLASLt's algorithm 3 of 8" in outcome.evidence.reason


def test_the_answer_of_a_search_among_algorithms_is_one() -> None:
    algorithm = judge(result(1.05, 1.04, 1.06, space="cublaslt", versions={"cublaslt": "13.1.0"}, study="a"))
    kernel = judge(result(1.03, 1.02, 1.04, study="b"))

    assert (algorithm.choice, algorithm.library) == (Choice.ALGORITHM, "13.1.0")
    assert best_of([kernel, algorithm]) == [algorithm]


def test_a_candidate_of_no_library_is_refused() -> None:
    with pytest.raises(ValueError, match="no space of a library"):
        judge(result(0.9, 0.89, 0.91, library_best={**best(0.9, 1.1), "space": "gemm_sm90"}))


def test_of_several_studies_of_a_problem_the_fastest_that_is_proven_decides() -> None:
    unproven, slow = judge(result(1.05, 0.99, 1.11, study="unproven")), judge(result(1.02, 1.015, 1.025, study="slow"))
    fast = judge(result(1.03, 1.005, 1.055, study="fast"))  # its interval is wider, as of fewer heats
    assert [outcome.evidence.study for outcome in best_of([unproven, slow, fast])] == ["fast"]


def test_what_did_not_race_decides_nothing_where_something_did() -> None:
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


def test_each_device_has_its_own_decision_on_a_problem() -> None:
    fast, slow = judge(result(1.1, 1.09, 1.11, device="h100")), judge(result(0.9, 0.89, 0.91))
    assert [(outcome.device, outcome.choice) for outcome in best_of([slow, fast])] == [
        ("h100", Choice.OURS),
        ("h200", Choice.LIBRARY),
    ]


def decision(m: int, choice: Choice = Choice.OURS) -> Decision:
    return Decision(GemmProblem(m, 64, 64), choice, Evidence("s", "r"), "" if choice is Choice.LIBRARY else "k")


def test_decisions_survive_json() -> None:
    whole = Evidence("s", "r", 0.9, 0.8, 1.0, 4, "h200", {"torch": "2.11"})
    algorithm = Decision(GemmProblem(1, 2, 3), Choice.ALGORITHM, replace(whole, of=Choice.ALGORITHM), "k")
    for written in (Decision(GemmProblem(1, 2, 3), Choice.OURS, whole, "k"), algorithm, decision(16, Choice.LIBRARY)):
        assert Decision.from_dict(written.to_dict()) == written


def test_something_else_is_no_result() -> None:
    with pytest.raises(KeyError):
        judge({})
    assert isinstance(judge(result(1, 1, 1)), Outcome)

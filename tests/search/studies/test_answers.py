"""Whose answer stands, of several studies of a problem."""

import pytest

from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Provenance
from tilescout.search.measure.race import Estimate, Race
from tilescout.search.studies.answers import fastest
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

LIVE = Provenance("live", "NVIDIA H200, driver 580", {"torch": "2.11.0"})
DEFAULT = Configuration.of({"tile_m": 128})


def told(ratio: float, low: float, high: float, raced: bool) -> StudyResult:
    """A search whose answer has this time over the library's."""
    info = StudyInfo(
        "study", "gemm_sm90", "c0ffee", GemmProblem(64, 64, 64), "h200", "tpe", 7, LIVE, DEFAULT, "torch.mm", 200.0
    )
    timing = Timing(ratio, ratio, ratio, low, high, 200.0, 40)
    trial = TrialRecord(0, 5, DEFAULT, Measurement(Status.OK, timing=timing), 1.0, 2.0)
    found, level = Estimate(ratio, low, high), Estimate(1.0, 1.0, 1.0)
    return StudyResult(info, [trial], 1.0, race=Race(5, 5, {5: found}, level, 1.0, 6, {5: 6}) if raced else None)


@pytest.mark.parametrize("raced", [True, False])
def test_what_raced_counts_with_its_time_and_what_did_not_with_the_worst_end(raced: bool) -> None:
    fast, sure = told(1.01, 0.96, 1.06, raced), told(1.02, 1.01, 1.03, raced)

    assert fastest([sure, fast]) is (fast if raced else sure)


def test_a_study_without_a_right_trial_is_behind_all_and_the_first_of_equals_stands() -> None:
    one, other = told(1.0, 0.99, 1.01, raced=True), told(1.0, 0.98, 1.02, raced=True)
    empty = StudyResult(one.info, [], 1.0)

    assert fastest([empty, one, other]) is one

"""Results of several studies of the same problems: whose answer stands."""

from collections.abc import Sequence

from tilescout.search.studies.records import StudyResult

LOST = 0.01
"""How much slower than the library's best an answer must be proven to be, before another space is searched for it.

A second search takes some seconds.
"""


def fastest(results: Sequence[StudyResult]) -> StudyResult:
    """The result whose answer is the fastest over the library at the worst end of its interval; the first of equals."""

    def worst(result: StudyResult) -> float:
        timing = result.best.measurement.timing if result.best is not None else None
        return timing.ratio_high if timing is not None else float("inf")

    return min(results, key=worst)


def loses(result: StudyResult) -> bool:
    """Whether the race of a study proves its answer slower than the library's best, by more than `LOST`."""
    speed = result.over_library_best if result.race is not None else None
    return speed is not None and speed.high < 1 - LOST


def by_problem(results: Sequence[StudyResult]) -> list[list[StudyResult]]:
    """The results of each problem together, both in their order."""
    found: dict[str, list[StudyResult]] = {}
    for result in results:
        found.setdefault(str(result.info.problem), []).append(result)
    return list(found.values())

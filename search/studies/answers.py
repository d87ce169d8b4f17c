"""Results of several studies of the same problems: whose answer stands."""

from collections.abc import Sequence

from tilescout.search.studies.records import StudyResult


def fastest(results: Sequence[StudyResult]) -> StudyResult:
    """The result whose answer is the fastest over the library at the worst end of its interval; the first of equals."""

    def worst(result: StudyResult) -> float:
        timing = result.best.measurement.timing if result.best is not None else None
        return timing.ratio_high if timing is not None else float("inf")

    return min(results, key=worst)


def by_problem(results: Sequence[StudyResult]) -> list[list[StudyResult]]:
    """The results of each problem together, both in their order."""
    found: dict[str, list[StudyResult]] = {}
    for result in results:
        found.setdefault(str(result.info.problem), []).append(result)
    return list(found.values())

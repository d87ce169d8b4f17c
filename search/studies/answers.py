"""Results of several studies of the same problems: whose answer stands."""

from collections.abc import Sequence

from tilescout.search.studies.records import StudyResult


def fastest(results: Sequence[StudyResult]) -> StudyResult:
    """The result whose answer is the fastest over the library; the first of equals.

    An answer that raced counts with its time: where two spaces were searched, that is of rounds in which both answers
    ran. One without a race counts with the worst end of its interval, for the fastest of many trials is rather slower
    than it was measured.
    """

    def expected(result: StudyResult) -> float:
        timing = result.best.measurement.timing if result.best is not None else None
        if timing is None:
            return float("inf")
        return timing.ratio if result.race is not None else timing.ratio_high

    return min(results, key=expected)


def by_problem(results: Sequence[StudyResult]) -> list[list[StudyResult]]:
    """The results of each problem together, both in their order."""
    found: dict[str, list[StudyResult]] = {}
    for result in results:
        found.setdefault(str(result.info.problem), []).append(result)
    return list(found.values())


def peers_of(results: Sequence[StudyResult]) -> list[str]:
    """The names of the peers that raced in some of these results."""
    return [*dict.fromkeys(name for result in results for name in result.over_peers)]

"""The records in the journal of a campaign."""

from collections.abc import Mapping
from typing import Any

from tilescout.search.campaigns.finals import Final
from tilescout.search.campaigns.plan import Plan
from tilescout.search.engines.engine import Engine
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.measurement import Measurement, check_interval
from tilescout.search.measure.protocol import UNNAMED
from tilescout.search.studies.journal import Journal
from tilescout.spaces.errors import MALFORMED, StoreError, one_line

FORMAT = 1


class Record(dict[str, Any]):
    """A line of the journal; the first line is the header, and is none of these."""

    @classmethod
    def row(cls, problem: int, configuration: int, outcome: Measurement) -> "Record":
        """A measurement."""
        return cls(row=[problem, configuration], measurement=outcome.to_dict())

    @classmethod
    def library(cls, problem: int, time_us: float) -> "Record":
        """The library's steady time on a problem."""
        return cls(library=[problem, time_us])

    @classmethod
    def final(cls, problem: int, final: Final) -> "Record":
        """The races of a problem."""
        ratios = [[number, *found] for number, found in final.ratios.items()]
        best = final.library_best.to_dict() if final.library_best is not None else None
        outcome = {"winner": final.winner, "probability": final.probability, "error": final.error}
        return cls(final=problem, ratios=ratios, **outcome, library_best=best)


def header(engine: Engine, plan: Plan, prune: float | None) -> dict[str, Any]:
    """The first line of the journal: all that must be the same for a campaign to be resumed."""
    return {
        "format": FORMAT,
        "space": engine.template.name,
        "source_hash": engine.source_hash,
        "plan": plan.how,
        "problems": [str(problem) for problem in plan.problems],
        "rows": plan.digest,
        "prune": prune,
        "product": engine.product,
        "protocol": engine.protocol,
        "objective": str(engine.objective),
        "versions": dict(engine.versions),
    }


def check_header(journal: Journal, ours: Mapping[str, Any]) -> None:
    """Refuse to resume a campaign that measures something else, or in another way.

    Raises
    ------
    StoreError
        With what differs.
    """
    if not journal.earlier:
        return
    theirs = {"objective": str(UNNAMED), **journal.earlier[0]}
    different = [name for name in ours if theirs.get(name) != ours[name]]
    if different:
        raise StoreError(
            f"{journal.path} is of another campaign: its {different[0]} is {theirs.get(different[0])!r}, now it is "
            f"{ours[different[0]]!r}; give the same arguments on the same machine to go on, or write another table"
        )


def read_records(
    journal: Journal, plan: Plan
) -> tuple[dict[tuple[int, int], Measurement], dict[int, float], dict[int, Final]]:
    """The rows, the library's times and the finals that the journal of a plan holds.

    Raises
    ------
    StoreError
        If it is damaged, or names what is not in the plan: a campaign would wait without end for what is left.
    """
    rows: dict[tuple[int, int], Measurement] = {}
    library_us: dict[int, float] = {}
    finals: dict[int, Final] = {}
    try:
        for record in journal.earlier[1:]:
            if "row" in record:
                problem, configuration = record["row"]
                _check_number(problem, len(plan.problems))
                _check_number(configuration, len(plan.configurations))
                if not plan.legal[problem, configuration]:
                    raise ValueError(f"configuration {configuration} is not to be measured on problem {problem}")
                rows[problem, configuration] = Measurement.from_dict(record["measurement"])
            elif "library" in record:
                problem, time_us = record["library"]
                _check_number(problem, len(plan.problems))
                check_interval(time_us, time_us, time_us)
                library_us[problem] = time_us
            else:
                _check_number(record["final"], len(plan.problems))
                finals[record["final"]] = _final(record, rows)
    except MALFORMED as error:
        raise StoreError(
            f"the journal {journal.path} is damaged ({one_line(error)}): remove it to start anew"
        ) from error
    return rows, library_us, finals


def _final(record: Mapping[str, Any], rows: Mapping[tuple[int, int], Measurement]) -> Final:
    """The races of a problem, in which configurations took part that were timed for it."""
    ratios = {number: (value, low, high, pairs) for number, value, low, high, pairs in record["ratios"]}
    for number, (value, low, high, pairs) in ratios.items():
        check_interval(value, low, high)
        row = rows.get((record["final"], number))
        if row is None or row.timing is None or type(pairs) is not int:
            raise ValueError(f"configuration {number!r} can't have raced")
    best = record.get("library_best")  # none in the journal of an older tilescout
    library_best = LibraryBest.from_dict(best) if best is not None else None
    return Final(ratios, record["winner"], record["probability"], record["error"], library_best)


def _check_number(number: object, count: int) -> None:
    """Refuse what is not the number of one of so many."""
    if type(number) is not int or not 0 <= number < count:
        raise ValueError(f"{number!r} is not one of the {count} of its plan")

"""Decisions of searches: the fastest kernel for a problem that was proven as good as the library's own choice.

It is ours or one of the library's own algorithms. Where neither was proven, the library chooses as it always did.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from tilescout.costmodel.roofline import Roofline
from tilescout.search.measure.library_best import CUBLASLT, LibraryBest
from tilescout.search.measure.measurement import check_interval
from tilescout.search.measure.protocol import UNNAMED, Objective
from tilescout.search.measure.race import Estimate, RaceOptions
from tilescout.spaces.checking import check_types
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import NONE_NAMED, Named, find_template

# A kernel whose time over the library's is at most 1 + this, with 95 % confidence, is as good as the library: the same
# threshold at which a race calls two candidates equal.
INDIFFERENCE = RaceOptions().indifference


class Choice(StrEnum):
    """Whose kernel runs."""

    OURS = "ours"
    ALGORITHM = "algorithm"  # of the library, named by us: not the one that it chooses itself
    LIBRARY = "library"


@dataclass(frozen=True)
class Evidence:
    """Why a decision is what it is.

    Attributes
    ----------
    study
        The study that it comes from.
    reason
        One line for people.
    ratio, low, high
        The time of the kernel that it speaks for, over the library's, with its 95 % interval, as the study's race
        measured it; None without a race.
    rounds
        Rounds of that race.
    library_us
        The library's time, in µs; None where it is not known, as in bundles of format 1.
    measured_by
        The GPU.
    versions
        Versions of driver, torch, compiler and protocol.
    of
        Whose kernel it speaks for: ours, or an algorithm of the library.
    """

    study: str
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    measured_by: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    library_us: float | None = None
    of: Choice = Choice.OURS

    @property
    def choice(self) -> Choice:
        """Whose kernel runs: the one that was proven, with 95 % confidence, to be as fast as the library's choice."""
        return self.of if _is_proven(self.high) else Choice.LIBRARY

    def check(self, problem: GemmProblem, device: str) -> None:
        """Refuse what no race on a device could have shown.

        Raises
        ------
        TypeError, ValueError
            If there is something.
        """
        if self.of is Choice.LIBRARY:
            raise ValueError("it speaks for what the library chooses, which needs no evidence")
        if self.library_us is not None and self.library_us <= 0:
            raise ValueError(f"the library's time is {self.library_us} µs")
        if self.ratio is None or self.low is None or self.high is None:
            if not self.ratio == self.low == self.high or self.rounds:
                raise ValueError("a part of the race is missing")
            return
        check_interval(self.ratio, self.low, self.high)
        if type(self.rounds) is not int or self.rounds < 1:
            raise ValueError(f"a race of {self.rounds} rounds")
        if self.library_us is not None and device in DEVICES:
            roofline = Roofline.of(problem, DEVICES[device])
            roofline.check(self.library_us)
            roofline.check(self.ratio * self.library_us)


@dataclass(frozen=True)
class Decision:
    """Whose kernel computes a problem, and why.

    Attributes
    ----------
    problem
        The problem.
    choice
        Whose kernel.
    evidence
        Why.
    kernel
        Digest of the kernel, or of the algorithm's description; empty where the library chooses.
    """

    problem: GemmProblem
    choice: Choice
    evidence: Evidence
    kernel: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back."""
        evidence = {**asdict(self.evidence), "versions": dict(self.evidence.versions)}
        return {
            "problem": str(self.problem),
            "choice": str(self.choice),
            "kernel": self.kernel,
            "evidence": evidence,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Decision":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError, ProblemError
            If it is something else.
        """
        told = record["evidence"]
        evidence = Evidence(**{**told, "of": Choice(told.get("of", Choice.OURS))})  # formats 1 to 3 do not say it
        if not isinstance(record["kernel"], str):
            raise TypeError(f"a kernel is named by its digest, not {record['kernel']!r}")
        made = cls(GemmProblem.parse(record["problem"]), Choice(record["choice"]), evidence, record["kernel"])
        if made.choice is not evidence.choice:
            raise ValueError(f"it chooses {made.choice} for {made.problem}: its evidence speaks for {evidence.choice}")
        if bool(made.kernel) != (made.choice is not Choice.LIBRARY):
            raise ValueError(f"it chooses {made.choice} for {made.problem}, with the kernel {made.kernel!r}")
        return made


@dataclass(frozen=True)
class Outcome:
    """The outcome of a finished study, before the artifact of its kernel is known.

    Attributes
    ----------
    problem
        The problem.
    space, space_hash
        The template of the kernels, and the hash of its source.
    device
        The device that measured, by its short name.
    choice, evidence
        As in `Decision`.
    configuration
        The kernel's; None where the library chooses.
    objective
        What ran around the kernels while they were timed.
    library
        The version of the library whose algorithm is chosen; empty otherwise.
    """

    problem: GemmProblem
    space: str
    space_hash: str
    device: str
    choice: Choice
    evidence: Evidence
    configuration: Configuration | None
    objective: Objective = UNNAMED
    library: str = ""


def judge(result: Mapping[str, Any], named: Named = NONE_NAMED) -> Outcome:
    """Decide by the result of a study, as `StudyResult.evidence` has it.

    The answer of the search is chosen only where the race of a live search proved, with 95 % confidence, that it is at
    most `INDIFFERENCE` slower than the library. So is the fastest of the library's own candidates, which ran in the
    same rounds, where it was faster than the answer there. A replayed search proves nothing about this GPU.

    Parameters
    ----------
    result
        The result.
    named
        Templates that it may be of, beside those that tilescout and installed packages bring.

    Raises
    ------
    KeyError, TypeError, ValueError, ProblemError
        If it is no such result.
    """
    problem, measured = GemmProblem.parse(result["problem"]), result["measured_by"]
    race, best, library = result["race"], result["best"], result["library"]
    versions = {str(name): str(version) for name, version in result["versions"].items()}
    made = _Made(result["space"], result["space_hash"], _of(result["space"], versions, named))
    estimate, reason = None, ""
    if measured["kind"] != "live":
        reason = "replayed, not measured: nothing is proven"
    elif race is None or best is None:
        reason = result["not_raced"] or "there was no race: nothing is proven"
    else:
        speed = Estimate(**{name: float(race["speedup_over_library"][name]) for name in ("value", "low", "high")})
        _check_race(race, best)
        estimate, made = speed.inverse(), replace(made, configuration=Configuration.of(best["configuration"]))
        if (algorithm := _algorithm(result.get("library_best"), named)) is not None and (
            not _is_proven(estimate.high) or (algorithm.over is not None and algorithm.over.value > 1)
        ):
            reason = f"{algorithm.library}'s algorithm {algorithm.configuration['guess']} of {algorithm.listed}: "
            estimate = algorithm.ratio
            made = _Made(algorithm.space, "", algorithm.version, algorithm.configuration)
        proven = "proven" if _is_proven(estimate.high) else "not proven"
        reason += f"{proven} as fast as {library['name']}: {estimate.low:.4f} to {estimate.high:.4f} of its time"
    ratio, low, high = (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)
    evidence = Evidence(
        study=str(result["study"]),
        reason=reason,
        ratio=ratio,
        low=low,
        high=high,
        rounds=int(race["rounds"]) if estimate is not None else 0,
        measured_by=str(measured["description"]),
        versions=versions,
        library_us=float(library["time_us"]) if "time_us" in library else None,
        of=Choice.ALGORITHM if made.library else Choice.OURS,
    )
    evidence.check(problem, result["device"])
    objective = Objective(result.get("objective", UNNAMED))
    chosen = evidence.choice is not Choice.LIBRARY
    outcome = Outcome(
        problem=problem,
        space=made.space,
        space_hash=made.space_hash,
        device=result["device"],
        choice=evidence.choice,
        evidence=evidence,
        configuration=made.configuration if chosen else None,
        objective=objective,
        library=made.library if chosen else "",
    )
    check_types(outcome)
    return outcome


@dataclass(frozen=True)
class _Made:
    """A kernel, by what it is made from; `library` is the library's version if it is one of its algorithms."""

    space: str
    space_hash: str
    library: str
    configuration: Configuration | None = None


def _is_proven(high: float | None) -> bool:
    return high is not None and high <= 1 + INDIFFERENCE


def _of(space: str, versions: Mapping[str, str], named: Named) -> str:
    """The version of the library whose algorithms a space is of; empty if it has kernels of its own."""
    return versions[CUBLASLT] if find_template(space, named).loader else ""


def _algorithm(record: Mapping[str, Any] | None, named: Named) -> LibraryBest | None:
    """The library's best candidate in the race, if it is proven as fast as the library and not its own choice."""
    if record is None or "configuration" not in record:
        return None
    best = LibraryBest.from_dict(record)
    if not find_template(best.space, named).loader:
        raise ValueError(f"the library's best is a kernel of {best.space}, which is no space of a library")
    usable = best.over is not None and _is_proven(best.ratio.high) and best.configuration["guess"] != 1
    return best if usable else None


def _check_race(race: Mapping[str, Any], best: Mapping[str, Any]) -> None:
    """Refuse a race that says one thing in one place and another elsewhere.

    Raises
    ------
    ValueError
        If it does.
    """
    speed, told = race["speedup_over_library"], [("value", best.get("speedup_over_library"))]
    if "time_over_library" in race:
        ratio = race["time_over_library"][str(race["answer"])]
        told += [("value", 1 / ratio["value"]), ("low", 1 / ratio["high"]), ("high", 1 / ratio["low"])]
        if best.get("trial", race["answer"]) != race["answer"]:
            raise ValueError("the best configuration is not the answer of the race")
    for name, value in told:
        if value is not None and not math.isclose(speed[name], value, rel_tol=1e-9):
            raise ValueError(f"the speed over the library is {speed[name]} in one place and {value} in another")


def best_of(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome a problem and device: of several, the one with the fastest kernel of those that are proven.

    Where none is, it is the one with the fastest that is not.

    Raises
    ------
    ExportError
        If outcomes of a problem on a device are of two objectives: their ratios are not comparable.
    """
    chosen: dict[tuple[GemmProblem, str], Outcome] = {}
    for outcome in outcomes:
        key = outcome.problem, outcome.device
        held = chosen.get(key)
        if held is not None and held.objective is not outcome.objective:
            raise ExportError(
                f"studies {held.evidence.study} and {outcome.evidence.study} of {outcome.problem} are of two "
                f"objectives ({held.objective}, {outcome.objective}): name the studies of one"
            )
        if held is None or _order(outcome) < _order(held):
            chosen[key] = outcome
    return [chosen[key] for key in sorted(chosen)]


def _order(outcome: Outcome) -> tuple[bool, float]:
    """Those that are proven first, then by the time over the library's, as in `tilescout.search.studies.answers`."""
    ratio = outcome.evidence.ratio
    return outcome.choice is Choice.LIBRARY, ratio if ratio is not None else float("inf")

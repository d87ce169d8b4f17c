"""Decisions of searches: our kernel for a problem if it was proven as good as the library's, else the library's."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tilescout.costmodel.roofline import Roofline
from tilescout.search.measure.measurement import check_interval
from tilescout.search.measure.protocol import UNNAMED, Objective
from tilescout.search.measure.race import RaceOptions
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

# A kernel whose time over the library's is at most 1 + this, with 95 % confidence, is as good as the library: the same
# threshold at which a race calls two candidates equal.
INDIFFERENCE = RaceOptions().indifference


class Choice(StrEnum):
    """Whose kernel runs."""

    OURS = "ours"
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
        Our kernel's time over the library's with its 95 % interval, as the study's race measured it; None without a
        race.
    rounds
        Rounds of that race.
    library_us
        The library's time, in µs; None where it is not known, as in bundles of format 1.
    measured_by
        The GPU.
    versions
        Versions of driver, torch, compiler and protocol.
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

    @property
    def choice(self) -> Choice:
        """Whose kernel it speaks for: ours where it was proven, with 95 % confidence, to be as fast as the library."""
        return Choice.OURS if self.high is not None and self.high <= 1 + INDIFFERENCE else Choice.LIBRARY

    def check(self, problem: GemmProblem, device: str) -> None:
        """Refuse what no race on a device could have shown.

        Raises
        ------
        TypeError, ValueError
            If there is something.
        """
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
        Digest of our kernel; empty where the library's is chosen.
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
        evidence = Evidence(**record["evidence"])
        if not isinstance(record["kernel"], str):
            raise TypeError(f"a kernel is named by its digest, not {record['kernel']!r}")
        made = cls(GemmProblem.parse(record["problem"]), Choice(record["choice"]), evidence, record["kernel"])
        if made.choice is not evidence.choice:
            raise ValueError(f"it chooses {made.choice} for {made.problem}: its evidence speaks for {evidence.choice}")
        if bool(made.kernel) != (made.choice is Choice.OURS):
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
        Our kernel's; None where the library's is chosen.
    objective
        What ran around the kernels while they were timed.
    """

    problem: GemmProblem
    space: str
    space_hash: str
    device: str
    choice: Choice
    evidence: Evidence
    configuration: Configuration | None
    objective: Objective = UNNAMED


def judge(result: Mapping[str, Any]) -> Outcome:
    """Decide by the result of a study, as `StudyResult.evidence` has it.

    Ours is chosen only where the race of a live search proved, with 95 % confidence, that it is at most
    `INDIFFERENCE` slower than the library. A replayed search proves nothing about this GPU.

    Raises
    ------
    KeyError, TypeError, ValueError, ProblemError
        If it is no such result.
    """
    problem, measured = GemmProblem.parse(result["problem"]), result["measured_by"]
    race, best = result["race"], result["best"]
    ratio = low = high = None
    rounds = 0
    if measured["kind"] != "live":
        reason = "replayed, not measured: nothing is proven"
    elif race is None or best is None:
        reason = result["not_raced"] or "there was no race: nothing is proven"
    else:
        speed = {name: float(race["speedup_over_library"][name]) for name in ("value", "low", "high")}
        ratio, low, high = 1 / speed["value"], 1 / speed["high"], 1 / speed["low"]
        _check_race(race, best)
        rounds = int(race["rounds"])
        proven = "proven" if high <= 1 + INDIFFERENCE else "not proven"
        reason = f"{proven} as fast as {result['library']['name']}: {low:.4f} to {high:.4f} of its time"
    evidence = Evidence(
        study=str(result["study"]),
        reason=reason,
        ratio=ratio,
        low=low,
        high=high,
        rounds=rounds,
        measured_by=str(measured["description"]),
        versions={str(name): str(version) for name, version in result["versions"].items()},
        library_us=float(result["library"]["time_us"]) if "time_us" in result["library"] else None,
    )
    evidence.check(problem, result["device"])
    choice = evidence.choice
    configuration = Configuration.of(best["configuration"]) if choice is Choice.OURS else None
    objective = Objective(result.get("objective", UNNAMED))
    hashed, device = result["space_hash"], result["device"]
    return Outcome(problem, result["space"], hashed, device, choice, evidence, configuration, objective)


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
    """One outcome a problem: of several, the one whose kernel is fastest at the worst end of its interval.

    Raises
    ------
    ExportError
        If outcomes of a problem are of two objectives: their ratios are not comparable.
    """
    chosen: dict[GemmProblem, Outcome] = {}
    for outcome in outcomes:
        held = chosen.get(outcome.problem)
        if held is not None and held.objective is not outcome.objective:
            raise ExportError(
                f"studies {held.evidence.study} and {outcome.evidence.study} of {outcome.problem} are of two "
                f"objectives ({held.objective}, {outcome.objective}): name the studies of one"
            )
        if held is None or _worst(outcome) < _worst(held):
            chosen[outcome.problem] = outcome
    return sorted(chosen.values(), key=lambda outcome: outcome.problem)


def _worst(outcome: Outcome) -> float:
    return outcome.evidence.high if outcome.evidence.high is not None else float("inf")

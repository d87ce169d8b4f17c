"""Records of studies: what was searched, every trial, and the result. They hold no open file or connection."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tilescout.costmodel.estimator import Expected
from tilescout.costmodel.roofline import Roofline
from tilescout.search.measure.library_best import LibraryBest, Peer
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import UNNAMED, Objective
from tilescout.search.measure.provenance import Dataset, Provenance
from tilescout.search.measure.race import Estimate, Race
from tilescout.spaces.checksums import sealed
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import LONGEST, Configuration, Value
from tilescout.spaces.problems import Problem
from tilescout.spaces.texts import number_of
from tilescout.spaces.workloads import COPY


@dataclass(frozen=True)
class TrialRecord:
    """One finished trial.

    Attributes
    ----------
    number
        Its number in the study, from 0.
    index
        The configuration's index in the search space; the trial's number in a study that was read back, for which the
        space is not enumerated.
    configuration, measurement
        The configuration that was tried, and its outcome.
    started, finished
        When it was proposed and when it was finished, in seconds since the epoch.
    expected
        The prediction of the strategy's cost model before the trial; None if the strategy has no model.
    """

    number: int
    index: int
    configuration: Configuration
    measurement: Measurement
    started: float
    finished: float
    expected: Expected | None = None

    def __repr__(self) -> str:
        measurement = self.measurement
        found = f"{measurement.time_us:.2f} µs" if measurement.ok else str(measurement.status)
        return f"<TrialRecord {self.number}: {found}, {self.configuration}>"


@dataclass(frozen=True)
class StudyInfo:
    """The description of a study. It does not change while the study is searched.

    Attributes
    ----------
    name
        The study's name in its store.
    space, space_hash
        Name of the search space, and the hash of its source.
    problem
        The problem.
    device
        Name of the device whose times are reported.
    sampler, seed
        The strategy and its seed.
    provenance
        Where the measurements come from.
    default
        The configuration that is run without any search; trial 0 measures it.
    library, library_us
        Name of the vendor library's function that times are relative to, for example ``torch.mm``, and its steady time
        on the problem, in µs.
    knobs
        The values that each knob of the space can have.
    size
        How many configurations are searched.
    model
        File of the cost model that guides the search; empty without one.
    model_sha256
        Checksum of that file, or of the content of that object; empty without one, if the study is of an older
        tilescout, or if nothing tells such objects apart.
    model_object
        The class of a cost model that was given as an object of Python and not as a file; else empty.
    hindsight
        Whether the model of a file was trained on measurements of this very problem. Its times are no predictions then.
    """

    name: str
    space: str
    space_hash: str
    problem: Problem
    device: str
    sampler: str
    seed: int
    provenance: Provenance
    default: Configuration
    library: str
    library_us: float
    knobs: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    size: int = 0
    model: str = ""
    hindsight: bool = False
    model_sha256: str = ""
    model_object: str = ""

    @property
    def guide(self) -> dict[str, Any] | None:
        """The name and checksum of the cost model, and whether it knows the problem, for JSON; None without one.

        An object does not say what it was trained on.
        """
        if self.model_object:
            name = f"{self.model_object}, given as an object"
            return {"name": name, "sha256": self.model_sha256, "trained_on_problem": None}
        if not self.model:
            return None
        return {"name": Path(self.model).name, "sha256": self.model_sha256, "trained_on_problem": self.hindsight}

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back."""
        knobs = {name: list(values) for name, values in self.knobs.items()}
        return asdict(self) | {"problem": str(self.problem), "default": dict(self.default), "knobs": knobs}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], problem: Problem) -> Self:
        """Read what `to_dict` wrote. The caller parses the problem, whose text depends on the template.

        Raises
        ------
        KeyError, TypeError, ValueError
            If something is missing or unknown.
        """
        source = record["provenance"]
        table = Dataset(**source["table"]) if source["table"] is not None else None
        objective = Objective(source.get("objective", UNNAMED))
        provenance = Provenance(**{**source, "table": table, "objective": objective})
        default = Configuration.of(record["default"])
        texts = [text for values in record.get("knobs", {}).values() for text in values if isinstance(text, str)]
        if max(map(len, texts), default=0) > LONGEST:  # every trial has one, and pages show each
            raise ValueError(f"a value of a knob is longer than {LONGEST} characters")
        return cls(**{**record, "problem": problem, "provenance": provenance, "default": default})


@dataclass(frozen=True)
class StudyResult:
    """The trials of a study and its best configuration, with the evidence for it.

    Attributes
    ----------
    info
        The description of the study.
    trials
        Every finished trial of the study, in the order of their numbers.
    seconds
        Wall-clock seconds of this run of the search.
    race
        The race between the best configurations at the end. None where nothing can be measured again, as in a replay.
    not_raced
        Why a race was begun and not finished; empty otherwise. Nothing is proven then, and the default is the answer.
    not_tracked
        The trials that MLflow did not take, in one line; a resumed search delivers them. Empty if all arrived.
    stopped
        Why the sampler ended the search; empty if the budget or the space did.
    page
        The study's page in the UI of MLflow, behind the server's address; empty if it was not logged there by this run.
    library_best
        The fastest of the library's own candidates, which ran in the race too; None if it is not known.
    no_library_best
        Why it is not; empty where there is no list of candidates.
    peers
        What others would run, if that was asked for; it ran in the race too.
    wall
        The seconds of the run by what it waited for, as `tilescout.search.tuning.wall.WallClock` counts them; empty if
        nobody has counted. Two results that differ in nothing else are equal.
    """

    info: StudyInfo
    trials: Sequence[TrialRecord]
    seconds: float
    not_tracked: str = ""
    race: Race | None = None
    not_raced: str = ""
    stopped: str = ""
    page: str = ""
    library_best: LibraryBest | None = None
    no_library_best: str = ""
    peers: tuple[Peer, ...] = ()
    wall: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        info, best = self.info, self.best
        timing = best.measurement.timing if best is not None else None
        found = "none worked"
        if timing is not None:
            found = f"best {timing.time_us:.2f} {info.provenance.unit}, {1 / timing.ratio:.3f} of {info.library}"
        what = f"{info.space} {info.problem} on {info.device} ({info.provenance.kind}) by {info.sampler}"
        return f"<{type(self).__name__} {what}: {number_of(len(self.trials), 'trial')}, {found}>"

    @property
    def best(self) -> TrialRecord | None:
        """The best configuration: the answer of the race, or without a race the fastest one with a correct result.

        None if no configuration had a correct result. After a race its time and interval are those of the race.
        """
        if self.race is not None:
            answer = self.race.answer
            return self._as_raced(next(trial for trial in self.trials if trial.index == answer))
        if self.not_raced:
            return self.default
        return min((t for t in self.trials if t.measurement.ok), key=lambda t: t.measurement.time_us, default=None)

    @property
    def default(self) -> TrialRecord | None:
        """The trial of the default configuration, None if it was not tried. After a race its time is the race's."""
        found = next((trial for trial in self.trials if trial.configuration == self.info.default), None)
        return self._as_raced(found) if found is not None else None

    def _as_raced(self, trial: TrialRecord) -> TrialRecord:
        timing = trial.measurement.timing
        if self.race is None or trial.index not in self.race.ratios or timing is None:
            return trial
        raced = self.race.ratios[trial.index]
        timing = replace(timing, ratio=raced.value, ratio_low=raced.low, ratio_high=raced.high)
        return replace(trial, measurement=replace(trial.measurement, timing=timing))

    @property
    def over_library_best(self) -> Estimate | None:
        """The best configuration's speed over the library's best; None if one of the two is not known.

        By the rounds of the race that both ran in; else by what each told alone. Of itself it has the speed 1.
        """
        best, library = self.best, self.library_best
        if best is None or (timing := best.measurement.timing) is None or library is None:
            return None
        if library.over is not None:
            return library.over.inverse()
        if (library.space, library.configuration) == (self.info.space, best.configuration):
            return Estimate(1.0, 1.0, 1.0)
        return library.speed_of(Estimate.of(timing))

    @property
    def over_peers(self) -> dict[str, Estimate]:
        """The best configuration's speed over each peer that ran in the race, by name."""
        return {peer.name: peer.over.inverse() for peer in self.peers if peer.over is not None}

    @property
    def roofline(self) -> Roofline | None:
        """The time that no kernel can beat; None for a problem that is known by its name only."""
        if not self.info.problem.bytes:
            return None
        return Roofline.of(self.info.problem, find_device(self.info.device))

    @property
    def compile_seconds(self) -> float:
        """Seconds of one core that compiling took, over all trials."""
        return sum(trial.measurement.compile_seconds for trial in self.trials)

    @property
    def gpu_seconds(self) -> float:
        """Seconds of GPU time, over all trials, the library's candidates and the race."""
        raced = self.race.gpu_seconds if self.race is not None else 0.0
        listed = self.library_best.gpu_seconds if self.library_best is not None else 0.0
        return raced + listed + sum(trial.measurement.gpu_seconds for trial in self.trials)

    @property
    def account(self) -> dict[str, float]:
        """The cost of the search in seconds: of one core for ``compile``, of the GPU for the others."""
        spent = {
            name: sum(getattr(trial.measurement, f"{name}_seconds") for trial in self.trials)
            for name in ("compile", "verify", "pilot", "timing")
        }
        listed = {"candidates": self.library_best.gpu_seconds} if self.library_best is not None else {}
        return spent | listed | {"race": self.race.gpu_seconds if self.race is not None else 0.0}

    def evidence(self) -> dict[str, Any]:
        """The best configuration and the evidence for it, ready for JSON.

        It is stored in the study, and an export reads it. It has a checksum.
        """
        return sealed(self._evidence())

    def _evidence(self) -> dict[str, Any]:
        info = self.info
        return {
            "study": info.name,
            "space": info.space,
            "space_hash": info.space_hash,
            "problem": str(info.problem),
            "device": info.device,
            "measured_by": {"kind": info.provenance.kind, "description": info.provenance.description},
            "objective": str(info.provenance.objective),
            "versions": dict(info.provenance.versions),
            "best": _describe(self.best, info),
            "library": {
                "name": info.library,
                "time_us": info.library_us,
                **named_rate(info.problem, info.library_us),
            },
            "library_best": _describe_library_best(self),
            "peers": [peer.to_dict() for peer in self.peers],
            "race": _describe_race(self),
            "not_raced": self.not_raced,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "model": info.guide,
        }

    def to_dict(self) -> dict[str, Any]:
        """The result as the command line writes it with ``--json``."""
        info = self.info
        told = self._evidence() | {
            "sampler": info.sampler,
            "seed": info.seed,
            "default": _describe(self.default, info),
            "roofline_us": self.roofline.time_us if self.roofline is not None else None,
            "trials": len(self.trials),
            "failed_trials": sum(trial.measurement.failed for trial in self.trials),
            "pruned_trials": sum(trial.measurement.status is Status.PRUNED for trial in self.trials),
            "compile_seconds": self.compile_seconds,
            "gpu_seconds": self.gpu_seconds,
            "account": self.account,
            "wall": dict(self.wall),
        }
        return sealed(told)


def named_rate(problem: Problem, time_us: float) -> dict[str, float]:
    """The speed at which a problem is solved in `time_us` µs, under the name of its unit."""
    return {problem.rate.unit.name: problem.rate.at(time_us)}


def named_bandwidth(library: str, ratio: float) -> dict[str, float]:
    """The share of the measured bandwidth that a kernel achieves, by name; nothing unless the library is a copy."""
    return {"bandwidth_fraction": 1 / ratio} if library == COPY else {}


def described_library_best(
    best: LibraryBest | None, unknown: str, problem: Problem, library_us: float
) -> dict[str, Any] | None:
    """The library's best, or why it is not known, ready for JSON; None where there is no list of candidates."""
    if best is None:
        return {"unknown": unknown} if unknown else None
    time_us = best.ratio.value * library_us
    return best.to_dict() | {
        "name": best.name,
        "time_us": time_us,
        **named_rate(problem, time_us),
        "speedup_over_library": 1 / best.ratio.value,
    }


def spoken(library: str) -> str:
    """The words for the library in a sentence."""
    return "a copy" if library == COPY else "the library"


def _describe(trial: TrialRecord | None, info: StudyInfo) -> dict[str, Any] | None:
    if trial is None:
        return None
    record: dict[str, Any] = {"trial": trial.number, "configuration": dict(trial.configuration)}
    timing = trial.measurement.timing
    if timing is None:
        return record | {"status": str(trial.measurement.status), "error": trial.measurement.error}
    return record | {
        "time_us": timing.time_us,
        "interval_us": [timing.ratio_low * timing.library_us, timing.ratio_high * timing.library_us],
        **named_rate(info.problem, timing.time_us),
        "speedup_over_library": 1 / timing.ratio,
        **named_bandwidth(info.library, timing.ratio),
        "status": str(trial.measurement.status),
    }


def _describe_library_best(result: StudyResult) -> dict[str, Any] | None:
    best, info, over = result.library_best, result.info, result.over_library_best
    told = described_library_best(best, result.no_library_best, info.problem, info.library_us)
    if best is None or told is None:
        return told
    return told | {"speedup_of_best": asdict(over) if over is not None else None}


def _describe_race(result: StudyResult) -> dict[str, Any] | None:
    race = result.race
    if race is None:
        return None
    numbers = {trial.index: trial.number for trial in result.trials}
    return {
        "winner": numbers[race.winner],
        "answer": numbers[race.answer],
        "verdict": race.verdict(spoken(result.info.library)),
        "speedup_over_default": asdict(race.over_default.inverse()),
        "speedup_over_library": asdict(race.ratios[race.answer].inverse()),
        "speedup_elsewhere": asdict(race.elsewhere.inverse()) if race.elsewhere is not None else None,
        "probability_fastest": race.probability,
        "rounds": race.rounds,
        "pairs": race.pairs,
        "gpu_seconds": race.gpu_seconds,
        "rounds_of": {str(numbers[index]): rounds for index, rounds in race.ran.items()},
        "time_over_library": {str(numbers[index]): asdict(ratio) for index, ratio in race.ratios.items()},
    }

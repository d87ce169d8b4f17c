"""What a search leaves behind: frozen records, apart from the live handles that made them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilescout.costmodel.roofline import Roofline
from tilescout.search.evaluate.evaluator import Provenance
from tilescout.search.evaluate.measurement import Measurement
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem


@dataclass(frozen=True)
class TrialRecord:
    """One finished trial.

    Attributes
    ----------
    number
        Its number in the study, from 0.
    index
        The configuration's index in the search space.
    configuration, measurement
        What was tried, and the outcome.
    started, finished
        When it was proposed and when it was done, in seconds since the epoch.
    """

    number: int
    index: int
    configuration: Configuration
    measurement: Measurement
    started: float
    finished: float


@dataclass(frozen=True)
class StudyInfo:
    """What a study is about; it does not change while the study runs.

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
    library
        What the library's kernel is called through, and its steady time in µs.
    library_us
        The library's steady time on the problem, in µs.
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


@dataclass(frozen=True)
class StudyResult:
    """What a search found, with its evidence.

    Attributes
    ----------
    info
        What the study is about.
    trials
        Every finished trial of the study, in the order of their numbers.
    seconds
        Wall-clock seconds of this run of the search.
    not_tracked
        What the tracker could not deliver, in one line; a resumed search delivers it. Empty if all arrived.
    """

    info: StudyInfo
    trials: Sequence[TrialRecord]
    seconds: float
    not_tracked: str = ""

    @property
    def best(self) -> TrialRecord | None:
        """The fastest right configuration; None if there is none."""
        return min((t for t in self.trials if t.measurement.ok), key=lambda t: t.measurement.time_us, default=None)

    @property
    def default(self) -> TrialRecord | None:
        """The trial of the default configuration; None if it was not tried."""
        return next((t for t in self.trials if t.configuration == self.info.default), None)

    @property
    def roofline(self) -> Roofline:
        """The time that no kernel can beat."""
        return Roofline.of(self.info.problem, find_device(self.info.device))

    @property
    def compile_seconds(self) -> float:
        """Seconds of one core that compiling took, over all trials."""
        return sum(trial.measurement.compile_seconds for trial in self.trials)

    @property
    def gpu_seconds(self) -> float:
        """Seconds of GPU time, over all trials."""
        return sum(trial.measurement.gpu_seconds for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        """The result as the command line writes it with ``--json``."""
        info = self.info
        return {
            "study": info.name,
            "space": info.space,
            "problem": str(info.problem),
            "device": info.device,
            "measured_by": {"kind": info.provenance.kind, "description": info.provenance.description},
            "sampler": info.sampler,
            "seed": info.seed,
            "best": _describe(self.best, info),
            "default": _describe(self.default, info),
            "roofline_us": self.roofline.time_us,
            "library": {
                "name": info.library,
                "time_us": info.library_us,
                "tflops": tflops(info.problem, info.library_us),
            },
            "trials": len(self.trials),
            "failed_trials": sum(not trial.measurement.ok for trial in self.trials),
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "gpu_seconds": self.gpu_seconds,
        }


def tflops(problem: Problem, time_us: float) -> float:
    """The rate of a problem solved in `time_us` µs, in 10**12 operations a second."""
    return problem.flops / time_us / 1e6


def _describe(trial: TrialRecord | None, info: StudyInfo) -> dict[str, Any] | None:
    if trial is None:
        return None
    record: dict[str, Any] = {"trial": trial.number, "configuration": dict(trial.configuration)}
    timing = trial.measurement.timing
    if timing is None:
        return record | {"status": str(trial.measurement.status), "error": trial.measurement.error}
    return record | {
        "time_us": timing.time_us,
        "interval_us": [timing.ratio_q25 * timing.library_us, timing.ratio_q75 * timing.library_us],
        "tflops": tflops(info.problem, timing.time_us),
        "speedup_over_library": 1 / timing.ratio,
        "status": str(trial.measurement.status),
    }

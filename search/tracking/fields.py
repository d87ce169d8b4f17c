"""The tags, parameters and metrics of a study and its trials in MLflow, as plain mappings."""

import hashlib
import re
from dataclasses import dataclass, replace

from tilescout.search.measure.measurement import Status, Timing
from tilescout.search.measure.race import Estimate
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord, named_bandwidth, named_rate, spoken
from tilescout.search.tracking.mlflow_hooks import View
from tilescout.spaces.problems import Problem
from tilescout.spaces.texts import printable

TRIAL_TAG = "tilescout.trial"  # number of the trial that a child run holds
STUDY_TAG = "tilescout.study"
SUITE_TAG = "tilescout.suite"  # identifies a suite's run, so that a resumed search finds it
TRIALS_TAG = "tilescout.trials"  # of a study's run: the experiment that holds its trials' runs
PARENT_TAG = "mlflow.parentRunId"  # nests a run under another one in MLflow's table
NOTE_TAG = "mlflow.note.content"  # the description, in Markdown
_LONGEST_NAME, _LONGEST_VALUE = 250, 6000  # MLflow's limits for a parameter, in characters
TAG_LENGTH = 8000  # MLflow's limit for the value of a tag, in characters

# A part of links to MLflow's pages. Without it they open the pages for traces of language models.
UI_MODE = "workflowType=machine_learning"

_RUN_STATUS = {Status.OK: "FINISHED", Status.PRUNED: "FINISHED", Status.INTERRUPTED: "KILLED"}


STUDIES = View(
    (
        *("best_speedup_over_library", "best_speedup_over_library_best", "trials", "cost_gpu_seconds"),
        *("best_time_us", "best_speedup_over_default"),
    ),
    ("problem", "sampler"),
)
TRIALS = View(("time_us", "speedup_over_library", "gpu_seconds"), (), "time_us", ascending=True)
"""The columns of MLflow's tables of studies and of trials."""


def milliseconds(seconds: float) -> int:
    """Seconds since the epoch as MLflow's timestamp."""
    return round(seconds * 1000)


def speedup(timing: Timing, default: Timing) -> float:
    """How many times faster than the default.

    The quotient of the two ratios to the library, not of the times: each ratio is free of the drift of the clocks.
    """
    return default.ratio / timing.ratio


def experiment_name(space: str) -> str:
    """The experiment that holds all studies of a space."""
    return f"tilescout/{printable(space)}"


def trials_experiment_name(space: str) -> str:
    """The experiment that holds the trials of all studies of a space: MLflow would list 100 runs of one study first."""
    return f"{experiment_name(space)}/trials"


def common_tags(info: StudyInfo) -> dict[str, str]:
    """The tags of the study's run and of each trial's run."""
    return {
        STUDY_TAG: info.name,
        "mlflow.source.name": "tilescout",
        "space": info.space,
        "space_hash": info.space_hash,
        "problem": str(info.problem),
        "signature": info.problem.signature,
        "device": info.device,
        "library": info.library,
        "sampler": info.sampler,
        "seed": str(info.seed),
        "provenance": info.provenance.kind,
        "objective": str(info.provenance.objective),
        "measured_by": info.provenance.description,
        **{f"version.{name}": version for name, version in info.provenance.versions.items()},
    }


def study_params(info: StudyInfo) -> dict[str, str]:
    """Parameters of the parent run."""
    problem = info.problem
    return {
        "problem": str(problem),
        **{name: str(size) for name, size in problem.sizes.items()},
        "signature": problem.signature,
        "device": info.device,
        "space": info.space,
        "sampler": info.sampler,
        "seed": str(info.seed),
        "default_configuration": str(info.default),
    }


def study_name(info: StudyInfo) -> str:
    """The name of the parent run, whose end MLflow cuts off; the experiment's tells the space. Seed 0 is left out."""
    return f"{info.sampler}{f' s{info.seed}' if info.seed else ''} {info.problem}"


def trial_name(trial: TrialRecord) -> str:
    """The name of a child run."""
    return f"trial {trial.number}"


def trial_status(trial: TrialRecord) -> str:
    """MLflow's status of a child run."""
    return _RUN_STATUS.get(trial.measurement.status, "FAILED")


def trial_tags(trial: TrialRecord) -> dict[str, str]:
    """The tags of a trial's run in addition to `common_tags`."""
    measurement = trial.measurement
    tags = {TRIAL_TAG: str(trial.number), "status": str(measurement.status)}
    return tags | ({"error": measurement.error} if measurement.error else {})


def trial_params(trial: TrialRecord) -> dict[str, str]:
    """Parameters of a child run: every knob, and the configuration's index in its space.

    MLflow's plots take the first parameters by name and the first metric; the index's name keeps it behind most knobs.
    """
    knobs = {param_name(name): printable(str(value))[:_LONGEST_VALUE] for name, value in trial.configuration.items()}
    return knobs | {"space_index": str(trial.index)}


def param_name(knob: str) -> str:
    """The name of a knob as MLflow takes it; one that is changed ends in digits of a hash, so that two stay two."""
    kept = re.sub(r"[^A-Za-z0-9_. -]", "_", knob)
    if kept == knob and knob == knob.strip(". ") and 0 < len(knob) <= _LONGEST_NAME:
        return knob
    digest = hashlib.sha256(knob.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{kept.strip('. ')[: _LONGEST_NAME - 9]}-{digest}".lstrip("-")


def trial_metrics(trial: TrialRecord, info: StudyInfo, default: Timing | None) -> dict[str, float]:
    """Metrics of a child run; times in µs, costs in seconds, sizes in bytes. Those that are not known are left out."""
    measurement = trial.measurement
    timing, resources = measurement.timing, measurement.resources
    metrics: dict[str, float] = {}
    if timing is not None:
        metrics |= {
            "time_us": timing.time_us,
            **_rate(info, timing),
            "speedup_over_library": 1 / timing.ratio,
            **named_bandwidth(info.library, timing.ratio),
            "time_over_library": timing.ratio,
            "time_over_library_q25": timing.ratio_q25,
            "time_over_library_q75": timing.ratio_q75,
            "time_over_library_low": timing.ratio_low,
            "time_over_library_high": timing.ratio_high,
            "library_us": timing.library_us,
            "pairs": float(timing.pairs),
        }
        if default is not None:
            metrics["speedup_over_default"] = speedup(timing, default)
    if resources is not None:
        metrics |= {
            "registers": float(resources.registers),
            "spill_bytes": float(resources.spill_bytes),
            "shared_memory": float(resources.shared_memory),
        }
        if resources.instructions is not None:
            metrics["instructions"] = float(resources.instructions)
    if measurement.clocks is not None:
        metrics |= {name: getattr(measurement.clocks, name) for name in ("sm_mhz", "power_w", "temperature_c")}
    if trial.expected is not None:
        metrics["predicted_us"] = trial.expected.time_us
    for name in ("relative_error", "pilot_us"):
        if (value := getattr(measurement, name)) is not None:
            metrics[name] = value
    return metrics | {
        "compile_seconds": measurement.compile_seconds,
        "gpu_seconds": measurement.gpu_seconds,
        "verify_seconds": measurement.verify_seconds,
        "pilot_seconds": measurement.pilot_seconds,
        "timing_seconds": measurement.timing_seconds,
        "trial": float(trial.number),
    }


def rate(problem: Problem, time_us: float) -> str:
    """The speed for people, in the problem's unit; a dash where it is not known."""
    return f"{problem.rate.at(time_us):.4g}" if problem.rate.work else "–"


def _rate(info: StudyInfo, timing: Timing) -> dict[str, float]:
    """The speed, where it is known."""
    return named_rate(info.problem, timing.time_us) if info.problem.rate.work else {}


def _best(info: StudyInfo, timing: Timing, default: Timing | None) -> dict[str, float]:
    """Metrics of the parent run that say how fast the best configuration is."""
    metrics = {
        "best_time_us": timing.time_us,
        "best_speedup_over_library": 1 / timing.ratio,
        **{f"best_{name}": value for name, value in _rate(info, timing).items()},
        **{f"best_{name}": value for name, value in named_bandwidth(info.library, timing.ratio).items()},
    }
    return metrics | ({"best_speedup_over_default": speedup(timing, default)} if default is not None else {})


def result_metrics(result: StudyResult) -> dict[str, float]:
    """Metrics of the parent run that are known when the study is finished: its cost, and the outcome of the race.

    Where the race, or that there was none, decides on the answer, they have the speed of that in the place of the
    fastest trial's.
    """
    metrics = {
        "trials": float(len(result.trials)),
        "search_seconds": result.seconds,
        "cost_gpu_seconds": result.gpu_seconds,
        **{f"cost_{name}_seconds": seconds for name, seconds in result.account.items()},
        **{f"wall_{name.replace(' ', '_')}_seconds": seconds for name, seconds in result.wall.items()},
    }
    answer, default = ((each.measurement.timing if each else None) for each in (result.best, result.default))
    if answer is not None and (result.race is not None or result.not_raced):
        metrics |= _best(result.info, answer, default)
    best, over = result.library_best, result.over_library_best
    if best is not None:
        metrics |= {"library_best_us": best.ratio.value * result.info.library_us}
        metrics |= {"library_best_speedup_over_library": 1 / best.ratio.value}
    for peer in result.peers:
        metrics |= {f"{peer.name}_seconds": peer.seconds}
        if peer.ratio is not None:
            metrics |= {f"{peer.name}_speedup_over_library": 1 / peer.ratio.value}
    others = result.over_peers if over is None else {"library_best": over, **result.over_peers}
    for name, speed in others.items():
        metrics |= _interval(f"best_speedup_over_{name}", speed)
    race = result.race
    if race is None:
        return metrics
    speeds = {"over_default": race.over_default.inverse(), "over_library": race.ratios[race.answer].inverse()}
    if race.elsewhere is not None:
        speeds["over_library_elsewhere"] = race.elsewhere.inverse()
    for name, speed in speeds.items():
        metrics |= _interval(f"race_speedup_{name}", speed)
    return metrics | {
        "race_probability_fastest": race.probability,
        "race_proven_over_default": float(race.answer == race.winner),
        "race_proven_over_library": float(race.ratios[race.answer].high < 1),
        "race_rounds": float(race.rounds),
        "race_candidates": float(len(race.ratios)),
    }


def _interval(name: str, speed: Estimate) -> dict[str, float]:
    """A speed and the ends of its interval, as metrics."""
    return {name: speed.value, f"{name}_low": speed.low, f"{name}_high": speed.high}


def race_metrics(result: StudyResult) -> dict[int, dict[str, float]]:
    """Metrics of the trials that raced, by number: the share of each in the race's GPU time."""
    race = result.race
    if race is None:
        return {}
    numbers = {trial.index: trial.number for trial in result.trials}
    return {numbers[index]: {"race_seconds": race.seconds_of(index)} for index in race.ran}


def result_tags(result: StudyResult) -> dict[str, str]:
    """Tags of the parent run that are known when the study is finished."""
    tags = {}
    if result.best is not None:
        tags["best_configuration"] = str(result.best.configuration)
    if result.library_best is not None:
        found_best = result.library_best
        tags["library_best"] = f"{found_best.name}: {found_best.configuration}"
        tags["library_version"] = f"{found_best.library} {found_best.version}"
    elif result.no_library_best:
        tags["library_best"] = f"not known: {result.no_library_best}"
    tags |= {f"peer_{peer.name}": f"not known: {peer.error}" for peer in result.peers if peer.error}
    if (guide := result.info.guide) is not None:
        tags["cost_model"] = guide["name"]
        tags["cost_model_sha256"] = guide["sha256"] or "not known"
        knows = guide["trained_on_problem"]
        tags["cost_model_knows_problem"] = str(knows) if knows is not None else "not known"
    if result.not_raced:
        tags["race"] = f"not finished: {result.not_raced}"
    if result.race is not None:
        tags["race"] = result.race.verdict(spoken(result.info.library))
        found = {trial.index: trial for trial in result.trials}
        for name, index in (("race_winner", result.race.winner), ("race_answer", result.race.answer)):
            tags[name] = f"trial {found[index].number}: {found[index].configuration}"
    return tags


@dataclass(frozen=True)
class Progress:
    """The state of a study after some of its trials, in the order in which they finished.

    Attributes
    ----------
    trials, failed
        How many have finished, and how many of them failed.
    best
        The fastest right one so far.
    default
        The default configuration's times, once they are known.
    compile_seconds, gpu_seconds
        What all of them cost.
    """

    trials: int = 0
    failed: int = 0
    best: TrialRecord | None = None
    default: Timing | None = None
    compile_seconds: float = 0.0
    gpu_seconds: float = 0.0

    def after(self, trial: TrialRecord, info: StudyInfo) -> "Progress":
        """The state after one more trial."""
        measurement = trial.measurement
        better = measurement.ok and (self.best is None or measurement.time_us < self.best.measurement.time_us)
        is_default = self.default is None and trial.configuration == info.default
        return replace(
            self,
            trials=self.trials + 1,
            failed=self.failed + measurement.failed,
            best=trial if better else self.best,
            default=measurement.timing if is_default else self.default,
            compile_seconds=self.compile_seconds + measurement.compile_seconds,
            gpu_seconds=self.gpu_seconds + measurement.gpu_seconds,
        )

    def metrics(self, info: StudyInfo) -> dict[str, float]:
        """Metrics of the parent run."""
        metrics: dict[str, float] = {}
        timing = self.best.measurement.timing if self.best is not None else None
        if timing is not None:
            metrics |= _best(info, timing, self.default)
        return metrics | {
            "failed_trials": float(self.failed),
            "total_compile_seconds": self.compile_seconds,
            "total_gpu_seconds": self.gpu_seconds,
        }

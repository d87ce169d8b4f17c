"""What a finished study says of itself: a description in Markdown, and the table of its trials."""

import csv
from collections.abc import Mapping
from pathlib import Path

from tilescout.search.evaluate.measurement import Status, Timing
from tilescout.search.records import StudyInfo, StudyResult, TrialRecord, spoken
from tilescout.search.tracking import fields


def opening(info: StudyInfo) -> str:
    """What the description says of the study itself, from the start."""
    source = "replayed, nothing is measured now" if info.provenance.kind == "replay" else "measured live"
    return (
        f"**{info.problem}** on **{info.device}**: `{info.space}` searched by `{info.sampler}`, seed {info.seed}; "
        f"{source}: {info.provenance.description}\n"
    )


def describe(result: StudyResult, run_id: str, experiment_id: str, children: Mapping[int, str]) -> str:
    """The description of the parent run, in Markdown.

    MLflow folds a description after some three lines, so what was found and the link to the trials come first.

    Parameters
    ----------
    result
        The study.
    run_id, experiment_id
        The parent run.
    children
        The run of each trial, by its number.
    """
    info, best, default = result.info, result.best, result.default
    reference = default.measurement.timing if default is not None else None
    over_default = f"{reference.ratio:.3f}" if reference is not None else "–"
    library_rate = fields.rate(info.problem, info.library_us)
    failed = sum(trial.measurement.failed for trial in result.trials)
    pruned = sum(trial.measurement.status is Status.PRUNED for trial in result.trials)
    tail = "\n".join(
        [
            "",
            "",
            opening(info),
            f"| | time (µs) | {info.problem.rate.unit.symbol} | × {info.library} | × default |",
            "| --- | ---: | ---: | ---: | ---: |",
            _row("best", best, info, reference),
            _row("default", default, info, reference),
            f"| library | {info.library_us:.2f} | {library_rate} | 1.000 | {over_default} |",
            "",
            f"- best configuration: {best.configuration if best is not None else 'none'}",
            f"- default configuration: {info.default}",
            f"- {len(result.trials)} trials, {failed} of them failed, {pruned} pruned; "
            f"{result.compile_seconds:.1f} s of compiling, {result.gpu_seconds:.1f} s of GPU, "
            f"{result.seconds:.1f} s in the last run of the search",
            "- GPU time: " + ", ".join(f"{k} {v:.2f} s" for k, v in result.account.items() if k != "compile"),
            *([f"- race: {result.race.verdict(spoken(info.library))}"] if result.race is not None else []),
            "",
            f"![convergence](get-artifact?path=convergence.png&run_uuid={run_id})",
        ]
    )
    head = _verdict(best, info, reference)
    return head + _link(result, experiment_id, children, fields.TAG_LENGTH - len(head) - len(tail)) + tail


def write_trials(result: StudyResult, path: Path) -> None:
    """Write the trials as CSV, which MLflow shows as a table: times in µs, costs in seconds, sizes in bytes."""
    default = result.default
    reference = default.measurement.timing if default is not None else None
    leading = ("time_us", result.info.problem.rate.unit.name, "speedup_over_library", "speedup_over_default")
    rows: list[dict[str, object]] = []
    for trial in result.trials:
        metrics = fields.trial_metrics(trial, result.info, reference)
        del metrics["trial"]
        first = {"trial": trial.number, "status": str(trial.measurement.status)}
        first |= {name: metrics.pop(name, None) for name in leading}
        knobs = dict(trial.configuration) | {"space_index": trial.index}
        rows.append(first | knobs | {"error": trial.measurement.error} | metrics)
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _verdict(best: TrialRecord | None, info: StudyInfo, default: Timing | None) -> str:
    timing = best.measurement.timing if best is not None else None
    if timing is None:
        return "**No trial worked.**"
    over_default = f", **{fields.speedup(timing, default):.3f}×** the default's" if default is not None else ""
    return f"Best: {timing.time_us:.2f} µs, **{1 / timing.ratio:.3f}×** the speed of {info.library}{over_default}."


def _row(title: str, trial: TrialRecord | None, info: StudyInfo, default: Timing | None) -> str:
    if trial is None:
        return f"| {title} | none | | | |"
    title = f"{title}, trial {trial.number}"
    timing = trial.measurement.timing
    if timing is None:
        return f"| {title} | {trial.measurement.status} | | | |"
    over_default = f"{fields.speedup(timing, default):.3f}" if default is not None else "–"
    rate = fields.rate(info.problem, timing.time_us)
    return f"| {title} | {timing.time_us:.2f} | {rate} | {1 / timing.ratio:.3f} | {over_default} |"


def _link(result: StudyResult, experiment_id: str, children: Mapping[int, str], room: int) -> str:
    """A link to parallel coordinates of the right trials: of the fastest, if not all fit into `room` characters."""
    right = [trial for trial in result.trials if trial.measurement.ok and trial.number in children]
    right.sort(key=lambda trial: trial.measurement.time_us)
    ids = [f"%22{children[trial.number]}%22" for trial in right]
    form = (
        " [Parallel coordinates of {which}](#/compare-runs?runs=[{ids}]&experiments=[%22" + experiment_id + "%22]"
        "&" + fields.UI_MODE + ")"
    )
    fitting = (room - len(form) - 20) // (len(ids[0]) + 1) if ids else 0
    if fitting < 1:
        return ""
    which = "the working trials" if fitting >= len(ids) else f"the {fitting} fastest trials"
    return form.format(which=which, ids=",".join(ids[:fitting]))

"""The description of a study's run in MLflow, in Markdown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tilescout.search.measure.measurement import Status, Timing
from tilescout.search.measure.race import Estimate
from tilescout.search.studies.noise import unexplained
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord, spoken
from tilescout.search.tracking import fields
from tilescout.search.tracking.plots import CAPTIONS
from tilescout.search.tracking.views import others, over_default, over_library
from tilescout.spaces.sums import fewer_bits
from tilescout.spaces.texts import number_of, plain

_MARKUP = re.compile(r"([\\`*_\[\]<>|~#&])")


HINDSIGHT = "it was trained on measurements of this very problem: what it expects here is no prediction"


def opening(info: StudyInfo) -> str:
    """The first part of the description, which is known when the study starts."""
    return (
        f"**{as_text(str(info.problem))}** on **{as_text(info.device)}**: {as_code(info.space)} searched by "
        f"{as_code(info.sampler)}, seed {info.seed}; {as_text(source(info))}\n"
    )


def source(info: StudyInfo) -> str:
    """Where the times come from, in words."""
    how = "replayed, nothing is measured now" if info.provenance.replayed else "measured live"
    return f"{how}: {info.provenance.description}"


def verdict(result: StudyResult) -> str:
    """The result in a sentence or two."""
    best = result.best
    timing = best.measurement.timing if best is not None else None
    if best is None or timing is None:
        return "No trial worked."
    library = f"{interval(over_library(timing))} times the speed of {result.info.library}"
    faster = over_default(result)
    if best.configuration == result.info.default:
        against = ", and it is the default configuration"
    else:
        against = f", {interval(faster)} times that of the default" if faster is not None else ""
    if (over := result.over_library_best) is not None and result.library_best is not None:
        library += f", {interval(over)} times that of {result.library_best.name}"
    library += "".join(f", {interval(over)} times that of {name}" for name, over in result.over_peers.items())
    raced = (
        f" Race: {result.race.verdict(spoken(result.info.library))}."
        if result.race is not None
        else f" Not raced, so the default is the answer: {result.not_raced}."
        if result.not_raced
        else " Not raced: the fastest of many measurements is a little flattered."
    )
    told = fewer_bits(result.info.space, result.info.problem, result.info.library)
    unlike = f" Note: {told}." if told else ""
    return f"Best: {timing.time_us:.2f} {result.info.provenance.unit}, {library}{against}.{raced}{unlike}"


def interval(estimate: Estimate) -> str:
    """A ratio with its interval."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


@dataclass(frozen=True)
class Place:
    """Where a study is in MLflow: its run, the experiment of that, and the experiment of its trials' runs."""

    run: str
    experiment: str
    trials: str


def describe(result: StudyResult, place: Place, children: Mapping[int, str], plots: Sequence[str] = ()) -> str:
    """The description of the parent run, in Markdown.

    MLflow folds a description after some four lines, so what was found and the link to the trials come first.

    Parameters
    ----------
    result
        The study.
    place
        The parent run.
    children
        The run of each trial, by its number.
    plots
        The pictures among its artifacts.
    """
    info, best, default = result.info, result.best, result.default
    reference = default.measurement.timing if default is not None else None
    failed = sum(trial.measurement.failed for trial in result.trials)
    pruned = sum(trial.measurement.status is Status.PRUNED for trial in result.trials)
    among = f" of {number_of(info.size, 'configuration')}" if info.size else ""
    page = f"#/experiments/{place.experiment}/runs/{place.run}/artifacts?{fields.UI_MODE}"
    tail = "\n".join(
        [
            "",
            "",
            opening(info),
            _cells(
                "",
                f"time ({as_text(info.provenance.unit)})",
                info.problem.rate.unit.symbol,
                f"× {as_text(info.library)} [95 %]",
                "× default [95 %]",
            ),
            "| --- | ---: | ---: | ---: | ---: |",
            _row("best", best, info, over_default(result)),
            _row("default", default, info, Estimate(1.0, 1.0, 1.0) if reference is not None else None),
            _library_row(info, reference),
            *(_row_of_others(name, ratio, info, reference) for name, ratio in others(result)),
            "",
            f"- default configuration: {as_code(info.default)}",
            f"- {number_of(len(result.trials), 'trial')}{among}, {failed} of them failed, {pruned} pruned; "
            f"{result.compile_seconds:.1f} s of compiling, {result.gpu_seconds:.1f} s of GPU, "
            f"{result.seconds:.1f} s in the last run of the search",
            "- GPU time: " + _listed({k: v for k, v in result.account.items() if k != "compile"}),
            *([f"- that run: {_listed(result.wall)}"] if result.wall else []),
            *([f"- stopped by itself: {as_text(result.stopped)}"] if result.stopped else []),
            *(f"- {as_text(reason)}" for reason in not_timed(result)),
            *([f"- {as_text(doubt)}"] if (doubt := unexplained(result)) is not None else []),
            *([f"- cost model: {as_text(HINDSIGHT)}"] if info.hindsight else []),
            f"- [all trials, the fastest first]({_table(place)}); their knobs: Columns, Parameters",
            f"- [artifacts]({page}): the trials (`trials.csv`), the result (`best_configuration.json`), the plots",
            *(f"\n![{CAPTIONS[name]}](get-artifact?path={name}.png&run_uuid={place.run})" for name in plots),
        ]
    )
    found = f"Best configuration: {as_code(best.configuration)}\n" if best is not None else ""
    head = f"{found}**{as_text(verdict(result))}**"
    return head + _link(result, place.trials, children, fields.TAG_LENGTH - len(head) - len(tail)) + tail


def _listed(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {spent:.2f} s" for name, spent in seconds.items())


def as_text(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKUP.sub(r"\\\1", plain(text))


def as_code(text: object) -> str:
    """Text on one line that Markdown shows as code: more backticks begin and end it than stand together in it."""
    shown = plain(text)
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence, room = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{room}{shown}{room}{fence}"


def _row(title: str, trial: TrialRecord | None, info: StudyInfo, faster: Estimate | None) -> str:
    if trial is None:
        return _cells(title, "none", "", "", "")
    title = f"{title}, trial {trial.number}"
    timing: Timing | None = trial.measurement.timing
    if timing is None:
        return _cells(title, str(trial.measurement.status), "", "", "")
    rate = fields.rate(info.problem, timing.time_us)
    against = "–" if faster is None else interval(faster) if faster.low < faster.high else f"{faster.value:.3f}"
    return _cells(title, f"{timing.time_us:.2f}", rate, interval(over_library(timing)), against)


def _table(place: Place) -> str:
    """The address of MLflow's table of a run's children, the fastest first."""
    children = quote(f"tags.`{fields.PARENT_TAG}` = '{place.run}'")
    order = f"orderByKey={quote('metrics.`time_us`')}&orderByAsc=true"
    return f"#/experiments/{place.trials}/runs?{fields.UI_MODE}&searchFilter={children}&{order}"


def _library_row(info: StudyInfo, default: Timing | None) -> str:
    rate = fields.rate(info.problem, info.library_us)
    over = interval(Estimate.of(default)) if default is not None else "–"
    return _cells(as_text(info.library), f"{info.library_us:.2f}", rate, "1.000", over)


def not_timed(result: StudyResult) -> list[str]:
    """Why the kernels of others that should have been timed were not, a line each."""
    unknown = f"the library's best is not known: {result.no_library_best}"
    failed = [f"{peer.name}: {peer.error}" for peer in result.peers if peer.error]
    return [unknown, *failed] if result.no_library_best else failed


def _row_of_others(name: str, ratio: Estimate, info: StudyInfo, default: Timing | None) -> str:
    time_us = ratio.value * info.library_us
    over = f"{default.ratio / ratio.value:.3f}" if default is not None else "–"
    rate = fields.rate(info.problem, time_us)
    return _cells(as_text(name), f"{time_us:.2f}", rate, interval(ratio.inverse()), over)


def _cells(*texts: str) -> str:
    """A row of a table. Each cell has a wide space, because MLflow leaves none between cells."""
    return "|" + "|".join(f" {text}&emsp;" for text in texts) + "|"


def _link(result: StudyResult, experiment_id: str, children: Mapping[int, str], room: int) -> str:
    """A link to parallel coordinates of the correct trials: the fastest ones that fit into `room` characters."""
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

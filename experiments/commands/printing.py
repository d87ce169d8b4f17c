"""Tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.race import Estimate
from tilescout.search.studies.noise import unexplained
from tilescout.search.studies.records import StudyResult, spoken
from tilescout.search.tables.card import Baseline
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.sums import fewer_bits
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import number_of, plain
from tilescout.spaces.workloads import COPY


def print_result(result: StudyResult, console: Console) -> None:
    """Best, default, library and roofline side by side, and what the search cost."""
    info = result.info
    title = f"{info.space} {info.problem} on {info.device} ({info.provenance.kind})"
    table = _table(title, info.problem, info.library, info.provenance.unit)
    shown = {"best": result.best, "default": result.default}
    for name, trial in shown.items():
        if trial is not None:
            table.add_row(name, *_cells(info.problem, trial.measurement))
    _add_timed(table, info.problem, info.library, 1.0, info.library_us)
    if (library := result.library_best) is not None:
        _add_timed(table, info.problem, library.name, library.ratio.value, info.library_us)
    for peer in result.peers:
        if peer.ratio is not None:
            _add_timed(table, info.problem, peer.name, peer.ratio.value, info.library_us)
    if (roofline := result.roofline) is not None:
        against = f"{info.library_us / roofline.time_us:.3f}"
        table.add_row("roofline", f"{roofline.time_us:.2f}", "", _rate(info.problem, roofline.time_us), against)
    console.print(table)
    if averaged := info.problem.averaged:
        raced = f"; the race was on {info.problem.unseen.averaged}" if result.race is not None else ""
        console.say(f"times are means over {averaged}{raced}")
    for name, trial in shown.items():
        if trial is not None:
            console.say(f"{name}, trial {trial.number}: {_described(trial.configuration, trial.measurement)}")
    if result.not_raced:
        console.say(f"no race, so the default is the answer: {plain(result.not_raced)}")
    if result.race is not None:
        console.say(f"race: {result.race.verdict(spoken(info.library))}")
    if result.library_best is not None and (over := result.over_library_best) is not None:
        how = "in the race" if result.library_best.over is not None else "not raced"
        console.say(f"best: {_spoken(over)} of the speed of {plain(result.library_best.name)}, {how}")
    elif result.no_library_best:
        console.say(not_known(result.no_library_best))
    for peer in result.peers:
        if peer.error:
            console.say(f"{plain(peer.name)}: {plain(peer.error)}")
        elif peer.over is not None:
            console.say(
                f"best: {_spoken(peer.over.inverse())} of the speed of {plain(peer.name)}, {peer.seconds:.1f} s to tune"
            )
    if told := fewer_bits(info.space, info.problem, info.library):
        console.say(told)
    if result.stopped:
        console.say(f"stopped by itself: {plain(result.stopped)}")
    if (doubt := unexplained(result)) is not None:
        console.say(doubt)
    if (guide := info.guide) is not None:
        console.say(f"cost model: {plain(guide['name'])}, sha256 {guide['sha256'][:12] or 'unknown'}; {_seen(guide)}")
    failed = sum(trial.measurement.failed for trial in result.trials)
    pruned = sum(trial.measurement.status is Status.PRUNED for trial in result.trials)
    console.say(
        f"{number_of(len(result.trials), 'trial')}, {pruned} pruned, {failed} failed; "
        f"{result.gpu_seconds:.1f} s of GPU, {result.compile_seconds:.1f} s of compiling, {result.seconds:.1f} s here",
    )
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.account.items() if name != "compile")
    console.say(f"of the GPU's time: {spent}")


def library_best_cell(baseline: Baseline) -> str:
    """The speed of the library's best on a problem of a table; empty where it was not recorded."""
    speed = baseline.library_best_speedup
    return "" if speed is None else f"{speed:.3f}"


def not_known(why: str) -> str:
    """The sentence that tells why the library's best is not known."""
    return f"the library's best is not known: {plain(why)}"


def _seen(guide: Mapping[str, Any]) -> str:
    """Whether a cost model was trained on the problem, as a clause."""
    knows = {True: "was trained on this very problem", False: "never saw this problem"}
    return f"it {knows.get(guide['trained_on_problem'], 'does not say which problems it was trained on')}"


def _spoken(speed: Estimate) -> str:
    return f"{speed.value:.4f} [{speed.low:.4f}, {speed.high:.4f}]"


def print_measurements(
    problem: Problem,
    library: str,
    library_us: float,
    rows: Sequence[tuple[Configuration, Measurement]],
    title: str,
    console: Console,
    best: LibraryBest | None = None,
) -> None:
    """Measured configurations, the fastest first, the failed ones last; beside them the library and its best."""
    table = _table(title, problem, library)
    if best is not None:
        table.add_column(f"vs {best.library}'s best", justify="right", no_wrap=True)
    ordered = sorted(rows, key=lambda row: row[1].time_us)
    for number, (_, measurement) in enumerate(ordered, start=1):
        timing = measurement.timing
        over = f"{best.speed_of(Estimate.of(timing)).value:.3f}" if best is not None and timing is not None else ""
        table.add_row(str(number), *_cells(problem, measurement), *[over] * (best is not None))
    _add_timed(table, problem, library, 1.0, library_us, *([] if best is None else [f"{best.ratio.value:.3f}"]))
    if best is not None:
        _add_timed(table, problem, best.name, best.ratio.value, library_us, "1.000")
    console.print(table)
    for number, (configuration, measurement) in enumerate(ordered, start=1):
        console.say(f"{number}: {_described(configuration, measurement)}")


def _table(title: str, problem: Problem, library: str, unit: str = "µs") -> Grid:
    table = Grid(title=title, title_justify="left")
    table.add_column("")
    against = "of bandwidth" if library == COPY else "vs library"
    for heading in (unit, "95 % interval", problem.rate.unit.symbol, against):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _add_timed(table: Grid, problem: Problem, name: str, ratio: float, library_us: float, *more: str) -> None:
    """Add a kernel that takes `ratio` of the library's time."""
    time_us = ratio * library_us
    table.add_row(name, f"{time_us:.2f}", "", _rate(problem, time_us), f"{1 / ratio:.3f}", *more)


def _cells(problem: Problem, measurement: Measurement) -> tuple[str, ...]:
    timing = measurement.timing
    if timing is None:
        return (str(measurement.status), "", "", "")
    interval = f"{timing.ratio_low * timing.library_us:.2f}-{timing.ratio_high * timing.library_us:.2f}"
    return f"{timing.time_us:.2f}", interval, _rate(problem, timing.time_us), f"{1 / timing.ratio:.3f}"


def _rate(problem: Problem, time_us: float) -> str:
    return f"{problem.rate.at(time_us):.4g}" if problem.rate.work else ""


def _described(configuration: Configuration, measurement: Measurement) -> str:
    failure = f" ({measurement.status}: {plain(measurement.error)})" if measurement.failed else ""
    return f"{configuration}{failure}"

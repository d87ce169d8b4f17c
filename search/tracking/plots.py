"""The picture of a search."""

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from tilescout.search.evaluate.measurement import Status
from tilescout.search.records import StudyResult
from tilescout.search.tracking.fields import rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 4.0  # slowest over fastest from which the time axis is logarithmic
_TRIAL, _FAILED, _BEST, _DEFAULT, _LIBRARY = "#7a8fa6", "#c0392b", "#1f3b73", "#ef8e19", "#2e7d32"


def draw_convergence(result: StudyResult, path: Path) -> None:
    """Draw every trial's time and the best so far over the trials' numbers, as PNG.

    Failed trials have no time: they are crosses at the upper edge. The default's and the library's times are lines.
    """
    # The object interface: pyplot would keep the figure in global state, and this runs in a thread.
    from matplotlib.figure import Figure

    info = result.info
    figure = Figure(figsize=(8.6, 5.6), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    _draw_trials(axes, result)
    _draw_lines(axes, result)
    _scale(axes, result)
    axes.grid(True, which="both", color="#e4e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("trial")
    axes.set_ylabel("time (µs)")
    axes.set_title(
        f"{info.space}, {info.problem} on {info.device}: {info.sampler}, seed {info.seed}", loc="left", pad=22
    )
    source = f"{info.provenance.kind}: {info.provenance.description}"
    axes.text(0, 1.015, source, transform=axes.transAxes, fontsize=9, color="#555555", clip_on=False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path)


def _draw_trials(axes: "Axes", result: StudyResult) -> None:
    right = [trial for trial in result.trials if trial.measurement.ok]
    wrong = [trial.number for trial in result.trials if trial.measurement.failed]
    censored = [trial for trial in result.trials if trial.measurement.status is Status.PRUNED]
    pruned = {trial.number: trial.measurement.pilot_us or 0.0 for trial in censored}
    numbers = [trial.number for trial in right]
    times = [trial.measurement.time_us for trial in right]
    axes.scatter(numbers, times, s=20, color=_TRIAL, alpha=0.85, linewidths=0, label="trial", zorder=2)
    if pruned:
        axes.scatter(list(pruned), list(pruned.values()), s=20, facecolors="none", edgecolors=_TRIAL, linewidths=0.8,
                     label=f"pruned after one launch ({len(pruned)})", zorder=2)  # fmt: skip
    if wrong:
        edge = [0.985] * len(wrong)  # of the height of the axes
        across = axes.get_xaxis_transform()
        axes.scatter(wrong, edge, s=26, marker="x", color=_FAILED, linewidths=1.2, transform=across, zorder=3,
                     label=f"failed ({len(wrong)})")  # fmt: skip
    best, problem = result.best, result.info.problem
    if best is not None:
        time_us = best.measurement.time_us
        last = max(trial.number for trial in result.trials)
        steps = [*accumulate(times, min), time_us]
        axes.step([*numbers, last], steps, where="post", color=_BEST, linewidth=1.8, label="best so far", zorder=4)
        label = f"best: {time_us:.4g} µs, {rate(problem, time_us)} {problem.rate.unit.symbol} (trial {best.number})"
        axes.scatter([best.number], [time_us], s=170, marker="*", color=_BEST, edgecolors="white", linewidths=0.8,
                     label=label, zorder=5)  # fmt: skip


def _draw_lines(axes: "Axes", result: StudyResult) -> None:
    info, default = result.info, result.default
    axes.axhline(info.library_us, color=_LIBRARY, linestyle=":", label=f"{info.library}: {info.library_us:.4g} µs")
    if default is not None and default.measurement.ok:
        time_us = default.measurement.time_us
        axes.axhline(time_us, color=_DEFAULT, linestyle="--", label=f"default: {time_us:.4g} µs")


def _scale(axes: "Axes", result: StudyResult) -> None:
    """Scale the axes and label their ticks: a trial is an integer, a time a plain number, its rate stands opposite."""
    from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    rate = result.info.problem.rate
    known = (t.measurement.time_us if t.measurement.ok else t.measurement.pilot_us for t in result.trials)
    times = [time_us for time_us in known if time_us is not None] + [result.info.library_us]
    wide = max(times) > _WIDE * min(times)
    axes.set_yscale("log" if wide else "linear")
    opposite = axes.twinx()
    opposite.set_visible(bool(rate.work))
    opposite.set_yscale(axes.get_yscale())
    opposite.set_ylim(axes.get_ylim())
    opposite.set_ylabel(rate.unit.symbol)
    opposite.spines[["top", "right"]].set_visible(False)
    for axis in (axes.yaxis, opposite.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else AutoLocator())
        axis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time_us, _: f"{time_us:g}"))
    opposite.yaxis.set_major_formatter(FuncFormatter(lambda time_us, _: f"{rate.at(time_us):.3g}"))
    opposite.tick_params(which="both", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))

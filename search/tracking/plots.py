"""The plots of a search, as matplotlib figures: PNG files for MLflow, SVG for the HTML report."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO, StringIO
from itertools import accumulate, cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from tilescout.search.measure.measurement import Status
from tilescout.search.studies.records import StudyResult
from tilescout.search.tracking.fields import rate
from tilescout.search.tracking.views import FEWEST, Importance, gpu_account, heat_map, others
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.texts import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE = 4.0  # slowest over fastest: from here on the time axis is logarithmic
_CLIP = 1.6  # times the slowest of the best, the default and the library: a plot of times goes no further up
_CELLS = 160  # a heat map of at most so many cells shows the time in each
_LABELS = 24  # an axis of at most so many values names each
_TRIAL, _FAILED, _BEST, _DEFAULT, _LIBRARY = "#7a8fa6", "#c0392b", "#1f3b73", "#ef8e19", "#2e7d32"
_OTHERS = ("-.", (0, (3, 1, 1, 1, 1, 1)))  # lines of the library's best and of peers
_INK, _MUTED, _GRID = "#000000", "#555555", "#e4e7eb"
THEMED = {
    _TRIAL: "trial",
    _FAILED: "failed",
    _BEST: "best",
    _DEFAULT: "default",
    _LIBRARY: "library",
    _INK: "ink",
    _MUTED: "muted",
    _GRID: "grid",
}
"""Colours that a page gives to its themes, and the CSS variable of each."""

_WIDTH = 8.6  # of a picture, in inches, as all that follows
_LEFT, _RIGHT, _TOP, _BELOW = 0.8, 0.25, 0.62, 0.55  # around the axes: y's numbers, nothing, the title, x's numbers
_ROW = 0.21  # a row of the legend
_LETTER = 0.088  # a letter beside the axes

_LIGHT_TEXT, _DARK_TEXT = "#ffffff", "#010101"  # on a cell of a heat map, whatever the theme


def draw(result: StudyResult, importance: Importance | None) -> dict[str, "Figure"]:
    """The plots of a study by name, in the order of a report. Plots that would be empty are left out."""
    drawn = {
        "convergence": convergence(result),
        "importance": _importance(importance) if importance is not None else None,
        "heat_map": _heat_map(result, importance),
        "predicted": _predicted(result),
        "gpu_seconds": _gpu_seconds(result),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


CAPTIONS: Mapping[str, str] = {
    "convergence": "Times over the search",
    "importance": "How much each knob matters",
    "heat_map": "Where the fast ones are",
    "predicted": "Predicted against measured",
    "gpu_seconds": "Where the GPU seconds went",
}
"""A heading for each picture."""

NEEDED: Mapping[str, str] = {
    "convergence": "a trial",
    "importance": f"{FEWEST} trials or more that were timed in full, with different times",
    "heat_map": "trials that were timed in full, with different values of two ordered knobs",
    "predicted": "two trials or more that were timed in full and that a cost model predicted",
    "gpu_seconds": "trials that took time of a GPU",
}
"""The parts that a study must have for each picture."""


def to_png(figure: "Figure") -> bytes:
    """A figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(file)  # `savefig` would draw everything twice
    return file.getvalue()


def to_svg(name: str, figure: "Figure") -> str:
    """A figure as an ``svg`` element for a page that sets the variables of `THEMED`; text stays text.

    It changes matplotlib's settings for a moment: call it from the main thread.
    """
    from matplotlib import rc_context

    text = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True)
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Ids are to differ from those of the page's other pictures; the size is the page's choice.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    svg = re.sub(r' (width|height)="[^"]*pt"', "", svg, count=2)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{CAPTIONS[name]}"', 1)
    return re.sub("|".join(THEMED), lambda found: f"var(--{THEMED[found[0]]})", svg)


@cache
def figure_type() -> "type[Figure]":
    """The class of all figures: one that a notebook shows, and that draws text from data as it is.

    Raises
    ------
    StoreError
        If matplotlib takes its settings for wrong.
    """
    # The object interface: pyplot would keep the figure in global state, and this runs in a thread.
    try:
        from matplotlib.figure import Figure
        from matplotlib.text import Text
        from matplotlib.ticker import LogFormatter, LogLocator, NullFormatter
    except ValueError as error:
        remedy = "unset MPLBACKEND, or mend the file matplotlibrc"
        raise StoreError(f"can't draw: matplotlib refuses its settings: {one_line(error, 200)}; {remedy}") from error

    class Shown(Figure):
        """A figure that a notebook shows, also where pyplot was never imported. A dollar begins no formula.

        So the numbers of its logarithmic axes are plain ones: 1, 2, 5, 10.
        """

        def _repr_png_(self) -> bytes:
            return to_png(self)

        def draw(self, renderer: Any) -> None:
            for text in self.findobj(Text):
                text.set_parse_math(False)
                text.set_usetex(False)  # nothing of data is run, whatever settings lie in the working directory
                text.set_text(printable(text.get_text()))
            for axis in (axis for axes in self.axes for axis in (axes.xaxis, axes.yaxis)):
                if isinstance(axis.get_major_formatter(), LogFormatter):
                    if axis.get_scale() == "log":
                        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                    axis.set_major_formatter("{x:g}")
                    axis.set_minor_formatter(NullFormatter())
            super().draw(renderer)

    return Shown


def _canvas(height: float) -> tuple["Figure", "Axes"]:
    figure = figure_type()(figsize=(_WIDTH, height), dpi=100)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _frame(
    figure: "Figure",
    axes: "Axes",
    title: str,
    below: str,
    *,
    columns: int = 3,
    left: float = _LEFT,
    right: float = _RIGHT,
) -> None:
    """Put the title above the axes, the legend of so many columns below, and the axes between them.

    The margins are given, in inches, for a layout that matplotlib works out measures every text several times: that
    took longer than to draw.
    """
    height = figure.get_figheight()
    entries = len(axes.get_legend_handles_labels()[0])
    bottom = _BELOW + 0.15 + _ROW * math.ceil(entries / columns)
    inside = (left / _WIDTH, bottom / height, 1 - (left + right) / _WIDTH, 1 - (bottom + _TOP) / height)
    axes.set_position(inside)
    figure.text(inside[0], 1 - 0.22 / height, title, fontsize=12, va="center")
    figure.text(inside[0], 1 - 0.46 / height, below, fontsize=9, va="center", color=_MUTED)
    figure.legend(loc="lower center", ncols=columns, fontsize=9, frameon=False)


def convergence(result: StudyResult) -> "Figure":
    """Every trial's time and the best so far over the trials' numbers.

    Failed trials have no time: they are crosses at the upper edge. Triangles there are those that are much slower than
    the default and the library, whose times are lines; the legend says how many.
    """
    info = result.info
    figure, axes = _canvas(5.6)
    _draw_trials(axes, result)
    _draw_lines(axes, result)
    _scale(axes, result)
    axes.grid(True, which="both", color=_GRID, linewidth=0.6)
    axes.set_xlabel("trial")
    axes.set_ylabel(f"time ({info.provenance.unit})")
    title = f"{info.space}, {info.problem} on {info.device}: {info.sampler}, seed {info.seed}"
    source = info.provenance.description
    _frame(figure, axes, title, source if info.provenance.replayed else f"live: {source}", right=_LEFT)
    return figure


def _ceiling(result: StudyResult) -> float:
    """The largest time that a plot over the trials shows: slow ones would flatten what a search is about."""
    shown = [trial for trial in (result.best, result.default) if trial is not None and trial.measurement.ok]
    return _CLIP * max([result.info.library_us, *(trial.measurement.time_us for trial in shown)])


def _draw_trials(axes: "Axes", result: StudyResult) -> None:
    ceiling = _ceiling(result)
    right = [trial for trial in result.trials if trial.measurement.ok]
    wrong = [trial.number for trial in result.trials if trial.measurement.failed]
    censored = [trial for trial in result.trials if trial.measurement.status is Status.PRUNED]
    pruned = {trial.number: trial.measurement.pilot_us or 0.0 for trial in censored}
    numbers = [trial.number for trial in right]
    times = [trial.measurement.time_us for trial in right]
    slow = [trial.number for trial in right if trial.measurement.time_us > ceiling]
    slow += [number for number, time_us in pruned.items() if time_us > ceiling]
    seen = [(number, time_us) for number, time_us in zip(numbers, times, strict=True) if time_us <= ceiling]
    axes.scatter(*_columns(seen), s=20, color=_TRIAL, alpha=0.85, linewidths=0, label="trial", zorder=2)
    if pruned:
        seen = [(number, time_us) for number, time_us in pruned.items() if time_us <= ceiling]
        axes.scatter(*_columns(seen), s=20, facecolors="none", edgecolors=_TRIAL, linewidths=0.8,
                     label=f"pruned after one launch ({len(pruned)})", zorder=2)  # fmt: skip
    across = axes.get_xaxis_transform()
    if slow:
        axes.scatter(slow, [0.955] * len(slow), s=20, marker="^", color=_TRIAL, linewidths=0, transform=across,
                     zorder=3, label=f"slower than is shown ({len(slow)})")  # fmt: skip
    if wrong:
        edge = [0.985] * len(wrong)  # of the height of the axes
        axes.scatter(wrong, edge, s=26, marker="x", color=_FAILED, linewidths=1.2, transform=across, zorder=3,
                     label=f"failed ({len(wrong)})")  # fmt: skip
    best, problem, unit = result.best, result.info.problem, result.info.provenance.unit
    if best is not None and best.measurement.ok:
        time_us = best.measurement.time_us
        last = max(trial.number for trial in result.trials)
        steps = [*accumulate(times, min), time_us]
        axes.step([*numbers, last], steps, where="post", color=_BEST, linewidth=1.8, label="best so far", zorder=4)
        speed = f", {rate(problem, time_us)} {problem.rate.unit.symbol}" if problem.rate.work else ""
        label = f"best: {time_us:.4g} {unit}{speed} (trial {best.number})"
        axes.scatter([best.number], [time_us], s=170, marker="*", color=_BEST, edgecolors="white", linewidths=0.8,
                     label=label, zorder=5)  # fmt: skip


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _draw_lines(axes: "Axes", result: StudyResult) -> None:
    info, default, unit = result.info, result.default, result.info.provenance.unit
    axes.axhline(info.library_us, color=_LIBRARY, linestyle=":", label=f"{info.library}: {info.library_us:.4g} {unit}")
    if default is not None and default.measurement.ok:
        time_us = default.measurement.time_us
        axes.axhline(time_us, color=_DEFAULT, linestyle="--", label=f"default: {time_us:.4g} {unit}")
    for (name, ratio), style in zip(others(result), cycle(_OTHERS)):
        if (time_us := ratio.value * info.library_us) <= _ceiling(result):
            axes.axhline(time_us, color=_LIBRARY, linestyle=style, label=f"{name}: {time_us:.4g} {unit}")


def _scale(axes: "Axes", result: StudyResult) -> None:
    """Scale the axes and label their ticks: a trial is an integer, a time a plain number, its rate stands opposite."""
    from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    rate = result.info.problem.rate
    known = (t.measurement.time_us if t.measurement.ok else t.measurement.pilot_us for t in result.trials)
    ceiling = _ceiling(result)
    times = [time_us for time_us in known if time_us is not None and time_us <= ceiling] + [result.info.library_us]
    wide = max(times) > _WIDE * min(times)
    axes.set_yscale("log" if wide else "linear")
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, 1.05 * ceiling))
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


def _importance(importance: Importance) -> "Figure":
    names = list(importance.variance)
    figure, axes = _canvas(1.9 + 0.36 * len(names))
    places = np.arange(len(names))
    for shift, shares, colour, label in (
        (-0.2, importance.variance, _BEST, "share of the variance of log times, the knob alone (fANOVA)"),
        (0.2, importance.fastest, _DEFAULT, "share in what sets the fastest tenth apart (PED-ANOVA)"),
    ):
        axes.barh(places + shift, [shares[name] for name in names], height=0.38, color=colour, label=label)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(True, axis="x", color=_GRID, linewidth=0.6)
    axes.set_xlabel("share")
    rest = max(0.0, 1 - sum(importance.variance.values()))
    below = f"{rest:.0%} of the variance is interactions; of the trials of this search, which are no random sample"
    _frame(figure, axes, CAPTIONS["importance"], below, columns=1, left=0.3 + _LETTER * max(map(len, names)))
    return figure


def _heat_map(result: StudyResult, importance: Importance | None) -> "Figure | None":
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    found = heat_map(result, importance)
    if found is None:
        return None
    rows, columns = found.time_us.shape
    figure, axes = _canvas(min(1.9 + 0.42 * rows, 9.0))
    fastest, slowest = float(np.nanmin(found.time_us)), float(np.nanmax(found.time_us))
    norm, colours = LogNorm(fastest, max(slowest, fastest * 1.01)), colormaps["viridis_r"]
    mesh = axes.pcolormesh(np.ma.masked_invalid(found.time_us), norm=norm, cmap=colours, edgecolors="face")
    if rows * columns <= _CELLS:
        for (row, column), time_us in np.ndenumerate(found.time_us):
            if np.isfinite(time_us):
                dark = sum(colours(norm(time_us))[:3]) > 1.5
                axes.text(column + 0.5, row + 0.5, f"{time_us:.4g}", ha="center", va="center",
                          fontsize=8, color=_DARK_TEXT if dark else _LIGHT_TEXT)  # fmt: skip
    # The default over the best and dashed: they may share a cell.
    marked = ((result.best, _FAILED, "-", "best"), (result.default, _DEFAULT, "--", "default"))
    for trial, colour, line, label in marked:
        if trial is None or not trial.measurement.ok:
            continue
        corner = found.x_values.index(trial.configuration[found.x]), found.y_values.index(trial.configuration[found.y])
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=colour, linewidth=2.4, linestyle=line,
                                 label=label, clip_on=False))  # fmt: skip
    for set_ticks, values in ((axes.set_xticks, found.x_values), (axes.set_yticks, found.y_values)):
        shown = range(0, len(values), 1 + len(values) // _LABELS)
        set_ticks([at + 0.5 for at in shown], [str(values[at]) for at in shown])
    axes.tick_params(length=0)
    axes.set_xlabel(found.x)
    axes.set_ylabel(found.y)
    bar = figure.colorbar(mesh, cax=axes.inset_axes((1.02, 0, 0.015, 1)))
    bar.outline.set_visible(False)
    bar.minorticks_off()
    ticks = np.geomspace(fastest, max(slowest, fastest * 1.01), 5)
    bar.set_ticks(list(ticks), labels=[f"{tick:.4g}" for tick in ticks])
    below = (
        f"{result.info.provenance.unit}, of the fastest that was tried with these two values, whatever the other "
        "knobs; empty: none was timed"
    )
    _frame(figure, axes, f"{CAPTIONS['heat_map']}: {found.y} and {found.x}", below, right=_LEFT)
    return figure


def _predicted(result: StudyResult) -> "Figure | None":
    from scipy.stats import spearmanr

    both = [(t.expected, t.measurement.time_us) for t in result.trials if t.expected is not None and t.measurement.ok]
    if len(both) < 2:
        return None
    measured = np.array([time_us for _, time_us in both])
    predicted, low, high = np.array([(e.time_us, e.low_us, e.high_us) for e, _ in both]).T
    inside = (low <= measured) & (measured <= high)
    figure, axes = _canvas(5.6)
    for mask, colour, label in ((inside, _BEST, "inside its 95 % interval"), (~inside, _FAILED, "outside of it")):
        if mask.any():
            spread = np.abs(np.stack([low, high]) - predicted)[:, mask]
            axes.errorbar(measured[mask], predicted[mask], spread, fmt="o", markersize=4, color=colour,
                          elinewidth=0.5, alpha=0.75, label=f"{label} ({mask.sum()})")  # fmt: skip
    ends = [min(measured.min(), low.min()), max(measured.max(), high.max())]
    axes.plot(ends, ends, color=_MUTED, linewidth=0.8, linestyle="--", label="as predicted")
    axes.loglog()
    _plain_ticks(axes)
    axes.grid(True, which="both", color=_GRID, linewidth=0.6)
    axes.set_xlabel(f"measured ({result.info.provenance.unit})")
    axes.set_ylabel(f"predicted before ({result.info.provenance.unit})")
    error = float(np.median(np.abs(np.log(predicted / measured))))
    order = (
        ""
        if np.ptp(measured) == 0 or np.ptp(predicted) == 0
        else f", rank correlation {spearmanr(predicted, measured).statistic:.2f}"
    )
    found = f"median error {error:.1%}, {inside.mean():.0%} inside their interval{order}"
    known = "; trained on this very problem: no prediction" if result.info.hindsight else ""
    _frame(figure, axes, CAPTIONS["predicted"], found + known)
    return figure


def _plain_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        narrow = high < _WIDE * low
        axis.set_major_locator(MaxNLocator(6) if narrow else LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def _gpu_seconds(result: StudyResult) -> "Figure | None":
    account = gpu_account(result)
    total = sum(sum(parts.values()) for parts in account.values())
    if not total:
        return None
    figure, axes = _canvas(1.9 + 0.4 * len(account))
    colours = {"ok": _BEST, "pruned": _TRIAL, "failed": _FAILED, "race": _LIBRARY}
    names = list(account)
    left = np.zeros(len(names))
    for end, colour in colours.items():
        widths = np.array([account[name].get(end, 0.0) for name in names])
        if widths.any():
            axes.barh(names, widths, left=left, height=0.62, color=colour,
                      label=end if end == "race" else f"on trials that ended {end}")  # fmt: skip
            left += widths
    for place, width in enumerate(left):
        axes.annotate(f"{width:.2f} s, {width / total:.0%}", (width, place), (5, 0), textcoords="offset points",
                      va="center", fontsize=9)  # fmt: skip
    axes.set_xlim(0, left.max() * 1.18)
    axes.invert_yaxis()
    axes.grid(True, axis="x", color=_GRID, linewidth=0.6)
    axes.set_xlabel("seconds of GPU")
    kind = "as they were recorded" if result.info.provenance.replayed else "measured"
    below = f"{total:.2f} s in all, {kind}; {result.compile_seconds:.0f} s of compiling"
    _frame(figure, axes, CAPTIONS["gpu_seconds"], below)
    return figure

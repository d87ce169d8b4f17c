"""A campaign in MLflow: its table, how fast the best and the defaults are, and a plot of both."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tilescout.search.tables.table import ProblemSummary, Table
from tilescout.search.tracking import Logged, as_text, log_experiment, markdown_table
from tilescout.search.tracking.mlflow_hooks import View

_VIEW = View(
    ("rows", "mean_best_speedup", "mean_default_speedup", "mean_library_best_speedup", "failed"),
    ("space", "suite", "device"),
)
_LIBRARY = "#2e7d32"
# Of the default, of the best, a ring around a default that is as fast, and of the library's best.
_MARKERS = (("o", 5, "#ef8e19", "full"), ("o", 8, "#1f3b73", "none"), ("|", 9, _LIBRARY, "full"))
_ROW = ("problem", "library_us", "best_speedup", "default_speedup", "library_best_speedup", "rows", "pruned", "failed")


def log_campaign(table: Table, store: Path | str, params: Mapping[str, object]) -> Logged:
    """Log a recorded table as one run, with its card, a summary and a plot.

    Parameters
    ----------
    table
        The table.
    store
        A folder, whose SQLite file is used, or an MLflow URI.
    params
        What was asked for.

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """
    card, summaries = table.card, table.summarise()
    library_best = [card.baselines[summary.problem].library_best_speedup for summary in summaries]
    rows = [_row(summary, speed) for summary, speed in zip(summaries, library_best, strict=True)]
    best = [1 / summary.best_timing.ratio for summary in summaries if summary.best_timing]
    default = [1 / summary.default_timing.ratio for summary in summaries if summary.default_timing]
    metrics = {
        "problems": float(len(summaries)),
        "rows": float(len(table)),
        "pruned": float(sum(summary.pruned for summary in summaries)),
        "failed": float(sum(summary.failed for summary in summaries)),
        "mean_best_speedup": _mean(best),
        "mean_default_speedup": _mean(default),
    }
    if known := [speed for speed in library_best if speed is not None]:
        metrics["mean_library_best_speedup"] = _mean(known)
    how = as_text(f"protocol {card.protocol}: {card.selection}")
    about = f"**{as_text(card.space)}** on {as_text(card.product)}, {how}"
    shown = [[str(cell) if not isinstance(cell, float) else f"{cell:.4g}" for cell in row] for row in rows]
    description = f"{about}\n\nSpeeds are over {as_text(card.library)}'s.\n\n{markdown_table(_ROW, shown)}"
    with TemporaryDirectory(prefix="tilescout-") as temporary:
        folder = Path(temporary)
        with (folder / "summary.csv").open("w", newline="") as file:
            csv.writer(file).writerows([_ROW, *rows])
        _draw(summaries, library_best, card.library, folder / "speedups.png")
        files = [folder / "summary.csv", folder / "speedups.png", table.path.with_suffix(".json")]
        return log_experiment(
            store,
            "collect",
            {"space": card.space, "device": card.device, "protocol": card.protocol, **params},
            metrics,
            files,
            run_name=table.path.stem,
            description=description,
            tables=[table.dataset],
            view=_VIEW,
        )


def _row(summary: ProblemSummary, library_best: float | None) -> tuple[object, ...]:
    best = 1 / summary.best_timing.ratio if summary.best_timing else "none"
    default = 1 / summary.default_timing.ratio if summary.default_timing else "none"
    counts = (summary.rows, summary.pruned, summary.failed)
    listed = "unknown" if library_best is None else library_best
    return (str(summary.problem), summary.library_us, best, default, listed, *counts)


def _mean(speeds: Sequence[float]) -> float:
    """The geometric mean; not a number where there is none."""
    return math.exp(sum(map(math.log, speeds)) / len(speeds)) if speeds else math.nan


def _draw(summaries: Sequence[ProblemSummary], library_best: Sequence[float | None], library: str, path: Path) -> None:
    """The speed of the best, of the default and of the library's best of each problem over the library's, as PNG."""
    from tilescout.search.tracking.plots import figure_type, to_png

    figure = figure_type()(figsize=(8.6, 1.6 + 0.26 * len(summaries)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    timed = {
        "default": [summary.default_timing for summary in summaries],
        "best": [summary.best_timing for summary in summaries],
    }
    speeds = {name: [1 / each.ratio if each else None for each in timings] for name, timings in timed.items()}
    for (name, found), (marker, size, colour, fill) in zip(
        {**speeds, "the library's best": library_best}.items(), _MARKERS, strict=True
    ):
        known = [(speed, place) for place, speed in enumerate(found) if speed is not None]
        if known:
            axes.plot(*zip(*known, strict=True), marker, markersize=size, color=colour, fillstyle=fill, label=name)
    axes.axvline(1, color=_LIBRARY, linestyle=":", label=library)
    axes.set_yticks(range(len(summaries)), [str(summary.problem) for summary in summaries], fontsize=8)
    axes.invert_yaxis()
    axes.grid(True, axis="x", color="#e4e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"speed over {library}")
    axes.legend(frameon=False)
    path.write_bytes(to_png(figure))

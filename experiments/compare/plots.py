"""Pictures of a comparison."""

from pathlib import Path

import numpy as np

from tilescout.experiments.compare.result import Comparison
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.texts import number_of


def draw_convergence(comparison: Comparison, path: Path) -> None:
    """Best so far over the table's best after each trial, a line and a band a strategy, as PNG."""
    from tilescout.search.tracking.plots import figure_type, to_png

    figure = figure_type()(figsize=(9.5, 6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    trials = np.arange(1, comparison.trials + 1)
    shown = [standing for standing in comparison.standings if standing.runs]
    for standing in shown:
        slower = 100 * (standing.curve - 1)
        (line,) = axes.plot(
            trials, slower[0], linewidth=1.6, label=f"{standing.name} ({standing.scores['score'][0]:.2f})"
        )
        axes.fill_between(trials, slower[1], slower[2], color=line.get_color(), alpha=0.15, linewidth=0)
    if shown:  # without a line there is nothing that a logarithm could be of
        axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.grid(True, which="both", color="#e4e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("trials")
    axes.set_ylabel("slower than the table's best, %")
    problems = f"{number_of(len(comparison.cases), 'problem')}, {number_of(comparison.seeds, 'seed')}"
    axes.set_title(f"Geometric mean over {problems}, with 95 % intervals", loc="left")
    if shown:
        axes.legend(title="strategy (score)", fontsize=8, frameon=False, ncols=1 + len(shown) // 10)
    write_whole(path, to_png(figure))


def draw_scores(comparison: Comparison, path: Path) -> None:
    """The score of each strategy on each problem, as PNG."""
    from tilescout.search.tracking.plots import figure_type, to_png

    shown = [standing for standing in comparison.standings if standing.runs] or comparison.standings
    labels = list(comparison.cases)
    grid = np.array([[standing.by_case.get(label, {}).get("score", np.nan) for label in labels] for standing in shown])
    figure = figure_type()(
        figsize=(max(3.5 + 0.6 * len(labels), 7.5), 2.6 + 0.32 * len(shown)), dpi=110, layout="constrained"
    )
    axes = figure.add_subplot()
    image = axes.imshow(grid.reshape(len(shown), len(labels)), vmin=-1, vmax=1, cmap="RdYlGn", aspect="auto")
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(shown)), [standing.name for standing in shown], fontsize=8)
    for (row, column), value in np.ndenumerate(grid):
        if np.isfinite(value):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7)
    axes.set_title("score: 0 is random search, 1 the optimum at once", loc="left", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
    write_whole(path, to_png(figure))

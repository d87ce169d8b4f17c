"""Which search strategy needs fewest measurements? Searches replayed from the shipped table; no GPU is used.

    python -m tilescout.experiments.scripts.strategies --out strategies

Every sampler searches every problem with every seed. The figure is how far the best so far is from the table's best.
`tilescout compare` does this on all cores, with scores, intervals, tests and other projects' strategies. This script is
the short form to copy: change `SAMPLERS`, or register your own (docs/how-to/add-a-sampler.md).
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from tilescout.search import Budget, tune
from tilescout.search.studies.folders import STORE
from tilescout.search.tables.shipped import default_table
from tilescout.search.tracking.experiment import log_experiment
from tilescout.spaces.templates import find_template

SPACE = "gemm_sm90"
PROBLEMS = ("512x512x512:bf16", "256x4096x14336:bf16", "8192x8192x8192:bf16")
SAMPLERS = ("random", "tpe", "lfbo")
# Not `guided`: its shipped model was trained on these problems. `tilescout compare` trains one without each of them.


def best_so_far(problem: str, sampler: str, seed: int, trials: int) -> NDArray[np.float64]:
    """The best time after each trial over the best of the table, of shape [trials]; infinite before any is right."""
    template = find_template(SPACE)
    parsed = template.parse(problem)
    table = default_table(template, parsed)
    with TemporaryDirectory() as store:
        budget = Budget(trials=trials, whole=True)
        result = tune(
            SPACE, problem, sampler=sampler, seed=seed, budget=budget, device="replay", store=store, mlflow=False
        )
    times = np.array([trial.measurement.time_us for trial in result.trials])
    return np.asarray(np.minimum.accumulate(times) / table.times_us[table.rows(parsed)].min())


def draw(curves: dict[str, NDArray[np.float64]], path: Path) -> None:
    """Median over problems and seeds with the quartiles, a line a sampler; `curves` of shape [searches, trials]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for sampler, found in curves.items():
        low, middle, high = np.quantile(100 * (found - 1), [0.25, 0.5, 0.75], axis=0)
        trials = np.arange(1, found.shape[1] + 1)
        (line,) = axes.plot(trials, middle, label=sampler)
        axes.fill_between(trials, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlabel("trials")
    axes.set_ylabel("slower than the table's best, %")
    axes.legend()
    figure.savefig(path)


@click.command(help=__doc__)
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option("--trials", default=40, show_default=True, help="Trials of a search.")
@click.option("--seeds", default=5, show_default=True, help="Searches of each problem by each sampler.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the plot.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, help="Its MLflow store gets the run.")
def main(problems: tuple[str, ...], trials: int, seeds: int, out: Path, store: Path) -> None:
    """Run the script."""
    curves: dict[str, NDArray[np.float64]] = {}
    for sampler in SAMPLERS:
        searches = [(problem, seed) for problem in problems for seed in range(seeds)]
        curves[sampler] = np.stack([best_so_far(p, sampler, s, trials) for p, s in track(searches, sampler)])
    behind = {sampler: float(100 * (np.median(found[:, -1]) - 1)) for sampler, found in curves.items()}
    for sampler, percent in sorted(behind.items(), key=lambda item: item[1]):
        print(f"{sampler:12s} {percent:6.2f} % behind the table's best after {trials} trials, in the median")
    out.mkdir(parents=True, exist_ok=True)
    plot = out / "convergence.png"
    draw(curves, plot)
    params = {"problems": ", ".join(problems), "trials": trials, "seeds": seeds}
    metrics = {f"{sampler}/percent_behind": percent for sampler, percent in behind.items()}
    print(f"plot: {plot}; MLflow run {log_experiment(store, 'strategies', params, metrics, [plot])}")


if __name__ == "__main__":
    main()

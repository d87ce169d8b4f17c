"""Measure the cost and the uncertainty of measurements, on this machine's GPU, or from the shipped table without one.

    python -m tilescout.experiments.scripts.measurement --out measurement

Random configurations of each problem are measured as in a search. Shown are the width of the 95 % interval of the ratio
to the library, the pairs of launches that it took, and the GPU seconds by phase. The output says whether a GPU measured
or a table was replayed. The study `measurement` of a checkout compares protocols, for which a GPU is needed.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from rich.progress import track

from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.engines.selection import make_engine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.studies.folders import STORE, artifacts
from tilescout.search.tracking.experiment import log_experiment
from tilescout.spaces.templates import find_template

SPACE = "gemm_sm90"
PROBLEMS = ("512x512x512:bf16", "64x8192x8192:bf16", "4096x4096x4096:bf16", "8192x8192x8192:bf16")
PHASES = ("verify", "pilot", "timing")


def summarise(measured: Sequence[Measurement]) -> dict[str, float]:
    """Figures of one problem: half-widths relative to the ratio, seconds of GPU."""
    timings = [measurement.timing for measurement in measured if measurement.timing is not None]
    halves = [(timing.ratio_high - timing.ratio_low) / 2 / timing.ratio for timing in timings]
    return {
        "timed": len(timings),
        "pruned": sum(measurement.status is Status.PRUNED for measurement in measured),
        "failed": sum(measurement.failed for measurement in measured),
        "half_width": float(np.median(halves)) if halves else float("nan"),
        "pairs": float(np.median([timing.pairs for timing in timings])) if timings else float("nan"),
        **{f"{phase}_seconds": sum(getattr(each, f"{phase}_seconds") for each in measured) for phase in PHASES},
    }


@click.command(help=__doc__)
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option("--sample", default=200, show_default=True, help="Random configurations of a problem.")
@click.option("--seed", default=0, show_default=True, help="Of the sample.")
@click.option("--device", default="auto", show_default=True, help="auto, cuda, cuda:N or replay.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the plot.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, help="Gets kernels and the MLflow run.")
def main(problems: tuple[str, ...], sample: int, seed: int, device: str, out: Path, store: Path) -> None:
    """Run the script."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    template = find_template(SPACE)
    figure = Figure(figsize=(11, 4.5), dpi=110, layout="constrained")
    widths, costs = figure.subplots(1, 2)
    metrics: dict[str, float] = {}
    sources: list[str] = []
    for place, problem in enumerate(problems):
        parsed = template.parse(problem)
        with (
            make_engine(template, parsed, artifacts(store), device=device, gpus=1) as engine,
            Evaluator(engine, parsed) as evaluator,
        ):
            sources.append(evaluator.provenance.description)
            print(f"{problem}: {sources[-1]}")
            drawn = evaluator.space.sample(sample, np.random.default_rng(seed)).tolist()
            outcomes = track(evaluate(evaluator, drawn), problem, total=len(drawn))
            measured = [measurement for _, measurement in outcomes]
        timings = [measurement.timing for measurement in measured if measurement.timing is not None]
        halves = [50 * (timing.ratio_high - timing.ratio_low) / timing.ratio for timing in timings]
        beside = 0.8 * ((place + 0.5) / len(problems) - 0.5)  # or points would cover each other
        widths.plot([timing.pairs + beside for timing in timings], halves, ".", label=problem)
        figures = summarise(measured)
        before = 0.0
        for phase, colour in zip(PHASES, ("#7a8fa6", "#ef8e19", "#1f3b73"), strict=True):
            each = 1e3 * figures[f"{phase}_seconds"] / len(measured)
            costs.barh(place, each, left=before, color=colour, label=None if place else phase)
            before += each
        metrics |= {f"{problem}/{name}": value for name, value in figures.items() if np.isfinite(value)}
        print("  " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    widths.set(xlabel="pairs", ylabel="half-width of the 95 % interval, %", yscale="log")
    widths.xaxis.set_major_locator(MaxNLocator(integer=True))
    widths.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_formatter=NullFormatter())
    widths.yaxis.set_major_formatter("{x:g}")
    costs.set(xlabel="GPU time a configuration, ms")
    costs.set_yticks(range(len(problems)), problems)
    costs.invert_yaxis()
    widths.legend()
    costs.legend()
    figure.suptitle("; ".join(dict.fromkeys(sources)), fontsize=9)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(plot := out / "measurement.png")
    params = {"source": "; ".join(dict.fromkeys(sources)), "sample": sample, "seed": seed}
    print(f"plot: {plot}; MLflow run {log_experiment(store, 'measurement', params, metrics, [plot])}")


if __name__ == "__main__":
    main()

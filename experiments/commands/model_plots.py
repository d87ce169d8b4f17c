"""Plots of the quality of cost models, and logging them to MLflow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tilescout.costmodel.estimator import Prediction, Sample
from tilescout.experiments.commands.outputs import make_folder
from tilescout.spaces.errors import StoreError
from tilescout.spaces.outputs import check_replaceable, is_matplotlib, write_whole

_SUFFIX = ".png"
_NAMED = 24  # problems that a plot names; its legend would leave no room for the axes with 44

Drawn = Mapping[str, Sequence[tuple[Sample, Prediction]]]
"""Samples and their predictions, by the name of the plot."""


def check_plots(folder: Path) -> None:
    """Refuse a folder that can't be written, or has other files under the names of plots, before anything is drawn.

    Raises
    ------
    StoreError
        If it can't, or has.
    """
    make_folder(folder)
    for path in folder.glob(f"*-left-out{_SUFFIX}"):
        check_replaceable(path, "a plot", is_matplotlib, StoreError)


def draw_and_log(drawn: Drawn, result: Mapping[str, Any], folder: Path | None, uri: str | None) -> None:
    """Draw a plot for each entry of `drawn` into `folder`; log figures and plots to the MLflow store at `uri`."""
    with TemporaryDirectory() as temporary:
        target = folder if folder is not None else Path(temporary)
        target.mkdir(parents=True, exist_ok=True)
        plots = [draw_predictions(name, predicted, target) for name, predicted in drawn.items()]
        if uri:
            _log(uri, result, plots)


def draw_predictions(name: str, predicted: Sequence[tuple[Sample, Prediction]], folder: Path) -> Path:
    """Predicted against measured times, and the share of times inside intervals against the share promised."""
    from scipy.stats import norm

    from tilescout.search.tracking.plots import figure_type, to_png

    figure = figure_type()(figsize=(11, 5), dpi=120, layout="constrained")
    times, calibration = figure.subplots(1, 2)
    promised = np.linspace(0.05, 0.99, 20)
    for sample, prediction in predicted:
        exact = ~sample.censored
        truth, mean = sample.log_time[exact], prediction.mean[exact]
        best = truth.min()
        times.plot(np.exp(truth - best), np.exp(mean - best), ".", markersize=2, label=sample.problem)
        z = np.abs(truth - mean) / prediction.std[exact]
        calibration.plot(promised, [(z <= norm.ppf(0.5 + share / 2)).mean() for share in promised])
    times.loglog()
    times.axline((1, 1), (2, 2), color="black", linewidth=0.5)
    times.set_xlabel("measured / fastest measured")
    times.set_ylabel("predicted / fastest measured")
    if len(predicted) <= _NAMED:
        times.legend(markerscale=4, fontsize="x-small")
    calibration.axline((0, 0), slope=1, color="black", linewidth=0.5)
    calibration.set_xlabel("share of times that the interval promises")
    calibration.set_ylabel("share found inside")
    figure.suptitle(name if len(predicted) <= _NAMED else f"{name} ({len(predicted)})")
    path = folder / f"{name.replace(', ', '-').replace(' ', '-')}{_SUFFIX}"
    check_replaceable(path, "a plot", is_matplotlib, StoreError)
    write_whole(path, to_png(figure))
    return path


def _log(uri: str, result: Mapping[str, Any], plots: Sequence[Path]) -> None:
    from tilescout.search.tracking import log_experiment

    divisions = [key for key in result if key.endswith("_left_out")]
    summaries = {(key, model): figures["summary"] for key in divisions for model, figures in result[key].items()}
    metrics = {
        f"{division}/{model}/{figure}": interval["value"]
        for (division, model), summary in summaries.items()
        for figure, interval in summary.items()
    }
    with TemporaryDirectory() as folder:
        record = Path(folder, "result.json")
        record.write_text(json.dumps(result, indent=1))
        description = "\n\n".join(
            f"**{division.replace('_', ' ')}**, medians over the problems\n\n"
            + quality_table({model: summary for (own, model), summary in summaries.items() if own == division})
            for division in divisions
        )
        params = {"table": result["table"], "rows": result["rows"], "models": ", ".join(result["models"])}
        log_experiment(
            uri,
            "cost model evaluation",
            params,
            metrics,
            [record, *plots],
            run_name=result["table"],
            description=description,
        )


def quality_table(summaries: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The quality of models in Markdown: a row a model, each figure with its interval."""
    from tilescout.search.tracking import markdown_table

    figures = list(next(iter(summaries.values())))
    rows = [
        (model, *(f"{one['value']:.3g} [{one['low']:.3g}, {one['high']:.3g}]" for one in summary.values()))
        for model, summary in summaries.items()
    ]
    return markdown_table(("", *figures), rows)

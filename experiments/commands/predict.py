"""``tilescout predict``: rank the configurations of a problem by a cost model, without measuring."""

from pathlib import Path

import click
import numpy as np
from rich.table import Table as Grid

from tilescout.costmodel.analytic import AnalyticModel, shipped_calibration
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.options import (
    check_result,
    console_beside,
    examples,
    json_option,
    problem_option,
    space_argument,
    target_option,
    write_result,
)
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import load_template

MODELS = ("learned", "analytic")


@click.command(
    epilog=examples(
        "tilescout predict gemm_sm90 --problem 3000x4096x4096:bf16 --top 5",
        "tilescout predict gemm_sm90 --problem 3000x4096x4096:bf16 --model analytic --json ranking.json",
    )
)
@space_argument
@problem_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Configurations to show.")
@click.option(
    "--model", "name", type=click.Choice(MODELS), default=MODELS[0], show_default=True, help="Which model ranks."
)
@click.option("--model-file", type=click.Path(path_type=Path), help="Learned model. [default: the shipped one]")
@target_option
@json_option
def predict(
    space: str, problem: str, top: int, name: str, model_file: Path | None, target: str, json_path: Path | None
) -> None:
    """Show the configurations of SPACE that a cost model predicts to be fastest; nothing is compiled or measured.

    The interval is meant to hold 95 % of the times. It comes from the model's errors on problems left out of training.
    """
    check_result(json_path)
    template, device = load_template(space), find_device(target)
    parsed = template.parse(problem)
    whole = template.space(parsed, device)
    model, origin = find_model(space, target, name, model_file)
    predicted = model.predict(space_features(whole, template))
    order = np.argsort(predicted.mean, kind="stable")[:top]
    times = np.exp(predicted.mean)
    low, high = predicted.interval_us()

    grid = Grid(title=f"{space} {parsed} on {target}, predicted ({origin})", title_justify="left")
    for heading in ("", "µs", "95 % interval", parsed.rate.unit.symbol):
        grid.add_column(heading, justify="right", no_wrap=True)
    for rank, index in enumerate(order, start=1):
        interval = f"{low[index]:.2f}-{high[index]:.2f}"
        grid.add_row(str(rank), f"{times[index]:.2f}", interval, f"{parsed.rate.at(times[index]):.4g}")
    console = console_beside(json_path)
    console.print(grid)
    for rank, index in enumerate(order, start=1):
        console.print(f"{rank}: {whole[int(index)]}", highlight=False, soft_wrap=True)
    bound = Roofline.of(parsed, device)
    console.print(
        f"{len(whole):,} configurations ranked; no kernel is faster than {bound.time_us:.2f} µs ({bound.bound})",
        highlight=False,
    )
    if json_path is not None:
        ranking = [
            {
                "configuration": dict(whole[int(index)]),
                "time_us": float(times[index]),
                "low_us": float(low[index]),
                "high_us": float(high[index]),
            }
            for index in order
        ]
        result = {"space": space, "problem": str(parsed), "device": target, "model": origin, "ranking": ranking}
        write_result(json_path, result)


def find_model(space: str, device: str, name: str, path: Path | None) -> tuple[CostModel, str]:
    """Load a model and its name: from the file at `path`, or the one that comes with the package.

    Raises
    ------
    ModelError
        If there is none.
    """
    if name == "analytic":
        calibration = shipped_calibration(device)
        if calibration is None:
            raise ModelError(f"no calibration for {device} is shipped; take --model learned, or another --target")
        return AnalyticModel(calibration), "analytic model"
    found = path if path is not None else shipped_model(space, device)
    if found is None:
        raise ModelError(f"no model of {space} on {device} is shipped; train one and name it with --model-file")
    model, card = load_model(found)
    if card.space != space or card.device != device:
        raise ModelError(f"model {found} is of {card.space} on {card.device}, not of {space} on {device}")
    return model, f"learned from {card.rows:,} measurements of {len(card.problems)} problems"

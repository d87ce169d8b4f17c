"""``tilescout predict``: rank the configurations of a problem by a cost model, without measuring."""

from pathlib import Path

import click
import numpy as np

from tilescout.costmodel.analytic import AnalyticModel, shipped_calibration
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, model_file, shipped_model
from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.options import device_option, examples, json_option, problem_option, space_argument
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import load_template
from tilescout.spaces.terminal import Grid
from tilescout.spaces.texts import number_of

LEARNED, ANALYTIC = "learned", "analytic"
model_option = click.option(
    "--model",
    default=LEARNED,
    show_default=True,
    metavar=f"{LEARNED}|{ANALYTIC}|PATH",
    help="The cost model: the shipped learned or analytic one, or a file of one, or a folder that has it.",
)


@click.command(
    epilog=examples(
        "tilescout predict gemm_sm90 --problem 3000x4096x4096:bf16 --top 5",
        "tilescout predict gemm_sm90 --problem 3000x4096x4096:bf16 --model analytic --json ranking.json",
    )
)
@space_argument
@problem_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Configurations to show.")
@model_option
@device_option
@json_option
def predict(space: str, problem: str, top: int, model: str, device: str, json_path: Path | None) -> None:
    """Show the configurations of SPACE that a cost model predicts to be fastest; nothing is compiled or measured.

    The interval is meant to hold 95 % of the times. It comes from the model's errors on problems left out of training.
    """
    check_result(json_path)
    template, found = load_template(space), find_device(device)
    parsed = template.parse(problem)
    whole = template.space(parsed, found)
    fitted, origin = find_model(space, device, model)
    predicted = fitted.predict(space_features(whole, template))
    order = np.argsort(predicted.mean, kind="stable")[:top]
    times = np.exp(predicted.mean)
    low, high = predicted.interval_us()

    grid = Grid(title=f"{space} {parsed} on {device}, predicted ({origin})", title_justify="left")
    for heading in ("", "µs", "95 % interval", parsed.rate.unit.symbol):
        grid.add_column(heading, justify="right", no_wrap=True)
    for rank, index in enumerate(order, start=1):
        interval = f"{low[index]:.2f}-{high[index]:.2f}"
        grid.add_row(str(rank), f"{times[index]:.2f}", interval, f"{parsed.rate.at(times[index]):.4g}")
    console = console_beside(json_path)
    console.print(grid)
    for rank, index in enumerate(order, start=1):
        console.say(f"{rank}: {whole[int(index)]}")
    bound = Roofline.of(parsed, found)
    console.print(
        f"{number_of(len(whole), 'configuration')} ranked; the roofline is {bound.time_us:.2f} µs ({bound.bound})",
        highlight=False,
    )
    impossible = int((times < bound.least_us).sum())
    if impossible:
        console.say(
            f"of {number_of(impossible, 'configuration')} the model predicts less than {bound.least_us:.2f} µs, which "
            "can't be: it has learned from too few kernels like them"
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
        result = {"space": space, "problem": str(parsed), "device": device, "model": origin, "ranking": ranking}
        write_result(json_path, result)


def find_model(space: str, device: str, model: str) -> tuple[CostModel, str]:
    """Load what `model_option` takes, and say what it is.

    Raises
    ------
    ModelError
        If there is none.
    """
    if model == ANALYTIC:
        calibration = shipped_calibration(device)
        if calibration is None:
            raise ModelError(f"no calibration for {device} is shipped; take --model learned, or another --device")
        return AnalyticModel(calibration), "analytic model"
    path = shipped_model(space, device) if model == LEARNED else model_file(model, space, device)
    if path is None:
        raise ModelError(f"no model of {space} on {device} is shipped; train one and name its file with --model")
    loaded, card = load_model(path)
    if card.space != space or card.device != device:
        raise ModelError(f"model {path} is of {card.space} on {card.device}, not of {space} on {device}")
    return loaded, f"learned from {number_of(card.rows, 'measurement')} of {number_of(len(card.problems), 'problem')}"

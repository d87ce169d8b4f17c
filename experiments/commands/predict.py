"""``tilescout predict``: rank the configurations of a problem by a cost model, without measuring."""

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from tilescout.costmodel.analytic import AnalyticModel, shipped_calibration
from tilescout.costmodel.estimator import CostModel, Prediction
from tilescout.costmodel.features import Features, space_features
from tilescout.costmodel.persistence import load_model, model_file
from tilescout.costmodel.relatives import doubted, model_for
from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.model_options import learned_from
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
    A device without a model of its own gets that of a sibling, and wider intervals.
    """
    check_result(json_path)
    template, found = load_template(space), find_device(device)
    parsed = template.parse(problem)
    whole = template.space(parsed, found)
    fitted = find_model(template.name, device, model)
    origin = fitted.origin
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


@dataclass(frozen=True)
class FoundModel:
    """A cost model, and where it comes from.

    Attributes
    ----------
    model, origin
        The model, and what it is in words.
    of_sibling
        Whether it is one of another device of the same architecture.
    """

    model: CostModel
    origin: str
    of_sibling: bool = False

    def predict(self, features: Features) -> Prediction:
        """The expected log times; that of a sibling's model is doubted."""
        predicted = self.model.predict(features)
        return doubted(predicted) if self.of_sibling else predicted


def find_model(space: str, device: str, model: str) -> FoundModel:
    """Load what `model_option` takes.

    Parameters
    ----------
    space, device, model
        The names of a space's template and of a device, and what was given.

    Raises
    ------
    ModelError
        If there is none.
    """
    if model == ANALYTIC:
        calibration = shipped_calibration(device)
        if calibration is None:
            raise ModelError(f"no calibration for {device} is shipped; take --model learned, or another --device")
        return FoundModel(AnalyticModel(calibration), "analytic model")
    path = model_for(space, device) if model == LEARNED else model_file(model, space, device)
    if path is None:
        raise ModelError(f"no model of {space} on {device} is shipped; train one and name its file with --model")
    loaded, card = load_model(path)
    of_sibling = card.device != device
    if card.space != space or (of_sibling and model != LEARNED):
        raise ModelError(f"model {path} is of {card.space} on {card.device}, not of {space} on {device}")
    return FoundModel(loaded, f"learned from {learned_from(card, space, device)}", of_sibling)

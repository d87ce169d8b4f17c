"""Tell in which kernels a step of a model spends its time, with TorchInductor's default and with `autotune`.

    python -m tilescout.experiments.research step-kernels --client mixtral-experts --rows 16 --out mixtral.json

Both contenders run the same model in one process. Their steps are timed as CUDA graphs in turns, for several draws of
the input tokens: where tokens choose experts, the work depends on them, and on the rounding of what comes before. Then
some steps of each are called under torch's profiler, which tells the time of every kernel; what a graph takes beyond
these is spent between kernels.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import Finite, seed_option
from tilescout.experiments.research.clients import PHASES, SIZES
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.step_times import graph_of, in_turns
from tilescout.experiments.research.studies.one_line import Asked, compiled_by
from tilescout.search.autotuning.inductor import STORE
from tilescout.search.autotuning.tuner import TunerOptions

if TYPE_CHECKING:
    from tilescout.experiments.research.clients import Step

CONTENDERS = ("default", "ours")
_WARM = 8  # steps before anything is timed
_PROFILED = 20  # steps
_SHOWN = 0.2  # µs a step: a kernel whose time differs by less is not shown


def measured(asked: Asked, inputs: int, seed: int, run: Run) -> dict[str, Any]:
    """Times of graphs for each draw of the tokens, and the kernels of a step; kept as they come."""
    import torch

    made, [rows] = asked.make(), asked.rows
    found: dict[str, Any] = {"client": asked.client, "phase": asked.phase, "layers": asked.layers, "rows": rows}
    steps: dict[str, Step] = {}
    with torch.set_grad_enabled(asked.phase == "train"):
        for name in CONTENDERS:
            compiled, tuned = compiled_by(name, made, asked)
            steps[name] = made.call(compiled, rows)
            for _ in range(_WARM):
                steps[name]()
            found[f"summary of {name}"] = str(tuned)
        found["kernels"] = {name: kernels_of(step) for name, step in steps.items()}
        run.keep(found)
        graphs = {name: graph_of(step) for name, step in steps.items()}
        generator = torch.Generator("cuda").manual_seed(seed)
        found["draws"] = []
        for _ in range(inputs):
            drawn = steps["default"].inputs
            if not drawn.is_floating_point():
                most = int(made.module.config.vocab_size)  # type: ignore[union-attr, arg-type]
                drawn = torch.randint(0, most, drawn.shape, device="cuda", generator=generator)
            for step in steps.values():
                step.restart()
                step.inputs.copy_(drawn)
            found["draws"].append(in_turns(graphs))
            run.keep(found)
    return found


def kernels_of(step: "Step") -> dict[str, list[float]]:
    """The kernels of a step: how often each is launched, and its time in µs in sum, of one step."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(_PROFILED):
            step()
        torch.cuda.synchronize()
    return {
        each.key: [each.count / _PROFILED, each.self_device_time_total / _PROFILED]
        for each in seen.key_averages()
        if each.self_device_time_total > 0
    }


def differences(kernels: Mapping[str, Mapping[str, list[float]]]) -> list[tuple[str, float, float]]:
    """Kernels by name, with their µs a step of the default and of ours; those that differ most come first."""
    default, ours = (kernels[name] for name in CONTENDERS)
    found = [(name, default.get(name, [0, 0.0])[1], ours.get(name, [0, 0.0])[1]) for name in {**default, **ours}]
    return sorted(found, key=lambda each: -abs(each[2] - each[1]))


def _show(result: Mapping[str, Any]) -> None:
    console = Console(width=150)
    grid = Grid(title=f"{result['client']}, {result['rows']} rows: graphs in turns, by draw", title_justify="left")
    for heading in ("draw", "default µs", "ours µs", "ratio [quartiles]"):
        grid.add_column(heading, justify="right")
    for number, draw in enumerate(result.get("draws", [])):
        low, high = draw["ours"]["quartiles"]
        told = f"{draw['ours']['ratio']:.4f} [{low:.4f}, {high:.4f}]"
        grid.add_row(str(number), f"{draw['default']['us']:.1f}", f"{draw['ours']['us']:.1f}", told)
    console.print(grid)
    grid = Grid(title="kernels, µs a step", title_justify="left")
    for heading in ("kernel", "default", "ours", "difference"):
        grid.add_column(heading, justify="left" if heading == "kernel" else "right", no_wrap=True)
    listed = differences(result["kernels"])
    for name, default, ours in listed:
        if abs(ours - default) >= _SHOWN:
            grid.add_row(name[:90], f"{default:.1f}", f"{ours:.1f}", f"{ours - default:+.1f}")
    sums = [sum(us for _, us in kernels.values()) for kernels in (result["kernels"][name] for name in CONTENDERS)]
    grid.add_row(
        "all, of which those that differ are shown", *(f"{each:.1f}" for each in sums), f"{sums[1] - sums[0]:+.1f}"
    )
    console.print(grid)
    console.print(result["summary of ours"], markup=False)


@study(GPU_OR_RECORD, again=True)
@click.option(
    "--client", type=click.Choice(["block", *SIZES]), default="mixtral-experts", show_default=True, help="The model."
)
@click.option("--phase", type=click.Choice(PHASES), default="decode", show_default=True, help="How it is run.")
@click.option("--layers", type=click.IntRange(1), default=1, show_default=True, help="Layers of the model.")
@click.option("--rows", type=click.IntRange(1), default=16, show_default=True, help="Rows.")
@click.option("--inputs", type=click.IntRange(1), default=6, show_default=True, help="Draws of the input tokens.")
@click.option(
    "--seconds", type=Finite(min=0), default=TunerOptions.seconds, show_default=True, help="Budget of autotune."
)
@click.option("--store", type=click.Path(path_type=Path), default=STORE, help="The evidence store.")
@seed_option
def main(run: Run, inputs: int, seed: int, rows: int, **options: Any) -> None:
    """Measure, or print what was measured."""
    if run.record is not None:
        _show(run.record.result)
        return
    asked = Asked(rows=(rows,), contenders=CONTENDERS, **options)
    _show(measured(asked, inputs, seed, run))

"""Tell what one launch would bring to products that share A, as those of queries, keys and values: an upper bound.

    python -m tilescout.experiments.research joined-weights --client olmo2 --rows 24 --out joined-weights.json

A model is compiled as it is, and once more with the weights of layers that read the same activations joined in one, so
that one product stands for theirs: no launch of several products can be faster than that. Both are compiled by
TorchInductor's default and under `autotune` with kernels that begin early. A step of all four runs in turns, as a CUDA
graph; the times are ratios to the model as it is by default.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import Finite
from tilescout.experiments.research.clients import SIZES
from tilescout.experiments.research.contenders import IN_GRAPHS
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.step_times import difference, from_the_prompt, graph_of, in_turns
from tilescout.experiments.research.studies.one_line import Asked, compiled_by, warmed
from tilescout.search.autotuning.tuner import TunerOptions

if TYPE_CHECKING:
    import torch
    from torch import nn


def readers_of_one(module: "nn.Module", run: Callable[[], object]) -> "list[list[nn.Linear]]":
    """The linear layers that read the same activations, two or more together, in the order in which they run.

    Parameters
    ----------
    module
        Holds them.
    run
        Runs it once.
    """
    from torch import nn

    read: dict[int, tuple[torch.Tensor, list[nn.Linear]]] = {}  # what was read is held, so that no other has its number

    def note(layer: "nn.Module", inputs: "tuple[torch.Tensor, ...]") -> None:
        assert isinstance(layer, nn.Linear)
        read.setdefault(id(inputs[0]), (inputs[0], []))[1].append(layer)

    hooks = [each.register_forward_pre_hook(note) for each in module.modules() if isinstance(each, nn.Linear)]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return [layers for _, layers in read.values() if len(layers) > 1]


def join(module: "nn.Module", groups: "Sequence[Sequence[nn.Linear]]") -> None:
    """Have the first layer of each group compute the product of all, and the others take their part of it."""
    parts = {}
    for layers in groups:
        shared: list[torch.Tensor] = []
        joined = _joined(layers)
        start = 0
        for layer in layers:
            parts[layer] = _part(joined if not start else None, shared, start, layer.out_features)
            start += layer.out_features
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in parts:
                setattr(parent, name, parts[child])


def _joined(layers: "Sequence[nn.Linear]") -> "nn.Linear":
    """One layer with the weights of all."""
    import torch
    from torch import nn

    weight, bias = layers[0].weight, layers[0].bias
    size = sum(each.out_features for each in layers)
    made = nn.Linear(weight.shape[1], size, bias is not None, weight.device, weight.dtype)
    with torch.no_grad():
        made.weight.copy_(torch.cat([each.weight for each in layers]))
        if bias is not None:
            made.bias.copy_(torch.cat([each.bias for each in layers]))
    return made


def _part(joined: "nn.Linear | None", shared: "list[torch.Tensor]", start: int, size: int) -> "nn.Module":
    """A layer that takes its part of a product, which the first one computes."""
    from torch import nn

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joined = joined

        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            if self.joined is not None:
                shared[:] = [self.joined(x)]
            return shared[0][..., start : start + size]

    return Part()


def measured(asked: Asked, keep: Callable[[Any], None]) -> Any:
    """The times of a step of both models by both compilers, in turns; kept as they come."""
    import torch

    whole = asked.make()
    found: dict[str, Any] = {"client": asked.client, "layers": asked.layers, "rows": {}, "summaries": {}}
    with torch.no_grad():
        other = deepcopy(whole.module)
        groups = readers_of_one(other, lambda: other(torch.zeros(1, 1, dtype=torch.long, device="cuda")))
        found["joined"] = [[each.out_features for each in group] for group in groups]
        join(other, groups)
        joined = replace(whole, module=other)
        for count in asked.rows:
            torch._dynamo.reset()
            running = {}
            one: dict[str, Any] = {"differences": {}}
            for name, made in (("default", whole), ("joined", joined)):
                for contender in asked.contenders:
                    label = f"ours {name}" if contender == IN_GRAPHS else name
                    compiled, tuned = compiled_by(contender, made, asked)
                    running[label] = whole.call(compiled, count)
                    result = warmed(running[label], f"{label} {count}", found)
                    if label == "default":
                        expected = result.clone()
                    one["differences"][label] = difference(result, expected)
                    found["summaries"][f"{count} {label}"] = str(tuned)
            one["graph"] = in_turns(from_the_prompt(running, graph_of))
            found["rows"][str(count)] = one
            keep(found)
    return found


def _show(result: Mapping[str, Any]) -> None:
    grid = Grid(title="a step in a graph: µs, and over the default's [quartiles]", title_justify="left")
    for heading in ("rows", "weights, compiled by", "µs", "ratio", "difference"):
        grid.add_column(heading, justify="right")
    for rows, one in result["rows"].items():
        for name, times in one["graph"].items():
            low, high = times["quartiles"]
            told = f"{times['ratio']:.4f} [{low:.4f}, {high:.4f}]"
            grid.add_row(rows, name, f"{times['us']:.1f}", told, f"{one['differences'][name]:.2g}")
    console = Console(width=140)
    console.print(grid)
    for name, summary in result["summaries"].items():
        if summary:
            console.print(f"{name}: {summary}", markup=False)


@study(GPU_OR_RECORD, again=True)
@click.option("--client", type=click.Choice(list(SIZES)), default="olmo2", show_default=True, help="The model.")
@click.option("--layers", type=click.IntRange(1), default=2, show_default=True, help="Layers of the model.")
@click.option("--rows", type=click.IntRange(1), multiple=True, default=(24,), help="Sequences; repeatable.")
@click.option(
    "--seconds", type=Finite(min=0), default=TunerOptions.seconds, show_default=True, help="Budget of autotune."
)
def main(run: Run, client: str, layers: int, rows: tuple[int, ...], seconds: float) -> None:
    """Measure, or print what was measured."""
    if run.record is not None:
        _show(run.record.result)
        return
    with TemporaryDirectory() as folder:
        contenders = "default", IN_GRAPHS
        _show(measured(Asked(client, "decode", layers, rows, contenders, seconds, Path(folder, "evidence")), run.keep))

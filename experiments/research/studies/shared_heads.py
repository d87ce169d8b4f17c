"""Tell what attention takes over heads of keys that are shared: copied for each head, or read in place.

    python -m tilescout.experiments.research shared-heads --out shared-heads.json

The function is attention as transformers writes it over a static cache with a mask: keys and values are repeated for
the heads of queries that share them. TorchInductor compiles it twice, by default and under `autotune`, which reads them
in place. Both run as CUDA graphs in turns, in each over keys and values that the second-level cache does not hold. The
errors are those of both results against fp32, relative to the norm.
"""

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.step_times import graph_of, in_turns
from tilescout.experiments.research.studies.step_kernels import kernels_of
from tilescout.search.autotuning import autotune

if TYPE_CHECKING:
    import torch

_HELD = 200e6  # bytes of keys and values that a graph reads: four times the second-level cache of an H200
_MOST = 24  # steps in a graph
_SEEN = 0.2  # of the cache holds tokens


@dataclass(frozen=True)
class Attention:
    """Sizes of an attention.

    Attributes
    ----------
    batch
        Sequences.
    heads
        Heads of keys.
    sharing
        Heads of queries that share one.
    tokens
        Length of the cache.
    size
        Of a head.
    """

    batch: int
    heads: int
    sharing: int
    tokens: int
    size: int

    @classmethod
    def parse(cls, text: str) -> "Attention":
        """Of its text, as ``32x4x7x1024x128``.

        Raises
        ------
        BadParameter
            If it is none.
        """
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){4}", text):
            raise click.BadParameter(f"{text!r} is not BATCHxHEADSxSHARINGxTOKENSxSIZE, as 32x4x7x1024x128")
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        return "x".join(map(str, astuple(self)))


def attend(query: "torch.Tensor", keys: "torch.Tensor", values: "torch.Tensor", seen: "torch.Tensor") -> "torch.Tensor":
    """Attention of the newest tokens of each sequence, as transformers writes it.

    Parameters
    ----------
    query
        [batch, heads, new tokens, size].
    keys, values
        [batch, heads of keys, tokens, size].
    seen
        How many tokens are there, [1].
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    batch, heads, tokens, size = keys.shape
    mask = (torch.arange(tokens, device=keys.device) < seen).expand(batch, 1, query.shape[2], tokens)
    if sharing := query.shape[1] // heads - 1:
        wide = (batch, heads, sharing + 1, tokens, size)
        keys, values = (each[:, :, None].expand(wide).reshape(batch, -1, tokens, size) for each in (keys, values))
    return scaled_dot_product_attention(query, keys, values, mask).transpose(1, 2).contiguous()


def measured(sizes: Attention, queries: int, store: Path) -> dict[str, Any]:
    """Times of both ways in turns, their errors and their kernels."""
    import torch

    torch._dynamo.reset()
    shape = sizes.batch, sizes.heads, sizes.tokens, sizes.size
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(*of: int) -> "torch.Tensor":
        return torch.randn(*of, device="cuda", dtype=torch.bfloat16, generator=generator)

    query = drawn(sizes.batch, queries, sizes.heads * sizes.sharing, sizes.size).transpose(1, 2)
    count = max(1, min(_MOST, round(_HELD / (4 * torch.Size(shape).numel()))))
    held = [(drawn(*shape), drawn(*shape)) for _ in range(count)]
    seen = torch.tensor([max(1, round(_SEEN * sizes.tokens))], device="cuda")
    exact = attend(query.float(), held[0][0].float(), held[0][1].float(), seen)
    compiled = {"default": torch.compile(attend, dynamic=False)}
    with autotune(0.0, store):
        compiled["ours"] = torch.compile(attend, dynamic=False)
    found: dict[str, Any] = {"errors": {}, "kernels": {}}
    timed = {}
    for name, run in compiled.items():
        found["errors"][name] = float((run(query, *held[0], seen).float() - exact).norm() / exact.norm())
        turns = cycle(held)
        step = _step(run, query, turns, seen)
        found["kernels"][name] = kernels_of(step)
        timed[name] = graph_of(step, max(count, 4))
    return found | {"times": in_turns(timed)}


def _step(
    run: Any, query: "torch.Tensor", turns: "cycle[tuple[torch.Tensor, torch.Tensor]]", seen: "torch.Tensor"
) -> Any:
    return lambda: run(query, *next(turns), seen)


def _show(result: Mapping[str, Any]) -> None:
    grid = Grid(title="attention: shared heads copied, and read in place", title_justify="left")
    for heading in ("sizes", "default µs", "ours µs", "ratio [quartiles]", "error of default", "ours"):
        grid.add_column(heading, justify="right")
    for sizes, one in result["sizes"].items():
        if "failed" in one:
            grid.add_row(sizes, one["failed"])
            continue
        ours, errors = one["times"]["ours"], one["errors"]
        low, high = ours["quartiles"]
        told = f"{ours['ratio']:.4f} [{low:.4f}, {high:.4f}]"
        times = f"{one['times']['default']['us']:.1f}", f"{ours['us']:.1f}"
        grid.add_row(sizes, *times, told, f"{errors['default']:.5f}", f"{errors['ours']:.5f}")
    Console(width=140).print(grid)


@study(GPU_OR_RECORD, again=True)
@click.option(
    "--sizes",
    multiple=True,
    metavar="BATCHxHEADSxSHARINGxTOKENSxSIZE",
    help="Sequences, heads of keys, heads of queries that share one, tokens that the cache holds, size of a head; "
    "repeatable.",
)
@click.option("--queries", type=click.IntRange(1), default=1, show_default=True, help="New tokens of each sequence.")
@seconds_option(120.0, "sizes")
def main(run: Run, sizes: tuple[str, ...], queries: int, seconds: float) -> None:
    """Measure, or print what was measured."""
    if run.record is not None:
        _show(run.record.result)
        return
    clock = Clock(seconds)
    result: dict[str, Any] = {"queries": queries, "sizes": {}}
    with TemporaryDirectory() as folder:
        for each in clock.in_time(map(Attention.parse, sizes)):
            result["sizes"][str(each)] = _tried(each, queries, Path(folder, "store"))
            run.keep(result)
    _show(result)


def _tried(sizes: Attention, queries: int, store: Path) -> dict[str, Any]:
    """Times, errors and kernels, or why there are none: a kernel may be missing for sizes that are rare."""
    try:
        return measured(sizes, queries, store)
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[0]}

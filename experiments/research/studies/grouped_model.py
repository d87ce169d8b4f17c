"""The mixture-of-experts blocks of transformers, as TorchInductor compiles them, and with grouped products of a bundle.

    tilescout export --table qwen3.parquet --table mixtral.parquet --out bundle
    python -m tilescout.experiments.research grouped-model --bundle bundle --tokens 16 --out blocks.json

A block is the router, the experts' two grouped products (``experts_implementation="grouped_mm"``) and all between and
behind them, with random weights, on random activations: so the routing is nearly even. The contenders are compiled for
each number of tokens, run in turns, called and in a CUDA graph, and their results are compared. ``--beside`` names
another bundle that runs in the same turns.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import Finite
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.studies.one_line import graph_of, in_turns
from tilescout.search.export.inductor import use

if TYPE_CHECKING:
    import torch

    Exact = Callable[[torch.Tensor], torch.Tensor]

_QWEN3 = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
_MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14_336, "num_local_experts": 8, "num_experts_per_tok": 2}
CLIENTS: Mapping[str, tuple[str, str, Mapping[str, int]]] = MappingProxyType(
    {"qwen3-moe": ("qwen3_moe", "Qwen3Moe", _QWEN3), "mixtral": ("mixtral", "Mixtral", _MIXTRAL)}
)
"""Of each client its module and the beginning of its classes' names in transformers, and the sizes of Qwen3-30B-A3B and
Mixtral-8x7B, as their configurations are published."""

_CALLS = 10  # in a round
_WARM = 3
_BESIDE = "beside"  # how names of other bundles begin


def make_block(
    name: str, device: str, sizes: Mapping[str, int] = MappingProxyType({}), implementation: str = "grouped_mm"
) -> "torch.nn.Module":
    """The block of a client with random weights, which are the same each time; `sizes` replace published ones."""
    from importlib import import_module

    import torch

    module, prefix, published = CLIENTS[name]
    config = getattr(import_module(f"transformers.models.{module}.configuration_{module}"), f"{prefix}Config")(
        **{**published, **sizes}
    )
    config._experts_implementation = implementation
    made = getattr(import_module(f"transformers.models.{module}.modeling_{module}"), f"{prefix}SparseMoeBlock")
    with torch.device(device):
        block: torch.nn.Module = made(config).to(torch.bfloat16).eval()
        generator = torch.Generator(device).manual_seed(0)
        for parameter in block.parameters():
            deviation = parameter.shape[-1] ** -0.5
            parameter.data.normal_(0.0, deviation, generator=generator)
            parameter.requires_grad_(False)
    return block


def in_fp32(name: str, block: "torch.nn.Module", sizes: Mapping[str, int] = MappingProxyType({})) -> "Exact":
    """A function: what a block makes of activations with its experts in fp32, one after the other.

    Which experts a token goes to, and their weights, are as the block itself has them.
    """
    import torch

    device = next(block.parameters()).device.type
    experts: Any = make_block(name, device, sizes, "eager").float().experts
    router: Any = block.gate

    def exact(x: "torch.Tensor") -> "torch.Tensor":
        with torch.no_grad():
            rows = x.reshape(-1, x.shape[-1])
            _, weights, chosen = router(rows)
            result: torch.Tensor = experts(rows.float(), chosen, weights.float())
            return result.reshape(x.shape)

    return exact


def error_of(result: "torch.Tensor", exact: "torch.Tensor") -> float:
    """The relative error of a token in the median over tokens: of a few, ties in the router choose other experts."""
    return float(((result.float() - exact).norm(dim=-1) / exact.norm(dim=-1)).median())


def measure(
    block: "torch.nn.Module", x: "torch.Tensor", exact: "Exact", bundle: Path, beside: Sequence[Path] = ()
) -> dict[str, Any]:
    """The times of a block as it is compiled without and with bundles, and how far results are from fp32's."""
    import torch

    torch._dynamo.reset()
    plain = torch.compile(block, dynamic=False)
    with use(bundle) as tuned:
        ours = torch.compile(block, dynamic=False)
    with torch.no_grad():
        steps: dict[str, Callable[[], torch.Tensor]] = {"default": partial(plain, x), "ours": partial(ours, x)}
        for other in beside:
            with use(other):
                steps[f"{_BESIDE} {other.name}"] = partial(torch.compile(block, dynamic=False), x)
        results = {name: [step() for _ in range(_WARM)][-1].clone() for name, step in steps.items()}
        right = exact(x)
        apart = (results["ours"].float() - results["default"].float()).norm() / results["default"].float().norm()
        found: dict[str, Any] = {
            "replaced": dict(tuned.report.replaced),
            "left": dict(tuned.report.left),
            "difference": float(apart),
            "error": {name: error_of(result, right) for name, result in results.items()},
            "called": in_turns({name: _called(step) for name, step in steps.items()}),
        }
        try:
            found["graph"] = in_turns({name: graph_of(step) for name, step in steps.items()})
        except RuntimeError as error:  # what can't be captured
            found["no graph"] = str(error).splitlines()[0]
    return found


def _called(step: "Callable[[], torch.Tensor]") -> Callable[[], float]:
    import torch

    def run() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(_CALLS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / _CALLS * 1e6

    return run


def show(result: Mapping[str, Any]) -> None:
    """Print the times of all blocks."""
    grid = Grid(title="a block: µs, and over the default's [quartiles]", title_justify="left")
    for heading in ("client", "tokens", "how", "default", "ours", "ratio", "beside", "replaced", "difference"):
        grid.add_column(heading, justify="right")
    for name, by_tokens in result["blocks"].items():
        for tokens, one in by_tokens.items():
            for way in ("called", "graph"):
                if way in one:
                    times, (low, high) = one[way], one[way]["ours"]["quartiles"]
                    ratio = f"{times['ours']['ratio']:.4f} [{low:.4f}, {high:.4f}]"
                    row = [f"{times[who]['us']:.1f}" for who in ("default", "ours")]
                    replaced = str(sum(one["replaced"].values()))
                    beside = " ".join(f"{one['ratio']:.4f}" for who, one in times.items() if who.startswith(_BESIDE))
                    grid.add_row(name, tokens, way, *row, ratio, beside, replaced, f"{one['difference']:.2g}")
            if "no graph" in one:
                grid.add_row(name, tokens, "graph", one["no graph"], *[""] * 5)
    Console(width=140).print(grid)


@study(GPU_OR_RECORD, again=True)
@click.option("--bundle", type=click.Path(path_type=Path), help="A bundle with the blocks' grouped products.")
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Another bundle, to run in the same turns; repeatable.",
)
@click.option(
    "--client", "clients", type=click.Choice(list(CLIENTS)), multiple=True, default=tuple(CLIENTS), help="Repeatable."
)
@click.option("--tokens", type=click.IntRange(1), multiple=True, default=(1, 16, 64, 512, 4096), help="Repeatable.")
@click.option(
    "--seconds", type=Finite(min=0), default=300.0, show_default=True, help="Begin no further block after these."
)
def main(
    run: Run,
    bundle: Path | None,
    beside: tuple[Path, ...],
    clients: Sequence[str],
    tokens: Sequence[int],
    seconds: float,
) -> None:
    """Measure the blocks, or print what was measured."""
    if run.record is not None:
        show(run.record.result)
        return
    if bundle is None:
        raise click.UsageError("name a bundle")
    import torch

    started = time.monotonic()
    blocks: dict[str, Any] = {name: {} for name in clients}
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "blocks": blocks}
    for name in clients:
        block = make_block(name, "cuda")
        exact = in_fp32(name, block)
        for count in tokens:
            if time.monotonic() - started < seconds:
                generator = torch.Generator("cuda").manual_seed(count)
                hidden = next(block.parameters()).shape[-1]
                x = torch.randn(1, count, hidden, dtype=torch.bfloat16, device="cuda", generator=generator)
                blocks[name][str(count)] = measure(block, x, exact, bundle, beside)
                run.keep(result)
        del block, exact
        gc.collect()
        torch.cuda.empty_cache()
    show(result)

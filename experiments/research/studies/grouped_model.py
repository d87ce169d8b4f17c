"""Mixture-of-experts blocks of transformers, as TorchInductor compiles them, and with grouped products of a bundle.

    tilescout export --table qwen3.parquet --table mixtral.parquet --out bundle
    python -m tilescout.experiments.research grouped-model --bundle bundle --tokens 16 --out blocks.json

A block is the router, the experts' two grouped products (``experts_implementation="grouped_mm"``) and all between and
behind them, with random weights, on random activations: so the routing is nearly even. The contenders are compiled for
each number of tokens, or once for all with ``--dynamic``. They run in turns, called and in a CUDA graph, and their
results are compared. ``--beside`` names another bundle that runs in the same turns, and with ``--decoding`` the block
does as transformers' ``generate`` has it decode: ``batched_mm``, which copies the weights of each token's experts. A
client is a module of transformers; its sizes are those that its configuration has unless told, and published ones for
``mixtral`` and ``qwen3-moe``.
"""

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.step_times import called, difference, graph_of, in_graphs, in_turns
from tilescout.search.export.graph_nodes import Report
from tilescout.search.export.inductor import use
from tilescout.spaces.errors import ProblemError, one_line

if TYPE_CHECKING:
    import torch

    Exact = Callable[[torch.Tensor], torch.Tensor]

SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "qwen3-moe": {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
        "mixtral": {
            "hidden_size": 4096, "intermediate_size": 14_336, "num_local_experts": 8, "num_experts_per_tok": 2
        },
    }
)  # fmt: skip
"""The sizes of Qwen3-30B-A3B and Mixtral-8x7B, as their configurations are published."""

sizes_option = click.option(
    "--size", "sizes", type=(str, int), multiple=True, help="A size in place of a configuration's; repeatable."
)

_BLOCK = re.compile(r"(\w+?)(SparseMoeBlock|MoE|Moe)")  # a block's class, which begins as its configuration's does
_DEFINED = re.compile(rf"^class {_BLOCK.pattern}\(", re.MULTILINE)
_CALLS = 10  # in a round
_WARM = 3
_BESIDE = "beside"  # how names of contenders other than ours begin
DECODING = "batched_mm"
"""How transformers' ``generate`` has experts compute when it decodes."""


@dataclass(frozen=True)
class Client:
    """A block of transformers, not made yet.

    Attributes
    ----------
    kind
        Its class.
    config
        The configuration that it is made with.
    """

    kind: type
    config: Any

    def empty(self, implementation: str = "grouped_mm") -> "torch.nn.Module":
        """The block in bf16, on torch's default device."""
        import torch

        config = deepcopy(self.config)  # a block reads it when it is called
        config._experts_implementation = implementation
        block: torch.nn.Module = self.kind(config).to(torch.bfloat16).eval()
        return block

    def make(self, device: str, implementation: str = "grouped_mm") -> "torch.nn.Module":
        """The block with random weights, which are the same each time."""
        import torch

        with torch.device(device):
            block = self.empty(implementation)
            generator = torch.Generator(device).manual_seed(0)
            for parameter in block.parameters():
                deviation = parameter.shape[-1] ** -0.5
                parameter.data.normal_(0.0, deviation, generator=generator)
                parameter.requires_grad_(False)
        return block

    def example(self, tokens: int) -> "tuple[torch.nn.Module, tuple[torch.Tensor]]":
        """The block and the arguments of a call, as ``tilescout suites from-model`` takes them."""
        import torch

        return self.empty(), (torch.empty(1, tokens, self.config.hidden_size, dtype=torch.bfloat16),)

    def activations(self, tokens: int, device: str) -> "torch.Tensor":
        """Random activations of so many tokens."""
        import torch

        generator = torch.Generator(device).manual_seed(tokens)
        sizes = 1, tokens, self.config.hidden_size
        return torch.randn(sizes, dtype=torch.bfloat16, device=device, generator=generator)


def find_client(name: str, sizes: Mapping[str, int] = MappingProxyType({})) -> Client:
    """The client of a module of transformers; `sizes` replace those of its configuration.

    Raises
    ------
    ProblemError
        If transformers is not installed, it has no such module, or the module has not one block.
    """
    module = name.replace("-", "_")
    try:
        models = Path(str(import_module("transformers").__file__)).with_name("models")
    except ImportError as error:
        raise ProblemError(
            f"can't import transformers, whose blocks are the clients ({one_line(error)}): pip install transformers"
        ) from error
    try:
        modeling = import_module(f"transformers.models.{module}.modeling_{module}")
    except ImportError as error:
        raise ProblemError(
            f"can't import the client {name!r} of transformers ({one_line(error)}); there are: "
            f"{', '.join(clients_of(models))}"
        ) from error
    blocks = {match[1]: kind for each, kind in vars(modeling).items() if (match := _BLOCK.fullmatch(each))}
    blocks = {prefix: kind for prefix, kind in blocks.items() if kind.__module__ == modeling.__name__}
    if len(blocks) != 1:
        raise ProblemError(f"transformers' {module} has {len(blocks)} blocks of experts, and nothing says which")
    ((prefix, kind),) = blocks.items()
    configurations = import_module(f"transformers.models.{module}.configuration_{module}")
    return Client(kind, getattr(configurations, f"{prefix}Config")(**{**SIZES.get(name, {}), **sizes}))


def clients_of(models: Path) -> list[str]:
    """The modules below transformers' folder of models that define one block of experts, sorted; none is imported."""
    found = ((path, path.read_text(encoding="utf-8")) for path in models.glob("*/modeling_*.py"))
    named = [path.parent.name for path, text in found if len(_DEFINED.findall(text)) == 1]
    return sorted(set(named))


def in_fp32(client: Client) -> "Exact":
    """A function: what a block makes of activations with its routed experts in fp32, one after the other.

    Which experts a token goes to, and their weights, are as the block itself has them.
    """
    import torch

    block: Any = client.make("cuda", "eager")
    experts = block.experts.float()

    class InFp32(torch.nn.Module):
        def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = experts(x.float(), chosen, weights.float())
            return found

    block.experts = InFp32()

    def exact(x: "torch.Tensor") -> "torch.Tensor":
        with torch.no_grad():
            result: torch.Tensor = block(x)
            return result

    return exact


def error_of(result: "torch.Tensor", exact: "torch.Tensor") -> float:
    """The relative error of a token in the median over tokens: of a few, ties in the router choose other experts."""
    return float(((result.float() - exact).norm(dim=-1) / exact.norm(dim=-1)).median())


@dataclass(frozen=True)
class Contenders:
    """A block that is to be compiled without and with bundles.

    Attributes
    ----------
    compiled
        What computes it, by name.
    report
        What becomes of its products with the first bundle.
    """

    compiled: "Mapping[str, Exact]"
    report: Report


def contenders(
    block: "torch.nn.Module",
    bundle: Path,
    beside: Sequence[Path] = (),
    decoding: "torch.nn.Module | None" = None,
    dynamic: bool = False,
) -> Contenders:
    """A block, to be compiled once for all numbers of tokens if `dynamic`, else for each; and one that decodes."""
    import torch

    torch._dynamo.reset()
    compiled = {"default": torch.compile(block, dynamic=dynamic)}
    if decoding is not None:
        compiled[f"{_BESIDE} {DECODING}"] = torch.compile(decoding, dynamic=dynamic)
    with use(bundle) as tuned:
        compiled["ours"] = torch.compile(block, dynamic=dynamic)
    for other in beside:
        with use(other):
            compiled[f"{_BESIDE} {other.name}"] = torch.compile(block, dynamic=dynamic)
    return Contenders(compiled, tuned.report)


def measure(made: Contenders, x: "torch.Tensor", exact: "Exact") -> dict[str, Any]:
    """The times of a block without and with bundles, and how far results are from fp32's."""
    import torch

    with torch.no_grad():
        steps = {name: partial(each, x) for name, each in made.compiled.items()}
        results = {name: [step() for _ in range(_WARM)][-1].clone() for name, step in steps.items()}
        right = exact(x)
        found: dict[str, Any] = {
            "replaced": dict(made.report.replaced),
            "left": dict(made.report.left),
            "difference": difference(results["ours"], results["default"]),
            "error": {name: error_of(result, right) for name, result in results.items()},
            "called": in_turns({name: called(step, _CALLS) for name, step in steps.items()}),
        }
        return found | in_graphs(lambda: {name: graph_of(step) for name, step in steps.items()})


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
    "--client",
    "clients",
    multiple=True,
    default=tuple(SIZES),
    help="A module of transformers with a block of experts, such as olmoe. Repeatable.",
)
@sizes_option
@click.option("--tokens", type=click.IntRange(1), multiple=True, default=(1, 16, 64, 512, 4096), help="Repeatable.")
@click.option("--dynamic", is_flag=True, help="Compile once for all numbers of tokens.")
@click.option("--decoding", is_flag=True, help="Time the block as transformers' `generate` decodes, too.")
@seconds_option(300.0, "block")
def main(
    run: Run,
    bundle: Path | None,
    beside: tuple[Path, ...],
    clients: Sequence[str],
    sizes: Sequence[tuple[str, int]],
    tokens: Sequence[int],
    dynamic: bool,
    decoding: bool,
    seconds: float,
) -> None:
    """Measure the blocks, or print what was measured."""
    if run.record is not None:
        show(run.record.result)
        return
    if bundle is None:
        raise click.UsageError("name a bundle")
    import torch

    clock = Clock(seconds)
    blocks: dict[str, Any] = {name: {} for name in clients}
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "dynamic": dynamic, "blocks": blocks}
    for name in clients:
        client = find_client(name, dict(sizes))
        block, exact = client.make("cuda"), in_fp32(client)
        make = partial(contenders, block, bundle, beside, client.make("cuda", DECODING) if decoding else None)
        one = make(dynamic=True) if dynamic else None
        for count in tokens:
            if clock.left > 0:
                made = one or make()
                blocks[name][str(count)] = measure(made, client.activations(count, "cuda"), exact)
                run.keep(result)
        del block, exact, make, one
        gc.collect()
        torch.cuda.empty_cache()
    show(result)

"""Which blocks of experts of transformers are recorded and replaced in full, without a GPU.

    python -m tilescout.experiments.research experts-forms mixtral qwen3-moe olmoe --hidden 64 --out forms.json

Of each client (a module of transformers, as in ``grouped-model``), with small layers: the forms of grouped products
that ``tilescout suites from-model`` records, and those that an export would find in the graph that TorchInductor
compiles for a CPU.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tilescout.experiments.commands.from_model import Experts, record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped_model import Client, find_client, sizes_option
from tilescout.search.export.grouped.rewrite import find_grouped_products, with_scale, with_swiglu
from tilescout.search.export.loaded_kernels import HOST
from tilescout.spaces.routing import Routing

if TYPE_CHECKING:
    from torch.fx import Graph

PLAIN, FORMS = "plain", ("swiglu", "scaled")
_TOKENS = 24


def recorded(client: Client) -> list[str]:
    """The forms that are recorded of a block."""
    found = record(client.example, None, False, Experts((Routing(),), FORMS), (_TOKENS,))
    return [entry.phase for entry in found.entries]


def replaced(client: Client) -> list[str]:
    """The form of each grouped product in the compiled graph of a block, as an export would find it."""
    import torch
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    forms: list[str] = []

    class Look(CustomGraphPass):
        def __call__(self, graph: "Graph") -> None:
            for product in find_grouped_products(graph, HOST):
                forms.append("swiglu" if with_swiglu(product) else "scaled" if with_scale(product) else PLAIN)

        def uuid(self) -> None:
            return None  # nothing is cached

    torch._dynamo.reset()
    with torch.no_grad(), config.patch(post_grad_custom_post_pass=Look()):
        torch.compile(client.make("cpu"), dynamic=False)(client.activations(_TOKENS, "cpu"))
    return forms


def show(result: Mapping[str, Any]) -> None:
    """Print the forms of all clients."""
    for name, found in result["clients"].items():
        print(f"{name}: recorded {', '.join(found['recorded'])}; replaced {', '.join(found['replaced'])}")


@study("transformers, and no GPU", again=True)
@click.argument("clients", nargs=-1)
@sizes_option
@click.option(
    "--hidden", type=click.IntRange(min=16), default=64, show_default=True, help="Columns of the activations."
)
def main(run: Run, clients: Sequence[str], sizes: Sequence[tuple[str, int]], hidden: int) -> None:
    """Look at the blocks of CLIENTS, or print what was found."""
    if run.record is not None:
        show(run.record.result)
        return
    result: dict[str, Any] = {"clients": {}}
    for name in clients:
        client = find_client(name, {"hidden_size": hidden, **dict(sizes)})
        result["clients"][name] = {"recorded": recorded(client), "replaced": replaced(client)}
        run.keep(result)
    import transformers

    run.keep({**result, "transformers": transformers.__version__})
    show(result)

"""Entries for TorchInductor's own lookup table, which pin ATen for the problems whose decision is the library.

With ``max_autotune`` TorchInductor then benchmarks nothing for these products. The table can't name our kernels; those
are put into a graph by `tilescout.search.export.inductor`, before the table is read. The table is read only by
`torch._inductor.lookup_table.LookupTableChoices`, which is not TorchInductor's default::

    torch._inductor.config.lookup_table.table = json.loads(Path("table.json").read_text())
    torch._inductor.virtualized.V.set_choices_handler(LookupTableChoices())

The table is part of the key of TorchInductor's cache, as all of its configuration is.
(torch._inductor/lookup_table/choices.py, read in torch 2.11, 2.13, 2.14 and 2.15, which build the same keys.)
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilescout.search.export.decisions import Choice, Decision, Outcome
from tilescout.search.export.loaded_kernels import strides_of
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.outputs import check_replaceable, write_whole

Table = Mapping[str, list[dict[str, Any]]]


def lookup_table(decided: Iterable[Decision | Outcome], product: str) -> Table:
    """The entries that pin ATen where that was decided.

    Parameters
    ----------
    decided
        What was decided.
    product
        The GPU, as ``torch.cuda.get_device_name`` calls it: decisions hold for that one.
    """
    table = {}
    for decision in decided:
        if decision.choice is Choice.LIBRARY and (key := lookup_key(decision.problem, product)) is not None:
            table[key] = [{"template_id": f"aten::{_operator(decision.problem)}"}]
    return table


def _operator(problem: GemmProblem) -> str:
    return "mm" if problem.batch == 1 else "bmm"


def lookup_key(problem: GemmProblem, product: str) -> str | None:
    """The key under which TorchInductor looks a problem up; None for one that is not a plain product.

    A key is the device's name, the types, sizes and strides of the operands, and the operator.
    """
    if problem.epilogue or problem.out != problem.dtype:
        return None
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    a = [batch, m, k], list(strides_of(m, k, problem.layout[0] == "m"))
    along, row, column = strides_of(n, k, problem.layout[1] == "n")
    b = [batch, k, n], [along, column, row]
    kept = slice(1, None) if batch == 1 else slice(None)
    dtype = f"torch.{problem.element.torch_name}"
    operands = ", ".join(f"({dtype}, {shape[kept]}, {strides[kept]})" for shape, strides in (a, b))
    return f"{product}+({operands})+{_operator(problem)}"


_LARGEST = 1 << 26  # bytes; an entry has 300


def _is_lookup_table(path: Path) -> bool:
    entries = parse_json(read_regular(path, _LARGEST))
    return isinstance(entries, dict) and all(
        isinstance(choices, list) and all("template_id" in choice for choice in choices) for choices in entries.values()
    )


def write_lookup_table(path: Path, table: Table) -> None:
    """Write a table as JSON; a lookup table that is there is replaced.

    Raises
    ------
    StoreError
        If it can't be written, or the file is something else.
    """
    check_replaceable(path, "a lookup table", _is_lookup_table, StoreError)
    write_whole(path, (json.dumps(table, indent=1, sort_keys=True) + "\n").encode())

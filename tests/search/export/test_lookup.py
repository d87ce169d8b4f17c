"""The lookup table: TorchInductor itself finds the entries, and takes nothing but what they pin."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor import config, ir
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel.bmm import aten_bmm, bmm_template
from torch._inductor.kernel.mm import aten_mm, mm_template
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V

from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.search.export.lookup import lookup_key, lookup_table, write_lookup_table
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import DTYPES

PRODUCT = "NVIDIA H200"


@pytest.fixture(scope="module", autouse=True)
def pretended_h200() -> Iterator[None]:
    """The properties of an H200, and a graph that is being lowered; nothing is launched."""
    properties = SimpleNamespace(name=PRODUCT, gcnArchName=PRODUCT, major=9, minor=0, multi_processor_count=132)
    graph = GraphLowering(torch.fx.symbolic_trace(lambda x: x))
    with pytest.MonkeyPatch.context() as patch, V.set_graph_handler(graph):
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_properties", lambda *device: properties)
        yield


def operands(problem: GemmProblem) -> MMKernelInputs:
    """The operands of a linear layer with these sizes, as TorchInductor sees them."""

    def buffer(name: str, size: Sequence[int], stride: Sequence[int]) -> ir.InputBuffer:
        dtype = getattr(torch, problem.element.torch_name)
        layout = ir.FixedLayout(torch.device("cuda", 0), dtype, list(size), list(stride))
        return ir.InputBuffer(name=name, layout=layout)

    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    if batch == 1:
        return MMKernelInputs([buffer("a", (m, k), (k, 1)), buffer("b", (k, n), (1, k))])
    a = buffer("a", (batch, m, k), (m * k, k, 1))
    return MMKernelInputs([a, buffer("b", (batch, k, n), (n * k, 1, k))])


problems = st.builds(
    GemmProblem,
    *(st.integers(1, 20000) for _ in range(3)),
    batch=st.integers(1, 4),
    dtype=st.sampled_from([name for name, dtype in DTYPES.items() if dtype.bytes == 2]),
)


@settings(max_examples=50)
@given(problems)
def test_keys_are_those_that_torchinductor_makes(problem: GemmProblem) -> None:
    operator, key = lookup_key(problem, PRODUCT)
    assert LookupTableChoices().make_lookup_key(operands(problem), operator, include_device=True) == key


@pytest.mark.parametrize("text", ["16x8192x4096:bf16", "128x512x256x4:fp16"])
def test_torchinductor_is_left_with_aten_alone(text: str, tmp_path: Path) -> None:
    problem = GemmProblem.parse(text)
    evidence = Evidence("s", "r")
    ours = Decision(GemmProblem(64, 64, 64), Choice.OURS, evidence, "k")
    write_lookup_table(
        tmp_path / "table.json", lookup_table([Decision(problem, Choice.LIBRARY, evidence), ours], PRODUCT)
    )
    table = json.loads((tmp_path / "table.json").read_text())
    assert len(table) == 1
    templates = [aten_mm, mm_template] if problem.batch == 1 else [aten_bmm, bmm_template]
    operator = lookup_key(problem, PRODUCT)[0]
    with config.patch({"lookup_table.table": table}):
        choices = LookupTableChoices().get_template_configs(operands(problem), templates, operator)
        found = LookupTableChoices().lookup_template_configs(
            operands(GemmProblem(problem.m + 1, problem.n, problem.k, problem.batch, problem.dtype)),
            operator,
            [template.uid for template in templates],
        )
    assert [choice.choice for choice in choices] == templates[:1]
    assert found == {}


def test_a_table_for_another_gpu_is_not_asked() -> None:
    problem = GemmProblem(16, 8192, 4096)
    table = lookup_table([Decision(problem, Choice.LIBRARY, Evidence("s", "r"))], "NVIDIA H100 80GB HBM3")
    with config.patch({"lookup_table.table": table}):
        assert LookupTableChoices().lookup_template_configs(operands(problem), "mm", [aten_mm.uid]) == {}


def test_a_table_that_can_not_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't write"):
        write_lookup_table(tmp_path / "file" / "table.json", {})

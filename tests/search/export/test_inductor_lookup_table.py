"""The lookup table: TorchInductor itself finds the entries, and takes nothing but what they pin."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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
from tilescout.search.export.inductor_lookup_table import lookup_key, lookup_table, write_lookup_table
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import LAYOUTS, GemmProblem
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
    a, b = torch.empty(batch, m, k, device="meta"), torch.empty(batch, k, n, device="meta")
    if problem.layout[0] == "m":
        a = torch.empty(batch, k, m, device="meta").transpose(1, 2)
    if problem.layout[1] == "k":
        b = torch.empty(batch, n, k, device="meta").transpose(1, 2)
    if batch == 1:
        a, b = a[0], b[0]
    return MMKernelInputs([buffer("a", a.shape, a.stride()), buffer("b", b.shape, b.stride())])


problems = st.builds(
    GemmProblem,
    *(st.integers(1, 20000) for _ in range(3)),
    batch=st.integers(1, 4),
    dtype=st.sampled_from([name for name, dtype in DTYPES.items() if dtype.bytes == 2]),
    layout=st.sampled_from(LAYOUTS),
)


@settings(max_examples=50)
@given(problems)
def test_keys_are_those_that_torchinductor_makes(problem: GemmProblem) -> None:
    operator = "mm" if problem.batch == 1 else "bmm"
    made = LookupTableChoices().make_lookup_key(operands(problem), operator, include_device=True)
    assert made == lookup_key(problem, PRODUCT)


@pytest.mark.parametrize("text", ["16x64x64:bf16:bias", "16x64x64:e4m3-bf16", "16x64x64:bf16-fp32", "8x8x8:fp16:relu"])
def test_what_is_no_plain_product_has_no_key(text: str) -> None:
    assert lookup_key(GemmProblem.parse(text), PRODUCT) is None


@pytest.mark.parametrize("text", ["16x8192x4096:bf16", "64x512x256:bf16:mn", "128x512x256x4:fp16"])
def test_torchinductor_is_left_with_aten_alone(text: str, tmp_path: Path) -> None:
    problem = GemmProblem.parse(text)
    evidence = Evidence("s", "r")
    ours = Decision(GemmProblem(64, 64, 64), Choice.OURS, evidence, "k")
    write_lookup_table(
        tmp_path / "table.json", lookup_table([Decision(problem, Choice.LIBRARY, evidence), ours], PRODUCT)
    )
    table = json.loads((tmp_path / "table.json").read_text())
    assert len(table) == 1
    templates: list[Any] = [aten_mm, mm_template] if problem.batch == 1 else [aten_bmm, bmm_template]
    operator = "mm" if problem.batch == 1 else "bmm"
    with config.patch({"lookup_table.table": table}):
        choices = LookupTableChoices().get_template_configs(operands(problem), templates, operator)
        found = LookupTableChoices().lookup_template_configs(
            operands(replace(problem, m=problem.m + 1)),
            operator,
            [template.uid for template in templates],
        )
    assert [cast(Any, choice).choice for choice in choices] == templates[:1]
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

"""``tilescout suites`` and ``tilescout suite from-model``: products of models, counted without a GPU."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tilescout.experiments.commands.from_model import Experts, load_factory, record
from tilescout.experiments.commands.options import suite_problems
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.routing import Routing
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template

RunCommand = Callable[..., None]
ZIPF = (Routing.parse("zipf-1"),)

MODEL = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))

def make():
    return nn.Sequential(Layer(64), Layer(64)), (torch.empty(2, 24, 64),)
"""


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Mixed(nn.Module):
    """Every way to write a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 48)
        self.weight = nn.Parameter(torch.empty(4, 48, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))  # [4, 8, 48]
        each = torch.bmm(hidden, self.weight)  # [4, 8, 16]
        gram = each @ each.transpose(1, 2)  # [4, 8, 8]
        summed = torch.einsum("bij,bjk->bik", gram, each)  # [4, 8, 16]
        return torch.addmm(torch.zeros(8, device=x.device, dtype=x.dtype), summed[0], each[0].t())


def listed(recording) -> dict[str, int]:
    return {entry.problem: entry.count for entry in recording.entries}


def test_every_way_to_write_a_product_is_seen() -> None:
    recording = record(lambda: (Mixed(), (torch.empty(4, 8, 32),)), "bf16", training=False)
    assert listed(recording) == {
        "32x48x32:bf16": 1, "8x16x48x4:bf16:kn": 1, "8x8x16x4:bf16": 1, "8x16x8x4:bf16:kn": 1, "8x8x16:bf16": 1,
    }  # fmt: skip
    assert (recording.skipped, recording.graphs) == ({}, 1)


def test_the_products_are_those_that_torch_counts() -> None:
    model, x = Mixed(), torch.empty(4, 8, 32)
    with FlopCounterMode(display=False) as counter:
        model(x)
    recording = record(lambda: (Mixed(), (torch.empty(4, 8, 32),)), "fp16", training=False)
    assert (
        sum(GemmProblem.parse(entry.problem).flops * entry.count for entry in recording.entries)
        == counter.get_total_flops()
    )


def test_attention_that_is_one_kernel_does_not_count_in_any_pass() -> None:
    def factory() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return Attention(64, 4), (torch.empty(2, 20, 64, requires_grad=True),)

    forward = {"40x192x64:bf16": 1, "40x64x64:bf16": 1}
    assert listed(record(factory, "bf16", training=False)) == forward
    backward = {"40x64x192:bf16:kn": 1, "192x64x40:bf16:mn": 1, "40x64x64:bf16:kn": 1, "64x64x40:bf16:mn": 1}
    assert listed(record(factory, "bf16", training=True)) == forward | backward


def test_products_of_other_types_are_left_out_and_said() -> None:
    recording = record(lambda: (nn.Linear(16, 8).double(), (torch.empty(4, 16).double(),)), None, training=False)
    assert recording.entries == ()
    assert recording.skipped == {"4x8x16 in float64": 1}


class EightBits(nn.Module):
    """Products in e4m3, as torchao writes them: with a scale an operand, fast or not, and with one a row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(128, 64).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, one = x.to(torch.float8_e4m3fn), self.weight.t(), x.new_ones((), dtype=torch.float32)
        rows, columns = x.new_ones(32, 1, dtype=torch.float32), x.new_ones(1, 128, dtype=torch.float32)
        found = torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
        found = found + torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        found = found + torch._scaled_mm(a, b, one, one).to(torch.bfloat16)  # a result in e4m3
        return found + torch._scaled_mm(a, b, rows, columns, out_dtype=torch.bfloat16)


def test_products_in_8_bits_are_recorded_or_said() -> None:
    recording = record(lambda: (EightBits(), (torch.empty(32, 64, dtype=torch.bfloat16),)), None, training=False)
    assert listed(recording) == {"32x128x64:e4m3-bf16:alpha": 1, "32x128x64:e4m3-bf16:fast:alpha": 1}
    assert recording.skipped == {
        "32x128x64 in float8_e4m3fn, with a result in float8_e4m3fn": 1,
        "32x128x64 in float8_e4m3fn with a scale for each row or block": 1,
    }


def test_a_model_that_needs_no_memory_takes_none() -> None:
    """400 GB of weights."""
    recording = record(lambda: (nn.Linear(447_216, 447_216, bias=False), (torch.empty(8, 447_216),)), "bf16", False)
    assert listed(recording) == {"8x447216x447216:bf16": 1}


@pytest.mark.parametrize(
    ("factory", "answer"),
    [
        (lambda: 3, "returned int: expected"),
        (lambda: (nn.Linear(4, 4), (torch.empty(2, 5),)), "the call failed: RuntimeError: a and b must have same"),
    ],
)
def test_a_call_that_fails_is_told(factory, answer: str) -> None:
    with pytest.raises(ProblemError, match=answer):
        record(factory, None, training=False)


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("make = 3", "can't be called without arguments: 3 is not a callable object"),
        ("def make(width): ...", "can't be called without arguments: missing a required argument: 'width'"),
        ("1 / 0", "can't import faulty_model:make: ZeroDivisionError: division by zero ("),
    ],
)
def test_a_factory_that_can_not_be_called_is_told(
    source: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_model.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_model", raising=False)
    with pytest.raises(ProblemError, match=re.escape(answer)):
        load_factory("faulty_model:make")


def test_a_recorded_model_is_a_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_model_for_tests.py").write_text(MODEL)
    run("suites", "from-model", "a_model_for_tests:make", "--dtype", "bf16", "--out", "own.toml")
    capsys.readouterr()
    run("suites", "own.toml")
    printed = capsys.readouterr().out
    suite = find_suite("own.toml")
    assert {entry.problem: entry.count for entry in suite.entries} == {"48x256x64:bf16": 2, "48x64x256:bf16": 2}
    assert all(problem in printed for problem in suite.problems)


def test_the_suites_are_listed(run: RunCommand, capsys: pytest.CaptureFixture[str]) -> None:
    run("suites")
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("llama3-8b", "deepseek-v3", "squares", "recorded"))


def test_suites_say_what_the_shipped_tables_hold() -> None:
    held = {table.name: Table.read(table).problems for table in shipped_tables()}
    assert find_suite("ground-truth").parsed(GemmProblem.parse) == held["gemm_sm90-h200-bf16.parquet"]
    recorded = [(problem.m, problem.n, problem.k) for problem in find_suite("recorded").parsed(GemmProblem.parse)]
    parsed = [GemmProblem.parse(str(problem)) for problem in held["gemm_sm90-h200-e4m3.parquet"]]
    assert recorded == [(problem.m, problem.n, problem.k) for problem in parsed]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("suites", "llama"), "unknown suite 'llama'"),
        (("suites", "from-model", "json"), "expected MODULE:FUNCTION"),
        (("suites", "from-model", "json:make"), "can't import json:make"),
        (("suites", "from-model", "no_such_module:make"), "can't import no_such_module:make"),
        (("suites", "from-model", "json:loads", "--out", "suite.json"), "a suite is a .toml file"),
        (("suites", "from-model", "json:loads", "--draws", "3"), "--draws is of experts' products"),
    ],
)
def test_bad_input_is_one_line(
    run: RunCommand, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], answer: str
) -> None:
    run(*arguments, code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert answer in line


class Routed(nn.Module):
    """A dense layer, and experts as transformers has them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 8, bias=False)
        self.up = nn.Parameter(torch.empty(8, 96, 64))
        self.down = nn.Parameter(torch.empty(8, 32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(8, dtype=torch.int32, device=x.device) + self.router(x).sum().int()
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        up = torch.nn.functional.grouped_mm(x, self.up.transpose(-2, -1), offs=ends)
        return up[:, :32] + torch.nn.functional.grouped_mm(x, self.down.transpose(-2, -1), offs=ends)


def test_grouped_products_are_recorded_with_a_routing_and_the_others_without() -> None:
    def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
        return Routed(), (torch.empty(40, 64),)

    experts = record(make, "bf16", training=False, experts=Experts(ZIPF))
    assert [entry.problem for entry in experts.entries] == ["8x40x96x64:bf16:zipf-1", "8x40x32x64:bf16:zipf-1"]
    assert list(experts.skipped) == ["40x8x64: another space computes it"]
    dense = record(make, "bf16", training=False)
    assert [entry.problem for entry in dense.entries] == ["40x8x64:bf16"]
    assert len(dense.skipped) == 2


def test_experts_are_recorded_for_every_number_of_tokens_and_routing() -> None:
    def make(tokens: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
        return Routed(), (torch.empty(tokens, 64),)

    routings = (Routing(), *ZIPF)
    found = record(make, "bf16", training=False, experts=Experts(routings, draws=2), tokens=(8, 40))
    assert [entry.problem for entry in found.entries] == [
        f"8x{tokens}x{n}x64:bf16:{routing}:draws-0-1"
        for tokens in (8, 40) for n in (96, 32) for routing in ("balanced", "zipf-1")
    ]  # fmt: skip


def test_a_routing_or_a_number_of_tokens_that_is_named_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand
) -> None:
    def make(tokens: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
        return Routed(), (torch.empty(tokens, 64),)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tilescout.experiments.commands.suites.load_factory", lambda *given: make)
    asked = ("--dtype", "bf16", "--experts", "zipf-1", "--experts", "zipf-1.0", "--tokens", "40", "--tokens", "40")
    run("suites", "from-model", "a_model_for_tests:make", *asked, "--out", "experts.toml")
    found = {entry.problem: entry.count for entry in find_suite("experts.toml").entries}
    assert found == {"8x40x96x64:bf16:zipf-1": 1, "8x40x32x64:bf16:zipf-1": 1}


class Gates(nn.Module):
    """Experts with SwiGLU behind their products, in two ways, and twice in a way that is none; and with scaled rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(8, 96, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.cumsum(x.new_zeros(8, dtype=torch.int32) + x.sum().int(), 0, dtype=torch.int32)

        def product(rows: int) -> torch.Tensor:
            return torch.nn.functional.grouped_mm(x[:rows], self.gate_up.transpose(-2, -1), offs=ends)

        gate, up = product(40).masked_fill(x[:40, :1] > 0, 0.0).chunk(2, dim=-1)  # cleared, as transformers does
        other, last, third = product(32), product(24), product(16)
        found = (nn.functional.silu(gate) * up)[:8] + (other[:, 48:] * nn.functional.silu(other[:, :48]))[:8]
        found = found + (nn.functional.silu(last[:, 48:]) * last[:, :48])[:8]  # up before the gate
        found = found + (nn.functional.silu(third[:, :48]) * up[:16])[:8]  # of two products
        return found + (x[:8, :1] * product(8))[:, :48]


def test_products_with_something_behind_them_are_recorded_as_such_if_asked() -> None:
    def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
        return Gates(), (torch.empty(40, 64),)

    gated = record(make, "bf16", training=False, experts=Experts(ZIPF, ("swiglu",)))
    assert [entry.problem for entry in gated.entries] == [
        "8x40x96x64:bf16:swiglu:zipf-1", "8x32x96x64:bf16:swiglu:zipf-1"
    ]  # fmt: skip
    assert sum(gated.skipped.values()) == 3
    assert all(reason.endswith("it has not the form swiglu") for reason in gated.skipped)
    scaled = record(make, "bf16", training=False, experts=Experts(ZIPF, ("scaled",)))
    assert [entry.problem for entry in scaled.entries] == ["8x8x96x64:bf16:scaled:zipf-1"]
    plain = record(make, "bf16", training=False, experts=Experts(ZIPF))
    assert [entry.problem for entry in plain.entries] == [f"8x{rows}x96x64:bf16:zipf-1" for rows in (40, 32, 24, 16, 8)]
    assert {entry.phase for found in (gated, scaled, plain) for entry in found.entries} == {""}
    both = record(make, "bf16", training=False, experts=Experts(ZIPF, ("scaled", "swiglu")))
    assert [(entry.phase, entry.problem) for entry in both.entries] == [
        *(("swiglu", entry.problem) for entry in gated.entries), ("scaled", scaled.entries[0].problem)
    ]  # fmt: skip


def test_forms_that_are_recorded_together_are_parts_of_a_suite_for_the_space_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Gates(), (torch.empty(40, 64),)
    monkeypatch.setattr("tilescout.experiments.commands.suites.load_factory", lambda *given: lambda: made)
    asked = ("--dtype", "bf16", "--experts", "zipf-1", "--swiglu", "--scaled", "--out", "experts.toml")
    run("suites", "from-model", "a_model_for_tests:make", *asked)
    for form, rows in (("swiglu", (40, 32)), ("scaled", (8,))):
        problems = suite_problems(find_template(f"grouped_{form}_sm90"), f"experts.toml:{form}", None)
        assert [str(problem) for problem in problems] == [f"8x{each}x96x64:bf16:{form}:zipf-1" for each in rows]


def test_problems_that_a_space_cannot_compute_are_left_out_of_a_suite_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template, path = find_template("gemm_sm90"), tmp_path / "heads.toml"
    path.write_text('problems = ["512x512x512:bf16", "512x50257x512:bf16"]\n')
    assert suite_problems(template, str(path), None) == [template.parse("512x512x512:bf16")]
    assert "512x50257x512:bf16 of the suite" in caplog.text
    assert "n = 50257 is not a multiple of 8" in caplog.text

    path.write_text('problems = ["512x50257x512:bf16"]\n')
    with pytest.raises(ProblemError, match="n = 50257"):
        suite_problems(template, str(path), None)

"""Verification sees wrong results, whatever the kernel before left behind."""

import math
import weakref
from contextlib import nullcontext

import pytest
import torch

from tilescout.search.measure.machine import CudaMachine, HostMachine
from tilescout.search.measure.verification import Case, Verifier, WrongResultError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.workloads import Tensors, load_workload

GEMM = load_workload("tilescout.spaces.gemm:Gemm")


def case_of(text: str) -> Case:
    return Case.draw(GEMM, GemmProblem.parse(text), torch.Generator("cpu").manual_seed(0))


def library(inputs: Tensors, output: torch.Tensor) -> None:
    output.copy_(torch.bmm(inputs[0].float(), inputs[1].float().transpose(1, 2)))


def nothing(inputs: Tensors, output: torch.Tensor) -> None:
    pass


def test_a_kernel_that_writes_nothing_does_not_pass_on_what_a_right_one_left() -> None:
    verifier = Verifier(HostMachine(), case_of("24x16x32"), [case_of("7x24x40x2"), case_of("5x8x24")])
    for edge in (True, False):
        verifier.start(library, edge)
        assert 0 < verifier.judge(edge) < 2.0**-7

        verifier.start(nothing, edge)
        with pytest.raises(WrongResultError, match="relative error nan"):
            verifier.judge(edge)


def test_a_kernel_that_is_wrong_on_the_last_edge_problem_alone_is_refused() -> None:
    def right_where_wide(inputs: Tensors, output: torch.Tensor) -> None:
        library(inputs, output)
        if output.shape[-1] == 8:
            output[..., 0] += 1000

    verifier = Verifier(HostMachine(), case_of("24x16x32"), [case_of("7x24x40x2"), case_of("5x8x24")])
    verifier.start(right_where_wide, edge=True)
    with pytest.raises(WrongResultError, match="on 5x8x24"):
        verifier.judge(edge=True)


def test_without_the_edge_problem_its_old_findings_say_nothing() -> None:
    verifier = Verifier(HostMachine(), case_of("24x16x32"), [case_of("7x24x40x2"), case_of("5x8x24")])
    verifier.start(nothing, edge=True)
    verifier.start(library, edge=False)

    assert verifier.judge(edge=False) < 2.0**-7


@pytest.mark.parametrize("text", ["7x24x40", "7x24x40:bf16-fp32", "7x24x40x2:fp16"])
@pytest.mark.parametrize("offset", [-1, "end"])
def test_an_element_right_beside_the_output_is_in_a_guard_band(text: str, offset: int | str) -> None:
    case = case_of(text)
    findings = torch.empty(3)
    case.prepare(math.nan, findings)
    case.check_bands()

    first = case.output.storage_offset()
    case.buffer[first - 1 if offset == -1 else first + case.output.numel()] = 1.0

    with pytest.raises(WrongResultError, match="outside its output"):
        case.check_bands()
    case.output.copy_(case.reference)
    case.find(findings)
    with pytest.raises(WrongResultError, match="outside its output"):
        case.check(*findings.tolist())


class Graph:
    """A CUDA graph as far as the machine uses one, which knows nothing of what was recorded."""

    def capture_begin(self, *_: object, **__: object) -> None:
        pass

    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        pass


def test_a_recorded_step_keeps_the_memory_that_its_graph_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        def write(self) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    machine = object.__new__(CudaMachine)  # no stream, no device
    monkeypatch.setattr(machine, "_capturing", None, raising=False)
    memory = Memory()
    held, repeat = weakref.ref(memory), machine._capture(memory.write)
    del memory
    assert held() is not None
    repeat()
    del repeat
    assert held() is None

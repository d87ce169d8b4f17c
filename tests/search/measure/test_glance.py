"""Glances at one problem after the other, on the CPU."""

from collections.abc import Callable, Sequence

import pytest

from tilescout.search.build.loading import Launch
from tilescout.search.measure.glance import Glancer
from tilescout.search.measure.machine import Block, HostMachine
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.workloads import Tensors, load_workload


class Fixed(HostMachine):
    """A device on which every block takes 1 ms, though nothing runs, and that knows how many settled it."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: list[int] = []

    def times_us(
        self, blocks: Sequence[Block], skip: int = 1, lost: float = 0.0, meanwhile: Callable[[], object] = lambda: None
    ) -> list[float]:
        self.skipped.append(skip)
        meanwhile()
        return [1000.0] * (len(blocks) - skip)


def test_a_device_that_was_just_busy_settles_for_a_few_times_as_long_as_it_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [50.0]
    monkeypatch.setattr("tilescout.search.measure.glance.time.perf_counter", lambda: now[0])
    machine, loaded = Fixed(), list[int]()

    def launch(inputs: Tensors, output: object) -> None:
        loaded.append(len(inputs))

    glancer = Glancer(machine, load_workload("tilescout.spaces.gemm:Gemm"), ProtocolOptions())
    settled = []
    for waited in (0.0, 0.001, 0.0099, 9.0):
        now[0] += waited
        [(library_us, ratios)] = glancer.glances([(GemmProblem(8, 16, 24), [launch, launch])], 3, seed=0)
        assert library_us == 1000.0
        assert (ratios == 1).all()
        assert ratios.shape == (3, 2)
        settled.append(machine.skipped[-1])
    assert settled == [150, 10, 80, 150]
    assert loaded == [2]  # once is enough


def test_what_the_next_problem_needs_is_made_while_the_device_is_at_work() -> None:
    machine, loaded = Fixed(), list[str]()

    def launch(name: str) -> Launch:
        return lambda inputs, output: loaded.append(f"{name} after {len(machine.skipped)}")

    glancer = Glancer(machine, load_workload("tilescout.spaces.gemm:Gemm"), ProtocolOptions())
    asked = [(GemmProblem(m, 16, 24), [launch(str(m))] * count) for m, count in ((8, 1), (9, 2), (7, 3))]
    found = glancer.glances(asked, 2, seed=0)
    assert [ratios.shape for _, ratios in found] == [(2, 1), (2, 2), (2, 3)]
    assert len(machine.skipped) == 6  # two queues each: the library alone, and all
    assert loaded == ["8 after 0", "9 after 2", "7 after 4"]

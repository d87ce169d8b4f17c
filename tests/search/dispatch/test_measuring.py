"""Sweeps over m with real compilers and a real measuring process, on the host."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.search.dispatch.invented_gpu import InventedGpu
from tilescout.costmodel.arrays import Floats
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.dispatch.measuring import Sweep, settling_rounds
from tilescout.search.dispatch.points import Point, Ratio
from tilescout.search.engines.engine import LiveOptions, Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

OPTIONS = LiveOptions(
    CompileOptions(processes=2, timeout=120), ProtocolOptions(Objective.CHAIN, heating_us=1000.0), timeout=60
)


@pytest.mark.slow
def test_each_kernel_is_timed_at_each_size_and_failures_say_why(plain_gemm: ModuleType, tmp_path: Path) -> None:
    tried = [("nothing", 1), ("corner", 1), ("nothing", 4), ("compiler_refuses", 1)]
    kernels = Kernels.of(
        plain_gemm.TEMPLATE,
        plain_gemm.HOST,
        GemmProblem(1, 64, 64),
        [Configuration.of({"fault": fault, "repeats": repeats}) for fault, repeats in tried],
    )
    assert kernels.legal(16).all()
    with LocalEngine(plain_gemm.TEMPLATE, tmp_path, ["cpu"], plain_gemm.HOST, OPTIONS) as engine:
        sweep = Sweep(engine, kernels)
        points = [sweep.at(m, [0, 1, 2, 3], race=m == 128) for m in (16, 128)]
        glance = sweep.glance(72, [0, 2])
    for m, point in zip((16, 128), points, strict=True):
        assert point.m == m
        assert {*point.ratios, *point.slower} == {0, 2}
        assert "is off by" in point.failed[1]
        assert point.failed[3]
        assert point.library_us > 0
        assert 0 < point.ratios[0].low <= point.ratios[0].value <= point.ratios[0].high
    assert glance is not None
    assert glance.m == 72
    assert glance.ratios.keys() == {0, 2}
    # Which is the faster is not said: others use this machine, too.
    assert all(0 < each.low == each.value for each in glance.ratios.values())


@pytest.mark.slow
def test_a_kernel_races_the_librarys_best_candidate_at_an_m(host_library: ModuleType, tmp_path: Path) -> None:
    kernel = Configuration.of({"fault": "nothing", "repeats": 1})
    kernels = Kernels.of(host_library.COMPARED, host_library.HOST, GemmProblem(1, 64, 40), [kernel])
    with LocalEngine(host_library.COMPARED, tmp_path, ["cpu"], host_library.HOST, OPTIONS) as engine:
        sweep = Sweep(engine, kernels)
        ratios = [sweep.over_library_best(48, number) for number in (0, None)]

    assert all(ratio is not None and 0 < ratio < np.inf for ratio in ratios)


def test_only_races_of_long_launches_run_a_while_before_they_count() -> None:
    assert settling_rounds(100.0, 4) == 0
    assert settling_rounds(500.0, 4) == 38
    assert settling_rounds(500.0, 1) == 150
    assert settling_rounds(100_000.0, 4) == 1


class Moody(Sweep):
    """Kernels whose times over the library's are others once the device has settled."""

    rested, settled = (0.95, 1.005, 1.03), (1.02, 0.95, 0.95)

    def _rounds(self, point: Point, numbers: Sequence[int], rounds: int, seed: int) -> Floats:
        busy = np.arange(rounds)[:, None] >= settling_rounds(point.library_us, len(numbers))
        return np.where(busy, [self.settled[number] for number in numbers], [self.rested[number] for number in numbers])


def test_a_lead_counts_on_a_busy_device_unless_the_kernel_is_slower_on_one_that_rested(
    invented_gpu: InventedGpu,
) -> None:
    sweep = Moody(invented_gpu, invented_gpu.kernels.take([0, 1, 2]))
    long = Point(64, 1000.0, {number: Ratio(0.9, 0.9, 0.9) for number in range(3)})
    raced = sweep._raced(long, [0, 1, 2])
    assert [raced[number].value for number in range(3)] == pytest.approx([1.02, 0.95, 1.03])


def test_what_a_race_tells_of_some_kernels_is_true_of_those_that_were_timed_alone() -> None:
    class Busy(Sweep):
        """A device on which kernels lead by more once it is busy."""

        def _raced(self, point: Point, numbers: Sequence[int]) -> dict[int, Ratio]:
            return {number: point.ratios[number].times(0.9) for number in numbers}

    gpu = InventedGpu(6144, 4096, 12, noise=0.0, seed=2)
    gpu.logs[-1] += 1.0  # a slow library: the fastest kernels race
    alone, raced = (Busy(gpu, gpu.kernels).at(700, range(len(gpu.kernels)), race) for race in (False, True))
    assert len(alone.ratios) > 4
    for number, each in alone.ratios.items():
        assert raced.ratios[number].value == pytest.approx(0.9 * each.value)


@pytest.mark.parametrize("racers", [1, 2, 6])
def test_both_states_are_watched_as_long_with_few_kernels_as_with_many(invented_gpu: InventedGpu, racers: int) -> None:
    sweep = Moody(invented_gpu, invented_gpu.kernels.take([0, 1, 2]))
    rested, settled = sweep.race(Point(64, 500.0), [0, 1, 2, 0, 1, 2][:racers], seed=0)
    round_us = 2 * racers * 500.0
    assert 30_000 <= len(rested) * round_us <= 40_000
    assert len(settled) * round_us >= 15_000
    assert (rested[:, 0] == 0.95).all()
    assert (settled[:, 0] == 1.02).all()


def test_a_check_glances_at_all_and_races_the_three_fastest() -> None:
    gpu = InventedGpu(6144, 4096, 12, noise=0.0, seed=2)
    checked = Sweep(gpu, gpu.kernels).check(700, range(len(gpu.kernels)))
    assert checked is not None
    glance, raced = checked
    legal = np.flatnonzero(gpu.kernels.legal(700))
    assert glance.ratios.keys() == set(legal.tolist())
    assert raced.ratios.keys() == set(legal[np.argsort(gpu.logs[legal, 699])][:3].tolist())
    assert Sweep(gpu, gpu.kernels).check(700, []) is None


def test_a_glance_at_many_kernels_has_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, asked = InventedGpu(6144, 4096, 32, noise=0.0, seed=2), list[tuple[int, int]]()
    glance = gpu.glances

    def watched(
        number: int, groups: Sequence[Sequence[Task]], rounds: int, seed: int
    ) -> Future[list[tuple[float, Floats]]]:
        asked.extend((len(tasks), rounds) for tasks in groups)
        return glance(number, groups, rounds, seed)

    monkeypatch.setattr(gpu, "glances", watched)
    sweep = Sweep(gpu, gpu.kernels)
    for numbers in (range(3), range(len(gpu.kernels))):
        assert sweep.glance(2000, numbers) is not None
    (few, more), (many, fewer) = asked
    assert few < many
    assert more > fewer


def test_of_a_kernel_that_was_timed_twice_the_smaller_lead_counts() -> None:
    first = Point(64, 10.0, {0: Ratio(0.9, 0.89, 0.91), 1: Ratio(1.0, 0.9, 1.1)}, slower={2: 1.5})
    later = Point(64, 10.0, {0: Ratio(1.0, 0.9, 1.1), 1: Ratio(0.9, 0.89, 0.91), 2: Ratio(1.2, 1.2, 1.2)})
    both = first.joined(later)
    assert both.ratios == {0: later.ratios[0], 1: first.ratios[1], 2: later.ratios[2]}
    assert not both.slower

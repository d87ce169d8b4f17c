"""Heats of a race: all inputs are read and written before each, and the launches of what goes on racing are kept."""

from functools import partial
from typing import cast

import pytest

from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.machine import Block, HostMachine
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.workloads import Workload


@pytest.fixture
def bench() -> Bench:
    options = ProtocolOptions(cold_bytes=1, heating_us=1_000.0)
    return Bench(HostMachine(), cast(Workload, Gemm()), GemmProblem.parse("64x64x64"), options)


def test_all_inputs_are_read_and_written_before_a_race_and_stay_what_they_are(bench: Bench) -> None:
    before = [(each, each._version, each.clone()) for inputs in bench._inputs for each in inputs]

    bench.race([bench.run_library], rounds=3, pairs=1, seed=0)

    assert all(each._version > version for each, version, _ in before)
    assert all(each.equal(value) for each, _, value in before)


def test_launches_are_made_once_for_a_kernel_and_kept_for_as_long_as_it_races(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    make = bench.make_block

    def counted(launch: Launch) -> Block:
        made.append(launch)
        return make(launch)

    monkeypatch.setattr(bench, "make_block", counted)
    one, two, three = (partial(bench.run_library) for _ in range(3))

    def heat(*racing: Launch) -> list[object]:
        made.clear()
        ratios = bench.race(racing, rounds=2, pairs=1, seed=0)
        assert ratios.shape == (2, len(racing))
        return list(made)

    assert heat(one, two, one) == [one, two]
    assert heat(two, one) == []
    assert heat(two, three) == [three]
    assert heat(one, three) == [one]

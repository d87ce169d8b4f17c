"""Races see a kernel of several states in more than one: before each, all inputs are read and written."""

from typing import cast

from tilescout.search.measure.bench import Bench
from tilescout.search.measure.machine import HostMachine
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.workloads import Workload


def test_all_inputs_are_read_and_written_before_a_race_and_stay_what_they_are() -> None:
    options = ProtocolOptions(cold_bytes=1, heating_us=1_000.0)
    bench = Bench(HostMachine(), cast(Workload, Gemm()), GemmProblem.parse("64x64x64"), options)
    before = [(each, each._version, each.clone()) for inputs in bench._inputs for each in inputs]

    bench.race([bench.run_library], rounds=3, pairs=1, seed=0)

    assert all(each._version > version for each, version, _ in before)
    assert all(each.equal(value) for each, _, value in before)

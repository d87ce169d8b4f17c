"""The clocks where there is no GPU: nothing is known, and nothing breaks."""

from tilescout.search.measure.clocks import ClockSampler
from tilescout.search.measure.machine import HostMachine


def test_a_gpu_that_nvml_does_not_know_has_no_sampler() -> None:
    assert ClockSampler.of("00000000-0000-0000-0000-000000000000") is None
    assert ClockSampler.of("GPU-00000000-0000-0000-0000-000000000000") is None


def test_the_host_has_neither_clocks_nor_other_users() -> None:
    machine = HostMachine()

    assert machine.clocks() is None
    assert machine.other_processes() == 0

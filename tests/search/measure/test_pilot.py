"""Times are the device's and never the host's; a pilot goes by what the library would take in the same place."""

import math
from collections.abc import Callable, Sequence

import pytest

from tilescout.search.measure.machine import Block, HostMachine, Queued, SlowHostError
from tilescout.search.measure.pilot import Pilots

LIBRARY_US, KERNEL_US = 20.0, 30.0


class SlowHost(HostMachine):
    """A machine whose host takes `host_us` for every block that it queues, and whose device takes what blocks say."""

    def __init__(self, host_us: float = 40.0) -> None:
        super().__init__()
        self.host_us = host_us
        self.delays_us: list[float] = []
        self.spent_us = 0.0

    def block(self, launches: Sequence[Callable[[], None]]) -> Block:  # type: ignore[override]
        raise AssertionError("a pilot joins no launches to a graph")

    def queue(self, blocks: Sequence[Block], delay_us: float = 0.0, late: float = 0.0) -> Queued:
        self.delays_us.append(delay_us)
        times = []
        for block in blocks:
            self.spent_us = 0.0
            block.run()
            times.append(self.spent_us)
        host_us = self.host_us * len(blocks)
        return Queued(lambda: times if delay_us >= host_us else [math.nan] * len(times), host_us)

    def taking(self, time_us: float) -> Block:
        def run() -> None:
            self.spent_us += time_us

        return Block(run)


def pilots_on(machine: SlowHost) -> Pilots:
    return Pilots(machine, machine.taking(LIBRARY_US))


def test_a_pilot_is_the_kernels_time_over_the_librarys() -> None:
    machine = SlowHost()
    pilots = pilots_on(machine)

    assert pilots.start(machine.taking(KERNEL_US))() == pytest.approx(1.5)
    assert pilots.beside(machine.taking(KERNEL_US)) == pytest.approx(1.5)


def test_the_delay_is_longer_than_what_the_host_took_of_late_and_no_longer_than_it_must() -> None:
    machine = SlowHost(host_us=40.0)
    pilots = pilots_on(machine)
    pilots.start(machine.taking(KERNEL_US))

    assert 40.0 < machine.delays_us[-1] < 100.0


def test_a_pilot_that_the_host_was_too_slow_for_tells_nothing_and_is_made_up_for_behind_a_longer_delay() -> None:
    machine = SlowHost()
    pilots = pilots_on(machine)
    machine.host_us = 5000.0

    assert pilots.start(machine.taking(KERNEL_US))() is None
    assert pilots.beside(machine.taking(KERNEL_US)) == pytest.approx(1.5)
    assert machine.delays_us[-1] >= 2 * 5000.0


def test_one_interruption_of_the_host_makes_later_delays_no_longer() -> None:
    machine = SlowHost()
    pilots = pilots_on(machine)
    pilots.start(machine.taking(KERNEL_US))
    usual = machine.delays_us[-1]
    machine.host_us = 5000.0
    pilots.start(machine.taking(KERNEL_US))
    machine.host_us = 40.0
    pilots.start(machine.taking(KERNEL_US))

    assert machine.delays_us[-1] == pytest.approx(usual)


def test_what_the_library_takes_in_a_pilot_is_learnt_from_kernels_that_were_timed_and_one_is_not_enough() -> None:
    machine = SlowHost()
    pilots = Pilots(machine, machine.taking(LIBRARY_US), library_us=1.25 * LIBRARY_US)  # taken on another clock
    kernel = machine.taking(KERNEL_US)
    assert pilots.ratio(KERNEL_US) == pytest.approx(1.2)

    for _ in range(9):
        pilot = pilots.start(kernel)()
        assert pilot is not None
        pilots.learn(pilot, 1.5)
    assert pilots.start(kernel)() == pytest.approx(1.5)

    pilots.learn(1.5, 3.0)  # a disturbed timing, or a disturbed pilot
    assert pilots.start(kernel)() == pytest.approx(1.5)


def test_blocks_that_the_host_was_too_slow_for_are_run_again_behind_a_delay() -> None:
    machine = SlowHost(host_us=5000.0)
    library = machine.taking(LIBRARY_US)

    assert machine.times_us([library, library, machine.taking(KERNEL_US)]) == [LIBRARY_US, KERNEL_US]
    assert machine.delays_us[0] == 0
    assert machine.delays_us[-1] >= 3 * 5000.0


def test_blocks_that_do_not_count_may_be_late() -> None:
    class SlowStart(SlowHost):
        def queue(self, blocks: Sequence[Block], delay_us: float = 0.0, late: float = 0.0) -> Queued:
            times = super().queue(blocks, math.inf).times_us()
            return Queued(lambda: [math.nan] * 2 + times[2:], 0.0)

    machine = SlowStart()
    blocks = [machine.taking(LIBRARY_US)] * 3 + [machine.taking(KERNEL_US)]

    assert machine.times_us(blocks, skip=2) == [LIBRARY_US, KERNEL_US]
    assert len(machine.delays_us) == 1
    with pytest.raises(SlowHostError):
        machine.times_us(blocks, skip=1)


def test_what_is_done_meanwhile_is_done_while_the_device_is_at_work() -> None:
    machine = SlowHost(host_us=0.0)
    events: list[str] = []
    machine.synchronize = lambda: events.append("waited")  # type: ignore[method-assign]

    machine.times_us([machine.taking(LIBRARY_US)] * 2, meanwhile=lambda: events.append("looked"))

    assert events == ["looked", "waited"]


def test_times_that_may_be_missing_are_not_waited_for() -> None:
    machine = SlowHost()
    assert all(map(math.isnan, machine.times_us([machine.taking(LIBRARY_US)] * 3, lost=1.0)))
    assert machine.delays_us == [0]


def test_a_host_that_no_delay_is_long_enough_for_is_named() -> None:
    class Stuck(SlowHost):
        def queue(self, blocks: Sequence[Block], delay_us: float = 0.0, late: float = 0.0) -> Queued:
            self.host_us = 2 * delay_us + 1.0
            return super().queue(blocks, delay_us, late)

    machine = Stuck()
    with pytest.raises(SlowHostError, match="slower than the device"):
        machine.times_us([machine.taking(LIBRARY_US)] * 2)

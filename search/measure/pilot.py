"""What a few launches tell of a kernel: whether it is worth timing."""

import math
from collections import deque
from collections.abc import Callable
from statistics import median

from tilescout.search.measure.machine import Block, Machine

_MARGIN = 1.5  # times what the host took of late
_LEAST_US = 10.0
_RECENT = 9


class Pilots:
    """Short blocks of kernels, queued behind a delay, so that the host is never what is timed.

    A block here is launched launch by launch: to join launches to a graph takes the host longer than to launch them,
    and pays only where they are repeated.

    Where kernels are timed the library's block is not launched beside each, but what it would take is known from those
    that were timed: their pilot's time over their ratio. Its own time tells less. A device that has just been heated
    runs at another clock than one that verifies kernel after kernel: on an H200 at 4096x4096x4096 by a fifth, the same
    for all kernels within 3 %.

    Parameters
    ----------
    machine
        Where.
    library
        The library's block.
    library_us
        What it takes in a pilot, in µs, until kernels tell; None takes it now.
    """

    def __init__(self, machine: Machine, library: Block, library_us: float | None = None) -> None:
        self._machine, self._library = machine, library
        self._host_us = deque([0.0], maxlen=_RECENT)
        for _ in range(_RECENT):
            first = self._queue([library])
        self._library_us = deque([first[0] if library_us is None else library_us], maxlen=_RECENT)

    def start(self, kernel: Block) -> Callable[[], float | None]:
        """Queue a kernel's block, and wait for nothing.

        Returns
        -------
        callable
            What tells the ratio to the library once the machine is synchronised; None if the host was slower than the
            delay, so that the time is not to be used.
        """
        queued = self._machine.queue([kernel], self._delay_us)
        self._host_us.append(queued.host_us)
        return lambda: self.ratio(queued.times_us()[0])

    def ratio(self, kernel_us: float) -> float | None:
        """The ratio to the library of a kernel whose pilot took `kernel_us`; NaN gives None."""
        return None if math.isnan(kernel_us) else kernel_us / median(self._library_us)

    def learn(self, pilot: float, ratio: float) -> None:
        """Take in what the last pilot's ratio should have been."""
        self._library_us.append(median(self._library_us) * pilot / ratio)

    def beside(self, kernel: Block) -> float:
        """The ratio that the library's block and a kernel's right after it tell."""
        library_us, kernel_us = self._queue([self._library, kernel])
        return kernel_us / library_us

    @property
    def _delay_us(self) -> float:
        return _LEAST_US + _MARGIN * median(self._host_us)

    def _queue(self, blocks: list[Block]) -> list[float]:
        """Times of blocks behind a delay that was long enough for the host."""
        delay_us = self._delay_us * len(blocks)
        while True:
            queued = self._machine.queue(blocks, delay_us)
            self._machine.synchronize()
            self._host_us.append(queued.host_us / len(blocks))
            times = queued.times_us()
            if not any(map(math.isnan, times)):
                return times
            delay_us *= 2

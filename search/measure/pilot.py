"""Pilots: a few launches of a kernel, which tell whether it is worth timing."""

import math
from collections import deque
from collections.abc import Callable
from statistics import median

from tilescout.search.measure.machine import Block, Machine

_MARGIN = 1.5  # times what the host took of late
_LEAST_US = 10.0
_RECENT = 9


class Pilots:
    """Short blocks of kernels, queued behind a delay, so that the time of the host is never measured.

    The launches of a block are started one by one. Capturing them as a CUDA graph would take the host longer than
    launching them, and pays only where the graph is repeated.

    The library's block is not launched beside each kernel's. Its time is estimated from the kernels that were timed
    before: the time of their pilot divided by their ratio. A time of the library alone would tell less, because the
    clock differs: a device that has just been heated runs at another clock than one that verifies kernel after kernel
    (on an H200 at 4096x4096x4096 by a fifth, the same for all kernels within 3 %).

    Parameters
    ----------
    machine
        The device.
    library
        The library's block.
    library_us
        Its time as a pilot, in µs, until kernels have been timed; None measures it now.
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
            To be called once the machine is synchronised: it returns the ratio to the library, or None if the host was
            slower than the delay, so that the time can't be used.
        """
        queued = self._machine.queue([kernel], self._delay_us)
        self._host_us.append(queued.host_us)
        return lambda: self.ratio(queued.times_us()[0])

    def ratio(self, kernel_us: float) -> float | None:
        """The ratio to the library of a kernel whose pilot took `kernel_us`; NaN gives None."""
        return None if math.isnan(kernel_us) else kernel_us / median(self._library_us)

    def learn(self, pilot: float, ratio: float) -> None:
        """Update the library's time, now that the ratio is known of the kernel whose pilot said `pilot`."""
        self._library_us.append(median(self._library_us) * pilot / ratio)

    def beside(self, kernel: Block) -> float:
        """The ratio by one block of the library and one of a kernel right after it."""
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

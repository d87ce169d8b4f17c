"""How many candidates each product has, so that all products of a graph are decided within the budget."""

import time

FEWEST = 4
"""Candidates of a product at the least, where so many are asked for: the default, and what is expected to be fastest.
How far the best of a model's first four is behind that of a table is in `experiments/results/stream-k.md`."""

EXPECTED = 0.2
"""Seconds that a candidate is expected to take until that is known, with its part of the race: on an H200 host with 16
cores nine products of ten candidates each took the 20 s of a budget (`experiments/results/one-line.md`)."""


class Pace:
    """Shares what is left of the budget among the products that are left.

    The seconds that a candidate takes, compiled, measured and raced, are learned from the products that were decided.
    The first tells nothing: it waits for the compilers and the GPU to start.

    Parameters
    ----------
    products
        How many are to be decided.
    most
        Candidates of a product if there is time enough.
    deadline
        The end of the budget, by `time.monotonic`; infinite without one.
    """

    def __init__(self, products: int, most: int, deadline: float) -> None:
        self._left, self._most, self._deadline = products, most, deadline
        self._entered = 0  # candidates that are not decided yet
        self._decided, self._spent = most, most * EXPECTED  # candidates, and seconds: one product is as expected
        self._last: float | None = None  # when a product was decided, by the same clock

    def enter(self) -> int:
        """The number of candidates for the next product, which is entered now."""
        room = (self._deadline - time.monotonic()) * self._decided / self._spent - self._entered
        count = int(min(self._most, max(FEWEST, room / self._left)))
        self._left -= 1
        self._entered += count
        return count

    def leave(self, candidates: int) -> None:
        """Learn that a product with so many candidates was decided now."""
        now = time.monotonic()
        self._entered -= candidates
        if self._last is not None:
            self._decided += candidates
            self._spent += now - self._last
        self._last = now

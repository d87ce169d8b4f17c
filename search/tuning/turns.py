"""Share GPUs between several searches: the next one is the search that expects to gain the most."""

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

from tilescout.search.tuning.loop import Budget


@dataclass(frozen=True)
class Claim:
    """The request of a search for a turn.

    Attributes
    ----------
    trials, gpu_seconds
        Its finished trials, and the seconds of GPU time that they took.
    gain
        By how much its next trial is expected to lower the best time, relative; None if its strategy can't say.
    """

    trials: int
    gpu_seconds: float
    gain: float | None

    def rank(self) -> tuple[float, ...]:
        """Orders claims, the first served first.

        A search that has tried nothing comes first, so that none is left without its default. Next is one that can't
        say what it expects; of several the one that had the least GPU time, so that they share it evenly. Then comes
        the largest expected gain a second of GPU time, at what a trial of that search took so far.
        """
        if self.trials == 0:
            return (0.0,)
        if self.gain is None:
            return (1.0, self.gpu_seconds)
        return (2.0, -self.gain * self.trials / max(self.gpu_seconds, 1e-9))


@dataclass(frozen=True)
class Turn:
    """The use of a GPU for so many more trials. With 0 trials, the budget is spent and only the race is left."""

    gpu: int
    trials: int


class StoppedError(KeyboardInterrupt):
    """The searches were told to end: to one in a thread of its own, this is Ctrl-C."""


class Turns:
    """Hands GPUs to searches in threads, within a budget that they share.

    With one seat a GPU is one search's at a time. It goes to the best claim once every search that does not run has
    made one: with one GPU, who is next does not depend on which thread is faster.

    With several seats as many searches share a GPU: while one of them waits for a compiler, it measures for another. A
    seat that is free goes to the best claim that there is; none has a second turn before all have had their first.

    Parameters
    ----------
    searches, gpus
        How many there are of each.
    budget
        Of all searches together. Each has a trial for its default, also where that exceeds the budget.
    slice
        Trials of a turn at most. The first turn of a search is its even part of the budget's trials, if that is less.
    seats
        Searches that may have a GPU at the same time.
    """

    def __init__(self, searches: int, gpus: int, budget: Budget, slice: int, seats: int = 1) -> None:
        self._budget, self._slice = budget, slice
        self._searches, self._alone = searches, seats == 1
        self._begun: set[int] = set()  # those that had a turn
        self._gone: set[int] = set()  # those that left
        self._free = list(range(gpus)) * seats
        self._idle = searches  # those that run no turn
        self._claims: dict[int, Claim] = {}
        self._granted: dict[int, Turn] = {}
        self._known: dict[int, Claim] = {}  # the last claim of every search
        self._promised: dict[int, int] = {}  # trials of the turns that run
        self._last: dict[int, int] = {}  # the last GPU of every search
        self._started = time.monotonic()
        self._stopped = False
        self._changed = threading.Condition()

    @property
    def first(self) -> int:
        """Trials of the first turn of a search, where the budget has them."""
        trials = self._budget.trials
        return self._slice if trials is None else max(1, min(self._slice, trials // self._searches))

    def take(self, search: int, claim: Claim) -> Turn:
        """Wait for a turn.

        Raises
        ------
        StoppedError
            If `stop` was called.
        """
        with self._changed:
            self._claims[search] = self._known[search] = claim
            self._grant()
            self._changed.wait_for(lambda: search in self._granted or self._stopped)
            if self._stopped:
                raise StoppedError
            return self._granted.pop(search)

    def give(self, search: int, turn: Turn) -> None:
        """End a turn."""
        with self._changed:
            self._free.append(turn.gpu)
            self._promised.pop(search, None)
            self._idle += 1

    def leave(self, search: int, turn: Turn | None, claim: Claim) -> None:
        """Leave for good, with what was found, from within a turn or without one."""
        with self._changed:
            self._known[search] = claim
            self._gone.add(search)
            if turn is not None:
                self._free.append(turn.gpu)
                self._promised.pop(search, None)
            else:
                self._idle -= 1
            self._grant()

    def stop(self) -> None:
        """Have every search end that asks for a turn, or goes on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def go_on(self) -> None:
        """Nothing, within a turn.

        Raises
        ------
        StoppedError
            If `stop` was called.
        """
        if self._stopped:
            raise StoppedError

    def _grant(self) -> None:
        while self._free and (claiming := self._claiming()):
            search = min(claiming, key=lambda each: (self._claims[each].rank(), each))
            claim = self._claims.pop(search)
            # Where it was before, its problem is still set up.
            last = self._last.get(search)
            gpu = last if last in self._free else self._free[0]
            self._free.remove(gpu)
            self._last[search] = gpu
            turn = Turn(gpu, self._trials(search))
            self._begun.add(search)
            self._granted[search] = turn
            self._promised[search] = turn.trials
            self._known[search] = claim
            self._idle -= 1
            self._changed.notify_all()

    def _claiming(self) -> Collection[int]:
        """The searches among which a GPU is handed out now."""
        if self._alone:
            return self._claims if len(self._claims) == self._idle else ()
        new = self._claims.keys() - self._begun
        return new if len(self._begun | self._gone) < self._searches else self._claims

    def _trials(self, search: int) -> int:
        """Trials that the budget has for a turn: at least the default in the first one."""
        first = search not in self._begun
        return max(int(first), self._left(first))

    def _left(self, first: bool) -> int:
        budget, known = self._budget, self._known.values()
        if budget.gpu_seconds is not None and sum(claim.gpu_seconds for claim in known) >= budget.gpu_seconds:
            return 0
        if budget.seconds is not None and time.monotonic() - self._started >= budget.seconds:
            return 0
        if budget.trials is None:
            return self._slice
        if first:
            return min(self._slice, budget.trials // self._searches)
        spent = sum(claim.trials for claim in known) + sum(self._promised.values())
        return max(0, min(self._slice, budget.trials - spent))

"""The configurations that a study has already tried or proposed, by whichever process."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial

from tilescout.search.studies.optuna_hooks import all_trials, queued_parameters
from tilescout.spaces.space import Indices, SearchSpace

_LARGEST = np.iinfo(np.int64).max

CLAIM = "tilescout:claim"
"""The system attribute of a trial that holds the codes proposed for it. Optuna stores the parameters of a trial one by
one: without this attribute other processes would not know the configuration until the last one is stored."""

GIVEN_UP = "tilescout:given up"
"""The system attribute of a trial that was in flight when its search ended: its configuration was not tried."""


def distributions(space: SearchSpace) -> dict[str, IntDistribution]:
    """The parameters of a trial, as optuna is asked for them: the code of every knob, in the order of the knobs."""
    return {knob.name: IntDistribution(0, len(knob.values) - 1) for knob in space.knobs}


def seen(study: optuna.Study, space: SearchSpace) -> Indices:
    """Indices of the configurations that a study has in any trial, in order.

    Finished, failed, running and enqueued trials count; trials with other parameters do not.
    """
    ledger = Ledger.empty(space).read(all_trials(study))
    return np.flatnonzero(ledger.taken | ledger.pending())


def proposed(trial: FrozenTrial, space: SearchSpace) -> dict[str, int] | None:
    """The code of every knob that a trial has, or will have; None if nobody knows yet."""
    knobs = distributions(space)
    codes = _codes(trial, knobs)
    return None if codes is None else dict(zip(knobs, codes, strict=True))


@dataclass(frozen=True)
class Ledger:
    """The configurations of a study's first trials, extended as the study grows.

    A later reading looks only at new trials and at those that were not settled before, so that an ask costs the same
    late in a study as early. A ledger is immutable, so that threads can share it.

    Attributes
    ----------
    space
        The space.
    taken
        Mask of the configurations of settled trials, of shape [configurations].
    unsettled
        Trials whose configuration is not known yet or may still change.
    length
        Number of trials read.
    """

    space: SearchSpace
    taken: NDArray[np.bool_]
    unsettled: tuple[FrozenTrial, ...]
    length: int

    @classmethod
    def empty(cls, space: SearchSpace) -> "Ledger":
        """The ledger of a study without trials."""
        return cls(space, np.zeros(len(space), dtype=np.bool_), (), 0)

    def read(self, trials: Sequence[FrozenTrial]) -> "Ledger":
        """The ledger of `trials`, all those of the study, of which this one has read the first `length`."""
        knobs = distributions(self.space)
        again = [trials[trial.number] for trial in self.unsettled] + list(trials[self.length :])
        settled = [trial.state.is_finished() or _is_of(trial, knobs) for trial in again]
        taken = self.taken.copy()
        taken[self._indices([trial for trial, done in zip(again, settled, strict=True) if done])] = True
        unsettled = tuple(trial for trial, done in zip(again, settled, strict=True) if not done)
        return Ledger(self.space, taken, unsettled, len(trials))

    def pending(self, but: int | None = None) -> NDArray[np.bool_]:
        """Mask of the configurations claimed by or enqueued in unsettled trials other than number `but`."""
        mask = np.zeros(len(self.space), dtype=np.bool_)
        mask[self._indices([trial for trial in self.unsettled if trial.number != but])] = True
        return mask

    def _indices(self, trials: Sequence[FrozenTrial]) -> Indices:
        knobs = distributions(self.space)
        rows = [codes for trial in trials if (codes := _codes(trial, knobs)) is not None]
        found: Indices = self.space.find(np.array(rows, dtype=np.int64).reshape(-1, len(knobs)))
        return found[found >= 0]  # an enqueued combination may be illegal


def _is_of(trial: FrozenTrial, knobs: dict[str, IntDistribution]) -> bool:
    return all(trial.distributions.get(name) == knob for name, knob in knobs.items())


def _codes(trial: FrozenTrial, knobs: dict[str, IntDistribution]) -> list[int] | None:
    """The codes that a trial has, or will have; None if it is of no configuration, or nobody knows yet."""
    if GIVEN_UP in trial.system_attrs:
        return None
    if _is_of(trial, knobs):
        codes: object = [trial.params.get(name) for name in knobs]
    elif not (codes := trial.system_attrs.get(CLAIM)):
        given = queued_parameters(trial)
        codes = [given.get(name) for name in knobs]
    if not isinstance(codes, list) or len(codes) != len(knobs):  # of a damaged study
        return None
    known = [int(code) for code in codes if isinstance(code, Integral) and abs(int(code)) <= _LARGEST]
    return known if len(known) == len(knobs) else None

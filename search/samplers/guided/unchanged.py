"""Findings about the trials of a study that are kept for as long as none of them changes."""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import optuna
from optuna.trial import FrozenTrial

Found = TypeVar("Found")


class Unchanged(Generic[Found]):
    """Keeps what was worked out of a study's trials until one of them changes, or there is another.

    A storage puts another object in the place of a trial that changes, so that who has listed trials can go on reading
    them. Where one lists other objects each time, as of a database those of unfinished trials, all is worked out anew.
    """

    def __init__(self) -> None:
        self._kept: tuple[optuna.Study | None, tuple[FrozenTrial, ...], dict[Hashable, Found]] = (None, (), {})

    def of(
        self, study: optuna.Study, trials: Sequence[FrozenTrial], which: Hashable, work_out: Callable[[], Found]
    ) -> Found:
        """Return what was worked out of these trials, or is now.

        Parameters
        ----------
        study, trials
            The trials as the study lists them now, without a copy of each.
        which
            Says what of them it is, where there is more than one thing.
        work_out
            Called without arguments if that is not known.
        """
        whose, listed, known = self._kept
        if whose is not study or len(listed) != len(trials) or any(map(_differ, listed, trials)):
            known = {}
            self._kept = study, tuple(trials), known
        if which not in known:
            known[which] = work_out()
        return known[which]


def _differ(one: FrozenTrial, other: FrozenTrial) -> bool:
    return one is not other

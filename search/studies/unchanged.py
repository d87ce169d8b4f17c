"""What was worked out of the trials of a study, for as long as none of them changes."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import optuna
from optuna.trial import FrozenTrial

from tilescout.search.studies.optuna_hooks import all_trials, study_key

Found = TypeVar("Found")


class Unchanged(Generic[Found]):
    """Keeps what was worked out of a study's trials until one of them changes, or there is another.

    A storage puts another object in the place of a trial that changes, so that who has listed trials can go on reading
    them. Where one lists other objects each time, as of a database those of unfinished trials, all is worked out anew.
    """

    def __init__(self) -> None:
        self._kept: tuple[Hashable, tuple[FrozenTrial, ...], dict[Hashable, Found]] = (None, (), {})

    def of(self, study: optuna.Study, which: Hashable, work_out: Callable[[], Found]) -> Found:
        """What was worked out of the study's trials as they are now, or is now.

        Parameters
        ----------
        study
            Whose trials they are.
        which
            Says what of them it is, where there is more than one thing.
        work_out
            Called without arguments if that is not known.
        """
        whose, trials = study_key(study), all_trials(study)
        kept = self._kept
        if kept[0] != whose or len(kept[1]) != len(trials) or any(map(_differ, kept[1], trials)):
            kept = self._kept = whose, tuple(trials), {}
        if which not in kept[2]:
            kept[2][which] = work_out()
        return kept[2][which]


def _differ(one: FrozenTrial, other: FrozenTrial) -> bool:
    return one is not other

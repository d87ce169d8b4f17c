"""The trials of a study as a Gaussian process sees them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tilescout.costmodel.arrays import Floats
from tilescout.search.samplers.joint import first_alike
from tilescout.search.samplers.order import asked_before, in_order
from tilescout.search.studies.ledger import distributions
from tilescout.search.studies.trials import was_given, was_tried
from tilescout.spaces.space import Indices, SearchSpace


@dataclass(frozen=True, eq=False)
class History:
    """A study's trials, as indices of its space.

    Attributes
    ----------
    settled
        Timed and pruned trials, in the order in which they were told, which a few are behind later proposals.
    values
        A number to minimise for each of them, of the same shape: the natural logarithm of the time in µs if
        `are_times`, else the value or, of several objectives, the mean of the ranks.
    pruned
        Which of them were pruned, of the same shape.
    failed, running
        Failed trials and trials in flight that are not settled, too; in the order of the space.
    best
        The smallest value of a trial that was not pruned; None without one.
    first
        The position among those settled of the first trial with that value or, of times, with one as short but for
        `ALIKE`; None without one.
    since
        Trials that were told behind that one, failed ones too; 0 without one.
    blind, blind_running
        Of those that count in `since`, and of those in flight, how many no sampler proposed with that one in view: they
        had been proposed when its outcome came, or were to be tried first.
    given
        Trials, those in flight too, that no sampler proposed: they were to be tried first.
    are_times
        Whether the study minimises one positive value.
    """

    settled: Indices
    values: Floats
    pruned: NDArray[np.bool_]
    failed: Indices
    running: Indices
    best: float | None
    first: int | None
    since: int
    blind: int
    blind_running: int
    given: int
    are_times: bool

    @property
    def finished(self) -> int:
        """How many trials there are that are not in flight."""
        return len(self.settled) + len(self.failed)

    @property
    def after_best(self) -> Indices:
        """The settled trials behind the first of the best; none without one."""
        return self.settled[len(self.settled) if self.first is None else self.first + 1 :]

    @cached_property
    def key(self) -> bytes:
        """Equal for equal histories of one study."""
        parts = (self.settled, self.values, self.pruned, self.failed, self.running)
        return b"".join(len(part).to_bytes(8, "little") + part.tobytes() for part in parts)

    @classmethod
    def of_running(cls, running: Indices) -> "History":
        """The history of a search for the least time of which nothing is known yet but what is in flight."""
        none = np.empty(0, dtype=np.int64)
        return cls(
            none, np.empty(0), np.empty(0, dtype=np.bool_), none, running, None, None, 0, 0, len(running), 0, True
        )


def history_of(
    study: optuna.Study, space: SearchSpace, but: int | None = None, trials: Sequence[FrozenTrial] | None = None
) -> History:
    """The history of a study, without the trial of number `but`; of its trials as they were listed just now, if so.

    Trials that do not have all knobs, or have a combination of them that is not legal, say nothing, and neither do
    those that were in flight when their search ended: they were not tried.
    """
    names = list(distributions(space))
    everything = study.get_trials(deepcopy=False) if trials is None else trials
    tried = [trial for trial in everything if was_tried(trial) and all(name in trial.params for name in names)]
    codes = np.array([[trial.params[name] for name in names] for trial in tried], dtype=np.int64)
    at = np.asarray(space.find(codes.reshape(-1, len(names))), dtype=np.int64)
    legal = [(trial, index) for trial, index in zip(tried, at.tolist(), strict=True) if index >= 0]

    def in_state(*states: TrialState) -> list[tuple[FrozenTrial, int]]:
        return [(trial, index) for trial, index in legal if trial.state in states]

    told = in_order(in_state(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL), itemgetter(0))
    finished = [each for each in told if each[0].state is not TrialState.FAIL and each[0].values is not None]
    values, are_times = _losses([trial for trial, _ in finished], study.directions)
    finite = np.isfinite(values)
    settled = np.array([index for _, index in finished], dtype=np.int64)[finite]
    timed = [trial for (trial, _), kept in zip(finished, finite, strict=True) if kept]
    pruned = np.array([trial.state is TrialState.PRUNED for trial in timed], dtype=np.bool_)
    values = values[finite]
    exact = values[~pruned]
    running = [(trial, index) for trial, index in in_state(TrialState.RUNNING) if trial.number != but]
    failed = in_state(TrialState.FAIL)
    best = float(exact.min()) if len(exact) else None
    given = {trial.number for trial, _ in legal if was_given(trial, everything)}
    first, later, blind, blind_running = None, list[FrozenTrial](), 0, 0
    if best is not None:
        exact_or_none = np.where(pruned, np.inf, values)
        first = first_alike(np.exp(exact_or_none - best)) if are_times else int(exact_or_none.argmin())
        order = {trial.number: place for place, (trial, _) in enumerate(told)}
        known = timed[first]
        later = [each for each in [*timed, *map(itemgetter(0), failed)] if order[each.number] > order[known.number]]
        blind, blind_running = (
            sum(each.number in given or asked_before(each, known) for each in some)
            for some in (later, [trial for trial, _ in running])
        )
    return History(
        settled=settled,
        values=values,
        pruned=pruned,
        failed=np.setdiff1d(np.array([index for _, index in failed], dtype=np.int64), settled),
        running=np.setdiff1d(np.array([index for _, index in running], dtype=np.int64), settled),
        best=best,
        first=first,
        since=len(later),
        blind=blind,
        blind_running=blind_running,
        given=len(given),
        are_times=are_times,
    )


def _losses(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> tuple[Floats, bool]:
    """A number to minimise for each trial, and whether it is a log time."""
    values = np.array([trial.values for trial in trials], dtype=np.float64).reshape(len(trials), len(directions))
    if len(directions) == 1 and directions[0] == StudyDirection.MINIMIZE and (values > 0).all():
        return np.log(values[:, 0]), True
    signs = np.array([1.0 if direction == StudyDirection.MINIMIZE else -1.0 for direction in directions])
    if len(directions) == 1:
        return signs[0] * values[:, 0], False
    # Of several objectives, the mean of the ranks.
    ranks = np.argsort(np.argsort(signs * values, axis=0, kind="stable"), axis=0, kind="stable")
    return np.asarray(ranks.mean(axis=1), dtype=np.float64), False

"""The last race of a search in two spaces: between their answers, which each space found for itself.

How much faster than the library a kernel is differs by a per cent or two from one race to the next where a GPU is at
its power cap. Two answers are told apart by rounds in which both ran.

Neither is the safer one, so that neither wins before `RaceOptions.fewest` heats. Two heats tell so little of their own
noise that intervals were 5 % wide (`experiments/results/race-intervals.md`).
"""

import logging
from dataclasses import dataclass, replace

from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.measure.measurement import Timing
from tilescout.search.measure.race import Race, RaceOptions, race_fastest
from tilescout.search.studies.records import StudyResult
from tilescout.spaces.errors import one_line

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finalist:
    """The result of the search of a space, and what measures its configurations."""

    evaluator: Evaluator
    result: StudyResult

    @property
    def timing(self) -> Timing | None:
        """The time of its answer in its race; None without one."""
        best = self.result.best if self.result.race is not None else None
        return best.measurement.timing if best is not None else None


def duel(home: Finalist, guest: Finalist, options: RaceOptions, seed: int) -> tuple[StudyResult, StudyResult]:
    """The results of two searches of one problem, with the times of their answers by rounds in which both ran.

    They stay as they are where one has no race, the answers are further apart than what a race would let take part, or
    they can't be measured any more.

    Parameters
    ----------
    home, guest
        The two searches; both answers race where the first one's are measured.
    options, seed
        See `tilescout.search.measure.race.race_fastest`.
    """
    unchanged = home.result, guest.result
    timing, other = home.timing, guest.timing
    if timing is None or other is None or home.result.race is None or guest.result.race is None:
        return unchanged
    if max(timing.ratio, other.ratio) > (1 + options.within) * min(timing.ratio, other.ratio):
        return unchanged
    answer, info = home.result.race.answer, home.result.info
    try:
        number = home.evaluator.admit(guest.evaluator.entrant(guest.result.race.answer))
        of_two = replace(options, candidates=2)
        timings = {answer: timing, number: other}
        met = race_fastest(timings, answer, home.evaluator.race, of_two, seed, early=False)
    except CannotMeasureError as error:
        _LOG.warning("%s: the answers of both spaces did not race: %s", info.problem, one_line(error))
        return unchanged
    over = met.ratios[number].value / met.ratios[answer].value
    space, by = (info.space, over - 1) if over >= 1 else (guest.result.info.space, 1 / over - 1)
    _LOG.info("%s: of both answers, that of %s is faster by %.1f %%", info.problem, space, 100 * by)
    return (
        replace(home.result, race=_after(home.result.race, met, answer, options)),
        replace(guest.result, race=_after(guest.result.race, met, number, options)),
    )


def _after(race: Race, met: Race, place: int, options: RaceOptions) -> Race:
    """A race whose answer ran again in another one, in a place there: its time is that of the latter.

    It was chosen by its time in the former, which is therefore rather too short.
    """
    ratio = met.ratios[place]
    return replace(
        race,
        ratios={**race.ratios, race.answer: ratio},
        ran={**race.ran, race.answer: race.ran[race.answer] + met.ran[place]},
        rounds=race.rounds + met.rounds,
        gpu_seconds=race.gpu_seconds + met.gpu_seconds / 2,
        elsewhere=ratio.widened(options.host),
    )

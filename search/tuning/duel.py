"""The last race of a search in two spaces: between their answers, which each space found for itself.

How much faster than the library a kernel is differs by a per cent or two from one race to the next where a GPU is at
its power cap. Two answers are told apart by rounds in which both ran.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.measure.race import Race, RaceOptions, race_fastest
from tilescout.search.studies.records import StudyResult
from tilescout.spaces.errors import one_line

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finalist:
    """The result of the search of a space, and what measures its configurations."""

    evaluator: Evaluator
    result: StudyResult


def duel(finalists: Sequence[Finalist], options: RaceOptions, seed: int) -> list[StudyResult]:
    """The results of two searches of one problem, with the times of their answers by rounds in which both ran.

    They stay as they are where one has no race, the answers are further apart than what a race would let take part, or
    they can't be measured any more.

    Parameters
    ----------
    finalists
        The two searches; both answers race where the first one's are measured.
    options, seed
        See `tilescout.search.measure.race.race_fastest`.
    """
    results = [each.result for each in finalists]
    races, bests = [each.race for each in results], [each.best for each in results]
    timings = [best.measurement.timing for best in bests if best is not None and best.measurement.timing is not None]
    if None in races or len(timings) < len(results):
        return results
    ratios = [timing.ratio for timing in timings]
    if max(ratios) > (1 + options.within) * min(ratios):
        return results
    home, guest = finalists
    at_home, abroad = (race.answer for race in races if race is not None)
    try:
        number = home.evaluator.admit(guest.evaluator.entrant(abroad))
        entrants = dict(zip((at_home, number), timings, strict=True))
        met = race_fastest(entrants, at_home, home.evaluator.race, options, seed)
    except CannotMeasureError as error:
        _LOG.warning("%s: the answers of both spaces did not race: %s", home.result.info.problem, one_line(error))
        return results
    own, other = met.ratios[at_home].value, met.ratios[number].value
    faster, by = (home, other / own - 1) if own <= other else (guest, own / other - 1)
    info = faster.result.info
    _LOG.info("%s: of both answers that of %s is the faster, by %.1f %%", info.problem, info.space, 100 * by)
    return [
        replace(result, race=_after(race, met, place, options))
        for result, race, place in zip(results, races, (at_home, number), strict=True)
        if race is not None
    ]


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

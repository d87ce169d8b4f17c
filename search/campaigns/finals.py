"""The races at the end of a campaign: the fastest rows of a problem and its default are measured anew, together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.measure.library_best import BESIDE, LibraryBest, as_raced
from tilescout.search.measure.measurement import Measurement, Timing
from tilescout.search.measure.race import Measure, Race, RaceOptions, race_fastest


@dataclass(frozen=True)
class Final:
    """The outcome of the races of a problem.

    Attributes
    ----------
    ratios
        For every configuration that raced, by its number in the plan: its ratio to the library, the two ends of the
        95 % interval, and the number of paired measurements.
    winner
        The number of the winner of the last race; None without a race.
    probability
        The share of draws of the means in which it has the lowest; see `Race`.
    error
        Why there was no race, or no further one; empty if there was.
    library_best
        The fastest of the library's own candidates, which ran in the races too; None if it is not known.
    """

    ratios: Mapping[int, tuple[float, float, float, int]] = field(default_factory=dict)
    winner: int | None = None
    probability: float = 0.0
    error: str = ""
    library_best: LibraryBest | None = None

    def timing(self, number: int, measured: Measurement) -> Timing:
        """The timing of a configuration that was timed: that of the race, if it took part in one."""
        assert measured.timing is not None
        if number not in self.ratios:
            return measured.timing
        ratio, low, high, pairs = self.ratios[number]
        return replace(measured.timing, ratio=ratio, ratio_low=low, ratio_high=high, pairs=pairs)

    def after(self, race: Race) -> "Final":
        """The outcome after one more race; its estimates replace earlier ones."""
        found = {
            number: (each.value, each.low, each.high, race.pairs_of(number)) for number, each in race.ratios.items()
        }
        best = None if self.library_best is None else as_raced(self.library_best, race)
        return Final({**self.ratios, **found}, race.winner, race.probability, library_best=best)


def race_final(
    timed: Mapping[int, Measurement],
    default: int | None,
    measure: Measure,
    options: RaceOptions,
    *,
    attempts: int,
    seed: int,
    library_best: LibraryBest | None = None,
) -> Final:
    """Race the fastest rows of a problem until the fastest is one that was raced.

    A row that was timed once may have been lucky. A race takes the luck away from those that take part, and another row
    may then be the fastest of all: that is why there may be several races.

    Parameters
    ----------
    timed
        The measurements that have a timing, by the numbers of their configurations; at least one.
    default
        The number of the problem's default; None if it is not legal. If it was not timed, the fastest takes its place.
    measure
        Runs the rounds of a race.
    options
        How a race is run.
    attempts
        Races at most.
    seed
        Of the first race; the next one's is larger by 1.
    library_best
        The fastest of the library's own candidates, which `measure` knows as `BESIDE`.
    """
    final = Final(library_best=library_best)
    beside: tuple[int, ...] = () if library_best is None else (BESIDE,)
    for attempt in range(attempts):
        timings = {number: final.timing(number, outcome) for number, outcome in timed.items()}
        fastest = min(timings, key=lambda number: timings[number].ratio)
        if fastest in final.ratios:
            break
        against = default if default is not None and default in timings else fastest
        try:
            race = race_fastest(timings, against, measure, options, seed + attempt, beside)
        except CannotMeasureError as error:
            if not beside:
                return replace(final, error=str(error))
            beside = ()  # the library's kernel may be at fault: without it then
            continue
        final = final.after(race)
    return final

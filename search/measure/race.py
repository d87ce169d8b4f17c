"""The race between the best configurations of a search: which is the fastest, and with what confidence."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.heats import HeatMean, HeatNoise, correlation, mean_of_heats, ran
from tilescout.search.measure.measurement import Timing
from tilescout.spaces.checking import check_number
from tilescout.spaces.errors import SamplerError

Logs = NDArray[np.float64]
"""Logarithms of ratios, of shape [heats, rounds, runners]; NaN where one did not run."""

# (indices, rounds, pairs, seed) to ratios to the library, of shape [rounds, indices]
Measure = Callable[[Sequence[int], int, int, int], NDArray[np.float64]]

_DRAWS = 2000  # of the means of all racers
_FEWEST = 3  # rounds of a heat that tell how they are correlated


@dataclass(frozen=True)
class RaceOptions:
    """How long a race goes on.

    Raises
    ------
    SamplerError
        If a number of them is none that a race can go on by.

    Attributes
    ----------
    candidates
        Configurations that take part, besides the default.
    within
        They were measured within this of the best, relative.
    look
        Rounds of a heat: so many are queued at once, and then the race looks at the results. Several short heats tell
        more than one long one, for heats differ by more than their rounds explain.
    looks, fewest
        Heats at most, and heats at least before another than the default wins. A kernel may be in another state in each
        heat, some per cent apart. By heats of one that is slower than the default on average it was proven faster in
        35 % of races that may end with their first heat, in 14 % with two at least, and in 3 % with four
        (`experiments/results/race-intervals.md`).
    heat_seconds, seconds
        Where a heat would take longer than this it has fewer rounds, and three at least. A race that took as long may
        end before the `fewest` heats, and no heat begins after so many seconds of all. Short kernels never come near
        either. Six rounds of eight kernels of 19 ms take two seconds, and the noise of heats and hosts (`heat`,
        `repeat`) is larger than that of so few rounds. Of long launches, too, many short heats tell more than few long
        ones.
    pairs
        Pairs of a kernel and the library in a round.
    confidence
        Of the whole race: the probability that no candidate is dropped which is as fast as the leader, where heats
        differ by `heat` and rounds are independent. Where heats differ by more, one is dropped more often.
    indifference
        Candidates this close to the leader, relative, with that confidence, count as equal to it.
    loss
        The race ends, after the `fewest` heats, once the leader is expected to be this little behind the fastest,
        relative: the mean, over draws of the racers' means, of what it is behind. That is the expected opportunity cost
        of S. E. Chick and K. Inoue (New two-stage and sequential procedures for selecting the best simulated system,
        Operations Research 49, 2001). Of recorded heats, races then take a fifth fewer pairs, and their answers are
        as far behind the best, 0.08 % on average (`experiments/results/race-intervals.md`).
    heat, repeat
        Standard deviations of a ratio, relative: between heats of one process beyond what their rounds explain, and
        between processes and hosts; see `tilescout.search.measure.heats.HeatNoise`. Three H200 hosts told a time over
        the default's that differed by 0.21 % (root mean square over six problems, the first to the others).
    host
        Half of the 95 % interval of what a time over the library's changes by from host to host, on the scale of
        logarithms: the library's own kernels differ more than ours (`experiments/results/race-intervals.md`).
    """

    candidates: int = 6
    within: float = 0.03
    look: int = 6
    looks: int = 10
    fewest: int = 4
    heat_seconds: float = 0.5
    seconds: float = 2.0
    pairs: int = 1
    confidence: float = 0.95
    indifference: float = 0.002
    loss: float = 0.0005
    heat: float = 0.0013
    repeat: float = 0.0021
    host: float = 0.0413

    def __post_init__(self) -> None:
        for each in fields(self):
            whole = each.type is int
            check_number(f"a race's {each.name}", getattr(self, each.name), whole, least=int(whole))
        if self.heat**2 == 0:  # then equal times would have no error, and what is behind is divided by that
            raise SamplerError(f"a race's heat can't be {self.heat!r}: allowed are numbers above 0")
        if self.confidence > 1:
            raise SamplerError(f"a race's confidence can't be {self.confidence!r}: allowed are numbers from 0 to 1")

    def over(self, round_us: float) -> Self:
        """The same for a race whose rounds take so long, in µs."""
        rounds = max(_FEWEST, int(1e6 * self.heat_seconds / (self.pairs * round_us)))
        return replace(self, look=min(self.look, rounds))

    @property
    def noise(self) -> HeatNoise:
        """The variation that is known before the race."""
        return HeatNoise(self.heat, self.repeat)


@dataclass(frozen=True)
class Estimate:
    """A ratio with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, timing: Timing) -> Self:
        """The time over the library's of what was timed alone, without a race."""
        return cls(timing.ratio, timing.ratio_low, timing.ratio_high)

    def inverse(self) -> "Estimate":
        """The same as a speed-up."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low)

    def widened(self, half: float) -> "Estimate":
        """The same with another uncertainty added, half of whose 95 % interval this is, on the scale of logarithms."""
        low, high = (math.hypot(math.log(end / self.value), half) for end in (self.low, self.high))
        return Estimate(self.value, self.value * math.exp(-low), self.value * math.exp(high))


@dataclass(frozen=True)
class Race:
    """The outcome of a race.

    Attributes
    ----------
    winner
        Index of the configuration with the lowest mean ratio.
    answer
        The winner, if it is proven at least as fast as the default; else the default.
    ratios
        Time over the library's of every candidate, by index.
    over_default
        The winner's time over the default's, measured in the same rounds.
    probability
        Share of draws of the candidates' means, each within its own error, in which the winner has the lowest.
    rounds
        Rounds that were run.
    ran
        In how many of them each candidate ran, by index.
    gpu_seconds
        Seconds of GPU time that they took.
    beside
        Time over the library's of what was to run in every round beside the candidates, by index.
    over_beside
        The answer's time over each of these, measured in the same rounds.
    elsewhere
        The answer's time over the library's on other hosts of the same GPU, a wider interval than that of `ratios`;
        None in studies of older versions.
    pairs
        Pairs of a kernel and the library in a round.
    """

    winner: int
    answer: int
    ratios: dict[int, Estimate]
    over_default: Estimate
    probability: float
    rounds: int
    ran: Mapping[int, int]
    gpu_seconds: float = 0.0
    beside: Mapping[int, Estimate] = field(default_factory=dict)
    over_beside: Mapping[int, Estimate] = field(default_factory=dict)
    elsewhere: Estimate | None = None
    pairs: int = 1

    def pairs_of(self, index: int) -> int:
        """How many pairs of a candidate and the library were measured."""
        return self.ran[index] * self.pairs

    def seconds_of(self, index: int) -> float:
        """The share of a configuration in the race's GPU time; all that run in a round count the same."""
        runs = sum(self.ran.values()) + self.rounds * len(self.beside.keys() - self.ran.keys())
        return self.gpu_seconds * self.ran[index] / runs if index in self.ran else 0.0

    def verdict(self, peer: str = "the library") -> str:
        """The outcome in a sentence, against the default and against `peer`, which the ratios are to."""
        speed, library = self.over_default.inverse(), self.ratios[self.answer].inverse()
        if self.answer != self.winner:
            against = f"not proven faster than the default ({_range(speed)} of its speed), so the default is the answer"
        elif speed.value == 1:
            against = "the default is the fastest"
        else:
            against = f"proven at least as fast as the default ({_range(speed)} of its speed)"
        state = "faster than" if library.low > 1 else "slower than" if library.high < 1 else "level with"
        sure = f"{self.probability:.0%} sure to be the fastest of {len(self.ratios)}"
        here = f"{_range(library)} of its speed"
        if self.elsewhere is not None:
            other = self.elsewhere.inverse()
            here += f"; on other hosts {other.low:.3f} to {other.high:.3f}"
        return f"{against}; {state} {peer} ({here}); {sure}"


def _range(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} [{estimate.low:.4f}, {estimate.high:.4f}]"


def race_fastest(
    timings: Mapping[int, Timing],
    default: int,
    measure: Measure,
    options: RaceOptions,
    seed: int,
    beside: Sequence[int] = (),
    fastest: float = math.inf,
    early: bool = True,
) -> Race:
    """Race the fastest of what was timed, and the default.

    Those take part whose interval reaches within `options.within` of the best, at most `options.candidates`, the
    fastest first; the best of all takes part in any case.

    Parameters
    ----------
    timings
        What was timed, by the indices of the configurations.
    default, measure, options, seed, beside, early
        See `run_race`.
    fastest
        The lowest ratio to the library that was timed elsewhere, in another space: what is behind that is not the
        answer.

    Returns
    -------
    Race
        The outcome. Its GPU time counts measuring alone, and not the time in which the host computes the statistics.
    """
    ordered = sorted(timings, key=lambda index: timings[index].ratio)
    best = timings[ordered[0]]
    bar = min(best.ratio, fastest) * (1 + options.within)
    close = ordered[:1] + [index for index in ordered[1:] if timings[index].ratio_low <= bar]
    gpu_seconds = 0.0

    def measure_timed(racing: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        nonlocal gpu_seconds
        started = time.monotonic()
        ratios = measure(racing, rounds, pairs, seed)
        gpu_seconds += time.monotonic() - started
        return ratios

    racing = close[: options.candidates]
    pair_us = [(1 + timings[index].ratio) * best.library_us for index in {*racing, default}]
    asked = options.over(sum(pair_us) + 2 * best.library_us * len({*beside} - {*racing, default}))
    race = run_race(racing, default, measure_timed, asked, seed, beside, early)
    return replace(race, gpu_seconds=gpu_seconds)


def run_race(
    candidates: Sequence[int],
    default: int,
    measure: Measure,
    options: RaceOptions,
    seed: int,
    beside: Sequence[int] = (),
    early: bool = True,
) -> Race:
    """Measure candidates in interleaved rounds until the leader is separated, or the rounds end, or their seconds.

    Another than the default is not taken for separated before `RaceOptions.fewest` heats, where these are short. After
    so many the race ends, too, if the leader is proven, and little is expected to be lost by taking it.

    After every look each candidate is compared with the leader by a one-sided t-test on the logarithms of their ratios
    in the same rounds, with the standard error over heats, and dropped if it is slower. The level is that of the race,
    divided by the looks and by the ordered pairs of racers (Bonferroni's correction; O. J. Dunn: Multiple comparisons
    among means, Journal of the American Statistical Association 56, 1961). The scheme is a race in the sense of
    Maron and Moore (Hoeffding races, NIPS 1993). The default is never dropped.

    Parameters
    ----------
    candidates
        Indices of configurations, without repeats.
    default
        The default's index; it takes part also if it is not among them.
    measure
        Runs rounds: (indices, rounds, pairs, seed) to ratios to the library, of shape [rounds, indices].
    options
        See `RaceOptions`.
    seed
        Of the order in the rounds and of the draws that tell the probability.
    beside
        Indices of what else runs in every round, and neither wins nor is dropped. A candidate among them is measured
        once, as a candidate.
    early
        Whether the default may win before `RaceOptions.fewest` heats, as it is the safer answer.
    """
    runners = list(dict.fromkeys([*candidates, default]))
    measured = list(dict.fromkeys([*runners, *beside]))
    logs = np.empty((0, options.look, len(measured)))
    racing, at_default = list(range(len(runners))), runners.index(default)
    begun = time.monotonic()
    for look in range(options.looks):
        if look and time.monotonic() - begun > options.seconds:
            break
        heat = np.full((1, options.look, len(measured)), np.nan)
        here = [*racing, *range(len(runners), len(measured))]
        heat[0][:, here] = np.log(measure([measured[at] for at in here], options.look, options.pairs, seed + look))
        logs = np.concatenate([logs, heat])
        leader = min(racing, key=lambda at: float(logs[:, :, at].mean()))
        behind = {at: _behind(logs, at, leader, options) for at in racing if at != leader}
        dropped = _slower(behind, len(logs), options)
        racing = [at for at in racing if at not in dropped or runners[at] == default]
        apart = all(at in dropped or _is_equal(behind[at], options) for at in racing if at != leader)
        enough = len(logs) >= options.fewest or time.monotonic() - begun > options.heat_seconds
        over_default = _estimate(_behind(logs, leader, at_default, options))
        proven = leader == at_default or over_default.high <= 1
        if apart and (enough or (early and leader == at_default)):
            break
        if enough and proven and _loss(_drawn(logs[:, :, racing], options, seed), racing.index(leader)) <= options.loss:
            break
    correlated = correlation(logs)
    answer = leader if proven else at_default
    besides = [(measured.index(each), each) for each in beside]

    def ratio(at: int) -> Estimate:
        return _estimate(mean_of_heats(ran(logs, [at])[:, :, 0], correlated, options.noise))

    return Race(
        winner=runners[leader],
        answer=runners[answer],
        ratios={runner: ratio(at) for at, runner in enumerate(runners)},
        over_default=over_default,
        probability=_probability(_drawn(logs[:, :, racing], options, seed), racing.index(leader)),
        rounds=logs.shape[0] * logs.shape[1],
        ran={runner: int(np.isfinite(logs[:, :, at]).sum()) for at, runner in enumerate(runners)},
        beside={each: ratio(at) for at, each in besides},
        over_beside={each: _estimate(_behind(logs, answer, at, options)) for at, each in besides},
        elsewhere=ratio(answer).widened(options.host),
        pairs=options.pairs,
    )


def import_ahead() -> None:
    """Import what a race is judged by: 0.4 s that a search, which waits for compilers, does not notice."""
    import scipy.special  # noqa: F401


def _behind(logs: Logs, at: int, leader: int, options: RaceOptions) -> HeatMean:
    """How far one is behind another, over the heats in which both ran; 0 of one behind itself."""
    if at == leader:
        return HeatMean(0.0, 0.0, 1, 0.0)
    both = ran(logs, [at, leader])
    difference = both[:, :, 0] - both[:, :, 1]
    return mean_of_heats(difference, correlation(difference[:, :, None]), options.noise)


def _slower(behind: Mapping[int, HeatMean], heats: int, options: RaceOptions) -> set[int]:
    """Those that are slower than the leader beyond doubt."""
    from scipy.special import stdtr

    # The leader is not given but chosen by the same rounds, so every ordered pair of racers might have been tested.
    level = (1 - options.confidence) / options.looks / max(1, len(behind) * (len(behind) + 1))
    most = heats * options.look - 1
    return {
        at for at, found in behind.items() if stdtr(min(found.known_freedom, most), -found.mean / found.error) < level
    }


def _is_equal(behind: HeatMean, options: RaceOptions) -> bool:
    return math.exp(behind.mean + behind.here) <= 1 + options.indifference


def _estimate(found: HeatMean) -> Estimate:
    return Estimate(math.exp(found.mean), math.exp(found.mean - found.half), math.exp(found.mean + found.half))


def _probability(means: NDArray[np.float64], leader: int) -> float:
    """The share of draws of the racers' means in which the leader has the lowest."""
    return float((means.argmin(axis=0) == leader).mean())


def _loss(means: NDArray[np.float64], leader: int) -> float:
    """How far the leader is expected to be behind the fastest, over draws of the racers' means."""
    return float((means[leader] - means.min(axis=0)).mean())


def _drawn(logs: Logs, options: RaceOptions, seed: int) -> NDArray[np.float64]:
    """Draws of the racers' means, each within its own error, of shape [racers, draws]."""
    own = logs - logs.mean(axis=2, keepdims=True)  # without what a round has in common
    correlated = correlation(own)
    found = [mean_of_heats(own[:, :, at], correlated, options.noise) for at in range(own.shape[2])]
    generator = np.random.default_rng(seed)
    return np.array([each.mean + each.error * generator.standard_t(each.freedom, _DRAWS) for each in found])

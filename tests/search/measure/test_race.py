"""The race of the finalists, on simulated rounds with noise and drift of known size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilescout.search.measure.heats import HeatMean
from tilescout.search.measure.measurement import Timing
from tilescout.search.measure.race import Estimate, Race, RaceOptions, _slower, race_fastest, run_race
from tilescout.spaces.errors import SamplerError

OPTIONS = RaceOptions()
DEFAULT = 7
SEEDS = range(200)
FEWER = range(100)


@dataclass
class Rounds:
    """Measures configurations with these true ratios.

    There is `noise` in every ratio, `drift` common to those of a round, a deviation `heat` of every configuration for
    as long as a heat lasts, and `slow` noise whose value in a round is `correlated` with that in the last one.
    """

    ratios: dict[int, float]
    seed: int = 0
    noise: float = 0.005
    drift: float = 0.05
    heat: float = 0.0
    slow: float = 0.0
    correlated: float = 0.0
    asked: list[tuple[tuple[int, ...], int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.seed)

    def measure(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        self.asked.append((tuple(indices), rounds, pairs, seed))
        truth = np.array([self.ratios[index] for index in indices])
        common = 1 + self.drift * np.sin(self.generator.uniform(0, 7) + np.arange(rounds))[:, None]
        logs = self.noise * self.generator.standard_normal((rounds, len(indices)))
        logs += self.heat * self.generator.standard_normal(len(indices)) + self.slow * self.wave(rounds, len(indices))
        return np.asarray(truth * common * np.exp(logs))

    def wave(self, rounds: int, kernels: int) -> NDArray[np.float64]:
        """A first-order autoregression of standard deviation 1, of shape [rounds, kernels]."""
        found = self.generator.standard_normal((rounds, kernels))
        for number in range(1, rounds):
            fresh = np.sqrt(1 - self.correlated**2) * found[number]
            found[number] = self.correlated * found[number - 1] + fresh
        return found


def race(ratios: dict[int, float], seed: int = 0, **conditions: Any) -> Race:
    rounds = Rounds(ratios, seed, **conditions)
    return run_race(list(ratios), DEFAULT, rounds.measure, OPTIONS, seed)


WON_BY_ONE_PERCENT = {
    "the default is far behind": ({1: 1.0, 2: 1.01, 3: 1.012, 4: 1.02, 5: 1.02, DEFAULT: 1.3}, 1),
    "the default is among equals": ({3: 1.01, 2: 1.01, 1: 1.0, 4: 1.01, DEFAULT: 1.01}, 1),
    "the default is the best": ({1: 1.01, 2: 1.01, 3: 1.015, 4: 1.02, DEFAULT: 1.0}, DEFAULT),
    "of two": ({1: 1.0, DEFAULT: 1.01}, 1),
}


@pytest.mark.parametrize(("ratios", "best"), WON_BY_ONE_PERCENT.values(), ids=list(WON_BY_ONE_PERCENT))
def test_who_is_one_percent_faster_wins_and_is_the_answer_at_least_95_times_in_100(
    ratios: dict[int, float], best: int
) -> None:
    races = [race(ratios, seed) for seed in SEEDS]

    assert np.mean([one.winner == best for one in races]) >= 0.95
    assert np.mean([one.answer == best for one in races]) >= 0.95


def test_the_intervals_hold_the_truth() -> None:
    ratios = {1: 1.0, 2: 1.002, DEFAULT: 1.01}
    races = [race(ratios, seed, drift=0.0) for seed in FEWER]

    inside = [one.over_default.low <= 1 / 1.01 <= one.over_default.high for one in races if one.winner == 1]
    assert np.mean(inside) >= 0.9  # 0.95, but for looking several times and only at winners
    for index, truth in ratios.items():
        assert np.mean([one.ratios[index].low <= truth <= one.ratios[index].high for one in races]) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "conditions",
    [
        {"noise": 0.003, "heat": 0.001},  # as at 1024x1024x1024 on an H200
        {"noise": 0.002, "slow": 0.0036, "correlated": 0.68},  # as at 4096x4096x4096, at the power cap
        {"noise": 0.002, "slow": 0.0075, "correlated": 0.83, "heat": 0.0005},  # as at 2048x2048x2048
    ],
)
def test_the_intervals_hold_the_truth_of_correlated_rounds_and_differing_heats(
    conditions: dict[str, Any],
) -> None:
    ratios = {1: 1.0, 2: 1.002, 3: 1.004, DEFAULT: 1.01}
    options = replace(OPTIONS, repeat=0.0)  # of one process
    held = []
    for seed in SEEDS:
        rounds = Rounds(ratios, seed, drift=0.0, **conditions)
        found = run_race(list(ratios), DEFAULT, rounds.measure, options, seed)
        held += [found.ratios[index].low <= truth <= found.ratios[index].high for index, truth in ratios.items()]

    assert np.mean(held) >= 0.92  # 0.95, but for looking several times


@pytest.mark.slow
def test_what_is_not_faster_than_the_default_seldom_replaces_it() -> None:
    equal = dict.fromkeys([1, 2, 3, 4, DEFAULT], 1.0)
    slower = {1: 1.001, 2: 1.002, DEFAULT: 1.0}

    assert np.mean([race(equal, seed).answer == DEFAULT for seed in FEWER]) >= 0.8
    assert np.mean([race(slower, seed).answer == DEFAULT for seed in FEWER]) >= 0.9


def test_a_winner_that_is_not_proven_is_named_and_the_default_is_the_answer() -> None:
    ratios = {1: 0.9999, DEFAULT: 1.0}
    races = [race(ratios, seed, noise=0.02) for seed in range(50)]
    unproven = [one for one in races if one.winner == 1 and one.over_default.high > 1]

    assert len(unproven) > 10
    for one in unproven:
        assert one.answer == DEFAULT
        assert "not proven faster than the default" in one.verdict()
        assert "so the default is the answer" in one.verdict()


@pytest.mark.parametrize(("library_us", "rounds"), [(300.0, OPTIONS.look), (9_500.0, 4), (60_000.0, 3)])
def test_a_race_of_long_kernels_has_fewer_rounds_in_a_heat_but_three(library_us: float, rounds: int) -> None:
    ratios = {1: 1.0, 2: 1.0, 3: 1.01, 4: 1.01, DEFAULT: 1.01, -1: 1.0}
    timings = {
        index: Timing(ratio, ratio, ratio, ratio, ratio, library_us, 3) for index, ratio in ratios.items() if index > 0
    }
    asked = Rounds(ratios)

    race_fastest(timings, DEFAULT, asked.measure, OPTIONS, seed=0, beside=[-1])

    assert {each[1] for each in asked.asked} == {rounds}


def test_no_heat_begins_once_the_seconds_are_over() -> None:
    equal = dict.fromkeys([1, 2, DEFAULT], 1.0)

    found = run_race(list(equal), DEFAULT, Rounds(equal).measure, replace(OPTIONS, seconds=0.0), seed=0)

    assert found.rounds == OPTIONS.look


def test_a_clear_win_ends_a_race_of_long_launches_before_the_fewest_heats() -> None:
    clear = {1: 1.0, DEFAULT: 1.5}

    found = run_race(list(clear), DEFAULT, Rounds(clear).measure, replace(OPTIONS, heat_seconds=0.0), seed=0)

    assert (found.answer, found.rounds) == (1, OPTIONS.look)


def test_candidates_that_are_as_good_as_equal_end_the_race_early() -> None:
    equal = dict.fromkeys([1, 2, 3, DEFAULT], 1.0)

    # One heat can't tell: heats differ by more than what counts as equal.
    assert {race(equal, seed, noise=0.0003).rounds for seed in range(50)} <= {3 * OPTIONS.look, 4 * OPTIONS.look}
    assert np.mean([race(equal, seed).rounds for seed in range(50)]) > 6 * OPTIONS.look


@pytest.mark.slow
def test_a_race_ends_once_little_can_be_lost_by_taking_its_leader_if_that_is_proven() -> None:
    ratios = {1: 1.0, 2: 1.0004, 3: 1.0008, 4: 1.001, DEFAULT: 1.05}
    races = [race(ratios, seed, noise=0.003) for seed in FEWER]
    longer = [
        run_race(list(ratios), DEFAULT, Rounds(ratios, seed, noise=0.003).measure, replace(OPTIONS, loss=0.0), seed)
        for seed in FEWER
    ]

    def behind(found: Sequence[Race]) -> float:
        return float(np.mean([ratios[one.answer] - 1 for one in found]))

    assert np.mean([one.rounds for one in races]) < 0.7 * np.mean([one.rounds for one in longer])
    assert all(one.rounds >= OPTIONS.fewest * OPTIONS.look for one in races)
    assert behind(longer) <= behind(races) < OPTIONS.loss
    undecided = {1: 0.9995, DEFAULT: 1.0}  # little is lost by either
    assert np.mean([race(undecided, seed).rounds for seed in range(20)]) > 1.5 * np.mean([one.rounds for one in races])


def test_what_is_far_behind_the_fastest_of_another_space_does_not_race_but_its_best_does() -> None:
    ratios = {1: 1.0, 2: 1.01, 3: 1.02, DEFAULT: 1.2}
    timings = {index: Timing(ratio, ratio, ratio, ratio, ratio, 100.0, 9) for index, ratio in ratios.items()}

    def racing(fastest: float) -> set[int]:
        found = race_fastest(timings, DEFAULT, Rounds(ratios).measure, OPTIONS, seed=0, fastest=fastest)
        return set(found.ratios)

    assert racing(math.inf) == racing(1.1) == {1, 2, 3, DEFAULT}
    assert racing(0.985) == {1, 2, DEFAULT}
    assert racing(0.5) == {1, DEFAULT}


def test_a_clear_win_ends_the_race_after_the_fewest_heats_and_no_race_outlasts_its_budget() -> None:
    clear = {1: 1.0, 2: 1.2, 3: 1.3, DEFAULT: 1.5}

    assert all(race(clear, seed).rounds == OPTIONS.fewest * OPTIONS.look for seed in range(50))
    assert all(race({**clear, DEFAULT: 0.7}, seed).rounds == OPTIONS.look for seed in range(50))
    assert max(race(dict.fromkeys([1, 2, DEFAULT], 1.0), seed, noise=0.1).rounds for seed in range(50)) == (
        OPTIONS.look * OPTIONS.looks
    )


@pytest.mark.parametrize(("early", "heats"), [(True, 1), (False, OPTIONS.fewest)])
def test_the_default_wins_before_the_fewest_heats_only_where_it_is_the_safer_answer(early: bool, heats: int) -> None:
    rounds = Rounds({DEFAULT: 1.0, 1: 1.02}, noise=0.001, drift=0.0)

    won = run_race([1], DEFAULT, rounds.measure, OPTIONS, 0, early=early)

    assert won.answer == won.winner == DEFAULT
    assert won.rounds == heats * OPTIONS.look


def test_a_kernel_that_is_in_another_state_in_each_heat_is_not_proven_by_its_lucky_ones() -> None:
    states = (1.38, 1.47, 1.51)  # the default takes 1.43, and this one 1.45 on average

    def proven(seed: int) -> bool:
        generator = np.random.default_rng(seed)

        def measure(racing: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
            levels = [generator.choice(states) if index == 1 else 1.43 for index in racing]
            return np.array(levels * generator.normal(1, 0.004, (rounds, len(racing))))

        return run_race([1], DEFAULT, measure, OPTIONS, seed).answer == 1

    assert np.mean([proven(seed) for seed in range(100)]) < 0.1


def test_who_is_separated_is_measured_no_more_but_the_default_always() -> None:
    rounds = Rounds({1: 1.0, 2: 1.0005, 3: 1.1, DEFAULT: 1.3})
    result = run_race([1, 2, 3], DEFAULT, rounds.measure, OPTIONS, seed=5)

    assert rounds.asked[0][0] == (1, 2, 3, DEFAULT)
    assert len(rounds.asked) > 1
    assert all(indices == (1, 2, DEFAULT) for indices, _, _, _ in rounds.asked[1:])
    assert all(asked[1:3] == (OPTIONS.look, OPTIONS.pairs) for asked in rounds.asked)
    assert result.rounds == OPTIONS.look * len(rounds.asked)
    assert result.ran == {1: result.rounds, 2: result.rounds, 3: OPTIONS.look, DEFAULT: result.rounds}
    assert set(result.ratios) == {1, 2, 3, DEFAULT}
    for index, truth in rounds.ratios.items():  # of one that was dropped: from the rounds in which it ran
        assert result.ratios[index].value == pytest.approx(truth, rel=0.06)
        assert result.ratios[index].low < result.ratios[index].value < result.ratios[index].high


def test_who_ran_in_more_rounds_cost_more_of_the_gpus_time() -> None:
    raced = replace(race({1: 1.0, 2: 1.0005, 3: 1.1, DEFAULT: 1.3}, seed=5), gpu_seconds=2.0)
    seconds = {index: raced.seconds_of(index) for index in raced.ratios}

    assert sum(seconds.values()) == pytest.approx(raced.gpu_seconds)
    assert seconds[3] < seconds[1] == seconds[2] == seconds[DEFAULT]
    assert raced.seconds_of(4) == 0


@pytest.mark.parametrize(("default", "noise", "heat"), [(1.3, 0.005, 0.0), (1.0, 0.001, OPTIONS.heat)])
def test_one_that_is_as_fast_as_the_others_is_dropped_in_no_more_races_than_promised(
    default: float, noise: float, heat: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = {**dict.fromkeys([1, 2, 3, 4, 5], 1.0), DEFAULT: default}
    racers, found = list(ratios), set[int]()

    def slower(behind: Mapping[int, HeatMean], heats: int, options: RaceOptions) -> set[int]:
        at_this_look = _slower(behind, heats, options)
        found.update(racers[at] for at in at_this_look)  # at the last look, too: who is dropped then ran in all rounds
        return at_this_look

    monkeypatch.setattr("tilescout.search.measure.race._slower", slower)
    dropped = 0
    for seed in FEWER:
        found.clear()
        run_race(racers, DEFAULT, Rounds(ratios, seed, noise, heat=heat).measure, OPTIONS, seed)
        dropped += bool(found - {DEFAULT})

    assert dropped / len(FEWER) <= 1 - OPTIONS.confidence


def test_every_look_has_an_order_of_its_own_and_the_same_seed_gives_the_same_race() -> None:
    ratios = {1: 1.0, 2: 1.0, DEFAULT: 1.0}
    rounds = Rounds(ratios)
    first = run_race([1, 2], DEFAULT, rounds.measure, OPTIONS, seed=3)
    again = run_race([1, 2], DEFAULT, Rounds(ratios).measure, OPTIONS, seed=3)

    seeds = [seed for _, _, _, seed in rounds.asked]
    assert len(set(seeds)) == len(seeds) > 1
    assert first == again


def test_the_default_alone_wins_without_a_contest() -> None:
    result = race({DEFAULT: 1.2})

    assert (result.winner, result.answer, result.rounds) == (DEFAULT, DEFAULT, OPTIONS.look)
    assert result.probability == 1
    assert result.over_default == Estimate(1, 1, 1)


def test_the_probability_is_high_for_a_clear_winner_and_shared_among_equals() -> None:
    clear = [race({1: 1.0, 2: 1.05, DEFAULT: 1.05}, seed).probability for seed in range(30)]
    equal = [race(dict.fromkeys([1, 2, 3, DEFAULT], 1.0), seed).probability for seed in range(30)]

    assert min(clear) > 0.99
    assert 0.25 < float(np.median(equal)) < 0.9
    assert all(0 <= probability <= 1 for probability in clear + equal)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({1: 0.8, DEFAULT: 0.9}, ["proven at least as fast as the default (1.12", "; faster than the library (1.2"]),
        ({1: 1.2, DEFAULT: 1.5}, ["proven at least as fast as the default (1.2", "; slower than the library (0.8"]),
        ({1: 1.1, DEFAULT: 1.0}, ["the default is the fastest; level with the library ("]),
    ],
)
def test_the_verdict_says_how_the_answer_compares(ratios: dict[int, float], expected: list[str]) -> None:
    verdict = race(ratios, drift=0.0, noise=0.002).verdict()

    for part in expected:
        assert part in verdict
    assert "100% sure to be the fastest of " in verdict


def test_the_inverse_of_an_estimate_is_its_speed() -> None:
    speed = Estimate(0.5, 0.4, 0.8).inverse()

    assert (speed.value, speed.low, speed.high) == (2, 1.25, 2.5)
    assert math.isclose(speed.inverse().low, 0.4)


def test_what_runs_beside_is_in_every_round_and_neither_wins_nor_is_dropped() -> None:
    rounds = Rounds({1: 1.0, 2: 1.1, DEFAULT: 1.05, -1: 0.5, -2: 2.0}, drift=0.0)

    found = run_race([1, 2], DEFAULT, rounds.measure, OPTIONS, 0, beside=(-1, -2))

    assert found.winner == found.answer == 1
    assert all(tuple(asked[0][-2:]) == (-1, -2) for asked in rounds.asked)
    assert set(found.ratios) == set(found.ran) == {1, 2, DEFAULT}
    for number, time in {-1: 0.5, -2: 2.0}.items():
        assert found.beside[number].value == pytest.approx(time, rel=0.01)
        assert found.over_beside[number].low < 1 / time < found.over_beside[number].high
    assert not race({1: 1.0, DEFAULT: 1.05}).beside


def test_a_candidate_that_runs_beside_the_others_too_is_measured_once_and_its_own_speed_is_1() -> None:
    rounds = Rounds({1: 1.0, 2: 1.1, DEFAULT: 1.05}, drift=0.0)

    found = run_race([1, 2], DEFAULT, rounds.measure, OPTIONS, 0, beside=(2, 1))

    assert rounds.asked[0][0] == (1, 2, DEFAULT)
    assert found.beside == {2: found.ratios[2], 1: found.ratios[1]}
    assert found.over_beside[1] == Estimate(1, 1, 1)
    assert found.over_beside[2].low < 1 / 1.1 < found.over_beside[2].high
    assert sum(map(replace(found, gpu_seconds=1.0).seconds_of, found.ran)) == pytest.approx(1)


def test_on_other_hosts_the_time_over_the_librarys_is_less_certain_and_the_verdict_says_it() -> None:
    found = race({1: 0.8, DEFAULT: 0.9}, noise=0.002)
    here, elsewhere = found.ratios[found.answer], found.elsewhere

    assert elsewhere is not None
    assert elsewhere.value == here.value
    assert np.log(elsewhere.high / elsewhere.value) >= RaceOptions().host
    assert np.log(elsewhere.high / elsewhere.value) == pytest.approx(
        np.hypot(np.log(here.high / here.value), RaceOptions().host)
    )
    assert f"on other hosts {1 / elsewhere.high:.3f} to {1 / elsewhere.low:.3f}" in found.verdict()


@pytest.mark.parametrize("name", ["candidates", "look", "looks", "fewest", "pairs"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_what_a_race_counts_is_a_whole_number_from_1_on(name: str, value: Any) -> None:
    with pytest.raises(SamplerError, match=f"a race's {name} can't be {value!r}: allowed are whole numbers from 1 on"):
        replace(OPTIONS, **{name: value})


@pytest.mark.parametrize("name", ["within", "heat_seconds", "seconds", "confidence", "loss", "heat", "repeat", "host"])
@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan, "1"])
def test_what_a_race_is_judged_by_is_a_finite_number(name: str, value: Any) -> None:
    with pytest.raises(SamplerError, match=f"{name} can't be {value!r}: allowed are finite numbers from 0 on"):
        replace(OPTIONS, **{name: value})


def test_heats_differ_always_and_no_confidence_is_above_1() -> None:
    with pytest.raises(SamplerError, match="a race's heat can't be 0: allowed are numbers above 0"):
        RaceOptions(heat=0)
    with pytest.raises(SamplerError, match="a race's confidence can't be 95: allowed are numbers from 0 to 1"):
        RaceOptions(confidence=95)


def test_the_least_that_is_allowed_is_a_race_also_where_all_times_are_equal() -> None:
    least = RaceOptions(candidates=1, look=1, looks=1, fewest=1, heat=1e-9, repeat=0, confidence=0, seconds=0, loss=0)
    found = run_race([1, 2], DEFAULT, lambda indices, rounds, pairs, seed: np.ones((rounds, len(indices))), least, 0)
    assert found.rounds == 1
    assert found.over_default.value == 1

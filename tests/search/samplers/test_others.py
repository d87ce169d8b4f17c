"""A search learns from the trials of other problems."""

from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest

from tilescout.costmodel.posterior import limited
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.search.samplers.others import MOST, OCTAVES, OtherTrials, nearest, place_of, points_of
from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import problem_sample, problem_space
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

TEMPLATE, H200 = find_template("gemm_sm90"), DEVICES["h200"]
SEARCHED = GemmProblem(4096, 14336, 4096)
ALIKE = (GemmProblem(8192, 8192, 8192), GemmProblem(4096, 4096, 4096), GemmProblem(2048, 2048, 2048))


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def table() -> Table:
    return largest_table(TEMPLATE)


@pytest.fixture(scope="module")
def known(table: Table) -> list[OtherTrials]:
    """Random trials of three problems, as they were recorded."""
    found = []
    for problem in ALIKE:
        space, sample = problem_space(table, TEMPLATE, problem), problem_sample(table, TEMPLATE, problem)
        indices = np.random.default_rng(0).choice(len(space), 60, replace=False)
        found.append(OtherTrials.of(space, indices, np.exp(sample.log_time[indices]), sample.censored[indices]))
    return [other for other in found if other is not None]


def proposals(table: Table, **settings: Any) -> np.ndarray:
    """Recorded times in µs of the first five configurations that a search tries, infinite where it was not timed."""
    recording = RecordedSpace.of(table, TEMPLATE, SEARCHED)
    space, times = recording.space, table.times_us[recording.rows]
    study = optuna.create_study(sampler=make_sampler("guided", space, 0, **settings))
    tried = []
    for _ in range(5):
        trial = study.ask({**distributions(space)})
        tried.append(int(space.find([trial.params[knob.name] for knob in space.knobs])))
        if np.isfinite(times[tried[-1]]):
            study.tell(trial, times[tried[-1]])
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return times[tried]


def test_a_study_tells_its_timed_and_pruned_trials() -> None:
    space = TEMPLATE.space(SEARCHED, H200).subset(np.arange(0, 4000, 40))
    study = optuna.create_study(sampler=make_sampler("random", space, 0))
    told = {}
    for number in range(12):
        trial = study.ask({**distributions(space)})
        index = int(space.find([trial.params[knob.name] for knob in space.knobs]))
        if number % 3 == 0:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        if number % 3 == 1:
            trial.report(900.0 + number, 0)
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, 100.0 + number)
        told[space[index]] = np.log((900.0 if number % 3 == 1 else 100.0) + number), number % 3 == 1
    found = OtherTrials.of_study(study, space)
    assert found is not None
    assert {
        found.space[at]: (time, pruned)
        for at, (time, pruned) in enumerate(zip(found.log_time, found.pruned, strict=True))
    } == told
    assert found.sample().problem == str(SEARCHED)
    assert len(found.points) == len(found.features) == len(found) == 8
    assert OtherTrials.of_study(optuna.create_study(), space) is None


def test_the_most_similar_problems_come_first_and_not_too_many(known: list[OtherTrials]) -> None:
    assert nearest(known, GemmProblem(2048, 2048, 4096))[0][0].space.problem == ALIKE[2]
    assert [len(kept) for _, kept in nearest(known * 10, SEARCHED)] == [60, 60, 60, 60, MOST - 240]
    assert [(other, kept.tolist()) for other, kept in nearest(known[:1], SEARCHED)] == [(known[0], [*range(60)])]
    assert len(nearest(known, SEARCHED)) == 3


def test_problems_of_like_sizes_lie_near_each_other() -> None:
    here, near, far = (
        points_of(TEMPLATE.space(GemmProblem(*sizes), H200).subset([0]))[0]
        for sizes in ((4096, 4096, 4096), (4096, 4096, 8192), (64, 4096, 4096))
    )
    assert len(here) == len(near) == len(far)
    assert np.abs(here - near)[-4:].sum() < np.abs(here - far)[-4:].sum()


def test_without_a_model_the_trials_of_others_make_one(table: Table, known: list[OtherTrials]) -> None:
    best = table.times_us[table.rows(SEARCHED)].min()
    cold = proposals(table, model=None)
    together = proposals(table, model=None, others=lambda: known)
    assert together.min() < 1.05 * best < cold.min()
    assert together[0] < cold.min()
    few = [OtherTrials(known[0].space.subset(range(9)), known[0].log_time[:9], known[0].pruned[:9])]
    assert (proposals(table, model=None, others=lambda: few) == cold).all()  # too few to learn from


KNOBS = [Knob(name, tuple(2**step for step in range(6)), "for tests") for name in ("a", "b", "c")]


def plain_space(rows: int) -> SearchSpace:
    """The space of a kernel of which nothing is described but its knobs."""
    return SearchSpace("unknown", KNOBS, [], NamedProblem(f"{rows}x4096:bf16"), H200)


def plain_times(space: SearchSpace) -> np.ndarray:
    """Times in µs that have one valley; its place depends on the number of rows, and so does their scale."""
    rows = int(str(space.problem).split("x")[0])
    valley = np.array([1.0, 4.0, np.log2(rows) - 8.0])
    return np.asarray(rows * (1 + 0.1 * np.square(space.codes - valley).sum(axis=1)))


def plain_others(*rows: int, each: int = 20) -> list[OtherTrials]:
    """So many random trials of each of these problems."""
    found = []
    for seed, space in enumerate(map(plain_space, rows)):
        indices = np.random.default_rng(seed).choice(len(space), each, replace=False)
        found.append(OtherTrials.of(space, indices, plain_times(space)[indices], np.zeros(each, dtype=np.bool_)))
    return [other for other in found if other is not None]


def plain_proposals(space: SearchSpace, count: int, failing: int = 0, **settings: Any) -> np.ndarray:
    """Times of the first configurations that a search without a model tries, over the best; the first may fail."""
    times = plain_times(space)
    study = optuna.create_study(sampler=make_sampler("guided-cold", space, 0, **settings))
    tried = []
    for _ in range(count):
        trial = study.ask({**distributions(space)})
        tried.append(int(space.find([trial.params[knob.name] for knob in KNOBS])))
        if len(tried) > failing:
            study.tell(trial, times[tried[-1]])
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return times[tried] / times.min()


def test_a_kernel_of_which_only_the_knobs_are_known_learns_from_its_other_problems() -> None:
    space, known = plain_space(2048), plain_others(512, 1024, 4096)
    cold = plain_proposals(space, 5)
    together = plain_proposals(space, 5, others=lambda: known)
    assert together.min() < 1.1 < cold.min()
    assert together[0] < cold.min()  # also where nothing of its own is known
    few = [OtherTrials(known[0].space.subset(range(4)), known[0].log_time[:4], known[0].pruned[:4])]
    assert (plain_proposals(space, 5, others=lambda: few) == cold).all()  # too few to learn from


def test_earlier_studies_tell_as_much_as_other_problems_of_a_suite() -> None:
    space, known = plain_space(2048), plain_others(512, 1024, 4096)
    together = plain_proposals(space, 5, others=lambda: known)

    assert (plain_proposals(space, 5, earlier=lambda: known) == together).all()
    assert (plain_proposals(space, 5, others=lambda: known[:1], earlier=lambda: known[1:]) == together).all()
    assert (plain_proposals(space, 5, earlier=lambda: known, options={"recall": 0}) == plain_proposals(space, 5)).all()


@pytest.mark.parametrize("most", [1, 2, 3, 60, 128, 215])
def test_of_many_trials_of_a_problem_the_fastest_count_and_others_evenly_spaced(most: int) -> None:
    ranks = np.random.default_rng(0).permutation(216)
    many = replace(plain_others(512, each=216)[0], log_time=ranks.astype(np.float64))
    kept = many.telling(most)

    assert len(kept) == most
    assert (np.diff(kept) > 0).all()
    found, fastest = np.sort(ranks[kept]), most - most // 2
    assert found[:fastest].tolist() == [*range(fastest)]
    steps = np.diff(found[fastest:])
    assert not len(steps) or (np.ptp(steps) <= 1 and found[-1] == 215)
    assert many.telling(216).tolist() == many.telling(300).tolist() == [*range(216)]


def test_no_more_of_a_large_earlier_study_counts_and_it_tells_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilescout.search.samplers.others.MOST", 64)
    space, (known,) = plain_space(2048), plain_others(512, each=216)
    beside = GuidedSampler(space, 0, model=None, earlier=lambda: [known]).about.prior.beside()

    assert beside is not None
    assert len(beside.errors) == len(beside.points) == 64
    values = limited(known.log_time)
    assert beside.errors.min() == (values - values.mean()).min()  # about the mean of all
    assert plain_proposals(space, 5, earlier=lambda: [known]).min() < 1.1


def test_earlier_studies_tell_where_to_look_while_all_its_own_trials_fail() -> None:
    space, known = plain_space(2048), plain_others(512, 1024, 4096)
    with np.errstate(all="raise"):
        tried = plain_proposals(space, 8, failing=8, earlier=lambda: known)
    assert tried.max() < np.quantile(plain_times(space), 0.2) / plain_times(space).min()


def test_earlier_studies_tell_nothing_of_a_kernel_that_describes_its_tiling(
    table: Table, known: list[OtherTrials]
) -> None:
    cold = proposals(table, model=None)
    assert (proposals(table, model=None, earlier=lambda: known) == cold).all()


def test_nothing_is_learned_from_problems_of_another_form() -> None:
    space, known = plain_space(2048), plain_others(512, 1024)
    other = NamedProblem("5")
    strange = [
        replace(one, space=SearchSpace.of_codes("unknown", KNOBS, one.space.codes, other, H200)) for one in known
    ]
    assert not nearest(strange, space.problem)
    assert (plain_proposals(space, 4, others=lambda: strange) == plain_proposals(space, 4)).all()


@pytest.mark.parametrize(
    ("problem", "place"),
    [
        (NamedProblem("512x4096:bf16"), (512, 4096)),
        (NamedProblem("0x64"), (1, 64)),
        (NamedProblem("a100-4096"), ()),
        (GemmProblem(64, 128, 256), (64, 128, 256, 1)),
    ],
)
def test_a_problem_lies_where_its_dimensions_are(problem: Problem, place: tuple[int, ...]) -> None:
    assert place_of(problem) * OCTAVES == pytest.approx(np.log2(np.array(place, dtype=np.float64)))


def test_what_a_model_got_wrong_on_others_corrects_it(known: list[OtherTrials]) -> None:
    whole = TEMPLATE.space(SEARCHED, H200)
    space = whole.subset(whole.sample(1000, np.random.default_rng(1)))
    alone = GuidedSampler(space, 0)
    model = alone.about.prior.model
    assert model is not None
    # On another problem, configurations of one schedule took twice as long as the model had expected.
    place = TEMPLATE.space(GemmProblem(4096, 8192, 4096), H200)
    other = place.subset(place.sample(150, np.random.default_rng(0)))
    slower = other.columns["schedule"] == "pingpong"
    assert 10 < slower.sum() < 140
    truth = OtherTrials(other, np.zeros(len(other)), np.zeros(len(other), dtype=np.bool_))
    truth = OtherTrials(other, model.predict(truth.features).mean + np.log(2) * slower, truth.pruned)
    told = GuidedSampler(space, 0, others=lambda: [truth])
    everything = np.arange(len(space))
    study = optuna.create_study(sampler=told)
    (before, _), (after, _) = (sampler.posterior(study).at(everything) for sampler in (alone, told))
    change = after - before
    here = space.columns["schedule"] == "pingpong"
    assert change[here].mean() - change[~here].mean() > 0.1


def test_no_more_of_a_problem_with_many_trials_corrects_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    space, whole = (TEMPLATE.space(problem, H200) for problem in (SEARCHED, ALIKE[0]))
    known = OtherTrials.of(whole, np.arange(0, 3000, 30), np.arange(1.0, 101.0), np.zeros(100, dtype=np.bool_))
    assert known is not None
    prior = GuidedSampler(space.subset(np.arange(0, 4000, 40)), 0, others=lambda: [known]).about.prior
    everything = prior.elsewhere()
    monkeypatch.setattr("tilescout.search.samplers.others.MOST", 40)
    some, kept = prior.elsewhere(), known.telling(40)

    assert everything is not None
    assert some is not None
    for name in ("points", "errors", "spread", "noise", "problem"):
        assert (getattr(some, name) == getattr(everything, name)[kept]).all()


def test_trials_that_arrive_meanwhile_count_at_once(known: list[OtherTrials]) -> None:
    space = TEMPLATE.space(SEARCHED, H200).subset(np.arange(0, 100_000, 400))
    arrived: list[OtherTrials] = []
    sampler = GuidedSampler(space, 0, others=lambda: arrived)
    study = optuna.create_study(sampler=sampler)
    before, _ = sampler.posterior(study).at(np.arange(len(space)))
    arrived.extend(known)
    after, _ = sampler.posterior(study).at(np.arange(len(space)))
    assert not np.allclose(before, after)

"""The guided search: what it takes from its model, and what it learns."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from tilescout.costmodel.coordinates import coordinates
from tilescout.costmodel.estimator import CostModel, Prediction
from tilescout.costmodel.persistence import shipped_model
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.guided import SHIPPED, GuidedSampler, model_beside
from tilescout.search.samplers.guided.history import history_of
from tilescout.search.samplers.joint import Joint
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ModelError, SamplerError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

TEMPLATE, H200, PROBLEM = find_template("gemm_sm90"), DEVICES["h200"], GemmProblem(4096, 4096, 4096)
WHOLE = TEMPLATE.space(PROBLEM, H200)
SPACE = WHOLE.subset(np.arange(0, len(WHOLE), 40))
UNKNOWN = SearchSpace(
    "unknown",
    [
        Knob("threads", (32, 48, 64, 96, 128, 160, 192, 224, 256, 384, 512), "for tests"),
        Knob("tile", tuple(range(1, 13)), "for tests"),
        Knob("unroll", (0, 1, 2, 4, 8), "for tests"),
        Knob("layout", ("row", "column", "tiled"), "for tests"),
    ],
    [],
    PROBLEM,
    H200,
)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class Expectation(CostModel):
    """A model that expects given log times."""

    def __init__(self, mean: np.ndarray, spread: float = 0.1, shift: float = 0.1) -> None:
        self.prediction = Prediction(mean, np.full(len(mean), spread), shift)

    def learn(self, samples):
        raise AssertionError("it expects what it was told to")

    def predict(self, features):
        assert len(features) == len(self.prediction.mean)
        return self.prediction


def truth_of(space: SearchSpace, seed: int = 0) -> np.ndarray:
    """Smooth log times with a ruggedness of their own."""
    rng = np.random.default_rng(seed)
    points = space.features
    return 3 + 2 * np.abs(points - rng.random(points.shape[1])).sum(axis=1) + 0.05 * rng.standard_normal(len(space))


def study_of(space: SearchSpace, model: CostModel | None, **options: float) -> optuna.Study:
    return optuna.create_study(sampler=make_sampler("guided", space, 0, options, model=model))


def ask(study: optuna.Study, space: SearchSpace) -> tuple[optuna.Trial, int]:
    trial = study.ask({**distributions(space)})
    return trial, int(space.find([trial.params[knob.name] for knob in space.knobs]))


def search(study: optuna.Study, space: SearchSpace, log_time: np.ndarray, trials: int) -> list[int]:
    asked = []
    for _ in range(trials):
        trial, index = ask(study, space)
        study.tell(trial, float(np.exp(log_time[index])))
        asked.append(index)
    return asked


def sampler_of(study: optuna.Study) -> GuidedSampler:
    assert isinstance(study.sampler, GuidedSampler)
    return study.sampler


def test_it_begins_with_what_the_model_expects_to_be_fastest() -> None:
    truth = truth_of(SPACE)
    assert search(study_of(SPACE, Expectation(truth)), SPACE, truth, 1) == [int(truth.argmin())]


def test_it_says_ahead_what_it_proposes_before_any_outcome() -> None:
    study = study_of(SPACE, Expectation(truth_of(SPACE), 0.3))
    given = [7, 3]
    for index in given:
        study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[index]), strict=True)))

    said = list(sampler_of(study).first(given, 10))

    assert [ask(study, SPACE)[1] for _ in range(12)] == given + said
    assert list(sampler_of(study_of(SPACE, None)).first(given, 10)) == []  # at random


def test_it_says_ahead_what_it_proposes_until_more_is_told() -> None:
    truth = truth_of(SPACE)
    expected = truth + np.random.default_rng(1).normal(0, 0.2, len(SPACE))
    study = study_of(SPACE, Expectation(expected, 0.2))
    search(study, SPACE, truth, 5)

    said = list(sampler_of(study).ahead(study, 4))

    assert len(said) == 4
    assert [ask(study, SPACE)[1] for _ in range(4)] == said
    search(study, SPACE, truth, 60)
    assert sampler_of(study).done(study)
    assert list(sampler_of(study).ahead(study, 4)) == []  # it would not go on


def test_what_it_remembers_between_questions_changes_no_proposal() -> None:
    truth = truth_of(SPACE)
    model = Expectation(truth + np.random.default_rng(1).normal(0, 0.2, len(SPACE)), 0.2)

    def proposed(forgetful: bool) -> list[int]:
        study, found = study_of(SPACE, model), list[int]()
        in_flight: list[tuple[optuna.Trial, int]] = []
        for _ in range(24):
            while len(in_flight) < 6:
                if forgetful:
                    study.sampler = make_sampler("guided", SPACE, 0, model=model)
                sampler_of(study).done(study)
                sampler_of(study).sated(study)
                in_flight.append(ask(study, SPACE))
                found.append(in_flight[-1][1])
            trial, index = in_flight.pop(0)
            study.tell(trial, float(np.exp(truth[index])))
        return found

    assert proposed(forgetful=False) == proposed(forgetful=True)


def test_of_kernels_that_are_expected_to_gain_as_much_those_that_are_compiled_go_first() -> None:
    expected = Expectation(np.zeros(len(SPACE)), 0.1)
    stored = np.array([5, 99, 700], dtype=np.int64)
    for price, order in ((0.25, True), (1.0, False)):
        study = study_of(SPACE, expected, stored=price)
        sampler_of(study).find_stored(stored, stored)
        trial, first = ask(study, SPACE)
        study.tell(trial, 1.0)
        proposed = {ask(study, SPACE)[1] for _ in range(4)} | {first}
        assert (set(stored.tolist()) <= proposed) == order


def test_what_the_search_has_compiled_for_another_trial_goes_before_what_is_to_be_compiled() -> None:
    nothing = np.empty(0, dtype=np.int64)
    for price, order in ((0.25, True), (1.0, False)):
        study = study_of(SPACE, Expectation(np.zeros(len(SPACE)), 0.1), relaunched=price, alone=1.0)
        trial, first = ask(study, SPACE)
        twins = np.setdiff1d([5, 99, 700, 710], [first])
        kernels = np.arange(len(SPACE))
        kernels[twins] = first
        sampler_of(study).find_stored(nothing, nothing, kernels)
        study.tell(trial, 1.0)
        proposed = {ask(study, SPACE)[1] for _ in range(len(twins))}
        assert (set(twins.tolist()) == proposed) == order


def test_where_hopeful_kernels_are_stored_nothing_else_is_tried_before_an_outcome_and_little_later() -> None:
    expected = np.linspace(0.0, 1.0, len(SPACE))
    stored = np.arange(20, 32)
    study = study_of(SPACE, Expectation(expected, 0.2), patience=8, least=4, compiled=3, ventured=0)
    sampler_of(study).find_stored(np.append(stored, len(SPACE) - 1), stored)  # and one that is expected to be slow
    assert set(sampler_of(study).first([], 8)) <= set(stored.tolist())
    asked = [ask(study, SPACE) for _ in range(12)]
    assert {index for _, index in asked} == set(stored.tolist())
    for trial, _ in asked[:11]:
        study.tell(trial, 1.0)
    study.tell(asked[11][0], 0.9)
    for _ in range(2):
        study.tell(ask(study, SPACE)[0], 1.1)
        assert sampler_of(study).done(study) is None
    study.tell(ask(study, SPACE)[0], 1.1)
    assert sampler_of(study).done(study) is not None  # three that were compiled count as nine


def test_where_little_of_the_stock_is_stored_what_is_compiled_counts_as_the_rest() -> None:
    stored = np.arange(20, 32)
    for stock, ends in ((stored, True), (np.arange(20, 33), True), (np.arange(20, 40), False), (stored[:0], False)):
        expected = Expectation(np.linspace(0.0, 1.0, len(SPACE)), 0.2)
        study = study_of(SPACE, expected, patience=8, least=4, compiled=3, ventured=0)
        sampler_of(study).find_stored(stored, stock)
        asked = [ask(study, SPACE) for _ in range(12)]
        for trial, _ in asked[:11]:
            study.tell(trial, 1.0)
        study.tell(asked[11][0], 0.9)
        for _ in range(3):
            study.tell(ask(study, SPACE)[0], 1.1)
        assert (sampler_of(study).done(study) is not None) == ends


def test_in_several_spaces_what_had_to_be_compiled_counts_more_too_where_hopeful_kernels_are_stored() -> None:
    known, stored = [Joint()], np.arange(20, 32)
    options = {"patience": 8, "each": 1, "least": 4, "compiled": 3, "ventured": 0}
    model = Expectation(np.linspace(0.0, 1.0, len(SPACE)), 0.2)
    sampler = make_sampler("guided", SPACE, 0, options, model=model, joint=lambda: known[-1])
    study = optuna.create_study(sampler=sampler)
    sampler_of(study).find_stored(stored, stored)
    study.tell(ask(study, SPACE)[0], 1.0)
    for joint, ends in (
        (Joint(0.7, since=5, trials=12, dear=1), False),
        (Joint(0.7, since=5, trials=12, dear=2), True),
        (Joint(0.7, since=4, trials=12, running=1, dear=1, dear_running=1), True),
    ):
        known.append(joint)
        assert sampler_of(study).sated(study) == ends


def test_what_is_compiled_while_a_gpu_is_set_up_counts_as_what_is_stored() -> None:
    stored = np.arange(20, 32)
    study = study_of(SPACE, Expectation(np.linspace(0.0, 1.0, len(SPACE)), 0.2), ventured=2)
    sampler = sampler_of(study)
    assert not sampler.is_dear(40)  # nothing is stored
    assert not sampler.waits_for_compiler(40)
    sampler.find_stored(stored, stored)
    (_, first), (trial, ventured) = [ask(study, SPACE) for _ in range(2)]
    study.tell(trial, 1.0)
    _, later = ask(study, SPACE)
    assert ventured not in stored
    assert [sampler.is_dear(index) for index in (first, ventured, 40)] == [False, False, True]
    assert sampler.is_dear(later) == (later not in stored)
    assert [sampler.waits_for_compiler(index) for index in (first, ventured, 40)] == [False, True, True]


def test_of_the_first_proposals_some_are_compiled_though_stored_kernels_are_expected_to_do_as_well() -> None:
    stored = np.arange(20, 40)
    study = study_of(SPACE, Expectation(np.linspace(0.0, 1.0, len(SPACE)), 0.2), ventured=4)
    sampler_of(study).find_stored(stored, stored)
    proposed = list(sampler_of(study).first([], 12))
    assert [at for at, index in enumerate(proposed) if index not in stored] == [3, 7, 11]
    assert [ask(study, SPACE)[1] for _ in range(12)] == proposed


def test_once_an_outcome_is_known_what_promises_little_is_not_compiled_while_anything_is_stored() -> None:
    stored = np.arange(20, 40)
    for dear, is_compiled in ((1.0, False), (0.0, True)):
        expected = Expectation(np.linspace(0.0, 1.0, len(SPACE)), 0.2)
        study = study_of(SPACE, expected, ventured=0, stored=1.0, dear=dear)
        sampler_of(study).find_stored(stored, stored)
        trial, first = ask(study, SPACE)
        study.tell(trial, 1.0)
        proposed = {first, *(ask(study, SPACE)[1] for _ in range(len(stored) - 1))}
        assert (proposed != set(stored.tolist())) == is_compiled
        assert ask(study, SPACE)[1] not in proposed  # what is left has to be compiled, and is tried nevertheless


def test_a_good_model_finds_the_best_within_a_few() -> None:
    truth = truth_of(SPACE)
    expected = truth + 0.05 * np.random.default_rng(1).standard_normal(len(truth)) + 0.3
    asked = search(study_of(SPACE, Expectation(expected, 0.05, 0.3)), SPACE, truth, 12)
    assert truth[asked].min() - truth.min() < 0.03


def test_a_model_that_is_wrong_is_overcome() -> None:
    truth = truth_of(SPACE)
    wrong = Expectation(truth.max() + truth.min() - truth)  # the slower, the better, it says
    asked = search(study_of(SPACE, wrong), SPACE, truth, 60)
    assert (truth < truth[asked].min()).mean() < 0.02


def test_without_a_model_it_beats_random_search_on_unknown_knobs() -> None:
    truth = truth_of(UNKNOWN)
    guided = [truth[search(study_of(UNKNOWN, None), UNKNOWN, truth, 60)].min()]
    drawn = np.random.default_rng(0).permuted(np.tile(truth, (500, 1)), axis=1)[:, :60].min(axis=1)
    assert np.mean(guided) < np.quantile(drawn, 0.1)


def test_a_space_without_a_template_has_no_prior_and_one_without_a_model_neither() -> None:
    assert GuidedSampler(UNKNOWN, 0).prior is None
    other = SearchSpace("gemm_sm90", TEMPLATE.knobs, TEMPLATE.constraints, PROBLEM, DEVICES["b200"])
    assert GuidedSampler(other.subset([0, 1]), 0).prior is None
    assert GuidedSampler(SPACE, 0, model=None).prior is None
    shipped = GuidedSampler(SPACE, 0).prior
    assert shipped is not None
    assert shipped.mean.shape == (len(SPACE),)


def test_a_model_that_was_not_fitted_says_so() -> None:
    from tilescout.costmodel.forest import ForestModel

    with pytest.raises(ModelError, match="call fit first"):
        search(study_of(SPACE, ForestModel()), SPACE, truth_of(SPACE), 1)


def test_trials_in_flight_are_not_asked_for_in_other_words() -> None:
    truth = truth_of(SPACE)
    study = study_of(SPACE, Expectation(truth))
    search(study, SPACE, truth, 3)
    indices = [ask(study, SPACE)[1] for _ in range(8)]
    assert len(set(indices)) == 8


def test_a_first_batch_spreads_over_more_than_the_neighbours_of_what_looks_best() -> None:
    # By the model alone, the first eight differ in next to nothing.
    smooth = 2 * np.abs(SPACE.features - 0.5).sum(axis=1)
    study = study_of(SPACE, Expectation(smooth, 0.5, 0.1))
    asked = SPACE.features[[ask(study, SPACE)[1] for _ in range(8)]]
    likeliest = SPACE.features[np.argsort(smooth)[:8]]
    spread, usual = (np.abs(points[:, None] - points[None]).sum() for points in (asked, likeliest))
    assert spread > 1.1 * usual


def test_a_model_that_is_wrong_about_a_whole_tile_is_told_so_by_the_first_batch() -> None:
    names = ["tile_m", "tile_n", "swap_ab", "split_k", "warp_groups"]
    tiles = SPACE.codes[:, [[knob.name for knob in SPACE.knobs].index(name) for name in names]]
    favoured = (tiles == tiles[0]).all(axis=1)
    assert favoured.sum() > 8
    expected = np.where(favoured, 0.0, 0.1) + 0.001 * np.arange(len(SPACE)) / len(SPACE)

    def proposed(around: int) -> set[tuple[int, ...]]:
        study = optuna.create_study(sampler=GuidedSampler(SPACE, 0, Expectation(expected, 0.01), around=around))
        return {tuple(tiles[ask(study, SPACE)[1]].tolist()) for _ in range(9)}

    assert len(proposed(0)) == 1  # the model is sure of itself
    assert len(proposed(3)) == 4  # every third is of a new tile


@pytest.mark.parametrize("model", [Expectation(truth_of(SPACE)), None], ids=["model", "no model"])
def test_pruned_and_failed_trials_are_learned_from(model: CostModel | None) -> None:
    truth = truth_of(SPACE)
    study = study_of(SPACE, model)
    tried = search(study, SPACE, truth + 1, 12)
    others = np.setdiff1d(np.arange(len(SPACE)), tried)
    near = np.abs(SPACE.features[others] - SPACE.features[truth.argmin()]).sum(axis=1)
    told = others[np.argsort(near)[:8]].tolist()
    for number, index in enumerate(told):
        study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[index]), strict=True)))
        trial = study.ask({**distributions(SPACE)})
        if number % 2:
            trial.report(float(np.exp(truth.max() + 1)), 0)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, state=TrialState.FAIL)
    sampler = sampler_of(study)
    history = history_of(study, SPACE)
    assert (len(history.failed), history.pruned.sum()) == (4, 4)
    mean, _ = sampler.posterior(study).at(np.arange(len(SPACE)))
    fresh, _ = sampler.posterior(_without(study, SPACE, model)).at(np.arange(len(SPACE)))
    assert mean[told].mean() > fresh[told].mean()


def _without(study: optuna.Study, space: SearchSpace, model: CostModel | None) -> optuna.Study:
    """A study with the completed trials of another only."""
    fresh = study_of(space, model)
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        fresh.add_trial(trial)
    return fresh


def test_in_a_large_space_the_neighbours_of_the_best_are_looked_at() -> None:
    truth = truth_of(WHOLE)
    study = study_of(WHOLE, None, candidates=64)
    asked = search(study, WHOLE, truth, 60)
    assert (truth < truth[asked].min()).mean() < 0.005


def test_settings_that_a_strategy_does_not_take_are_refused() -> None:
    with pytest.raises(SamplerError, match="sampler random takes no cost model: name none, or search with guided"):
        make_sampler("random", SPACE, 0, model=None)
    with pytest.raises(SamplerError, match="sampler random takes no 'luck', only a seed"):
        make_sampler("random", SPACE, 0, luck=1)
    with pytest.raises(SamplerError, match=r"sampler guided takes no 'luck', only model, options$"):
        make_sampler("guided", SPACE, 0, luck=1)


def test_coordinates_tell_powers_of_two_and_lie_between_0_and_1() -> None:
    points = coordinates(UNKNOWN)
    assert points.shape == (len(UNKNOWN), 6)  # threads and tile give two each
    assert points.min() == 0
    assert points.max() == 1
    threads = UNKNOWN.columns["threads"]
    halvings = points[:, 1]
    assert halvings[threads == 512][0] == 1  # 2**9
    assert halvings[threads == 48][0] == 0  # 2**4 * 3
    assert halvings[threads == 160][0] == halvings[threads == 32][0] == 0.2  # 2**5
    assert coordinates(SearchSpace("one", [Knob("a", (5,), "for tests")], [], PROBLEM, H200)).shape == (1, 1)


def test_a_search_without_a_model_begins_with_configurations_that_lie_far_apart() -> None:
    sampler = make_sampler("guided-cold:drawn=100000", UNKNOWN, 0)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial({knob.name: 0 for knob in UNKNOWN.knobs})
    points = coordinates(UNKNOWN)
    tried = [UNKNOWN.find(np.zeros((1, 4), dtype=np.int64))[0]]
    study.tell(study.ask(sampler.knobs), 1.0)
    for number in range(4):
        away = np.sqrt(np.square(points[:, None] - points[tried]).sum(axis=2)).min(axis=1)
        trial = study.ask(sampler.knobs)
        tried.append(UNKNOWN.find(np.array([[trial.params[knob.name] for knob in UNKNOWN.knobs]]))[0])
        assert away[tried[-1]] == away.max()  # of all, where all are drawn
        if number != 2:  # one stays in flight
            study.tell(trial, 1.0 + number)


def test_a_folder_of_models_gives_each_space_its_own_and_none_where_it_has_none(tmp_path: Path) -> None:
    for text in ("gemm_sm90-h200.npz", "gemm_streamk_sm90-h200.npz"):
        shipped = shipped_model(text.removesuffix("-h200.npz"), "h200")
        assert shipped is not None
        shutil.copyfile(shipped, tmp_path / text)
    second = find_template("gemm_streamk_sm90").space(PROBLEM, H200)
    guided = [GuidedSampler(SPACE, model=tmp_path), GuidedSampler(second, model=str(tmp_path))]
    names = ["gemm_sm90-h200.npz", "gemm_streamk_sm90-h200.npz"]

    assert [each.model_file for each in guided] == [tmp_path / name for name in names]
    assert [each.model_sha256 for each in guided] == [
        hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names
    ]
    (tmp_path / names[0]).unlink()
    with pytest.raises(ModelError, match=r"has no gemm_sm90-h200\.npz.* on h200, only gemm_streamk_sm90-h200\.npz"):
        _ = GuidedSampler(SPACE, model=tmp_path).prior
    with pytest.raises(ModelError, match="the name of the cost model is empty"):
        _ = GuidedSampler(SPACE, model="").prior


@pytest.mark.parametrize(("given", "what"), [(("model", "card"), "of type tuple"), (GuidedSampler, "a class")])
def test_what_is_no_model_is_refused_at_once(given: Any, what: str) -> None:
    with pytest.raises(ModelError, match=f"the cost model is {what}, expected a fitted CostModel, the file or folder"):
        GuidedSampler(SPACE, model=given)


def test_a_model_is_named_by_its_class_only_where_it_is_an_object() -> None:
    guided = GuidedSampler(SPACE, model=Expectation(truth_of(SPACE)))
    assert (guided.model_object, guided.model_file, guided.model_sha256) == ("Expectation", None, "")
    odd = type("Two\nlines", (Expectation,), {})
    assert GuidedSampler(SPACE, model=odd(truth_of(SPACE))).model_object == "Two lines"
    assert [GuidedSampler(SPACE, model=model).model_object for model in (SHIPPED, None)] == ["", ""]


def test_a_named_model_of_another_kernel_is_told_of_and_doubted(caplog: pytest.LogCaptureFixture) -> None:
    other = shipped_model("gemm_streamk_sm90", "h200")
    for model in (other, SHIPPED):
        guided = GuidedSampler(SPACE, model=model)
        guided.get_ready()
        assert guided.prior is not None
        assert (guided.prior.spread.min() >= 0.2) == (model == other)

    (told,) = caplog.messages
    assert (
        told
        == f"the cost model {other} is of gemm_streamk_sm90, not of gemm_sm90: it is doubted, as that of a relative is"
    )


@pytest.mark.parametrize("kind", [Path, str])
def test_a_second_space_has_the_model_of_a_folder_alone(tmp_path: Path, kind: type[Path | str]) -> None:
    folder = kind(tmp_path)
    assert model_beside(folder) == folder
    assert model_beside(None) is None
    assert model_beside(SHIPPED) == SHIPPED
    assert model_beside(tmp_path / "gemm_sm90-h200.npz") == SHIPPED
    assert model_beside(Expectation(truth_of(SPACE))) == SHIPPED


def test_the_model_of_a_relative_guides_a_search_of_a_kernel_that_has_none_and_is_doubted() -> None:
    template = find_template("quack_sm90")
    whole = template.space(PROBLEM, H200)
    space = whole.subset(np.arange(0, len(whole), 50))
    guided = GuidedSampler(space)
    assert guided.model_file is not None
    assert guided.model_file.stem == "gemm_sm90-h200"
    assert not guided.hindsight  # the model knows the problem, but no kernel of the space
    assert guided.prior is not None
    assert guided.prior.spread.min() >= 0.2
    own = GuidedSampler(SPACE)
    assert own.hindsight
    assert own.prior is not None
    assert own.prior.spread.min() < 0.2

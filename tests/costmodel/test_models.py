"""The models on times that a known law makes: they learn it, say how sure they are, and survive a file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from tilescout.costmodel.analytic import AnalyticModel, Calibration, Constants, shipped_calibration, time_us
from tilescout.costmodel.blend import Blended, BlendModel, BlendOptions
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features, space_features
from tilescout.costmodel.forest import ForestModel, ForestOptions, truncated_mean
from tilescout.costmodel.persistence import ModelCard, TrainingTable, load_model, save_model, shipped_model
from tilescout.costmodel.ranking import RankingModel, RankingOptions
from tilescout.costmodel.trees import LEAF, Forest
from tilescout.costmodel.uncertainty import FOLDS
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

H200, TEMPLATE = DEVICES["h200"], find_template("gemm_sm90")
PROBLEMS = tuple(map(GemmProblem.parse, ("4096x4096x4096", "1024x1024x1024", "64x8192x8192", "2048x512x8192")))
LAW = Constants(launch_us=3.0, latency_us=0.9, memory=1.4, overhead_us=0.02)
SMALL = ForestOptions(trees=8, validation_trees=4)
QUICK = RankingOptions(members=1, steps=200, width=16)
CARD = ModelCard(
    "gemm_sm90", "h200", tuple(map(str, PROBLEMS)), (TrainingTable("invented.parquet", "00", "chain"),), 800
)


def sample_of(problem: GemmProblem, count: int = 200, noise: float = 0.02, seed: int = 0) -> Sample:
    """Random configurations with the times of `LAW`, and what no law says: a penalty for some rasters, and noise."""
    rng = np.random.default_rng(seed)
    space = TEMPLATE.space(problem, H200)
    features = space_features(space.subset(space.sample(count, rng)), TEMPLATE)
    penalty = 0.2 * features.values[:, features.names.index("along_m")]
    log_time = np.log(time_us(features, LAW)) + penalty + noise * rng.standard_normal(len(features))
    return Sample(str(problem), features, log_time, np.zeros(len(features), dtype=np.bool_))


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return [sample_of(problem) for problem in PROBLEMS]


@pytest.fixture(scope="module")
def model(samples: list[Sample]) -> ForestModel:
    return ForestModel(SMALL).fit(samples[:-1])


@pytest.fixture(scope="module")
def ranking(samples: list[Sample]) -> RankingModel:
    return RankingModel(QUICK).fit(samples[:-1])


@pytest.fixture(scope="module")
def blend(samples: list[Sample]) -> BlendModel:
    return BlendModel(BlendOptions(SMALL, replace(QUICK, members=2))).fit(samples[:-1])


def test_trees_say_what_scikit_learn_says_to_the_bit_of_a_float() -> None:
    from sklearn.ensemble import ExtraTreesRegressor

    rng = np.random.default_rng(0)
    values = rng.integers(0, 5, size=(500, 6)).astype(np.float32) / 3  # many equal ones: thresholds lie on values
    ensemble = ExtraTreesRegressor(10, min_samples_leaf=2, random_state=0).fit(values, rng.normal(size=500))
    said = Forest.of(ensemble).each(values)
    expected = np.stack([tree.predict(values) for tree in ensemble.estimators_])
    np.testing.assert_allclose(said, expected, rtol=1e-6)


def test_a_tree_that_never_splits_says_its_value() -> None:
    assert Forest.constant(2.5).each(np.zeros((3, 4))).tolist() == [[2.5, 2.5, 2.5]]


def test_the_analytic_model_finds_the_law_from_a_handful(samples: list[Sample]) -> None:
    few = [sample.take(np.arange(24)) for sample in samples[:-1]]
    fitted = AnalyticModel().fit(few)
    assert fitted.fitted is not None
    assert fitted.fitted.measurements == 72
    error = samples[-1].log_time - fitted.predict(samples[-1].features).mean
    assert np.abs(error - np.median(error)).mean() < 0.13  # the penalty of 0.2 on half of them it can't know


def test_the_forest_learns_what_the_analytic_model_misses(samples: list[Sample], model: ForestModel) -> None:
    left_out = samples[-1]
    error = left_out.log_time - model.predict(left_out.features).mean
    assert np.abs(error - np.median(error)).mean() < 0.05
    assert model.score([left_out]) > 0.98


def test_intervals_of_a_problem_left_out_hold_what_they_promise(samples: list[Sample], model: ForestModel) -> None:
    left_out = samples[-1]
    low, high = model.predict(left_out.features).interval_us()
    inside = (np.exp(left_out.log_time) >= low) & (np.exp(left_out.log_time) <= high)
    assert inside.mean() > 0.85


@pytest.mark.slow
def test_the_network_ranks_what_the_analytic_model_can_not(samples: list[Sample], ranking: RankingModel) -> None:
    left_out = samples[-1]
    prediction = ranking.predict(left_out.features)
    alone = AnalyticModel().fit([sample.take(np.arange(24)) for sample in samples[:-1]]).predict(left_out.features)
    assert spearmanr(prediction.mean, left_out.log_time).statistic > 0.98
    assert (prediction.std > 0).all()
    better, worse = (np.std(left_out.log_time - p.mean) for p in (prediction, alone))
    assert better < worse


@pytest.mark.slow
def test_the_network_knows_of_a_censored_time_only_that_it_is_longer(samples: list[Sample]) -> None:
    exact = samples[0]
    censored = exact.log_time > np.median(exact.log_time)
    given_up = Sample(exact.problem, exact.features, np.minimum(exact.log_time, np.median(exact.log_time)), censored)
    prediction = RankingModel(QUICK).fit([given_up]).predict(exact.features)
    assert prediction.mean[censored].mean() > prediction.mean[~censored].mean() + 0.1


def test_one_problem_is_enough_to_learn_from(samples: list[Sample]) -> None:
    model = ForestModel(SMALL).fit(samples[:1])
    assert model.fitted is not None
    assert model.fitted.errors.shift == 0
    assert model.score(samples[:1]) > 0.98


def test_knobs_alone_are_enough_to_learn_from() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, size=(300, 3)).astype(np.float64)
    features = Features(("knob:a", "knob:b", "knob:c"), values)
    sample = Sample("8x8x8:bf16", features, values @ [1.0, 0.5, 0.1], np.zeros(300, dtype=np.bool_))
    assert ForestModel(SMALL).fit([sample]).score([sample]) > 0.95


def test_censored_times_are_taken_as_lower_bounds_and_not_as_times(samples: list[Sample]) -> None:
    # What takes longer than the median was given up at the median.
    exact = samples[0]
    limit = float(np.median(exact.log_time))
    censored = exact.log_time > limit
    given_up = Sample(exact.problem, exact.features, np.minimum(exact.log_time, limit), censored)
    believed = Sample(exact.problem, exact.features, given_up.log_time, np.zeros_like(censored))
    right, wrong = (
        ForestModel(SMALL).fit([s, *samples[1:]]).predict(exact.features).mean[censored].mean()
        for s in (given_up, believed)
    )
    assert wrong < right <= exact.log_time[censored].mean() + 0.1
    assert right > limit


def test_the_mean_of_a_cut_off_normal_is_that_of_its_draws() -> None:
    draws = np.random.default_rng(0).normal(1.0, 2.0, 1_000_000)
    found = truncated_mean(np.array([1.0]), np.array([2.0]), np.array([3.0]))
    assert found[0] == pytest.approx(draws[draws > 3].mean(), abs=0.01)
    far = truncated_mean(np.array([0.0]), np.array([1e-3]), np.array([5.0]))
    assert 5 < far[0] < 5.001


def test_nothing_to_learn_from_is_refused(samples: list[Sample]) -> None:
    with pytest.raises(ModelError, match="no measurements"):
        ForestModel(SMALL).fit([])
    first = samples[0]
    given_up = Sample(first.problem, first.features, first.log_time, np.ones(len(first), dtype=np.bool_))
    with pytest.raises(ModelError, match="given up early"):
        ForestModel(SMALL).fit([given_up])
    with pytest.raises(ModelError, match="call fit first"):
        ForestModel().predict(first.features)
    with pytest.raises(ModelError, match="call fit first"):
        AnalyticModel().predict(first.features)


def test_other_features_are_refused_with_their_names(samples: list[Sample], model: ForestModel) -> None:
    features = samples[0].features
    fewer = Features(features.names[1:], features.values[:, 1:])
    with pytest.raises(ModelError, match=r"these have no m; train"):
        model.predict(fewer)
    with pytest.raises(ModelError, match="must describe its tiling"):
        AnalyticModel(Calibration(LAW, 0.1, 0.1, 1)).predict(Features(("knob:a",), np.zeros((1, 1))))


@pytest.mark.slow
def test_the_blend_is_the_weighted_mean_of_its_parts_and_unsure_where_they_disagree(
    samples: list[Sample], blend: BlendModel
) -> None:
    features = samples[-1].features
    assert blend.fitted is not None
    whole = blend.fitted.ensemble
    assert isinstance(whole, Blended)
    members = (whole.forest, whole.networks)
    (first, _), (second, _) = (member.predict(features) for member in members)
    prediction = blend.predict(features)
    assert whole.weight == BlendOptions().weight != 0.5
    np.testing.assert_allclose(prediction.mean, (1 - whole.weight) * first + whole.weight * second)
    apart = np.abs(first - second)
    assert np.corrcoef(apart, prediction.spread)[0, 1] > 0.3
    assert blend.score([samples[-1]]) > 0.97


@pytest.mark.parametrize("hopeful", [100, 10**6], ids=["some of them", "all of them"])
def test_a_search_is_told_roughly_of_what_the_networks_say_is_slow(
    samples: list[Sample], blend: BlendModel, monkeypatch: pytest.MonkeyPatch, hopeful: int
) -> None:
    features = samples[-1].features
    whole, same = blend.predict(features), blend.foresee(features)
    assert blend.fitted is not None
    assert isinstance(blend.fitted.ensemble, Blended)
    networks = blend.fitted.ensemble.networks
    for name, count in (("HOPEFUL", hopeful), ("LIKELIEST", 50), ("SCOUTS", 1)):
        monkeypatch.setattr(f"tilescout.costmodel.blend.{name}", count)
    rough = blend.foresee(features)
    some = np.sort(np.argsort(networks.first(1).predict(features)[0])[:hopeful])
    likeliest = np.sort(some[np.argsort(networks.predict(features.take(some))[0])[:50]])
    rest = np.setdiff1d(np.arange(len(features)), likeliest)

    assert same.mean.tolist() == whole.mean.tolist()
    alone = blend.predict(features.take(likeliest))
    assert rough.mean[likeliest].tolist() == alone.mean.tolist()
    assert rough.spread[likeliest].tolist() == alone.spread.tolist()
    # Networks are asked in single precision: the last bits depend on how many rows there are.
    assert np.allclose(rough.mean[likeliest], whole.mean[likeliest], rtol=0, atol=1e-6)
    assert np.allclose(rough.spread[likeliest], whole.spread[likeliest], rtol=0, atol=1e-5)
    assert not np.allclose(rough.mean[rest], whole.mean[rest], rtol=0, atol=1e-6)
    assert np.abs(rough.mean[rest] - whole.mean[rest]).mean() < 0.3
    assert rough.mean[rest].min() > rough.mean[likeliest].min()
    # Where the forest is not asked, those that all networks are asked for are in their order.
    asked = np.setdiff1d(some, likeliest)
    said = networks.predict(features.take(some))[0][np.isin(some, asked)]
    assert np.allclose(rough.mean[asked] - said, (rough.mean[asked] - said)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["forest", "ranking", "blend"])
def test_a_saved_model_predicts_the_same(
    kind: str, samples: list[Sample], model: ForestModel, ranking: RankingModel, blend: BlendModel, tmp_path: Path
) -> None:
    path = tmp_path / "folder" / "model.npz"
    saved = model if kind == "forest" else ranking if kind == "ranking" else blend
    save_model(path, saved, CARD)
    loaded, card = load_model(path)
    assert card == CARD
    assert type(loaded) is type(saved)
    before, after = (m.predict(samples[-1].features) for m in (saved, loaded))
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.std, after.std)
    assert before.shift == after.shift


def test_a_model_that_is_fitted_after_it_was_read_is_not_what_is_read_next(
    samples: list[Sample], model: ForestModel, tmp_path: Path
) -> None:
    save_model(tmp_path / "model.npz", model, CARD)
    features = samples[-1].features
    loaded, _ = load_model(tmp_path / "model.npz")
    before = loaded.predict(features).mean
    loaded.fit([replace(sample, log_time=sample.log_time + 1) for sample in samples])

    assert loaded.predict(features).mean.mean() > before.mean() + 0.5
    np.testing.assert_array_equal(load_model(tmp_path / "model.npz")[0].predict(features).mean, before)


def test_a_blend_whose_file_tells_no_weight_is_an_even_one(
    samples: list[Sample], blend: BlendModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.npz"
    save_model(path, blend, CARD)
    with np.load(path) as archive:
        arrays = dict(archive)
    told = json.loads(str(arrays["card"]))
    assert told.pop("weight") == BlendOptions().weight
    np.savez_compressed(path, **{**arrays, "card": np.array(json.dumps(told))})
    even, _ = load_model(path)
    assert blend.fitted is not None
    whole = blend.fitted.ensemble
    assert isinstance(whole, Blended)
    features = samples[-1].features
    (first, _), (second, _) = (part.predict(features) for part in (whole.forest, whole.networks))
    np.testing.assert_allclose(even.predict(features).mean, (first + second) / 2)


@pytest.mark.parametrize("weight", [-0.1, 1.1, "0.5", True, None, float("nan")])
def test_a_weight_that_is_no_share_is_refused(weight: object, blend: BlendModel, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_model(path, blend, CARD)
    with np.load(path) as archive:
        arrays = dict(archive)
    told = json.loads(str(arrays["card"])) | {"weight": weight}
    np.savez_compressed(path, **{**arrays, "card": np.array(json.dumps(told))})
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)


@pytest.mark.slow
def test_networks_learn_from_some_problems_at_a_time_as_from_all(samples: list[Sample], ranking: RankingModel) -> None:
    few = RankingModel(replace(QUICK, problems=2)).fit(samples[:-1])
    assert few.score([samples[-1]]) > 0.9
    assert not np.array_equal(few.predict(samples[-1].features).mean, ranking.predict(samples[-1].features).mean)


def test_networks_that_are_none_are_refused(ranking: RankingModel, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_model(path, ranking, CARD)
    with np.load(path) as archive:
        arrays = dict(archive)
    for name, spoil in (
        ("networks.weights0", lambda array: array[:, 1:]),
        ("networks.weights1", lambda array: array[:, :, 1:]),
        ("networks.weights2", lambda array: array[0]),
        ("networks.biases1", lambda array: array[:0]),
        ("networks.centre", lambda array: array * np.nan),
        ("networks.scale", lambda array: array * 0),
        ("networks.scale", lambda array: array.astype(np.float32)),
    ):
        np.savez_compressed(path, **{**arrays, name: spoil(arrays[name])})
        with pytest.raises(ModelError, match="its networks"):
            load_model(path)
    for name in ("networks.weights0", "networks.weights2", "networks.biases2", "networks.centre"):
        np.savez_compressed(path, **{key: array for key, array in arrays.items() if key != name})
        with pytest.raises(ModelError, match="damaged"):
            load_model(path)


@pytest.mark.slow
def test_a_model_is_the_same_bytes_whenever_it_is_trained(samples: list[Sample], tmp_path: Path) -> None:
    for name in ("first.npz", "second.npz"):
        save_model(tmp_path / name, BlendModel(BlendOptions(SMALL, QUICK)).fit(samples[:2]), CARD)
    assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second.npz").read_bytes()


def test_damaged_models_are_refused(model: ForestModel, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    with pytest.raises(ModelError, match="does not exist"):
        load_model(path)
    save_model(path, model, CARD)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)
    path.write_text("no archive")
    with pytest.raises(ModelError, match="is no model"):
        load_model(path)
    np.savez_compressed(path, numbers=np.arange(3))
    with pytest.raises(ModelError, match="is no model: it is an archive of other arrays"):
        load_model(path)


def test_trees_that_lead_outside_themselves_are_refused(model: ForestModel, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_model(path, model, CARD)
    with np.load(path) as archive:
        arrays = dict(archive)
    for name, at, value in (("right", 0, 10**6), ("feature", 0, 999), ("roots", 0, 5), ("value", 0, np.nan)):
        spoilt = {key: array.copy() for key, array in arrays.items()}
        spoilt[f"forest.{name}"][at] = value
        np.savez_compressed(path, **spoilt)
        with pytest.raises(ModelError, match="lead outside themselves"):
            load_model(path)


@pytest.mark.parametrize("depth", [400, 600, 100_000])
@pytest.mark.parametrize("shared", [False, True], ids=["one parent each", "nodes of two parents"])
def test_trees_so_deep_that_a_prediction_takes_hours_are_refused(
    model: ForestModel, tmp_path: Path, depth: int, shared: bool
) -> None:
    path = tmp_path / "model.npz"
    save_model(path, model, CARD)
    with np.load(path) as file:
        arrays = dict(file)
    nodes = 2 * depth + 1
    feature = np.zeros(nodes, dtype=np.int16)  # if shared, a node's right child is the left one of the next node
    if not shared:
        feature[1::2] = LEAF  # left children
    feature[-2:] = LEAF
    right = np.full(nodes, 2, dtype=np.int32)
    value, roots = np.zeros(nodes, dtype=np.float32), np.zeros(1, dtype=np.int32)
    chain = {"feature": feature, "right": right, "value": value, "roots": roots}
    np.savez_compressed(path, **{**arrays, **{f"forest.{name}": array for name, array in chain.items()}})
    if depth < 500 and not shared:
        load_model(path)
    else:
        with pytest.raises(ModelError, match="lead outside themselves, or are too deep"):
            load_model(path)


def test_an_archive_with_an_object_is_refused_unread(model: ForestModel, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, card=np.array([{"format": 2}], dtype=object))
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)


def test_a_model_of_the_format_of_one_table_is_read(model: ForestModel, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_model(path, model, CARD)
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["card"]))
    del about["card"]["tables"]
    about["card"] |= {"table": "invented.parquet", "table_sha256": "00"}
    np.savez(path, **{**arrays, "card": np.array(json.dumps(about | {"format": 2}))})
    _, card = load_model(path)
    assert card.tables == (TrainingTable("invented.parquet", "00", ""),)
    assert card.problems == CARD.problems


def test_a_model_of_another_format_is_refused(model: ForestModel, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_model(path, model, CARD)
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(str(arrays["card"])) | {"format": 99}
    np.savez_compressed(path, **{**arrays, "card": np.array(json.dumps(about))})
    with pytest.raises(ModelError, match="format 99, this tilescout reads 2 and 3"):
        load_model(path)


def test_a_calibration_survives_its_text() -> None:
    calibration = Calibration(LAW, 0.1, 0.05, 24, "invented")
    assert Calibration.from_json(calibration.to_json()) == calibration
    with pytest.raises(ModelError, match="not a calibration"):
        Calibration.from_json("{}")


def test_what_is_shipped_ranks_the_real_space_and_is_small() -> None:
    path = shipped_model("gemm_sm90", "h200")
    assert path is not None
    assert path.stat().st_size < 8e6
    model, card = load_model(path)
    assert card.space == "gemm_sm90"
    problem = GemmProblem(3000, 4096, 2048)
    features = space_features(TEMPLATE.space(problem, H200), TEMPLATE)
    calibration = shipped_calibration("h200")
    assert calibration is not None
    for prediction in (model.predict(features), AnalyticModel(calibration).predict(features)):
        assert np.isfinite(prediction.mean).all()
        assert (prediction.std > 0).all()
        assert np.exp(prediction.mean.min()) > problem.flops / H200.peak * 1e6 * 0.8
    assert shipped_model("gemm_sm90", "h100") is None
    assert shipped_calibration("b200") is None


def test_a_fit_tells_of_every_ensemble_that_it_has_grown(samples: list[Sample]) -> None:
    grown: list[int] = []
    model = ForestModel(ForestOptions(trees=2))
    model.on_grown = lambda ensemble, learned: grown.append(len(learned))
    model.fit(samples)
    assert grown == [len(samples) - 1] * min(FOLDS, len(samples)) + [len(samples)]


def test_a_file_is_read_once_and_again_when_it_has_changed(
    model: ForestModel, ranking: RankingModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.npz"
    save_model(path, model, CARD)
    first, again = load_model(path)[0], load_model(path)[0]
    assert isinstance(first, ForestModel)
    assert isinstance(again, ForestModel)
    assert first.fitted is again.fitted is not None
    path.unlink()
    save_model(path, ranking, CARD)
    assert isinstance(load_model(path)[0], RankingModel)
    path.unlink()
    with pytest.raises(ModelError, match="does not exist"):
        load_model(path)

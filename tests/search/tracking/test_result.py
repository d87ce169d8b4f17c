"""The result of `tune`, as a person in a notebook looks at it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilescout.search import TuneResult, load_study, tune
from tilescout.search.tracking.plots import CAPTIONS
from tilescout.spaces.errors import NoResultError, StoreError
from tilescout.spaces.knobs import Configuration


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def result(store: Path) -> TuneResult:
    return tune("gemm_sm90", "512x512x512:bf16", sampler="tpe", device="replay", budget=16, store=store, mlflow=False)


def of_no_trials(result: TuneResult) -> TuneResult:
    return TuneResult(result.info, [], 0.0)


def test_a_number_is_a_budget_of_so_many_trials(result: TuneResult) -> None:
    assert len(result.trials) == 16


def test_a_result_prints_in_a_line_that_has_the_best(result: TuneResult) -> None:
    best = result.best_trial
    assert f"16 trials, best {best.measurement.time_us:.2f} µs" in repr(result)
    assert len(repr(result)) < 160
    assert repr(best).startswith(f"<TrialRecord {best.number}: {best.measurement.time_us:.2f} µs, ")
    assert repr(of_no_trials(result)).endswith("0 trials, none worked>")


@pytest.mark.slow
def test_a_notebook_shows_a_table_and_a_picture_and_no_markup_of_the_study(result: TuneResult) -> None:
    shown = result._repr_html_()
    assert f"<code>{result.best_trial.configuration}</code>" in shown
    assert "data:image/png;base64," in shown
    evil = replace(result, info=replace(result.info, sampler="<script>"))
    assert "&lt;script&gt;" in evil._repr_html_()
    assert "<script>" not in evil._repr_html_()


def test_the_data_frame_has_a_row_a_trial_with_the_values_of_the_knobs(result: TuneResult) -> None:
    frame = result.trials_dataframe()
    assert list(frame.index) == list(range(16))
    best = frame.loc[frame["time_us"].idxmin()]
    assert best["tile_m"] == result.best_params["tile_m"]
    assert best["time_us"] == result.best_value
    assert of_no_trials(result).trials_dataframe().empty


def test_importances_name_knobs_the_largest_first(result: TuneResult) -> None:
    shares = result.importances()
    assert set(shares) <= set(result.info.knobs)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert of_no_trials(result).importances() == {}


@pytest.mark.slow
def test_a_plot_is_a_figure_that_a_notebook_shows(result: TuneResult) -> None:
    figure = result.plot("gpu_seconds")
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(NoResultError, match="no plot 'nonsense' of this study; there are convergence, importance"):
        result.plot("nonsense")


def test_a_plot_that_is_not_there_is_told_with_what_it_needs(result: TuneResult) -> None:
    with pytest.raises(
        NoResultError, match=r"no plot 'predicted' of this study, which needs .* a cost model predicted;"
    ):
        result.plot("predicted")
    few = TuneResult(result.info, result.trials[:4], 0.0)
    with pytest.raises(NoResultError, match="'importance' of this study, which needs 8 trials or more that were timed"):
        few.plot("importance")
    for name in CAPTIONS:
        with pytest.raises(NoResultError, match=f"no plot '{name}' of this study, which needs .*; there are none"):
            of_no_trials(result).plot(name)


def test_what_found_nothing_has_no_best_trial(result: TuneResult) -> None:
    with pytest.raises(NoResultError, match="no trial of gemm_sm90-512x512x512-bf16-h200-replay-tpe-s0 worked"):
        _ = of_no_trials(result).best_value


@pytest.mark.slow
def test_a_study_is_loaded_and_resumed_by_its_name(result: TuneResult, store: Path) -> None:
    name = result.info.name
    assert load_study(name, store=store).best_value == result.best_value
    again = tune(
        "gemm_sm90",
        "512x512x512:bf16",
        sampler="tpe",
        device="replay",
        budget=18,
        store=store,
        mlflow=False,
        resume=name,
    )
    assert again.info.name == name
    assert list(again.trials[:16]) == list(result.trials)
    with pytest.raises(StoreError, match="is of another space, problem, device, sampler or seed"):
        tune("gemm_sm90", "1024x1024x1024:bf16", sampler="tpe", device="replay", store=store, mlflow=False, resume=name)
    with pytest.raises(StoreError, match=f"there is no study nonsense to go on with; there are: {name}"):
        tune(
            "gemm_sm90",
            "512x512x512:bf16",
            sampler="tpe",
            device="replay",
            store=store,
            mlflow=False,
            resume="nonsense",
        )


@pytest.mark.parametrize("name", ["trial", "status", "registers", "time_us", "error"])
def test_a_knob_that_is_called_like_another_column_hides_none_and_is_hidden_by_none(
    result: TuneResult, name: str
) -> None:
    def renamed(configuration: Configuration) -> Configuration:
        return Configuration.of({name if knob == "tile_m" else knob: value for knob, value in configuration.items()})

    trials = [replace(trial, configuration=renamed(trial.configuration)) for trial in result.trials]
    info = replace(result.info, default=renamed(result.info.default))
    frame, before = TuneResult(info, trials, 0.0).trials_dataframe(), result.trials_dataframe()
    assert frame[f"knob:{name}"].equals(before["tile_m"].rename(f"knob:{name}"))
    assert frame.drop(columns=f"knob:{name}").equals(before.drop(columns="tile_m"))

"""Every kind of contender searches a recorded table: within its budget, nothing twice, the same for the same seed."""

import importlib.util
import logging
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tuner.searchspace import Searchspace

from tilescout.costmodel.blend import BlendOptions
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.heuristics import is_installed
from tilescout.costmodel.persistence import load_model
from tilescout.costmodel.ranking import RankingOptions
from tilescout.experiments.compare import sampler as sampler_contender
from tilescout.experiments.compare.api import compare
from tilescout.experiments.compare.asking import AskingEngine, Part, Racing, Trying, milliseconds
from tilescout.experiments.compare.autotuners import Autotuner
from tilescout.experiments.compare.contenders import check_contenders, contender_of, parse_contender
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.experiments.compare.kernel_tuner import listed
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.search.samplers.random import RandomSampler
from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import SamplerError, StoreError, TableError
from tilescout.spaces.gemm import GemmProblem

PROBLEM = GemmProblem(512, 512, 512)
OTHERS = ("16x4096x4096", "64x8192x8192", "1024x1024x1024", "2048x2048x2048", "128x14336x4096")
Play = Callable[..., list[int]]
BAYES = "kernel_tuner.bayes_opt"
HELION = importlib.util.find_spec("helion") is not None
helion = pytest.mark.skipif(not HELION, reason="Helion is not installed: pip install 'tilescout[helion]'")
AUTOTUNERS = ("quack.autotuner", "flashinfer.autotuner")
SEARCHES = ("LFBOTreeSearch", "PatternSearch", "DifferentialEvolutionSearch")


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Table:
    """400 configurations on some problems: of all, each search would first spend seconds on what Kernel Tuner reads."""
    return part_of_table(str(PROBLEM), *OTHERS, rows=400)


@pytest.fixture
def play(table: Table) -> Play:
    """A function: search the problem's part of the table."""

    def play(name: str, trials: int, seed: int) -> list[int]:
        contender = parse_contender(name)
        contender.check()
        return list(contender.play(ReplayEngine(table, template_of(table)), PROBLEM, trials, seed))

    return play


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("random", "tpe", "lfbo:initial=5:copies=1"),
        *(f"kernel_tuner.{name}" for name in ("genetic_algorithm", "adaptive_tabu_greywolf", "hybrid_vndx")),
        *("kernel_tuner.random_sample", f"{BAYES}:samplingmethod=random"),
        *(pytest.param(f"helion.{search}", marks=helion) for search in SEARCHES),
    ],
)
def test_a_search_keeps_its_budget_and_follows_from_its_seed(play: Play, name: str) -> None:
    tried = play(name, 40, seed=1)
    assert len(set(tried)) == len(tried) == 40
    same = 20 if name.startswith(BAYES) else 40  # behind its first sample, the clock decides when it learns
    assert play(name, 40, seed=1)[:same] == tried[:same]
    assert play(name, 40, seed=2) != tried


def test_a_search_that_takes_no_seed_keeps_its_budget(play: Play) -> None:
    tried = play(BAYES, 40, seed=1)
    assert len(set(tried)) == len(tried) == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("random", "tpe", "ranking.quack:top=3", "kernel_tuner.genetic_algorithm"),
        pytest.param("helion.PatternSearch", marks=helion),
    ],
)
def test_a_live_search_tries_what_it_would_in_a_replay_of_what_was_measured(
    table: Table, play: Play, name: str
) -> None:
    recording = RecordedSpace.of(table, template_of(table), PROBLEM)
    asked: list[int] = []

    def ask(request: Trying | Racing) -> Measurement:
        assert isinstance(request, Trying)
        asked.append(request.index)
        return recording.measurement(request.index)

    part = Part(recording.space, recording.default, recording.library_us)
    engine = AskingEngine(template_of(table), recording.space.device, {str(PROBLEM): part}, ask)
    tried = list(parse_contender(name).play(engine, PROBLEM, 40, 1))
    assert tried == play(name, 40, seed=1)
    assert asked == ([] if name.startswith("ranking.") else tried)  # a list says what to measure


def test_options_reach_kernel_tuner(play: Play) -> None:
    assert play("kernel_tuner.genetic_algorithm:popsize=4", 30, 0) != play("kernel_tuner.genetic_algorithm", 30, 0)


def test_kernel_tuner_leaves_logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    parse_contender("kernel_tuner.mls").check()
    assert logging.root.handlers == []


def test_kernel_tuner_has_to_find_out_what_fails(play: Play, table: Table) -> None:
    recording = RecordedSpace.of(table, template_of(table), PROBLEM)
    failed = {i for i in range(len(recording.space)) if not recording.measurement(i).ok}
    assert failed
    tried = play("kernel_tuner.random_sample", len(recording.space), 0)
    assert len(tried) == len(recording.space)
    assert failed <= set(tried)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("magic", "unknown sampler 'magic', known are"),
        ("lfbo:copies", "malformed strategy 'lfbo:copies': expected NAME"),
        ("lfbo:width=3", "lfbo: unknown option 'width'"),
        ("ranking.magic", "unknown ranking 'magic', known are quack"),
        ("ranking.quack:top=0", "option top can't be 0"),
        ("kernel_tuner.magic", "Kernel Tuner has no strategy 'magic', it has"),
        ("kernel_tuner.mls:magic=3", "kernel_tuner.mls:magic=3 can't be run: ValueError: Unrecognized option magic"),
        (
            "kernel_tuner.brute_force",
            "brute_force can't be run: ValueError: Unrecognized option max_fevals",
        ),
        pytest.param("helion.FiniteSearch", "Helion has no search 'FiniteSearch', it has", marks=helion),
        pytest.param("helion.magic", "Helion has no search 'magic', it has DESurrogateHybrid", marks=helion),
        pytest.param("helion.PatternSearch:copies=2", "run with Helion's defaults", marks=helion),
    ],
)
def test_what_can_not_be_run_is_refused_at_once(name: str, answer: str) -> None:
    with pytest.raises(SamplerError, match=answer):
        parse_contender(name).check()


def test_a_name_that_is_unknown_is_told_all_that_a_comparison_takes() -> None:
    with pytest.raises(SamplerError, match="unknown sampler 'foo', known are exhaustive, random, ") as refused:
        check_contenders(["random", "foo:seeds=3"])
    for written in ("module:Class", "kernel_tuner.STRATEGY", "helion.SEARCH", "ranking.NAME", *AUTOTUNERS):
        assert written in str(refused.value)
    check_contenders(["random", "optuna.samplers:NSGAIISampler"])


def test_a_comparison_of_nothing_is_refused() -> None:
    with pytest.raises(SamplerError, match="no strategy to compare"):
        check_contenders([])
    with pytest.raises(SamplerError, match="timeout can't be 0: allowed are numbers above 0"):
        compare(["random"], timeout=0)
    for limit, value in product(("trials", "seeds", "processes"), (0, 4.0, "4", True)):
        with pytest.raises(SamplerError, match=f"{limit} can't be {value!r}: allowed are whole numbers above 0"):
            compare(["random"], **{limit: value})  # type: ignore[arg-type]


@pytest.mark.slow
@helion
def test_a_search_of_helion_that_converges_ends_without_a_gpu(play: Play) -> None:
    tried = play("helion.LFBOTreeSearch", 400, 0)
    assert 100 < len(set(tried)) == len(tried) < 400


def test_without_helion_people_are_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SamplerError, match=r"pip install 'tilescout\[helion\]'"):
        parse_contender("helion.PatternSearch").check()


def test_without_kernel_tuner_people_are_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernel_tuner", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SamplerError, match="pip install 'tilescout"):
        parse_contender("kernel_tuner.bayes_opt").check()


@settings(max_examples=30)
@given(rows=st.sets(st.tuples(*(st.integers(0, 3) for _ in range(4))), min_size=1, max_size=40))
def test_kernel_tuner_searches_just_what_is_listed(rows: set[tuple[int, ...]]) -> None:
    names = ["a", "b", "c", "d"]
    cache = {"tune_params_keys": names, "cache": {str(row): dict(zip(names, row, strict=True)) for row in rows}}
    space = Searchspace({name: [0, 1, 2, 3] for name in names}, [listed(cache)], 10**9)
    assert sorted(map(tuple, space.list)) == sorted(rows)
    assert all(space.is_param_config_valid(row) for row in rows)


QUICK = BlendOptions(ForestOptions(trees=2, validation_trees=2), RankingOptions(members=1, steps=20))


@pytest.mark.slow
def test_the_guided_search_takes_a_model_that_never_saw_the_problem_and_stops_by_itself(
    play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where the store is
    monkeypatch.setattr(
        sampler_contender, "held_out", lambda table, folder: HeldOutModels((table.absolute(),), folder, QUICK)
    )
    tried = play("guided", 200, seed=1)
    assert len(set(tried)) == len(tried) < 200
    assert play("guided", 200, seed=2) == tried
    (path,) = (tmp_path / ".tilescout" / "models").rglob("*.npz")  # and kept for the next search
    assert str(PROBLEM) not in load_model(path)[1].problems


@pytest.mark.slow
def test_models_leave_out_a_shape_as_a_whole(part_of_table: Callable[..., Table], tmp_path: Path) -> None:
    part = part_of_table("1000x1000x1000:bf16", "1024x1024x1024:bf16", "64x8192x8192:bf16", rows=60)
    models = HeldOutModels((part.path,), tmp_path, QUICK)
    near = ("1000x1000x1000:bf16", "1024x1024x1024:bf16")
    assert [models.of_shape(name) for name in near] == [near, near]
    models.without(models.of_shape(near[0]))
    (path,) = tmp_path.glob("*.npz")
    assert load_model(path)[1].problems == ("64x8192x8192:bf16",)


class OwnGuidedSampler(GuidedSampler):
    """Guided as a sampler of somebody's own, which uses a model too."""


@pytest.mark.slow
def test_any_sampler_that_uses_a_model_gets_one_that_never_saw_the_problem(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = []

    def without(table: Path, folder: Path, problem: str) -> CostModel:
        models.append((folder, problem))
        return HeldOutModels((table,), folder, QUICK).without([problem])

    monkeypatch.setattr(sampler_contender, "_model_without", without)
    contender = contender_of(OwnGuidedSampler, tmp_path)
    contender.check()
    assert contender.deterministic
    assert len(contender.play(ReplayEngine(table, template_of(table)), PROBLEM, 5, 0)) == 5
    assert models == [(tmp_path, str(PROBLEM))]


def test_an_object_whose_model_saw_the_problem_is_refused(table: Table) -> None:
    contender = contender_of(GuidedSampler())
    with pytest.raises(SamplerError, match=r"its cost model was trained on 512x512x512:bf16, which is replayed"):
        contender.play(ReplayEngine(table, template_of(table)), PROBLEM, 5, 0)


def test_an_object_gets_the_seed_of_each_search(table: Table) -> None:
    engine = ReplayEngine(table, template_of(table))
    contender = contender_of(RandomSampler(seed=5))
    tried = [list(contender.play(engine, PROBLEM, 6, seed)) for seed in (1, 1, 2)]
    assert tried[0] == tried[1] != tried[2]
    assert contender_of(optuna.samplers.RandomSampler(seed=5)).seeds == 1


def test_a_class_that_other_processes_can_not_import_is_refused() -> None:
    class Local(RandomSampler):
        pass

    with pytest.raises(SamplerError, match=r"Local runs in other processes, which import it: define it in a module"):
        check_contenders([Local])
    with pytest.raises(SamplerError, match="random is named twice"):
        check_contenders(["random", RandomSampler])


def test_a_contender_says_how_often_it_is_worth_searching() -> None:
    assert parse_contender("tpe:seeds=3").seeds == 3
    assert parse_contender("tpe").seeds > 1000
    fixed = {
        name for name in ("tpe", "guided", "exhaustive", "ranking.quack:top=2") if parse_contender(name).deterministic
    }
    assert fixed == {"guided", "exhaustive", "ranking.quack:top=2"}
    with pytest.raises(SamplerError, match="seeds"):
        parse_contender("tpe:seeds=0")


def test_a_search_tries_the_default_first_if_it_is_told_to(play: Play, table: Table) -> None:
    recording = RecordedSpace.of(table, template_of(table), PROBLEM)
    default = recording.space.index(recording.default)
    assert play("random:default=1", 5, seed=1)[0] == default
    assert default not in play("random", 5, seed=1)


@pytest.mark.skipif(not is_installed(), reason="nvidia-matmul-heuristics is not installed")
def test_the_heuristics_are_measured_from_the_top(play: Play) -> None:
    tried = play("ranking.heuristics:top=5", 200, seed=0)
    assert 1 <= len(set(tried)) == len(tried) <= 5
    assert play("ranking.heuristics", 200, seed=0)[: len(tried)] == tried


def test_a_search_that_stops_by_itself_goes_on_if_it_is_told_to(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilescout.search.samplers.guided.sampler.GuidedSampler.done", lambda sampler, study: "enough")
    assert play("guided-cold", 12, seed=1) == []
    assert len(play("guided-cold:whole=1", 12, seed=1)) == 12
    with pytest.raises(SamplerError, match="option whole can't be 2"):
        play("guided-cold:whole=2", 12, seed=1)


@pytest.mark.parametrize("name", AUTOTUNERS)
def test_a_librarys_own_autotuner_measures_its_list_and_chooses_the_fastest_of_it(table: Table, name: str) -> None:
    tuner = parse_contender(name)
    assert isinstance(tuner, Autotuner)
    try:
        tuner.check()
    except SamplerError as error:
        pytest.skip(str(error))
    engine = ReplayEngine(table, template_of(table))
    recording = engine.recording(PROBLEM)
    tried = list(tuner.play(engine, PROBLEM, 100, seed=0))
    ranking = f"ranking.{name.split('.')[0]}"
    assert tried == list(parse_contender(ranking).play(engine, PROBLEM, 100, seed=0))
    times = {index: milliseconds(recording, index) for index in tried}
    assert tuner.tune(tried, times.__getitem__, PROBLEM.m) == min(times, key=times.__getitem__)
    assert tuner.tune(tried, lambda index: float("inf"), PROBLEM.m) is None


@pytest.mark.parametrize("name", AUTOTUNERS)
def test_a_librarys_autotuner_that_is_not_here_or_has_options_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name.split(".")[0], None)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SamplerError, match="pip install"):
        parse_contender(name).check()
    with pytest.raises(SamplerError, match="no options"):
        parse_contender(f"{name}:top=3").check()


def test_a_text_in_the_place_of_several_and_an_empty_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SamplerError, match="`samplers` is 'random', expected a sequence"):
        compare("random")
    for name in ("tables", "problems"):
        with pytest.raises(TableError, match=f"`{name}` is '512x512x512', expected a sequence"):
            compare(["random"], **{name: "512x512x512"})  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="the name of the folder `out` is empty"):
        compare(["random"], problems=["512x512x512:bf16"], trials=1, seeds=1, out="")
    assert not list(tmp_path.iterdir())

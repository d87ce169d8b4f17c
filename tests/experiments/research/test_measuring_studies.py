"""The studies that measure, from the command line to the file, on kernels that run on the host."""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.search.tables.invented_card import card_of
from tilescout.experiments.research.llama_block import BlockSizes
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies import (
    objectives,
    race_designs,
    settling,
    timelines,
    tunings_judged,
    tunings_out_of_sample,
)
from tilescout.experiments.research.studies.tunings_out_of_sample import HEATS, RACE, figures, raced
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.card import Baseline
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import write_table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions
from tilescout.spaces import devices, templates
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

HOST = Device("host", "CPU", "host", sms=1, shared_memory=1, l2=1, bandwidth=1e13, peak=1e15)
PROBLEM = GemmProblem(64, 64, 64)
LIBRARY_US = 50.0


@pytest.fixture(scope="module")
def plain_gemm() -> Iterator[ModuleType]:
    """Kernels for the host, known by their name as those of a GPU are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(templates._BUILT_IN, "plain_gemm", "plain_gemm:TEMPLATE")
        patch.setitem(devices.DEVICES, "host", HOST)
        for measuring in (objectives, race_designs, settling, timelines):
            patch.setattr(measuring, "HEATING_US", 50_000.0)  # a processor has no power cap to reach
        yield importlib.import_module("plain_gemm")


@pytest.fixture(scope="module")
def engine(plain_gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """An engine on which nothing is heated for long."""
    live = LiveOptions(CompileOptions(processes=1, standby=False), ProtocolOptions(heating_us=1000.0))
    with LocalEngine(plain_gemm.TEMPLATE, tmp_path_factory.mktemp("store"), ["cpu"], HOST, live) as engine:
        yield engine


@pytest.fixture(scope="module")
def table(plain_gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of the three right kernels, the slowest of which is half as slow again as the fastest."""
    template = plain_gemm.TEMPLATE
    rows: list[Row] = []
    for ratio, repeats in ((1.0, 1), (1.3, 2), (1.5, 4)):
        timing = Timing(ratio, ratio * 0.99, ratio * 1.01, ratio, ratio, LIBRARY_US, 9)
        configuration = Configuration.of({"fault": "nothing", "repeats": repeats})
        rows.append((configuration, PROBLEM, Measurement(Status.OK, timing=timing, pilot_us=ratio * LIBRARY_US)))
    card = card_of(template, HOST, {PROBLEM: Baseline(Configuration.of(rows[0][0]), LIBRARY_US)})
    return str(write_table(tmp_path_factory.mktemp("table") / "plain.parquet", card, rows).path)


@pytest.fixture
def measure(study: Callable[..., None], table: str, tmp_path: Path) -> Callable[..., Record]:
    """A function: run a study on the table and return what it wrote."""

    def measure(name: str, *options: str) -> Record:
        out = tmp_path / f"{name}.json"
        study(name, table, "--device", "cpu", "--store", str(tmp_path), "--out", str(out), *options)
        return Record.read(out)

    return measure


ON_PROBLEM = ("--problem", str(PROBLEM), "--good", "2", "--rounds", "3")


@pytest.mark.slow
def test_races_are_recorded_and_replayed(measure: Callable[..., Record], capsys: pytest.CaptureFixture[str]) -> None:
    record = measure("race-designs", "--problem", str(PROBLEM), "--good", "2", "--heats", "2", "--rounds", "60",
                     "--races", "2")  # fmt: skip
    found = record.result["problems"][str(PROBLEM)]
    assert record.about["study"] == "race-designs"
    assert found["library_us"] > 0
    assert [len(heat) for heat in found["ratios"]] == [60, 60]
    assert "2 heats of 60 rounds" in capsys.readouterr().out


@pytest.mark.slow
def test_every_block_of_each_manner_is_recorded(measure: Callable[..., Record]) -> None:
    manners = measure("timelines", *ON_PROBLEM).result["problems"][str(PROBLEM)]
    assert list(manners) == ["dense", "verified", "paused"]
    for found in manners.values():
        assert len(found["records"]) == 3 * 2
        assert all(each["queues"] for each in found["records"])


@pytest.mark.slow
def test_what_references_are_worth_is_worked_out_for_every_set_up(measure: Callable[..., Record]) -> None:
    options = ("--pairs", "4", "--block-us", "300", "--block-us", "600", "--cold-l2", "4")
    setups = measure("reference", *ON_PROBLEM, *options).result[str(PROBLEM)]
    assert list(setups) == ["blocks of 300 us, inputs of 4 L2", "blocks of 600 us, inputs of 4 L2"]
    for setup in setups.values():
        assert setup["spread"]["library beside it"]["spread"] >= 0
        assert len(setup["raw"]["beside"]) == 3


@pytest.mark.slow
def test_settling_is_measured_for_every_length(measure: Callable[..., Record]) -> None:
    options = ("--few", "1", "--settling-us", "0", "--settling-us", "500")
    found = measure("settling", *ON_PROBLEM, *options).result[str(PROBLEM)]
    assert list(found) == ["0 us", "500 us"]
    assert all(length["few_pairs_over_race"] > 0 for length in found.values())


@pytest.mark.slow
def test_an_answer_races_against_the_fastest_of_a_table(engine: LocalEngine) -> None:
    one, four = (Configuration.of({"fault": "nothing", "repeats": repeats}) for repeats in (1, 4))
    logs = raced(engine, PROBLEM, {"answer": four, "default": one, "table 1": one})
    assert np.shape(logs["answer"]) == (HEATS, RACE.look)
    assert logs["default"] == logs["table 1"]  # one kernel, measured once
    result = {"trials": 3, "gpu_seconds": 1.0, "stopped": ""}
    kept = {"result": result, "wall_seconds": 1.0, "compiled": 3, "race": logs}
    # Which is the faster is not said: a busy host has had the one win that does the work four times.
    behind = np.mean(np.asarray(logs["answer"]) - np.asarray(logs["table 1"]))
    assert figures(kept)["regret"][0] == pytest.approx(np.expm1(behind))


@pytest.mark.slow
def test_the_rows_of_a_table_race(measure: Callable[..., Record]) -> None:
    record = measure("race-table", "--count", "2")
    outcome = record.result["problems"][str(PROBLEM)]
    assert record.result["device"] == "CPU"
    one, two = ({"fault": "nothing", "repeats": repeats} for repeats in (1, 2))
    assert outcome["default"] == one
    times = {each["configuration"]["repeats"]: each["time_over_library"]["value"] for each in outcome["raced"]}
    assert set(times) == {1, 2}
    # Which is the faster is not said: a busy host once had the one that works twice win.
    assert outcome["best"] in (one, two)
    assert outcome["speedup_over_library"]["value"] == pytest.approx(1 / times[outcome["best"]["repeats"]])
    assert outcome["default_over_library"]["value"] == pytest.approx(1 / times[1])


@pytest.mark.slow
def test_products_and_blocks_are_measured_by_both_objectives_and_their_file_is_printed_again(
    study: Callable[..., None],
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(objectives.MODELS, "llama3-8b", BlockSizes(64, 64, heads=4, kv_heads=4))
    options = ("--model", "llama3-8b", "--rows", "64", "--repeats", "1", "--heats", "2", "--rounds", "3")
    places = ("--device", "cpu", "--store", str(tmp_path), "--out", str(tmp_path / "out"))
    study("objectives", "--table", table, *options, *places)

    printed, file = capsys.readouterr().out, tmp_path / "out" / "objectives.json"
    measured = Record.read(file).result
    [(text, product)] = measured["products"].items()
    [(title, block)] = measured["blocks"].items()
    assert (text, title) == (str(PROBLEM), "llama3-8b 64")
    assert not product["errors"]
    for name in ("default", "best 1"):
        assert {each: len(repeats) for each, repeats in product["ratios"][name].items()} == {"chain": 1, "sandwich": 1}
    assert block["counts"] == {text: 7}
    assert not block["errors"]
    assert [len(heat) for heat in block["ratios"]["default"]] == [3, 3]
    assert "the default that follows: " in printed

    study("objectives", "--again", str(file))
    again = capsys.readouterr().out
    assert again == printed[-len(again) :]


@pytest.mark.slow
def test_tuners_compete_live_on_the_same_kernels_and_others_join_them(
    study: Callable[..., None], plain_gemm: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    within, out, listed = tmp_path / "within.toml", tmp_path / "field.json", tmp_path / "list.json"
    within.write_text('about = "the right ones, and one that is wrong"\n[[part]]\nfault = ["nothing", "corner"]\n')
    listed.write_text('[{"fault": "nothing", "repeats": 4}]')
    rank = f"ranking.{listed}"
    for tuners in (("default", rank), ("default", "tune.random", "random", rank)):
        study(
            *("field", "--space", "plain_gemm", "--problem", str(PROBLEM), "--within", str(within)),
            *(word for tuner in tuners for word in ("--tuner", tuner)),
            *("--trials", "4", "--searches", "1", "--processes", "1", "--seconds", "100", "--device", "cpu"),
            *("--store", str(tmp_path), "--out", str(out)),
        )
    result = Record.read(out).result
    record = result["problems"][str(PROBLEM)]
    assert list(result["earlier"]) == [str(PROBLEM)]
    runs = {run["tuner"]: run for run in record["runs"]}
    assert list(runs) == ["default", rank, "tune.random", "random"]
    assert not [run["error"] for run in runs.values() if run["error"]]
    assert runs["default"]["kernels"] == 0
    assert runs["default"]["answer"] == record["default"]
    assert runs[rank]["kernels"] == 1
    assert record["configurations"][str(runs[rank]["answer"])] == {"fault": "nothing", "repeats": 4}
    assert {configuration["fault"] for configuration in record["configurations"].values()} == {"nothing"}
    assert all(run["gpu_seconds"] > 0 for run in runs.values() if run["kernels"])
    capsys.readouterr()
    study("field", "--again", str(out))
    shown = capsys.readouterr().out
    assert "tune.random" in shown
    assert "slower than the default" in shown


@pytest.mark.slow
def test_ranks_that_tune_side_by_side_are_compared_by_the_races_of_all(
    study: Callable[..., None], plain_gemm: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    within, out = tmp_path / "within.toml", tmp_path / "ranks.json"
    within.write_text('about = "the right ones, and one that is wrong"\n[[part]]\nfault = ["corner", "nothing"]\n')
    study(
        *("ranks", "--space", "plain_gemm", "--problem", str(PROBLEM), "--within", str(within)),
        *("--device", "cpu", "--device", "cpu", "--tuner", "default", "--tuner", "random", "--trials", "2"),
        *("--processes", "1", "--seconds", "100", "--store", str(tmp_path), "--out", str(out)),
    )
    record = Record.read(out).result["problems"][str(PROBLEM)]
    assert len(record["ranks"]) == 2
    answers = {run["answer"] for rank in record["ranks"] for run in rank["runs"]}
    for rank in record["ranks"]:
        assert {run["tuner"]: bool(run["error"]) for run in rank["runs"]} == {"default": False, "random": False}
        assert answers <= {int(index) for index in rank["race"]}
        assert {each["fault"] for each in rank["configurations"].values()} == {"nothing"}
        assert rank["runs"][0]["answer"] == record["default"]
    capsys.readouterr()
    study("ranks", "--again", str(out))
    assert "regret of the slowest rank" in capsys.readouterr().out


def test_an_answer_is_judged_by_a_race_against_the_best_of_a_longer_search(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def invented(
        engine: LocalEngine, problem: GemmProblem, runners: Mapping[str, Configuration]
    ) -> dict[str, list[list[float]]]:
        """A race on a host that nothing else loads: as much work takes as much time."""
        return {name: [[math.log(int(each["repeats"]))] * 3] * 2 for name, each in runners.items()}

    monkeypatch.setattr(tunings_judged, "raced", invented)
    # A busy host may take the faster one to be clearly slow, and give it up: both race, whatever was measured.
    monkeypatch.setattr(tunings_judged, "leaders", lambda result: result.trials)
    fast, slow = (Configuration.of({"fault": "nothing", "repeats": repeats}) for repeats in (1, 4))
    monkeypatch.setattr(type(engine.template), "default", lambda template, problem, device: slow)
    behind = [engine.space(PROBLEM).index(fast)]  # what the tuning has no budget for
    options = TuneOptions("random", 0, Budget(1), tmp_path, first=behind, race=RaceOptions(look=3, looks=1))
    found = tunings_judged.judged({"plain_gemm": engine}, PROBLEM, options, 1)
    assert [one["trials"] for one in found["tuned"]] == [1]
    assert [one["trials"] for one in found["all"]] == [2]
    times = {name: np.mean(logs) for name, logs in found["race"].items()}
    assert times[found["best"]] == min(times.values()) == 0
    assert set(found["again"]) == {"answer", found["best"]}
    value, low, high = found["regret"]
    assert value == pytest.approx(3.0)  # the answer does the work four times
    assert low < value < high
    assert found["regret"] == tunings_judged.regret(found["again"]["answer"], found["again"][found["best"]])


def test_an_answer_that_no_longer_search_beats_has_no_regret(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunings_out_of_sample, "HEATS", 2)
    slow = Configuration.of({"fault": "nothing", "repeats": 4})
    behind = [engine.space(PROBLEM).index(slow)]
    options = TuneOptions("random", 0, Budget(1), tmp_path, first=behind, race=RaceOptions(look=3, looks=1))
    found = tunings_judged.judged({"plain_gemm": engine}, PROBLEM, options, 1)
    assert found["race"]["answer"] == found["race"][found["best"]]
    assert found["again"] == {}
    assert found["regret"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("named", [(), ("--drawn", "1", "--suite", "odd")])
def test_problems_to_judge_by_are_drawn_or_those_of_a_suite(
    named: tuple[str, ...], study: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    study("tunings-judged", *named, code=2)
    assert "name a seed to draw by, or a suite" in capsys.readouterr().err


TWICE = (tunings_judged.Search("random"), tunings_judged.Search("random"))


def test_a_search_by_other_models_is_named_by_their_folder_and_has_them(tmp_path: Path) -> None:
    options = TuneOptions("random", 0, Budget(2), tmp_path, settings={"options": {}})
    shipped, before = (tunings_judged.Search("guided", models) for models in (None, tmp_path / "before"))

    assert [str(shipped), str(before)] == ["guided", "guided by before"]
    assert shipped.applied(options).settings == options.settings
    assert before.applied(options).settings == {"options": {}, "model": tmp_path / "before"}
    assert {each.applied(options).sampler for each in (shipped, before)} == {"guided"}


@pytest.mark.slow
def test_tunings_from_a_portfolio_race_too_and_leave_none_of_their_kernels_behind(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunings_out_of_sample, "HEATS", 2)
    fast, slow = (Configuration.of({"fault": "nothing", "repeats": repeats}) for repeats in (1, 4))
    monkeypatch.setattr(type(engine.template), "default", lambda template, problem, device: slow)
    monkeypatch.setattr(type(engine.template), "portfolio", lambda template, problem, device: [slow])
    behind = [engine.space(PROBLEM).index(fast)]  # what is compiled beside the portfolio
    options = TuneOptions("random", 0, Budget(2), tmp_path, first=behind, race=RaceOptions(look=3, looks=1))
    live = LiveOptions(CompileOptions(processes=1, standby=False), ProtocolOptions(heating_us=1000.0))
    with LocalEngine(engine.template, artifacts(tmp_path), ["cpu"], HOST, live) as own:
        stocked = tunings_judged.Beside({"plain_gemm": own}, tmp_path, TWICE, portfolio=True)
        found = tunings_judged.judged({"plain_gemm": engine}, PROBLEM, options, 0, [stocked])
        assert own.stored(PROBLEM.signature) == [slow]
    (beside,) = found["beside"].values()
    assert beside["compiled"] == 1
    assert [one["trials"] for one in beside["tuned"]] == [2]
    assert "random from the portfolio" in found["race"]
    assert beside["regret"][1] <= beside["regret"][0] <= beside["regret"][2]
    assert "1 compiled" in tunings_judged.line("plain", found)


@pytest.mark.slow
def test_tunings_from_an_empty_store_race_too_and_each_finds_it_empty(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunings_out_of_sample, "HEATS", 2)
    behind = [engine.space(PROBLEM).index(Configuration.of({"fault": "nothing", "repeats": 2}))]
    options = TuneOptions("random", 0, Budget(2), tmp_path, first=behind, race=RaceOptions(look=3, looks=1))
    live = LiveOptions(CompileOptions(processes=1, standby=False), ProtocolOptions(heating_us=1000.0))
    with LocalEngine(engine.template, artifacts(tmp_path), ["cpu"], HOST, live) as own:
        anew = tunings_judged.Beside({"plain_gemm": own}, tmp_path, TWICE, portfolio=False)
        found = anew.tuned(PROBLEM, options)
        assert own.stored(PROBLEM.signature) == []
    (tuned,) = found.values()
    assert set(found) == {"random from an empty store"}
    assert tuned.compiled == 2

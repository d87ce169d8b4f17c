"""Whatever a file or an argument holds, every parser reads it or says what is wrong with it, in one line of ours."""

import gzip
import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.samplers import RandomSampler

from tilescout.experiments.commands.dispatcher import print_dispatcher
from tilescout.experiments.commands.options import changed_default
from tilescout.experiments.compare.rankings import ranked
from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.dispatch.dispatcher import read_dispatcher
from tilescout.search.export.bundle import read_bundle
from tilescout.search.export.from_studies import read_outcomes
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.samplers.base import distributions
from tilescout.search.studies.journal_folder import JournalFolder, open_study
from tilescout.search.studies.trials import finished_trials, record_outcome, recover
from tilescout.search.tables.card import TableCard
from tilescout.search.tables.result_forms import Told
from tilescout.search.tables.results import read_results
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import card_path, write_table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.suite import parse_suite
from tilescout.spaces.templates import find_template
from tilescout.spaces.terminal import Console

TEMPLATE = find_template("gemm_sm90")
SPACE = TEMPLATE.space(GemmProblem(1024, 1024, 1024), find_device("h200"))
SMALL_SPACE = SPACE.subset(np.arange(1000))

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(2**31) - 1, 0, 1e308, float("nan"), float("inf"), -0.0, "\x00", "\ud800", "../x"])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def edited(draw: st.DrawFn, document: Any) -> Any:
    """A copy of a JSON document in which one to three things, anywhere, are replaced, left out or added."""
    copy = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = [copy], 0
        while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 5)):
            holder = holder[key]
            keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
            key = draw(st.sampled_from(list(keys)))
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "remove" if holder is not copy:
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(st.text(max_size=4))] = draw(JUNK)
            case _:
                holder[key] = draw(JUNK)
        copy = copy if isinstance(copy, dict | list) else [copy]
    return copy


def read_or_refuse(parse: Callable[[], object]) -> None:
    """An error of ours, on one line, is an answer; any other fails the test."""
    refusal = ""
    try:
        parse()
    except TilescoutError as error:
        refusal = str(error) or "\n"
    assert len(refusal.splitlines()) <= 1


def texts(*examples: str) -> st.SearchStrategy[str]:
    """Any text, or one of the examples with a piece replaced by any text."""

    def spliced(example: str) -> st.SearchStrategy[str]:
        places = st.integers(0, len(example))
        return st.tuples(places, places, st.text(max_size=6) | st.sampled_from("0123456789:x-+=[]{}\"'\n,.")).map(
            lambda cut: example[: min(cut[:2])] + cut[2] + example[max(cut[:2]) :]
        )

    return st.text() | st.sampled_from(examples).flatmap(spliced)


@given(texts("2048x4096x4096x2:bf16-fp32:kn:alpha+bias+gelu", "8x8x8", "1x1x1:e4m3-bf16"))
def test_problems(text: str) -> None:
    read_or_refuse(lambda: TEMPLATE.check(TEMPLATE.parse(text)))
    read_or_refuse(lambda: NamedProblem.parse(text))


@given(texts("bf16-fp32:kn:bias+relu", "e4m3", "fp16:mn"))
def test_signatures(text: str) -> None:
    read_or_refuse(lambda: GemmProblem.small(text))


@given(st.lists(texts("tile_m=128", "raster=m", "stages=4"), max_size=3))
def test_knobs_on_the_command_line(settings_: list[str]) -> None:
    read_or_refuse(lambda: changed_default(TEMPLATE, SPACE, settings_))


SUITE = """
title = "t"
source = "s"
dtype = "bf16"
problems = ["8x8x8:bf16", { problem = "16x16x16:bf16", label = "l", count = 2 }]
[tokens]
decode = [1, 2]
training = [4096]
[[product]]
name = "q"
n = 512
k = 512
count = 2
experts = [2, 8]
"""


@pytest.mark.slow
@settings(max_examples=300)
@given(texts(SUITE) | st.integers(1, 3000).map(lambda depth: "problems = " + "[" * depth))
def test_suites(text: str) -> None:
    read_or_refuse(lambda: parse_suite("s", text).parsed(TEMPLATE.parse))


@pytest.mark.parametrize("given_", ['"bf16"\n', "[1, 2]", "512", "[2, 8]", '"q"', '"8x8x8:bf16"', '"l"'])
def test_suites_with_values_of_other_types(given_: str) -> None:
    values = ["0", "-1", "1.5", "nan", "inf", '""', "[]", "[0, 0]", "[1, 0]", "{}", "true", "1979-05-27", "9" * 400]
    for value in values:
        read_or_refuse(partial(parse_suite, "s", SUITE.replace(given_, f"{value}\n")))


CARD = json.loads(card_path(shipped_tables()[0]).read_bytes())


@pytest.mark.slow
@given(edited(CARD))
def test_cards(record: Any) -> None:
    read_or_refuse(lambda: TableCard.from_json(json.dumps(record)))


RATIO = {"value": 0.9, "low": 0.8, "high": 1.0}
LIBRARY = b"a library"
DIGEST, SHA256 = "ab" * 32, hashlib.sha256(LIBRARY).hexdigest()
EVIDENCE = {
    "study": "s", "reason": "r", "ratio": 0.9, "low": 0.8, "high": 1.0, "rounds": 9, "measured_by": "H200",
    "versions": {"torch": "2.11"},
}  # fmt: skip
BUNDLE = {
    "kind": "tilescout bundle",
    "format": 4,
    "arch": "sm_90a",
    "device": "h200",
    "versions": {},
    "decisions": [{"problem": "8x8x8:bf16", "choice": "ours", "kernel": DIGEST, "evidence": EVIDENCE}],
    "kernels": {
        DIGEST: {
            "file": f"kernels/{DIGEST}.so",
            "sha256": SHA256,
            "function": "f",
            "workload": "tilescout.spaces.gemm:Gemm",
            "blocks_per_cluster": 1,
            "key": {},
            "library": "",
        }
    },
    "dispatches": [
        {
            "problem": "1x16x8:bf16",
            "ranges": [
                {"low": 1, "high": 64, "kernel": DIGEST, "proven": True},
                {"low": 65, "high": 99, "kernel": "", "proven": False},
            ],
            "dispatcher": "d", "measured_by": "H200", "versions": {}, "sizes": [1, 64], "over_library": 0.99,
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def write_index(folder: Path, record: Any) -> None:
    """An index whose own checksum is right, as whoever means harm would write it."""
    if isinstance(record, dict):
        digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
        record = {**record, "digest": digest}
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / f"{DIGEST}.so").write_bytes(LIBRARY)
    (folder / "bundle.json").write_text(json.dumps(record))


def test_the_bundle_that_is_edited_is_one(folder: Path) -> None:
    write_index(folder, BUNDLE)
    assert read_bundle(folder).ours


@pytest.mark.slow
@given(record=edited(BUNDLE))
@settings(max_examples=200)
def test_bundles(folder: Path, record: Any) -> None:
    write_index(folder, record)
    read_or_refuse(lambda: [str(each) for each in read_bundle(folder).ranges.values()])


DISPATCHER = {
    "kind": "tilescout dispatcher", "format": 1, "problem": "1x4096x4096:bf16", "space": "gemm_sm90", "space_hash": "h",
    "device": "h200", "measured_by": "H200", "most_rows": 128, "kernels": [dict(SPACE[0]), dict(SPACE[1])],
    "versions": {"torch": "2.11"}, "bound": None, "counts": [{"kernels": 1, "mean": 0.1, "worst": 0.2}],
    "ranges": [{"low": 1, "high": 64, "kernel": 0, "proven": True}, {"low": 65, "high": 128, "kernel": None}],
    "points": [
        {"m": 64, "library_us": 20.0, "ratios": {"0": RATIO}, "slower": {}, "failed": {"1": "x"}, "seconds": 1.0},
        {"m": 128, "library_us": 21.0, "ratios": {}, "slower": {"0": 1.5}, "failed": {}, "seconds": 1.0},
    ],
    "regret": {"mean": 0.1, "worst": 0.2, "at": 3},
}  # fmt: skip


@pytest.mark.slow
@given(record=edited(DISPATCHER))
def test_dispatchers(folder: Path, record: Any) -> None:
    (folder / "dispatcher.json").write_text(json.dumps(record))
    read_or_refuse(lambda: print_dispatcher(read_dispatcher(folder / "dispatcher.json"), Console(file=io.StringIO())))


def test_the_dispatcher_that_is_edited_is_one(folder: Path) -> None:
    (folder / "dispatcher.json").write_text(json.dumps(DISPATCHER))
    assert read_dispatcher(folder / "dispatcher.json").find(64) == 0


@given(record=edited([{"tile_m": 128, "raster": "m"}, {"stages": 4}]))
def test_rankings(folder: Path, record: Any) -> None:
    (folder / "ranking.json").write_text(json.dumps(record))
    read_or_refuse(lambda: ranked(TEMPLATE, SMALL_SPACE, str(folder / "ranking.json")))


STATE = {
    "kind": "tilescout autotune state",
    "format": 1,
    "setting": {"gpu": "NVIDIA H200"},
    "state": {"name": "x", "bundle": SHA256, "unfinished": 1},
}


@given(record=st.just(STATE) | edited(STATE), text=st.none() | st.binary())
def test_states_of_evidence_stores(folder: Path, record: Any, text: bytes | None) -> None:
    store = EvidenceStore(folder, {}, TEMPLATE)
    (store.folder / "state.json").write_bytes(json.dumps(record).encode() if text is None else text)
    read_or_refuse(store.state)
    if record == STATE and text is None:
        assert store.state().bundle == SHA256


@given(text=st.binary() | st.integers(1, 200_000).map(lambda depth: b"[" * depth))
def test_indices_and_results_of_any_bytes(folder: Path, text: bytes) -> None:
    (folder / "bundle.json").write_bytes(text)
    read_or_refuse(lambda: read_bundle(folder))
    read_or_refuse(lambda: read_outcomes([str(folder / "bundle.json")], folder))
    read_or_refuse(lambda: read_results(folder / "bundle.json"))
    read_or_refuse(lambda: TableCard.from_json(text))


RESULT = {
    "study": "s",
    "space": "gemm_sm90",
    "space_hash": "h",
    "problem": "8x8x8:bf16",
    "device": "h200",
    "measured_by": {"kind": "live", "description": "H200"},
    "versions": {"torch": "2.11"},
    "best": {"configuration": {"tile_m": 128}},
    "library": {"name": "torch.mm"},
    "race": {"speedup_over_library": {"value": 1.1, "low": 1.0, "high": 1.2}, "rounds": 9},
    "not_raced": "",
}


@given(record=edited(RESULT))
def test_results(folder: Path, record: Any) -> None:
    (folder / "result.json").write_text(json.dumps(record))
    read_or_refuse(lambda: read_outcomes([str(folder / "result.json")], folder))


CACHE = {
    "device_name": "NVIDIA H200",
    "kernel_name": "k",
    "problem_size": [16, 16],
    "tune_params_keys": ["a", "b"],
    "tune_params": {"a": [1, 2], "b": [0.5, 1]},
    "objective": "time",
    "cache": {
        "1,0.5": {"a": 1, "b": 0.5, "time": 2.5, "times": [2.4, 2.6], "compile_time": 3.0, "timestamp": "2026-11-21"},
        "2,1": {"a": 2, "b": 1, "time": "RuntimeFailedConfig", "benchmark_time": 1},
    },
}


T4 = {
    "metadata": {"timeunit": "milliseconds", "device": "NVIDIA H200"},
    "results": [
        {
            "configuration": {"a": 1, "b": "2"},
            "times": {"compilation": 3.0, "validation": 0, "runtimes": [2.4, 2.6]},
            "measurements": [{"name": "time", "value": 2.5, "unit": ""}],
            "invalidity": "correct",
            "objectives": ["time"],
            "timestamp": "2026-11-21",
        },
        {"configuration": {"a": 2, "b": "2"}, "times": {}, "invalidity": "compile", "measurements": []},
    ],
}
KTT = {
    "Metadata": {"Device": "NVIDIA H200", "TimeUnit": "Microseconds", "Timestamp": "2026-11-21 1:02:3 UTC"},
    "Results": [
        {
            "KernelName": "k",
            "Status": "Ok",
            "TotalDuration": 2.5,
            "Configuration": [{"Name": "a", "Value": 1}, {"Name": "b", "Value": 0.5}],
            "ComputationResults": [{"Duration": 2.5, "Overhead": 7.0}],
        },
        {"Status": "ComputationFailed", "Configuration": [{"Name": "a", "Value": 2}, {"Name": "b", "Value": 0.5}]},
    ],
}
LISTED = [{"a": 1, "b": 2, "time": 2.5, "GFLOP/s": 3.0}, {"a": 2, "b": 2, "time": 1e20}]
TOLD = st.builds(
    Told,
    kernel=st.just("k"),
    device=st.just("NVIDIA H200"),
    problem=st.just("p"),
    objective=st.sampled_from([None, "time", "GFLOP/s", "Overhead"]),
    maximize=st.sampled_from([None, True]),
    unit=st.sampled_from([None, "ns"]),
    parameters=st.sampled_from([(), ("b",), ("a", "a")]),
)


@pytest.mark.slow
@given(record=edited(CACHE) | edited(T4) | edited(KTT) | edited(LISTED), told=TOLD | st.just(Told()))
@settings(max_examples=300)
def test_results_of_other_tuners(folder: Path, record: Any, told: Told) -> None:
    (folder / "cache.json").write_text(json.dumps(record))
    read_or_refuse(lambda: write_table(folder / "table.parquet", *read_results(folder / "cache.json", told)))


@given(data=st.data())
def test_compressed_cache_files_of_kernel_tuner(folder: Path, data: st.DataObject) -> None:
    content = bytearray(gzip.compress(json.dumps(CACHE).encode()))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(2, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "cache.json.gz").write_bytes(content[: data.draw(st.integers(2, len(content)))])
    read_or_refuse(lambda: read_results(folder / "cache.json.gz"))


@pytest.fixture(scope="module")
def journal(folder: Path) -> list[Any]:
    """The records of a study: a trial that was timed, one that failed, one in flight; and a result."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    timing = Timing(1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 3)
    outcomes = [Measurement(Status.OK, timing=timing), Measurement(Status.WRONG, "x")]
    with open_study(folder / "made.journal", RandomSampler(seed=0)) as study:
        study.set_user_attr("result", RESULT)
        for index in range(3):
            study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[index]), strict=True)))
            trial = study.ask({**distributions(SPACE)})
            if index < 2:
                record_outcome(study, trial, outcomes[index])
    return [json.loads(line) for line in (folder / "made.journal").read_text().splitlines()]


def read_study(path: Path) -> None:
    JournalFolder(path.parent).result(path.stem)
    with open_study(path, RandomSampler(seed=0)) as study:
        finished_trials(study, SPACE)
        recover(study, SPACE)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=200)
def test_records_of_a_study(folder: Path, journal: list[Any], data: st.DataObject) -> None:
    path = folder / "made.journal"
    lines = [json.dumps(record) for record in journal]
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = json.dumps(data.draw(edited(journal[at])))
    path.write_text("\n".join(lines) + "\n")
    read_or_refuse(lambda: read_study(path))


RACE = {
    "winner": 1,
    "answer": 0,
    "verdict": "",
    "speedup_over_default": RATIO,
    "speedup_over_library": RATIO,
    "probability_fastest": 0.9,
    "rounds": 8,
    "gpu_seconds": 0.1,
    "rounds_of": {"0": 8, "1": 8},
    "time_over_library": {"0": RATIO, "1": RATIO},
}


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=300)
def test_records_of_a_study_that_is_reported(folder: Path, data: st.DataObject) -> None:
    (recorded,) = (Path(__file__).parent / "search" / "studies" / "recorded").glob("gemm_*.journal")
    lines = recorded.read_text().replace('"race":null', f'"race":{json.dumps(RACE)}').splitlines()
    told = [at for at, line in enumerate(lines) if '"op_code":2' in line or '"op_code":8' in line]
    at = data.draw(st.sampled_from(told))
    lines[at] = json.dumps(data.draw(edited(json.loads(lines[at]))))
    (folder / recorded.name).write_text("\n".join(lines) + "\n")
    read_or_refuse(lambda: JournalFolder(folder).read(recorded.stem).to_dict())


@given(data=st.data())
def test_a_study_cut_or_changed_anywhere(folder: Path, journal: list[Any], data: st.DataObject) -> None:
    path = folder / "made.journal"
    content = bytearray("\n".join(map(json.dumps, journal)).encode() + b"\n")
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    read_or_refuse(lambda: read_study(path))

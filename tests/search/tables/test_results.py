"""Results of other tuners, in every form, become the same table; what they do not say is asked for."""

import gzip
import json
import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.search.measure.measurement import Status
from tilescout.search.tables.result_forms import Told
from tilescout.search.tables.result_text import _Reader
from tilescout.search.tables.results import MERGED_TEXT, merged_text, read_results
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import TableError

# One small recording, as each tuner writes it: block sizes 16 and 32, unrolled or not; times in ms.
TIMES = {(16, 0): [2.0, 2.2], (16, 1): [1.0, 1.2], (32, 0): [4.0, 4.4]}
FAILED = (32, 1)
STAMP = "2025-03-04 05:06:07.8+00:00"

CACHE: dict[str, Any] = {
    "device_name": "NVIDIA A100-PCIE-40GB",
    "kernel_name": "stencil",
    "problem_size": [4096, 4096],
    "tune_params_keys": ["block", "unroll"],
    "tune_params": {"block": [16, 32], "unroll": [0, 1]},
    "objective": "time",
    "cache": {
        **{
            f"{block},{unroll}": {
                "block": block, "unroll": unroll, "time": sum(times) / 2, "times": times, "compile_time": 500.0,
                "verification_time": 100.0, "benchmark_time": 50.0, "GFLOP/s": 10 / sum(times), "timestamp": STAMP,
            }
            for (block, unroll), times in TIMES.items()
        },
        "32,1": {"block": 32, "unroll": 1, "time": "RuntimeFailedConfig", "timestamp": STAMP},
    },
}  # fmt: skip
LISTED = list(CACHE["cache"].values())
T4: dict[str, Any] = {
    "schema_version": "1.0.0",
    "results": [
        *(
            {
                "timestamp": STAMP,
                "configuration": {"block": str(block), "unroll": unroll},
                "times": {"compilation": 500.0, "validation": 100.0, "benchmark": 50.0, "runtimes": times},
                "invalidity": "correct",
                "correctness": 1,
                "measurements": [{"name": "GFLOP/s", "value": 10 / sum(times), "unit": ""},
                                 {"name": "time", "value": sum(times) / 2, "unit": ""}],
                "objectives": ["time"],
            }
            for (block, unroll), times in TIMES.items()
        ),
        {"configuration": {"block": "32", "unroll": 1}, "times": {}, "invalidity": "runtime", "correctness": 0,
         "measurements": [{"name": "time", "value": "RuntimeFailedConfig", "unit": ""}], "objectives": ["time"]},
    ],
    "metadata": {"timeunit": "miliseconds"},
}  # fmt: skip
KTT: dict[str, Any] = {
    "Metadata": {"ComputeApi": "CUDA", "Device": "NVIDIA A100-PCIE-40GB", "KttVersion": "2.1.0",
                 "TimeUnit": "Microseconds", "Timestamp": "2025-3-4 05:06:7 UTC"},
    "Results": [
        *(
            {
                "ComputationResults": [{"Duration": sum(times) * 500, "KernelFunction": "stencil", "Overhead": 500e3,
                                        "EnergyConsumption": 7.0 + block}],
                "Configuration": [{"Name": "block", "Value": block, "ValueType": "UnsignedInt"},
                                  {"Name": "unroll", "Value": unroll, "ValueType": "UnsignedInt"}],
                "KernelName": "stencil", "Status": "Ok", "TotalDuration": sum(times) * 500,
                "DataMovementOverhead": 50e3 - sum(times) * 500, "ValidationOverhead": 100e3,
            }
            for (block, unroll), times in TIMES.items()
        ),
        {"ComputationResults": [], "KernelName": "stencil", "Status": "ComputationFailed", "TotalDuration": 0.0,
         "Configuration": [{"Name": "block", "Value": 32}, {"Name": "unroll", "Value": 1}]},
    ],
}  # fmt: skip
TOLD = Told(kernel="stencil", device="NVIDIA A100-PCIE-40GB", problem="4096x4096")
FORMS: dict[str, tuple[Any, Told]] = {
    "cache": (CACHE, Told()),
    "list": (LISTED, TOLD),
    "t4": (T4, TOLD),
    "ktt": (KTT, TOLD),
}


def imported(folder: Path, content: Any, told: Told = TOLD, name: str = "results.json") -> Table:
    text = json.dumps(content)
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return write_table(folder / "table.parquet", *read_results(folder / name, told))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_same_table(tmp_path: Path, form: str) -> None:
    content, told = FORMS[form]
    table = imported(tmp_path, content, told, "results.json.gz")
    card = table.card
    assert (card.space, card.product, str(card.recorded)) == ("stencil", "NVIDIA A100-PCIE-40GB", "2025-03-04")
    assert card.knobs == {"block": (16, 32), "unroll": (0, 1)}
    assert list(map(str, table.problems)) == ["4096x4096"]
    assert table.times_us == pytest.approx([2100, 1100, 4200, math.inf])
    first = table.measurement(0)
    assert (first.compile_seconds, first.gpu_seconds, first.verify_seconds) == pytest.approx((0.5, 0.15, 0.1))
    assert table.measurement(3).status is Status.LAUNCH_ERROR
    assert table.measurement(3).error == "RuntimeFailedConfig"
    assert table.configuration(3) == dict(zip(card.knobs, FAILED, strict=True))
    if form != "ktt":  # which has no times of single launches
        assert first.timing is not None
        assert first.timing.pairs == 2
        assert first.timing.ratio_low < first.timing.ratio < first.timing.ratio_high


def test_the_interval_of_a_few_launches_covers_their_mean(tmp_path: Path) -> None:
    rng, each = np.random.default_rng(0), 400
    held: dict[int, list[bool]] = {}
    launches = {many: rng.normal(1.0, 0.02, (each, many)) for many in (2, 3, 7, 30)}
    listed = [row.tolist() for rows in launches.values() for row in rows]
    table = imported(tmp_path, [{"at": at, "time": sum(row) / len(row), "times": row} for at, row in enumerate(listed)])
    for row, times in enumerate(listed):
        timing = table.measurement(row).timing
        assert timing is not None
        true = timing.ratio / (sum(times) / len(times))
        held.setdefault(len(times), []).append(timing.ratio_low <= true <= timing.ratio_high)
    for many, found in held.items():
        assert 0.92 <= np.mean(found) <= 0.98, many


def test_times_that_no_study_could_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"row 2: ratio must be no larger than 9e\+15"):
        imported(tmp_path, [{"at": 0, "time": 1.0}, {"at": 1, "time": 1.5}, {"at": 2, "time": 1e19}])


def test_files_without_a_problem_or_lists_of_parameters_are_completed(tmp_path: Path) -> None:
    bare = {name: CACHE[name] for name in ("device_name", "kernel_name", "cache")}
    with pytest.raises(TableError, match="does not name the problem; give the problem"):
        imported(tmp_path, bare, Told())
    assert imported(tmp_path, bare, Told(problem="64")).card.knobs == {"block": (16, 32), "unroll": (0, 1)}
    with pytest.raises(TableError, match="kernel, device, problem; give the kernel and the device and the problem"):
        imported(tmp_path, LISTED, Told())
    sorted_list = [dict(sorted(entry.items(), reverse=True)) for entry in LISTED]
    with pytest.raises(TableError, match="which values are parameters; give the parameters"):
        imported(tmp_path, sorted_list)
    named = Told(kernel="k", device="d", problem="p", parameters=("unroll", "block"))
    assert imported(tmp_path, sorted_list, named).card.knobs == {"unroll": (0, 1), "block": (16, 32)}
    unitless = {"results": T4["results"]}
    with pytest.raises(TableError, match="does not name the unit of its times; give the unit"):
        imported(tmp_path, unitless)
    in_ns = imported(tmp_path, unitless, Told(kernel="k", device="d", problem="p", unit="ns"))
    assert in_ns.times_us.min() == pytest.approx(1.1e-3)
    assert imported(tmp_path, CACHE, Told(device="NVIDIA H200")).card.device == "h200"


def test_entries_without_their_parameters_have_them_from_their_key(tmp_path: Path) -> None:
    entries = {key: {k: v for k, v in each.items() if k != "unroll"} for key, each in CACHE["cache"].items()}
    table = imported(tmp_path, CACHE | {"cache": entries}, Told())
    assert table.card.knobs == {"block": (16, 32), "unroll": (0, 1)}
    assert table.times_us.tolist() == imported(tmp_path, CACHE, Told()).times_us.tolist()


@pytest.mark.parametrize("mark", [1e20, 1.7976931348623157e308, 0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("form", ["cache", "t4"])
def test_marks_of_failures_are_failures(tmp_path: Path, form: str, mark: float) -> None:
    content, told = FORMS[form]
    changed = json.loads(json.dumps(content))
    if form == "cache":
        changed["cache"]["16,1"]["time"] = mark
    else:
        changed["results"][1]["measurements"][1]["value"] = mark
    table = imported(tmp_path, changed, told)
    assert table.times_us.tolist()[1::2] == [math.inf] * 2
    assert table.measurement(1).error.startswith("RuntimeFailedConfig")


def test_other_objectives_are_relative_and_say_so(tmp_path: Path) -> None:
    faster = imported(tmp_path, CACHE, Told(objective="GFLOP/s"))
    assert [str(problem) for problem in faster.problems] == ["4096x4096:GFLOP_s"]
    # GFLOP/s of 10/4.2, 10/2.2 and 10/8.4: relative to the median, and turned over, as times are.
    assert faster.times_us[:3] == pytest.approx([100, 100 * 2.2 / 4.2, 200])
    assert "no times but GFLOP/s, of which more is better" in faster.card.protocol_text
    assert imported(tmp_path, CACHE | {"objective": "GFLOP/s"}, Told()).times_us.tolist() == faster.times_us.tolist()
    behind = {key: value for key, value in CACHE.items() if key != "objective"} | {"objective": "GFLOP/s"}
    assert imported(tmp_path, behind, Told()).times_us.tolist() == faster.times_us.tolist()
    energy = imported(tmp_path, KTT, Told(problem="4096", objective="EnergyConsumption"))
    assert energy.times_us[:3] == pytest.approx([100, 100, 100 * 39 / 23])
    assert np.isinf(energy.times_us[3])
    for entry in (entries := json.loads(json.dumps(CACHE["cache"]))).values():
        entry["wishes"] = 3
    with pytest.raises(TableError, match="whether more wishes is better or worse"):
        imported(tmp_path, CACHE | {"cache": entries}, Told(objective="wishes"))
    imported(tmp_path, CACHE | {"cache": entries}, Told(objective="wishes", maximize=False))


def test_every_figure_that_a_file_is_said_to_have_can_be_the_objective(tmp_path: Path) -> None:
    entries = [{**KTT["Results"][0], "PowerUsage": 20.0}, {**KTT["Results"][1], "PowerUsage": 30.0}]
    told = replace(TOLD, maximize=False)
    with pytest.raises(TableError, match=r"no configuration has the figure heat, the first entry has .*PowerUsage.*"):
        imported(tmp_path, {**KTT, "Results": entries}, replace(told, objective="heat"))
    power = imported(tmp_path, {**KTT, "Results": entries}, replace(told, problem="1", objective="PowerUsage"))
    assert power.times_us == pytest.approx([100, 150])
    for content in (KTT, T4):
        with pytest.raises(TableError) as refused:
            imported(tmp_path, content, replace(told, objective="heat"))
        for number, name in enumerate(str(refused.value).partition("the first entry has ")[2].split(", ")):
            imported(tmp_path, content, replace(told, problem=str(number), objective=name))


@pytest.mark.parametrize("form", ["t4", "ktt"])
def test_the_name_of_the_time_in_ktt_stands_for_the_time(tmp_path: Path, form: str) -> None:
    content, told = FORMS[form]
    table = imported(tmp_path, content, replace(told, objective="TotalDuration"))
    assert table.times_us == pytest.approx([2100, 1100, 4200, math.inf])


def test_a_cache_without_an_objective_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, value = list[object](), _Reader.value

    def noted(reader: _Reader) -> object:
        decoded.append(value(reader))
        return decoded[-1]

    monkeypatch.setattr(_Reader, "value", noted)
    old = {key: value for key, value in CACHE.items() if key != "objective"}
    assert imported(tmp_path, old, Told()).times_us.tolist() == imported(tmp_path, CACHE, Told()).times_us.tolist()
    one, other = (decoded.count(entry) for entry in list(CACHE["cache"].values())[1:3])
    assert one == other == 2, "each of the two caches once"


def test_parameters_behind_the_entries_make_numbers_of_their_keys(tmp_path: Path) -> None:
    entries = {key: {"time": 2.0 + at, "timestamp": STAMP} for at, key in enumerate(("16,0", "16,1", "32,0"))}
    behind = {key: CACHE[key] for key in CACHE if key not in ("cache", "tune_params")}
    table = imported(tmp_path, behind | {"cache": entries, "tune_params": CACHE["tune_params"]}, Told())
    assert table.card.knobs == {"block": (16, 32), "unroll": (0, 1)}


def test_of_values_with_the_same_text_the_first_stands_in_a_key(tmp_path: Path) -> None:
    entries = {key: {"time": 2.0} for key in ("16,0", "32,1")}
    cache = CACHE | {"tune_params_keys": ["block", "unroll"], "cache": entries}
    table = imported(tmp_path, cache | {"tune_params": {"block": [16, "16", "32", 32], "unroll": [0]}}, Told())
    assert table.card.knobs == {"block": ("16", "32"), "unroll": ("0", "1")}
    table = imported(tmp_path, cache | {"tune_params": {"block": [16, "16", 32, "32"], "unroll": [0, 1]}}, Told())
    assert table.card.knobs == {"block": (16, 32), "unroll": (0, 1)}


@pytest.mark.parametrize("upwards", [True, False])
def test_figures_that_may_be_negative_stand_in_a_straight_line(tmp_path: Path, upwards: bool) -> None:
    scores = [-0.5, 0.7, 0.1, 0.4, 1e20, -1.0]
    costs = np.array([-score if upwards else score for score in scores])
    listed = [{"at": at, "score": score} for at, score in enumerate(scores)]
    table = imported(tmp_path, listed, replace(TOLD, objective="score", maximize=upwards))
    best, median = sorted(costs[np.array(scores) < 1])[::2][:2]
    assert table.times_us[[0, 1, 2, 3, 5]] == pytest.approx(50 + 50 * (costs[[0, 1, 2, 3, 5]] - best) / (median - best))
    assert table.times_us[4] == math.inf
    (baseline,) = table.card.baselines.values()
    assert baseline.library_us == pytest.approx(100)
    assert f"of which {'more' if upwards else 'less'} is better, and which is not above 0" in table.card.protocol_text
    level = [{"at": at, "score": 0.0} for at in range(3)]
    assert imported(tmp_path, level, replace(TOLD, objective="score")).times_us.tolist() == [100] * 3


@pytest.mark.parametrize("count", [3, 4])
def test_the_median_configuration_counts_as_100_where_more_is_better(tmp_path: Path, count: int) -> None:
    listed = [{"at": at, "GFLOP/s": 1.0 + at} for at in range(count)]
    (baseline,) = imported(tmp_path, listed, replace(TOLD, objective="GFLOP/s")).card.baselines.values()
    assert baseline.library_us == pytest.approx(100)


@pytest.mark.parametrize(
    ("stamp", "day"),
    [
        ("2025-03-04T05:06:07.8+00:00", "2025-03-04"),  # as ISO 8601 has it, and T4's schema
        ("2025-03-04", "2025-03-04"),
        ("2025-3-4 05:06:7 UTC", "2025-03-04"),
        ("2025-03-041", str(date.today())),
        ("2025-13-40 05:06:07", str(date.today())),
        (17e8, str(date.today())),
    ],
)
def test_the_day_of_a_table_is_that_of_a_time_stamp_that_has_one(tmp_path: Path, stamp: Any, day: str) -> None:
    table = imported(tmp_path, [{**entry, "timestamp": stamp} for entry in LISTED])
    assert str(table.card.recorded) == day


def test_more_time_is_not_better(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="by its times, of which less is better; give the objective"):
        imported(tmp_path, CACHE, Told(maximize=True))
    assert len(imported(tmp_path, CACHE, Told(maximize=False))) == 4


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(CACHE).encode())
    assert read_results(path)[0].space == "stencil"


def test_a_size_that_can_be_no_name_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"results\.json: malformed problem 'n \* 2'.*; give the problem"):
        imported(tmp_path, {**CACHE, "problem_size": "n * 2"}, Told())


def test_a_configuration_that_was_tried_several_times_is_one_row(tmp_path: Path) -> None:
    slower = {**LISTED[0], "time": 2.5, "times": [2.4, 2.6, 2.5]}
    recovered = {**LISTED[3], "time": 9.0}
    table = imported(tmp_path, [*LISTED, slower, recovered, LISTED[0] | {"time": 1e20}])
    assert table.times_us == pytest.approx([(2100 + 2500) / 2, 1100, 4200, 9000])
    first = table.measurement(0)
    assert first.timing is not None
    assert first.timing.pairs == 5
    assert first.compile_seconds == pytest.approx(1.5)
    assert table.measurement(3).status is Status.OK
    assert merged_text(table.card) == f"The file has 7 results of 4 configurations: {MERGED_TEXT.partition(': ')[2]}"
    assert merged_text(imported(tmp_path, LISTED).card) == ""


def test_a_bound_counts_only_where_a_configuration_has_no_time(tmp_path: Path) -> None:
    timed, failed = LISTED[0], LISTED[3]
    bounds = [each | {"time": time, "censored": True} for each, time in ((timed, 9.0), (failed, 5.0), (failed, 7.0))]
    table = imported(tmp_path, [*LISTED, *bounds])
    assert table.times_us == pytest.approx([2100, 1100, 4200, math.inf])
    assert [table.measurement(row).status for row in range(4)] == [Status.OK] * 3 + [Status.PRUNED]
    assert [table.measurement(row).pilot_us for row in (0, 3)] == [None, pytest.approx(6000)]
    assert table.measurement(0).timing.pairs == 2  # type: ignore[union-attr]
    assert table.card.baselines[table.problems[0]].library_us == pytest.approx(2100)
    assert "1 row is marked as censored" in table.card.protocol_text
    assert merged_text(table.card).startswith("The file has 7 results of 4 configurations")
    with pytest.raises(TableError, match="no configuration has a time"):
        imported(tmp_path, bounds)


@pytest.mark.parametrize("lowest", [1.0, -3.0])
def test_bounds_of_another_objective_stay_bounds(tmp_path: Path, lowest: float) -> None:
    listed = [{"at": at, "time": 1.0, "cost": cost} for at, cost in enumerate((lowest, 2.0, 4.0))]
    without = imported(tmp_path, listed, replace(TOLD, objective="cost"))
    listed.append({"at": 3, "time": 1.0, "cost": 8.0, "censored": True})
    table = imported(tmp_path, listed, replace(TOLD, objective="cost"))
    assert table.times_us == pytest.approx([*without.times_us, math.inf])
    found = table.measurement(3)
    assert found.status is Status.PRUNED
    assert found.pilot_us == pytest.approx(100 * 8 / 2 if lowest > 0 else 100 * (1 + 6 / 10))


def test_a_parameter_may_be_called_like_the_mark_of_a_bound(tmp_path: Path) -> None:
    table = imported(tmp_path, [{"censored": flag, "time": 1.0 + flag} for flag in (True, False)])
    assert table.times_us == pytest.approx([2000, 1000])


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"cache": {}}, "no configuration has a time"),
        ({"cache": {"32,1": CACHE["cache"]["32,1"]}}, "no configuration has a time"),
        ({"objective": "energy"}, "no configuration has the figure energy, the first entry has time"),
        ({"objective": "power"}, "no configuration has the figure power, the first entry has time"),
        ({"objective": ["time", "energy"]}, "several objectives"),
        ({"tune_params_keys": ["block", "warps", "unroll"]}, "entry 0 has no parameter 'warps'"),
        ({"tune_params_keys": []}, "which values are parameters"),
        ({"tune_params_keys": ["block", "block"]}, "parameter 'block' is named twice"),
        ({"tune_params_keys": [str(number) for number in range(1001)]}, "it has 1,001 parameters, and at most 1,000"),
        ({"cache": [1]}, "its member cache holds no entries"),
        ({"cache": {"1": 1}}, "entry 0 is no object"),
    ],
)
def test_what_can_not_be_read_is_refused(tmp_path: Path, change: dict[str, Any], answer: str) -> None:
    with pytest.raises(TableError, match=answer):
        imported(tmp_path, {**CACHE, **change}, Told())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"7", b"\x1f\x8b\x08\x00", b"\xff\xfe"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(TableError, match=r"results\.json"):
        read_results(path)

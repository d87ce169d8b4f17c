import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilescout.experiments.research.studies.kernel_counters import (
    COUNTERS,
    CYCLES,
    NCU,
    asked,
    cells,
    counted,
    profiled,
    sustained,
)
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.worker import Worker
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import load_workload

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
DRAWN = RESULTS / "backends-2026-12-01" / "drawn-843.json.gz"
LOST = "1169x4096x13696:e4m3-bf16"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
DRAM = "dram__bytes_read.sum"
CSV = f"""==PROF== Connected to process 17
"ID","Kernel Name","{CYCLES}","{TENSOR}","{DRAM}","launch__grid_size","sm__warps_active.sum"
"","","cycle","%","byte","",""
"0","spin_kernel(long)","1,000","0","0","1","4"
"1","nvjet_one","2,500","93.5","1,000","132","4"
"2","spin_kernel(long)","1,000","0","0","1","4"
"3","gemm","2,000","88.5","1,500","128","4"
"4","add_up","500","2.5","250","64","4"
"""


@pytest.fixture(name="bench")
def bench_of_a_small_problem() -> Bench:
    problem, worker = GemmProblem.parse("64x64x64:fp16"), Worker("cpu")
    return Bench(worker.machine, load_workload(find_template("gemm_sm90").workload), problem, ProtocolOptions())


def test_kernels_between_two_marks_are_one_launch_whose_counts_are_summed() -> None:
    found = counted(CSV, ["the library's", "ours"])
    assert found["the library's"] == {"kernels": 1, CYCLES: 2500, TENSOR: 93.5, DRAM: 1000, "launch__grid_size": 132}
    assert found["ours"] == {"kernels": 2, CYCLES: 2500, TENSOR: 88.5, DRAM: 1750, "launch__grid_size": 128}


def test_what_is_not_known_of_a_kernel_is_left_blank() -> None:
    one = {"sustained": {"us": 12.34, "sm_mhz": None, "power_w": 690.0}, "counters": {CYCLES: 142_762.0}}
    found = cells(one)
    assert found[:4] == ["12.3", "", "690", "142.8"]
    assert len(found) == 3 + len(COUNTERS)
    assert set(found[4:]) == {""}


def test_of_a_record_of_backends_the_fastest_of_the_library_and_ours_are_asked_for() -> None:
    [(problem, kernels)] = asked([DRAWN], [LOST], None, None).items()
    assert str(problem) == LOST
    assert {name: each.space for name, each in kernels.items()} == {
        "the library's": "cublaslt",
        "ours": "gemm_streamk_sm90",
    }
    assert kernels["the library's"].configuration["tile"] == 407  # of cuBLASLt's two the faster


def test_a_problem_that_no_file_has_is_refused() -> None:
    with pytest.raises(TilescoutError, match="no problem 8x8x8:bf16; they have 5x45056x8192:bf16"):
        asked([DRAWN], ["8x8x8:bf16"], None, None)


def test_a_problem_without_a_kernel_of_the_library_is_refused(tmp_path: Path) -> None:
    record = json.loads(gzip.decompress(DRAWN.read_bytes()))
    rows = record["result"]["problems"][LOST]["rows"]
    record["result"]["problems"][LOST]["rows"] = {name: row for name, row in rows.items() if "cuBLASLt" not in name}
    (tmp_path / "drawn.json").write_text(json.dumps(record))
    with pytest.raises(TilescoutError, match=f"no kernel of cuBLASLt's on {LOST}"):
        asked([tmp_path / "drawn.json"], [LOST], None, None)


def test_kernels_that_are_listed_or_lie_in_a_folder_are_asked_for_besides(tmp_path: Path) -> None:
    template = find_template("gemm_streamk_sm90")
    one = asked([DRAWN], [LOST], None, None)[GemmProblem.parse(LOST)]["ours"].configuration
    row = list(one.values())
    listed = tmp_path / "listed.json"
    listed.write_text(json.dumps({LOST: {template.name: [row]}}))
    (tmp_path / "plan.json").write_text(json.dumps([("before", LOST, row)]))
    [kernels] = asked([], [], listed, tmp_path).values()
    assert list(kernels) == [f"{template.name} 0", "before"]
    assert {each.configuration for each in kernels.values()} == {one}
    assert [each.folder for each in kernels.values()] == [None, tmp_path]


def test_a_kernel_alone_is_timed_and_clocks_that_nothing_tells_stay_unknown(bench: Bench) -> None:
    found = sustained(bench, {"the library's": bench.run_library}, 2, 0.1)["the library's"]
    assert found["us"] > 0
    assert len(found["turns_us"]) == 2
    assert (found["sm_mhz"], found["power_w"], found["throttled"]) == (None, None, [])


def test_kernels_have_turns_every_other_time_the_other_way_round(bench: Bench) -> None:
    order: list[str] = []

    def noted(name: str) -> Launch:
        def launch(*tensors: Any) -> None:
            if order[-1:] != [name]:
                order.append(name)
            bench.run_library(*tensors)

        return launch

    found = sustained(bench, {name: noted(name) for name in "abc"}, 3, 0.02)
    assert "".join(order) == "abcba" + "bc"  # the last of a turn is the first of the next
    assert {name: len(each["turns_us"]) for name, each in found.items()} == dict.fromkeys("abc", 3)


@pytest.mark.skipif(shutil.which(NCU) is not None, reason="Nsight Compute is installed")
def test_without_nsight_compute_nothing_is_measured(
    study: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    study("kernel-counters", str(DRAWN), "--problem", LOST, "--device", "cpu", "--out", str(out), code=2)
    assert "Nsight Compute is missing" in capsys.readouterr().err
    assert not out.exists()


def test_that_nsight_compute_fails_is_told_with_the_last_line_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / NCU
    program.write_text("#!/bin/sh\necho '==PROF== Connected'\necho '==ERROR== no permission' >&2\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(TilescoutError, match="ended with status 9: ==ERROR== no permission"):
        profiled([], [])

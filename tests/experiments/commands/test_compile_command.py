"""``tilescout compile`` as a person runs it, with the real compiler and no GPU."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
ARGUMENTS = ("compile", "gemm_sm90", "--problem", "4096x4096x4096", "--processes", "1", "--sample", "1")


@pytest.mark.slow
def test_kernels_are_built_once_and_a_damaged_one_is_refused(run_command: Run, tmp_path: Path) -> None:
    first = run_command(tmp_path, *ARGUMENTS)
    assert first.returncode == 0
    assert "2 compiled in" in first.stdout
    assert "registers a thread" in first.stdout

    artifacts = tmp_path / ".tilescout" / "artifacts"
    records = sorted(artifacts.glob("??/*/artifact.json"))
    assert len(records) == 2
    for record in map(json.loads, map(Path.read_text, records)):
        assert 32 <= record["resources"]["registers"] <= 255
        assert record["resources"]["spill_bytes"] == 0
        assert 10_000 < record["resources"]["shared_memory"] <= 232_448
    state = {path: path.stat().st_mtime_ns for path in artifacts.rglob("*")}

    second = run_command(tmp_path, *ARGUMENTS)
    assert second.returncode == 0
    assert re.search(r"0 compiled in \d+\.\d s, 2 in the store already\n", second.stdout)
    assert {path: path.stat().st_mtime_ns for path in artifacts.rglob("*")} == state

    library = records[0].with_name("kernel.so")
    library.write_bytes(library.read_bytes()[:1000])
    third = run_command(tmp_path, *ARGUMENTS)
    assert third.returncode == 2
    assert third.stdout == ""
    assert third.stderr.startswith(f"tilescout: artifact {library.relative_to(tmp_path)} is damaged: its SHA-256 is")
    assert "compile it again" in third.stderr
    assert third.stderr.count("\n") == 1


@pytest.mark.slow
def test_with_the_portfolio_kernels_of_the_second_space_are_built_too(run_command: Run, tmp_path: Path) -> None:
    asked = ("compile", "gemm_sm90", "--problem", "2515x16x256", "--json", "built.json")  # few are legal for it
    done = run_command(tmp_path, *asked, "--portfolio")
    assert done.returncode == 0
    kernels = json.loads((tmp_path / "built.json").read_text())["kernels"]
    assert {kernel["space"] for kernel in kernels} == {"gemm_sm90", "gemm_streamk_sm90"}
    assert not any(kernel["error"] for kernel in kernels)
    assert len(list((tmp_path / ".tilescout" / "artifacts").glob("??/*/kernel.so"))) == len(kernels) > 2

"""``tilescout compile`` as a person runs it, with the real compiler and no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("tilescout"))


def compile_sample(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "compile", "gemm_sm90", "--problem", "4096x4096x4096", "--processes", "2", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_kernels_are_built_once_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    first = compile_sample(tmp_path, "--sample", "3")
    assert first.returncode == 0
    assert "4 configurations: 4 compiled in" in first.stdout
    assert "registers a thread" in first.stdout

    artifacts = tmp_path / ".tilescout" / "artifacts"
    records = sorted(artifacts.glob("??/*/artifact.json"))
    assert len(records) == 4
    for record in map(json.loads, map(Path.read_text, records)):
        assert 32 <= record["resources"]["registers"] <= 255
        assert record["resources"]["spill_bytes"] == 0
        assert 10_000 < record["resources"]["shared_memory"] <= 232_448
    state = {path: path.stat().st_mtime_ns for path in artifacts.rglob("*")}

    second = compile_sample(tmp_path, "--sample", "3")
    assert second.returncode == 0
    assert "0 compiled in 0.0 s, 4 in the store already, 0 failed" in second.stdout
    assert {path: path.stat().st_mtime_ns for path in artifacts.rglob("*")} == state

    library = records[0].with_name("kernel.so")
    library.write_bytes(library.read_bytes()[:1000])
    third = compile_sample(tmp_path, "--sample", "3")
    assert third.returncode == 2
    assert third.stdout == ""
    assert third.stderr.startswith(f"tilescout: artifact {library.relative_to(tmp_path)} is damaged: its SHA-256 is")
    assert "compile it again" in third.stderr
    assert third.stderr.count("\n") == 1

"""The study of what cuBLASLt says of its algorithms, from the command line to the file, on a library of the host."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tilescout.experiments.research.studies import library_census
from tilescout.spaces import devices


def test_what_the_library_says_is_written_and_a_part_of_what_is_legal_is_raced(
    host_library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(devices.DEVICES, "CPU", host_library.HOST)
    monkeypatch.setattr(library_census, "SPACE", host_library.TEMPLATE.name)
    out = tmp_path / "out.json"
    asked = ["--device", "cpu", "--out", str(out), "--store", str(tmp_path), "--most", "40", "--trials", "5"]

    done = CliRunner().invoke(library_census.main, [*asked, "--problem", "16x8x16:bf16", "--problem", "8x8x8:fp16"])

    assert done.exit_code == 0, done.output
    problems = json.loads(out.read_text())["result"]["problems"]
    assert "not supported" in problems["8x8x8:fp16"]["error"]
    one = problems["16x8x16:bf16"]
    assert set(one["algorithms"]) == {"7", "9", "11"}
    assert one["returned alone"]["7"]["candidates"] == 4
    assert "not supported" in one["returned alone"]["11"]["error"]
    assert all(each["status and workspace"][0] == 0 and each["differing"] == {} for each in one["rebuilt"])
    assert one["alone"][0]["split_k"] == [1]
    assert one["alone"][0]["cluster"] == [0, 3]
    # 2 tiles, one of them with 2 clusters, and 4 custom options
    assert one["censuses"]["7"]["legal"] == 3 * 4
    assert one["censuses"]["7"]["splits"]["legal by"]["split_k"].keys() == {"2", "3", "4"}
    assert one["timed"]["tried"] == 5
    assert one["timed"]["best"] > 0

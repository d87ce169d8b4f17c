"""The race of kernels of before and after a change, on kernels that run on the host."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.changed_kernels import by_size
from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces import templates
from tilescout.spaces.knobs import Configuration

PROBLEM = "128x128x128:bf16"
ROW = ["nothing", 1]


@pytest.fixture
def folder(plain_gemm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shared objects named after their knobs."""
    monkeypatch.setitem(templates._BUILT_IN, "plain_gemm", "plain_gemm:TEMPLATE")
    options = CompileOptions(processes=1, standby=False)
    with CompilePool(plain_gemm.TEMPLATE, "bf16", "host", ArtifactStore(tmp_path / "store"), options) as pool:
        for fault, repeats in (("nothing", 1), ("nothing", 4), ("corner", 1)):
            artifact = pool.submit(Configuration.of({"fault": fault, "repeats": repeats})).result()
            assert isinstance(artifact, Artifact)
            shutil.copy(artifact.path, tmp_path / f"{fault}-{repeats}.so")
    return tmp_path


@pytest.mark.slow
def test_a_change_that_makes_a_kernel_faster_is_told_and_one_that_makes_it_wrong(
    folder: Path, study: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = [
        ("nothing-4", "before", PROBLEM, ROW),
        ("nothing-1", "after", PROBLEM, ROW),
        ("nothing-1", "before", PROBLEM, ["corner", 1]),
        ("corner-1", "after", PROBLEM, ["corner", 1]),
    ]
    (folder / "plan.json").write_text(json.dumps(plan))
    out = folder / "changed.json"
    asked = ("--space", "plain_gemm", "--kernels", str(folder), "--by", "m", "--device", "cpu", "--out", str(out))
    study("changed-kernels", *asked)
    result = Record.read(out).result
    faster, wrong = result["problems"][PROBLEM]["kernels"]
    assert faster["configuration"] == ROW
    for objective in ("chain", "sandwich"):
        assert faster[objective]["low"] <= faster[objective]["value"] <= faster[objective]["high"] < 1
        assert result["by"]["128"][objective] == pytest.approx(faster[objective]["value"])
        assert result["problems"][PROBLEM]["library_us"][objective] > 0
    assert result["by"]["128"]["kernels"] == 1
    assert wrong["wrong"].startswith("after: ")
    assert "chain" not in wrong
    assert "wrong after" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "changes", "told"),
    [("m", ["before"], "there is before alone"), ("tokens", ["before", "after"], "no size 'tokens'")],
)
def test_half_a_pair_and_a_size_that_problems_lack_are_refused(
    folder: Path,
    study: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    by: str,
    changes: list[str],
    told: str,
) -> None:
    (folder / "plan.json").write_text(json.dumps([("nothing-1", change, PROBLEM, ROW) for change in changes]))
    asked = ("--space", "plain_gemm", "--kernels", str(folder), "--by", by, "--device", "cpu")
    study("changed-kernels", *asked, "--out", str(folder / "changed.json"), code=2)
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (folder / "changed.json").exists()


def test_means_are_of_the_kernels_of_a_size_that_were_right() -> None:
    def kernel(value: float) -> dict[str, Any]:
        return {name: {"value": value} for name in ("chain", "sandwich")}

    problems: dict[str, dict[str, list[dict[str, Any]]]] = {
        "a": {"kernels": [kernel(0.5), kernel(2.0), {"wrong": "after: it is"}]},
        "b": {"kernels": [kernel(0.9)]},
        "c": {"kernels": [{"wrong": "before: it was"}]},
    }
    found = by_size(problems, {"a": 16, "b": 1024, "c": 4096})
    assert list(found) == [16, 1024]
    assert found[16] == pytest.approx({"kernels": 2, "chain": 1.0, "sandwich": 1.0})
    assert found[1024] == pytest.approx({"kernels": 1, "chain": 0.9, "sandwich": 0.9})

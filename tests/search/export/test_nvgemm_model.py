"""The learned model's order of the operators among which TorchInductor's NVGEMM backend chooses on Hopper."""

import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm import NVUniversalGemmCaller

from tilescout.costmodel.persistence import load_model, save_model, shipped_model
from tilescout.search.export import nvgemm_model
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.export.nvgemm_model import learned_ranker, pins
from tilescout.search.export.nvgemm_ranker import NAMES, Tiling, tiling_of
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

LARGE, SKINNY = GemmProblem(4096, 4096, 4096), GemmProblem(16, 4096, 4096)


def node(tensor: torch.Tensor) -> Any:
    return SimpleNamespace(get_size=lambda: tensor.shape, get_stride=tensor.stride, get_dtype=lambda: tensor.dtype)


def callers(problem: GemmProblem) -> list[NVUniversalGemmCaller]:
    """The candidates of the backend: every operator that takes these operands, in the library's order."""
    operators = pytest.importorskip("cutlass.operators", reason="needs nvidia-cutlass-operators")

    def operand(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=torch.bfloat16)

    m, n, k = problem.m, problem.n, problem.k
    a, b = operand(m, k), operand(n, k).t()
    arguments = operators.GemmArguments(a, b, operand(m, n), accumulator_type=torch.float32)
    made = []
    for operator in operators.get_operators(arguments, target_sm="90a"):
        caller = NVUniversalGemmCaller.__new__(NVUniversalGemmCaller)  # its benchmark request is not of interest
        caller.kernel, caller.input_nodes = operator, [node(a), node(b)]
        made.append(caller)
    return made


@pytest.mark.parametrize("problem", [LARGE, SKINNY], ids=str)
def test_the_operators_are_ordered_by_the_learned_model_and_trimmed(problem: GemmProblem) -> None:
    offered = callers(problem)
    tilings = {tiling: caller for caller in offered if (tiling := tiling_of(caller)) is not None}
    assert len(tilings) == 24
    assert len(offered) > 24  # those for older GPUs have no tiling, and come last
    every = learned_ranker(keep=len(offered))(list(offered))
    ranker = learned_ranker(keep=5)
    times = ranker.predict(problem, [dict(zip(NAMES, tiling, strict=True)) for tiling in tilings])
    fastest = [list(tilings)[index] for index in np.argsort(times, kind="stable")]
    assert [tiling_of(choice) for choice in every] == [*fastest, *[None] * (len(offered) - 24)]
    kept = ranker(list(offered))
    assert [tiling_of(choice) for choice in kept] == fastest[:5]
    assert np.ptp(times) > np.log(1.5)  # they are told apart


def test_the_learned_model_knows_large_tiles_from_small_ones() -> None:
    candidates = [dict(zip(NAMES, tiling, strict=True)) for tiling in ((64, 64, 64, 1, 1), (128, 256, 64, 2, 1))]
    ranker = learned_ranker()
    small, large = ranker.predict(LARGE, candidates)
    assert large < small
    small, large = ranker.predict(SKINNY, candidates)
    assert small < large


def test_what_a_search_among_the_operators_decided_is_pinned() -> None:
    configuration: dict[str, int | str] = {
        "tile_m": 128,
        "tile_n": 64,
        "cluster_m": 2,
        "cluster_n": 1,
        "swizzle": 1,
        "raster": "m",
    }
    ours = Outcome(
        LARGE,
        "cutlass_operators",
        "hash",
        "h200",
        Choice.OURS,
        Evidence("a-study", "proven"),
        Configuration.of(configuration),
    )
    wanted: Tiling = (128, 64, 64, 2, 1)
    assert pins([ours]) == {LARGE: wanted}
    banded = replace(ours, configuration=Configuration.of({**configuration, "swizzle": 4}))
    for other in (banded, replace(ours, space="gemm_sm90"), replace(ours, choice=Choice.LIBRARY, configuration=None)):
        assert not pins([other])
    (kept,) = learned_ranker(decided=[ours])(callers(LARGE))  # type: ignore[arg-type]
    assert tiling_of(kept) == wanted


def test_the_key_of_the_cache_changes_with_the_model(tmp_path: Path) -> None:
    shipped = shipped_model("gemm_sm90", "h200")
    assert shipped is not None
    same, other, broken = (tmp_path / f"{name}.npz" for name in ("same", "other", "broken"))
    same.write_bytes(shipped.read_bytes())
    model, card = load_model(shipped)
    save_model(other, model, replace(card, rows=card.rows + 1))
    broken.write_bytes(shipped.read_bytes()[:-100])
    assert learned_ranker(model=same).uuid == learned_ranker().uuid
    assert len({ranker.uuid for ranker in (learned_ranker(), learned_ranker(model=other), learned_ranker(keep=2))}) == 3
    with pytest.raises(ModelError):
        learned_ranker(model=broken)
    with pytest.raises(ModelError, match="no model of gemm_sm90 on b200"):
        learned_ranker("b200")


@pytest.mark.parametrize(
    "changed", ["costmodel/features.py", "spaces/tiling.py", "spaces/libraries/cutlass_operators.py"]
)
def test_a_ranker_is_another_one_where_the_code_of_its_features_is(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(package: str) -> Path:
        made = tmp_path / package.replace(".", "/")
        if not made.exists():
            shutil.copytree(str(files(package)), made, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
        return made

    monkeypatch.setattr(nvgemm_model, "files", copied)
    before = learned_ranker().uuid
    assert learned_ranker().uuid == before
    source = tmp_path / "tilescout" / changed
    source.write_text(source.read_text() + "# changed\n")
    assert learned_ranker().uuid != before


def test_a_ranker_is_named_by_the_model_that_it_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, path = shipped_model("gemm_sm90", "h200"), tmp_path / "model.npz"
    assert shipped is not None
    shutil.copy(shipped, path)
    before = learned_ranker(model=path).uuid

    def replaced_behind(file: Path) -> Any:
        found = load_model(file)
        file.write_bytes(file.read_bytes() + b"0")  # another process trains a model of this name
        return found

    monkeypatch.setattr(nvgemm_model, "load_model", replaced_behind)
    assert learned_ranker(model=path).uuid == before

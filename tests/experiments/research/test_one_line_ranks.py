"""Ranks that compile their parts of one model: the program of each, and what is said of all."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilescout.experiments.research.studies import one_line_ranks
from tilescout.experiments.research.studies.one_line_ranks import SIZES, alike, show
from tilescout.experiments.research.tensor_parallel import products

RANK = """
import json, sys
from pathlib import Path
from tilescout.experiments.research.llama_block import BlockSizes
from tilescout.experiments.research.studies import one_line_ranks

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
one_line_ranks.SIZES = BlockSizes(64, 128, 2, 2)
asked = one_line_ranks.Asked(2, 1, (4,), 0.0, 0.0, "ours", rank, folder / "job", folder / "evidence", "cpu")
one_line_ranks.of_rank(asked, lambda told: print(json.dumps(told), flush=True))
"""


def told(kernel: str, **more: Any) -> dict[str, Any]:
    return {"seconds": [0.0, 9.0], "tuned": [], "runs": {"16x8192x4096:bf16": ["ours", kernel]}, **more}


def test_the_products_of_all_ranks_are_those_of_the_whole() -> None:
    whole, half = products(SIZES, 1), products(SIZES, 2)
    assert whole == [(10_240, 8192), (8192, 8192), (57_344, 8192), (8192, 28_672)]
    assert [n * k for n, k in whole] == [2 * n * k for n, k in half]
    with pytest.raises(ValueError, match="3 ranks can't share"):
        products(SIZES, 3)


def test_ranks_are_alike_if_all_told_of_the_same_kernels() -> None:
    assert alike([told("a"), told("a")])
    assert not alike([told("a"), told("b")])
    assert not alike([told("a"), {"error": "killed"}])


def test_what_is_shown_tells_of_a_rank_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"default": {"us": 100.0, "ratio": 1.0, "quartiles": [1.0, 1.0]}}
    times["ours"] = {"us": 90.0, "ratio": 0.9, "quartiles": [0.89, 0.91]}
    programs = [
        {"part": "ours", "ranks": [told("a", tuned=["16x8192x4096:bf16"], summary="told"), {"error": "killed"}]},
        {"part": "steps", "ranks": [{"steps": {"16": {"called": times}}}, {}]},
    ]
    show({"ranks": 2, "layers": 1, "rows": [16], "programs": programs})
    printed = capsys.readouterr().out
    assert "False" in printed
    assert "0.9000 [0.8900, 0.9100]" in printed
    assert "rank 1:  killed" in printed


def test_fewer_gpus_than_ranks_are_refused_before_a_rank_is_started(
    study: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(one_line_ranks, "visible_gpus", lambda: ["NVIDIA H200"])
    out = tmp_path / "ranks.json"
    study("one-line-ranks", "--out", str(out), code=2)
    assert "2 ranks need as many GPUs; of those there are 1 here" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_two_ranks_compile_their_parts_and_meet(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", RANK, str(tmp_path)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    first, second = (json.loads(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks)
    assert len(first["seconds"]) == len(second["seconds"]) == 2
    assert first["runs"] == second["runs"] == {}, "nothing is tuned where no GPU is"
    assert "no GPU is there" in first["summary"]

"""The model of cuBLASLt's algorithms: it learns from a screening's files, and is judged on problems it did not see."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.costmodel.persistence import load_model
from tilescout.experiments.research.studies import library_model
from tilescout.spaces.cublaslt.shapes import tile_shapes


@pytest.fixture
def times(tmp_path: Path) -> Path:
    """Times of three problems that fall with the size of the tile alone."""
    generator = np.random.default_rng(0)
    tiles = generator.permutation(np.arange(312, 392))
    for name in ("64x512x256-bf16", "128x512x256-bf16", "256x512x256-bf16"):
        rows = [
            (guess if cluster == 2 and guess <= 3 else 0, 66, tile, 35, 1, 0, 0, 0, cluster, 1)
            for guess, tile in enumerate(tiles.tolist(), start=1)
            for cluster in (2, 3)
        ]
        shapes = tile_shapes()[[row[2] for row in rows]]
        us = 100 / shapes.prod(axis=1) ** 0.5
        us[5] = np.nan  # one that was refused
        np.savez_compressed(tmp_path / f"{name}.npz", rows=np.array(rows, np.int16), us=us.astype(np.float32))
    return tmp_path


def test_a_model_of_other_problems_finds_the_best_of_one(times: Path) -> None:
    path = times / "model.npz"
    options = ["--folds", "3", "--least", "0", "--trees", "8", "--model", str(path)]

    done = CliRunner().invoke(library_model.main, [str(times), *options])

    assert done.exit_code == 0, done.output
    assert "after 40 trials: median 0.00%" in done.output
    _, card = load_model(path)
    assert card.space == "cublaslt"
    assert card.problems == ("128x512x256:bf16", "256x512x256:bf16", "64x512x256:bf16")


def test_rows_are_ordered_by_their_times_with_their_own_features(times: Path) -> None:
    one = library_model.Ordered.read(times / "64x512x256-bf16.npz", "h200")

    assert len(one.us) == 159
    assert (np.diff(one.us) >= 0).all()
    area = one.features.values[:, one.features.names.index("area")]
    assert np.allclose(one.us, 100 / 2 ** (area / 2), rtol=1e-5)
    assert sorted(one.guess[one.guess > 0]) == [1, 2, 3]

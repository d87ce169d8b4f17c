"""Training is the same to the bit in another process, whatever its threads and the order of its hashes."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

TRAIN = """
import sys
from pathlib import Path
from tilescout.costmodel import (
    AnalyticModel, BlendModel, BlendOptions, ForestOptions, ModelCard, RankingOptions, save_model
)
from tilescout.costmodel.testing import example_samples

samples = example_samples(500)  # so many that BLAS divides its work over threads
blend = BlendModel(BlendOptions(ForestOptions(trees=4, validation_trees=2), RankingOptions(steps=5)))
save_model(Path(sys.argv[1]), blend.fit(samples), ModelCard("gemm_sm90", "h200", (), (), 1500))
print(AnalyticModel().fit(samples).fitted.to_json())
"""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def train(path: Path, threads: int, hash_seed: int) -> Sequence[str]:
    """Checksums of what a fresh process trains: the file of a blend, the text of a calibration."""
    environment = os.environ | dict.fromkeys(THREADS, str(threads)) | {"PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", TRAIN, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return hashlib.sha256(path.read_bytes()).hexdigest(), done.stdout


@pytest.mark.slow
def test_models_are_the_same_bytes_in_processes_of_other_threads_and_hashes(tmp_path: Path) -> None:
    one, other = (train(tmp_path / f"{threads}.npz", threads, seed) for threads, seed in ((1, 1), (3, 20)))
    assert one == other

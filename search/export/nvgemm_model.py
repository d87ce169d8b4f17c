"""Rank the NVGEMM candidates of TorchInductor by the learned cost model, and pin those that a search decided.

On Hopper they are ``Sm90StaticPersistentGemmOperator`` of CUTLASS's Operator API (package nvidia-cutlass-operators).
That its stages, warp groups and staging tiles are as computed here was read in its version 0.3. Our learned model was
trained on kernels of ours, but its features say how any tiled product divides the work.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import Features, tiling_features
from tilescout.costmodel.persistence import load_model
from tilescout.costmodel.relatives import model_for
from tilescout.search.export.decisions import Choice, Outcome
from tilescout.search.export.nvgemm_ranker import NAMES, Ranker, Tiling
from tilescout.spaces.devices import Device, find_device, siblings
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.tiling import Tiling as Division

OPERATORS = "cutlass_operators"  # the space of these kernels
_MODEL_OF = "gemm_sm90"
_RESERVED = 1024  # bytes of shared memory for barriers
_STAGED = 4, 32  # tiles of the result that are on their way to memory, and their columns


def learned_ranker(
    device: str = "h200", keep: int = 4, model: Path | None = None, decided: Iterable[Outcome] = ()
) -> Ranker:
    """A ranker by a learned model.

    Parameters
    ----------
    device
        The GPU, by its short name.
    keep
        How many candidates TorchInductor is left to time.
    model
        The file of a model of ``gemm_sm90``, on this device or a sibling of it; without one, that which comes with the
        package.
    decided
        What searches among these kernels decided: see `pins`.

    Raises
    ------
    ModelError
        If there is no model of this device, or it can't be read.
    """
    found = model if model is not None else model_for(_MODEL_OF, device)
    if found is None:
        raise ModelError(f"no model of {_MODEL_OF} on {device} is shipped: name the file of one")
    learned, card = load_model(found)
    if card.space != _MODEL_OF or card.device not in (device, *siblings(device)):
        raise ModelError(f"model {found} is of {card.space} on {card.device}, not of {_MODEL_OF} on {device}")
    here = find_device(device)

    def predict(problem: GemmProblem, candidates: Sequence[Mapping[str, int]]) -> Floats:
        return predict_times(learned, problem, candidates, here)

    return Ranker(predict, _version(found), keep, pins(decided))


def predict_times(
    model: CostModel, problem: GemmProblem, candidates: Sequence[Mapping[str, int]], device: Device
) -> Floats:
    """The log times in µs that a model predicts for candidates, of shape [candidates]."""
    columns = {name: np.array([candidate[name] for candidate in candidates]) for name in NAMES}
    features = Features.of(tiling_features(divide(columns, problem, device), device))
    return model.predict(features).mean


def divide(
    columns: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]], problem: GemmProblem, device: Device
) -> Division:
    """How candidates divide the work of a problem; columns of shape [candidates] by the names of a tiling."""
    tile_m, tile_n, tile_k = (columns[name] for name in ("tile_m", "tile_n", "tile_k"))
    one = np.ones_like(tile_m)
    groups = np.where((tile_m > 64) & (tile_n > 128), 2, 1)
    tiles, width = _STAGED
    staging = tiles * np.where(groups == 2, 128, 64) * width * problem.result.bytes
    stage = (tile_m + tile_n) * tile_k * problem.element.bytes
    stages = np.maximum((device.shared_memory - _RESERVED - staging) // stage, 1)
    return Division(
        product=problem,
        rows=tile_m,
        columns=tile_n,
        depth=tile_k,
        cluster_m=columns["cluster_m"],
        cluster_n=columns["cluster_n"],
        split_k=one,
        stages=stages,
        swizzle=one,
        along_m=one == 1,
        warp_groups=groups,
        ping_pong=one == 0,
        mma_columns=tile_n,
        accumulators=tile_m * tile_n // (128 * groups),
        shared_memory=_RESERVED + staging + stages * stage,
        early_launch=one == 0,
    )


def pins(decided: Iterable[Outcome]) -> Mapping[GemmProblem, Tiling]:
    """The tilings that searches of the space ``cutlass_operators`` decided for.

    Of those TorchInductor can build only what its candidates are: no order of tiles but the first.
    """
    found = {}
    for outcome in decided:
        configuration = outcome.configuration
        if outcome.space != OPERATORS or outcome.choice is not Choice.OURS or configuration is None:
            continue
        if (configuration["swizzle"], configuration["raster"]) == (1, "m"):
            sizes = {**dict(configuration), "tile_k": 128 // outcome.problem.element.bytes}
            found[outcome.problem] = tuple(int(sizes[name]) for name in NAMES)
    return found


def _version(model: Path) -> str:
    """Names a model and the code that turns candidates into its features."""
    digest = hashlib.sha256(model.read_bytes())
    for package in ("tilescout.costmodel", "tilescout.search.export"):
        sources = (file for file in files(package).iterdir() if file.name.endswith(".py"))
        for source in sorted(sources, key=lambda file: file.name):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()

"""Rank the NVGEMM candidates of TorchInductor by the learned cost model, and pin those that a search decided.

On Hopper they are ``Sm90StaticPersistentGemmOperator`` of CUTLASS's Operator API (package nvidia-cutlass-operators).
Our learned model was trained on kernels of ours, but its features say how any tiled product divides the work.
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
from tilescout.search.export.nvgemm_ranker import KEPT, NAMES, Ranker, Tiling
from tilescout.spaces.devices import Device, find_device, siblings
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.libraries.cutlass_operators import divided_sm90

OPERATORS = "cutlass_operators"  # the space of these kernels
_MODEL_OF = "gemm_sm90"


def learned_ranker(
    device: str = "h200", keep: int = KEPT, model: Path | None = None, decided: Iterable[Outcome] = ()
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

    return Ranker(predict, _version(card.sha256), keep, pins(decided))


def predict_times(
    model: CostModel, problem: GemmProblem, candidates: Sequence[Mapping[str, int]], device: Device
) -> Floats:
    """The log times in µs that a model predicts for candidates, of shape [candidates]."""
    columns = {name: np.array([candidate[name] for candidate in candidates]) for name in NAMES}
    # TorchInductor can't ask for another order of tiles.
    order = {"swizzle": np.ones(len(candidates), dtype=np.int64), "raster": np.full(len(candidates), "m")}
    tiling = divided_sm90(columns | order, problem, device.shared_memory)
    return model.predict(Features.of(tiling_features(tiling, device))).mean


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


def _version(model: str) -> str:
    """Names a model, by its checksum, and the code that turns candidates into its features."""
    digest = hashlib.sha256(model.encode())
    for package in ("tilescout.costmodel", "tilescout.search.export", "tilescout.spaces", "tilescout.spaces.libraries"):
        sources = (file for file in files(package).iterdir() if file.name.endswith(".py"))
        for source in sorted(sources, key=lambda file: file.name):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()

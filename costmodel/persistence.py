"""Fitted models on disk: one NumPy archive of plain arrays and a JSON text, never pickle.

A model file is an ``.npz`` archive with the arrays of its forest, of its networks, or of both, and the array ``card``,
a JSON text. Arrays are checked before they are used.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import lru_cache
from io import BytesIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.analytic import Constants
from tilescout.costmodel.blend import Blended, BlendModel
from tilescout.costmodel.ensemble import Judged
from tilescout.costmodel.forest import CorrectedForest, ForestModel
from tilescout.costmodel.ranking import Networks, RankingModel
from tilescout.costmodel.shipped import shipped_file
from tilescout.costmodel.trees import LEAF, Forest
from tilescout.costmodel.uncertainty import Ensemble, Errors
from tilescout.spaces.archive import read_arrays
from tilescout.spaces.errors import MALFORMED, ModelError, one_line
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.outputs import check_replaceable, publish
from tilescout.spaces.texts import file_name
from tilescout.spaces.trust import named_folder

FORMAT = 3
_ONE_TABLE = 2  # the last format whose card names one table, and not how its kernels were timed
_EVEN = 0.5  # the weight of networks in files that do not say it
_LARGEST, _UNPACKED = 1 << 26, 1 << 28  # bytes; the shipped model has 3.7 MB, 13 MB when it is unpacked
_NAMED = 10  # models of a folder, in a message
_ARCHIVE = b"PK"  # the first bytes of an .npz file
_LARGEST_NUMBER = 2**53  # of constants and errors, which are about 1
_LEAST_CONSTANT = 2**-53  # a clock that stands still would be divided by
_KEPT = 4  # models that were read last: those of both spaces of a suite's problems, and of the library
_MOST = 1000  # trees, networks, and units of a layer: predictions take memory for each
_DEEPEST = 500  # nodes from a root to a leaf: a prediction passes over all rows for each; in the shipped models 43
_PASSES = 1 << 15  # these of all trees together; the shipped models have 2,000
_WEIGHTS, _UNITS = 1 << 20, 1 << 14  # of all networks together; the shipped models have 38,016 and 776
SavedModel = ForestModel | RankingModel | BlendModel
"""The models that can be saved."""

Arrays = dict[str, NDArray[Any]]
Numbers = TypeVar("Numbers", Constants, Errors)

_FOREST = tuple(field.name for field in fields(Forest))


@dataclass(frozen=True)
class TrainingTable:
    """A table that a model learned from.

    Attributes
    ----------
    name, sha256
        Its file's name and its checksum.
    objective
        What its kernels were timed in, a chain or a sandwich; empty where the model's file does not say.
    """

    name: str
    sha256: str
    objective: str


@dataclass(frozen=True)
class ModelCard:
    """Where a model comes from.

    Attributes
    ----------
    space, device
        Short names of what it was trained for.
    problems
        What it was trained on, as text: predictions for them are no predictions.
    tables
        The tables it was trained on.
    rows
        Measurements that it was trained on.
    sha256
        Of the bytes that the model was read from, which tell it from others of its name; empty for one that was not
        read.
    """

    space: str
    device: str
    problems: tuple[str, ...]
    tables: tuple[TrainingTable, ...]
    rows: int
    sha256: str = field(default="", compare=False)


def save_model(path: Path, model: SavedModel, card: ModelCard) -> None:
    """Write a fitted model; a model that is there is replaced.

    Raises
    ------
    ModelError
        If the model was not fitted or has no trees and networks, or the file can't be written or is something else.
    """
    check_model_file(path)
    if model.fitted is None:
        raise ModelError("only a fitted model can be saved: call fit first")
    if not isinstance(model.fitted, Judged):
        raise _no_file_holds(model.fitted)
    parts = _parts(model.fitted.ensemble)
    arrays: Arrays = {}
    for part in parts:
        arrays |= _forest_arrays(part) if isinstance(part, CorrectedForest) else _network_arrays(part)
    about = {
        "format": FORMAT,
        "card": {name: value for name, value in asdict(card).items() if name != "sha256"},
        "names": model.fitted.names,
        "constants": {_name(part): None if part.constants is None else asdict(part.constants) for part in parts},
        "errors": asdict(model.fitted.errors),
    }
    if isinstance(model.fitted.ensemble, Blended):
        about["weight"] = model.fitted.ensemble.weight
    text = json.dumps(about, sort_keys=True)
    archive = BytesIO()
    np.savez_compressed(archive, allow_pickle=False, card=np.array(text), **arrays)
    try:
        publish({path: archive.getvalue()})
    except OSError as error:
        raise ModelError(f"can't write the model {path}: {error.strerror}") from error


def check_model_file(path: Path) -> None:
    """Refuse to write a model over a file that is something else.

    Raises
    ------
    ModelError
        If it is.
    """
    check_replaceable(path, "a model", _has_card, ModelError)


def _has_card(path: Path) -> bool:
    return "card" in read_arrays(read_regular(path, _LARGEST), _UNPACKED)


def named_model(name: Path | str) -> Path:
    """A file of a model, or a folder of some, that is named in Python. An empty text would mean the working directory.

    Raises
    ------
    ModelError
        If it is empty.
    """
    return named_folder(name, "cost model", ModelError)


def check_exists(path: Path) -> None:
    """Refuse a model's file that is not there: to look is quick, to read it is not.

    Raises
    ------
    ModelError
        If it is not.
    """
    if not path.exists():
        raise _missing(path)


def load_model(path: Path) -> tuple[SavedModel, ModelCard]:
    """Read what `save_model` wrote; a file that did not change since it was read is not read again.

    Raises
    ------
    ModelError
        If the file is missing, damaged or of another format.
    """
    try:
        found = path.stat()
    except OSError:
        return _read_model(path, ())  # which tells
    model, card = _read_model(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    return copy(model), card  # whoever fits it changes their own


@lru_cache(maxsize=_KEPT)
def _read_model(path: Path, state: tuple[int, ...]) -> tuple[SavedModel, ModelCard]:
    """Read the model of a file in some state."""
    try:
        content = read_regular(path, _LARGEST)
        if not content.startswith(_ARCHIVE):
            raise ModelError(f"{path} is no model: one is a .npz file, which `tilescout train` writes")
        arrays = read_arrays(content, _UNPACKED)
        if "card" not in arrays:
            raise ModelError(f"{path} is no model: it is an archive of other arrays")
        about = parse_json(str(arrays.pop("card")))
        if about["format"] not in (_ONE_TABLE, FORMAT):
            raise ModelError(
                f"model {path}: format {one_line(str(about['format']), 20)}, this tilescout reads {_ONE_TABLE} and "
                f"{FORMAT}; train it anew with `tilescout train`"
            )
        card = replace(_card(about["card"]), sha256=hashlib.sha256(content).hexdigest())
        names, errors = _names(about["names"]), _numbers(Errors, about["errors"], 0)
        constants = {
            name: None if told is None else _numbers(Constants, told, _LEAST_CONSTANT)
            for name, told in about["constants"].items()
        }
        forest = _forest(arrays, names, constants["forest"]) if "forest" in constants else None
        networks = _networks(arrays, names, constants["networks"]) if "networks" in constants else None
        weight = _share(about.get("weight", _EVEN))
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        raise ModelError(f"can't read the model {path}: {error.strerror}") from error
    except _UnsoundError as error:
        raise ModelError(f"model {path} is damaged: {error}; train it anew") from error
    except MALFORMED as error:
        raise ModelError(
            f"model {path} is damaged ({one_line(error, 100)}); get it again, or train it anew with `tilescout train`"
        ) from error
    if forest is not None and networks is not None:
        return BlendModel.of(Blended(forest, networks, weight), errors), card
    if forest is not None:
        return ForestModel.of(forest, errors), card
    if networks is not None:
        return RankingModel.of(networks, errors), card
    raise ModelError(f"model {path} is damaged: it holds neither trees nor networks; train it anew")


def _missing(path: Path) -> ModelError:
    return ModelError(f"model {path} does not exist; make one with `tilescout train`")


def model_in(folder: Path, space: str, device: str) -> Path:
    """Where a folder has the model of a space on a device: `tilescout train` gives it this name."""
    return folder / f"{file_name(f'{space}-{device}'.replace(':', '-'))}.npz"


def model_file(name: Path | str, space: str, device: str) -> Path:
    """The file that is meant by the name of a model: of a folder, the one of a space on a device.

    Raises
    ------
    ModelError
        If the name is empty, or of a folder that has no such file.
    """
    folder = named_model(name)
    if not folder.is_dir():
        return folder
    path = model_in(folder, space, device)
    if not path.exists():
        there = sorted(one_line(each.name, 60) for each in islice(folder.glob("*.npz"), _NAMED))
        raise ModelError(
            f"the folder {folder} has no {path.name}, the model of {space} on {device}, only {', '.join(there)}"
            if there
            else f"the folder {folder} has no models: make one with `tilescout train {space}`"
        )
    return path


def shipped_model(space: str, device: str) -> Path | None:
    """The model of a space on a device that comes with the package; None if there is none."""
    return shipped_file(space, device, ".npz")


def _card(record: Mapping[str, Any]) -> ModelCard:
    told = dict(record)
    if "tables" not in told:  # of the format `_ONE_TABLE`
        told["tables"] = [{"name": told.pop("table"), "sha256": told.pop("table_sha256"), "objective": ""}]
    tables = tuple(TrainingTable(**each) for each in told["tables"])
    card = ModelCard(**{**told, "problems": tuple(told["problems"]), "tables": tables})
    texts = (card.space, card.device, *(text for table in tables for text in astuple(table)), *card.problems)
    if not all(isinstance(text, str) for text in texts) or type(card.rows) is not int:
        raise TypeError("its card has values of other types")
    return card


def _names(found: Sequence[Any]) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found) or len({*found}) < len(found):
        raise TypeError("the names of its features are no distinct texts")
    return tuple(found)


def _numbers(kind: type[Numbers], record: Mapping[str, Any], least: float) -> Numbers:
    for name, value in record.items():
        if type(value) not in (int, float) or not least <= value <= _LARGEST_NUMBER:
            raise TypeError(f"its {name} is no number that it can be")
    return kind(**record)


def _share(weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise TypeError("the weight of its networks is no share")
    return float(weight)


class _UnsoundError(Exception):
    """Arrays are not those of a model."""


def _parts(ensemble: Ensemble) -> Sequence[CorrectedForest | Networks]:
    if isinstance(ensemble, Blended):
        return ensemble.forest, ensemble.networks
    if isinstance(ensemble, CorrectedForest | Networks):
        return (ensemble,)
    raise _no_file_holds(ensemble)


def _no_file_holds(learned: object) -> ModelError:
    return ModelError(
        f"a file can't hold a {type(learned).__name__}, only trees and networks; a model of your own is passed to a "
        "search as it is, as its setting `model`"
    )


def _name(part: CorrectedForest | Networks) -> str:
    return "forest" if isinstance(part, CorrectedForest) else "networks"


def _forest_arrays(fitted: CorrectedForest) -> Arrays:
    return {f"forest.{name}": getattr(fitted.forest, name) for name in _FOREST}


def _forest(arrays: Arrays, names: tuple[str, ...], constants: Constants | None) -> CorrectedForest:
    forest = Forest(**{name: arrays[f"forest.{name}"] for name in _FOREST})
    if not _is_sound(forest, len(names)):
        raise _UnsoundError("its trees lead outside themselves, or are too deep")
    return CorrectedForest(names, forest, constants)


def _network_arrays(networks: Networks) -> Arrays:
    """Layer by layer, with the members along the first axis."""
    arrays: Arrays = {"networks.centre": networks.centre, "networks.scale": networks.scale}
    for at, layers in enumerate(zip(*networks.members, strict=True)):
        arrays[f"networks.weights{at}"] = np.stack([weights for weights, _ in layers])
        arrays[f"networks.biases{at}"] = np.stack([biases for _, biases in layers])
    return arrays


def _networks(arrays: Arrays, names: tuple[str, ...], constants: Constants | None) -> Networks:
    depth = sum(name.startswith("networks.weights") for name in arrays)
    weights = [arrays[f"networks.weights{at}"] for at in range(depth)]  # each [members, inputs, outputs]
    biases = [arrays[f"networks.biases{at}"] for at in range(depth)]  # each [members, outputs]
    centre, scale = arrays["networks.centre"], arrays["networks.scale"]
    every = [centre, scale, *weights, *biases]
    if not weights or any(array.dtype != np.float64 or not np.isfinite(array).all() for array in every):
        raise _UnsoundError("its networks are not of numbers")
    # Of k layers there are k + 1 widths: the features, the outputs of each layer, the last of them one score.
    widths = [len(names), *(layer.shape[-1] for layer in weights[:-1]), 1]
    members = len(weights[0])
    fits = centre.shape == scale.shape == (len(names),) and bool((scale > 0).all())
    fits = fits and 0 < members <= _MOST and max(widths) <= _MOST
    for weight, bias, (inputs, outputs) in zip(weights, biases, pairwise(widths), strict=True):
        fits = fits and weight.shape == (members, inputs, outputs) and bias.shape == (members, outputs)
    if not fits:
        raise _UnsoundError("the layers of its networks do not fit")
    if sum(weight.size for weight in weights) > _WEIGHTS or sum(bias.size for bias in biases) > _UNITS:
        raise _UnsoundError("its networks are too large")
    layers = [
        tuple((weight[at], bias[at]) for weight, bias in zip(weights, biases, strict=True)) for at in range(members)
    ]
    return Networks(names, centre, scale, tuple(layers), constants)


def _is_sound(forest: Forest, features: int) -> bool:
    """Whether every path of every tree ends in a leaf of that tree, soon, and each node has one parent."""
    length = len(forest.feature)
    kinds = {"feature": np.int16, "value": np.float32, "right": np.int32, "roots": np.int32}
    if any(getattr(forest, name).ndim != 1 or getattr(forest, name).dtype != kind for name, kind in kinds.items()):
        return False
    if not len(forest.value) == len(forest.right) == length or not len(forest.roots):
        return False
    roots = forest.roots
    if len(roots) > _MOST or roots[0] != 0 or (np.diff(roots) <= 0).any() or roots[-1] >= length:
        return False
    inner = np.flatnonzero(forest.feature != LEAF)
    if ((forest.feature[inner] < 0) | (forest.feature[inner] >= features)).any():
        return False
    ends = np.append(roots[1:], length)[np.searchsorted(roots, inner, side="right") - 1]
    right = forest.right[inner]
    if not ((right > 1) & (inner + right < ends)).all() or not np.isfinite(forest.value).all():
        return False
    level, seen = roots.astype(np.int64), 0
    for _ in range(min(_DEEPEST, _PASSES // len(roots))):
        seen += len(level)
        if seen > length:  # a node of several parents
            return False
        level = level[forest.feature[level] != LEAF]
        if not len(level):
            return True
        level = np.concatenate([level + 1, level + forest.right[level]])
    return False

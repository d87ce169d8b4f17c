"""Fitted models on disk: one NumPy archive of plain arrays and a JSON text, never pickle.

A model file is an ``.npz`` archive with the arrays of its forest and the array ``card``, a JSON text.
"""

import json
import zipfile
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path

import numpy as np

from tilescout.costmodel.analytic import Constants
from tilescout.costmodel.learned import Fitted, ForestModel
from tilescout.costmodel.trees import LEAF, Forest
from tilescout.costmodel.uncertainty import Errors
from tilescout.spaces.errors import ModelError

FORMAT = 1
_ARRAYS = tuple(field.name for field in fields(Forest))


@dataclass(frozen=True)
class ModelCard:
    """Where a model comes from.

    Attributes
    ----------
    space, device
        Short names of what it was trained for.
    problems
        What it was trained on, as text: predictions for them are no predictions.
    table, table_sha256
        Name and checksum of the table it was trained on.
    rows
        Measurements that it was trained on.
    """

    space: str
    device: str
    problems: tuple[str, ...]
    table: str
    table_sha256: str
    rows: int


def save_model(path: Path, model: ForestModel, card: ModelCard) -> None:
    """Write a fitted model; a file that is there is replaced.

    Raises
    ------
    ModelError
        If the model was not fitted or the file can't be written.
    """
    fitted, errors = model.fitted, model.errors
    if fitted is None or errors is None:
        raise ModelError("only a fitted model can be saved: call fit first")
    about = {
        "format": FORMAT,
        "card": asdict(card),
        "names": fitted.names,
        "constants": None if fitted.constants is None else asdict(fitted.constants),
        "errors": asdict(errors),
    }
    text = json.dumps(about, sort_keys=True)
    arrays = {name: getattr(fitted.forest, name) for name in _ARRAYS}
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez_compressed(file, card=np.array(text), **arrays)
        temporary.replace(path)
    except OSError as error:
        raise ModelError(f"can't write the model {path}: {error.strerror}") from error


def load_model(path: Path) -> tuple[ForestModel, ModelCard]:
    """Read what `save_model` wrote.

    Raises
    ------
    ModelError
        If the file is missing, damaged or of another format.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            about = json.loads(str(archive["card"]))
            if about["format"] != FORMAT:
                raise ModelError(
                    f"model {path}: format {about['format']}, this tilescout reads {FORMAT}; "
                    "train it anew with `tilescout train`"
                )
            forest = Forest(**{name: archive[name] for name in _ARRAYS})
        card = ModelCard(**{**about["card"], "problems": tuple(about["card"]["problems"])})
        names, errors = tuple(about["names"]), Errors(**about["errors"])
        constants = None if about["constants"] is None else Constants(**about["constants"])
    except FileNotFoundError as error:
        raise ModelError(f"model {path} does not exist; make one with `tilescout train`") from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ModelError(f"model {path} is damaged; get it again, or train it anew with `tilescout train`") from error
    if not _is_sound(forest, len(names)):
        raise ModelError(f"model {path} is damaged: its trees lead outside themselves; train it anew")
    return ForestModel.of(Fitted(names, forest, constants), errors), card


def shipped_model(space: str, device: str) -> Path | None:
    """The model of a space on a device that comes with the package; None if there is none."""
    path = Path(str(files("tilescout.costmodel").joinpath("pretrained", f"{space}-{device}.npz")))
    return path if path.is_file() else None


def _is_sound(forest: Forest, features: int) -> bool:
    """Whether every path of every tree ends in a leaf of that tree."""
    length = len(forest.feature)
    kinds = {"feature": np.int16, "value": np.float32, "right": np.int32, "roots": np.int32}
    if any(getattr(forest, name).ndim != 1 or getattr(forest, name).dtype != kind for name, kind in kinds.items()):
        return False
    if not len(forest.value) == len(forest.right) == length or not len(forest.roots):
        return False
    roots = forest.roots
    if roots[0] != 0 or (np.diff(roots) <= 0).any() or roots[-1] >= length:
        return False
    inner = np.flatnonzero(forest.feature != LEAF)
    if ((forest.feature[inner] < 0) | (forest.feature[inner] >= features)).any():
        return False
    ends = np.append(roots[1:], length)[np.searchsorted(roots, inner, side="right") - 1]
    right = forest.right[inner]
    return bool(((right > 1) & (inner + right < ends)).all()) and bool(np.isfinite(forest.value).all())

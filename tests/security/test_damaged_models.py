"""A model whose numbers can't be those of one is refused, or what it expects is; nothing else is raised."""

import io
import json
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.costmodel.trees import LEAF
from tilescout.spaces.archive import read_arrays
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import find_template

Arrays = dict[str, np.ndarray]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Callable[[dict[str, Any], Arrays], object]], Path]:
    """Where a model lies whose card and arrays were changed."""

    def write(change: Callable[[dict[str, Any], Arrays], object]) -> Path:
        shipped = shipped_model("gemm_sm90", "h200")
        assert shipped is not None
        arrays = read_arrays(shipped.read_bytes(), 1 << 28)
        card = json.loads(str(arrays["card"]))
        change(card, arrays)
        made = io.BytesIO()
        np.savez(made, allow_pickle=False, **(arrays | {"card": np.array(json.dumps(card))}))
        path = tmp_path / "model.npz"
        path.write_bytes(made.getvalue())
        return path

    return write


@pytest.mark.parametrize("constant", [0, -1.0, 5e-324, 1e300])
@pytest.mark.parametrize("name", ["clock_ghz", "store_bytes", "multiply"])
def test_a_constant_that_no_device_has(changed: Any, name: str, constant: float) -> None:
    path = changed(lambda card, arrays: card["constants"]["forest"].update({name: constant}))
    with pytest.raises(ModelError, match=f"its {name} is no number that it can be"):
        load_model(path)


@pytest.mark.parametrize("name", ["floor", "slope", "shift"])
def test_an_error_below_nothing(changed: Any, name: str) -> None:
    path = changed(lambda card, arrays: card["errors"].update({name: -1e-9}))
    with pytest.raises(ModelError, match=f"its {name} is no number that it can be"):
        load_model(path)


def as_networks(card: dict[str, Any], arrays: Arrays, members: int, widths: list[int]) -> None:
    """Make the model one of networks of these widths, all of whose weights are zero: they are packed into few bytes."""
    card["constants"].pop("forest")
    for name in [name for name in arrays if name.startswith(("forest", "networks.weights", "networks.biases"))]:
        del arrays[name]
    for at, (inputs, outputs) in enumerate(pairwise([len(card["names"]), *widths, 1])):
        arrays[f"networks.weights{at}"] = np.zeros((members, inputs, outputs))
        arrays[f"networks.biases{at}"] = np.zeros((members, outputs))


@pytest.mark.parametrize(("members", "widths"), [(8, [48, 48]), (300, [48]), (2, [680, 680])])
def test_networks_as_large_as_some_are(changed: Any, members: int, widths: list[int]) -> None:
    load_model(changed(lambda card, arrays: as_networks(card, arrays, members, widths)))


@pytest.mark.parametrize(("members", "widths"), [(30, [700]), (3, [700, 700]), (100, [1] * 200)])
def test_networks_whose_products_would_take_hours(changed: Any, members: int, widths: list[int]) -> None:
    path = changed(lambda card, arrays: as_networks(card, arrays, members, widths))
    with pytest.raises(ModelError, match="its networks are too large"):
        load_model(path)


def as_chains(card: dict[str, Any], arrays: Arrays, trees: int, depth: int) -> None:
    """Make the model one of trees each of whose nodes has a leaf on its left, and so many of them below one another."""
    card["constants"].pop("networks")
    nodes = np.arange(2 * depth + 1)
    inner = nodes % 2 == 0
    inner[-1] = False
    arrays["forest.feature"] = np.tile(np.where(inner, 0, LEAF).astype(np.int16), trees)
    arrays["forest.value"] = np.zeros(trees * len(nodes), dtype=np.float32)
    arrays["forest.right"] = np.tile(np.where(inner, 2, 0).astype(np.int32), trees)
    arrays["forest.roots"] = np.arange(trees, dtype=np.int32) * np.int32(len(nodes))


@pytest.mark.parametrize(("trees", "depth"), [(48, 100), (1000, 30), (2, 499)])
def test_trees_as_deep_as_some_are(changed: Any, trees: int, depth: int) -> None:
    load_model(changed(lambda card, arrays: as_chains(card, arrays, trees, depth)))


@pytest.mark.parametrize(("trees", "depth"), [(1000, 40), (100, 400), (1, 501)])
def test_many_trees_that_are_deep(changed: Any, trees: int, depth: int) -> None:
    path = changed(lambda card, arrays: as_chains(card, arrays, trees, depth))
    with pytest.raises(ModelError, match="or are too deep"):
        load_model(path)


@pytest.mark.parametrize("size", [1e20, 1e308])
def test_weights_that_no_network_learns(changed: Any, size: float) -> None:
    template = find_template("gemm_sm90")
    features = space_features(template.space(template.parse("64x64x64:bf16"), find_device("h200")), template)
    path = changed(lambda card, arrays: arrays.update({"networks.weights1": arrays["networks.weights1"] * size}))
    model, _ = load_model(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModelError, match="expects times that can't be"):
            model.predict(features)

"""A model whose numbers can't be those of one is refused, or what it expects is; nothing else is raised."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
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

"""The expected gain of the default of ``gemm_sm90`` over the library, and the file that it is read from."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.gain import MARGIN, read_gains, shipped_gains, write_gains
from tilescout.spaces.gemm_sm90.template import TEMPLATE
from tilescout.spaces.softmax_sm90.template import TEMPLATE as SOFTMAX

DEVICE = DEVICES["h200"]
SIZES = st.integers(1, 1024).map(lambda size: 16 * size)


@given(SIZES, SIZES, SIZES, st.sampled_from(["bf16", "fp16", "e4m3", "bf16:kn:bias"]))
def test_the_default_runs_where_it_is_expected_to_be_faster_and_else_the_library(m, n, k, signature) -> None:
    problem = GemmProblem.parse(f"{m}x{n}x{k}:{signature}")
    expected = TEMPLATE.gain(problem, DEVICE)
    assert -1 < expected < 1
    wanted = TEMPLATE.default(problem, DEVICE) if expected > MARGIN else None
    assert TEMPLATE.default_or_library(problem, DEVICE) == wanted


def test_of_a_space_without_gains_the_default_runs() -> None:
    problem = SOFTMAX.parse("4096x4096:bf16")
    assert SOFTMAX.gain(problem, DEVICE) is None
    assert SOFTMAX.default_or_library(problem, DEVICE) == SOFTMAX.default(problem, DEVICE)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "gain.npz"
    write_gains(path, shipped_gains())
    again = read_gains(path)
    assert (again.mean, again.source) == (shipped_gains().mean, shipped_gains().source)
    assert (again.places == shipped_gains().places).all()
    assert (again.weights == shipped_gains().weights).all()


@pytest.mark.parametrize("fault", ["missing", "text", "format", "shape", "nan"])
def test_a_damaged_file_is_refused(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "gain.npz"
    write_gains(path, shipped_gains())
    with np.load(path) as archive:
        arrays = dict(archive)
    card = json.loads(str(arrays["card"]))
    if fault == "missing":
        path.unlink()
    elif fault == "text":
        path.write_text("no archive")
    else:
        if fault == "format":
            card["format"] = 99
        elif fault == "shape":
            arrays["weights"] = arrays["weights"][1:]
        else:
            arrays["places"][0, 0] = np.nan
        np.savez(path, **{**arrays, "card": np.array(json.dumps(card))})
    with pytest.raises(SpaceError, match=r"gain\.npz"):
        read_gains(path)

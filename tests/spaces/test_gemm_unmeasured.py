"""The kernel or library that runs of a matrix product where nothing may be measured, and the file of that rule."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.template import TEMPLATE
from tilescout.spaces.gemm_sm90.unmeasured import (
    MARGIN,
    MOST_SWAPPED,
    features,
    read_rules,
    shipped_rules,
    tiles_of,
    write_rules,
)
from tilescout.spaces.softmax_sm90.template import TEMPLATE as SOFTMAX
from tilescout.spaces.templates import Unmeasured, find_template

DEVICE = DEVICES["h200"]
SIGNATURES = list(shipped_rules().rules)
TILES = {name: tiles_of(rule.kernels, name, DEVICE) for name, rule in shipped_rules().rules.items()}
SIZES = st.one_of(st.integers(1, 64).map(lambda size: 16 * size), st.integers(1, 4096).map(lambda size: 16 * size))


@given(st.integers(1, 16_384), SIZES, SIZES, st.sampled_from(SIGNATURES))
def test_a_kernel_is_legal_just_where_its_space_allows_it_and_trees_know_it(
    m: int, n: int, k: int, signature: str
) -> None:
    problem = GemmProblem.parse(f"{m}x{n}x{k}:{signature}")
    _, legal, _ = features(TILES[signature], problem, DEVICE)
    kernels = shipped_rules().rules[signature].kernels
    for space in dict.fromkeys(space for space, _ in kernels):
        template = find_template(space)
        numbers = [at for at, (name, _) in enumerate(kernels) if name == space]
        columns = {knob.name: np.array([kernels[at][1][knob.name] for at in numbers]) for knob in template.knobs}
        allowed = np.logical_and.reduce([rule.holds(columns, problem, DEVICE) for rule in template.constraints])
        known = (columns["swap_ab"] == 0) | (m <= MOST_SWAPPED[space])
        assert legal[numbers].tolist() == (allowed & known).tolist()


@given(st.integers(1, 16_384), SIZES, SIZES, st.sampled_from([*SIGNATURES, "fp16", "bf16:kn:bias"]))
def test_a_kernel_runs_where_it_is_expected_to_lead_by_the_margin(m: int, n: int, k: int, signature: str) -> None:
    answer = TEMPLATE.default_or_library(GemmProblem.parse(f"{m}x{n}x{k}:{signature}"), DEVICE)
    if answer is not None:
        assert answer.gain is not None
        assert answer.gain >= MARGIN
        assert signature != "bf16:kn:bias"  # which nobody timed


def test_some_problems_are_the_librarys_and_some_are_ours() -> None:
    ours = [TEMPLATE.default_or_library(GemmProblem.parse(f"{m}x256x8192:bf16"), DEVICE) for m in (16, 32, 64)]
    assert any(ours)
    assert TEMPLATE.default_or_library(GemmProblem.parse("4096x8192x28672:bf16"), DEVICE) is None


@pytest.mark.parametrize("text", ["64x130x5120:bf16", "64x128x5124:bf16", "2x64x128x5120:bf16"])
def test_sizes_that_our_kernels_do_not_compute_are_the_librarys(text: str) -> None:
    assert TEMPLATE.default_or_library(GemmProblem.parse("64x128x5120:bf16"), DEVICE) is not None
    assert TEMPLATE.default_or_library(GemmProblem.parse(text), DEVICE) is None


def test_of_a_space_without_a_rule_the_default_runs() -> None:
    problem = SOFTMAX.parse("4096x4096:bf16")
    assert SOFTMAX.default_or_library(problem, DEVICE) == Unmeasured(SOFTMAX.name, SOFTMAX.default(problem, DEVICE))


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rules.npz"
    write_rules(path, shipped_rules())
    again, shipped = read_rules(path), shipped_rules()
    assert again.source == shipped.source
    for name, rule in shipped.rules.items():
        assert again.rules[name].kernels == rule.kernels
        assert (again.rules[name].trees.leaf == rule.trees.leaf).all()


@pytest.mark.parametrize("fault", ["missing", "text", "format", "trees", "kernel"])
def test_a_damaged_file_is_refused(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "rules.npz"
    write_rules(path, shipped_rules())
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
        elif fault == "trees":
            arrays[f"{SIGNATURES[0]}.feature"] += 99
        else:
            card["rules"][SIGNATURES[0]]["kernels"][0][1]["tile_m"] = 13
        np.savez_compressed(path, **{**arrays, "card": np.array(json.dumps(card))})
    with pytest.raises(SpaceError):
        read_rules(path)

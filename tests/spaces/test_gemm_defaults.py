"""The defaults of ``gemm_sm90``: legal everywhere, of the shipped portfolio, and read from a file that is checked."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.defaults import Defaults, read_defaults, shipped_defaults, write_defaults
from tilescout.spaces.gemm_sm90.estimate import cycles
from tilescout.spaces.gemm_sm90.layout import steps
from tilescout.spaces.gemm_sm90.ranking import FEATURES, features
from tilescout.spaces.gemm_sm90.template import ALWAYS, CONSTRAINTS, KNOBS, TEMPLATE, legal
from tilescout.spaces.templates import find_template

HOPPER = [device for device in DEVICES.values() if device.arch in TEMPLATE.archs]
SIGNATURES = (
    "bf16", "fp16", "bf16-fp32", "fp16-fp32", "e4m3", "e4m3-fp32", "bf16:mn", "bf16:mk", "bf16:kn:bias+gelu",
)  # fmt: skip
SIZES = st.one_of(st.integers(1, 64), st.integers(1, 4096)).map(lambda size: 16 * size)
SHIPPED = shipped_defaults(KNOBS)


@given(
    st.one_of(st.integers(1, 300), SIZES), SIZES, SIZES, st.integers(1, 8),
    st.sampled_from(SIGNATURES), st.sampled_from(HOPPER),
)  # fmt: skip
def test_the_default_is_legal_for_every_problem(m, n, k, batch, signature, device) -> None:
    problem = GemmProblem.parse(f"{m}x{n}x{k}x{batch}:{signature}")
    assume(all(getattr(problem, name) % step == 0 for name, step in steps(problem).items()))
    default = TEMPLATE.default(problem, device)
    alone = {name: np.array([value]) for name, value in default.items()}
    broken = [rule.name for rule in CONSTRAINTS if not rule.holds(alone, problem, device).all()]
    assert not broken
    assert all(value in knob.values for knob, value in zip(KNOBS, default.values(), strict=True))


@pytest.mark.parametrize("problem", ["1x8x8", "1x120x256", "3x136x64", "128x16x16:e4m3", "8192x8x8:bf16-fp32"])
def test_a_configuration_that_is_always_legal_joins_every_portfolio(problem: str) -> None:
    parsed = GemmProblem.parse(problem)
    found = Defaults({1: (), 2: ()}, SHIPPED.trees, {}).columns(
        KNOBS, parsed.element.bytes, parsed.result.bytes, HOPPER[0], ALWAYS
    )
    assert len(legal(found, parsed, HOPPER[0])["stages"]) > 0


@settings(max_examples=30)
@given(SIZES, SIZES, SIZES, st.sampled_from(HOPPER))
def test_a_default_is_of_the_portfolio_with_no_deeper_ring(m, n, k, device) -> None:
    for signature in ("bf16", "bf16-fp32", "e4m3"):
        problem = GemmProblem.parse(f"{m}x{n}x{k}:{signature}")
        default = tuple(TEMPLATE.default(problem, device).values())
        at = [knob.name for knob in KNOBS].index("stages")
        held = [*SHIPPED.portfolios[problem.element.bytes], *(tuple(one.values()) for one in ALWAYS)]
        like = [row[at] for row in held if row[:at] + row[at + 1 :] == default[:at] + default[at + 1 :]]
        assert any(int(stages) >= int(default[at]) for stages in like)


@given(SIZES, SIZES, SIZES, st.sampled_from(HOPPER))
def test_more_work_never_takes_fewer_cycles(m, n, k, device) -> None:
    columns = SHIPPED.columns(KNOBS, 2, 2, device)

    def estimated(*size: int) -> "np.typing.NDArray[np.float64]":
        problem = GemmProblem(*size)  # type: ignore[arg-type]
        return cycles(TEMPLATE.tiling(columns, problem), device)

    once = estimated(m, n, k)
    for more in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert (estimated(*more) >= once).all()


def test_features_are_finite_and_relative_to_the_least_of_those_that_are_ranked() -> None:
    problem = GemmProblem.parse("300x4096x14336x2:bf16")
    columns = legal(SHIPPED.columns(KNOBS, 2, 2, HOPPER[0]), problem, HOPPER[0])

    values = features(TEMPLATE.tiling(columns, problem), HOPPER[0])

    assert values.shape == (len(columns["stages"]), len(FEATURES))
    assert np.isfinite(values).all()
    more = [place for place, name in enumerate(FEATURES) if name.startswith("more_")]
    assert (values[:, more].min(axis=0) == 0).all()


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "defaults.npz"
    write_defaults(path, SHIPPED, KNOBS)
    again = read_defaults(path, KNOBS)
    assert (again.portfolios, again.source) == (SHIPPED.portfolios, SHIPPED.source)
    values = np.random.default_rng(0).normal(size=(20, len(FEATURES)))
    assert (again.trees.predict(values) == SHIPPED.trees.predict(values)).all()


@pytest.mark.parametrize("fault", ["missing", "text", "cut", "knob", "tree", "format", "huge"])
def test_a_damaged_file_is_refused(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "defaults.npz"
    write_defaults(path, SHIPPED, KNOBS)
    with np.load(path) as archive:
        arrays = dict(archive)
    card = json.loads(str(arrays["card"]))
    if fault == "missing":
        path.unlink()
    elif fault == "text":
        path.write_text("no archive")
    elif fault == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    elif fault == "huge":
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("more.npy", bytes(5_000_000))
    else:
        if fault == "knob":
            card["portfolios"]["2"][0][3] = 65
        elif fault == "format":
            card["format"] = 99
        else:
            arrays["feature"] = arrays["feature"] + np.int16(len(FEATURES))
        np.savez(path, **{**arrays, "card": np.array(json.dumps(card))})
    with pytest.raises(SpaceError, match=r"defaults\.npz"):
        read_defaults(path, KNOBS)


@pytest.mark.parametrize(
    ("problem", "tile", "cluster", "found"),
    [
        ("4096x9216x7168", 201, 5, [(128, 176, 2, 1, 1)]),
        ("433x3328x9600", 401, 3, []),  # 88 rows
    ],
)
def test_a_kernel_with_the_tile_and_the_cluster_of_one_of_the_library_is_found(
    problem: str, tile: int, cluster: int, found: list[tuple[int, ...]]
) -> None:
    library, space = find_template("cublaslt"), TEMPLATE.space(GemmProblem.parse(problem), DEVICES["h200"])
    columns = {knob.name: np.array([0]) for knob in library.knobs}
    columns |= {"tile": np.array([tile]), "cluster": np.array([cluster])}
    tiling = library.tiling(columns, space.problem)
    assert tiling is not None
    names = ("tile_m", "tile_n", "cluster_m", "cluster_n", "split_k")
    alike = [space[index] for index in TEMPLATE.like(space, tiling)]
    assert [tuple(each[name] for name in names) for each in alike] == found

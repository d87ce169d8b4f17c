"""Spaces of other projects' kernels: what they hold, what the projects themselves say, and real compiles."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.experiments.compare.rankings import ranked
from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.devices import DEVICES, Device
from tilescout.spaces.errors import ProblemError, SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.libraries.bare import without_init
from tilescout.spaces.libraries.quack import stages
from tilescout.spaces.templates import find_template

DEVICE_OF = {
    "quack_sm90": "h200",
    "quack_sm100": "b200",
    "quack_sm120": "rtx-pro-6000",
    "cutlass_operators": "h200",
    "cutlass_operators_sm100": "b200",
}
CAPABILITY = {"quack_sm90": 9, "quack_sm100": 10, "quack_sm120": 12}
GROUPED = GroupedProblem.parse("128x4096x1536x2048:bf16:zipf-1.2")
PROBLEM = GemmProblem(4096, 4096, 4096)

problems = st.builds(
    GemmProblem,
    *(st.integers(1, 2048).map(lambda eighth: 8 * eighth) for _ in "mnk"),
    dtype=st.sampled_from(["bf16", "fp16"]),
    out=st.sampled_from(["", "fp32"]),
)


def device_of(name: str) -> Device:
    return DEVICES[DEVICE_OF[name]]


def quack_config() -> Any:
    """Quack's configurations, without what the package imports."""
    without_init("quack")
    return import_module("quack.gemm_config")


def shape_of(config: Any) -> dict[str, int | str]:
    """A configuration of Quack's in the knobs of ours; what it leaves open is left out."""
    return {
        "schedule": "pingpong" if config.pingpong else "cooperative",
        "swap_ab": int(config.swap_ab),
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "swizzle": config.max_swizzle_size,
        "dynamic": int(config.is_dynamic_persistent),
    }


@pytest.mark.parametrize("name", DEVICE_OF)
@settings(max_examples=6)
@given(problem=problems, draws=st.data())
def test_a_space_holds_what_breaks_no_rule_and_the_default(
    name: str, problem: GemmProblem, draws: st.DataObject
) -> None:
    template = find_template(name)
    space = template.space(problem, device_of(name))
    for _ in range(10):
        drawn = {knob.name: draws.draw(st.sampled_from(knob.values)) for knob in space.knobs}
        assert (drawn in space) == (not space.violations(drawn))
    assert template.default(problem, device_of(name)) in space


@settings(max_examples=5)  # there are up to 260,000 configurations
@given(problem=problems)
def test_each_kernel_of_quack_walks_its_tiles_both_ways_and_no_way_twice(problem: GemmProblem) -> None:
    space = find_template("quack_sm90").space(problem, device_of("quack_sm90"))
    assert space.knobs[-1].name == "raster"
    _, ways = np.unique(np.ravel_multi_index(tuple(space.codes[:, :-1].T), space.shape[:-1]), return_counts=True)
    assert set(ways) == {2}


@pytest.mark.parametrize("name", CAPABILITY)
def test_the_default_is_quacks(name: str) -> None:
    theirs = shape_of(quack_config()._default_config_for_cap(CAPABILITY[name]))
    ours = find_template(name).default(PROBLEM, device_of(name))
    assert {knob: value for knob, value in ours.items() if knob in theirs} == {
        knob: value for knob, value in theirs.items() if knob in ours
    }


@pytest.mark.parametrize("name", CAPABILITY)
def test_all_that_quack_lists_is_in_the_space(name: str) -> None:
    template = find_template(name)
    space, default = template.space(PROBLEM, device_of(name)), template.default(PROBLEM, device_of(name))
    listed = [c for c in quack_config().get_all_configs() if c.device_capacity == CAPABILITY[name]]
    assert len(listed) > 10
    for config in listed:
        assert {**default, **{knob: v for knob, v in shape_of(config).items() if knob in default}} in space


def test_the_grouped_space_has_quacks_default_and_all_that_quack_lists_for_groups() -> None:
    template, quack = find_template("quack_varlen"), quack_config()
    space, default = template.space(GROUPED, DEVICES["h200"]), template.default(GROUPED, DEVICES["h200"])
    theirs = shape_of(quack._default_config_for_cap(9))
    assert {knob: value for knob, value in default.items() if knob in theirs} == {
        knob: value for knob, value in theirs.items() if knob in default
    }
    listed = [c for c in quack.get_all_configs() if c.device_capacity == 9 and quack.config_supports(c, varlen_m=True)]
    assert len(listed) > 10
    for config in listed:
        assert {**default, **{knob: v for knob, v in shape_of(config).items() if knob in default}} in space


def test_the_ranking_quack_is_its_autotuners_list_in_its_order() -> None:
    template = find_template("quack_sm90")
    space, default = template.space(PROBLEM, device_of("quack_sm90")), template.default(PROBLEM, DEVICES["h200"])
    listed = [shape_of(c) for c in quack_config().get_all_configs() if c.device_capacity == 9]
    wanted = [{**default, **{knob: v for knob, v in shape.items() if knob in default}} for shape in listed]
    assert [dict(space[index]) for index in ranked(template, space, "quack")] == wanted


def test_the_spaces_of_operators_are_what_the_library_lists_and_the_default_its_first() -> None:
    operators, torch = import_module("cutlass.operators"), import_module("torch")
    a, b, d = (torch.empty(64, 64, dtype=torch.bfloat16) for _ in range(3))
    arguments = operators.GemmArguments(a, b.t(), d, accumulator_type=torch.float32)
    for name, target, kind in (
        ("cutlass_operators", "90a", "Sm90StaticPersistentGemmOperator"),
        ("cutlass_operators_sm100", "100a", "PersistentDenseGemmOperator"),
    ):
        found = operators.get_operators(arguments, target_sm=target)
        assert type(found[0]).__name__ == kind
        designs = [operator.metadata.design for operator in found if type(operator).__name__ == kind]
        listed = [(*design.tile_shape[:2], *design.cluster_shape[:2]) for design in designs]
        template = find_template(name)
        space, default = template.space(PROBLEM, device_of(name)), template.default(PROBLEM, device_of(name))
        knobs = ("tile_m", "tile_n", "cluster_m", "cluster_n")
        assert set(zip(*(space.columns[knob].tolist() for knob in knobs), strict=True)) == set(listed)
        assert tuple(default[knob] for knob in knobs) == listed[0]
        # Of Hopper's the order in which tiles are walked is ours: two directions, four widths of a band.
        assert len(space) == len(listed) * (8 if name == "cutlass_operators" else 1)


@pytest.mark.parametrize("name", ["quack_sm90", "cutlass_operators"])
def test_cost_models_are_told_how_a_configuration_divides_the_work(name: str) -> None:
    template = find_template(name)
    space = template.space(PROBLEM, DEVICES["h200"])
    tiling = template.tiling(space.columns, PROBLEM)
    assert tiling is not None
    assert len(tiling) == len(space)
    assert (tiling.stages >= 2).all()
    assert (tiling.shared_memory <= DEVICES["h200"].shared_memory).all()
    assert (tiling.stages * (tiling.rows + tiling.columns) * tiling.depth * 2 < tiling.shared_memory).all()


def test_stages_are_counted_as_quacks_kernel_counts_them() -> None:
    # As GemmSm90.ab_stage was after compiling these: pingpong 128x192, cooperative 256x128, cooperative 64x16, and
    # cooperative 128x192 with sums that are added up inside and by another kernel.
    columns = {
        "schedule": np.array(["pingpong", *["cooperative"] * 4]),
        "tile_m": np.array([128, 256, 64, 128, 128]),
        "tile_n": np.array([192, 128, 16, 192, 192]),
        "tile_k": np.array([64, 64, 128, 32, 32]),
        "split_mode": np.array([*["serial"] * 4, "separate"]),
    }
    assert stages(columns, PROBLEM, DEVICES["h200"].shared_memory).tolist() == [5, 4, 11, 10, 9]


def test_k_is_split_where_tiles_are_fewer_than_multiprocessors_and_shares_are_not_too_small() -> None:
    template, device = find_template("quack_sm90"), device_of("quack_sm90")
    assert (template.space(PROBLEM, device).columns["split_k"] == 1).mean() == 1  # 512 tiles of 256x128, at least
    problem = GemmProblem(64, 8192, 1024)
    space = template.space(problem, device)
    columns = space.columns
    assert set(columns["split_k"].tolist()) == {1, 2, 4, 8, 16}
    assert {mode for mode, parts in zip(columns["split_mode"], columns["split_k"], strict=True) if parts == 1} == {
        "serial"
    }
    split = columns["split_k"] > 1
    assert (columns["split_k"] * columns["tile_k"] * 2 <= 1024)[split].all()
    rows, wide = (np.where(columns["swap_ab"] == flag, 64, 8192) for flag in (0, 1))
    tiles = -(-rows // columns["tile_m"]) * -(-wide // columns["tile_n"])
    assert (tiles < device.sms)[split].all()


@settings(max_examples=25)
@given(problem=problems, batch=st.integers(1, 3), name=st.sampled_from(list(CAPABILITY)), draws=st.data())
def test_scratch_memory_is_what_quack_would_allocate(
    problem: GemmProblem, batch: int, name: str, draws: st.DataObject
) -> None:
    gemm, torch, mode = import_module("quack.gemm"), import_module("torch"), quack_config().SplitKMode
    template, problem = find_template(name), replace(problem, batch=batch)
    knobs = {knob.name: draws.draw(st.sampled_from(knob.values)) for knob in template.knobs}
    d = torch.empty(batch, problem.m, problem.n, device="meta", dtype=torch.bfloat16)
    shape = (knobs["tile_m"], knobs["tile_n"], knobs.get("cluster_m", 1), knobs.get("cluster_n", 1))
    if knobs["split_k"] == 1:
        wanted = []
    elif knobs["split_mode"] == "separate":
        wanted = [gemm._staged_split_k_workspace(d, knobs["split_k"])]
    else:
        product = d.mT if knobs["swap_ab"] else d
        wanted = gemm._split_k_buffers(product, mode.SERIAL, *shape, name == "quack_sm100")
    assert template.scratch_bytes(knobs, problem) == sum(each.nbytes for each in wanted)


@pytest.mark.parametrize("name", DEVICE_OF)
def test_what_the_kernels_do_not_compute_is_refused(name: str) -> None:
    template = find_template(name)
    with pytest.raises(ProblemError, match="k = 4095 is not a multiple of 8"):
        template.check(GemmProblem(4096, 4096, 4095))
    with pytest.raises(ProblemError, match="nothing is fused to the product, not bias"):
        template.check(GemmProblem(4096, 4096, 4096, bias=True))


def test_a_space_is_not_offered_for_another_architecture() -> None:
    with pytest.raises(SpaceError, match="quack_sm100 builds for sm_100a, not for sm_90a"):
        find_template("quack_sm100").space(PROBLEM, DEVICES["h200"])


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICE_OF)
def test_the_default_and_splits_of_k_compile_with_no_gpu(name: str, tmp_path: Path) -> None:
    template, device = find_template(name), device_of(name)
    default = template.default(PROBLEM, device)
    split: dict[str, dict[str, int | str]] = {
        "quack_sm90": {"split_k": 4},
        "quack_sm100": {"split_k": 2, "split_mode": "separate"},
    }
    configurations = [default, *([Configuration.of({**default, **split[name]})] if name in split else [])]
    with CompilePool(template, "bf16", device.arch, ArtifactStore(tmp_path), CompileOptions(processes=1)) as pool:
        for submitted in [pool.submit(configuration) for configuration in configurations]:
            artifact = submitted.result()
            assert isinstance(artifact, Artifact), artifact.error
            assert artifact.resources is not None
            assert artifact.resources.registers > 0
            assert artifact.resources.spill_bytes == 0
            assert device.shared_memory / 2 < artifact.resources.shared_memory <= device.shared_memory + 1024

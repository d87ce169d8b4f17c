"""The rules and knobs of ``gemm_sm90`` against the real compiler, with no GPU.

Configurations on both sides of each rule are compiled, whatever the rule says of them.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future

import numpy as np
import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.binaries import device_code
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
H200 = find_device("h200")
SPACE = TEMPLATE.space(GemmProblem(4096, 4096, 4096), H200)
RESERVED = 1024  # bytes of shared memory a block that CUDA keeps for itself on sm_90, over the device's limit
FEW_BYTES = 64  # of spilling, which would do no harm; none was seen in 1,200 legal configurations

BASE: Mapping[str, Value] = {
    "schedule": "cooperative", "warp_groups": 2, "swap_ab": 0, "tile_m": 128, "tile_n": 128, "tile_k": 64,
    "split_k": 1, "cluster_m": 1, "cluster_n": 1, "stages": 3, "swizzle": 1, "raster": "m",
}  # fmt: skip

Outcome = Artifact | CompileFailure
Submit = Callable[..., "Future[Outcome]"]


def changed(**changes: Value) -> Configuration:
    return Configuration.of({**BASE, **changes})


@pytest.fixture(scope="module")
def submit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submit]:
    """A function: start compiling a configuration, legal or not, for a signature."""
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    options = CompileOptions(processes=1, timeout=120)
    with CompilePool(TEMPLATE, "bf16", H200.arch, store, options) as pool:
        yield pool.submit


def broken_rules(configuration: Configuration) -> list[str]:
    return [rule.name for rule in SPACE.violations(configuration)]


def instructions(artifact: Artifact) -> bytes:
    """The machine code of a kernel, without its name: the executable sections of the one GPU binary."""
    [cubin] = device_code(artifact.path.read_bytes())
    headers_at, size, count = struct.unpack_from("<Q10xHH", cubin, 40)[0], *struct.unpack_from("<HH", cubin, 58)
    code = b""
    for header in range(headers_at, headers_at + size * count, size):
        flags, _, start, length = struct.unpack_from("<QQQQ", cubin, header + 8)
        if flags & 4:  # SHF_EXECINSTR
            code += cubin[start : start + length]
    assert code
    return code


def check_sound(outcome: Outcome) -> Artifact:
    assert isinstance(outcome, Artifact), outcome.error
    assert outcome.resources is not None
    assert outcome.resources.spill_bytes <= FEW_BYTES
    assert outcome.resources.registers <= 255
    assert outcome.resources.shared_memory <= H200.shared_memory + RESERVED
    return outcome


# The most accumulators with 1 to 4 warp groups, the most shared memory, the largest cluster: each rule's last step.
FULLEST = [
    changed(tile_m=128, tile_n=208, warp_groups=1),
    changed(tile_m=256, tile_n=192, warp_groups=2),
    changed(tile_m=128, tile_n=192, schedule="pingpong"),
    changed(tile_m=192, tile_n=192, warp_groups=3),
    changed(tile_m=256, tile_n=128, warp_groups=4),
    changed(stages=6),
    changed(cluster_m=4, cluster_n=2),
]
SKINNY = TEMPLATE.space(GemmProblem(16, 4096, 4096), H200)
SPLIT = [  # with as few columns and as many shares as there are
    changed(swap_ab=1, warp_groups=1, tile_m=64, tile_n=16, tile_k=128, split_k=2, stages=8),
    changed(swap_ab=1, warp_groups=2, tile_m=256, tile_n=16, tile_k=128, split_k=8, stages=2),
]


@pytest.mark.slow
def test_legal_configurations_compile_and_do_not_spill(submit: Submit) -> None:
    drawn = SPACE.sample(4, np.random.default_rng(2026))
    compiling = {configuration: submit(configuration) for configuration in [*FULLEST, *map(SPACE.__getitem__, drawn)]}

    for configuration, compiled in compiling.items():
        assert configuration in SPACE
        check_sound(compiled.result())


@pytest.mark.slow
def test_products_that_are_split_along_k_compile_and_do_not_spill(submit: Submit) -> None:
    for configuration, compiled in {configuration: submit(configuration) for configuration in SPLIT}.items():
        assert configuration in SKINNY
        check_sound(compiled.result())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signature", "changes"),
    [
        ("bf16-fp32:mn:alpha+bias+gelu", {"tile_m": 256, "tile_n": 176, "stages": 2}),
        ("fp16:kn:bias+silu", {"tile_m": 128, "tile_n": 192, "schedule": "pingpong"}),
        ("bf16:mk:relu", {"tile_n": 80, "tile_k": 32}),
        ("e4m3", {"tile_n": 192, "tile_k": 128}),
        ("e4m3-fp32:alpha", {"tile_m": 64, "tile_n": 160, "schedule": "pingpong"}),
    ],
)
def test_every_signature_compiles_and_does_not_spill(submit: Submit, signature: str, changes: dict[str, Value]) -> None:
    space = TEMPLATE.space(GemmProblem.parse(f"4096x4096x4096:{signature}"), H200)

    assert changed(**changes) in space
    check_sound(submit(changed(**changes), signature).result())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"tile_m": 128, "tile_n": 240, "warp_groups": 1},
        {"tile_m": 256, "tile_n": 208, "warp_groups": 2, "stages": 2},
        {"tile_m": 128, "tile_n": 208, "schedule": "pingpong"},
        {"tile_m": 192, "tile_n": 208, "warp_groups": 3},
        {"tile_m": 256, "tile_n": 144, "warp_groups": 4},
    ],
    ids=["1 group", "2 groups", "pingpong", "3 groups", "4 groups"],
)
def test_beyond_the_registers_it_spills_or_does_not_compile(submit: Submit, changes: dict[str, Value]) -> None:
    configuration = changed(**changes)
    assert broken_rules(configuration) == ["registers"]

    outcome = submit(configuration).result()

    if isinstance(outcome, CompileFailure):
        assert not outcome.timed_out
        assert "Insufficient registers" in outcome.error
    else:
        assert outcome.resources is not None
        assert outcome.resources.spill_bytes > 10 * FEW_BYTES


@pytest.mark.parametrize("changes", [{"stages": 7}, {"tile_m": 256, "tile_n": 192, "stages": 4}])
def test_one_stage_more_than_fits_asks_for_more_shared_memory_than_a_block_can_have(
    submit: Submit, changes: dict[str, Value]
) -> None:
    configuration = changed(**changes)
    one_less = Configuration.of({**configuration, "stages": int(configuration["stages"]) - 1})
    assert broken_rules(configuration) == ["shared_memory"]
    assert one_less in SPACE

    # The compiler accepts it: it is the launch that would be refused.
    outcome = submit(configuration).result()

    assert isinstance(outcome, Artifact)
    assert outcome.resources is not None
    assert outcome.resources.shared_memory > H200.shared_memory + RESERVED


@pytest.mark.parametrize(
    "changes", [{"tile_m": 192, "warp_groups": 2}, {"tile_m": 64, "warp_groups": 2}, {"tile_m": 128, "warp_groups": 3}]
)
def test_rows_that_the_warp_groups_do_not_divide_do_not_compile(submit: Submit, changes: dict[str, Value]) -> None:
    configuration = changed(**changes)
    assert broken_rules(configuration) == ["rows"]

    outcome = submit(configuration).result()

    assert isinstance(outcome, CompileFailure)
    assert not outcome.timed_out
    assert outcome.error


def test_a_cluster_that_is_not_portable_is_the_launchs_trouble_not_the_compilers(submit: Submit) -> None:
    configuration = changed(cluster_m=4, cluster_n=4)
    assert broken_rules(configuration) == ["cluster"]

    # Nothing in the code tells: CUDA refuses clusters of more than 8 blocks unless a program asks for the exception,
    # and then promises them on no device.
    check_sound(submit(configuration).result())


STEPS: dict[str, Value] = {
    "schedule": "pingpong", "warp_groups": 1, "swap_ab": 1, "tile_m": 256, "tile_n": 160, "tile_k": 32, "split_k": 2,
    "cluster_m": 2, "cluster_n": 2, "stages": 6, "swizzle": 2, "raster": "n",
}  # fmt: skip
SIGNATURES = ("fp16", "e4m3", "bf16-fp32", "bf16:kn", "bf16:mk", "bf16:alpha", "bf16:bias", "bf16:relu", "bf16:gelu")


@pytest.mark.slow
def test_each_knob_and_the_signature_change_the_machine_code(submit: Submit) -> None:
    assert set(STEPS) == {knob.name for knob in TEMPLATE.knobs}
    base = submit(changed())
    variants = {name: submit(changed(**{name: value})) for name, value in STEPS.items()}
    variants |= {signature: submit(changed(), signature) for signature in SIGNATURES}

    code = {name: instructions(check_sound(variant.result())) for name, variant in variants.items()}
    code["none"] = instructions(check_sound(base.result()))

    same = [(one, other) for one in code for other in code if one < other and code[one] == code[other]]
    assert not same

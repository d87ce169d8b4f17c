"""The space of grouped products that loads half of a trimmed tile: what differs from another, and that it compiles."""

from pathlib import Path

import numpy as np

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.grouped_gemm_sm90 import TEMPLATE as WHOLE
from tilescout.spaces.grouped_halved_sm90 import TEMPLATE, widened
from tilescout.spaces.grouped_streamk_sm90 import TEMPLATE as SHARING
from tilescout.spaces.knobs import Value
from tilescout.spaces.templates import find_template

H200 = DEVICES["h200"]
PROBLEM = TEMPLATE.parse("128x32768x2048x768:bf16:zipf-1")


def test_without_halves_it_is_the_space_that_shares_a_last_wave_and_with_them_its_trimmed_tiles_again() -> None:
    ours, theirs = TEMPLATE.space(PROBLEM, H200), SHARING.space(PROBLEM, H200)
    halves, shared = ours.columns["halves"] == 1, ours.codes[:, :-1]
    assert np.array_equal(shared[~halves], theirs.codes)
    assert np.array_equal(shared[halves], theirs.codes[theirs.columns["trim"] == 1])
    assert TEMPLATE.source_hash != SHARING.source_hash


def test_kernels_of_both_spaces_before_are_kernels_of_this_one() -> None:
    space = TEMPLATE.space(PROBLEM, H200)
    for template in (WHOLE, SHARING):
        default = widened(template.default(PROBLEM, H200))
        assert default in space
        assert default["halves"] == 0
    assert widened(TEMPLATE.default(PROBLEM, H200)) == TEMPLATE.default(PROBLEM, H200) in space


def test_halves_along_the_rows_and_the_columns_compile_without_spills_in_pairs_of_blocks(tmp_path: Path) -> None:
    space = TEMPLATE.space(PROBLEM, H200)
    common = {**TEMPLATE.default(PROBLEM, H200), "cluster_m": 1, "cluster_n": 1, "stages": 3, "trim": 1, "halves": 1}
    wanted: list[dict[str, Value]] = [
        {"schedule": "pingpong", "swap_ab": 0, "tile_m": 128, "tile_n": 128, "cluster_n": 2},
        {"schedule": "cooperative", "swap_ab": 1, "tile_m": 256, "tile_n": 128, "cluster_m": 2, "order": "mixed"},
    ]
    with CompilePool(
        find_template(TEMPLATE.name), "bf16", H200.arch, ArtifactStore(tmp_path), CompileOptions()
    ) as pool:
        built = [pool.submit(space[space.index({**common, **each})]) for each in wanted]
        for future in built:
            artifact = future.result()
            assert isinstance(artifact, Artifact), artifact
            assert artifact.resources is not None
            assert artifact.resources.spill_bytes == 0
            assert artifact.function == "grouped_halved_sm90"

"""The space of grouped products that may share the last wave: what it adds to another one, and that it compiles."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm_sm90.caching import EVICT_FIRST
from tilescout.spaces.gemm_streamk_sm90.layout import slots
from tilescout.spaces.grouped_gemm_sm90 import TEMPLATE as NARROW
from tilescout.spaces.grouped_streamk_sm90 import TEMPLATE, widened
from tilescout.spaces.grouped_streamk_sm90.sharing import is_worth_splitting, parts_that_fit
from tilescout.spaces.knobs import Value
from tilescout.spaces.templates import find_template

H200 = DEVICES["h200"]
PROBLEM = TEMPLATE.parse("8x1024x4096x14336:bf16:zipf-1")
RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"


def test_it_holds_all_kernels_of_the_narrower_space_and_whole_tiles_with_a_wave_that_is_shared() -> None:
    narrow, wide = NARROW.space(PROBLEM, H200), TEMPLATE.space(PROBLEM, H200)
    some = [narrow[int(index)] for index in narrow.sample(50, np.random.default_rng(0))]
    assert all(widened(each) in wide for each in some)
    assert all(({**each, "shares": 1} in wide) == (each["trim"] == 0) for each in some)
    assert len(wide) == len(narrow) + int((narrow.columns["trim"] == 0).sum())
    assert widened(TEMPLATE.default(PROBLEM, H200)) == TEMPLATE.default(PROBLEM, H200)


def test_memory_suffices_for_any_number_of_tokens() -> None:
    single = {**TEMPLATE.default(PROBLEM, H200), "shares": 1}
    tile = 4 * int(single["tile_m"]) * int(single["tile_n"]) * TEMPLATE.blocks_per_cluster(single)
    for tiles in (1, 2, 131, 132, 133, 10**6):
        needed = slots(split=1, stream_k=1, tiles=tiles, steps=224, blocks=TEMPLATE.blocks_per_cluster(single)) * tile
        assert TEMPLATE.scratch_bytes(single, PROBLEM) >= needed
    assert TEMPLATE.scratch_bytes({**single, "shares": 0}, PROBLEM) == 0


def test_a_last_wave_is_split_where_it_is_thin_and_k_is_long() -> None:
    def parts(tiles: int, k: int) -> int:
        fitting = parts_that_fit(tiles, 132)
        assert fitting * tiles <= 132
        return fitting if is_worth_splitting(fitting, k) else 1

    assert [parts(tiles, 14336) for tiles in (1, 16, 17, 33, 44, 66, 67, 132)] == [8, 8, 7, 4, 3, 2, 1, 1]
    assert [parts(tiles, 4096) for tiles in (1, 33, 44, 66)] == [8, 4, 3, 1]
    assert [parts(tiles, 2048) for tiles in (1, 33)] == [1, 1]


@pytest.mark.slow
def test_kernels_that_share_a_wave_compile_without_spills(tmp_path: Path) -> None:
    space = TEMPLATE.space(PROBLEM, H200)
    common = {**TEMPLATE.default(PROBLEM, H200), "cluster_m": 1, "cluster_n": 1, "stages": 2, "trim": 0, "shares": 1}
    wanted: list[dict[str, Value]] = [
        {"schedule": "pingpong", "swap_ab": 0, "tile_m": 128, "tile_n": 192, "cluster_n": 2, "order": "mixed"},
        {"schedule": "cooperative", "swap_ab": 1, "tile_m": 256, "tile_n": 128},
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
            # The upper word of the policy, by which weights leave the L2 first, is an operand of an instruction.
            assert struct.pack("<I", EVICT_FIRST >> 32) in artifact.path.read_bytes()


def test_tables_that_were_recorded_together_are_of_one_version_of_the_kernels() -> None:
    found: dict[Path, set[str]] = {}
    for path in sorted(RESULTS.glob(f"*/{TEMPLATE.name}-*.json")):
        found.setdefault(path.parent, set()).add(json.loads(path.read_text())["source_hash"])
    assert found
    assert {folder: len(hashes) for folder, hashes in found.items()} == dict.fromkeys(found, 1)

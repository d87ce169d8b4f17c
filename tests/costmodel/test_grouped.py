"""Features of grouped products, against tiles that are counted one by one."""

import numpy as np
import pytest

from tilescout.costmodel.features import space_features
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.templates import find_template

TEMPLATE, H200 = find_template("grouped_gemm_sm90"), DEVICES["h200"]


def counted(sizes: tuple[int, ...], rows: int, blocks: int, trim: bool) -> tuple[float, float]:
    """Tiles along the tokens that are walked, and multiplied."""
    walked = multiplied = 0.0
    for size in sizes:
        tiles = -(-size // (rows * blocks)) * blocks
        walked += tiles
        for tile in range(tiles):
            filled = min(max(size - tile * rows, 0), rows)
            multiplied += 1 if not trim or filled > rows / 2 else 0.5 * (filled > 0)
    return walked, multiplied


@pytest.mark.parametrize("routing", ["balanced", "zipf-1.3", "one", "recorded-0.5.65.128.1.200.33.64"])
def test_tiles_are_those_that_one_counts(routing: str) -> None:
    problem = GroupedProblem.parse(f"8x496x1536x2048:bf16:{routing}")
    space = TEMPLATE.space(problem, H200)
    some = space.subset(space.sample(60, np.random.default_rng(0)))
    tiling = TEMPLATE.grouped_tiling(some.columns, problem)
    assert tiling is not None
    walked, multiplied = tiling.token_tiles()
    for at in range(len(some)):
        rows, blocks, trim = int(tiling.rows[at]), int(tiling.cluster_rows[at]), bool(tiling.trim[at])
        each = [counted(draw.groups, rows, blocks, trim) for draw in problem.draws]
        assert (walked[at], multiplied[at]) == pytest.approx(np.mean(each, axis=0))


def test_features_are_finite_from_one_token_on_and_tell_routings_apart() -> None:
    found = {}
    for text in ("128x8x1536x2048:bf16:balanced", "128x4096x1536x2048:bf16:balanced", "128x4096x1536x2048:bf16:one"):
        space = TEMPLATE.space(TEMPLATE.parse(text), H200)
        features = space_features(space.subset(np.arange(0, len(space), 997)), TEMPLATE)
        assert np.isfinite(features.values).all()
        found[text] = {name: features.values[:, at].mean() for at, name in enumerate(features.names)}
    few, many, one = found.values()
    assert few["fill"] < many["fill"] < one["fill"]
    assert one["time_memory"] < few["time_memory"] < many["time_memory"]


@pytest.mark.parametrize(("tokens", "shared"), [(2048, True), (1024, False)])
def test_a_thin_last_round_that_is_split_counts_for_a_part_of_a_whole_one(tokens: int, shared: bool) -> None:
    wide = find_template("grouped_streamk_sm90")
    space = wide.space(wide.parse(f"8x{tokens}x4096x14336:bf16:zipf-1:draws-0-0"), H200)
    plain = {**wide.default(space.problem, H200), "trim": 0}
    both = space.subset(np.array([space.index({**plain, "shares": shares}) for shares in (0, 1)]))
    features = space_features(both, wide)
    waves, units = (2 ** features.values[:, features.names.index(name)] for name in ("waves", "units"))
    thin = units[0] % 1
    assert waves == pytest.approx([np.ceil(units[0]), np.floor(units[0]) + (1 / min(1 // thin, 8) if shared else 1)])
    tail, rounds, mma = (features.values[1, features.names.index(name)] for name in ("tail", "time_rounds", "time_mma"))
    assert (tail, rounds) == pytest.approx((np.log2(waves[1] / units[1]), mma + np.log2(waves[1] / units[1])))

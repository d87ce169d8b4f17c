"""Tell from tables of grouped products how far the best kernels are from what the device allows, and why.

    python -m tilescout.experiments.research grouped-floor experts-*.parquet --out floor.json
    python -m tilescout.experiments.research grouped-floor peers.json --out floor-judged.json

The floor of a problem is the time for its bytes at 4.3 TB/s or for its arithmetic at 790 TFLOP/s, whichever is longer:
what an H200 was seen to reach, not its data sheet. Over it is the time of the fastest configuration of the tables, in
the geometric mean over the problems with so many tokens of the model, all to one expert left out. Beside it stand the
rows that this configuration multiplies over those that there are: tiles begin with an expert's first token, and the
last one of each expert is not full. Of what ``grouped peers`` recorded it is the kernel of ours that was the fastest in
the race, on draws of the routing that nothing was chosen on.

And there is what a schedule without gaps would take, with tiles of 128 or of 64 rows, or of both: each tile as long as
its products keep the tensor cores busy or its loads the way from the L2, whichever is longer, and all of them no less
than memory needs. Either experts overlap, so that one that waits for memory runs beside one that the tensor cores
bind, or each runs alone on the whole GPU.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.grouped_tables import grouped_times, joined
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.experiments.research.studies.grouped import chosen_row
from tilescout.experiments.research.studies.grouped_standing import SPACES
from tilescout.search.dispatch.grouped_times import GroupedTimes
from tilescout.search.tables.table import SUFFIX, Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration

BYTES_A_SECOND, FLOPS_A_SECOND = 4.3e12, 790e12
CHOSEN = {32: 4, 8: 2, 128: 8, 256: 8}
"""Experts that a token of the model goes to, by how many there are: gpt-oss-20b, Mixtral 8x7B, Qwen3-30B-A3B and
DeepSeek-V3, as their configurations are published."""

HEIGHTS = {"128 rows": (128,), "64 rows": (64,), "128 or 64 rows": (64, 128)}
"""Rows of the tiles of a schedule: full tiles are of the largest, and the rest of an expert is of the least that holds
it."""
WIDTH = 192  # columns of a tile, as of most of the fastest configurations
PROCESSORS = 132
FLOPS_A_CLOCK, BYTES_A_CLOCK = 4096, 64  # of a multiprocessor: bf16 by its tensor cores, and loads into it
_CLOCKS_A_SECOND = FLOPS_A_SECOND / (PROCESSORS * FLOPS_A_CLOCK)


def floor_us(problem: GroupedProblem) -> float:
    """The floor of a problem, in µs."""
    return max(problem.bytes / BYTES_A_SECOND, problem.flops / FLOPS_A_SECOND) * 1e6


def multiplied(problem: GroupedProblem, configuration: Configuration) -> float:
    """Rows that a configuration multiplies, over the rows that there are; trimmed tiles count as whole ones."""
    step = int(configuration["tile_n" if configuration["swap_ab"] else "tile_m"])
    return fmean(sum(math.ceil(size / step) * step for size in draw.groups) / draw.tokens for draw in problem.draws)


def without_gaps(problem: GroupedProblem, heights: Sequence[int]) -> dict[str, float]:
    """Times over the floor of a schedule without gaps, if experts overlap and if each runs alone."""
    sizes = np.array([draw.groups for draw in problem.draws])
    tiles = [(sizes // max(heights), _clocks_a_column(max(heights)))]
    rest = sizes % max(heights)
    for below, height in pairwise((0, *sorted(heights))):
        tiles.append(((rest > below) & (rest <= height), _clocks_a_column(height)))
    clocks = sum(count * each for count, each in tiles) * problem.n * problem.k / PROCESSORS
    computed = np.asarray(clocks) / _CLOCKS_A_SECOND * 1e6
    moved = (sizes > 0) * problem.n * problem.k + sizes * (problem.n + problem.k)
    memory = moved * problem.element.bytes / BYTES_A_SECOND * 1e6
    floor = floor_us(problem)
    return {
        "overlapping": float(np.maximum(computed.sum(axis=1), memory.sum(axis=1)).mean()) / floor,
        "alone": float(np.maximum(computed, memory).sum(axis=1).mean()) / floor,
    }


def _clocks_a_column(rows: int) -> float:
    """Clocks of a multiprocessor for so many rows of a tile, for each of its columns and each step along k."""
    return max(2 * rows / FLOPS_A_CLOCK, (rows / WIDTH + 1) * 2 / BYTES_A_CLOCK)


def described(problem: GroupedProblem, us: float, configuration: Configuration) -> dict[str, Any]:
    """How far a kernel is above the floor.

    Raises
    ------
    TableError
        If the problem is of none of the four models' experts.
    """
    if problem.experts not in CHOSEN:
        raise TableError(f"{problem} is of no model whose experts a token are known here")
    floor = floor_us(problem)
    return {
        "problem": str(problem),
        "tokens": problem.tokens // CHOSEN[problem.experts],
        "routing": str(problem.routing),
        "us": us,
        "floor_us": floor,
        "over": us / floor,
        "multiplied": multiplied(problem, configuration),
        "without_gaps": {name: without_gaps(problem, rows) for name, rows in HEIGHTS.items()},
        "configuration": dict(configuration),
    }


def standing(times: GroupedTimes) -> list[dict[str, Any]]:
    """Of each problem with usual routing, how far its fastest kernel is above the floor."""
    found: list[dict[str, Any]] = []
    for at, problem in enumerate(times.problems):
        if problem.routing.kind != "one":
            best = int(times.ratio[:, at].argmin())
            us = float(times.ratio[best, at] * times.library_us[at])
            found.append(described(problem, us, times.configurations[best]))
    return found


def judged(record: Mapping[str, Any]) -> dict[str, Any]:
    """How far the fastest of ours in a race of `grouped peers` is above the floor."""
    speeds = {
        space: record["speedup_over_library"][f"{space} best"]["value"] for space in SPACES if space in record["spaces"]
    }
    best = max(speeds, key=lambda space: speeds[space])
    configuration = Configuration.of(chosen_row(record["spaces"][best])["configuration"])
    return described(GroupedProblem.parse(record["judged_on"]), record["judged_us"] / speeds[best], configuration)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The geometric means over problems with as many tokens, of each routing and of all."""
    grouped: dict[int, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name in ("all", row["routing"]):
            grouped[row["tokens"]][name].append(row)
    return {
        str(tokens): {
            name: {
                "problems": len(held),
                "over": geometric_mean(row["over"] for row in held),
                "least": min(row["over"] for row in held),
                "largest": max(row["over"] for row in held),
                "multiplied": geometric_mean(row["multiplied"] for row in held),
                "without_gaps": {
                    name: {way: geometric_mean(row["without_gaps"][name][way] for row in held) for way in ways}
                    for name, ways in held[0]["without_gaps"].items()
                },
            }
            for name, held in by_routing.items()
        }
        for tokens, by_routing in sorted(grouped.items())
    }


@study(f"{TABLES}, or what `grouped peers` recorded")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(run: Run, paths: tuple[Path, ...]) -> None:
    """Tell how far the best of tables, or of what `grouped peers` recorded, PATHS, is above the floor."""
    tables = [Table.read(path) for path in paths if path.suffix == SUFFIX]
    products = joined([times for table in tables for times in grouped_times(table)])
    rows = [row for times in products for row in standing(times)]
    records = [Record.read(path) for path in paths if path.suffix != SUFFIX]
    rows += [judged(one) for record in records for one in record.result["problems"].values()]
    found = summary(rows)
    run.keep({"by_tokens": found, "problems": rows})
    for tokens, by_routing in found.items():
        for name, each in by_routing.items():
            over = f"{each['over']:.3f} of the floor [{each['least']:.3f}, {each['largest']:.3f}]"
            print(f"{tokens:>6} tokens  {name:<9} {over}, {each['multiplied']:.2f} of the rows are multiplied")
            for rows, ways in each["without_gaps"].items():
                told = ", ".join(f"{over:.3f} {way}" for way, over in ways.items())
                print(f"{'':<25} without gaps, tiles of {rows}: {told}")

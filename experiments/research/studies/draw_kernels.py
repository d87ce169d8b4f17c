"""Draw the kernels that a table is to hold of a space which is too large to be measured completely.

    python -m tilescout.experiments.research draw-kernels gemm_streamk_sm90 --suite own.toml --out kernels.json
    tilescout collect gemm_streamk_sm90 --suite own.toml --also kernels.json --sample 500 --out table.parquet

A search looks at fast kernels, so a cost model has to tell those apart, and a table of kernels that were drawn evenly
holds few of them. Here a kernel is the likelier drawn the faster the shipped model expects it to be on the problems of
the suite: by the Boltzmann distribution of its log time, to which every problem adds. The kernels that a search would
try first of each problem are among them. A kernel that serves several problems is measured on all of them.

With --own each problem has kernels of its own, as many as that, and is measured with these alone:

    python -m tilescout.experiments.research draw-kernels gemm_streamk_sm90 --suite own.toml --own 40 --out kernels.json
    tilescout collect gemm_streamk_sm90 --suite own.toml --also kernels.json --sample 20 --out table.parquet

So a table has the rows that a search of the problem looks at. Where a kernel can be launched in several orders of its
tiles, it is so in the one that is expected to be the fastest and in some that are drawn evenly. With --subspace there
are so many kernels of each of its parts: of what a model expects little it has few rows to learn from, and goes on to
expect little of it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.experiments.commands.options import seed_option, space_argument, suite_problems
from tilescout.experiments.research.runner import Run, study
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.launched import Launched, kernels_of
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.subspace import Part, read_subspace
from tilescout.spaces.templates import find_template

FIRST = 3
"""Of each problem, so many that a model expects to be the fastest."""

TEMPERATURES = (0.05, 0.4)
"""Of the Boltzmann distributions, each of which half of the kernels are drawn by: those of the first are nearly all
within a tenth of the fastest, and some of the second are slow."""


def drawn(spaces: list[SearchSpace], expected: list[Floats], count: int, seed: int) -> Indices:
    """Positions in the full grid of a number of kernels, without repeats.

    Parameters
    ----------
    spaces
        The space of each problem, of one template.
    expected
        The log times that are expected of it, each of shape [configurations].
    count
        How many kernels.
    seed
        Of the draw.
    """
    generator = np.random.default_rng(seed)
    grids = [np.ravel_multi_index(tuple(space.codes.astype(np.int64).T), space.shape) for space in spaces]
    positions, where = np.unique(np.concatenate(grids), return_inverse=True)
    chosen = np.unique(
        np.concatenate([grid[np.argsort(log)[:FIRST]] for grid, log in zip(grids, expected, strict=True)])
    )
    for number, temperature in enumerate(TEMPERATURES, start=1):
        likely = [np.exp((log.min() - log) / temperature) for log in expected]
        weights = np.bincount(where, np.concatenate([each / each.sum() for each in likely]))
        # The largest of log(u) / w first is the order of drawing without replacement with weights w.
        order = np.argsort(np.log(1 - generator.random(len(positions))) / weights)[::-1]
        left = positions[order][~np.isin(positions[order], chosen)]
        still = len(TEMPERATURES) - number + 1
        chosen = np.concatenate([chosen, left[: max(0, count - len(chosen)) // still]])
    return chosen


ORDERS = 3
"""In which a kernel of a problem's own is launched, at most."""

OWN_TEMPERATURES = (0.04, 0.15)
"""As `TEMPERATURES`, of a problem's own kernels: three in four are drawn by the first."""


def drawn_own(expected: Floats, kernels: Indices, count: int, generator: np.random.Generator) -> Indices:
    """Indices of the configurations of a problem that are measured on it alone.

    Parameters
    ----------
    expected
        The log time that is expected of each configuration, of shape [configurations].
    kernels
        The number of the kernel that each is compiled as, of the same shape.
    count
        How many kernels.
    generator
        Draws.
    """
    order = np.argsort(expected, kind="stable")
    _, first, of_kernel = np.unique(kernels[order], return_index=True, return_inverse=True)
    least = expected[order[first]]  # of each kernel
    noise = generator.gumbel(size=(len(OWN_TEMPERATURES), len(least)))
    likely = [np.argsort(least / temperature - each) for temperature, each in zip(OWN_TEMPERATURES, noise, strict=True)]
    narrow = likely[0][: count - count // 4]
    chosen = np.concatenate([narrow, likely[1][~np.isin(likely[1], narrow)][: count // 4]])
    rows = []
    for kernel in chosen:
        twins = order[of_kernel == kernel]
        rows.append(np.append(twins[:1], generator.permutation(twins[1:])[: ORDERS - 1]))
    return np.asarray(np.concatenate(rows))


def own_rows(
    space: SearchSpace,
    expected: Floats,
    launched: Launched,
    parts: Sequence[Part],
    count: int,
    rng: np.random.Generator,
) -> Indices:
    """Indices of the configurations of a problem that are measured on it alone: so many kernels of each part."""
    kernels = kernels_of(launched, space.knobs, space.codes)
    held = [np.flatnonzero(part.holds(space)) for part in parts]
    drawn = [at[drawn_own(expected[at], kernels[at], count, rng)] if len(at) else at for at in held]
    return np.unique(np.concatenate(drawn))


@study("nothing but a cost model", out_required=True)
@space_argument
@click.option("--suite", required=True, help="Problems: NAME or FILE.toml.")
@click.option("--count", default=500, show_default=True, type=click.IntRange(min=1), help="How many kernels.")
@click.option("--own", type=click.IntRange(min=1), help="So many of each problem, for it alone, in place of --count.")
@click.option(
    "--subspace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --own: so many of each part that this file lists.",
)
@click.option("--device", "device_name", default="h200", show_default=True, help="The device.")
@seed_option
def main(
    run: Run, space: str, suite: str, count: int, own: int | None, subspace: Path | None, device_name: str, seed: int
) -> None:
    """Write a list of kernels, as `tilescout collect --also` reads it."""
    if subspace and own is None:
        raise click.UsageError("--subspace goes with --own: of which part a kernel of all problems is would differ")
    template, device = find_template(space), find_device(device_name)
    parts = read_subspace(subspace, template.knobs).parts if subspace else (Part(),)
    spaces = [template.space(problem, device) for problem in suite_problems(template, suite, None)]
    expected = []
    for each in spaces:
        prior = GuidedSampler(each).prior
        if prior is None:
            raise ModelError(f"no model speaks of {space} on {device_name}: its kernels can only be drawn evenly")
        expected.append(prior.mean)
    assert run.out is not None
    if own is not None:
        generator = np.random.default_rng(seed)
        of_each = [
            own_rows(each, log, template.launched, parts, own, generator)
            for each, log in zip(spaces, expected, strict=True)
        ]
        kernels: Any = {
            str(each.problem): [dict(each[row]) for row in rows.tolist()]
            for each, rows in zip(spaces, of_each, strict=True)
        }
        print(f"{sum(map(len, of_each))} rows of {space} on {len(spaces)} problems")
    else:
        positions = drawn(spaces, expected, count, seed)
        codes = np.stack(np.unravel_index(positions, spaces[0].shape), axis=1)
        kernels = [
            {knob.name: knob.values[code] for knob, code in zip(template.knobs, row, strict=True)} for row in codes
        ]
        legal = [int((each.find(codes) >= 0).sum()) for each in spaces]
        print(f"{len(kernels)} kernels of {space}, {sum(legal)} rows on {len(spaces)} problems")
        for each, count_of in zip(spaces, legal, strict=True):
            print(f"{each.problem!s:28} {count_of:4} of {len(each)}")
    write_whole(run.out, (json.dumps(kernels, indent=0) + "\n").encode())

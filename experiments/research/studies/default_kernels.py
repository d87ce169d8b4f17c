"""Choose the kernels of both GEMM spaces that `default-sweep` glances at.

    python -m tilescout.experiments.research default-kernels --signature bf16 --out kernels.json

Of `gemm_sm90` they are the first of the portfolio. Of `gemm_streamk_sm90`, of which few problems were recorded, they
are those with the least regret that is estimated beside that portfolio, on problems of random sizes. These are drawn as
those of published models are: rows as in `draw-problems`, and products of which none is one of those models', so that
these stay to judge by.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from tilescout.costmodel.portfolio import choose_portfolio
from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.draw_problems import KINDS, known_products, pooled
from tilescout.spaces.constraints import Columns, Mask
from tilescout.spaces.devices import DEVICES, Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.estimate import cycles
from tilescout.spaces.gemm_sm90.template import ALWAYS, TEMPLATE, expected_logs
from tilescout.spaces.gemm_sm90.unmeasured import SHARING, WHOLE
from tilescout.spaces.gemm_streamk_sm90.layout import shared_memory, stage_rows
from tilescout.spaces.gemm_streamk_sm90.template import estimated_cycles
from tilescout.spaces.knobs import Configuration, configurations_of
from tilescout.spaces.templates import KernelTemplate, find_template

DEVICE = DEVICES["h200"]
_MOST_WORK = 1.2e12  # m * n * k: some 3 ms; of larger products there is nothing to learn that these do not show
_STEPS = (64, 128, 128, 256, 512)
_DRAWN = 160  # problems by which kernels that share tiles are chosen
_NEAR = 0.03  # log over the best estimate of a problem, within which a kernel is worth choosing
# The n and k of products: from, to, and what they may be multiples of.
_SIZES: Mapping[str, tuple[tuple[int, int, tuple[int, ...]], tuple[int, int, tuple[int, ...]]]] = {
    "dense": ((512, 40_960, _STEPS), (512, 32_768, _STEPS)),
    "vocabulary": ((16_000, 270_000, (64, 128, 256)), (768, 12_288, _STEPS)),
    "deep": ((16, 1024, (16, 16, 32, 64)), (2048, 65_536, _STEPS)),
}


def random_problems(signature: str, seed: int) -> Iterator[GemmProblem]:
    """Problems of random sizes without end; no product is one of a published model that problems are drawn of."""
    generator = np.random.default_rng(seed)
    kept_out = known_products() | pooled()
    while True:
        for listed, rows in KINDS.values():
            n, k = (_size(generator, *each) for each in _SIZES[listed])
            m = rows(generator) if generator.random() < 0.7 else int(np.exp(generator.uniform(0, np.log(8192))))
            if (n, k) not in kept_out and m * n * k <= _MOST_WORK:
                yield GemmProblem.parse(f"{m}x{n}x{k}:{signature}")


def _size(generator: np.random.Generator, low: int, high: int, steps: Sequence[int]) -> int:
    step = int(generator.choice(steps))
    return max(round(float(np.exp(generator.uniform(np.log(low), np.log(high)))) / step), 1) * step


@dataclass(frozen=True, eq=False)
class Kernels:
    """Kernels of one space: they are named by their numbers.

    Attributes
    ----------
    template, columns
        The space's, and the values of their knobs.
    """

    template: KernelTemplate
    columns: Columns

    @property
    def configurations(self) -> list[Configuration]:
        """Each kernel's configuration."""
        return configurations_of(self.template.knobs, self.columns)

    def legal(self, problem: GemmProblem, device: Device) -> Mask:
        """Which of them the space allows, of shape [kernels]."""
        masks = [rule.holds(self.columns, problem, device) for rule in self.template.constraints]
        return np.asarray(np.logical_and.reduce(masks))

    def ranked(self, problem: GemmProblem, device: Device) -> list[int]:
        """The numbers of the legal ones, by what is expected of them without a measurement."""
        kept = np.flatnonzero(self.legal(problem, device))
        if not len(kept):
            return []
        left = {name: column[kept] for name, column in self.columns.items()}
        expected = expected_logs if self.template.name == WHOLE else estimated_cycles
        order = np.argsort(expected(left, problem, device), kind="stable")
        return [int(number) for number in kept[order]]


def whole_kernels(problem: GemmProblem, device: Device, count: int) -> Kernels:
    """The first kernels of the portfolio of `gemm_sm90`, which were chosen one after the other."""
    template = find_template(WHOLE)
    listed = list(template.portfolio(problem, device))
    return kernels_of(template, [*listed[:count], *listed[-len(ALWAYS) :]])


def kernels_of(template: KernelTemplate, configurations: Sequence[Configuration]) -> Kernels:
    """Some configurations, none twice."""
    known = list(dict.fromkeys(configurations))
    return Kernels(template, {knob.name: np.array([each[knob.name] for each in known]) for knob in template.knobs})


def sharing_kernels(problem: GemmProblem, device: Device, count: int, seed: int) -> Kernels:
    """The kernels of `gemm_streamk_sm90` with the least regret beside the portfolio of the other, as is estimated."""
    template, others = find_template(SHARING), whole_kernels(problem, device, 1000)
    pool = Kernels(template, _grid(template, problem, device))
    drawn = random_problems(problem.signature, seed)
    logs = np.full((len(pool.columns["tile_m"]), _DRAWN), np.inf)
    for at in range(_DRAWN):
        one = next(drawn)
        kept, beside = pool.legal(one, device), others.legal(one, device)
        within = {name: column[beside] for name, column in others.columns.items()}
        least = cycles(TEMPLATE.tiling(within, one), device).min(initial=np.inf)
        logs[kept, at] = estimated_cycles({name: each[kept] for name, each in pool.columns.items()}, one, device)
        best = min(least, logs[:, at].min())
        logs[:, at] = np.minimum(np.log(logs[:, at] / best), np.log(least / best))
    worth = np.flatnonzero((logs - logs.min(axis=0) <= _NEAR).any(axis=1))
    picked = worth[list(choose_portfolio(logs[worth], np.full(_DRAWN, 1 / _DRAWN), count).picked)]
    return Kernels(template, {name: column[picked] for name, column in pool.columns.items()})


def _grid(template: KernelTemplate, problem: GemmProblem, device: Device) -> Columns:
    """Tiles of every size, split in all ways; each with the deepest ring that fits."""
    values = {knob.name: knob.values for knob in template.knobs}
    values |= {"warp_groups": (1, 2), "swizzle": (1,), "stream_k": (0,), "stages": (0,)}
    values |= {"split": (1, 2, 3, 4, 5, 6, 8, 12, 16), "cluster_m": (1, 2), "tile_k": (64, 128)}
    grid = np.indices([len(each) for each in values.values()]).reshape(len(values), -1)
    columns = {name: np.array(each)[at] for (name, each), at in zip(values.items(), grid, strict=True)}
    size = problem.element.bytes
    tile = (columns["tile_m"], columns["tile_n"], columns["tile_k"])
    empty = shared_memory(*tile, columns["stages"], columns["warp_groups"], size, problem.result.bytes)
    stage = (columns["tile_m"] + stage_rows(columns["tile_n"])) * columns["tile_k"] * size
    columns["stages"] = np.minimum((device.shared_memory - empty) // stage, 8)
    return {name: column[columns["stages"] >= 2] for name, column in columns.items()}


@study("nothing but the shipped defaults", out_required=True)
@click.option("--signature", default="bf16", show_default=True, help="Types, layout and epilogue of all problems.")
@click.option("--whole", type=click.IntRange(1, 200), default=96, show_default=True, help="Kernels of gemm_sm90.")
@click.option("--sharing", type=click.IntRange(1, 200), default=80, show_default=True, help="Of gemm_streamk_sm90.")
@seed_option
def main(run: Run, signature: str, whole: int, sharing: int, seed: int) -> None:
    """Choose the kernels, and write them."""
    problem = GemmProblem.small(signature)
    chosen = (whole_kernels(problem, DEVICE, whole), sharing_kernels(problem, DEVICE, sharing, seed))
    found: dict[str, Any] = {"signature": signature, "kernels": {}}
    for kernels in chosen:
        found["kernels"][kernels.template.name] = [dict(each) for each in kernels.configurations]
        click.echo(f"{len(kernels.configurations)} kernels of {kernels.template.name}")
    run.keep(found)

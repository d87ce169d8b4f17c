"""Verify on a GPU kernels of grouped products that do more than multiply, and give them offsets that are none.

    python -m tilescout.experiments.research grouped-forms scaled gathered-8 swiglu swiglu-pairs plain --out check.json

Of each form, the default and random configurations of its space are verified on problems at the edges: single tokens,
empty experts, all tokens to one expert, sizes that no tile divides. Kernels that promise to bear any offsets are then
launched on some that decrease, lie beyond the rows or are negative, drawn at random too: nothing may be written outside
the result, and no launch may fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import numpy as np

from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped import (
    DEVICE,
    EDGES,
    QUICK,
    WRONG_ENDS,
    chosen,
    compilers,
    survives,
)
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.verification import WrongResultError
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import load_workload

PLAIN = "plain"
SPACES: Mapping[str, str] = {
    PLAIN: "grouped_gemm_sm90",
    "swiglu": "grouped_swiglu_sm90",
    "swiglu-pairs": "grouped_swiglu_sm90",
    "scaled": "grouped_scaled_sm90",
    "gathered-8": "quack_gathered",
}
"""The space of each form."""

_MANY = 16  # rows of the weights that are a multiple of it can be halved
_EXPERTS = len(WRONG_ENDS[0])
_HOSTILE = (300, 3000)  # tokens, for which the defaults are with swapped operands and without
_DRAWN = 32  # offsets at random


def edges(form: str) -> list[GroupedProblem]:
    """The problems at the edges, with as many rows of the weights as can be halved."""
    problems = [GroupedProblem.parse(text) for text in EDGES]
    return [of_form(replace(each, n=-(-each.n // _MANY) * _MANY), form) for each in problems]


def of_form(problem: GroupedProblem, form: str) -> GroupedProblem:
    """A product as a problem of a form."""
    if form == PLAIN:
        return problem
    text = str(problem).replace(":bf16", f":bf16:{form}", 1)
    return cast(GroupedProblem, find_template(SPACES[form]).parse(text))


def wrong_ends(seed: int) -> list[tuple[int, ...]]:
    """Offsets that are none, for 8 experts and fewer than 4,096 tokens: known ones, and some drawn at random."""
    generator = np.random.default_rng(seed)
    near = generator.integers(-100, 4096, (_DRAWN, _EXPERTS))
    far = generator.integers(-(2**31), 2**31, near.shape)
    drawn = np.where(generator.random(near.shape) < 0.5, near, far)
    return [*WRONG_ENDS, *(tuple(map(int, row)) for row in drawn)]


def check(forms: Sequence[str], sample: int, seed: int, store: Path, run: Run) -> None:
    """Verify every form, and keep the result after each."""
    worker, result = Worker("cuda"), dict[str, Any]()
    for form in forms:
        found = result[form] = checked(worker, form, sample, seed, store)
        run.keep(result)
        shown = ", ".join(f"{name} {value}" for name, value in found.items() if name != "failed")
        print(f"{form}: {shown}, failed {len(found['failed'])}", flush=True)


def checked(worker: Worker, form: str, sample: int, seed: int, store: Path) -> dict[str, Any]:
    """Verify the default and `sample` random configurations of a form on the problems at the edges."""
    failed, errors, tried, hostile = list[str](), list[float](), 0, 0
    template, problems = find_template(SPACES[form]), edges(form)
    workload = load_workload(template.workload)
    with compilers([template], store, problems[0].signature) as pools:
        pool = pools[template.name]
        built = {each: [(one, pool.submit(one)) for one in chosen(template, each, sample, seed)] for each in problems}
        for problem, waiting in built.items():
            bench = Bench(worker.machine, workload, problem, QUICK)
            for configuration, future in waiting:
                tried += 1
                found = verified(worker, bench, template, configuration, future.result())
                if isinstance(found, str):
                    failed.append(f"{problem}: {configuration}: {found}")
                    print(failed[-1], flush=True)
                else:
                    errors.append(found)
        if template.careful:
            for tokens in _HOSTILE:
                problem = of_form(GroupedProblem(_EXPERTS, tokens, 528, 328), form)
                harm = survives(template, pool, [template.default(problem, DEVICE)], problem, wrong_ends(seed))
                hostile += len(wrong_ends(seed))
                failed += [f"{problem} on wrong offsets: {harm}"] if harm else []
    return {
        "kernels": tried,
        "launches on wrong offsets": hostile,
        "largest relative error": max(errors, default=0.0),
        "failed": failed,
    }


def verified(
    worker: Worker,
    bench: Bench,
    template: KernelTemplate,
    configuration: Configuration,
    built: Artifact | CompileFailure,
) -> float | str:
    """The relative error of a kernel, on the problem and on the one that no tile divides, or what is wrong."""
    if isinstance(built, CompileFailure):
        return built.error
    launch = worker.load(make_job(template, configuration, built, bench.problem, bench.library_us, bench.options))
    try:
        return bench.verify(launch, edge=True)[0]
    except WrongResultError as error:
        return str(error)


@study("a Hopper GPU, and the extra quack for gathered rows", out_required=True)
@click.argument("forms", nargs=-1, required=True, type=click.Choice(list(SPACES)))
@click.option("--sample", default=4, show_default=True, help="Random configurations of each problem.")
@seed_option
@store_option
def main(run: Run, forms: tuple[str, ...], sample: int, seed: int, store: Path) -> None:
    """Verify the kernels of FORMS."""
    check(forms, sample, seed, artifacts(store), run)

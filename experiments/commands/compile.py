"""``tilescout compile``: build kernels with no GPU."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from tilescout.experiments.commands.options import (
    chosen,
    device_option,
    examples,
    json_option,
    problem_option,
    seed_option,
    set_option,
    space_argument,
    standby_option,
    store_option,
)
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.experiments.progress import counted
from tilescout.search.build.artifacts import (
    Artifact,
    ArtifactKey,
    ArtifactStore,
    CompileFailure,
    read_shared_object,
)
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.cores import available_cores
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, complement_on, load_template
from tilescout.spaces.terminal import Grid

Kernel = tuple[KernelTemplate, Configuration]


@click.command(
    "compile",
    epilog=examples(
        "tilescout compile gemm_sm90 --problem 4096x4096x4096:bf16 --sample 100",
        "tilescout compile gemm_sm90 --problem 4096x4096x4096:bf16 --set stages=3 --set swizzle=4",
        "tilescout compile gemm_sm90 --problem 4096x4096x4096:bf16 --portfolio",
    ),
)
@space_argument
@click.option("--sample", type=click.IntRange(min=0), default=0, help="Random configurations besides the default.")
@click.option(
    "--portfolio",
    is_flag=True,
    help="The kernels that serve many problems, too, and those of a second space that `tune` may search: searches find "
    "them there.",
)
@seed_option
@set_option
@problem_option
@device_option
@click.option("--processes", type=click.IntRange(min=1), help="Compilers to run at a time. [default: one per core]")
@standby_option
@store_option
@json_option
def compile_sample(
    space: str,
    sample: int,
    portfolio: bool,
    seed: int,
    settings: tuple[str, ...],
    problem: str,
    device: str,
    processes: int | None,
    standby: bool,
    store: Path,
    json_path: Path | None,
) -> int:
    """Compile configurations of SPACE for a problem into the store, without a GPU.

    Kernels that the store has are not compiled again. A kernel works for every size of the problem, as long as types,
    layouts and epilogue are the same. A configuration that does not compile is recorded with its error. The
    exit code is 1 if none compiles.
    """
    check_result(json_path)
    template, target = load_template(space), find_device(device)
    parsed = template.parse(problem)
    legal = template.space(parsed, target)
    wanted = [(template, each) for each in chosen(template, legal, settings, sample, seed)]
    if portfolio:
        wanted += [(template, each) for each in template.stock_in(legal)] + _second_stock(template, problem, target)
    asked = list({(of.name, each): (of, each) for of, each in wanted}.values())
    kernels = ArtifactStore(artifacts(store))
    reused = _stored(kernels, asked, parsed.signature, target.arch)

    started = time.perf_counter()
    options = CompileOptions(processes or available_cores(), standby=standby)
    outcomes = _compiled(kernels, asked, parsed.signature, target.arch, options)
    seconds = time.perf_counter() - started

    console = console_beside(json_path)
    built = [outcome for outcome in outcomes if isinstance(outcome, Artifact)]
    for (_, configuration), outcome in zip(asked, outcomes, strict=True):
        if not isinstance(outcome, Artifact):
            console.say(f"failed: {configuration}: {outcome.error}")
    failed = len(outcomes) - len(built)
    if built:
        names = dict.fromkeys(of.name for of, _ in asked)
        console.print(_summary(built, f"{' and '.join(names)} {parsed.signature} for {target.arch}"))
    told = (f"{count} {what}" for what, count in (("in the store already", reused), ("failed", failed)) if count)
    console.say(", ".join([f"{len(asked) - reused - failed} compiled in {seconds:.1f} s", *told]))
    found = [
        {
            "space": of.name,
            "configuration": dict(configuration),
            "error": "" if isinstance(outcome, Artifact) else outcome.error,
            "resources": asdict(outcome.resources) if isinstance(outcome, Artifact) and outcome.resources else None,
            "compile_seconds": outcome.compile_seconds,
        }
        for (of, configuration), outcome in zip(asked, outcomes, strict=True)
    ]
    write_result(json_path, {"space": space, "signature": parsed.signature, "arch": target.arch, "kernels": found})
    return int(not built)


def _second_stock(template: KernelTemplate, problem: str, device: Device) -> list[Kernel]:
    """The kernels of the space that `tune` may search beside a template's that are worth having in a store."""
    second = complement_on(template, device)
    if second is None:
        return []
    try:
        space = second.space(second.parse(problem), device)
    except SpaceError:  # none is legal for it
        return []
    return [(second, each) for each in second.stock_in(space)]


def _stored(kernels: ArtifactStore, asked: Sequence[Kernel], signature: str, arch: str) -> int:
    """How many kernels are in a store; that their files are whole is checked."""
    found = [kernels.find(ArtifactKey.of(of, each, signature, arch)) for of, each in asked]
    whole = [artifact for artifact in found if artifact is not None and artifact.ok]
    for artifact in whole:
        read_shared_object(artifact.path, artifact.sha256)
    return len(whole)


def _compiled(
    kernels: ArtifactStore, asked: Sequence[Kernel], signature: str, arch: str, options: CompileOptions
) -> list[Artifact | CompileFailure]:
    """The outcome of each kernel, by compilers that the templates share, where they can."""
    with ExitStack() as stack:
        pools: dict[str, CompilePool] = {}
        for of in {of.name: of for of, _ in asked}.values():
            first = next(iter(pools.values()), None)
            pools[of.name] = stack.enter_context(CompilePool(of, signature, arch, kernels, options, beside=first))
            pools[of.name].start()
        futures = [pools[of.name].submit(each) for of, each in asked]
        return [future.result() for future in counted(futures, "compile", len(futures))]


def _summary(built: list[Artifact], title: str) -> Grid:
    table = Grid(title=title, title_justify="left")
    for heading in ("", "min", "median", "max"):
        table.add_column(heading, justify="right" if heading else "left")
    resources = [artifact.resources for artifact in built if artifact.resources is not None]
    columns: dict[str, list[float]] = {
        "registers a thread": [resource.registers for resource in resources],
        "spilled bytes a thread": [resource.spill_bytes for resource in resources],
        "shared memory a block": [resource.shared_memory for resource in resources],
        "instructions": [resource.instructions for resource in resources if resource.instructions is not None],
        "compile seconds": [artifact.compile_seconds for artifact in built],
    }
    for name, values in columns.items():
        if values:
            table.add_row(name, *(_number(value) for value in (min(values), median(values), max(values))))
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"

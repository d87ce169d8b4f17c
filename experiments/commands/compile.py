"""``tilescout compile``: build kernels with no GPU."""

import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from tilescout.experiments.commands.options import (
    check_result,
    chosen,
    console_beside,
    device_option,
    examples,
    json_option,
    problem_option,
    seed_option,
    set_option,
    space_argument,
    standby_option,
    store_option,
    write_result,
)
from tilescout.experiments.progress import counted
from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, read_shared_object
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.cores import available_cores
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, complement_on, load_template
from tilescout.spaces.terminal import Grid


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
@click.option("--processes", type=click.IntRange(min=1), help="Compilers at a time. [default: one a core]")
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
    listed = list(chosen(template, legal, settings, sample, seed))
    asked = [(template, configuration) for configuration in listed]
    if portfolio:
        asked += [(template, each) for each in template.stock(parsed, target) if each in legal]
        if (second := complement_on(template, target)) is not None:
            asked += [(second, each) for each in _stock(second, problem, target)]
    asked = list({(of.name, configuration): (of, configuration) for of, configuration in asked}.values())
    kernels = ArtifactStore(artifacts(store))
    stored = [kernels.find(ArtifactKey.of(of, each, parsed.signature, target.arch)) for of, each in asked]
    for artifact in stored:
        if artifact is not None and artifact.ok:
            read_shared_object(artifact.path, artifact.sha256)

    started = time.perf_counter()
    options = CompileOptions(processes or available_cores(), standby=standby)
    with ExitStack() as stack:
        pools = {
            of.name: stack.enter_context(CompilePool(of, parsed.signature, target.arch, kernels, options))
            for of in {of.name: of for of, _ in asked}.values()
        }
        for pool in pools.values():
            pool.start()
        futures = [pools[of.name].submit(configuration) for of, configuration in asked]
        outcomes = [future.result() for future in counted(futures, "compile", len(futures))]
    seconds = time.perf_counter() - started

    console = console_beside(json_path)
    built = [outcome for outcome in outcomes if isinstance(outcome, Artifact)]
    for (_, configuration), outcome in zip(asked, outcomes, strict=True):
        if not isinstance(outcome, Artifact):
            console.say(f"failed: {configuration}: {outcome.error}")
    reused = sum(artifact is not None and artifact.ok for artifact in stored)
    failed = len(outcomes) - len(built)
    if built:
        console.print(_summary(built, f"{' and '.join(pools)} {parsed.signature} for {target.arch}"))
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


def _stock(template: KernelTemplate, problem: str, device: Device) -> list[Configuration]:
    """The kernels of a template to have in a store that are legal for a problem."""
    parsed = template.parse(problem)
    try:
        space = template.space(parsed, device)
    except SpaceError:  # none is legal for it
        return []
    return [each for each in template.stock(parsed, device) if each in space]


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

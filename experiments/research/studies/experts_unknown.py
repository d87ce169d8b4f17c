"""From a block of experts that no table holds to one that runs tuned kernels: the commands of the how-to, in seconds.

    python -m tilescout.experiments.research experts-unknown olmoe --out olmoe.json

It runs what `docs/how-to/tune-experts.md` says, a process for each command, with a block of transformers (a module of
it, as in ``grouped-model``): record its products, measure a table for each of the two, make a bundle. Then the block is
timed without and with that bundle as ``grouped-model`` does, at numbers of tokens that the tables hold and others.
"""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.studies.grouped_model import (
    contenders,
    find_client,
    in_fp32,
    measure,
    show,
    sizes_option,
)
from tilescout.spaces.errors import NoResultError
from tilescout.spaces.suite import find_suite

TUNED = (1, 16, 64, 256, 1024, 4096, 16_384)
_JUDGED = (1, 16, 100, 512, 1536, 4096, 12_000)
_FORMS = {"swiglu": "gate_up", "scaled": "down"}  # of each form the name of its table and product
_SUITE = "experts.toml"
_FACTORY = "experts"  # the module that `suites from-model` imports


def recording(tokens: Sequence[int]) -> list[str]:
    """The command that makes a suite of a factory ``experts:make``."""
    asked = f"{' '.join(f'--tokens {each}' for each in tokens)} --experts balanced --experts zipf-1 --draws 2"
    forms = " ".join(f"--{form}" for form in _FORMS)
    return f"suites from-model {_FACTORY}:make {asked} {forms} --out {_SUITE}".split()


def measuring(forms: Sequence[str]) -> dict[str, list[str]]:
    """The commands between a suite that has some forms and a folder ``bundle``, by what they do."""
    among = "--exhaustive --subspace grouped_gemm_sm90-subspace --prune 1.5 --races 0"
    named = {form: name for form, name in _FORMS.items() if form in forms}
    found = {
        f"measure {name}": f"collect grouped_{form}_sm90 --suite {_SUITE}:{form} --out {name}.parquet {among}"
        for form, name in named.items()
    }
    found["export"] = f"export {' '.join(f'--table {name}.parquet' for name in named.values())} --out bundle"
    return {name: command.split() for name, command in found.items()}


def tuned(client: str, sizes: Mapping[str, int], tokens: Sequence[int], folder: Path) -> dict[str, float]:
    """Run the commands in a folder; return the seconds of each.

    Raises
    ------
    NoResultError
        If one fails.
    """
    module = "tilescout.experiments.research.studies.grouped_model"
    (folder / f"{_FACTORY}.py").write_text(
        f"from {module} import find_client\n\nmake = find_client({client!r}, {dict(sizes)!r}).example\n"
    )
    seconds = {"record": _seconds("record", recording(tokens), folder)}
    for name, command in measuring(find_suite(str(folder / _SUITE)).phases).items():
        seconds[name] = _seconds(name, command, folder)
    return seconds


def _seconds(name: str, command: Sequence[str], folder: Path) -> float:
    print(shlex.join(["tilescout", *command]), flush=True)
    clock = Clock()
    ran = subprocess.run([sys.executable, "-m", "tilescout.experiments", *command], cwd=folder, check=False)
    if ran.returncode:
        raise NoResultError(f"{name} ended with {ran.returncode}: see above")
    return clock.spent


def printed(result: Mapping[str, Any]) -> None:
    """Print the seconds of all commands, and the times of the block."""
    for name, seconds in result["seconds"].items():
        print(f"{name}: {seconds:.1f} s")
    print(f"all: {sum(result['seconds'].values()):.1f} s")
    show(result)


@study(GPU_OR_RECORD, again=True)
@click.argument("client", required=False)
@sizes_option
@click.option("--tuned", "recorded", type=click.IntRange(1), multiple=True, default=TUNED, help="Tokens of the tables.")
@click.option(
    "--tokens", type=click.IntRange(1), multiple=True, default=_JUDGED, help="Tokens of the block; repeatable."
)
@seconds_option(600.0, "block")
def main(
    run: Run,
    client: str | None,
    sizes: Sequence[tuple[str, int]],
    recorded: Sequence[int],
    tokens: Sequence[int],
    seconds: float,
) -> None:
    """Tune the experts of CLIENT and measure its block, or print what was measured."""
    if run.record is not None:
        printed(run.record.result)
        return
    if client is None:
        raise click.UsageError("name a module of transformers")
    import torch

    clock, found = Clock(seconds), find_client(client, dict(sizes))
    with TemporaryDirectory() as folder:
        result: dict[str, Any] = {"seconds": tuned(client, dict(sizes), recorded, Path(folder)), "tuned": recorded}
        result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "blocks": {client: {}}}
        run.keep(result)
        block, exact = found.make("cuda"), in_fp32(found)
        for count in tokens:
            if clock.left > 0:
                x = found.activations(count, "cuda")
                made = contenders(block, Path(folder) / "bundle")
                result["blocks"][client][str(count)] = measure(made, x, exact)
                run.keep(result)
    printed(result)

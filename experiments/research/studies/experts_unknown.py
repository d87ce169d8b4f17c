"""From a block of experts that no table holds to one that runs tuned kernels: the commands of the how-to, in seconds.

    python -m tilescout.experiments.research experts-unknown olmoe --out olmoe.json

It runs what `docs/how-to/tune-experts.md` says, a process for each command, with a block of transformers (a module of
it, as in ``grouped-model``): record its products, measure a table for each of the two, make a bundle. Then the block is
timed without and with that bundle as ``grouped-model`` does, at numbers of tokens that the tables hold and others.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tilescout.experiments.commands.options import Finite
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

TUNED = (1, 16, 64, 256, 1024, 4096, 16_384)
_JUDGED = (1, 16, 100, 512, 1536, 4096, 12_000)
_FORMS = {"swiglu": "gate_up", "scaled": "down"}  # of each form the name of its suite, table and product
_FACTORY = "experts"  # the module that `suites from-model` imports


def commands(tokens: Sequence[int]) -> dict[str, list[str]]:
    """The commands between a factory ``experts:make`` and a folder ``bundle``, by what they do."""
    asked = f"{' '.join(f'--tokens {each}' for each in tokens)} --experts balanced --experts zipf-1 --draws 2"
    among = "--exhaustive --subspace grouped_gemm_sm90-subspace --prune 1.5 --races 0"
    found: dict[str, str] = {}
    for form, name in _FORMS.items():
        found[f"record {name}"] = f"suites from-model {_FACTORY}:make {asked} --{form} --out {name}.toml"
    for form, name in _FORMS.items():
        found[f"measure {name}"] = f"collect grouped_{form}_sm90 --suite {name}.toml --out {name}.parquet {among}"
    tables = " ".join(f"--table {name}.parquet" for name in _FORMS.values())
    found["export"] = f"export {tables} --out bundle"
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
    seconds: dict[str, float] = {}
    for name, command in commands(tokens).items():
        print(shlex.join(["tilescout", *command]), flush=True)
        began = time.monotonic()
        ran = subprocess.run([sys.executable, "-m", "tilescout.experiments", *command], cwd=folder, check=False)
        seconds[name] = time.monotonic() - began
        if ran.returncode:
            raise NoResultError(f"{name} ended with {ran.returncode}: see above")
    return seconds


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
@click.option(
    "--seconds", type=Finite(min=0), default=600.0, show_default=True, help="Begin no further block after these."
)
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

    began, found = time.monotonic(), find_client(client, dict(sizes))
    with TemporaryDirectory() as folder:
        result: dict[str, Any] = {"seconds": tuned(client, dict(sizes), recorded, Path(folder)), "tuned": recorded}
        result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "blocks": {client: {}}}
        run.keep(result)
        block, exact = found.make("cuda"), in_fp32(found, "cuda")
        for count in tokens:
            if time.monotonic() - began < seconds:
                x = found.activations(count, "cuda")
                made = contenders(block, Path(folder) / "bundle")
                result["blocks"][client][str(count)] = measure(made, x, exact)
                run.keep(result)
    printed(result)

"""``tilescout samplers``: the search strategies."""

from collections.abc import Mapping
from pathlib import Path

import click

from tilescout.experiments.commands.completion import complete_samplers
from tilescout.experiments.commands.options import examples, json_option, typed_samplers
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.search.samplers import SAMPLERS, SpaceSampler, find_sampler
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.terminal import Grid

_WHICH = (
    "`tune` takes guided where there is a cost model of the space and device, else guided-cold: they need the fewest "
    "measurements, as `tilescout compare` says of recorded tables."
)


@click.command(
    epilog=examples(
        "tilescout samplers",
        "tilescout samplers lfbo",
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16 --sampler lfbo:copies=5",
    )
)
@click.argument("sampler", required=False, callback=typed_samplers, shell_complete=complete_samplers)
@json_option
def samplers(sampler: str | None, json_path: Path | None) -> None:
    """List the samplers, which are the search strategies, or show the options of SAMPLER, which may be module:Class."""
    check_result(json_path)
    console = console_beside(json_path)
    if sampler is not None:
        kind = find_sampler(sampler)
        console.print(f"{kind.name}: {kind.summary}", highlight=False, markup=False)
        console.print(_options(kind))
        write_result(json_path, _record(kind))
        return
    grid = Grid(show_edge=False, pad_edge=False)
    for heading in ("sampler", "what it does"):
        grid.add_column(heading, no_wrap=heading == "sampler")
    for name in SAMPLERS:
        grid.add_row(name, summary_of(name))
    console.print(grid)
    console.print(_WHICH, highlight=False, markup=False)
    write_result(json_path, list(map(_listed, SAMPLERS)))


def summary_of(name: str) -> str:
    """The line that says what a sampler does; of one of a package that is broken, what is wrong with it."""
    try:
        return find_sampler(name).summary
    except SamplerError as error:  # of a package that is not ours
        return str(error)


def _options(kind: type[SpaceSampler]) -> Grid:
    grid = Grid(show_edge=False, pad_edge=False)
    for heading in ("option", "default", "allowed", "what it changes"):
        grid.add_column(heading, no_wrap=heading == "option")
    for each in kind.options:
        grid.add_row(each.name, str(each.default), f"{each.low:g} to {each.high:g}", each.doc)
    return grid


def _listed(name: str) -> Mapping[str, object]:
    try:
        return _record(find_sampler(name))
    except SamplerError as error:
        return {"sampler": name, "summary": str(error), "options": []}


def _record(kind: type[SpaceSampler]) -> Mapping[str, object]:
    return {"sampler": kind.name, "summary": kind.summary, "options": [vars(option) for option in kind.options]}

"""``tilescout samplers``: the search strategies."""

from collections.abc import Mapping
from pathlib import Path

import click

from tilescout.experiments.commands.completion import complete_samplers
from tilescout.experiments.commands.options import examples, json_option, typed_samplers
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.search.samplers import SAMPLERS, SpaceSampler, find_sampler
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
    for name, kind in SAMPLERS.items():
        grid.add_row(name, kind.summary)
    console.print(grid)
    console.print(_WHICH, highlight=False, markup=False)
    write_result(json_path, [_record(kind) for kind in SAMPLERS.values()])


def _options(kind: type[SpaceSampler]) -> Grid:
    grid = Grid(show_edge=False, pad_edge=False)
    for heading in ("option", "default", "allowed", "what it changes"):
        grid.add_column(heading, no_wrap=heading == "option")
    for each in kind.options:
        grid.add_row(each.name, str(each.default), f"{each.low:g} to {each.high:g}", each.doc)
    return grid


def _record(kind: type[SpaceSampler]) -> Mapping[str, object]:
    return {"sampler": kind.name, "summary": kind.summary, "options": [vars(option) for option in kind.options]}

"""``tilescout suites``: sets of problems, and where they come from."""

from pathlib import Path

import click

from tilescout.experiments.commands.completion import complete_suites
from tilescout.experiments.commands.from_model import Experts, load_factory, record
from tilescout.experiments.commands.listing import LIST, ListingGroup
from tilescout.experiments.commands.options import examples, json_option
from tilescout.experiments.commands.outputs import check_output, check_result, console_beside, write_result
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import INPUTS
from tilescout.spaces.grouped import DRAWS
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.routing import Routing
from tilescout.spaces.suite import Entry, Suite, find_suite, suite_names, write_suite
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import number_of, plain

RECORDED = "recorded from a model"
"""The source of the suites that are written here."""


@click.group(
    cls=ListingGroup,
    epilog=examples(
        "tilescout suites",
        "tilescout suites llama3-8b:decode odd",
        "tilescout suites from-model package.module:make_model --out model.toml",
    ),
)
def suites() -> None:
    """List suites of problems, as `list` does, or make one from a model."""


@suites.command(
    LIST,
    epilog=examples(
        "tilescout suites list",
        "tilescout suites list llama3-8b:decode odd",
    ),
)
@click.argument("names", nargs=-1, shell_complete=complete_suites)
@json_option
def list_suites(names: tuple[str, ...], json_path: Path | None) -> None:
    """List the suites, or the problems of those in NAMES (NAME, NAME:PHASE or FILE.toml)."""
    check_result(json_path)
    console, found = console_beside(json_path), [find_suite(name) for name in names or suite_names()]
    write_result(json_path, [_record(suite) for suite in found])
    if names:
        for suite in found:
            console.say(plain(f"{suite.name}: {suite.title}"), style="bold")
            console.say(plain(suite.source))
            _print_entries(suite.entries, console)
        return
    grid = Grid()
    for heading in ("suite", "problems", "phases", "what it is"):
        grid.add_column(heading, no_wrap=heading == "suite", justify="right" if heading == "problems" else "left")
    for suite in found:
        grid.add_row(suite.name, str(len(suite.problems)), ", ".join(suite.phases), suite.title)
    console.print(grid)


def _record(suite: Suite) -> dict[str, object]:
    about = {"suite": suite.name, "title": suite.title, "source": suite.source}
    return about | {"problems": list(map(_entry, suite.entries))}


def _entry(entry: Entry) -> dict[str, object]:
    return {"problem": entry.problem, "times": entry.count, "phase": entry.phase, "label": entry.label}


@suites.command(
    epilog=examples(
        "tilescout suites from-model package.module:make_model",
        "tilescout suites from-model package.module:make_model --dtype bf16 --training --out model.toml",
        "tilescout suites from-model package.module:make_experts --tokens 16 --tokens 2048 --experts zipf-1 --swiglu "
        "--scaled",
    )
)
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("--dtype", type=click.Choice(INPUTS), help="Convert the model to this type. [default: as it is]")
@click.option("--training", is_flag=True, help="Record the products of the gradients too.")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    multiple=True,
    help="Call FACTORY with this many tokens; repeatable. [default: one call without arguments]",
)
@click.option(
    "--experts",
    "routings",
    metavar="ROUTING",
    multiple=True,
    help="Record the grouped products of experts instead, with tokens routed this way, such as zipf-1. Repeatable.",
)
@click.option(
    "--draws", type=click.IntRange(min=1), default=DRAWS, show_default=True, help="How often a routing is drawn."
)
@click.option(
    "--swiglu", is_flag=True, help="With --experts: record products with SwiGLU behind them, as one product with it."
)
@click.option(
    "--scaled",
    is_flag=True,
    help="With --experts: record products whose rows are scaled. With --swiglu too, each form is a phase.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the suite to this .toml file.")
@json_option
def from_model(
    factory: str,
    dtype: str | None,
    training: bool,
    tokens: tuple[int, ...],
    routings: tuple[str, ...],
    draws: int,
    swiglu: bool,
    scaled: bool,
    out: Path | None,
    json_path: Path | None,
) -> None:
    """Record the matrix products in one call of a model, as torch.compile sees them.

    FACTORY is a function without arguments that returns the model and the arguments of the call: (module, (argument,
    ...)); with --tokens it has one argument, the number of tokens. It is called with torch's meta device as the
    default, so neither a GPU nor memory for the weights is needed.
    """
    if out is not None:
        if out.suffix != ".toml":
            raise ProblemError(f"a suite is a .toml file, not {out}")
        check_output(out, "a suite that was recorded from a model", _is_recorded)
    check_result(json_path)
    forms = [form for form, asked in (("swiglu", swiglu), ("scaled", scaled)) if asked]
    if forms and not routings:
        raise click.UsageError(f"--{forms[0]} is of experts' products: name how tokens are routed, --experts zipf-1")
    if draws != DRAWS and not routings:
        raise click.UsageError("--draws is of experts' products: name how tokens are routed, --experts zipf-1")
    experts = Experts(tuple(dict.fromkeys(map(Routing.parse, routings))), forms, draws) if routings else None
    counts = tuple(dict.fromkeys(tokens))  # what is named twice is not computed twice
    recording = record(load_factory(factory, bool(counts)), dtype, training, experts, counts)
    console = console_beside(json_path)
    if not recording.entries:
        seen = f"of its products none can be tuned: {', '.join(recording.skipped)}; --dtype converts a model"
        raise ProblemError(f"{factory}: {seen if recording.skipped else 'the call computes no matrix product'}")
    _print_entries(recording.entries, console)
    title = f"{factory}, {'training' if training else 'inference'}"
    about = {"suite": factory, "title": title, "source": RECORDED, "left_out": dict(recording.skipped)}
    write_result(json_path, about | {"problems": list(map(_entry, recording.entries))})
    for reason, count in recording.skipped.items():
        console.say(f"left out, {number_of(count, 'time')}: {reason}")
    if recording.graphs > 1:
        console.print(f"torch.compile made {recording.graphs} graphs of a call", highlight=False)
    if out is not None:
        write_whole(out, write_suite(title, RECORDED, recording.entries).encode())
        console.say(f"suite: {plain(out)}")


def _is_recorded(path: Path) -> bool:
    return find_suite(str(path)).source == RECORDED


def _print_entries(entries: tuple[Entry, ...], console: Console) -> None:
    grid = Grid()
    grid.add_column("problem", no_wrap=True)
    grid.add_column("times", justify="right")
    grid.add_column("phase")
    grid.add_column("computed by")
    for entry in entries:
        grid.add_row(entry.problem, str(entry.count), entry.phase, entry.label)
    console.print(grid)

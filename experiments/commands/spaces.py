"""``tilescout spaces``: what can be tuned."""

import math
from pathlib import Path

import click

from tilescout.experiments.commands.completion import complete_spaces
from tilescout.experiments.commands.options import device_option, examples, find_modules_here, json_option
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.spaces.declarations import checked_default
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, Unmeasured, find_template, load_template, template_names
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import number_of


@click.command(
    epilog=examples(
        "tilescout spaces",
        "tilescout spaces gemm_sm90 --problem 4096x4096x4096:bf16",
    )
)
@click.argument("space", required=False, shell_complete=complete_spaces)
@click.option(
    "--problem",
    help="Say how many configurations are legal for this problem, which is the default, and what to run if nothing may "
    "be measured: a kernel, or the library where none is expected to be faster by a margin.",
)
@device_option
@json_option
def spaces(space: str | None, problem: str | None, device: str, json_path: Path | None) -> None:
    """List the search spaces, or show the knobs and constraints of SPACE, with their reasons."""
    check_result(json_path)
    console = console_beside(json_path)
    if space is None:
        if problem is not None:
            raise click.UsageError("--problem needs a SPACE")
        listed = {name: _summary(name) for name in template_names()}
        grid = Grid(show_edge=False, pad_edge=False)
        for heading in ("space", "what it searches"):
            grid.add_column(heading)
        for row in listed.items():
            grid.add_row(*row)
        console.print(grid)
        console.say("`tilescout spaces SPACE` shows the knobs of one; a space of your own is named as module:Class.")
        write_result(json_path, [{"space": name, "summary": summary} for name, summary in listed.items()])
        return
    find_modules_here(space)
    template = load_template(space)
    record: dict[str, object] = {
        "space": template.name,
        "knobs": [{"knob": knob.name, "values": list(knob.values), "what": knob.doc} for knob in template.knobs],
        "constraints": [{"name": rule.name, "reason": rule.reason} for rule in template.constraints],
    }
    if problem is not None:
        parsed, found = template.parse(problem), find_device(device)
        legal, default = template.space(parsed, found), checked_default(template.default(parsed, found), template.name)
        _show(template, console)
        console.print(f"{number_of(len(legal), 'legal configuration')} for {parsed} on {device}", highlight=False)
        console.say(f"default: {default}{_fault_of(default, legal)}")
        answer = template.default_or_library(parsed, found)
        if answer is None:
            console.say(
                "if nothing may be measured: run the library, since no kernel is expected to be faster by "
                f"{template.margin}"
            )
        elif answer.gain is not None:
            console.say(
                f"if nothing may be measured: run {answer.space}, expected at {math.exp(answer.gain):.2f} times the "
                f"library's speed: {answer.configuration}"
            )
        record |= {"problem": str(parsed), "device": device, "size": len(legal), "default": dict(default)}
        record |= {"unmeasured": None if answer is None else {"space": answer.space, **_told(answer)}}
    else:
        _show(template, console)
    write_result(json_path, record)


def _fault_of(default: Configuration, legal: SearchSpace) -> str:
    """The fault of a default that no search could begin with; empty if there is none."""
    try:
        legal.index(default)
    except SpaceError as error:
        return f"; it is not legal: {error}"
    return ""


def _told(answer: Unmeasured) -> dict[str, object]:
    speedup = None if answer.gain is None else math.exp(answer.gain)
    return {"configuration": dict(answer.configuration), "expected_speedup": speedup}


def _summary(name: str) -> str:
    try:
        return find_template(name).summary
    except SpaceError as error:  # of a package that is not ours
        return str(error)


def _show(template: KernelTemplate, console: Console) -> None:
    knobs = Grid(show_edge=False, pad_edge=False)
    for heading in ("knob", "values", "what it is"):
        knobs.add_column(heading, no_wrap=heading == "knob")
    for knob in template.knobs:
        knobs.add_row(knob.name, knob.allowed, knob.doc)
    console.print(knobs)
    if not template.constraints:
        return
    rules = Grid(show_edge=False, pad_edge=False)
    for heading in ("constraint", "reason"):
        rules.add_column(heading, no_wrap=heading == "constraint")
    for rule in template.constraints:
        rules.add_row(rule.name, rule.reason)
    console.print(rules)

"""``tilescout spaces``: what can be tuned."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.completion import complete_spaces
from tilescout.experiments.commands.options import (
    check_result,
    console_beside,
    device_option,
    examples,
    find_modules_here,
    json_option,
    write_result,
)
from tilescout.spaces.declarations import checked_default
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import KernelTemplate, load_template, template_names


@click.command(
    epilog=examples(
        "tilescout spaces",
        "tilescout spaces gemm_sm90 --problem 4096x4096x4096:bf16",
    )
)
@click.argument("space", required=False, shell_complete=complete_spaces)
@click.option("--problem", help="Say how many configurations are legal for this problem, and the default one.")
@device_option
@json_option
def spaces(space: str | None, problem: str | None, device: str, json_path: Path | None) -> None:
    """List the search spaces, or show the knobs and constraints of SPACE, with their reasons."""
    check_result(json_path)
    console = console_beside(json_path)
    if space is None:
        if problem is not None:
            raise click.UsageError("--problem needs a SPACE")
        names = template_names()
        for name in names:
            console.print(name, highlight=False)
        write_result(json_path, [{"space": name} for name in names])
        return
    find_modules_here(space)
    template = load_template(space)
    _show(template, console)
    record: dict[str, object] = {
        "space": template.name,
        "knobs": [{"knob": knob.name, "values": list(knob.values), "what": knob.doc} for knob in template.knobs],
        "constraints": [{"name": rule.name, "reason": rule.reason} for rule in template.constraints],
    }
    if problem is not None:
        parsed, found = template.parse(problem), find_device(device)
        legal, default = template.space(parsed, found), checked_default(template.default(parsed, found), template.name)
        console.print(f"{len(legal):,} configurations are legal for {parsed} on {device}", highlight=False)
        console.print(f"default: {default}", highlight=False, soft_wrap=True)
        record |= {"problem": str(parsed), "device": device, "size": len(legal), "default": dict(default)}
    write_result(json_path, record)


def _show(template: KernelTemplate, console: Console) -> None:
    knobs = Grid(show_edge=False, pad_edge=False)
    for heading in ("knob", "values", "what it is"):
        knobs.add_column(heading, no_wrap=heading == "knob")
    for knob in template.knobs:
        knobs.add_row(knob.name, ", ".join(map(str, knob.values)), knob.doc)
    console.print(knobs)
    rules = Grid(show_edge=False, pad_edge=False)
    for heading in ("constraint", "reason"):
        rules.add_column(heading, no_wrap=heading == "constraint")
    for rule in template.constraints:
        rules.add_row(rule.name, rule.reason)
    console.print(rules)

"""``--help`` teaches: every command ends in examples, and each of them is a call that the command line takes."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from tilescout.experiments.commands.cli import cli
from tilescout.experiments.commands.former import todays
from tilescout.experiments.commands.options import shown_at
from tilescout.search.samplers import SAMPLERS


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, by what a person types."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for sub in command.list_commands(context):
            below = command.get_command(context, sub)
            assert below is not None
            yield from commands(below, f"{name} {sub}")


COMMANDS = dict(commands(cli, "tilescout"))


def examples_of(command: click.Command) -> list[str]:
    lines = (command.epilog or "").splitlines()
    return [line.strip() for line in lines if line.startswith("  tilescout ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_ends_in_an_example_of_its_command_that_parses(name: str) -> None:
    found = examples_of(COMMANDS[name])
    assert any(example.startswith(name) for example in found), f"give {name} an epilog=examples(...)"
    for example in found:
        command: click.Command = cli
        context, words = None, shlex.split(example)
        while isinstance(command, click.Group):
            context = command.make_context(words[0], words[1:], parent=context, resilient_parsing="--help" in words)
            words = [*context._protected_args, *context.args]
            if "--help" in words:
                break
            _, found_command, _ = command.resolve_command(context, words)
            assert found_command is not None
            command = found_command
        else:
            command.make_context(words[0], words[1:], parent=context)


def test_no_example_opens_the_ui_of_a_server_which_is_refused() -> None:
    assert not [example for example in examples_of(COMMANDS["tilescout ui"]) if "http" in example]


@pytest.mark.parametrize(
    ("uri", "store", "words"),
    [
        (None, "my runs; rm -r x", ["--store", "my runs; rm -r x"]),
        ("sqlite:///a b.db", "", ["--mlflow", "sqlite:///a b.db"]),
    ],
)
def test_the_command_that_shows_a_page_can_be_copied_into_a_shell(
    uri: str | None, store: str, words: list[str]
) -> None:
    command = shown_at("#/", uri, Path(store)).splitlines()[0].removeprefix("look at it with: ")
    assert shlex.split(command) == ["tilescout", "ui", *words]


def test_the_list_of_commands_has_a_line_for_each_in_a_narrow_terminal() -> None:
    context = click.Context(cli, info_name="tilescout", terminal_width=80)
    listed = cli.get_help(context).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == cli.list_commands(context)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]}"


@pytest.mark.parametrize(
    ("typed", "incomplete", "offered"),
    [
        (["tune"], "gemm_sm", ["gemm_sm90"]),
        (["tune", "gemm_sm90", "--sampler"], "gu", [name for name in SAMPLERS if name.startswith("gu")]),
        ([], "tab", ["tables"]),
    ],
)
def test_the_shell_completes_what_is_typed(typed: list[str], incomplete: str, offered: list[str]) -> None:
    completed = ShellComplete(cli, {}, "tilescout", "_TILESCOUT_COMPLETE").get_completions(typed, incomplete)
    assert [item.value for item in completed] == offered


@pytest.mark.parametrize(
    ("before", "now", "hints"),
    [
        (["suite", "from-model", "a:b"], ["suites", "from-model", "a:b"], ["suite is called suites now"]),
        (["table", "list"], ["tables", "list"], ["table is called tables now"]),
        (
            ["tables", "import-kernel-tuner", "a", "b"],
            ["tables", "import", "a", "b"],
            ["import-kernel-tuner is called import now"],
        ),
        (["predict", "--target=h200"], ["predict", "--device=h200"], ["--target is called --device now"]),
        (["predict", "--model-file", "a"], ["predict", "--model", "a"], ["--model-file is called --model now"]),
        (["tune", "table"], ["tune", "table"], []),
    ],
)
def test_spellings_of_before_work_with_a_hint(before: list[str], now: list[str], hints: list[str]) -> None:
    assert todays(before) == (now, hints)


def test_a_former_command_runs_and_says_how_it_is_called_now(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["suite", "odd"], standalone_mode=False)
    captured = capsys.readouterr()
    assert "odd" in captured.out
    assert captured.err == "tilescout: suite is called suites now\n"

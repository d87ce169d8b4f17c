"""The commands from a model's experts to a bundle are commands that there are, and what they took is printed again."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from tilescout.experiments.commands.cli import cli
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.experts_unknown import TUNED, measuring, recording, tuned
from tilescout.spaces.suite import Entry, write_suite

BOTH = ("swiglu", "scaled")


@pytest.mark.parametrize("forms", [BOTH, BOTH[:1], BOTH[1:]])
def test_every_command_takes_its_options_and_hands_its_files_on(forms: tuple[str, ...]) -> None:
    written = {"experts:make"}
    for name, (first, *others) in {"record": recording((1, 16)), **measuring(forms)}.items():
        command = cli.get_command(click.Context(cli), first)
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), others.pop(0))
        assert command is not None
        asked = command.make_context(name, list(others)).params
        read = {asked.get("factory"), asked.get("suite"), *map(str, asked.get("tables", ()))} - {None}
        assert read
        assert read <= written
        written.add(str(asked["out"]))
        written |= {f"{asked['out']}:{form}" for form in forms if name == "record"}
    assert "bundle" in written


def test_the_how_to_has_the_same_commands() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "tune-experts.md"
    stated = [line.split() for line in page.read_text().replace("\\\n", " ").splitlines()]
    assert all(["tilescout", *command] in stated for command in (recording(TUNED), *measuring(BOTH).values()))


def test_of_experts_with_another_activation_the_down_product_alone_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[list[str]]()

    def run(command: list[str], cwd: Path, check: bool) -> SimpleNamespace:
        ran.append(command[3:])
        if command[3] == "suites":
            entry = Entry("16x64x256x128:bf16:scaled:zipf-1", "experts", "scaled")
            (cwd / "experts.toml").write_text(write_suite("experts", "a test", [entry]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", run)
    assert list(tuned("hy-v4", {}, (16,), tmp_path)) == ["record", "measure down", "export"]
    assert ran == [recording((16,)), *measuring(BOTH[1:]).values()]
    assert "--table gate_up.parquet" not in " ".join(ran[-1])


def test_the_seconds_of_all_commands_are_printed_again(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "olmoe.json"
    Record.of("experts-unknown", "a command", {"seconds": {"export": 2.5, "measure": 4.0}, "blocks": {}}).write(path)
    study("experts-unknown", "--again", str(path))
    printed = capsys.readouterr().out
    assert "export: 2.5 s" in printed
    assert "all: 6.5 s" in printed
    study("experts-unknown", code=2)
    assert "name a module" in capsys.readouterr().err

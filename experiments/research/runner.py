"""The command line of a study: its options, its file, its figures printed again, its run in MLflow."""

import functools
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tilescout.experiments.commands.outputs import check_output
from tilescout.experiments.research.records import Record
from tilescout.search.measure.protocol import VERSION
from tilescout.search.tables.table import Table
from tilescout.spaces.inputs import parse_toml
from tilescout.spaces.problems import Problem
from tilescout.spaces.texts import without_secrets

PROGRAM = "python -m tilescout.experiments.research"

_CHECKOUT = Path(__file__).resolve().parents[2]

GPU = "a GPU"
GPU_OR_RECORD = "a GPU, or a file that was recorded on one (--again)"
TABLES = "recorded tables"

Draw = Callable[[Any, Path], None]
"""Draws a result into a file."""

table_argument = click.argument("table", type=click.Path(path_type=Path), required=False)
problems_option = click.option(
    "--problem", "problems", multiple=True, metavar="NAME", help="A problem of the table; repeatable."
)
device_option = click.option(
    "--device", default="cuda", show_default=True, metavar="cuda[:N]|cpu", help="The device to measure on."
)


@dataclass
class Run:
    """A study that is running.

    Attributes
    ----------
    name
        The name of the study.
    out
        The file to write, for some studies a folder; None if nothing is to be written.
    record
        The result as far as it has come. Before anything was measured: the one whose figures are to be printed again,
        None if there is no such.
    again
        The file of that result.
    """

    name: str
    out: Path | None
    record: Record | None = None
    again: Path | None = None

    def keep(self, result: Any) -> None:
        """Write the result as far as it has come, so that an interruption loses no finished part."""
        asked = shlex.join(map(_without_folders, sys.argv[1:]))
        self.record = Record.of(self.name, without_secrets(f"{PROGRAM} {asked}"), result)
        if self.out is not None:
            self.record.write(self.out)

    def log(self, uri: str, asked: Mapping[str, object], draw: Draw | None) -> None:
        """Log the result to MLflow: a run with a metric for every number, the result as a file, and its plot."""
        from tilescout.search.tracking.experiment import log_experiment

        if self.record is None:
            return
        with TemporaryDirectory() as folder:
            files = [Path(folder, "result.json")]
            self.record.write(files[0])
            if draw is not None:
                files.append(Path(folder, f"{self.name}.png"))
                draw(self.record.result, files[1])
            params = {
                name: ", ".join(map(str, value)) if isinstance(value, tuple) else value for name, value in asked.items()
            }
            log_experiment(uri, self.name, params, dict(_numbers("", self.record.result)), files)


def is_of_study(path: Path) -> bool:
    """Whether a study wrote a file: a result, or a suite of problems that it drew."""
    if path.suffix == ".toml":
        return set(parse_toml(path.read_text())) == {"title", "source", "problems"}
    return "study" in Record.read(path).about


def _without_folders(word: str) -> str:
    """A word of a command without folders of this machine: a path from the checkout or here on, or its last part."""
    option, equals, path = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if not path.startswith("/"):
        return word
    tops = (top for top in (_CHECKOUT, Path.cwd()) if Path(path).is_relative_to(top))
    shown = next((str(Path(path).relative_to(top)) for top in tops), Path(path).name)
    return f"{option}{equals}{shown}"


def _numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of nested mappings, by a path that MLflow takes as a metric's name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{prefix}/{key}".strip("/").replace(":", "-").replace(",", ""), inner)
    elif isinstance(value, int | float):
        yield prefix, float(value)


class Study(click.Command):
    """A command of ``python -m tilescout.experiments.research``.

    Attributes
    ----------
    needs
        The hardware or the files without which it can't run.
    """

    needs: str = ""


def study(
    needs: str, again: bool = False, out_required: bool = False, draw: Draw | None = None
) -> Callable[[Callable[..., None]], Study]:
    """Make a function ``main(run, **options)`` the command of its module, whose docstring is the help text.

    Parameters
    ----------
    needs
        The hardware or the files without which it can't run.
    again
        Whether it can print the figures of a file that it wrote before: there is an option ``--again`` then.
    out_required
        Whether it must be told where to write.
    draw
        Draws the result for MLflow.
    """

    def decorate(function: Callable[..., None]) -> Study:
        name = function.__module__.rpartition(".")[2].replace("_", "-")

        @functools.wraps(function)
        def call(out: Path | None, mlflow_uri: str | None, again_path: Path | None = None, **asked: Any) -> None:
            if out is not None:
                check_output(out, "what a study wrote", is_of_study)
            run = Run(name, out, Record.read(again_path) if again_path is not None else None, again_path)
            function(run, **asked)
            if mlflow_uri is not None:
                run.log(mlflow_uri, asked, draw)

        command = click.command(name, cls=Study, help=_help_of(sys.modules[function.__module__].__doc__ or ""))(call)
        command.needs = needs
        file = click.Path(path_type=Path)
        command.params += [
            click.Option(["--out"], type=file, required=out_required, help="Write what was measured there."),
            click.Option(["--mlflow", "mlflow_uri"], metavar="URI", help="Log it to this MLflow store."),
        ]
        if again:
            shown = "Print the figures of this file; measure nothing."
            command.params.append(click.Option(["--again", "again_path"], type=file, help=shown))
        return command

    return decorate


def _help_of(docstring: str) -> str:
    """A docstring as click's help text: lists and indented lines stay as they are written."""
    paragraphs = docstring.strip().split("\n\n")
    kept = [any(line.startswith(("    ", "- ")) for line in text.splitlines()) for text in paragraphs]
    return "\n\n".join(f"\b\n{text}" if keep else text for text, keep in zip(paragraphs, kept, strict=True))


def each_problem(
    run: Run, path: Path | None, names: Sequence[str], measure: Callable[[Table, Problem], Any]
) -> Iterator[tuple[str, Any]]:
    """The name and the result of each problem: of a recorded file, or of problems of a table, measured now.

    Parameters
    ----------
    run
        Gets the results as they come.
    path, names
        The table, and the problems of it that are asked for.
    measure
        Measures a problem of the table; returns what JSON can hold.

    Raises
    ------
    UsageError
        If neither a file to print again is named nor a table, problems and a file to write.
    """
    if run.record is not None:
        yield from run.record.result["problems"].items()
        return
    if path is None or run.out is None or not names:
        raise click.UsageError("name a table, --problem and --out, or a file with --again")
    table = Table.read(path)
    result: dict[str, Any] = {"protocol": VERSION, "problems": {}}
    for name in names:
        result["problems"][name] = measure(table, table.problem(name))
        run.keep(result)
        yield name, result["problems"][name]

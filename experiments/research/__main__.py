"""The command line of the studies and benchmarks; without a name it lists them."""

import importlib
import pkgutil
from collections.abc import Iterable

import click

from tilescout.experiments.commands.cli import run_command
from tilescout.experiments.research import benchmarks, studies
from tilescout.experiments.research.runner import Study

KINDS = {"Studies": studies, "Benchmarks": benchmarks}


class _Studies(click.Group):
    """The studies, each found by the name of its module."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for package in KINDS.values() for name in _names(package.__path__)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        for package in KINDS.values():
            if name in _names(package.__path__):
                module = importlib.import_module(f"{package.__name__}.{name.replace('-', '_')}")
                command: Study = module.main
                return command
        return None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for kind, package in KINDS.items():
            with formatter.section(kind):
                commands = {name: self.get_command(context, name) for name in _names(package.__path__)}
                formatter.write_dl(
                    [
                        (name, f"{command.get_short_help_str(limit=200)} Needs {command.needs}.")
                        for name, command in commands.items()
                        if isinstance(command, Study)
                    ]
                )


def _names(folder: Iterable[str]) -> list[str]:
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules(folder)]


@click.group(cls=_Studies, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli() -> None:
    """Run a study or a benchmark that the results were made with.

    Each writes its result with the date, the command, the machine and the versions (--out), logs it to MLflow
    (--mlflow), and some print the figures of a file again (--again).
    """


def main() -> None:
    """Run the command line."""
    run_command(cli)


if __name__ == "__main__":
    main()

"""The command line: ``tilescout``."""

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import click

from tilescout.experiments.options import examples
from tilescout.spaces.errors import TilescoutError, one_line

# The module and function of each command, imported when it is used: `tilescout --help` costs no torch.
_COMMANDS = {
    "tune": "tilescout.experiments.tune:tune",
    "collect": "tilescout.experiments.collect:collect",
    "compile": "tilescout.experiments.compile:compile_sample",
    "measure": "tilescout.experiments.measure:measure",
    "compare": "tilescout.experiments.compare.command:compare",
    "table": "tilescout.experiments.table:table",
    "predict": "tilescout.experiments.predict:predict",
    "train": "tilescout.experiments.train:train",
    "evaluate-model": "tilescout.experiments.evaluate_model:evaluate_model",
    "export": "tilescout.experiments.export:export",
    "report": "tilescout.experiments.report:report",
    "tables": "tilescout.experiments.tables:tables",
    "suites": "tilescout.experiments.suites:suites",
    "suite": "tilescout.experiments.suites:suite",
    "ui": "tilescout.experiments.ui:ui",
    "doctor": "tilescout.experiments.doctor:doctor",
}


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, function = _COMMANDS[name].split(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=examples(
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16",
        "tilescout ui",
        "tilescout tune --help",
    ),
)
@click.version_option(version("tilescout"), prog_name="tilescout")
def cli() -> None:
    """Find the fastest configuration of a CuteDSL kernel.

    Start with `tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16`, look at the trials with `tilescout ui`, and see
    what is missing with `tilescout doctor`. Completion in bash: eval "$(_TILESCOUT_COMPLETE=bash_source tilescout)";
    zsh and fish alike.
    """


def main() -> None:
    """Run the command line; an error is one line on standard error and exit code 2."""
    sys.path.append(str(Path.cwd()))  # where a space of your own, module:Class, may lie; measuring processes look there
    try:
        with _logged():
            code = cli.main(standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        print("tilescout: interrupted; what is finished is kept, and tune --resume goes on with it", file=sys.stderr)
        sys.exit(130)
    except click.ClickException as error:
        _fail(error.format_message())
    except TilescoutError as error:
        _fail(str(error))
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _logged() -> Iterator[None]:
    """What the rooms log goes to standard error, a line each, as it is."""
    logger, handler = logging.getLogger("tilescout"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _fail(message: str) -> None:
    print(f"tilescout: {one_line(message)}", file=sys.stderr)
    sys.exit(2)

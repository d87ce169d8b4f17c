"""The command line: ``tilescout``."""

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import version
from io import TextIOWrapper
from shutil import get_terminal_size

import click
from click.exceptions import NoArgsIsHelpError

from tilescout.experiments.commands.early import begin
from tilescout.experiments.commands.epilog import examples
from tilescout.experiments.commands.former import todays
from tilescout.spaces.errors import ResumableError, TilescoutError, one_line
from tilescout.spaces.faults import described, place_of
from tilescout.spaces.plugins import find
from tilescout.spaces.processes import hide_secrets, safe_processes
from tilescout.spaces.texts import printable, printable_line, without_secrets

# The module and function of each command, imported when it is used: `tilescout --help` costs no torch. What that
# says of each fits into a terminal of 80 columns.
_COMMANDS = {
    "tune": ("tune:tune", "Search for the fastest configuration of a problem or suite."),
    "collect": ("collect:collect", "Measure many configurations of a suite into a table."),
    "compile": ("compile:compile_sample", "Compile configurations into the store, without a GPU."),
    "measure": ("measure:measure", "Verify and time the default or another configuration."),
    "compare": ("compare:compare", "Compare search strategies on recorded tables."),
    "predict": ("predict:predict", "Show what a cost model expects to be fastest."),
    "portfolio": ("portfolio:portfolio", "Choose the few kernels that serve many problems."),
    "dispatcher": ("dispatcher:dispatcher", "Choose the kernels of a product for every m."),
    "train": ("train:train", "Train a cost model on a table."),
    "evaluate-model": ("evaluate_model:evaluate_model", "See how good a cost model is on problems left out."),
    "studies": ("studies:studies", "List, show, compare or delete the studies of a store."),
    "best": ("studies:best", "Show the best configuration that was found for a problem."),
    "export": ("export:export", "Write what searches decided, for torch.compile."),
    "report": ("report:report", "Write a study as one HTML page."),
    "spaces": ("spaces:spaces", "List search spaces, or show knobs and constraints."),
    "samplers": ("samplers:samplers", "List search strategies, or the options of one."),
    "tables": ("tables:tables", "List, import, export or complete recorded tables."),
    "suites": ("suites:suites", "List suites of problems, or make one from a model."),
    "ui": ("ui:ui", "Open the MLflow UI on the trials of a store."),
    "doctor": ("doctor:doctor", "Look for what is missing here."),
}


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing that say something of the disk, and nothing of tilescout."""

_CLOSED = (errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)
"""Errors of a path that can't be followed: before Python 3.14, asking whether it exists raises the first two."""


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = find(f"tilescout.experiments.commands.{_COMMANDS[name][0]}")
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        args, hints = todays(args)
        for hint in () if context.resilient_parsing else hints:
            print(f"tilescout: {hint}", file=sys.stderr)
        if args[0] == "tune" and not context.resilient_parsing:
            begin(args[1:])  # before the command is imported
        near = get_close_matches(args[0], _COMMANDS, n=1)
        if args[0] not in _COMMANDS and near and not context.resilient_parsing:
            raise click.UsageError(f"no such command {args[0]!r}, did you mean {near[0]!r}?", context)
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


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
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Find the fastest configuration of a CuteDSL kernel.

    Start with `tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16`. `tilescout ui` shows the trials, and
    `tilescout doctor` says what is missing on this machine.

    To complete words with the tab key in bash, run eval "$(_TILESCOUT_COMPLETE=bash_source tilescout)"; in zsh or fish,
    write zsh_source or fish_source instead of bash_source.
    """
    if isinstance(context.obj, _Run):
        context.obj.debug, context.obj.command = debug, context.invoked_subcommand or ""


_GOES_ON = {
    "tune": "tune --resume",
    "compare": "compare --resume",
    "collect": "the same command",
    "compile": "the same command",
    "evaluate-model": "the same command",
}
"""The command that goes on with an interrupted one, of those that keep what is finished."""


@dataclass
class _Run:
    """One run of the command line.

    Attributes
    ----------
    debug
        Whether errors are shown with their traceback.
    command
        The name of the command, once it is known.
    """

    debug: bool = False
    command: str = ""


def main() -> None:
    """Run the command line of the process."""
    run_command(cli)


def run_command(command: click.Command) -> None:
    """Run a command with the arguments of the process, and exit.

    An error is one line on standard error and code 2, also one of a user's own code, such as a template's. An error of
    tilescout that it did not expect is a traceback.
    """
    hide_secrets()
    _open_streams()
    run = _Run()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal may know no µ
            stream.reconfigure(errors="backslashreplace")
    try:
        with _logged(), safe_processes:
            code = _main(command, run)
            sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        again = _GOES_ON.get(run.command)
        kept = f"; what is finished is kept, and {again} goes on with it" if again is not None else ""
        print(f"tilescout: interrupted{kept}", file=sys.stderr)
        sys.exit(130)
    except NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "tilescout"
        _fail(f"{error.format_message().rstrip('.')}; see `{path} --help`")
    except click.ClickException as error:
        _fail(error.format_message())
    except ResumableError as error:
        _fail(f"{error} with tune --resume")
    except TilescoutError as error:
        _fail(str(error))
    except OSError as error:
        if not run.debug and _is_nowhere():
            _fail("the working directory was deleted: run this in another")
        if not run.debug and error.filename is not None and error.errno in _CLOSED:
            _fail(f"can't use {one_line(str(error.filename), 300)}: {error.strerror}")
        if run.debug or error.errno not in _FULL:
            raise
        with suppress(OSError, ValueError):  # what is left of the output can't be written either, when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"can't write {error.filename or 'the output'}: {error.strerror}")
    except MemoryError:
        if run.debug:
            raise
        _fail("there is not enough memory: ask for less at a time, or use a machine that has more")
    except Exception as error:
        if run.debug or not place_of(error):
            raise
        _fail(f"{described(error)}; `tilescout --debug ...` shows the whole traceback")
    sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Have a stream that the shell closed, as `2>&-` does, lead nowhere.

    Else the next file that is opened would get its number, and what libraries print there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for number, name in (1, "stdout"), (2, "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _is_nowhere() -> bool:
    """Whether the working directory was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _main(command: click.Command, run: _Run) -> object:
    try:
        return command.main(standalone_mode=False, obj=run)
    except (TilescoutError, KeyboardInterrupt):
        if run.debug:
            traceback.print_exc()
        raise


class _Handler(logging.Handler):
    """Prints messages on the standard error of the moment: while a bar is shown, that is one that prints above it."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return without_secrets(printable(text) if record.exc_info else printable_line(text))

    def emit(self, record: logging.LogRecord) -> None:
        from tilescout.spaces.terminal import wrapped  # with rich, which an early start does not wait for

        with suppress(OSError, ValueError):  # it may be full, or closed
            message = self.format(record)
            print(wrapped(message, get_terminal_size().columns) if sys.stderr.isatty() else message, file=sys.stderr)


@contextmanager
def _logged() -> Iterator[None]:
    """Print the log messages of the library on standard error, a line each."""
    logger, handler = logging.getLogger("tilescout"), _Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _fail(message: str) -> None:
    with suppress(OSError):  # there may be no room for it either
        print(f"tilescout: {as_options(one_line(message))}", file=sys.stderr)
    sys.exit(2)


_ARGUMENT = re.compile(r"`(cluster|device|out|store|table)(?:='([^'`]+)')?`")


def as_options(message: str) -> str:
    """Write the options of the command line into a message of the library, which names `table` or `device='replay'`."""
    return _ARGUMENT.sub(lambda found: " ".join(filter(None, (f"--{found[1]}", found[2]))), message)


if __name__ == "__main__":
    main()

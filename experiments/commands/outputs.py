"""Where a command writes: what is checked before its work, the result that --json writes, and the console beside it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tilescout.experiments.finite import finite
from tilescout.spaces.errors import StoreError
from tilescout.spaces.outputs import check_replaceable, has_keys, is_matplotlib, write_whole
from tilescout.spaces.terminal import Console

STDOUT = Path("-")

# What every command writes with --json has all keys of one of these.
_RESULTS = (
    ("study", "space", "problem", "measured_by"),  # tune; of a suite, a list of such
    ("trials", "seeds", "contenders", "paired_tests"),  # compare
    ("table", "rows", "device", "models"),  # evaluate-model
    ("space", "problem", "model", "ranking"),  # predict
    ("problem", "library_us", "measurements"),  # measure
    ("table", "space", "problems"),  # tables
    ("studies", "not_comparable", "differences"),  # studies diff
    ("space", "knobs", "constraints"),  # spaces
    ("suite", "title", "problems"),  # suites
    ("what", "state", "detail"),  # doctor
    ("sampler", "summary", "options"),  # samplers
    ("space", "signature", "arch", "kernels"),  # compile
    ("problem", "runs", "why"),  # export
    ("space", "candidates", "curve", "portfolio"),  # portfolio
    ("kind", "problem", "kernels", "ranges"),  # dispatcher
)


def check_result(path: Path | None) -> None:
    """Refuse a file for --json that can't be written, or holds something else than what --json wrote.

    Raises
    ------
    StoreError
        If it does.
    """
    if path is not None and path != STDOUT:
        check_apart_from_arguments(path)
        check_output(path, "a result that --json wrote", lambda file: has_keys(file, *_RESULTS))


def console_beside(json_path: Path | None) -> Console:
    """Where tables are printed: on standard error if --json takes standard output.

    Where they can't be, as behind `| head`, the command delivers all else, and fails then.
    """
    context = click.get_current_context(silent=True)
    console = Console(stderr=json_path == STDOUT, patient=context is not None)
    if context is not None:
        context.with_resource(_written(console))
    return console


@contextmanager
def _written(console: Console) -> Iterator[None]:
    """A context that ends with the error of what could not be written to standard output, if it ends well."""
    yield
    if console.unwritten is not None and not console.stderr:
        raise console.unwritten


def write_result(path: Path | None, result: object) -> None:
    """Write a result where --json says, if it does; what is infinite or unknown becomes null."""
    text = json.dumps(finite(result), indent=2, allow_nan=False) + "\n"
    if path == STDOUT:
        click.echo(text, nl=False)
    elif path is not None:
        try:
            write_whole(path, text.encode())
        except StoreError as error:
            click.echo(text, nl=False)
            raise StoreError(f"{error}; the result is printed instead") from error


def check_output(path: Path, kind: str, is_one: Callable[[Path], bool]) -> None:
    """Refuse a file that can't be written, or is not of the kind that is written; see `check_replaceable`.

    A pipe or a terminal loses nothing by being written to.

    Raises
    ------
    StoreError
        If it is refused.
    """
    check_writable(path)
    if path.is_file():
        check_replaceable(path, kind, is_one, StoreError)


def check_plot(path: Path) -> None:
    """Refuse a plot that can't be written, would replace something else, or is named as another kind of picture.

    Raises
    ------
    StoreError
        If it is refused.
    """
    if path.suffix.lower() not in ("", ".png"):
        raise StoreError(f"can't draw {path}: plots are PNG files, whose names end in .png")
    check_output(path, "a plot", is_matplotlib)


def check_apart_from_arguments(output: Path) -> None:
    """Refuse to write over any file that the command line names otherwise, in whatever spelling.

    Raises
    ------
    StoreError
        If one of them is `output`.
    """
    given: list[object] = []
    for value in click.get_current_context().params.values():
        given += value if isinstance(value, tuple) else [value]
    named = [Path(value) for value in given if isinstance(value, str | Path)]
    if sum(_are_one(path, output) for path in named) > 1:  # the output itself is one of them
        raise StoreError(f"{output} is named twice: choose another file for --json")


def _are_one(path: Path, output: Path) -> bool:
    """Whether two paths lead to one file, by links or by folders; what is named need be no path."""
    try:
        return os.path.realpath(path) == os.path.realpath(output) or path.samefile(output)
    except (OSError, ValueError):  # one is not there, or can be no path
        return False


def check_apart(given: Path, *outputs: Path) -> None:
    """Refuse to write over a file that is read.

    Raises
    ------
    StoreError
        If one of the outputs is the file `given`, under whatever name.
    """
    for output in outputs:
        if given.exists() and output.exists() and given.samefile(output):
            raise StoreError(f"{output} is what is read: choose another file to write")


def check_mlflow(uri: str | None, store: Path) -> None:
    """Refuse an MLflow store that can't be opened, or that MLflow is not installed, before the work that is logged.

    Raises
    ------
    StoreError
        If it can't.
    """
    from tilescout.search.tracking import check_installed, default_store, open_client, quiet_mlflow

    check_installed()
    if uri is None:
        default_store(store)  # a file in a folder of ours: made when it is needed
        return
    with quiet_mlflow():
        open_client(uri)


def make_folder(folder: Path) -> None:
    """Make a folder where it lacks, and refuse one that can't be written, before the work that is to be written there.

    Raises
    ------
    StoreError
        If it can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"can't make the folder {folder}: {error.strerror}") from error
    check_writable(folder / "any")


def check_writable(path: Path) -> None:
    """Refuse a file that can't be written, before the work that is to be written there.

    Raises
    ------
    StoreError
        If it can't, as a folder, or is the card of a table: without it the table can't be read.
    """
    if path.is_dir():  # which may have no name, as the working directory
        raise StoreError(f"can't write {path}: it is a folder")
    from tilescout.search.tables.table import SUFFIX, card_path  # 0.09 s that most commands do without

    table = path.with_suffix(SUFFIX)
    if table != path and path == card_path(table) and table.exists():
        raise StoreError(f"{path} is the card of the table {table.name}: choose another name")
    folder = path.parent
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise StoreError(f"can't write {path}: choose a file in a folder that exists and can be written")

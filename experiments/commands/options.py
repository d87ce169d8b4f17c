"""Options that several commands share, and functions that read their values."""

import functools
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

import click
import numpy as np
from click.core import ParameterSource

from tilescout.experiments.commands.completion import complete_spaces
from tilescout.experiments.commands.epilog import examples as examples  # of every command
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.build.standby import IDLE_SECONDS
from tilescout.search.measure.protocol import DEFAULT_OBJECTIVE, Objective
from tilescout.search.studies.folders import STORE, check_store
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ProblemError, SpaceError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.processes import find_modules_in
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.texts import is_address, without_secrets

_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


def find_modules_here(*texts: str) -> None:
    """Let modules of the working directory be found, behind all others, if a text names a ``module:Class``.

    Only what a person typed goes here.
    """
    if any(":" in text for text in texts):
        find_modules_in(str(Path.cwd()))


def _typed_space(context: click.Context, parameter: click.Parameter, space: str) -> str:
    find_modules_here(space)
    return space


def _typed_spaces(context: click.Context, parameter: click.Parameter, spaces: tuple[str, ...]) -> tuple[str, ...]:
    find_modules_here(*spaces)
    return spaces


def typed_samplers(context: click.Context, parameter: click.Parameter, samplers: str | None) -> str | None:
    """The callback of an option that takes samplers, with commas between them."""
    if samplers is None:
        return None
    named = (text for text in samplers.split(",") if "=" not in text.partition(":")[2].partition(":")[0])
    find_modules_here(*named)  # not of lfbo:copies=5
    return samplers


class Once(click.Option):
    """An option that is given once: of several, click takes the last one without a word.

    Parameters
    ----------
    instead
        What somebody who gives it twice may want.
    """

    def __init__(self, *args: Any, instead: str = "", **named: Any) -> None:
        super().__init__(*args, **named)
        self.instead = instead

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Collect all that is given."""
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """The value that was given, or another source's.

        Raises
        ------
        UsageError
            If several were given.
        """
        name = self.name or ""
        given = opts.get(name, [])
        if len(given) > 1:
            more = f": {self.instead}" if self.instead else ""
            raise click.UsageError(f"{self.opts[0]} is given {len(given)} times, and takes one value{more}", ctx)
        return super().consume_value(ctx, {**opts, name: given[0]} if given else opts)


class Finite(click.FloatRange):
    """A finite number in a range: ``nan`` is below no limit, and a search with it would end at once."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """The number.

        Raises
        ------
        BadParameter
            If it is none, or out of range.
        """
        seconds: float = super().convert(value, parameter, context)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a finite number.", parameter, context)
        return seconds


_EMPTY = "it is empty; the working directory is written as a dot."


class Named(click.Path):
    """A path. An empty text, which a shell's unset variable leaves, is none: it would mean the working directory."""

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """The path.

        Raises
        ------
        BadParameter
            If it is empty, or of a file where that can't be.
        """
        if value == "":
            self.fail(_EMPTY, parameter, context)
        return super().convert(value, parameter, context)


class Folder(Named):
    """A folder."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)


def _named_place(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.BadParameter(_EMPTY)
    return value


def named_store(context: click.Context, parameter: click.Parameter, uri: str | None) -> str | None:
    """The callback of an option that takes MLflow's store: neither an empty text, of an unset variable, nor a path."""
    if uri == "":
        raise click.BadParameter("it is empty; leave it out for the file in the store.")
    if uri is not None and not is_address(uri):
        raise click.BadParameter(
            f"{one_line(uri, 60)} is no address: allowed are a file (sqlite:////path/mlflow.db) or a running server "
            "(http://host:port)."
        )
    return uri


space_argument = click.argument(
    "space",
    callback=_typed_space,
    shell_complete=complete_spaces,
)
own_spaces_option = click.option(
    "--space",
    "own_spaces",
    multiple=True,
    callback=_typed_spaces,
    metavar="MODULE:CLASS",
    help="A space of your own (module:Class) that the data may come from; its module is imported. Repeatable.",
)
standby_option = click.option(
    "--standby/--no-standby",
    default=CompileOptions().standby,
    show_default=True,
    help=f"Keep processes ready for {IDLE_SECONDS / 60:g} minutes, so that the next command starts faster.",
)
store_option = click.option(
    "--store",
    type=Folder(),
    callback=lambda context, parameter, store: check_store(store),
    default=STORE,
    show_default=True,
    help="Folder for compiled kernels, studies and the MLflow store.",
)
processes_option = click.option(
    "--processes", type=click.IntRange(min=1), help="Processes to run at a time. [default: one per core]"
)

seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed."
)
problem_option = click.option(
    "--problem", cls=Once, required=True, help="What to compute, for example 4096x4096x4096:bf16, or 8192x8192:bf16."
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KNOB=VALUE",
    help="Change this knob of the default configuration; repeatable.",
)
device_option = click.option(
    "--device",
    type=click.Choice(list(DEVICES)),
    default="h200",
    show_default=True,
    help="The target device; this machine need not have it.",
)
measured_on_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cuda[:N]|replay",
    help="Measure on a GPU, or replay a table.",
)
cluster_option = click.option(
    "--cluster",
    metavar="auto|ADDRESS",
    help="Compile and measure on a Ray cluster: the one at ADDRESS, or with auto one on this machine.",
)
gpus_option = click.option(
    "--gpus",
    type=click.IntRange(min=1),
    help="Most GPUs to use; a replayed suite or campaign simulates this many. [default: one for a problem or a "
    "replay, all for a suite, a campaign or a cluster]",
)
objective_option = click.option(
    "--objective",
    type=click.Choice([str(each) for each in Objective]),  # of members, click would take the names
    callback=lambda context, parameter, name: Objective(name) if name is not None else None,
    help="What runs around a kernel while it is timed: the same kernel, or ones that write its input and read its "
    f"output. [default: {DEFAULT_OBJECTIVE}; in a replay, the table's own]",
)
signature_option = click.option(
    "--signature", help="Types, layout and epilogue to use instead of the suite's; only its sizes are kept."
)
storage_option = click.option(
    "--storage",
    metavar="URL|FOLDER",
    callback=_named_place,
    help="Where studies are kept: a database that tuners share, such as postgresql://user@host/name, or a folder. "
    "[default: a folder of the store]",
)
mlflow_option = click.option(
    "--mlflow",
    "mlflow_uri",
    metavar="URI",
    callback=named_store,
    help="MLflow server. [default: a SQLite file in the store]",
)
json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Also write the result to this file; - is standard output, and tables then go to standard error.",
)


def shown_at(page: str, mlflow_uri: str | None, store: Path) -> str:
    """How to see a page of MLflow's UI, for a log message: its address, and the command that serves it."""
    from tilescout.search.tracking.server import address

    if mlflow_uri is not None and mlflow_uri.startswith(("http://", "https://")):
        return f"look at it: {without_secrets(mlflow_uri).rstrip('/')}/{page}"
    where = ("--mlflow", without_secrets(mlflow_uri)) if mlflow_uri else ("--store", str(store))
    return f"look at it with: {shlex.join(('tilescout', 'ui', *where))}\nand then at {address(page)}"


@contextmanager
def told_of_own_spaces() -> Iterator[None]:
    """A context in which the error that a space is unknown says which option names it."""
    try:
        yield
    except SpaceError as error:
        raise SpaceError(f"{error}; --space module:Class names a space of your own") from error


def collected(kind: Callable[..., Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command its parameters as one object, by whose fields they are named, behind what else it is called with.

    Parameters
    ----------
    kind
        A frozen dataclass with a field for every parameter of the command.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def call(*arguments: Any, **parameters: Any) -> Result:
            return function(*arguments, kind(**parameters))

        return call

    return decorate


def suite_problems(template: KernelTemplate, suite: str, signature: str | None) -> list[Problem]:
    """The problems of a suite, each once; with a signature, of that one.

    Those that the template can't compute are left out, and told.

    Raises
    ------
    ProblemError
        If there is no such suite, or the template can compute none of them.
    """
    found = find_suite(suite).parsed(template.parse)
    if signature is not None:
        try:
            found = list(dict.fromkeys(problem.with_signature(signature) for problem in found))
        except ProblemError as error:
            raise ProblemError(f"--signature {short(signature)}: {error}") from error
    refused = dict[Problem, ProblemError]()
    for problem in found:
        try:
            template.check(problem)
        except ProblemError as error:
            refused[problem] = error
    if len(refused) == len(found):
        raise refused[found[0]]
    for problem, why in refused.items():
        _LOG.warning("%s of the suite %s is left out: %s", problem, suite, why)
    return [problem for problem in found if problem not in refused]


def changed_default(template: KernelTemplate, space: SearchSpace, settings: Sequence[str]) -> Configuration:
    """The default configuration with settings of the form KNOB=VALUE applied.

    Raises
    ------
    SpaceError
        If a setting is malformed, its knob or value unknown, a knob set twice, or the outcome not legal.
    """
    default = template.default_in(space)
    if not settings:
        try:
            return space[space.index(default)]
        except SpaceError as error:
            raise SpaceError(f"the default of {template.name} is not legal: {error}") from error
    values, changed = dict(default), set[str]()
    knobs, first = {knob.name: knob for knob in space.knobs}, space.knobs[0]
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise SpaceError(
                f"malformed setting {setting!r}: expected KNOB=VALUE, for example {first.name}={first.values[-1]}"
            )
        if name not in knobs:
            raise SpaceError(f"{space.name} has no knob {name!r}, its knobs are {', '.join(knobs)}")
        if name in changed:
            raise SpaceError(f"{name} is set twice: name one value")
        changed.add(name)
        values[name] = knobs[name].parse(text)
    return space[space.index(values)]


def chosen(
    template: KernelTemplate, space: SearchSpace, settings: Sequence[str], sample: int, seed: int
) -> list[Configuration]:
    """The default configuration, changed by `settings`, and a random sample, without repeats."""
    first = space.index(changed_default(template, space, settings))
    drawn = space.sample(sample, np.random.default_rng(seed)).tolist()
    return [space[index] for index in dict.fromkeys([first, *drawn])]

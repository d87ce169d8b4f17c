"""The one way to have something measured: the interface of engines, what they are asked, and how they go about it."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.provenance import Provenance
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.checking import check_number
from tilescout.spaces.closing import Closing
from tilescout.spaces.declarations import checked_default
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SamplerError, SpaceError, TilescoutError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import Listing
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)

FEWEST = 16
"""Trials that every engine that measures takes at a time: a sampler that asks for no more tries the same everywhere."""


@dataclass(frozen=True)
class LiveOptions:
    """How compiling and measuring are organised.

    Attributes
    ----------
    compile
        The compiler processes.
    protocol
        The numbers of the measuring protocol.
    timeout
        Seconds a kernel may take to be verified and timed before it is killed. A right one takes well under a second;
        setting a problem up again in a replaced process takes a few.

    Raises
    ------
    SamplerError
        If one of them is something else.
    """

    compile: CompileOptions = field(default_factory=CompileOptions)
    protocol: ProtocolOptions = field(default_factory=ProtocolOptions)
    timeout: float = 30.0

    def __post_init__(self) -> None:
        check_kinds(SamplerError, compile=(self.compile, CompileOptions), protocol=(self.protocol, ProtocolOptions))
        check_number("`timeout`", self.timeout, whole=False)


@dataclass(frozen=True)
class Task:
    """A compiled configuration to measure on a problem.

    Attributes
    ----------
    configuration, artifact
        The configuration, and what it was compiled to.
    problem
        The problem.
    library_us
        The vendor library's steady time on it, in µs.
    incumbent
        The best ratio to the library so far, infinite if there is none. A clearly slower configuration may be given up
        early. None measures in full.
    template
        The template of the configuration, if it is not the engine's: that of the library's own kernels, or of a space
        that is searched beside the engine's.
    """

    configuration: Configuration
    artifact: Artifact
    problem: Problem
    library_us: float
    incumbent: float | None = None
    template: KernelTemplate | None = None


class CannotMeasureError(TilescoutError):
    """A race was asked of an engine that can't measure again, or it ended early."""


class Engine(Closing):
    """Compiles configurations of one template and measures them on one or more GPUs of one kind.

    There are three kinds: `LocalEngine` uses this machine, `RayEngine` a cluster, and `ReplayEngine` answers from a
    recorded table. `tilescout.search.engines.selection.make_engine` chooses one. They are used in the same way;
    `tilescout.search.engines.testing` checks that.

    Calls return at once; what they return is settled as soon as it is known, in threads of the engine's own. A GPU
    does one thing at a time; two batches in flight keep it busy. A failure of a configuration is an outcome, never an
    exception. A future raises `DeviceError` if the GPU is lost for good.

    Attributes
    ----------
    template
        The kernels that are compiled and measured.
    device
        The GPUs, which are alike.
    product, versions
        The driver's name for them, and the versions of the software that matters, the driver's among them.
    provenance
        Where the measurements come from.
    protocol, protocol_text
        The name of the measuring protocol, and its description in prose.
    gpus
        How many there are; they are numbered from 0.
    compilers
        Configurations that are compiled at the same time.
    measures_anew
        Whether it can `race`.
    """

    template: KernelTemplate
    device: Device
    product: str
    versions: Mapping[str, str]
    provenance: Provenance
    protocol: str
    protocol_text: str
    gpus: int
    compilers: int
    measures_anew = True
    _lent = False  # whether what measures is another engine's

    def capacity(self, gpus: int) -> int:
        """Most configurations that a search on so many of the GPUs has in flight.

        As many as there are compilers, plus one that is measured and one that waits on every GPU, so that none waits
        for a compiler that could have run; but at least `FEWEST`.
        """
        return max(self.compilers + 2 * gpus, FEWEST)

    def beside(self, template: KernelTemplate) -> "Engine | None":
        """An engine of other kernels on the same GPUs, to be used in turns with this one and closed before it.

        None if this kind of engine has no such.
        """
        return None

    def _lend(self, template: KernelTemplate) -> Self:
        """An engine of other kernels that has all of this one's, and closes none of it."""
        other = copy(self)
        other.__dict__.pop("_listed", None)  # what a library told of this one's template
        other.template, other._lent, other.tuned = template, True, self.tuned
        return other

    @cached_property
    def tuned(self) -> dict[tuple[str, Problem], float]:
        """Seconds that tuning a peer for a problem took; who measures keeps its kernel."""
        return {}

    @property
    def objective(self) -> Objective:
        """The surroundings of a kernel while it is timed."""
        return self.provenance.objective

    @property
    def source_hash(self) -> str:
        """The hash of the source of the kernels that are measured."""
        return self.template.source_hash

    @property
    def recorded(self) -> date:
        """The day of the measurements: today."""
        return date.today()

    def space(self, problem: Problem) -> SearchSpace:
        """The configurations that can be tried on a problem.

        Raises
        ------
        ProblemError, SpaceError
            If the template can't compute the problem, or not on this device.
        DeviceError
            If the kernels are those of a library that must be asked, and can't be.
        """
        return self._listed(problem) if self.template.loader else self.template.space(problem, self.device)

    def default(self, problem: Problem) -> Configuration:
        """The configuration that is run on a problem without any search; see `space`."""
        if self.template.loader:
            return self.template.default_in(self.space(problem))
        return checked_default(self.template.default(problem, self.device), self.template.name)

    @cached_property
    def _listed(self) -> Callable[[Problem], SearchSpace]:
        """The space of a problem as the library tells it; it is asked once, which takes up to some seconds."""

        def ask(problem: Problem) -> SearchSpace:
            self.template.check(problem)
            found = self.listing(0, self.template, problem, None).result()
            whole = "" if found.complete else f", not about all; {len(found.rows):,} are searched"
            _LOG.info(
                "%s %s has %d kernels for %s (asked about %d in %.1f s%s)",
                *(self.template.name, found.version, len(found.rows), problem, found.asked, found.seconds, whole),
            )
            codes = SearchSpace.codes_of(self.template.knobs, found.rows)
            space = self.template.space_of(codes, problem, self.device)
            if space is None:
                raise SpaceError(f"{self.template.name}: the library has no kernel for {problem}")
            return space

        return cache(ask)

    @abstractmethod
    def library(self, problem: Problem) -> str:
        """The name of the function that calls the library's kernel, for example ``torch.mm``."""

    def listing(self, gpu: int, template: KernelTemplate, problem: Problem, guesses: int | None) -> "Future[Listing]":
        """Ask the library of a template which kernels it has; see `tilescout.spaces.loaders.Loader.listing`.

        Raises
        ------
        CannotMeasureError
            By the future, if the engine has no GPU to ask on.
        """
        return failed_future(CannotMeasureError(f"no library can be asked: {self.provenance.description}"))

    def named(
        self, gpu: int, template: KernelTemplate, problems: Sequence[Problem]
    ) -> "Future[list[Sequence[int | str]]]":
        """Ask the library of a template which kernel it runs of its own accord for each of some problems.

        Returns
        -------
        Future
            The values of the template's knobs, of each.

        Raises
        ------
        CannotMeasureError
            By the future, if the engine has no GPU to ask on.
        """
        return failed_future(CannotMeasureError(f"no library can be asked: {self.provenance.description}"))

    def recorded_library_best(self, problem: Problem) -> LibraryBest | None:
        """The library's best candidate as it was recorded with what is replayed; None if it was not."""
        return None

    def describe(self, template: KernelTemplate, configuration: Configuration, signature: str) -> Artifact:
        """The artifact of a library's kernel, of a template that compiles nothing.

        Raises
        ------
        CannotMeasureError
            If the engine measures nothing.
        StoreError
            If the store can't be written.
        """
        raise CannotMeasureError(f"nothing can be measured: {self.provenance.description}")

    def stored(self, signature: str) -> Sequence[Configuration]:
        """The configurations whose kernels for a signature are in the artifact store; none where that is not known."""
        return ()

    @abstractmethod
    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        """Compile a configuration for the problems of a signature, unless the artifact store has it.

        Every call gets a future of its own. Cancelling it gives the kernel up, unless another call waits for it.
        """

    def expect(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        """Compile what is likely to be asked for, where nothing that was asked for waits; see `compile`."""
        return self.compile(configuration, signature)

    def set_up(self, problem: Problem) -> None:
        """Begin what the first `prepare` of this problem, on the first GPU, waits for; nothing where that is short."""

    @abstractmethod
    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        """Set a problem up on a GPU and take the library's steady time, in µs."""

    @abstractmethod
    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        """Measure a batch, all of one problem, in this order.

        A fast configuration lowers the incumbent of those that come after it in the batch.
        """

    def glances(
        self, gpu: int, groups: Sequence[Sequence[Task]], rounds: int, seed: int
    ) -> "Future[list[tuple[float, NDArray[np.float64]]]]":
        """Time kernels roughly that were right on problems of other sizes; nothing is verified, and nothing is set up.

        Parameters
        ----------
        gpu
            The number of the GPU.
        groups
            The kernels of one problem after the other, without a pause between them, in which the device would rest.
        rounds, seed
            Blocks of launches of each, and the seed of their order.

        Returns
        -------
        future
            For each problem the library's time in µs, and ratios to it of shape [rounds, tasks].

        Raises
        ------
        CannotMeasureError
            By the future, if the engine has no such, or one of the kernels took the measuring process down.
        """
        return failed_future(CannotMeasureError(f"nothing can be glanced at: {self.provenance.description}"))

    @abstractmethod
    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        """Measure configurations that are right once more, in interleaved rounds: ratios of shape [rounds, tasks].

        Raises
        ------
        CannotMeasureError
            By the future, if the engine can't measure anew, or one of the kernels took the measuring process down.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop everything; futures that are not settled are cancelled or fail."""


def settled_future(result: Result) -> "Future[Result]":
    """A future that has its result."""
    future: Future[Result] = Future()
    future.set_result(result)
    return future


def failed_future(error: BaseException) -> "Future[Any]":
    """A future that raises."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future

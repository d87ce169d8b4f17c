"""Templates, the source of kernels: a template compiles any configuration of its search space."""

import hashlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from reprlib import repr as short
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, cast

import numpy as np
from numpy.typing import ArrayLike

from tilescout.spaces.building import import_compiler
from tilescout.spaces.constraints import Columns, Constraint
from tilescout.spaces.declarations import check_declarations, checked_default
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import BuildError, SpaceError
from tilescout.spaces.faults import described
from tilescout.spaces.knobs import Configuration, Knob, Value, configurations_of
from tilescout.spaces.launched import Launched, codes_known, compiled_as, kernels_of
from tilescout.spaces.plugins import SPACES, Registry, load, registered
from tilescout.spaces.problems import P
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.texts import alternatives, check_several
from tilescout.spaces.workloads import Workload, load_workload

if TYPE_CHECKING:
    from tilescout.spaces.grouped_tiling import GroupedTiling
    from tilescout.spaces.tiling import Tiling


@dataclass(frozen=True)
class Built:
    """The description of an object file that a template compiled.

    Attributes
    ----------
    function
        Name of the entry point, without the prefix that TVM FFI adds.
    shared_memory
        Bytes of dynamic shared memory that a launch asks for; None for code that runs on the host and occupies nothing
        of a GPU.
    """

    function: str
    shared_memory: int | None


@dataclass(frozen=True)
class Unmeasured:
    """A kernel that should run where nothing may be measured.

    Attributes
    ----------
    space, configuration
        The space's name, and a configuration of it.
    gain
        Log of its speed over the library's that is expected; None where nothing is known.
    """

    space: str
    configuration: Configuration
    gain: float | None = None


class KernelTemplate(ABC, Generic[P]):
    """A family of kernels that compute the same thing, on problems of one class: the class of its workload's problems.

    Importing a template is cheap: only `build` imports the compiler. A template has no state, and its class can be
    imported by name, as compiler processes do.
    """

    name: str
    summary: str = ""  #: what it searches, in a line; for lists
    package: str = ""  #: the Python package with the kernel's source; empty if that is in the template's own file
    sources: tuple[str, ...] = ()  #: the files of it that decide what a configuration compiles to
    loader: str = ""  #: a `tilescout.spaces.loaders.Loader`, as module:Class, if the kernels are those of a library
    workload: str  #: what the kernels compute: a `tilescout.spaces.workloads.Workload`, as module:Class
    archs: tuple[str, ...]  #: compiler targets it can build for
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint[P], ...] = ()
    complement: str = ""  #: the name of a space whose kernels compute the same, and are faster on some problems
    pairs: str = ""  #: the template that builds two of its kernels as one, as module:attribute, if there is one
    fast_sums: bool = False  #: whether sums of 8-bit products have fewer bits than torch._scaled_mm gives them
    launched: Launched = MappingProxyType({})  #: see `tilescout.spaces.launched`: nothing, unless a subclass says more
    margin: str = "a margin"  #: by how much a kernel has to be expected to be faster to run unmeasured; for people
    careful: bool = False  #: whether inputs of any values do no harm, where values say which memory is read or written

    def check(self, problem: P) -> None:
        """Refuse a problem that no configuration can compute; nothing is refused unless a subclass does.

        Raises
        ------
        ProblemError
            With what is wrong and what is allowed.
        """

    @abstractmethod
    def default(self, problem: P, device: Device) -> Configuration:
        """The configuration that a careful user would run without any search."""

    def default_or_library(self, problem: P, device: Device) -> Unmeasured | None:
        """The kernel to run where nothing may be measured; None for the library.

        The default, unless a subclass knows better.
        """
        return Unmeasured(self.name, self.default(problem, device))

    def portfolio(self, problem: P, device: Device) -> Sequence[Configuration]:
        """A few configurations that together serve problems of this one's types, whatever their sizes.

        Not each need be legal for each size. The default of the problem alone, unless a subclass knows better.
        """
        return [self.default(problem, device)]

    def stock(self, problem: P, device: Device) -> Sequence[Configuration]:
        """Configurations to have compiled before problems of this one's types are tuned: the portfolio, or others.

        Not each need be legal for each size.
        """
        return self.portfolio(problem, device)

    def default_in(self, space: SearchSpace[P]) -> Configuration:
        """The default of a problem, given the space of it."""
        return checked_default(self.default(space.problem, space.device), self.name)

    def stock_in(self, space: SearchSpace[P]) -> list[Configuration]:
        """Those of the `stock` to compile for a problem, given its space: each serves a legal configuration."""
        given = self.stock(space.problem, space.device)
        if not self.launched:
            return [space[space.index(each)] for each in given if each in space]  # with values of Python's own
        codes = codes_known(space.knobs, dict.fromkeys(map(self.compiled_as, given)))
        wanted, legal = (kernels_of(self.launched, space.knobs, each) for each in (codes, space.codes))
        codes = codes[np.isin(wanted, legal)]
        return configurations_of(
            space.knobs, {knob.name: np.array(knob.values)[codes[:, at]] for at, knob in enumerate(space.knobs)}
        )

    def first_in(self, space: SearchSpace[P]) -> Sequence[int]:
        """Indices of configurations to try right after the default; none, unless a subclass knows of some."""
        return ()

    def like(self, space: SearchSpace[P], other: "Tiling") -> Sequence[int]:
        """Indices of a few configurations that divide the work as a kernel of another space does: `other` has one row.

        They are tried early where that kernel is the library's best; none, unless a subclass knows of some.
        """
        return ()

    def complements(self, problem: P, device: Device) -> bool:
        """Whether a kernel of this space may be faster than any of the space whose complement it is: a rough guess.

        Where it may, this space is searched too, from the start.
        """
        return False

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        """Blocks that are launched together as a cluster: one, unless a subclass says more."""
        return 1

    def scratch_bytes(self, configuration: Mapping[str, Value], problem: P) -> int:
        """Bytes of device memory that a launch needs for itself: none, unless a subclass says more.

        A kernel that needs some takes it as its last argument, a vector of bytes. Their values are arbitrary at the
        launch, and other kernels may use the memory once the kernel has ended.
        """
        return 0

    def warm_up(self) -> None:
        """Import what `build` imports: CuteDSL, unless a subclass says something else.

        It is called once, in the process that compilers are forked from: what is imported here, the compiler of no
        kernel has to import. It may start no thread, and CUDA may not be touched: neither survives a fork.
        """
        import_compiler()

    @property
    def warmed_like(self) -> str:
        """The name of the template that `warm_up` gets ready for as well; its own, unless a subclass says another.

        Compilers of both are forked from the same process.
        """
        return self.name

    def warm_up_beside(self) -> None:
        """Get ready for this template's kernels in a process that has warmed up for the one it is `warmed_like`.

        It is called once, when the first search has ended; what it does, the compilers of later searches need not do.
        Nothing, unless a subclass knows better.
        """

    def build_for_practice(self, configuration: Mapping[str, Value], signature: str) -> None:
        """Build a kernel that nobody wants, for what that leaves ready in this process; it need not compile."""
        with TemporaryDirectory() as folder, suppress(BuildError):
            self.build(configuration, signature, self.archs[0], Path(folder, "kernel.o"))

    @abstractmethod
    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        """Compile to an object file at `path`.

        The object holds for every problem of this signature: sizes are arguments. No GPU is needed. Call it in a
        process of its own, as compilers may crash or hang.

        Raises
        ------
        BuildError
            If the configuration does not compile.
        """

    def compiled_as(self, configuration: Configuration) -> Configuration:
        """The configuration that is compiled for one: it differs in what is `launched` alone, or in nothing."""
        return compiled_as(self.launched, configuration)

    def relaunch(self, binary: bytes, configuration: Mapping[str, Value], signature: str) -> bytes:
        """The shared object of a configuration, given that of what is compiled for it.

        A subclass that has something `launched` defines it.

        Raises
        ------
        BuildError
            If that can't be made of it.
        """
        raise BuildError(f"{self.name} does not say how a kernel is launched otherwise")

    def parse(self, text: str) -> P:
        """The problem that a text describes, in the form of the template's workload.

        Raises
        ------
        ProblemError
            If the text is malformed or the problem impossible.
        """
        return cast("Workload[P]", load_workload(self.workload)).problem.parse(text)

    def device(self, name: str) -> Device:
        """The device of this name that kernels were measured on.

        Raises
        ------
        DeviceError
            If it is unknown.
        """
        return find_device(name)

    def space_of(self, codes: ArrayLike, problem: P, device: Device) -> SearchSpace[P] | None:
        """Those of some configurations that are legal, given as codes [configurations, knobs]; None if none is.

        Raises
        ------
        ProblemError, SpaceError
            If the template can't compute the problem, or not on this device.
        """
        whole = self.space(problem, device)
        found = whole.find(codes)
        return whole.subset(found[found >= 0]) if (found >= 0).any() else None

    def tiling(self, columns: Columns, problem: P) -> "Tiling | None":
        """How configurations, given as columns of knob values, divide a matrix product; None if they compute none.

        Cost models derive features from it. Without it their only features are the knobs, and a search of a new kernel
        learns nothing from the models of other ones.
        """
        return None

    @property
    def is_tiled(self) -> bool:
        """Whether it describes how its configurations divide a matrix product."""
        return type(self).tiling is not KernelTemplate.tiling

    def grouped_tiling(self, columns: Columns, problem: P) -> "GroupedTiling | None":
        """How configurations, given as columns of knob values, divide a grouped product; None if they compute none."""
        return None

    @property
    def is_grouped(self) -> bool:
        """Whether it describes how its configurations divide a grouped product."""
        return type(self).grouped_tiling is not KernelTemplate.grouped_tiling

    def space(self, problem: P, device: Device) -> SearchSpace[P]:
        """The legal configurations for a problem on a device.

        Raises
        ------
        ProblemError, SpaceError
            If the template can't compute the problem, or not on this device.
        """
        self.check(problem)
        if device.arch not in self.archs:
            raise SpaceError(f"{self.name} builds for {', '.join(self.archs)}, not for {device.arch} ({device.name})")
        return SearchSpace(self.name, self.knobs, self.constraints, problem, device, template=self)

    @property
    def source_hash(self) -> str:
        """SHA-256 over the names and contents of the files in `sources`; without any, over the template's own file.

        Raises
        ------
        SpaceError
            If one can't be read.
        """
        try:
            if not self.sources:
                return hashlib.sha256(Path(inspect.getfile(type(self))).read_bytes()).hexdigest()
            return _hash_sources(self.package, self.sources)
        except (OSError, ImportError, TypeError, ValueError) as error:  # a class that was typed in has no file
            advice = "" if self.sources or _has_file(type(self)) else "; put its class into a file, and import it"
            raise SpaceError(
                f"{self.name}: can't read the source of its kernels: {described(error)}{advice}"
            ) from error


def of_any_problem(template: KernelTemplate[P]) -> KernelTemplate:
    """The same template, for code that works with problems of every class: it gives a template those that it parsed."""
    return cast(KernelTemplate, template)


def _has_file(kind: type) -> bool:
    """Whether a class stands in a file: not where it was typed into a notebook, or handed to an interpreter."""
    return Path(str(getattr(sys.modules.get(kind.__module__), "__file__", ""))).is_file()


@cache
def _hash_sources(package: str, sources: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + files(package).joinpath(name).read_bytes() + b"\0")
    return digest.hexdigest()


# The template of each space that comes with the package, as module:attribute, imported when it is asked for.
_BUILT_IN = {
    "gemm_sm90": "tilescout.spaces.gemm_sm90:TEMPLATE",
    "gemm_streamk_sm90": "tilescout.spaces.gemm_streamk_sm90:TEMPLATE",
    "softmax_sm90": "tilescout.spaces.softmax_sm90:TEMPLATE",
    "quack_sm90": "tilescout.spaces.libraries.quack:SM90",
    "quack_sm100": "tilescout.spaces.libraries.quack:SM100",
    "quack_sm120": "tilescout.spaces.libraries.quack:SM120",
    "grouped_gemm_sm90": "tilescout.spaces.grouped_gemm_sm90:TEMPLATE",
    "grouped_streamk_sm90": "tilescout.spaces.grouped_streamk_sm90:TEMPLATE",
    "grouped_swiglu_sm90": "tilescout.spaces.grouped_swiglu_sm90:TEMPLATE",
    "grouped_scaled_sm90": "tilescout.spaces.grouped_scaled_sm90:TEMPLATE",
    "quack_varlen": "tilescout.spaces.libraries.quack_varlen:TEMPLATE",
    "quack_gathered": "tilescout.spaces.libraries.quack_gathered:TEMPLATE",
    "cublaslt": "tilescout.spaces.cublaslt:TEMPLATE",
    "cublaslt_fast": "tilescout.spaces.cublaslt:FAST",
    "cutlass_operators": "tilescout.spaces.libraries.cutlass_operators:SM90",
    "cutlass_operators_sm100": "tilescout.spaces.libraries.cutlass_operators:SM100",
}
_UNLISTED = {"grouped_pair_sm90": "tilescout.spaces.grouped_pair_sm90:TEMPLATE"}  # ours, which nobody searches


def other_spaces() -> Registry:
    """The spaces that installed packages register, and those that they can't have."""
    return registered(SPACES, "space", _BUILT_IN)


def template_names() -> list[str]:
    """Names of the known spaces: ours, and those that installed packages register."""
    return [*_BUILT_IN, *other_spaces().usable]


def comes_with_package(template: KernelTemplate) -> bool:
    """Whether a template is one of ours: it has the same source in every process of this installation."""
    return (template.name in _BUILT_IN or template.name in _UNLISTED) and find_template(template.name) is template


def complement_of(template: KernelTemplate[P], problem: P, device: Device) -> KernelTemplate[P] | None:
    """The space to search too, as its kernels may be faster on a problem than those of a template; None if none may."""
    other = complement_on(template, device)
    return other if other is not None and other.complements(problem, device) else None


def complement_on(template: KernelTemplate[P], device: Device) -> KernelTemplate[P] | None:
    """The complement of a template, whatever the problem; None if it has none, or none that the device runs."""
    if not template.complement:
        return None
    other = cast("KernelTemplate[P]", find_template(template.complement))
    return other if device.arch in other.archs else None


Named = Mapping[str, KernelTemplate]
"""Templates that a person named, see `load_templates`: what is read from files may be of their spaces too."""

NONE_NAMED: Named = MappingProxyType({})


def load_template(text: str) -> KernelTemplate:
    """The template that a person asks for.

    ``module:attribute`` imports the module, which runs its code: pass what somebody typed or wrote into a program,
    never what was read from a file, a database or a server. For that there is `find_template`.

    Parameters
    ----------
    text
        One of `template_names`, or the class or object of any template as ``module:attribute``.

    Raises
    ------
    SpaceError
        If there is none, or it can't be loaded.
    """
    return _load(text) if ":" in text else find_template(text)


def load_templates(texts: Iterable[str]) -> Named:
    """The templates that a person asks for, each by the text that asks for it and by its own name.

    Raises
    ------
    SpaceError
        If one can't be loaded; see `load_template`.
    """
    check_several(texts, "spaces", SpaceError)
    loaded = {text: load_template(text) for text in texts}
    return {template.name: template for template in loaded.values()} | loaded


def find_template(name: str, named: Named = NONE_NAMED) -> KernelTemplate:
    """The template of this name, which may come from a file, a database or a server.

    Nothing is imported but tilescout and what installed packages register.

    Parameters
    ----------
    name
        One of `template_names`, or of `named`.
    named
        Templates that a person named; they come first.

    Raises
    ------
    SpaceError
        If there is none, or it can't be loaded.
    """
    if name in named:
        return named[name]
    if target := _BUILT_IN.get(name) or _UNLISTED.get(name):
        return _load(target)
    registered = other_spaces()
    if name in registered.refused:
        raise SpaceError(registered.refused[name])
    if ":" in name:
        raise SpaceError(f"space {short(name)} is code in a module of its own: it is not imported unless you name it")
    if name not in registered.usable:
        known = f"{alternatives(name, template_names())} (`tilescout spaces` lists all)"
        raise SpaceError(f"unknown space {name!r}, known are {known}, or any as module:Class")
    found = registered.usable[name]
    try:
        template = _load(found.target)
    except SpaceError as error:
        raise SpaceError(f"space {name!r} of {found.distribution} is broken: {error}") from error
    if template.name != name:
        raise SpaceError(f"space {name!r} of {found.distribution} calls itself {template.name!r}: the names must agree")
    return template


def given_template(given: "type[KernelTemplate[P]] | KernelTemplate[P]") -> KernelTemplate:
    """The template that a program passes, as a class or an object, for code that works with problems of every class.

    Raises
    ------
    SpaceError
        If it is none, can't be made, or declares what can't be.
    """
    kind = given if isinstance(given, type) else type(given)
    if isinstance(given, KernelTemplate) and kind.__module__.startswith("tilescout."):
        return of_any_problem(given)  # one that is made of a recorded table has no workload
    return _checked(given, f"{kind.__module__}:{kind.__qualname__}")


def _load(target: str) -> KernelTemplate:
    """The template of a class or object given as ``module:attribute``."""
    return _checked(load(target, SpaceError), target)


def _checked(found: object, where: str) -> KernelTemplate:
    """The template that a class or an object is, which stands at `where`."""
    try:
        template = found() if isinstance(found, type) else found
    except (Exception, SystemExit) as error:  # whatever code of others raises when it is made
        raise SpaceError(f"can't load {where!r}: {described(error)}") from error
    if not isinstance(template, KernelTemplate):
        raise SpaceError(
            f"{where!r} is no KernelTemplate, but a {type(template).__name__}: give the name of a space, or a template "
            "as its class or an object"
        )
    check_declarations(template, where)
    return template

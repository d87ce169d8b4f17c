"""Tuned kernels in models that ``torch.compile`` compiles.

Nothing is benchmarked when a model is compiled, and products that no bundle decides stay as they were. For everything
that is compiled in a block, or by an object that ``torch.compile`` made in it::

    with tilescout.search.export.use("bundle/"):
        model = torch.compile(model)

For those who compose passes themselves::

    tuned = tilescout.search.export.graph_pass("bundle/")
    model = torch.compile(model, options={"post_grad_custom_post_pass": tuned})

A process that runs code which another one compiled, such as an AOTInductor package, calls `load` first.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tilescout.search.export.bundle import Bundle, read_bundle
from tilescout.search.export.graph_nodes import Report
from tilescout.search.export.graph_rewrite import replace_products
from tilescout.search.export.loaded_kernels import register
from tilescout.search.export.torch_hooks import (
    CONFIG,
    OPTION,
    changed_config,
    changed_options,
    check_version,
    newest_pass_class,
)
from tilescout.search.export.torch_operator import define, define_grouped
from tilescout.spaces.templates import load_templates

if TYPE_CHECKING:
    from torch.fx import Graph

    Passes = Callable[..., None] | Sequence[Callable[..., None]] | None

# The files of this package that decide what a graph becomes: a change in them must not find old compiled code.
_SOURCES = (
    "bundle.py",
    "decisions.py",
    "epilogues.py",
    "generated_calls.py",
    "graph_nodes.py",
    "graph_rewrite.py",
    "grouped/clearing.py",
    "grouped/dispatch.py",
    "grouped/kernels.py",
    "grouped/rewrite.py",
    "inductor.py",
    "inductor_lowering.py",
    "loaded_kernels.py",
    "ranges.py",
    "siblings/heads.py",
    "siblings/rewrite.py",
    "torch_hooks.py",
    "torch_operator.py",
)


def load(path: str | Path, spaces: Sequence[str] = ()) -> Bundle:
    """Check a bundle, load its kernels, and define the operator that compiled code calls.

    Parameters
    ----------
    path
        The bundle.
    spaces
        Spaces of your own, as ``module:Class``, whose kernels it may hold: their modules are imported.

    Raises
    ------
    BundleError
        If the bundle is damaged, foreign or newer; nothing of it is used then.
    DeviceError
        If it is for another GPU than the current one.
    SpaceError
        If a space can't be loaded.
    """
    named = load_templates(spaces)
    bundle = read_bundle(Path(path), named)
    define()
    define_grouped()
    register(bundle, named)
    return bundle


class ReplacingPass(ABC):
    """A custom graph pass of TorchInductor that puts kernels into graphs.

    It is registered as a ``torch._inductor.custom_graph_pass.CustomGraphPass``.

    Parameters
    ----------
    before
        A pass to run first, or several: older releases of TorchInductor take one.

    Attributes
    ----------
    report
        The products that the pass met, over all graphs. Graphs from TorchInductor's cache don't pass here.
    sets
        The options of TorchInductor that it may set for the graph at hand and those that are compiled with it.
        Afterwards they are what they were.
    """

    sets: tuple[str, ...] = ()

    def __init__(self, before: "Passes" = None) -> None:
        newest_pass_class().register(ReplacingPass)
        self.report = Report()
        self.before = () if before is None else tuple(before) if isinstance(before, list | tuple) else (before,)

    @abstractmethod
    def behind(self, before: "Passes") -> Self:
        """The same pass, with others that run first."""

    @abstractmethod
    def rewrite(self, graph: "Graph") -> None:
        """Put kernels into a graph that the passes before have seen."""

    @abstractmethod
    def key(self) -> str:
        """A name of what this pass alone makes of graphs; empty if it has none now."""

    def __call__(self, graph: "Graph", is_inference: bool = False) -> None:
        """Rewrite a graph in place; torch 2.13 and newer say whether it is one of inference."""
        for earlier in self.before:
            knows = newest_pass_class().__name__ != "CustomGraphPass" and isinstance(earlier, newest_pass_class())
            earlier(graph, is_inference=is_inference) if knows else earlier(graph)
        self.rewrite(graph)

    def uuid(self) -> bytes | None:
        """A key of what compiled code depends on: kernels, this package, earlier passes.

        None if one has no key: Inductor then keeps nothing of this in its cache.
        """
        own, earlier = self.key(), []
        if not own:
            return None
        for one in self.before:
            uuid: Callable[[], Any] | None = getattr(one, "uuid", None)
            named = uuid() if uuid is not None else None
            if not named:
                return None
            earlier.append(repr(named).encode())
        return hashlib.sha256(b"\0".join((own.encode(), _source_hash(), *earlier))).digest()


class GraphPass(ReplacingPass):
    """The pass that puts the kernels of a bundle into graphs.

    Parameters
    ----------
    bundle
        A loaded bundle.
    before
        As of `ReplacingPass`.
    """

    def __init__(self, bundle: Bundle, before: "Passes" = None) -> None:
        super().__init__(before)
        self.bundle = bundle

    def behind(self, before: "Passes") -> Self:
        return type(self)(self.bundle, before)

    def rewrite(self, graph: "Graph") -> None:
        replace_products(graph, self.bundle, self.report)

    def key(self) -> str:
        return self.bundle.digest


@cache
def _source_hash() -> bytes:
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(name.encode() + b"\0" + files("tilescout.search.export").joinpath(name).read_bytes() + b"\0")
    return digest.digest()


def graph_pass(path: str | Path, before: "Passes" = None, spaces: Sequence[str] = ()) -> GraphPass:
    """The pass for the option ``post_grad_custom_post_pass``.

    Parameters
    ----------
    path
        The bundle.
    before
        A pass of yours that runs first, or several.
    spaces
        See `load`.

    Raises
    ------
    BundleError, DeviceError, SpaceError
        As `load` does.
    ExportError
        If this torch was not tested, or lacks something that is needed.
    """
    check_version()
    return GraphPass(load(path, spaces), before)


@contextmanager
def use(path: str | Path, spaces: Sequence[str] = ()) -> "Iterator[GraphPass]":
    """Let what is compiled in this block, or by objects that ``torch.compile`` makes in it, use a bundle.

    ``torch.compile`` compiles when its object is first called, which may be after the block; the object therefore
    carries the pass along. A pass that was set before runs first.

    Parameters
    ----------
    path, spaces
        See `load`.

    Raises
    ------
    BundleError, DeviceError, SpaceError
        As `load` does.
    ExportError
        If this torch was not tested, or lacks something that is needed.
    """
    tuned = graph_pass(path, pass_in_force(), spaces)
    with in_force(tuned):
        yield tuned


def pass_in_force() -> "Passes":
    """The pass that is set as TorchInductor's last now."""
    found: Passes = getattr(CONFIG.find(), OPTION)
    return found


@contextmanager
def in_force(tuned: ReplacingPass) -> Iterator[None]:
    """Have a pass run for what is compiled in this block, or by objects that ``torch.compile`` makes in it.

    Raises
    ------
    ExportError
        If this torch was not tested, or lacks something that is needed.
    """
    restored = {name: getattr(CONFIG.find(), name) for name in tuned.sets}

    def carry(options: dict[str, Any]) -> None:
        own = options.get(OPTION)
        options[OPTION] = tuned if own is None else tuned.behind(own)
        for name, value in restored.items():
            options.setdefault(name, value)

    with changed_options(carry), changed_config({OPTION: tuned, **restored}):
        yield

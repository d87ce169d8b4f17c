"""Every private part of torch that the export uses, in one place, for the versions that it was tested on.

torch promises to keep none of them. Each is a `Hook`: it is looked up when it is used, and an error says so where the
version was not tested or the part is missing. Patches of torch hold for the thread, or task, that made them, and are
undone when their block ends, however it ends.

A process that only runs AOTInductor packages calls `load`, which uses no private part. The nodes and the code writer of
TorchInductor have attributes that are private too; where one is missing `inductor_lowering` warns, and calls go through
torch's dispatcher.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from threading import Lock, RLock
from typing import Any

from tilescout.spaces.errors import ExportError

OLDEST = "2.11"
TESTED = f">={OLDEST},<2.16"
"""The versions of torch that this was tested on; any other is refused."""

THREADS_APART = ">=2.12"
"""The versions in which TorchInductor's configuration is that of a thread; in older ones all threads share it."""

OPTION = "post_grad_custom_post_pass"
"""The option of ``torch._inductor.config`` that holds the passes that run last on a graph."""

DEPENDENT_LAUNCH = "triton.enable_pdl"
"""The option by which TorchInductor's own kernels let the next kernel begin before they end."""

CUDA_GRAPHS = "triton.cudagraphs"
"""The option by which TorchInductor records CUDA graphs, and replays them."""


@dataclass(frozen=True)
class Hook:
    """A private part of torch.

    Attributes
    ----------
    module
        Where it is.
    name
        Its name there; empty for the module itself.
    purpose
        What the export does with it.
    since
        The first version that has it as it is used here.
    """

    module: str
    name: str
    purpose: str
    since: str = OLDEST

    def find(self) -> Any:
        """The part itself.

        Raises
        ------
        ExportError
            If this torch was not tested, or does not have it.
        """
        check_version()
        if not _is_among(f">={self.since}"):
            raise ExportError(f"torch {_version()} can't {self.purpose}: use {self.since} or newer")
        try:
            found = import_module(self.module)
            return getattr(found, self.name) if self.name else found
        except (ImportError, AttributeError) as error:
            raise ExportError(
                f"torch {_version()} has no {self}, by which the export would {self.purpose}: install a release of "
                f"torch {TESTED}, or a tilescout that knows this one"
            ) from error

    def __str__(self) -> str:
        return f"{self.module}.{self.name}".rstrip(".")


_REPLACE, _WRITE, _RANK = "replace products in graphs", "write calls into generated code", "rank NVGEMM candidates"
_KEYED, _WITH_UUID = "tell code of one ranker from that of another in TorchInductor's cache", "2.13"

COMPILE_WRAPPER = Hook("torch", "_TorchCompileInductorWrapper", "let compiled objects carry a pass along")
CONFIG = Hook("torch._inductor.config", "", "set passes and choices")
CUSTOM_PASSES = Hook("torch._inductor.custom_graph_pass", "", _REPLACE)
CUSTOM_GRAPH_PASS = Hook("torch._inductor.custom_graph_pass", "CustomGraphPass", _REPLACE)
OPERATOR = Hook("torch._ops", "OpOverload", _REPLACE)
DETECT_FAKE_MODE = Hook("torch._guards", "detect_fake_mode", _REPLACE)
DECOMPOSITIONS = Hook("torch._inductor.decomposition", "select_decomp_table", "recognise activations")
MAKE_FX = Hook("torch.fx.experimental.proxy_tensor", "make_fx", "recognise activations")
NO_MODES = Hook("torch.utils._python_dispatch", "_disable_current_modes", "recognise activations")
KNOWN_TRUE = Hook("torch.fx.experimental.symbolic_shapes", "statically_known_true", "compare sizes in graphs")
SYMBOLIC_SHAPES = Hook("torch.fx.experimental.symbolic_shapes", "", "know the size that a graph was traced with")
REGISTER_LOWERING = Hook("torch._inductor.lowering", "register_lowering", _WRITE)
FALLBACK_HANDLER = Hook("torch._inductor.lowering", "fallback_handler", _WRITE)
IR = Hook("torch._inductor.ir", "", _WRITE)
VIRTUALIZED = Hook("torch._inductor.virtualized", "V", _WRITE)
BORROW_STORAGE = Hook("torch._C", "_construct_storage_from_data_pointer", "keep a view of a weight without the weight")
REINTERPRET = Hook("torch._C._dynamo.guards", "_reinterpret_tensor", "make views as quickly as generated code does")
JOB_STORE = Hook("torch.distributed.distributed_c10d", "_get_default_store", "agree with the other ranks of a job")
CHOICES = Hook("torch._inductor.choices", "", _KEYED, _WITH_UUID)
SELECT_ALGORITHM = Hook("torch._inductor.select_algorithm", "", _RANK)
NVGEMM_CALLER = Hook("torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm", "NVUniversalGemmCaller", _RANK)

HOOKS = tuple(value for value in list(globals().values()) if isinstance(value, Hook))
"""All of them."""


def check_version() -> None:
    """Refuse a torch that the export was not tested on.

    Raises
    ------
    ExportError
        With the versions that were tested.
    """
    if not _is_among(TESTED):
        raise ExportError(
            f"torch {_version()} is installed, and the export was tested with {TESTED}: install one of these, or a "
            "tilescout that was tested with this one"
        )


def newest_pass_class() -> Any:
    """The class that passes belong to, the most informed that this torch has."""
    newest = getattr(CUSTOM_PASSES.find(), "CustomInferenceAwareGraphPass", None)
    return newest if newest is not None else CUSTOM_GRAPH_PASS.find()


def size_hint(size: Any) -> int | None:
    """The value that a symbolic size had when its graph was traced; None if it had none."""
    shapes = SYMBOLIC_SHAPES.find()
    ask = getattr(shapes, "optimization_hint", None) or getattr(shapes, "hint_int", None)  # of 2.13, of those before
    if ask is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # 2.11 says that the old name will go
        hint = int(ask(size, fallback=0))
    return hint if hint > 0 else None


def argument_names(operator: Any) -> list[str]:
    """The names of an operator's arguments, in their order."""
    return [argument.name for argument in operator._schema.arguments]


class Patch:
    """The replacement of one attribute of an object, in force while any block needs it.

    Blocks may nest, and threads may enter and leave theirs in any order: the first installs it, the last undoes it.

    Parameters
    ----------
    hook
        The object.
    attribute
        Its attribute.
    replace
        Gives the new value from the old one.
    """

    def __init__(self, hook: Hook, attribute: str, replace: Callable[[Any], Any]) -> None:
        self._hook, self._attribute, self._replace = hook, attribute, replace
        self._lock, self._depth = Lock(), 0
        self._old = self._new = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Keep the replacement in force for a block.

        Raises
        ------
        ExportError
            As `Hook.find` does; nothing is patched then.
        """
        owner = self._hook.find()
        with self._lock:
            if self._depth == 0:
                self._old = getattr(owner, self._attribute)
                self._new = self._replace(self._old)
                setattr(owner, self._attribute, self._new)
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                # If somebody else has patched it since, theirs stays: it calls ours, which then changes nothing.
                if self._depth == 0 and getattr(owner, self._attribute) is self._new:
                    setattr(owner, self._attribute, self._old)


Change = Callable[[dict[str, Any]], None]
"""Amends the options of an object that ``torch.compile`` made."""

_changes: ContextVar[tuple[Change, ...]] = ContextVar("changes of compile options", default=())


def _with_changes(plain: Callable[..., None]) -> Callable[..., None]:
    @wraps(plain)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        changes = _changes.get()
        _changes.set(())  # or they would be made twice where another patch has put this one below itself
        try:
            plain(self, *args, **kwargs)
        finally:
            _changes.set(changes)
        for change in changes:
            change(self.config)

    return made


_WRAPPER = Patch(COMPILE_WRAPPER, "__init__", _with_changes)


@contextmanager
def changed_options(change: Change) -> Iterator[None]:
    """Amend the options of every object that ``torch.compile`` makes in this block, on this thread.

    Changes of blocks within each other are made in turn, that of the outermost first.

    Raises
    ------
    ExportError
        As `Hook.find` does.
    """
    outer = _changes.get()
    with _WRAPPER.applied():
        _changes.set((*outer, change))
        try:
            yield
        finally:
            _changes.set(outer)


_shared_config = RLock()


@contextmanager
def changed_config(options: Mapping[str, Any]) -> Iterator[None]:
    """Set options of TorchInductor for what is compiled in this block, on this thread.

    Raises
    ------
    ExportError
        As `Hook.find` does, and if threads share a configuration and another one is in such a block: it would compile
        with these options, and leave its own behind.
    """
    config = CONFIG.find()
    with ExitStack() as block:
        if not _is_among(THREADS_APART):
            if not _shared_config.acquire(blocking=False):
                raise ExportError(
                    f"another thread is compiling with a bundle, and in torch {_version()} all threads share one "
                    f"configuration: compile on one thread, or install torch {THREADS_APART}"
                )
            block.callback(_shared_config.release)
        block.enter_context(config.patch(dict(options)))
        yield


_preprocessing: ContextVar[object] = ContextVar("whose candidates are preprocessed", default=None)


@contextmanager
def preprocessed_choices(preprocess: Callable[[list[Any]], list[Any]], uuid: str) -> Iterator[None]:
    """Preprocess the candidates of every product that is compiled in this block, on this thread.

    Parameters
    ----------
    preprocess
        Takes the candidates of a product, gives those that are timed.
    uuid
        Names what `preprocess` does, in the key of TorchInductor's cache.

    Raises
    ------
    ExportError
        As `Hook.find` does, and if a choices handler is set already.
    """
    choices, config, selectors = CHOICES.find(), CONFIG.find(), SELECT_ALGORITHM.find()
    if config.inductor_choices_class is not None:
        raise ExportError("torch._inductor.config.inductor_choices_class is set already: one at a time")

    class Named(choices.InductorChoices):  # type: ignore[misc, name-defined]
        def uuid(self) -> str:
            return uuid

    this = object()

    def only_here(candidates: list[Any]) -> list[Any]:
        return preprocess(candidates) if _preprocessing.get() is this else candidates

    # Choices that others registered (torch 2.15) stay in force; they are in the key too.
    make = getattr(choices, "create_inductor_choices", lambda factory: factory())
    selector = selectors.get_algorithm_selector_cache()
    with ExitStack() as block:
        # The ranker trims: it must see all of them.
        block.enter_context(changed_config({"nvgemm_max_profiling_configs": None, "inductor_choices_class": Named}))
        block.enter_context(VIRTUALIZED.find().set_choices_handler(make(Named)))
        selector.add_preprocessing_fn(only_here)
        _preprocessing.set(this)
        try:
            yield
        finally:
            _preprocessing.set(None)
            with suppress(ValueError):  # somebody has cleared the list
                selector.preprocessing_fns.remove(only_here)


def _version() -> str:
    import torch

    return str(torch.__version__)


def _is_among(versions: str) -> bool:
    return _contains(versions, _version())


@cache
def _contains(versions: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    return SpecifierSet(versions).contains(Version(version).base_version)

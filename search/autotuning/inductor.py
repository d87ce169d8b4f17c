"""One line: products that no evidence knows are tuned while ``torch.compile`` compiles.

::

    with tilescout.search.autotune() as tuned:
        model = torch.compile(model)
    model(x)
    print(tuned)

or ``torch.compile(model, backend="tilescout")``.
"""

import atexit
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.autotuning.summary import Summary
from tilescout.search.autotuning.tuner import Tuner, TunerOptions
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.gpus import driver_version
from tilescout.search.engines.library_candidates import library_of
from tilescout.search.export import torch_hooks
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice
from tilescout.search.export.graph_rewrite import Sighting, find_products, replace_products
from tilescout.search.export.inductor import ReplacingPass, in_force, pass_in_force
from tilescout.search.export.loaded_kernels import look_in, register
from tilescout.search.export.siblings.heads import read_in_place
from tilescout.search.export.siblings.rewrite import join_products
from tilescout.search.export.torch_operator import define, define_together
from tilescout.search.measure.protocol import DEFAULT_OBJECTIVE, ProtocolOptions, protocol_of
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError, ExportError, SpaceError, TilescoutError, one_line
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.trust import named_folder

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule

    from tilescout.search.engines.engine import Engine
    from tilescout.search.export.inductor import Passes

_LOG = logging.getLogger(__name__)

SPACE = "gemm_sm90"
STORE = Path("~/.cache/tilescout/autotune")
"""The evidence store where none is named."""

_KERNEL_SECONDS = 10.0
"""For one kernel to be verified and timed: a right one takes some 0.05 s, and a compilation should not wait longer."""


_LEFT = "the model is left to TorchInductor alone"


class TuningPass(ReplacingPass):
    """A graph pass of TorchInductor that first has the products of each graph decided.

    Parameters
    ----------
    tuner
        Decides.
    before
        A pass to run first, or several.
    early
        Makes who decides in graphs whose kernels are to begin before the last one ends, once it is needed, if that is
        another one. It has the same options and the same account.
    """

    sets = (torch_hooks.DEPENDENT_LAUNCH,)

    def __init__(self, tuner: Tuner, before: "Passes" = None, early: Callable[[], Tuner] | None = None) -> None:
        super().__init__(before)
        self.tuner, self.early = tuner, early or (lambda: tuner)

    def behind(self, before: "Passes") -> Self:
        return type(self)(self.tuner, before, self.early)

    def rewrite(self, graph: "Graph") -> None:
        before = set(graph.nodes)
        try:
            self._rewrite(graph)
        except Exception as error:  # of a model that nobody foresaw, which compiles without us
            known = isinstance(error, TilescoutError)
            reason = one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"
            _LOG.warning("a graph was left to the library, in whole or in part: %s", reason, exc_info=not known)
            self.tuner.summary.failed.append(reason)
            for node in reversed(list(graph.nodes)):  # what was to be put into the place of others, half made
                if node not in before and not node.users:
                    graph.erase_node(node)

    def _rewrite(self, graph: "Graph") -> None:
        if self.tuner.options.keys_in_place:
            self.tuner.summary.in_place += read_in_place(graph)
        products, others = find_products(graph, self.tuner.device.arch)
        self.tuner.summary.others.update(others)
        early = self._launches_early()
        bundle = self._decide(products, early) if products else None
        if bundle is not None:
            register(bundle)
            replace_products(graph, bundle, self.report)
            if early and any(bundle.choice(problem) is Choice.OURS for each in products for problem in each.problems):
                setattr(torch_hooks.CONFIG.find(), torch_hooks.DEPENDENT_LAUNCH, True)
                self.tuner.summary.launched_early += 1
        if self.tuner.options.side_by_side:
            join_products(graph)

    def _decide(self, products: Sequence[Sighting], early: bool) -> Bundle | None:
        """The bundle that holds what is decided about the products of a graph; None if nothing is."""
        try:
            tuner = self.early() if early else self.tuner
        except (TilescoutError, OSError) as error:  # there is no store for such graphs, and none can be made
            self.tuner.leave(products, one_line(error))
            return None
        return tuner.decide(products)

    def _launches_early(self) -> bool:
        """Whether TorchInductor's kernels are to let ours begin before they end, in the graph at hand."""
        wanted = self.tuner.options.dependent_launch
        return bool(getattr(torch_hooks.CONFIG.find(), torch_hooks.CUDA_GRAPHS)) if wanted is None else wanted

    def key(self) -> str:
        options = self.tuner.options
        try:
            key = (self.early() if self._launches_early() else self.tuner).key()
        except (TilescoutError, OSError):  # a store that can't be read: the pass itself says so, where it needs it
            return ""
        key += " side by side" * options.side_by_side + " keys in place" * options.keys_in_place
        return f"{key} dependent launch: {options.dependent_launch}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # TorchInductor copies its configuration with all that is in it, and tuners are no copies


@contextmanager
def autotune(
    seconds: float = TunerOptions.seconds, store: Path | str = STORE, options: TunerOptions | None = None
) -> Iterator[Summary]:
    """Tune the matrix products of what is compiled in this block, or by objects that ``torch.compile`` makes in it.

    A product that the evidence store knows runs what was decided there. Any other is tuned while its graph is compiled:
    a few configurations are compiled, verified, timed and raced against the library, in processes beside this one, and
    so are the library's own algorithms. The fastest runs where it is proven faster than what the library chooses; what
    is not decided in time runs that.

    Where no GPU is that the kernels are for, a warning says so, and everything compiles as it would without this.

    Parameters
    ----------
    seconds
        For all graphs together, by the clock on the wall; about. 0 tunes nothing, and uses what the store knows;
        ``math.inf`` has all decided.
    store
        Folder of the evidence store; made where it is missing. It is refused if others could have filled it.
    options
        All else that can be set; its seconds are not used.

    Yields
    ------
    Summary
        What was replaced, why, and what it gains: ``print`` it once the model has run.

    Raises
    ------
    ExportError
        If this torch was not tested, or lacks something that is needed, or the budget is none.
    StoreError
        If the store can't be made, others could have filled it, or its name is empty, which would mean the working
        directory.
    """
    torch_hooks.check_version()
    check_kinds(ExportError, options=(options, TunerOptions | None))
    options = replace(options or TunerOptions(), seconds=seconds)
    root = named_folder(store)
    reason = why_inactive()
    if reason:
        _LOG.warning("nothing is tuned: %s", reason)
        yield Summary(inactive=reason)
        return
    tuning = tuning_pass(root, options).behind(pass_in_force())
    with in_force(tuning):
        yield tuning.tuner.summary


def backend(
    graph: "GraphModule", inputs: "Sequence[Any]", *, mode: str | None = None, options: dict[str, Any] | None = None
) -> "Callable[..., Any]":
    """The backend ``tilescout`` of ``torch.compile``: TorchInductor, with `autotune` of all defaults.

    The logger ``tilescout`` tells at level INFO what was replaced.

    Parameters
    ----------
    graph, inputs
        What Dynamo gives a backend.
    mode, options
        Those of TorchInductor.
    """
    compiler = torch_hooks.COMPILE_WRAPPER.find()
    if reason := why_inactive():
        _warn_once(reason)
        found: Callable[..., Any] = compiler(mode, options, dynamic=None)(graph, inputs)
        return found
    with in_force(_shared_pass().behind(pass_in_force())):
        found = compiler(mode, options, dynamic=None)(graph, inputs)
    return found


def why_inactive() -> str:
    """Why nothing can be tuned in this process; empty if something can."""
    import torch

    if not torch.cuda.is_available():
        return f"no GPU is there; {_LEFT}"
    product = torch.cuda.get_device_name()
    try:
        device = find_device(product)
    except DeviceError as error:
        return f"{one_line(error)}; {_LEFT}"
    archs = find_template(SPACE).archs
    if device.arch not in archs:
        return (
            f"{SPACE} is for {', '.join(archs)}, {product} is {device.arch}; the model is left to TorchInductor alone"
        )
    return ""


def tuning_pass(root: Path, options: TunerOptions) -> TuningPass:
    """The pass of the current GPU.

    Whether TorchInductor records a CUDA graph is known when a graph is compiled, so that there may be two tuners.

    Raises
    ------
    DeviceError, StoreError
        As of `make_tuner`.
    """
    tuner = make_tuner(root, options, overlapped=options.dependent_launch is True)
    if options.dependent_launch is not None:
        return TuningPass(tuner)

    made, making = list[Tuner](), Lock()

    def early() -> Tuner:
        with making:  # threads may compile at the same time
            if not made:
                made.append(make_tuner(root, options, overlapped=True, beside=tuner))
            return made[0]

    return TuningPass(tuner, early=early)


def make_tuner(root: Path, options: TunerOptions, overlapped: bool = False, beside: Tuner | None = None) -> Tuner:
    """The tuner of the current GPU.

    Parameters
    ----------
    root
        Folder of the evidence store.
    options
        All that can be set.
    overlapped
        Whether it decides by times between kernels that begin before the last one ends and let the next begin before
        they end, as `TunerOptions.dependent_launch` asks for; else by times between kernels as torch launches them.
    beside
        Another tuner, with which it shares the budget and the account. Of both, one has compilers and a measuring
        process at a time.

    Raises
    ------
    DeviceError
        If it is unknown.
    StoreError
        If the store can't be made, or others could have filled it.
    """
    import torch

    root, template = root.expanduser().absolute(), find_template(SPACE)
    product, gpu = torch.cuda.get_device_name(), f"cuda:{torch.cuda.current_device()}"
    setting = {
        "gpu": product,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "library": _library_of(template),
        "driver": str(driver_version()),
        "compiler": version("nvidia-cutlass-dsl"),
        "space": template.name,
        "source": template.source_hash,
        "complement": find_template(template.complement).source_hash if template.complement else "",
        "protocol": protocol_of(DEFAULT_OBJECTIVE)[0],
    }
    turns = setting
    if overlapped:
        setting = {**setting, "neighbours": "overlapped"}
    protocol = ProtocolOptions(overlapped=overlapped)
    artifacts = root / "artifacts"
    store = EvidenceStore(root, setting, template, turns)  # whatever runs around them, two must not measure at once

    def open_engine() -> "Engine":
        from tilescout.search.engines.local import LocalEngine  # who only looks up need not wait for it

        live = LiveOptions(CompileOptions(standby=options.standby), protocol, _KERNEL_SECONDS)
        return LocalEngine(template, artifacts, (gpu,), options=live)

    return started(Tuner(template, find_device(product), store, artifacts, open_engine, options, beside))


def _library_of(template: KernelTemplate) -> str:
    """The version of the library whose kernels ours are compared with, which may be the answer; empty if unknown.

    It is a package of its own: the same torch may run another one.
    """
    own = library_of(template)
    if own is None or not own.loader:
        return ""
    try:
        return load_loader(own.loader).version
    except (DeviceError, SpaceError):
        return ""


def started(tuner: Tuner) -> Tuner:
    """A tuner whose bundles are found by compiled code, and that is closed when the process ends."""
    define()
    define_together()
    look_in(tuner.store.bundles)
    held = weakref.ref(tuner)

    def close() -> None:
        if (left := held()) is not None:
            left.close()

    atexit.register(close)
    return tuner


@cache
def _shared_pass() -> TuningPass:
    return tuning_pass(STORE, TunerOptions())


@cache
def _warn_once(reason: str) -> None:
    _LOG.warning("nothing is tuned: %s", reason)

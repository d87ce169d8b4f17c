"""The matrix products of a model, as torch.compile sees them, without a GPU and without memory for its weights."""

import importlib
import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tilescout.experiments.commands.options import find_modules_here
from tilescout.search.export.torch_hooks import argument_names
from tilescout.spaces.errors import ProblemError, TilescoutError, one_line
from tilescout.spaces.experts import FORMS
from tilescout.spaces.faults import described
from tilescout.spaces.gated import PLACES
from tilescout.spaces.gemm import INPUTS, OUTPUTS, GemmProblem
from tilescout.spaces.grouped import DRAWS, GroupedProblem
from tilescout.spaces.plugins import advice
from tilescout.spaces.problems import DTYPES, Problem
from tilescout.spaces.routing import Routing
from tilescout.spaces.scaled import EPILOGUE as SCALED
from tilescout.spaces.suite import Entry

if TYPE_CHECKING:
    import torch
    from torch import fx


_GROUPED = ("aten._grouped_mm", "transformers.grouped_mm_fallback")
"""Operators of grouped products; transformers takes its own where it can't tell the device."""


@dataclass(frozen=True)
class Product:
    """One matrix product in a model.

    Attributes
    ----------
    m, n, k, batch
        Its sizes.
    dtype
        The element type, as torch calls it.
    layout
        Along which dimension each operand is contiguous, as in problems.
    label
        The module that computes it; "backward" for one of a gradient.
    grouped
        Whether its rows are those of as many experts as ``batch`` says.
    form
        The form of its problem: ``swiglu`` where SwiGLU stands behind it, with the gate before up, ``scaled`` where its
        rows are multiplied by a number each, otherwise empty.
    out, fast
        Of an 8-bit product, which has a factor: its result's type, as torch calls it, and whether its sums may have
        fewer bits.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    layout: str
    label: str
    grouped: bool = False
    form: str = ""
    out: str = ""
    fast: bool = False


@dataclass(frozen=True)
class Experts:
    """How experts' grouped products become problems.

    Attributes
    ----------
    routings
        How their tokens are routed: each product is a problem for each.
    forms
        The forms that are recorded, as of `Product`; without any all products are, as products alone. Problems of
        several forms have theirs as phase.
    draws
        How often the routing of a problem is drawn.
    """

    routings: Sequence[Routing]
    forms: Sequence[str] = ()
    draws: int = DRAWS


@dataclass(frozen=True)
class Recording:
    """The matrix products of calls of a model.

    Attributes
    ----------
    entries
        The problems, with the modules that compute them first and how often they are computed.
    skipped
        How often each product was seen that can't be a problem, and why.
    graphs
        How many graphs torch.compile made of a call, at most: more than one means that something broke it.
    """

    entries: tuple[Entry, ...]
    skipped: Mapping[str, int]
    graphs: int


def load_factory(text: str, of_tokens: bool = False) -> Callable[..., Any]:
    """The function that ``MODULE:FUNCTION`` names; modules of the working directory are found too.

    It takes no argument, or one with `of_tokens`: how many tokens there are in the call of the model.

    Raises
    ------
    ProblemError
        If there is none.
    """
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise ProblemError(f"malformed factory {text!r}: expected MODULE:FUNCTION")
    find_modules_here(text)
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except Exception as error:  # code of others
        raise ProblemError(f"can't import {text}: {described(error)}{advice(text, error)}") from error
    try:
        inspect.signature(factory).bind(*([1] if of_tokens else []))
    except (TypeError, ValueError) as error:
        how = "with a number of tokens" if of_tokens else "without arguments"
        raise ProblemError(f"{text} can't be called {how}: {one_line(error)}") from error
    return factory


def record(
    factory: Callable[..., Any],
    dtype: str | None,
    training: bool,
    experts: Experts | None = None,
    tokens: Sequence[int] = (),
) -> Recording:
    """The matrix products of one call of a model, or of a call for each of some numbers of tokens.

    Everything happens on torch's meta device: shapes are computed, numbers are not. Attention that is one operator
    (``scaled_dot_product_attention``) is one kernel on a GPU, so the products in it do not count.

    Parameters
    ----------
    factory
        Returns the model and the arguments of the call: ``(module, (argument, ...))``.
    dtype
        The type that the model and its inputs are converted to, as in problems; None leaves them.
    training
        Whether the products of the gradients are recorded too.
    experts
        Experts' grouped products are recorded so, and no others. None records the others.
    tokens
        What the factory is called with, one after the other; without any it is called once, without an argument.

    Raises
    ------
    ProblemError
        If the factory returns something else, or a call fails.
    """
    calls: list[Callable[[], Any]] = [partial(factory, count) for count in tokens]
    watches = []
    for call in calls or [factory]:
        watches.append(_Watch())
        _call(call, dtype, training, watches[-1])
    products = [product for watch in watches for product in watch.products]
    return _summarise(products, max(watch.graphs for watch in watches), experts)


def _call(factory: Callable[[], Any], dtype: str | None, training: bool, watch: "_Watch") -> None:
    """Call a model once, and have the products noted; the errors are those of `record`."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    wanted = getattr(torch, DTYPES[dtype].torch_name) if dtype is not None else None

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to("meta", wanted if value.is_floating_point() else None)

    with torch.device("meta"):
        made = factory()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise ProblemError(f"the factory returned {type(made).__name__}: expected (module, (argument, ...))")
    model, arguments = made[0].to(device="meta", dtype=wanted), tree_map(move, made[1])
    model.train(training)
    complaints = logging.getLogger("torch._subclasses.fake_tensor")  # which logs the traceback of what it raises
    complaints.disabled = True
    torch._dynamo.reset()  # or a graph that was compiled for an earlier recording would not be seen
    try:
        with torch.set_grad_enabled(training):
            output = torch.compile(model, backend=watch.backend, dynamic=False)(*arguments)
            if training:
                loss = sum(leaf.float().sum() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
                with watch.recording("backward"):
                    loss.backward()  # type: ignore[union-attr]
    except TilescoutError:
        raise
    except Exception as error:
        raise ProblemError(f"the call failed: {described(_first(error))}") from error
    finally:
        torch._dynamo.reset()
        complaints.disabled = False


def _first(error: BaseException) -> BaseException:
    """The error of a model, which torch.compile wraps in its own."""
    while type(error).__module__.startswith("torch._dynamo") and (before := error.__cause__ or error.__context__):
        error = before
    return error


class _Watch:
    """Notes the matrix products of the graphs that torch.compile hands it."""

    def __init__(self) -> None:
        self.products: list[Product] = []
        self.graphs = 0
        self._forms = _Forms(self.products)

    def backend(self, graph: "fx.GraphModule", inputs: list[Any]) -> Callable[..., Any]:
        """A backend for torch.compile that runs the graph node by node."""
        import torch
        from torch.fx import Interpreter

        self.graphs += 1
        watch = self
        attention = torch.nn.functional.scaled_dot_product_attention

        class Runner(Interpreter):
            def run_node(self, node: "fx.Node") -> Any:
                if node.target is attention:
                    args, kwargs = self.fetch_args_kwargs_from_env(node)
                    return _stand_in(*args, **kwargs)
                with watch.recording(_module_of(node)):
                    return super().run_node(node)

        def run(*given: Any) -> Any:
            return Runner(graph).run(*given)

        return run

    @contextmanager
    def recording(self, label: str) -> Iterator[None]:
        """Note what is computed in the context as computed by `label`."""
        from torch.utils._python_dispatch import TorchDispatchMode

        products, forms = self.products, self._forms

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                found = _product(function, args, kwargs or {}, label)
                if found is not None:
                    products.append(found)
                result = function(*args, **(kwargs or {}))
                forms.see(function, args, result, found)
                return result

        with Mode():  # type: ignore[no-untyped-call]
            yield


class _Forms:
    """Follows what becomes of grouped products, and notes in their list what stands behind them.

    Parameters
    ----------
    products
        The list; the last one is that of the call that is seen.
    """

    def __init__(self, products: list[Product]) -> None:
        self._products = products
        # By the identity of a tensor, which is kept so that no other has it: its part, and the place of the product.
        self._parts: dict[int, tuple[torch.Tensor, str, int]] = {}

    def see(self, function: Any, args: Any, result: Any, product: Product | None) -> None:
        """Note what an operator made of its arguments; `product` is the grouped or other product that it is."""
        import torch

        aten, packet = torch.ops.aten, getattr(function, "overloadpacket", None)
        if product is not None and product.grouped:
            self._mark(result, "product", len(self._products) - 1)
        elif packet is aten.masked_fill and (at := self._place(args[0], "product")) is not None:
            self._mark(result, "product", at)  # transformers clears the rows of no expert
        elif packet is aten.split and len(result) == 2:
            for half, part in zip(result, ("gate", "up"), strict=True):
                self._cut(args[0], half, part)
        elif packet is aten.slice and len(args) > 2:
            self._cut(args[0], result, "gate" if args[2] == 0 else "up")
        elif packet is aten.silu and (at := self._place(args[0], "gate")) is not None:
            self._mark(result, "silu", at)
        elif packet is aten.mul:
            for one, other in (args[:2], args[1::-1]):
                at = self._place(one, "silu")
                if at is not None and at == self._place(other, "up"):
                    self._products[at] = replace(self._products[at], form=PLACES[0])
                elif (at := self._place(one, "product")) is not None and _of_rows(other, one):
                    self._products[at] = replace(self._products[at], form=SCALED)

    def _cut(self, whole: Any, half: Any, part: str) -> None:
        at = self._place(whole, "product")
        if at is not None and half.shape == (whole.shape[0], whole.shape[1] // 2):
            start = 0 if part == "gate" else half.shape[1]
            if half.storage_offset() - whole.storage_offset() == start and half.stride() == whole.stride():
                self._mark(half, part, at)

    def _mark(self, tensor: Any, part: str, at: int) -> None:
        self._parts[id(tensor)] = tensor, part, at

    def _place(self, tensor: Any, part: str) -> int | None:
        _, has, at = self._parts.get(id(tensor), (None, "", None))
        return at if has == part else None


def _of_rows(scale: Any, matrix: "torch.Tensor") -> bool:
    """Whether something has a number for each row of a matrix."""
    return getattr(scale, "shape", None) == (matrix.shape[0], 1)


def _stand_in(query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", *_: Any, **__: Any) -> "torch.Tensor":
    """A tensor like attention's result in shape and dependences, but without a product in its gradient."""
    mixed = query.sum(-1, keepdim=True) + key.sum() + value.sum()
    return mixed.expand(*query.shape[:-1], value.shape[-1]).contiguous()


def _product(function: Any, args: Any, kwargs: Mapping[str, Any], label: str) -> Product | None:
    """The product that an operator of torch is; None if it is none."""
    import torch

    aten = torch.ops.aten
    operands = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1, aten._scaled_mm: 0}
    packet = getattr(function, "overloadpacket", None)
    if str(packet) in _GROUPED:
        return _grouped_product(args[0], args[1], label)
    if packet not in operands:
        return None
    a, b = args[operands[packet] :][:2]
    batch = a.shape[0] if a.dim() == 3 else 1
    layout = ("m" if a.stride(-1) != 1 else "k") + ("n" if b.stride(-2) != 1 else "k")
    made = Product(a.shape[-2], b.shape[-1], a.shape[-1], batch, _type_name(a.dtype), layout, label)
    return made if packet != aten._scaled_mm else _scaled_product(made, argument_names(function), args, kwargs)


def _scaled_product(made: Product, names: Sequence[str], args: Any, kwargs: Mapping[str, Any]) -> Product:
    """An 8-bit product with the type of its result, if it has one factor for each operand."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if any(given[name].dim() > 1 or given[name].numel() != 1 for name in ("scale_a", "scale_b")):
        return replace(made, dtype=f"{made.dtype} with a scale for each row or block")
    out = _type_name(given.get("out_dtype") or given["self"].dtype)
    return replace(made, out=out, fast=bool(given.get("use_fast_accum")))


def _type_name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def _grouped_product(a: "torch.Tensor", b: "torch.Tensor", label: str) -> Product | None:
    """The product of rows by experts; None for another form, as gradients have."""
    if (a.dim(), b.dim()) != (2, 3):
        return None
    layout = ("m" if a.stride(-1) != 1 else "k") + ("n" if b.stride(-2) != 1 else "k")
    return Product(a.shape[0], b.shape[-1], a.shape[-1], b.shape[0], _type_name(a.dtype), layout, label, grouped=True)


def _module_of(node: "fx.Node") -> str:
    """The innermost module that a node stems from, as a path of attributes."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    path = next(reversed([entry[0] for entry in stack.values()]), "") if stack else ""
    return re.sub(r"^L\['\w+'\]\.?", "", str(path)) or str(
        node.name
    )  # dynamo's name of the argument that holds the model


def _summarise(products: Sequence[Product], graphs: int, experts: Experts | None) -> Recording:
    names, results = ({DTYPES[name].torch_name: name for name in some} for some in (INPUTS, OUTPUTS))
    counts: Counter[Problem] = Counter()
    labels: dict[Problem, str] = {}
    phases: dict[Problem, str] = {}
    skipped: Counter[str] = Counter()
    for product in products:
        sizes = f"{product.m}x{product.n}x{product.k}"
        other = f"{sizes} of {product.batch} experts, a grouped product" if product.grouped else sizes
        if product.grouped != (experts is not None):
            skipped[f"{other}: another space computes it"] += 1
            continue
        if experts is not None and experts.forms and product.form not in experts.forms:
            skipped[f"{other}: it has not the form {' or '.join(experts.forms)}"] += 1
            continue
        if product.dtype not in names:
            skipped[f"{sizes} in {product.dtype}"] += 1
            continue
        if product.out and product.out not in results:
            skipped[f"{sizes} in {product.dtype}, with a result in {product.out}"] += 1
            continue
        try:
            problems = _problems(product, names[product.dtype], results.get(product.out, ""), experts)
        except ProblemError as error:
            skipped[one_line(error)] += 1
            continue
        counts.update(problems)
        for problem in problems:
            labels.setdefault(problem, product.label)
            phases[problem] = product.form if experts and len(experts.forms) > 1 else ""
    entries = tuple(Entry(str(each), labels[each], phases[each], count) for each, count in counts.items())
    return Recording(entries, dict(skipped), graphs)


def _problems(product: Product, dtype: str, out: str, experts: Experts | None) -> list[Problem]:
    """The problem that a product of some types is; for each routing, if it is one of experts.

    Raises
    ------
    ProblemError
        If it is none.
    """
    if experts is not None:
        if product.layout != "kk":
            raise ProblemError(f"{product.m}x{product.n}x{product.k}: the experts' weights are not contiguous along k")
        kind = FORMS.get(product.form if experts.forms else "", GroupedProblem)
        sizes = product.batch, product.m, product.n, product.k
        return [kind(*sizes, dtype, routing, last_draw=experts.draws - 1) for routing in experts.routings]
    sizes = product.m, product.n, product.k, product.batch
    return [GemmProblem(*sizes, dtype, out, product.layout, alpha=bool(out), fast=product.fast)]

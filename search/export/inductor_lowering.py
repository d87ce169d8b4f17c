"""The lowering of our operator: TorchInductor writes direct calls of a kernel into the Python that it generates.

Through torch's dispatcher, a call of an operator that is written in Python costs some 5 µs more than
``extern_kernels.mm`` (experiments/results). With few rows that is more than a better kernel gains. So this lowering
replaces TorchInductor's own for custom operators. The memory of the result is planned like any other, and

    tilescout_buf1(buf0, arg1_1, out=buf1)

runs what `tilescout.search.export.generated_calls.bind` made once, when the generated module was loaded. Shapes,
strides and types are settled here, when code is generated; only addresses are looked at when it runs.

This uses private parts of TorchInductor. If one is missing, a warning says so, and calls go through the dispatcher. So
do the calls of C++ code that TorchInductor generates (``cpp_wrapper``, AOTInductor packages).
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from tilescout.search.export import torch_hooks
from tilescout.search.export.grouped.kernels import find_grouped
from tilescout.search.export.loaded_kernels import find_family, strides_of
from tilescout.search.export.torch_operator import SEPARATOR, define, define_grouped, define_together, places_of
from tilescout.spaces.errors import ExportError


@cache
def register() -> bool:
    """Register the lowering, once; say whether this torch lets us."""
    _, operator = define()
    return _registered(operator, _make_lowering)


def _registered(operator: Any, make: Callable[[Any], Any]) -> bool:
    try:
        torch_hooks.REGISTER_LOWERING.find()(operator, type_promotion_kind=None)(make(operator))
    except (ExportError, AttributeError, TypeError) as error:
        _warn(error)
        return False
    return True


def _warn(error: Exception) -> None:
    import torch

    warnings.warn(
        f"TorchInductor of torch {torch.__version__} is not as tilescout knows it ({error}): compiled code calls tuned "
        "kernels through torch's dispatcher, which costs some 5 µs a call more",
        stacklevel=3,
    )


@cache
def _call_class(base: str) -> Any:
    """The class of TorchInductor's calls of that name, whose ``binding`` binds a kernel at the head of the module."""
    ir = torch_hooks.IR.find()

    class Call(getattr(ir, base)):  # type: ignore[misc]
        binding: str

        def codegen(self, wrapper: Any) -> None:
            module = wrapper
            while (parent := getattr(module, "parent_wrapper", None)) is not None:
                module = parent  # the parts of a graph are functions in the module of the whole
            module.add_import_once("from tilescout.search.export import generated_calls as tilescout_calls")
            module.add_import_once(self.binding)
            super().codegen(wrapper)

    return Call


def _launch_class() -> Any:
    """A call of a kernel that writes to memory that it is given."""
    return _call_class("ExternKernelOut")


def _bind(node: Any, function: str, *arguments: str | int | bool | None) -> None:
    """Have a call run what a function of `generated_calls` makes: each has a binding of its own, for its own B."""
    node.python_kernel_name = f"tilescout_{node.get_name()}"
    node.binding = f"{node.python_kernel_name} = tilescout_calls.{function}({', '.join(map(repr, arguments))})"


def _writes_python(graph: Any) -> bool:
    """Whether TorchInductor writes Python for a graph."""
    return not graph.cpp_wrapper and not getattr(graph, "fx_wrapper", False)


def _make_lowering(operator: Any) -> Any:
    ir, V = torch_hooks.IR.find(), torch_hooks.VIRTUALIZED.find()  # noqa: N806  (as torch calls it)
    through_dispatcher = torch_hooks.FALLBACK_HANDLER.find()(operator, add_to_fallback_set=False)

    Launch = _launch_class()  # noqa: N806

    def lower(a: Any, b: Any, alpha: Any, bias: Any, decision: str) -> Any:
        layout, m, n, k = find_family(decision).problem.layout, a.get_size()[1], b.get_size()[1], a.get_size()[2]
        a = _realized(ir, a, strides_of(m, k, layout[0] == "m"))
        b = _realized(ir, b, strides_of(n, k, layout[1] == "n"))
        alpha, bias = (_realized(ir, vector, (1,)) if vector is not None else None for vector in (alpha, bias))
        if _writes_python(V.graph):
            try:
                return launch(a, b, alpha, bias, decision)
            except (AttributeError, TypeError) as error:
                _warn(error)
        return through_dispatcher(*(None if x is None else ir.TensorBox(x) for x in (a, b, alpha, bias)), decision)

    def launch(a: Any, b: Any, alpha: Any, bias: Any, decision: str) -> Any:
        (batch, m, _), n, device = a.get_size(), b.get_size()[1], a.get_device()
        rows = int(m) if m.is_number else None
        # At a size that nobody tuned the library runs, which takes matrices: then a call needs no view of A or D.
        flat = rows is None and batch == 1
        node = Launch(
            layout=ir.FixedLayout(device, find_family(decision).out, [m, n] if flat else [batch, m, n]),
            inputs=[
                _flattened(ir, a) if flat else a,
                _start(ir, b),
                *(vector for vector in (alpha, bias) if vector is not None),
            ],
        )
        _bind(node, "bind", decision, rows, device.index, flat)
        box = ir.TensorBox.create(node)
        return ir.TensorBox(ir.View.create(box.data, [batch, m, n])) if flat else box

    return lower


@cache
def register_together() -> bool:
    """Register the lowering of several products of one A, once; say whether this torch lets us."""
    return _registered(define_together(), _lowering_together)


def _lowering_together(operator: Any) -> Any:
    ir, V = torch_hooks.IR.find(), torch_hooks.VIRTUALIZED.find()  # noqa: N806
    through_dispatcher = torch_hooks.FALLBACK_HANDLER.find()(operator, add_to_fallback_set=False)
    Launch = _launch_class()  # noqa: N806

    def lower(a: Any, bs: Any, biases: Any, decisions: str) -> Any:
        families = [find_family(name) for name in decisions.split(SEPARATOR)]
        m, k = a.get_size()[1], a.get_size()[2]
        a = _realized(ir, a, strides_of(m, k, families[0].problem.layout[0] == "m"))
        bs = [_realized(ir, b, family.b_strides) for b, family in zip(bs, families, strict=True)]
        biases = [_realized(ir, bias, (1,)) if bias is not None else None for bias in biases]
        if _writes_python(V.graph):
            try:
                return launch(a, bs, biases, decisions, int(m))
            except (AttributeError, TypeError) as error:
                _warn(error)
        vectors = [None if bias is None else ir.TensorBox(bias) for bias in biases]
        return through_dispatcher(ir.TensorBox(a), [ir.TensorBox(b) for b in bs], vectors, decisions)

    def launch(a: Any, bs: Any, biases: Any, decisions: str, rows: int) -> Any:
        families, device = [find_family(name) for name in decisions.split(SEPARATOR)], a.get_device()
        node = Launch(
            layout=ir.FixedLayout(device, families[0].out, [places_of(families, rows)[-1]]),
            inputs=[a, *(_start(ir, b) for b in bs), *(bias for bias in biases if bias is not None)],
        )
        _bind(node, "bind_together", decisions, rows, device.index)
        return ir.TensorBox.create(node)

    return lower


@cache
def register_grouped() -> bool:
    """Register the lowering of grouped products, once; say whether this torch lets us."""
    return _registered(define_grouped(), _lowering_grouped)


def _lowering_grouped(operator: Any) -> Any:
    ir, V = torch_hooks.IR.find(), torch_hooks.VIRTUALIZED.find()  # noqa: N806
    through_dispatcher = torch_hooks.FALLBACK_HANDLER.find()(operator, add_to_fallback_set=False)
    Launch, Allocating = _launch_class(), _call_class("ExternKernelAlloc")  # noqa: N806

    def lower(a: Any, b: Any, ends: Any, decision: str, scale: Any = None) -> Any:
        tokens, (_, n, k) = a.get_size()[0], b.get_size()
        operands = [_realized(ir, a, (k, 1)), _realized(ir, b, (n * k, k, 1)), _realized(ir, ends, (1,))]
        scales = [] if scale is None else [_realized(ir, scale, (1,))]
        if _writes_python(V.graph):
            try:
                return launch([*operands, *scales], decision, tokens)
            except (AttributeError, TypeError) as error:
                _warn(error)
        boxes = [ir.TensorBox(each) for each in operands]
        return through_dispatcher(*boxes, decision, *(ir.TensorBox(each) for each in scales))

    def launch(operands: list[Any], decision: str, tokens: Any) -> Any:
        family, device = find_grouped(decision), operands[0].get_device()
        # What torch makes of numbers of tokens that nobody tuned would be copied to where our kernels write.
        known = isinstance(tokens, int) or tokens.is_number
        kind = Launch if known else Allocating
        node = kind(layout=ir.FixedLayout(device, family.out, [tokens, family.width]), inputs=operands)
        if known:
            _bind(node, "bind_grouped", decision, int(tokens), device.index)
        else:
            _bind(node, "bind_any_tokens", decision, device.index)
        return ir.TensorBox.create(node)

    return lower


def _realized(ir: Any, tensor: Any, strides: tuple[Any, ...]) -> Any:
    """A tensor of a graph in memory, with exactly these strides, those of dimensions of size 1 too."""
    # Once for all that use it: to require strides first would make a copy for each.
    ir.ExternKernel.realize_input(tensor)
    found = ir.ExternKernel.realize_input(ir.ExternKernel.require_exact_strides(tensor, strides))
    layout = found.get_layout()
    if list(layout.stride) == list(strides):
        return found
    storage = found.data if isinstance(found, ir.ReinterpretView) else found
    exact = ir.FixedLayout(layout.device, layout.dtype, list(layout.size), list(strides), layout.offset)
    return ir.ReinterpretView(data=storage, layout=exact)


def _flattened(ir: Any, tensor: Any) -> Any:
    """The only matrix of a batch of one, in the same memory."""
    layout = tensor.get_layout()
    storage = tensor.data if isinstance(tensor, ir.ReinterpretView) else tensor
    flat = ir.FixedLayout(layout.device, layout.dtype, list(layout.size)[1:], list(layout.stride)[1:], layout.offset)
    return ir.ReinterpretView(data=storage, layout=flat)


def _start(ir: Any, view: Any) -> Any:
    """Of a view, what begins where it does: only that is read of B, and a call need not make the view.

    What holds elements of another type, as weights that are stored as bytes, is no start: a call takes its type too.
    """
    if not isinstance(view, ir.ReinterpretView):
        return view
    seen, held = view.layout, view.data.get_layout()
    return view.data if (seen.offset, seen.dtype) == (held.offset, held.dtype) else view

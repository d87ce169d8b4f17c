"""Calls of tuned kernels from the Python code that TorchInductor generates, with as little overhead as possible.

Generated code has allocated the result and made its device the current one, and shapes, strides and types were checked
when it was generated. Only addresses are looked at in a call. B is usually a weight that stays where it is: its view,
as TVM FFI takes it, is kept as long as the address is the same. So are those of A and D, where a call has to make them:
generated code is given the same memory again and again.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.search.build.loading import LoadedKernel
from tilescout.search.export import torch_hooks
from tilescout.search.export.grouped.kernels import GroupedFamily, find_grouped, run_library
from tilescout.search.export.loaded_kernels import (
    ALIGNMENT,
    LIBRARY,
    Family,
    Loaded,
    LoadedAlgorithm,
    device_type,
    find_family,
    strides_of,
)
from tilescout.search.export.ranges import Lookup
from tilescout.search.export.torch_operator import SEPARATOR, places_of
from tilescout.spaces.gemm import activate

if TYPE_CHECKING:
    import torch

_LISTED = 1 << 16  # rows: of more, m is found by bisection

_Start = tuple[Callable[..., None] | None, int, Callable[..., tuple[Any, ...]] | None]
"""The entry point of a kernel, how many of its clusters run at once, and what makes its scratch memory, if any."""
_NOT_OURS: _Start = (None, 0, None)

_bound: Counter[tuple[str, int | None]] = Counter()


def bound_calls() -> Counter[tuple[str, int | None]]:
    """How many calls generated code has bound in this process, by the decisions' name and m; None if m is unknown."""
    return Counter(_bound)


def bind(name: str, rows: int | None, index: int | None, flat: bool = False) -> Callable[..., None]:
    """Make the function that runs the decisions of this name, for one call in generated code.

    Parameters
    ----------
    name
        As in `tilescout.search.export.loaded_kernels.find_family`.
    rows
        m; None where it is known only when the code runs.
    index
        Number of the GPU; None for the CPU.
    flat
        Whether A and D come without the dimension of the batch, as the library takes them.

    Returns
    -------
    Callable
        Takes A [batch, m, k]; B, of which only the address counts; alpha [1] and bias [n], where the problem has them;
        and ``out=``, D [batch, m, n].

    Raises
    ------
    BundleError
        If the bundle that they are in was not loaded in this process.
    """
    borrow_storage = torch_hooks.BORROW_STORAGE.find()
    family = find_family(name)
    served = _served(family, rows, index)
    _bound[name, rows] += 1
    matrices = _matrices(family, borrow_storage) if flat else None
    others = _others(served, matrices)
    run = _on_kept_b(served, others, borrow_storage, matrices)
    return run if matrices is None else _on_kept_views(served, run, others, borrow_storage, matrices)


@dataclass(frozen=True, eq=False)
class _Served:
    """The kernels that serve the m of one call in generated code.

    Attributes
    ----------
    family
        The decisions that they are of.
    lookup
        The kernel of each m.
    always
        The kernel of the only m that the call has; None for the library, or where the call has any m.
    started
        The parts that start it; None where the call has any m.
    starts
        The parts that start the kernel of each m, where the call has any.
    """

    family: Family
    lookup: Lookup[Loaded]
    always: Loaded | None
    started: _Start | None
    starts: Sequence[_Start]


def _served(family: Family, rows: int | None, index: int | None) -> _Served:
    """The kernels of a call, loaded now: nothing may be while a graph is captured; see `bind`."""
    device = _device(family.arch, index)
    lookup = family.lookup(device)
    if rows is None:
        return _Served(family, lookup, None, None, _starts(lookup, family.step))
    always = family.find(device, rows)
    return _Served(family, lookup, always, _start(always), [])


def _start(kernel: Loaded | None) -> _Start:
    """The parts that start one of our kernels; `_NOT_OURS` for others."""
    if not isinstance(kernel, LoadedKernel):
        return _NOT_OURS
    return kernel.entry, kernel.max_clusters, kernel.scratch if kernel.scratch_bytes else None


@cache  # a model has dozens of calls of one product, and each would have a list of its own
def _starts(lookup: Lookup[Loaded], step: int) -> Sequence[_Start]:
    """The parts that start our kernel for each m from 0 on, as far as ranges go, and no further than `_LISTED`.

    To look m up in a list takes a third of what bisection does, which a call of a microsecond or two would notice.
    """
    listed = list[_Start]()
    for end, kernel in zip(lookup.ends, lookup.entries, strict=False):  # the last one goes on without end
        listed += [_start(kernel)] * (min(end + 1, _LISTED) - len(listed))
    starts = [_NOT_OURS] * len(listed)
    starts[::step] = listed[::step]
    return tuple(starts)


@dataclass(frozen=True, eq=False)
class _Matrices:
    """The parts of a call on matrices: A [m, k] and D [m, n], without the dimension of the batch.

    Attributes
    ----------
    batched
        Makes views of A and D that have it.
    library
        Runs the library's kernel, which takes them as they are.
    """

    batched: "Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]"
    library: Callable[..., None]


def _matrices(family: Family, borrow_storage: Callable[..., Any]) -> _Matrices:
    reinterpret = torch_hooks.REINTERPRET.find()
    n, k, along_m = family.problem.n, family.problem.k, family.problem.layout[0] == "m"

    def batched(a: "torch.Tensor", out: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        m = a.shape[0]
        whole = reinterpret(a, (1, m, k), strides_of(m, k, along_m), 0)
        return whole, reinterpret(out, (1, m, n), (m * n, n, 1), 0)

    return _Matrices(batched, _flat_library(family, borrow_storage))


def _on_kept_b(
    served: _Served, others: Callable[..., None], borrow_storage: Callable[..., Any], matrices: _Matrices | None
) -> Callable[..., None]:
    """The function that starts our kernels, on a view of B that is kept while B is at the same address.

    What is not ours, and tensors that our kernels can't take, it leaves to `others`.
    """
    family, started, starts = served.family, served.started, served.starts
    row = family.problem.batch * family.problem.k
    batched = matrices.batched if matrices is not None else None
    kept: tuple[int, Any] = 0, None  # the address of B, and B

    def run(a: "torch.Tensor", b: "torch.Tensor", *epilogue: "torch.Tensor", out: "torch.Tensor") -> None:
        nonlocal kept
        try:  # to ask for the shape takes three times as long as for the number of elements
            entry, clusters, scratch = started or starts[a.numel() // row]
        except IndexError:
            entry, clusters, scratch = _NOT_OURS
        at = b.data_ptr()
        address, view = kept  # at once: another thread may put others there
        if entry is None or address != at or a.data_ptr() % ALIGNMENT:
            if entry is None or (a.data_ptr() | at) % ALIGNMENT:
                others(a, b, *epilogue, out=out)
                return
            view = _as_ffi(_borrow_b(b, family, borrow_storage))
            kept = at, view
        if batched is not None:
            a, out = batched(a, out)
        # In the order of Workload.arguments. A star in a call takes a tenth of a microsecond, even of nothing.
        if scratch is not None:
            entry(a, view, *epilogue, out, clusters, *scratch(b))
        elif epilogue:
            entry(a, view, *epilogue, out, clusters)
        else:
            entry(a, view, out, clusters)

    return run


def _others(served: _Served, matrices: _Matrices | None) -> Callable[..., None]:
    """The function that runs the library, its algorithms, and our kernels on a B for which no view is kept."""
    family, always, step = served.family, served.always, served.family.step
    ends, entries, along = served.lookup.ends, served.lookup.entries, 1 if matrices is None else 0

    def run(a: "torch.Tensor", b: "torch.Tensor", *epilogue: "torch.Tensor", out: "torch.Tensor") -> None:
        kernel = always or (entries[bisect_left(ends, m)] if not (m := a.shape[along]) % step else None)
        if matrices is not None:
            if kernel is None:
                matrices.library(a, b, *epilogue, out=out)
                return
            a, out = matrices.batched(a, out)
        if isinstance(kernel, LoadedAlgorithm) and kernel.takes((a, b, *epilogue), out):
            kernel.start((a, b, *epilogue), out)
            return
        # A view anew in each call, of nothing that is kept: tensors that are not aligned are rare.
        whole = b.as_strided(family.b_shape, family.b_strides)
        if isinstance(kernel, LoadedKernel) and not (a.data_ptr() | b.data_ptr()) % ALIGNMENT:
            kernel((a, whole, *epilogue), out)
        else:
            LIBRARY.run_library(family.problem, (a, whole, *epilogue), out)

    return run


def _on_kept_views(
    served: _Served,
    anew: Callable[..., None],
    others: Callable[..., None],
    borrow_storage: Callable[..., Any],
    matrices: _Matrices,
) -> Callable[..., None]:
    """The function that starts our kernels, on views that are kept while A, B and D are where they are.

    What comes for the first time, and kernels that need memory of their own, it leaves to `anew`, which `_on_kept_b`
    made, and what is not ours to `others`.
    """
    family, starts, row = served.family, served.starts, served.family.problem.k
    stays: tuple[tuple[int, ...], Any] = (), None  # where A, B and D are, and A's size; what runs on views of these

    def run(a: "torch.Tensor", b: "torch.Tensor", *epilogue: "torch.Tensor", out: "torch.Tensor") -> None:
        nonlocal stays
        places = a.data_ptr(), b.data_ptr(), out.data_ptr(), a.numel()
        before, known = stays  # at once, too
        if places != before:  # views are worth making of what comes twice
            stays = places, None
            anew(a, b, *epilogue, out=out)
            return
        if known is None:
            known = views(a, b, out)
            stays = places, known
        entry, first, whole, last, clusters = known
        if entry is None:
            first(a, b, *epilogue, out=out)
        elif epilogue:
            entry(first, whole, *epilogue, last, clusters)
        else:
            entry(first, whole, last, clusters)

    def views(a: "torch.Tensor", b: "torch.Tensor", out: "torch.Tensor") -> tuple[Any, ...]:
        """A kernel, what it takes, and its clusters; None and another function where it can't run on views."""
        size = a.numel() // row
        entry, clusters, scratch = starts[size] if size < len(starts) else _NOT_OURS
        if entry is None or scratch is not None or (a.data_ptr() | b.data_ptr()) % ALIGNMENT:
            return None, others if entry is None else anew, None, None, 0
        first, last = (
            _as_ffi(_borrow(each, each.shape, each.stride(), borrow_storage)) for each in matrices.batched(a, out)
        )
        # A tensor of torch among them tells TVM FFI the stream.
        return entry, first, _borrow_b(b, family, borrow_storage), last, clusters

    return run


def bind_together(names: str, rows: int, index: int | None) -> Callable[..., None]:
    """Make the function that runs products of one A, side by side where a CUDA graph is being captured.

    Parameters
    ----------
    names
        The decisions, with `torch_operator.SEPARATOR` between them.
    rows, index
        As of `bind`.

    Returns
    -------
    Callable
        Takes A [1, m, k]; each B, of which only the address counts; the bias [n] of each product that has one; and
        ``out=``, the vector of the results.
    """
    import torch

    reinterpret, decisions = torch_hooks.REINTERPRET.find(), names.split(SEPARATOR)
    families, count = [find_family(name) for name in decisions], len(decisions)
    starts, biased = places_of(families, rows), [family.problem.bias for family in families]
    # Of each product: what runs it, where its B and its bias are among the operands, and where its result is.
    calls = [
        (
            bind(name, rows, index),
            at,
            count + sum(biased[:at]) if biased[at] else 0,
            (1, rows, family.problem.n),
            (rows * family.problem.n, family.problem.n, 1),
            starts[at],
        )
        for at, (name, family) in enumerate(zip(decisions, families, strict=True))
    ]
    streams = [] if index is None else [torch.cuda.Stream(index) for _ in calls[1:]]
    is_capturing = torch.cuda.is_current_stream_capturing if streams else bool

    def run_one(call: Any, a: "torch.Tensor", operands: "tuple[torch.Tensor, ...]", out: "torch.Tensor") -> None:
        one, at, bias, size, stride, start = call
        if bias:
            one(a, operands[at], operands[bias], out=reinterpret(out, size, stride, start))
        else:
            one(a, operands[at], out=reinterpret(out, size, stride, start))

    def run(a: "torch.Tensor", *operands: "torch.Tensor", out: "torch.Tensor") -> None:
        if not is_capturing():
            for call in calls:
                run_one(call, a, operands, out)
            return
        main, began = torch.cuda.current_stream(), torch.cuda.Event()
        began.record(main)
        for stream, call in zip(streams, calls[1:], strict=True):
            stream.wait_event(began)
            with torch.cuda.stream(stream):
                run_one(call, a, operands, out)
        run_one(calls[0], a, operands, out)
        for stream in streams:
            main.wait_stream(stream)

    return run


def bind_grouped(name: str, tokens: int, index: int | None) -> Callable[..., None]:
    """Make the function that runs the decision on a grouped product of so many tokens, for a call in generated code.

    Parameters
    ----------
    name
        As in `tilescout.search.export.grouped.kernels.find_grouped`.
    tokens
        Rows of A.
    index
        Number of the GPU; None for the CPU.

    Returns
    -------
    Callable
        Takes A [tokens, k], B [experts, n, k], the ends of the groups [experts], the scale of each row [tokens] where
        the product has one, and ``out=``, D.

    Raises
    ------
    BundleError
        If the bundle that they are in was not loaded in this process.
    """
    family = find_grouped(name)
    kernel = _lookup(family, index).find(tokens)

    def run(
        a: "torch.Tensor", b: "torch.Tensor", ends: "torch.Tensor", *scale: "torch.Tensor", out: "torch.Tensor"
    ) -> None:
        if not isinstance(kernel, LoadedKernel) or (a.data_ptr() | b.data_ptr()) % ALIGNMENT:
            out.copy_(run_library(a, b, ends, family.problem, *scale))
        else:
            # In the order of Workload.arguments.
            kernel.entry(a, b, ends, *scale, out, kernel.max_clusters, *kernel.scratch(out))

    return run


def bind_any_tokens(name: str, index: int | None) -> "Callable[..., torch.Tensor]":
    """Make the function that runs the decisions on a grouped product of any number of tokens, for a call in such code.

    Parameters
    ----------
    name, index
        As of `bind_grouped`.

    Returns
    -------
    Callable
        Takes A [tokens, k], B [experts, n, k], the ends of the groups [experts], and the scale of each row [tokens]
        where the product has one; returns D, in memory of its own.

    Raises
    ------
    BundleError
        If the bundle that they are in was not loaded in this process.
    """
    family = find_grouped(name)
    find = _lookup(family, index).find

    def run(a: "torch.Tensor", b: "torch.Tensor", ends: "torch.Tensor", *scale: "torch.Tensor") -> "torch.Tensor":
        tokens = a.shape[0]
        kernel = find(tokens) if tokens else None
        if not isinstance(kernel, LoadedKernel) or (a.data_ptr() | b.data_ptr()) % ALIGNMENT:
            return run_library(a, b, ends, family.problem, *scale)
        out = a.new_empty((tokens, family.width), dtype=family.out)
        kernel.entry(a, b, ends, *scale, out, kernel.max_clusters, *kernel.scratch(out))
        return out

    return run


def _lookup(family: GroupedFamily, index: int | None) -> Lookup[Loaded]:
    """The kernels of all ranges on a device, loaded now: nothing may be while a graph is captured."""
    return family.lookup(_device(family.arch, index))


def _device(arch: str, index: int | None) -> "torch.device":
    import torch

    kind = device_type(arch)
    return torch.device(kind) if index is None else torch.device(kind, index)


def _flat_library(family: Family, borrow_storage: Callable[..., Any]) -> Callable[..., None]:
    """The function that runs the library's kernel on A [m, k], B, of which only the address counts, and D [m, n].

    Sizes that nobody tuned should cost what TorchInductor's own calls do: so the view of B that ``torch.mm`` takes is
    kept. TorchInductor's code makes one in each call.
    """
    import torch

    problem, kept = family.problem, (0, torch.empty(0))
    mm, addmm, activation = torch.mm, torch.addmm, problem.activation

    def turned(b: "torch.Tensor") -> "torch.Tensor":
        nonlocal kept
        at = b.data_ptr()
        address, view = kept
        if address != at:
            view = _borrow_b(b, family, borrow_storage)[0].t()
            kept = at, view
        return view

    def run_mm(a: "torch.Tensor", b: "torch.Tensor", *, out: "torch.Tensor") -> None:
        mm(a, turned(b), out=out)
        if activation:
            activate(out, activation)

    def run_addmm(a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor", *, out: "torch.Tensor") -> None:
        addmm(bias, a, turned(b), out=out)
        if activation:
            activate(out, activation)

    def run_workload(a: "torch.Tensor", b: "torch.Tensor", *epilogue: "torch.Tensor", out: "torch.Tensor") -> None:
        whole = b.as_strided(family.b_shape, family.b_strides)
        LIBRARY.run_library(problem, (a.unsqueeze(0), whole, *epilogue), out.unsqueeze(0))

    if problem.element != problem.result or problem.element.bytes == 1 or problem.alpha:
        return run_workload
    return run_addmm if problem.bias else run_mm


def _as_ffi(tensor: "torch.Tensor") -> Any:
    """A tensor as TVM FFI takes it."""
    import tvm_ffi

    return tvm_ffi.from_dlpack(tensor)


def _borrow_b(b: "torch.Tensor", family: Family, borrow_storage: Callable[..., Any]) -> "torch.Tensor":
    return _borrow(b, family.b_shape, family.b_strides, borrow_storage)


def _borrow(
    tensor: "torch.Tensor", shape: Sequence[int], strides: Sequence[int], borrow_storage: Callable[..., Any]
) -> "torch.Tensor":
    """A tensor at the same address, which owns nothing, so that keeping it keeps no memory."""
    import torch

    memory = borrow_storage(tensor.data_ptr(), tensor.device, tensor.numel() * tensor.element_size())
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory, 0, shape, strides)

"""Calls of tuned kernels from the Python code that TorchInductor generates, with as little overhead as possible.

Generated code has allocated the result and made its device the current one, and shapes, strides and types were checked
when it was generated. Only addresses are looked at in a call. B is usually a weight that stays where it is: its view,
as TVM FFI takes it, is kept as long as the address is the same.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilescout.search.build.loading import LoadedKernel
from tilescout.search.export import torch_hooks
from tilescout.search.export.loaded_kernels import (
    ALIGNMENT,
    LIBRARY,
    Family,
    LoadedAlgorithm,
    device_type,
    find_family,
)

if TYPE_CHECKING:
    import torch


def bind(name: str, rows: int | None, index: int | None) -> Callable[..., None]:
    """Make the function that runs the decisions of this name, for one call in generated code.

    Parameters
    ----------
    name
        As in `tilescout.search.export.loaded_kernels.find_family`.
    rows
        m; None where it is known only when the code runs.
    index
        Number of the GPU; None for the CPU.

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
    import torch

    borrow_storage = torch_hooks.BORROW_STORAGE.find()
    family = find_family(name)
    kind = device_type(family.arch)
    device = torch.device(kind) if index is None else torch.device(kind, index)
    lookup, step = family.lookup(device), family.step  # now: nothing may be loaded while a graph is captured
    ends, entries = lookup.ends, lookup.entries
    always = None if rows is None else family.find(device, rows)
    kept: tuple[int, Any] = 0, None  # the address of B, and B
    library = _library(family, borrow_storage)

    def run(a: "torch.Tensor", b: "torch.Tensor", *epilogue: "torch.Tensor", out: "torch.Tensor") -> None:
        nonlocal kept
        kernel = always or (entries[bisect_left(ends, m)] if not (m := a.shape[1]) % step else None)
        at = b.data_ptr()
        if isinstance(kernel, LoadedAlgorithm) and kernel.takes((a, b, *epilogue), out):
            kernel.start((a, b, *epilogue), out)
            return
        if not isinstance(kernel, LoadedKernel) or (a.data_ptr() | at) % ALIGNMENT:
            library(a, b, *epilogue, out=out)
            return
        address, view = kept  # at once: another thread may put others there
        if address != at:
            view = _as_ffi(_borrow(family, b, borrow_storage))
            kept = at, view
        # In the order of Workload.arguments.
        kernel.entry(a, view, *epilogue, out, kernel.max_clusters, *kernel.scratch(out))

    return run


def _library(family: Family, borrow_storage: Callable[..., Any]) -> Callable[..., None]:
    """The function that runs the library's kernel, with the arguments of that which `bind` makes.

    Sizes that nobody tuned should cost what TorchInductor's own call of ``torch.mm`` does: so the view of B that a
    plain product takes is kept too. A call keeps the host for 3.7 µs, TorchInductor's for 3.2, with views made anew
    for 7.1 (tiny product on a CPU).
    """
    import torch

    problem = family.problem
    plain = problem.batch == 1 and not (problem.alpha or problem.bias or problem.activation)
    mm, kept = torch.mm, (0, torch.empty(0))

    def run_plain(a: "torch.Tensor", b: "torch.Tensor", *, out: "torch.Tensor") -> None:
        nonlocal kept
        at = b.data_ptr()
        address, turned = kept
        if address != at:
            turned = _borrow(family, b, borrow_storage)[0].t()
            kept = at, turned
        mm(a.squeeze(0), turned, out=out.squeeze(0))

    def run(a: "torch.Tensor", b: "torch.Tensor", *epilogue: "torch.Tensor", out: "torch.Tensor") -> None:
        inputs = (a, b.as_strided(family.b_shape, family.b_strides), *epilogue)
        LIBRARY.run_library(problem, inputs, out)

    return run_plain if plain and problem.element == problem.result else run


def _as_ffi(tensor: "torch.Tensor") -> Any:
    """A tensor as TVM FFI takes it."""
    import tvm_ffi

    return tvm_ffi.from_dlpack(tensor)


def _borrow(family: Family, b: "torch.Tensor", borrow_storage: Callable[..., Any]) -> "torch.Tensor":
    """B, which owns nothing, so that keeping it keeps no weight in memory."""
    import torch

    memory = borrow_storage(b.data_ptr(), b.device, b.numel() * b.element_size())
    return torch.empty(0, dtype=b.dtype, device=b.device).set_(memory, 0, family.b_shape, family.b_strides)

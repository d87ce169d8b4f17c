"""Run one product by an algorithm of cuBLASLt that was chosen, and ask which algorithms there are for it."""

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.spaces.cublaslt.abi import (
    BEST_FIT,
    ONE_ALGORITHM,
    POINTERS_ON_DEVICE,
    Algorithm,
    Config,
    Desc,
    Epilogue,
    Found,
    Layout,
    Library,
    LibraryError,
    Preference,
)
from tilescout.spaces.cublaslt.product import Matrix, Product
from tilescout.spaces.gemm import GemmProblem, activate, epilogue_inputs
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

WORKSPACE = 32 * 2**20
"""Bytes of device memory that an algorithm may take for itself: as much as torch gives the library on Hopper
(`CUBLASLT_WORKSPACE_SIZE`, 32 MiB there)."""

CONFIGURED = {
    "tile": Config.TILE,
    "stages": Config.STAGES,
    "split_k": Config.SPLIT_K,
    "reduction": Config.REDUCTION,
    "swizzle": Config.SWIZZLE,
    "inner_shape": Config.INNER_SHAPE,
    "cluster": Config.CLUSTER,
    "custom_option": Config.CUSTOM_OPTION,
}
"""Knobs, and the parts of an algorithm's configuration that they are."""


class Operation:
    """The library's descriptions of a product, on which it is asked and run.

    Parameters
    ----------
    library
        The library.
    product
        The product.

    Raises
    ------
    LibraryError
        If it knows no such product.
    """

    def __init__(self, library: Library, product: Product) -> None:
        self.library, self.product = library, product
        self._matmul = library.function("cublasLtMatmul")
        made: list[tuple[str, Any]] = []
        self._ending = weakref.finalize(self, _destroy, library, made)

        def create(kind: str, *arguments: int) -> Any:
            made.append((f"{kind}Destroy", library.create(f"{kind}Create", *arguments)))
            return made[-1][1]

        def layout(matrix: Matrix) -> Any:
            sizes = (matrix.dtype, matrix.rows, matrix.columns, matrix.leading)
            described = create("cublasLtMatrixLayout", *sizes)
            if product.batch > 1:
                library.set(described, Layout.BATCH, product.batch)
                library.set(described, Layout.BATCH_STRIDE, matrix.stride)
            return described

        compute, scale, *_ = product.types
        self._description = create("cublasLtMatmulDesc", compute, scale)
        library.set(self._description, Desc.TRANSPOSE_A, product.left.transposed)
        library.set(self._description, Desc.TRANSPOSE_B, product.right.transposed)
        library.set(self._description, Desc.EPILOGUE, product.epilogue)
        if product.fast:
            library.set(self._description, Desc.FAST_ACCUMULATION, 1)
        if product.device_alpha:
            library.set(self._description, Desc.POINTER_MODE, POINTERS_ON_DEVICE)
        result = layout(product.result)
        self._layouts = (layout(product.left), layout(product.right), result, result)
        self._preference = create("cublasLtMatmulPreference")
        library.set(self._preference, Preference.WORKSPACE, WORKSPACE)
        if product.epilogue & Epilogue.BIAS:
            library.set(self._description, Desc.BIAS_TYPE, product.result.dtype)
        self._plain = not product.scaled and not product.epilogue & Epilogue.BIAS
        self._pointing = threading.Lock()
        self._pointed: tuple[int, ...] = ()
        self._point_at(_ALIGNED, _ALIGNED, _ALIGNED)

    def guesses(self, most: int, identifier: int | None = None) -> list[Algorithm]:
        """The candidates of the library's heuristic, its first guess first.

        Parameters
        ----------
        most
            So many at most.
        identifier
            Only configurations of this algorithm; None asks for those of all.

        Raises
        ------
        LibraryError
            If it has none.
        """
        found, count = (Found * most)(), ctypes.c_int()
        self.library.set(self._preference, Preference.SEARCH, BEST_FIT if identifier is None else ONE_ALGORITHM)
        if identifier is not None:
            blank = self.library.algorithm(self.product.types, identifier)
            for each in found:
                each.algorithm = blank
        arguments = (self._description, *self._layouts, self._preference, most, found, ctypes.byref(count))
        self.library.call("cublasLtMatmulAlgoGetHeuristic", self.library.handle, *arguments)
        usable = [each for each in found[: count.value] if each.state == 0 and each.workspace <= WORKSPACE]
        return [Algorithm.from_buffer_copy(each.algorithm) for each in usable]

    def workspace(self, algorithm: Algorithm) -> int | None:
        """Bytes that an algorithm needs for itself; None if it can't compute the product in at most `WORKSPACE`."""
        status, workspace = self.judged(algorithm)
        return workspace if status == 0 and workspace <= WORKSPACE else None

    def judged(self, algorithm: Algorithm) -> tuple[int, int]:
        """The library's status for an algorithm, 0 if it can compute the product, and the bytes that it needs then."""
        found = Found()
        check, arguments = self.question(algorithm, found)
        return check(*arguments), int(found.workspace)

    def question(self, algorithm: Algorithm, found: Found) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """The function that says whether an algorithm can compute the product, with 0 for yes, and its arguments."""
        asked = (self._description, *self._layouts, ctypes.byref(algorithm), ctypes.byref(found))
        return self.library.function("cublasLtMatmulAlgoCheck"), (self.library.handle, *asked)

    def configured(self, identifier: int, knobs: Mapping[str, int | str]) -> Algorithm:
        """An algorithm with the configuration that knobs say.

        Raises
        ------
        LibraryError
            If the library has no such algorithm, or it can't be told so.
        """
        made = self.library.algorithm(self.product.types, identifier)
        for name, attribute in CONFIGURED.items():
            self.library.set(made, attribute, int(knobs[name]))
        return made

    def run(self, algorithm: Algorithm, workspace: int, problem: GemmProblem, inputs: Tensors, output: Any) -> None:
        """Start an algorithm on the current stream, and after it those operations that the library does not fuse.

        Parameters
        ----------
        algorithm, workspace
            The algorithm, and the bytes that it needs for itself.
        problem, inputs, output
            The problem and its tensors.

        Raises
        ------
        LibraryError
            If it is refused.
        """
        right, left = inputs[:2]
        alpha, bias = epilogue_inputs(problem, inputs)
        scratch = self._scratch(workspace, output) if workspace else None
        factors = self._factors(alpha, output)
        a, b, c, d = self._layouts
        arguments = (
            *(self.library.handle, self._description),
            *(factors[0], left.data_ptr(), a, right.data_ptr(), b),
            *(factors[1], output.data_ptr(), c, output.data_ptr(), d),
            *(ctypes.byref(algorithm), None if scratch is None else scratch.data_ptr(), workspace),
            stream_of(output),
        )
        if self._plain:
            status = self._matmul(*arguments)
        else:
            with self._pointing:  # other threads may run the same product with another bias
                self._point(alpha, bias, output)
                status = self._matmul(*arguments)
        if status != 0:
            raise LibraryError("cublasLtMatmul", status)
        if problem.activation not in ("", "relu"):  # its exact GELU and its SiLU are none of the library's
            activate(output, problem.activation)

    @staticmethod
    def _scratch(workspace: int, output: "torch.Tensor") -> "torch.Tensor":
        import torch

        # Of torch's pool, which hands it to what is launched next on the same stream, or keeps it for a CUDA graph.
        return output.new_empty(workspace, dtype=torch.uint8)

    def _factors(self, alpha: "torch.Tensor | None", output: "torch.Tensor") -> tuple[int, int]:
        """The addresses of alpha and beta."""
        if not self.product.device_alpha:
            return _ONE_AT, _ZERO_AT
        assert alpha is not None
        return alpha.data_ptr(), _constant(output.device, 0.0).data_ptr()

    def _point(self, alpha: "torch.Tensor | None", bias: "torch.Tensor | None", output: "torch.Tensor") -> None:
        """Say where in device memory the scales and the bias are, those of them that the product has."""
        one = _constant(output.device, 1.0).data_ptr() if self.product.scaled else 0
        self._point_at(one, one if alpha is None else alpha.data_ptr(), 0 if bias is None else bias.data_ptr())

    def _point_at(self, *addresses: int) -> None:
        if addresses == self._pointed:
            return
        scale_left, scale_right, bias = addresses
        if self.product.scaled:
            self.library.set(self._description, Desc.SCALE_A, scale_left)
            self.library.set(self._description, Desc.SCALE_B, scale_right)
        if self.product.epilogue & Epilogue.BIAS:
            self.library.set(self._description, Desc.BIAS, bias)
        self._pointed = addresses


_ALIGNED = 4096  # stands for an address of torch's: the heuristic looks at its alignment, and reads nothing there
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
_ONE_AT, _ZERO_AT = ctypes.addressof(_ONE), ctypes.addressof(_ZERO)


def stream_of(tensor: "torch.Tensor") -> int | None:
    """The current stream of a tensor's device; None on the host."""
    import torch

    if not tensor.is_cuda:
        return None
    return torch._C._cuda_getCurrentRawStream(tensor.get_device())  # as TorchInductor's own code asks for it


def make_constants() -> None:
    """Make what products read in the memory of the current device, so that no CUDA graph records how it is made."""
    import torch

    if torch.cuda.is_available():
        for value in (0.0, 1.0):
            _constant(torch.device("cuda", torch.cuda.current_device()), value)


@cache
def _constant(device: "torch.device", value: float) -> "torch.Tensor":
    import torch

    return torch.full((1,), value, device=device)


def _destroy(library: Library, made: list[tuple[str, Any]]) -> None:
    for function, described in made:
        with suppress(LibraryError):  # the process ends, or the device is lost
            library.call(function, described)

"""The loader of cuBLASLt's algorithms: from an artifact's description to what starts the kernel."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tilescout.spaces.cublaslt.abi import Algorithm, Library, loaded_library, version_of
from tilescout.spaces.cublaslt.algorithms import KNOBS, listing
from tilescout.spaces.cublaslt.operation import Operation, make_constants
from tilescout.spaces.cublaslt.product import Product
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Value
from tilescout.spaces.loaders import Launch, Listing, Loader
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch


def describe(configuration: Mapping[str, Value], signature: str) -> str:
    """The description of an algorithm that `CublasLt.launch` reads."""
    return json.dumps({"signature": signature, "knobs": dict(configuration)}, sort_keys=True) + "\n"


class CublasLt(Loader):
    """The algorithms of the library that torch has loaded.

    Attributes
    ----------
    fast
        Whether sums of 8-bit products may be kept in fewer bits although the problem does not say so.
    """

    fast = False

    @property
    def library(self) -> Library:
        """The library, with a handle on the current device."""
        import torch

        return _library(torch.cuda.current_device() if torch.cuda.is_available() else None)

    @property
    def version(self) -> str:
        import torch  # noqa: F401 - brings the library

        return version_of(loaded_library())

    def operation(self, problem: GemmProblem) -> Operation:
        """The library's descriptions of a problem; those of the last few are kept."""
        return _operation(self.library, Product.of(problem, self.fast or problem.fast))

    def listing(self, problem: str, guesses: int | None) -> Listing:
        return listing(self.operation(GemmProblem.parse(problem)), guesses)

    def launch(self, description: str) -> Launch:
        try:
            record = json.loads(description)
            problem = GemmProblem.small(record["signature"])
            knobs = {name: int(record["knobs"][name]) for name in KNOBS}
        except (ValueError, KeyError, TypeError) as error:
            raise SpaceError(f"malformed description of an algorithm of cuBLASLt: {error}") from error
        _ = self.library  # now: its first launch may be one that a CUDA graph records
        return _Algorithm(self, problem, knobs)


@cache
def _library(device: int | None) -> Library:
    """The library with a handle on a device, which is the current one."""
    make_constants()
    return Library(loaded_library())


@lru_cache(maxsize=8)
def _operation(library: Library, product: Product) -> Operation:
    return Operation(library, product)


class _Algorithm:
    """One algorithm, with all that is said of its configuration, on tensors of any sizes that it is legal for."""

    def __init__(self, loader: CublasLt, signed: GemmProblem, knobs: Mapping[str, int]) -> None:
        self._loader, self._signed, self._knobs = loader, signed, knobs
        self._planned = lru_cache(maxsize=64)(self._plan)

    def __call__(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Start it on the current stream; of B [batch, n, k] only the address counts."""
        batch, m, n = output.shape
        device = output.get_device()
        problem, operation, algorithm, workspace = self._planned(m, n, inputs[0].shape[2], batch, device)
        operation.run(algorithm, workspace, problem, inputs, output)

    def _plan(self, m: int, n: int, k: int, batch: int, device: int) -> tuple[GemmProblem, Operation, Algorithm, int]:
        """All that a launch on a device needs, which is the current one."""
        problem = replace(self._signed, m=m, n=n, k=k, batch=batch)
        operation = self._loader.operation(problem)
        algorithm = operation.configured(self._knobs["algorithm"], self._knobs)
        workspace = operation.workspace(algorithm)
        if workspace is None:
            raise SpaceError(f"cuBLASLt {self._loader.library.version} refuses the algorithm for {problem}")
        return problem, operation, algorithm, workspace


class FastCublasLt(CublasLt):
    """The same with fast accumulation: `torch._scaled_mm` calls it `use_fast_accum`."""

    fast = True

"""Loaders: what launches a kernel of a library that is there already, and knows which kernels it has.

A template that names a loader compiles nothing. Its artifacts describe a kernel, as JSON. The measuring process uses
the loader, as it uses the workload.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tilescout.spaces.plugins import new_instance
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

Launch = Callable[[Tensors, "torch.Tensor"], "torch.Tensor | None"]
"""Starts a kernel on inputs and an output, on the current stream; returns the result where that is another tensor."""


@dataclass(frozen=True)
class Listing:
    """The kernels that a library has for a problem.

    Attributes
    ----------
    rows
        The values of the template's knobs, of each kernel; the first is what the library runs unless it is told.
    library, version
        The library's name and its version.
    asked
        Configurations that the library was asked about.
    complete
        Whether it was asked about all.
    seconds
        How long that took.
    census
        The number of the way in which kernels are listed: of a listing that was kept by another nothing follows.
    """

    rows: Sequence[Sequence[int | str]]
    library: str
    version: str
    asked: int
    complete: bool
    seconds: float
    census: int = 1


class Loader(ABC):
    """The library of a template, in the process that runs its kernels."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The version of the library here: what describes a kernel holds for one version.

        Raises
        ------
        DeviceError
            If there is no such library.
        """

    @abstractmethod
    def launch(self, description: str) -> Launch:
        """The function that starts the kernel that an artifact describes.

        Raises
        ------
        SpaceError
            If it is described wrongly. What the library refuses for the tensors it refuses when it is launched.
        """

    @abstractmethod
    def listing(self, problem: str, guesses: int | None) -> Listing:
        """The kernels that the library has for a problem.

        Parameters
        ----------
        problem
            The problem, as text.
        guesses
            So many of those that the library itself would choose among, the best guess first; None lists all kernels.

        Raises
        ------
        SpaceError
            If it has none.
        """


@cache
def load_loader(path: str) -> Loader:
    """The loader of a class given as ``module:Class``.

    This imports the module, which runs its code: pass what a template says, never what was read from a file.

    Raises
    ------
    SpaceError
        If there is none.
    """
    loader: Loader = new_instance(path, Loader, "tilescout.spaces.cublaslt.loader:CublasLt")
    return loader

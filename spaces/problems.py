"""What is computed: the base of all problems, and the element types."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self


@dataclass(frozen=True)
class DType:
    """An element type in memory; products accumulate in fp32.

    Attributes
    ----------
    name
        The short name used in problems: ``bf16``, ``e4m3``.
    torch_name
        The attribute of ``torch`` that names the type.
    bytes
        Size of an element.
    unit_roundoff
        Largest relative error of rounding a real number to the type (half the distance between 1 and the next
        number): 2**-8 for 8 significant bits, 2**-11 for 11.
    """

    name: str
    torch_name: str
    bytes: int
    unit_roundoff: float


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("bf16", "bfloat16", 2, 2.0**-8),
        DType("fp16", "float16", 2, 2.0**-11),
        DType("e4m3", "float8_e4m3fn", 1, 2.0**-4),
        DType("fp32", "float32", 4, 2.0**-24),
    )
}


@dataclass(frozen=True)
class Unit:
    """What the speed at which problems are solved is given in.

    Attributes
    ----------
    name
        In MLflow and JSON.
    symbol
        For people.
    """

    name: str
    symbol: str


TERAFLOPS = Unit("tflops", "TFLOP/s")
TERABYTES = Unit("terabytes_per_second", "TB/s")


@dataclass(frozen=True)
class Rate:
    """The speed at which a problem is solved, as people give it for problems of its kind.

    Attributes
    ----------
    unit
        Of the speed.
    work
        How much of it a problem is: operations, or bytes; 0 if that is not known.
    """

    unit: Unit
    work: int

    def at(self, time_us: float) -> float:
        """The speed of a kernel that takes `time_us` µs, in 10**12 a second; 0 if it is not known."""
        return self.work / time_us / 1e6


@dataclass(frozen=True)
class Problem(ABC):
    """What a kernel is to compute: sizes, which kernels take as arguments, and a signature, which they are built for.

    Problems are frozen dataclasses. They are hashable, and print as one line that `parse` reads back. A field holds
    each of the `sizes`, under the same name.
    """

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read the form that `str` prints.

        Raises
        ------
        ProblemError
            If `text` has another form or names an impossible problem.
        """
        raise NotImplementedError  # an abstract class method can be called

    @classmethod
    @abstractmethod
    def small(cls, signature: str) -> Self:
        """A small problem of a signature: what holds for all sizes can be asked of it.

        Raises
        ------
        ProblemError
            If it is no signature.
        """
        raise NotImplementedError

    def with_signature(self, signature: str) -> Self:
        """The problem of the same sizes with another signature.

        Raises
        ------
        ProblemError
            If it is no signature, or no problem of these sizes can have it.
        """
        return replace(self.small(signature), **self.sizes)

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The sizes by name, in elements."""

    @property
    @abstractmethod
    def signature(self) -> str:
        """All but the sizes, as it is printed: element types, and what else is compiled into a kernel."""

    @property
    @abstractmethod
    def element(self) -> DType:
        """The element type of the inputs."""

    @property
    @abstractmethod
    def result(self) -> DType:
        """The element type of the output."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations; 0 if they are not known or do not count."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes that must cross device memory: each input read once, the output written once."""

    @property
    def rate(self) -> Rate:
        """What its speed is given in: operations, unless a subclass that is bound by memory says bytes."""
        return Rate(TERAFLOPS, self.flops)

    @property
    def family(self) -> str:
        """A name that is shared by problems whose times the same things limit; ``other`` unless a subclass says more.

        What a cost model learned in one family need not hold in another, and is judged for each.
        """
        return "other"

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """The largest relative Frobenius error that rounding alone explains; an element may be off twice as much."""


# A class of problems: what templates, workloads, constraints and search spaces are generic over. Where none is named it
# is any problem, so that code for all of them writes `KernelTemplate` and `SearchSpace`. Before Python 3.13 such a
# default (PEP 696) is known to type checkers alone.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P = TypeVar("P", bound=Problem, default=Problem)
    P_co = TypeVar("P_co", bound=Problem, default=Problem, covariant=True)
    P_contra = TypeVar("P_contra", bound=Problem, default=Problem, contravariant=True)
else:
    from typing import TypeVar

    P = TypeVar("P", bound=Problem)
    P_co = TypeVar("P_co", bound=Problem, covariant=True)
    P_contra = TypeVar("P_contra", bound=Problem, contravariant=True)

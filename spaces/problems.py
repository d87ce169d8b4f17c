"""Problems: the base class of all that kernels can compute, and the element types."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import index
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Self

from tilescout.spaces.errors import ProblemError


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
    """The unit in which the speed of a kernel is given.

    Attributes
    ----------
    name
        Its name in MLflow and JSON.
    symbol
        Its symbol in tables and messages.
    """

    name: str
    symbol: str


TERAFLOPS = Unit("tflops", "TFLOP/s")
TERABYTES = Unit("terabytes_per_second", "TB/s")


@dataclass(frozen=True)
class Rate:
    """The measure of a kernel's speed that is usual for a kind of problem: operations or bytes a second.

    Attributes
    ----------
    unit
        The unit of the speed.
    work
        The operations, or bytes, of the problem; 0 if they are not known.
    """

    unit: Unit
    work: int

    def at(self, time_us: float) -> float:
        """The speed of a kernel that takes `time_us` µs, in 10**12 a second; 0 if the work is not known."""
        return self.work / time_us / 1e6


@dataclass(frozen=True)
class Problem(ABC):
    """A computation that kernels perform. It has sizes, which kernels take as arguments, and a signature.

    A kernel is built for a signature and holds for all sizes. Problems are frozen dataclasses: they are hashable, and
    print as one line that `parse` reads back. Each of the `sizes` is a field of that name.

    Raises
    ------
    ProblemError
        If a field that is annotated as an ``int`` is no whole number. One of NumPy becomes Python's, which has no end.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type in (int, "int") and type(value := getattr(self, field.name)) is not int:
                object.__setattr__(self, field.name, _whole(field.name, value))

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
        """A small problem of a signature. It answers for all sizes, for example which element types there are.

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
        """All but the sizes, as it is printed: element types, and all else that is compiled into a kernel."""

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
        """The measure of its speed: operations, unless a subclass whose kernels are bound by memory takes bytes."""
        return Rate(TERAFLOPS, self.flops)

    @property
    def family(self) -> str:
        """A name that is shared by problems whose times the same things limit; ``other`` unless a subclass says more.

        What a cost model learned in one family need not hold in another, and is judged for each.
        """
        return "other"

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, in an order that is the same for problems of the same work; see `tilescout.spaces.shapes`."""
        return tuple(self.sizes.values())

    @property
    def dimensions(self) -> tuple[int, ...]:
        """How large it is: its sizes, and the lengths that are compiled into its kernels, if a subclass has such.

        Problems of one kernel that have as many lie the nearer to one another the more alike these are.
        """
        return tuple(self.sizes.values())

    @property
    def unseen(self) -> Self:
        """The problem with other inputs than its own, on which a race judges what a search chose.

        It is the problem itself unless times depend on what the inputs hold.
        """
        return self

    @property
    def averaged(self) -> str:
        """The inputs that a time is the mean over, in words; empty unless it depends on what they hold."""
        return ""

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """The largest relative error, in the Frobenius norm, that rounding explains; an element may be off twice it."""


def _whole(name: str, value: Any) -> int:
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:  # of a float, too: 512.0 would be printed as what no problem is
        pass
    raise ProblemError(f"the {name} of a problem can't be {short(value)}: allowed are whole numbers")


class UniformProblem(Problem):
    """A problem whose inputs and output have one element type, which alone is compiled into a kernel.

    Attributes
    ----------
    dtype
        The name of the type.
    """

    dtype: str

    @property
    def signature(self) -> str:
        return self.dtype

    @property
    def element(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def result(self) -> DType:
        return DTYPES[self.dtype]


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

"""What is computed: the shape and types of one matrix product."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short

from tilescout.spaces.errors import ProblemError


@dataclass(frozen=True)
class DType:
    """A 16-bit element type of the operands and the result; products accumulate in fp32.

    Attributes
    ----------
    name
        The short name used in problems: ``bf16``, ``fp16``.
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
    "bf16": DType("bf16", "bfloat16", 2, 2.0**-8),
    "fp16": DType("fp16", "float16", 2, 2.0**-11),
}

_TEXT = re.compile(r"(?P<m>\d{1,10})x(?P<n>\d{1,10})x(?P<k>\d{1,10})(x(?P<batch>\d{1,10}))?(:(?P<dtype>\w+))?")
_FORM = "MxNxK[xBATCH][:DTYPE], for example 4096x4096x4096:bf16"
_LARGEST = 2**31 - 1  # kernels index with 32-bit integers


@dataclass(frozen=True, order=True)
class Problem:
    """The product D[batch, m, n] = A[batch, m, k] @ B[batch, n, k].T.

    Parameters
    ----------
    m, n, k
        Sizes in elements.
    batch
        Number of independent products.
    dtype
        Name of the element type of A, B and D.

    Raises
    ------
    ProblemError
        If a size is out of range or the type is unknown.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            size = getattr(self, name)
            if not 1 <= size <= _LARGEST:
                raise ProblemError(f"problem {self}: {name} is {size}, allowed are 1 to {_LARGEST}")
        if self.dtype not in DTYPES:
            raise ProblemError(f"problem {self}: unknown type {self.dtype!r}, allowed are {', '.join(DTYPES)}")

    def __str__(self) -> str:
        batch = f"x{self.batch}" if self.batch != 1 else ""
        return f"{self.m}x{self.n}x{self.k}{batch}:{self.dtype}"

    @classmethod
    def parse(cls, text: str) -> "Problem":
        """Read the form that `str` prints, ``MxNxK[xBATCH][:DTYPE]``.

        Raises
        ------
        ProblemError
            If `text` has another form or names an impossible problem.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ProblemError(f"malformed problem {short(text)}: expected {_FORM}")
        m, n, k = (int(match[name]) for name in ("m", "n", "k"))
        return cls(m, n, k, int(match["batch"] or cls.batch), match["dtype"] or cls.dtype)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes by name, in elements."""
        return {"m": self.m, "n": self.n, "k": self.k, "batch": self.batch}

    @property
    def signature(self) -> str:
        """All but the sizes, as it is printed."""
        return self.dtype

    @property
    def element(self) -> DType:
        """The element type."""
        return DTYPES[self.dtype]

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for every m, n, k."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Bytes that must cross device memory: each input read once, the output written once."""
        elements = self.m * self.k + self.n * self.k + self.m * self.n
        return self.batch * elements * self.element.bytes

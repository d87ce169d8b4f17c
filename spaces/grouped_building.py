"""Stand-ins for the arguments of grouped kernels, when these are compiled."""

from typing import TYPE_CHECKING, Any

from tilescout.spaces.building import element_type
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT
from tilescout.spaces.grouped import GroupedProblem

if TYPE_CHECKING:
    from cutlass import cute

_NUMBER_BYTES = 4


def stand_ins(problem: GroupedProblem, of_rows: Any = None, gathered: bool = False) -> tuple[Any, ...]:
    """A [tokens, k], B [experts, n, k], the ends of the groups [experts], D [tokens, n], and the clusters at most.

    All sizes are dynamic; rows are promised to be multiples of 16 bytes.

    Parameters
    ----------
    problem
        A problem of the signature.
    of_rows
        The type of numbers of the rows of D, [tokens], that stand before D; None without such.
    gathered
        Whether A has other rows than D.
    """
    from cutlass import Int32, cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    element = element_type(problem.element)
    step = ALIGNMENT // problem.element.bytes
    experts, tokens = cute.sym_int(symbol="experts"), cute.sym_int(symbol="tokens")
    n, k = (cute.sym_int(divisibility=step, symbol=name) for name in "nk")

    def tensor(*sizes: "cute.SymInt") -> "cute.Tensor":
        order = tuple(reversed(range(len(sizes))))
        return make_fake_compact_tensor(element, sizes, stride_order=order, assumed_align=ALIGNMENT)

    ends = make_fake_compact_tensor(Int32, (experts,), assumed_align=_NUMBER_BYTES)
    numbers = () if of_rows is None else (make_fake_compact_tensor(of_rows, (tokens,), assumed_align=_NUMBER_BYTES),)
    rows = cute.sym_int(symbol="rows") if gathered else tokens
    return tensor(rows, k), tensor(experts, n, k), ends, *numbers, tensor(tokens, n), Int32(1)

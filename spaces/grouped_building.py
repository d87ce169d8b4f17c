"""Stand-ins for the arguments of grouped kernels, when these are compiled."""

from typing import TYPE_CHECKING, Any

from tilescout.spaces.building import element_type
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT
from tilescout.spaces.grouped import GroupedProblem

if TYPE_CHECKING:
    from cutlass import cute

_OFFSET_BYTES = 4


def stand_ins(problem: GroupedProblem) -> tuple[Any, ...]:
    """A [tokens, k], B [experts, n, k], the ends of the groups [experts], D [tokens, n], and the clusters at most.

    All sizes are dynamic; rows are promised to be multiples of 16 bytes.

    Parameters
    ----------
    problem
        A problem of the signature.
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

    ends = make_fake_compact_tensor(Int32, (experts,), assumed_align=_OFFSET_BYTES)
    return tensor(tokens, k), tensor(experts, n, k), ends, tensor(tokens, n), Int32(1)

"""Matrix products: the problem, its operands, the reference, and the vendor library's version.

torch is imported where it is used.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from reprlib import repr as short
from typing import TYPE_CHECKING

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.problems import DTYPES, DType, Problem
from tilescout.spaces.texts import quoted
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

INPUTS = ("bf16", "fp16", "e4m3")
OUTPUTS = ("bf16", "fp16", "fp32")
_OUTPUTS_ALONE = "fp32 is for outputs only, as in bf16-fp32"
LAYOUTS = ("kk", "kn", "mk", "mn")
ACTIVATIONS = ("relu", "gelu", "silu")

SMALL_FLOPS = 2 * 1024**3  # at most a 1024-cube: limited by latencies
SKINNY = 8  # times longer than wide, and so few rows or columns that device memory limits it:
SKINNY_SIZE = 256

_FAST = "fast"
_OPERATIONS = ("alpha", "bias", *ACTIVATIONS)
_PART = rf"({'|'.join(_OPERATIONS)})"
_TEXT = re.compile(
    r"(?P<m>\d{1,10})x(?P<n>\d{1,10})x(?P<k>\d{1,10})(x(?P<batch>\d{1,10}))?"
    rf"(:(?!({'|'.join(LAYOUTS)}|{_PART}|{_FAST})\b)(?P<dtype>\w+)(-(?P<out>\w+))?)?"
    rf"(:(?P<fast>{_FAST}))?"
    rf"(:(?P<layout>{'|'.join(LAYOUTS)}))?"
    rf"(:(?P<epilogue>{_PART}(\+{_PART})*))?"
)
_FORM = (
    "MxNxK[xBATCH][:DTYPE[-OUT]][:fast][:LAYOUT][:EPILOGUE], for example 4096x4096x4096:bf16, "
    "64x8192x8192:e4m3-bf16 or 2048x4096x4096:bf16:kn:bias+gelu"
)
_LARGEST = 2**31 - 1  # kernels index with 32-bit integers
_MOST_BYTES = 2**52  # of operands and result, more than any memory has: tiles and their steps count to less than 2**63

# The relative error that accumulating may add to the rounding of the result. Tensor cores truncate. In fp32 they lose
# 2**-23 at every step of 16 products: 6e-5 after 16,384. In fp8 they keep 14 bits (DeepSeek-V3 technical report,
# arXiv:2412.19437, section 3.3.2), and kernels promote the sums to fp32 about every 128 products.
_ACCUMULATION = {1: 2.0**-10, 2: 2.0**-12}


@dataclass(frozen=True, order=True)
class GemmProblem(Problem):
    """The product D[batch, m, n] = activation(alpha * A[batch, m, k] @ B[batch, n, k].T + bias[n]).

    D is row-major. Sums are in fp32, but where `fast` lets them have fewer bits.

    Parameters
    ----------
    m, n, k
        Sizes in elements.
    batch
        Number of independent products.
    dtype
        Name of the element type of A and B: ``bf16``, ``fp16`` or ``e4m3``.
    out
        Name of the element type of D: ``bf16``, ``fp16`` or ``fp32``; empty for that of A, or bf16 if that is e4m3.
    layout
        The dimension along which A is contiguous (``k`` or ``m``), then that of B (``k`` or ``n``); ``kk`` unless
        told. e4m3 operands are always ``kk``: Hopper's tensor cores read them no other way.
    alpha
        Whether the product is scaled by a number in device memory.
    bias
        Whether a vector along n is added; its type is that of D.
    activation
        ``relu``, ``gelu`` (exact), ``silu``, or empty.
    fast
        Whether sums of e4m3 products may have the fewer bits that the tensor cores keep of them: `use_fast_accum` of
        `torch._scaled_mm`. A kernel may still promote them to fp32.

    Raises
    ------
    ProblemError
        If a size is out of range, or all of them together, a type, layout or epilogue is unknown, or sums of another
        type are to be fast.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    out: str = ""
    layout: str = "kk"
    alpha: bool = False
    bias: bool = False
    activation: str = ""
    fast: bool = False

    def __post_init__(self) -> None:
        if not self.out:
            object.__setattr__(self, "out", _default_out(self.dtype))
        super().__post_init__()
        for name in ("m", "n", "k", "batch"):
            size = getattr(self, name)
            if not 1 <= size <= _LARGEST:
                raise ProblemError(f"problem {self}: {name} is {size}, allowed are 1 to {_LARGEST}")
        choices = {"dtype": INPUTS, "out": OUTPUTS, "layout": LAYOUTS, "activation": ("", *ACTIVATIONS)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                kind = "type" if name in ("dtype", "out") else name
                known = ", ".join(choice for choice in allowed if choice)
                for_outputs = f"; {_OUTPUTS_ALONE}" * (name == "dtype" and self.dtype in OUTPUTS)
                raise ProblemError(
                    f"problem {self}: unknown {kind} {getattr(self, name)!r}, allowed are {known}{for_outputs}"
                )
        if self.element.bytes == 1 and self.layout != "kk":
            raise ProblemError(f"problem {self}: {self.dtype} operands have layout kk, not {self.layout}")
        if self.fast and self.element.bytes != 1:
            raise ProblemError(f"problem {self}: only sums of e4m3 are fast, not those of {self.dtype}: leave it out")
        if self.bytes > _MOST_BYTES:
            raise ProblemError(f"problem {self}: its matrices have {self.bytes} bytes, {_MOST_BYTES} at most")

    def __str__(self) -> str:
        batch = f"x{self.batch}" if self.batch != 1 else ""
        return f"{self.m}x{self.n}x{self.k}{batch}:{self.signature}"

    @property
    def signature(self) -> str:
        out = f"-{self.out}" if self.out != _default_out(self.dtype) or self.dtype == "e4m3" else ""
        layout = f":{self.layout}" if self.layout != "kk" else ""
        epilogue = f":{self.epilogue}" if self.epilogue else ""
        return f"{self.dtype}{out}{f':{_FAST}' * self.fast}{layout}{epilogue}"

    @property
    def epilogue(self) -> str:
        """The operations on the product, as printed: ``alpha``, ``bias`` and the activation, joined by ``+``."""
        parts = ("alpha" * self.alpha, "bias" * self.bias, self.activation)
        return "+".join(part for part in parts if part)

    @classmethod
    def parse(cls, text: str) -> "GemmProblem":
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ProblemError(f"malformed problem {quoted(text)}: {_unknown(text) or f'expected {_FORM}'}")
        parts = (match["epilogue"] or "").split("+")
        activation, *more = [part for part in parts if part in ACTIVATIONS] or [""]
        if more:
            raise ProblemError(f"malformed problem {quoted(text)}: it has the activations {activation} and {more[0]}")
        m, n, k, batch = (int(match[name] or cls.batch) for name in ("m", "n", "k", "batch"))
        dtype, out, layout = (match[name] or getattr(cls, name) for name in ("dtype", "out", "layout"))
        fast = match["fast"] is not None
        problem = cls(m, n, k, batch, dtype, out, layout, "alpha" in parts, "bias" in parts, activation, fast)
        if problem.epilogue != (match["epilogue"] or ""):
            raise ProblemError(f"malformed problem {quoted(text)}: write its epilogue as {problem.epilogue}")
        return problem

    @classmethod
    def small(cls, signature: str) -> "GemmProblem":
        return cls.parse(f"16x16x16:{signature}")

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"m": self.m, "n": self.n, "k": self.k, "batch": self.batch}

    @property
    def element(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def result(self) -> DType:
        return DTYPES[self.out]

    @property
    def flops(self) -> int:
        """A multiplication and an addition for every m, n, k; the epilogue counts nothing."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        read = self.batch * (self.m * self.k + self.n * self.k) * self.element.bytes
        epilogue = 4 * self.alpha + self.n * self.result.bytes * self.bias
        return read + epilogue + self.batch * self.m * self.n * self.result.bytes

    @property
    def family(self) -> str:
        """``small``, ``skinny`` or ``large``: what tends to limit a product on a large GPU.

        A small one is limited by latencies, a skinny one by device memory, a large one by the tensor cores.
        """
        narrow, wide = sorted((self.m, self.n))
        if narrow <= SKINNY_SIZE and wide >= SKINNY * narrow:
            return "skinny"
        return "small" if self.flops <= SMALL_FLOPS else "large"

    @property
    def shape(self) -> tuple[int, ...]:
        """The longer and the shorter of m and n, then k and the batch: a product and its transpose have the same."""
        return max(self.m, self.n), min(self.m, self.n), self.k, self.batch

    @property
    def tolerance(self) -> float:
        return self.result.unit_roundoff + _ACCUMULATION[self.element.bytes]


def _default_out(dtype: str) -> str:
    return "bf16" if dtype == "e4m3" else dtype


class Gemm(Workload[GemmProblem]):
    """D = activation(alpha * A @ B.T + bias); inputs are A, B, then alpha and bias if the problem has them.

    The library is cuBLAS on a GPU and oneDNN or MKL on a CPU. It is called through ``torch.mm``, or for e4m3 through
    ``torch._scaled_mm``, whose accumulation is accurate unless the problem says fast. Further operations on the output
    do those parts of the epilogue that these do not fuse.
    """

    problem = GemmProblem
    candidates = "cublaslt"
    inductor = True

    def library(self, problem: GemmProblem) -> str:
        return f"torch._scaled_mm(use_fast_accum={problem.fast})" if problem.element.bytes == 1 else "torch.mm"

    def inputs(self, problem: GemmProblem, generator: "torch.Generator") -> Tensors:
        import torch

        def normal(*shape: int) -> "torch.Tensor":
            return torch.randn(shape, generator=generator, device=generator.device)

        def operand(rows: int, contiguous: str) -> "torch.Tensor":
            shape = (problem.batch, rows, problem.k) if contiguous == "k" else (problem.batch, problem.k, rows)
            if problem.element.bytes == 2:
                dtype = getattr(torch, problem.element.torch_name)
                made = torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
            else:
                made = normal(*shape).to(getattr(torch, problem.element.torch_name))
            return made if contiguous == "k" else made.transpose(1, 2)

        inputs = [operand(problem.m, problem.layout[0]), operand(problem.n, problem.layout[1])]
        if problem.alpha:
            # Far from 1, so that a kernel that forgets it is wrong.
            inputs.append(normal(1).abs() + 0.5)
        if problem.bias:
            # As large as the product, so that a kernel that forgets it is wrong.
            inputs.append((normal(problem.n) * problem.k**0.5).to(getattr(torch, problem.result.torch_name)))
        return tuple(inputs)

    def output(self, problem: GemmProblem, device: "torch.device") -> "torch.Tensor":
        import torch

        dtype = getattr(torch, problem.result.torch_name)
        return torch.empty((problem.batch, problem.m, problem.n), device=device, dtype=dtype)

    def reference(self, problem: GemmProblem, inputs: Tensors) -> "torch.Tensor":
        import torch

        a, b = inputs[:2]
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # no TF32
        try:
            result = torch.bmm(a.float(), b.float().transpose(1, 2))
        finally:
            torch.set_float32_matmul_precision(precision)
        alpha, bias = epilogue_inputs(problem, inputs)
        if alpha is not None:
            result *= alpha
        if bias is not None:
            result += bias.float()
        return activate(result, problem.activation)

    def run_library(self, problem: GemmProblem, inputs: Tensors, output: "torch.Tensor") -> None:
        a, b = inputs[:2]
        alpha, bias = epilogue_inputs(problem, inputs)
        if problem.element.bytes == 1:
            _scaled_mm(a, b, alpha, bias, output, problem.fast)
        else:
            _mm(a, b, bias if alpha is None else None, output)
            if alpha is not None:
                output.mul_(alpha)
                if bias is not None:
                    output.add_(bias)
        activate(output, problem.activation)

    def edge_problem(self, problem: GemmProblem) -> GemmProblem:
        # No tile, cluster or stage divides these sizes: 389 is prime, 584 = 8 * 73, 328 = 8 * 41. Rows of 1-byte
        # elements must be multiples of 16 bytes, and so must the contiguous rows of A that run along m. There are two
        # products, so that kernels walk a batch too.
        m = 392 if problem.layout[0] == "m" else 389
        k = 336 if problem.element.bytes == 1 else 328
        return replace(problem, m=m, n=584, k=k, batch=2)


def epilogue_inputs(problem: GemmProblem, inputs: Tensors) -> "tuple[torch.Tensor | None, torch.Tensor | None]":
    """Alpha and bias among the inputs of a problem; None for one that it has not."""
    rest = list(inputs[2:])
    alpha = rest.pop(0) if problem.alpha else None
    return alpha, rest.pop(0) if problem.bias else None


def _mm(a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor | None", output: "torch.Tensor") -> None:
    import torch

    if output.dtype != a.dtype:
        # cuBLAS writes fp32; other types, and other devices, need a copy.
        b = b.transpose(1, 2)
        wide = a.is_cuda and output.dtype == torch.float32
        product = torch.bmm(a, b, torch.float32) if wide else torch.bmm(a, b)
        output.copy_(product if bias is None else product + bias)
    elif len(a) > 1 and bias is not None:
        torch.baddbmm(bias, a, b.transpose(1, 2), out=output)
    elif len(a) > 1:
        torch.bmm(a, b.transpose(1, 2), out=output)
    elif bias is not None:
        torch.addmm(bias, a[0], b[0].t(), out=output[0])
    else:
        torch.mm(a[0], b[0].t(), out=output[0])


def _scaled_mm(
    a: "torch.Tensor",
    b: "torch.Tensor",
    alpha: "torch.Tensor | None",
    bias: "torch.Tensor | None",
    output: "torch.Tensor",
    fast: bool,
) -> None:
    import torch

    one = _one(a.device)
    for at in range(len(a)):
        torch._scaled_mm(
            a[at],
            b[at].t(),
            scale_a=one if alpha is None else alpha,
            scale_b=one,
            bias=bias,
            out_dtype=output.dtype,
            out=output[at],
            use_fast_accum=fast,
        )


@cache
def _one(device: "torch.device") -> "torch.Tensor":
    import torch

    return torch.ones(1, device=device)


def _unknown(text: str) -> str:
    """The first word behind the sizes of a malformed problem that none may have; empty if something else is wrong."""
    known = {"", *INPUTS, *OUTPUTS, _FAST, *LAYOUTS, *_OPERATIONS}
    words = (word for part in text.strip().split(":")[1:] for word in re.split("[-+]", part))
    word = next((word for word in words if word not in known), None)
    if word is None:
        return ""
    return (
        f"unknown {short(word)}, allowed are types ({', '.join(INPUTS)}; {_OUTPUTS_ALONE}), {_FAST}, "
        f"layouts ({', '.join(LAYOUTS)}) and epilogues ({', '.join(_OPERATIONS)}, joined by +)"
    )


def activate(tensor: "torch.Tensor", activation: str) -> "torch.Tensor":
    """Apply an activation in place."""
    import torch

    if activation == "relu":
        return torch.relu_(tensor)
    if activation == "gelu":
        return torch.ops.aten.gelu.out(tensor, out=tensor)  # type: ignore[no-any-return]
    if activation == "silu":
        return torch.nn.functional.silu(tensor, inplace=True)
    return tensor

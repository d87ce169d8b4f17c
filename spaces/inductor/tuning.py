"""Matrix products compiled by TorchInductor with one of its backends alone, which it tunes by timing candidates."""

import contextlib
import io
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem, epilogue_inputs
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

# What TorchInductor writes to standard error, in all releases from 2.0 on.
_SPENT = re.compile(
    r"benchmarking takes ([0-9.]+) seconds(?: and ([0-9.]+) seconds precompiling)?(?: for (\d+) choices)?"
)

_SETTINGS: Mapping[str, Mapping[str, Any]] = {"TRITON": {"compile_threads": 1}}
"""Settings of TorchInductor for the kernels of a backend.

Threads of this process compile Triton's candidates, not TorchInductor's pool of processes. With the pool it spent 4 to
6 s on timing some 20 candidates in bf16 and 11 to 39 s on 54 to 105 in e4m3, but 0.2 to 0.6 s in the first problem of a
run, where the pool was not ready yet and threads compiled them. With threads it is 0.2 to 0.6 s on all five problems
in bf16 (H200, torch 2.11, 2026-11-22 and 2026-11-23).
"""


class NoBackendError(TilescoutError):
    """A backend has no kernel for a product in this torch."""


@dataclass(frozen=True)
class Tuned:
    """A product that TorchInductor compiled and tuned.

    Attributes
    ----------
    run
        Takes the problem's inputs, and returns the result in new memory.
    seconds
        What the first call took: compiling, and timing the candidates.
    benchmarking, precompiling
        The parts of that which TorchInductor says that it timed and compiled candidates for; None if it says nothing.
    candidates
        How many there were; None if it does not say.
    """

    run: Callable[..., Any]
    seconds: float
    benchmarking: float | None
    precompiling: float | None
    candidates: int | None

    def launch(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Start it; its result is in memory of its own, and `output` stays as it is."""
        self.run(*inputs)

    def launch_into(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Start it, and put the result where it is looked at."""
        output.copy_(self.run(*inputs))

    def to_dict(self) -> dict[str, Any]:
        """The cost of it, ready for JSON."""
        names = ("seconds", "benchmarking", "precompiling", "candidates")
        return {name: getattr(self, name) for name in names}


def form_of(problem: GemmProblem, device: "torch.device") -> Callable[..., "torch.Tensor"]:
    """How a model writes a problem: a new function of A [batch, m, k], B [batch, n, k] and its epilogue's vectors."""
    import torch

    functional = torch.nn.functional
    activations = {"": lambda x: x, "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu}
    activation: Callable[..., torch.Tensor] = activations[problem.activation]
    out = getattr(torch, problem.result.torch_name)
    # A tensor for each scale: torch 2.11 names the parameters of CUTLASS's kernels by tensors, each of which once.
    one, other = torch.ones((), device=device), torch.ones((), device=device)

    def form(*inputs: torch.Tensor) -> torch.Tensor:
        a, b = inputs[:2]
        alpha, bias = epilogue_inputs(problem, inputs)
        if problem.element.bytes == 1:
            first = one if alpha is None else alpha.reshape(())
            product = torch._scaled_mm(
                a[0], b[0].t(), first, other, bias=bias, out_dtype=out, use_fast_accum=problem.fast
            )
            return activation(product)[None]
        result = (a[0] @ b[0].t())[None] if problem.batch == 1 else torch.bmm(a, b.transpose(1, 2))
        result = result if alpha is None else result * alpha
        return activation(result if bias is None else result + bias)

    # Graphs are kept by the object of the code: with one of its own, nothing known is found and nothing is thrown out.
    return FunctionType(form.__code__.replace(), form.__globals__, closure=form.__closure__)


def tune_by(
    backend: str, problem: GemmProblem, inputs: Tensors, settings: Mapping[str, Any] = MappingProxyType({})
) -> Tuned:
    """Compile a problem with TorchInductor, which may choose among the candidates of one backend alone.

    It takes no graph that it compiled and no time that it measured before from its caches, so that the seconds are
    those of a first time; only what a compiler made of the very same source is taken. What was tuned before stays as
    it is. Settings are further ones of TorchInductor's configuration, by name; one that this torch does not have is
    left out.

    Raises
    ------
    NoBackendError
        If this torch has no candidate of the backend for it, or can't compile one.
    """
    import torch

    options: dict[str, Any] = {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": backend,
        "autotune_fallback_to_aten": False,
        "fx_graph_cache": False,
        "autotune_local_cache": False,
        **_SETTINGS.get(backend, {}),
        **settings,
    }
    known = torch._inductor.config.get_config_copy()
    options = {name: value for name, value in options.items() if name in known}  # names come and go with releases
    compiled = torch.compile(form_of(problem, inputs[0].device), dynamic=False, options=options)
    said, started = io.StringIO(), time.monotonic()
    try:
        with contextlib.redirect_stderr(said), torch.no_grad():
            result = compiled(*inputs)
    except Exception as error:  # whatever the compilers of this torch raise
        raise NoBackendError(f"no kernel by {backend}: {one_line(error, 200)}") from error
    if result.is_cuda:
        torch.cuda.synchronize(result.device)
    seconds = time.monotonic() - started
    found = _SPENT.search(said.getvalue())
    benchmarking, precompiling, count = found.groups() if found else (None, None, None)
    if result.is_cuda and found is None:
        raise NoBackendError(f"torch {torch.__version__} timed no candidate by {backend}")
    return Tuned(
        run=torch.no_grad()(compiled),
        seconds=seconds,
        benchmarking=None if benchmarking is None else float(benchmarking),
        precompiling=None if precompiling is None else float(precompiling),
        candidates=None if count is None else int(count),
    )

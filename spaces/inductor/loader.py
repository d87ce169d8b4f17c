"""The loader of what TorchInductor compiles: it is tuned in the process that measures, when it is first launched."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inductor.tuning import tune_by
from tilescout.spaces.knobs import Value
from tilescout.spaces.loaders import Launch, Listing, Loader
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

BACKENDS = ("TRITON", "ATEN")


def describe(configuration: Mapping[str, Value], signature: str) -> str:
    """The description of a backend's product that `Inductor.launch` reads."""
    return json.dumps({"signature": signature, "backend": configuration["backend"]}, sort_keys=True) + "\n"


class Inductor(Loader):
    """TorchInductor, which times the candidates of one of its backends and keeps the fastest (max-autotune)."""

    @property
    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def listing(self, problem: str, guesses: int | None) -> Listing:
        return Listing([[backend] for backend in BACKENDS], "TorchInductor", self.version, len(BACKENDS), True, 0.0)

    def launch(self, description: str) -> Launch:
        try:
            record = json.loads(description)
            problem, backend = GemmProblem.small(record["signature"]), str(record["backend"])
        except (ValueError, KeyError, TypeError) as error:
            raise SpaceError(f"malformed description of a product by TorchInductor: {error}") from error
        if backend not in BACKENDS:
            raise SpaceError(f"unknown backend {backend!r} of TorchInductor, known are {', '.join(BACKENDS)}")
        return _Tuned(backend, problem)


class _Tuned:
    """A product, tuned for the sizes that it was last launched with."""

    def __init__(self, backend: str, signed: GemmProblem) -> None:
        self._backend, self._signed = backend, signed
        self._tuned: tuple[GemmProblem, Callable[..., torch.Tensor]] | None = None

    def __call__(self, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        """Start it on the current stream; its result is in memory of its own."""
        batch, m, n = output.shape
        problem = replace(self._signed, m=m, n=n, k=inputs[0].shape[2], batch=batch)
        if self._tuned is None or self._tuned[0] != problem:
            self._tuned = problem, tune_by(self._backend, problem, inputs).run
        return self._tuned[1](*inputs)

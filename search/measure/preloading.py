"""Load what a device runs on any problem before one is asked for.

CUDA loads a kernel when it first runs, and a library sets itself up when it is first called: that is half of the time
that the first problem takes. Kernels that threads load at the same time wait little for each other. On an H200 host a
small problem was set up 0.7 to 0.8 s after its process had begun, and a larger one after 0.9 to 1.1 s. Behind another
problem, which loads the same kernels one after the other, it took 1.0 to 1.2 and 1.2 to 1.4 s (three processes each,
2026-11-28; `experiments/results/wall-time.md`).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SHAPE = (64, 64)


def load_kernels(device: "torch.device") -> None:
    """Run once, on some numbers, what draws operands, computes the reference, calls the library and judges an output.

    Raises
    ------
    torch.OutOfMemoryError
        If the device has no memory for that.
    """
    steps: tuple[Callable[[torch.device], object], ...] = (_draw, _multiply, _multiply_exactly, _judge)
    with ThreadPoolExecutor(len(steps), "preloading") as threads:
        for loaded in [threads.submit(step, device) for step in steps]:
            loaded.result()


def _draw(device: "torch.device") -> object:
    import torch

    generator = torch.Generator(device)
    generator.seed()
    return torch.randn(_SHAPE, generator=generator, device=device, dtype=torch.bfloat16).float()


def _multiply(device: "torch.device") -> object:
    import torch

    a = torch.ones(_SHAPE, device=device, dtype=torch.bfloat16)
    return torch.mm(a, a.t(), out=torch.empty_like(a))


def _multiply_exactly(device: "torch.device") -> object:
    import torch

    a = torch.ones((1, *_SHAPE), device=device)
    return torch.bmm(a, a.transpose(1, 2))


def _judge(device: "torch.device") -> object:
    import torch

    reference = torch.ones(_SHAPE, device=device)
    norms = reference.norm(), reference.abs().max()
    error = torch.linalg.vector_norm(torch.sub(reference.bfloat16(), reference))
    bands = torch.empty(_SHAPE, device=device, dtype=torch.int16).fill_(1)
    return torch.stack([*norms, error, (bands != 1).any().float()])

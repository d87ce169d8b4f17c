"""Bundles of the plain GEMM: real kernels that run on the host."""

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tilescout.search.build.artifacts import Artifact
from tilescout.search.build.loading import runtime_libraries
from tilescout.search.build.making import find_linker
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.spaces.gemm import GemmProblem

if TYPE_CHECKING:
    import torch

NOT_PROVEN = Evidence("a-study", "not proven as fast", 1.02, 1.01, 1.03, 12, "a test", {"torch": "2.11.0"})
EVIDENCE = Evidence("a-study", "proven as fast as torch.mm", 0.97, 0.96, 0.98, 12, "a test", {"torch": "2.11.0"})
DIGEST = "0" * 63
WORKLOAD = "tilescout.spaces.gemm:Gemm"
FUSED = (
    "64x1024x512:bf16:alpha+bias+silu",
    "128x512x256:fp16:kn:bias+gelu",
    "64x512x1024:bf16:mk:relu",
    "128x1024x512:bf16:mn",
    "64x256x512x3:bf16:bias+relu",
    "64x1024x512:e4m3-bf16:alpha",
    "32x1024x512:e4m3-fp16:alpha+bias+gelu",
)
"""Problems of every kind that kernels are built for: layouts, types, epilogues, a batch."""

SOURCE = Path(__file__).parents[1] / "kernels" / "strided_gemm.c"

Make = Callable[..., Bundle]


@pytest.fixture(scope="session")
def fused_problems() -> Sequence[GemmProblem]:
    """`FUSED`."""
    return [GemmProblem.parse(text) for text in FUSED]


@pytest.fixture(scope="session", params=FUSED)
def fused_problem(request: pytest.FixtureRequest) -> GemmProblem:
    """Each of `FUSED`."""
    return GemmProblem.parse(request.param)


@pytest.fixture(scope="session")
def make_bundle(build_plain: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A function: a bundle that decides for our kernel on some problems and for the library on others."""

    def make_bundle(ours: Sequence[str], library: Sequence[str] = (), arch: str = "host", repeats: int = 1) -> Bundle:
        artifact = build_plain(repeats=repeats)
        digest = f"{DIGEST}{repeats}"
        kernel = Kernel(
            f"{KERNELS}/{digest}.so",
            artifact.sha256,
            artifact.function,
            "tilescout.spaces.gemm:Gemm",
            1,
            {"repeats": repeats},
        )
        decisions = [Decision(GemmProblem.parse(text), Choice.OURS, EVIDENCE, digest) for text in ours]
        decisions += [Decision(GemmProblem.parse(text), Choice.LIBRARY, NOT_PROVEN) for text in library]
        path = tmp_path_factory.mktemp("bundles") / "bundle"
        kernels = {digest: (kernel, artifact.path)} if ours else {}
        return write_bundle(path, arch, "host", {"made": str(path)}, decisions, kernels)

    return make_bundle


@pytest.fixture(scope="session")
def make_strided(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A function: a bundle that decides for a kernel of any layout, alpha and bias or none, with one activation."""

    def make_strided(ours: Sequence[str], activation: str = "") -> Bundle:
        folder = tmp_path_factory.mktemp("strided")
        include = Path(str(find_spec("tvm_ffi").origin)).with_name("include")  # type: ignore[union-attr]
        flags = ["-shared", "-O2", "-fPIC", f"-D{activation.upper() or 'PLAIN'}", "-I", str(include)]
        command = [find_linker(), *flags, "-o", str(folder / "kernel.so"), str(SOURCE)]
        command += [*map(str, runtime_libraries()), "-lm"]
        subprocess.run(command, check=True)
        sha256 = hashlib.sha256((folder / "kernel.so").read_bytes()).hexdigest()
        digest = f"{DIGEST}f"
        kernel = Kernel(f"{KERNELS}/{digest}.so", sha256, "strided_gemm", WORKLOAD, 1, {"activation": activation})
        decisions = [Decision(GemmProblem.parse(text), Choice.OURS, EVIDENCE, digest) for text in ours]
        held = {digest: (kernel, folder / "kernel.so")}
        # The folder makes each bundle another one: of equal bundles a process loads the kernels once.
        return write_bundle(folder / "bundle", "host", "host", {"made": str(folder)}, decisions, held)

    return make_strided


@pytest.fixture(scope="session")
def form_of() -> Callable[[GemmProblem], Callable[..., "torch.Tensor"]]:
    """A function: how a model writes a problem; takes A, B and, where the problem has them, alpha and bias."""
    import torch

    activations = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}

    def form_of(problem: GemmProblem) -> Callable[..., torch.Tensor]:
        def form(a: torch.Tensor, b: torch.Tensor, *epilogue: torch.Tensor) -> torch.Tensor:
            rest = list(epilogue)
            alpha = rest.pop(0) if problem.alpha else None
            bias = rest.pop(0) if problem.bias else None
            if problem.dtype == "e4m3":
                out = getattr(torch, problem.result.torch_name)
                assert alpha is not None
                one = torch.ones_like(alpha)
                settings = {"bias": bias, "out_dtype": out, "use_fast_accum": problem.fast}
                result = torch._scaled_mm(a.squeeze(0), b.squeeze(0).t(), alpha, one, **settings)
            else:
                result = a.squeeze(0) @ b.squeeze(0).t() if problem.batch == 1 else torch.bmm(a, b.transpose(1, 2))
                result = result if alpha is None else result * alpha.squeeze()
                result = result if bias is None else result + bias
            result = activations[problem.activation](result) if problem.activation else result
            return result if result.dim() == 3 else result.unsqueeze(0)

        return form

    return form_of

"""Bundles of the plain GEMM: real kernels that run on the host."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tilescout.search.evaluate.artifacts import Artifact
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.spaces.gemm import GemmProblem

EVIDENCE = Evidence("a-study", "proven as fast as torch.mm", 0.97, 0.96, 0.98, 12, "a test", {"torch": "2.11.0"})
DIGEST = "0" * 63
WORKLOAD = "tilescout.spaces.gemm:Gemm"

Make = Callable[..., Bundle]


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
        decisions += [Decision(GemmProblem.parse(text), Choice.LIBRARY, EVIDENCE) for text in library]
        path = tmp_path_factory.mktemp("bundles") / "bundle"
        kernels = {digest: (kernel, artifact.path)} if ours else {}
        return write_bundle(path, arch, "host", {"tilescout": "0"}, decisions, kernels)

    return make_bundle


@pytest.fixture(scope="session")
def calls() -> Callable[[Bundle], int]:
    """A function: how often this process has run the kernel of a bundle; the kernel counts."""

    def calls(bundle: Bundle) -> int:
        (kernel,) = bundle.kernels.values()
        return ctypes.c_int64.in_dll(ctypes.CDLL(str(bundle.path / kernel.file)), "calls").value

    return calls


@pytest.fixture
def fresh_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache for compiled code, and none of the code that earlier tests compiled."""
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()

"""A library with cuBLASLt's functions that runs on the host, and the loader and the template that call it.

It is built in C when it is first needed, so that the real signatures and structures are called. The tests put this
package's folder on the path of the measuring processes too.
"""

import subprocess
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from plain_gemm import PlainGemmTemplate  # type: ignore[import-not-found]  # in the same folder

from tilescout.search.build.making import find_linker
from tilescout.spaces.cublaslt.abi import Library
from tilescout.spaces.cublaslt.loader import CublasLt, FastCublasLt
from tilescout.spaces.cublaslt.template import CublasLtTemplate
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.inductor.template import InductorTemplate
from tilescout.spaces.knobs import Configuration

HOST = Device("host", "CPU", "host", sms=1, shared_memory=1, l2=1, bandwidth=1e13, peak=1e15)


@cache
def load_library(version: int = 130100) -> Library:
    """The library, of a file that is named as the real one; it is removed again once it is loaded."""
    source = Path(__file__).with_name("library.c")
    # A library linked with -ffast-math has every process that loads it flush subnormal numbers to zero: these do not.
    fast = ["-O2", "-fno-math-errno", "-fno-signed-zeros", "-fno-trapping-math", "-fassociative-math"]
    options = ["-shared", "-fPIC", *fast, "-Wall", "-Werror", f"-DVERSION={version}"]
    with TemporaryDirectory(prefix="tilescout-fake-") as folder:
        path = Path(folder, "libcublasLt.so.13")
        subprocess.run([find_linker(), *options, "-o", str(path), str(source)], check=True)
        return Library(path)


class HostLoader(CublasLt):
    @cached_property
    def library(self) -> Library:
        return load_library()

    @property
    def version(self) -> str:
        return self.library.version


class FastHostLoader(FastCublasLt):
    @cached_property
    def library(self) -> Library:
        return load_library()


class HostCublasLt(CublasLtTemplate):
    name = "host_cublaslt"
    loader = "fake_cublaslt:HostLoader"
    archs = ("host",)


class HostGemm(Gemm):
    candidates = "host_cublaslt"


class ComparedGemm(PlainGemmTemplate):  # type: ignore[misc]
    """Kernels of ours that are compared with the candidates of the library above."""

    name = "compared_gemm"
    workload = "fake_cublaslt:HostGemm"


class HostPeer(InductorTemplate):
    """TorchInductor's product on the host."""

    name = "host_inductor"
    workload = "fake_cublaslt:HostGemm"
    archs = ("host",)

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        return Configuration.of({"backend": "ATEN"})


TEMPLATE, COMPARED, PEER = HostCublasLt(), ComparedGemm(), HostPeer()

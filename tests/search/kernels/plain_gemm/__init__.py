"""A search space of GEMMs in plain loops: right ones, and ones with each fault that a search must survive.

They run on the host, and on a GPU where nvcc can build them. The tests put this package's folder on the path of the
compiler processes too.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from tilescout.search.build.making import find_linker
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import BuildError, ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.templates import Built, KernelTemplate

HOST = Device("host", "CPU", "host", sms=1, shared_memory=1, l2=1, bandwidth=1e13, peak=1e15)
"""The processor that runs the tests; only its target means anything: no time is below such a roofline."""

KERNEL_FAULTS = (
    "corner",
    "unwritten",
    "not_a_number",
    "bad_address",
    "abort",
    "exit",
    "endless",
    "exception",
    "before_output",
    "behind_output",
    "behind_output_later",
    "unstable",
    "stale",
    "stale_not_nan",
)  # the enumerators of gemm.c
COMPILER_FAULTS = ("compiler_refuses", "compiler_aborts", "compiler_hangs")


class PlainGemmTemplate(KernelTemplate[GemmProblem]):
    name = "plain_gemm"
    package = "plain_gemm"
    sources = ("gemm.c",)
    workload = "tilescout.spaces.gemm:Gemm"
    archs = ("host", "sm_90a")
    knobs = (
        Knob("fault", ("nothing", *KERNEL_FAULTS, *COMPILER_FAULTS), "what is wrong with the kernel"),
        Knob("repeats", (1, 2, 4), "how often each element is computed"),
    )
    constraints = ()
    defines: tuple[str, ...] = ()

    def check(self, problem: GemmProblem) -> None:
        if problem.signature != "bf16":
            raise ProblemError(f"{self.name} computes in bf16, not in {problem.signature}")

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        return Configuration.of({"fault": "nothing", "repeats": 1})

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        return 1

    def warm_up(self) -> None:
        """Import nothing: a C compiler is a program."""

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        match configuration["fault"]:
            case "compiler_aborts":
                os.abort()
            case "compiler_hangs":
                time.sleep(3600)
        source = Path(__file__).with_name("gemm.c")
        defines = [f"-DFAULT={str(configuration['fault']).upper()}", f"-DREPEATS={configuration['repeats']}"]
        defines += self.defines
        if arch != "host":
            cubin = path.with_suffix(".cubin")
            _run([find_nvcc(), "-x", "cu", f"-arch={arch}", "-cubin", *defines, "-o", str(cubin), str(source)])
            defines.append(f'-DCUBIN="{cubin}"')
        _run([find_linker(), "-c", "-O3", "-ffast-math", "-fPIC", *defines, *_headers(), "-o", str(path), str(source)])
        return Built("plain_gemm", None if arch == "host" else 0)


class ScratchGemmTemplate(PlainGemmTemplate):
    """The same, by kernels that keep the sums in scratch memory."""

    name = "scratch_gemm"
    defines = ("-DSCRATCH",)

    def scratch_bytes(self, configuration: Mapping[str, Value], problem: GemmProblem) -> int:
        return 4 * problem.batch * problem.m * problem.n


class ColdGemmTemplate(PlainGemmTemplate):
    """The same, whose compiler ends every process that imports it."""

    name = "cold_gemm"

    def warm_up(self) -> None:
        os.abort()


class LaunchedGemmTemplate(PlainGemmTemplate):
    """The same, whose repeats only a launch knows: they are appended to the kernel. Four are too many."""

    name = "launched_gemm"
    launched = MappingProxyType({"repeats": (1, 2, 4)})

    def relaunch(self, binary: bytes, configuration: Mapping[str, Value], signature: str) -> bytes:
        if configuration["repeats"] == 4:
            raise BuildError("four are too many")
        return binary + f"{configuration['repeats']} times".encode()


def find_nvcc() -> str:
    """Path of nvcc; the empty string where there is none."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin") or ""


def _headers() -> list[str]:
    spec = find_spec("tvm_ffi")  # found, not imported: importing it imports torch
    assert spec is not None
    assert spec.origin is not None
    return ["-I", str(Path(spec.origin).with_name("include"))]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(done.stderr)


TEMPLATE = PlainGemmTemplate()
SCRATCH = ScratchGemmTemplate()
COLD = ColdGemmTemplate()
LAUNCHED = LaunchedGemmTemplate()

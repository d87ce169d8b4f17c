"""Kernels of the host for the rows of a matrix, for machines without a GPU: the same operations in plain loops."""

import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from tilescout.search.build.making import find_linker
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import BuildError
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.templates import Built, KernelTemplate

HOST = Device("host", "CPU", "host", sms=1, shared_memory=1, l2=1, bandwidth=1e10, peak=1e11)
FAULTS = ("last_is_missed", "maximum_is_forgotten", "row_too_many", "eight_too_many")  # the enumerators of rows.c


class HostSoftmax(KernelTemplate[RowwiseProblem]):
    name = "host_softmax"
    package = "rows_on_host"
    sources = ("rows.c",)
    workload = "tilescout.spaces.rowwise:Softmax"
    archs = ("host",)
    knobs = (Knob("fault", ("nothing", *FAULTS), "what is wrong with the kernel"),)

    def default(self, problem: RowwiseProblem, device: Device) -> Configuration:
        return Configuration.of({"fault": "nothing"})

    def warm_up(self) -> None:
        """Import nothing: a C compiler is a program."""

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        return build_rows("SOFTMAX", str(configuration["fault"]), path)


def build_rows(operation: str, fault: str, path: Path) -> Built:
    """Compile an operation for the host."""
    spec = find_spec("tvm_ffi")  # found, not imported: importing it imports torch
    assert spec is not None
    assert spec.origin is not None
    defines = [f"-DOPERATION={operation}", f"-DFAULT={fault.upper()}", "-DENTRY=__tvm_ffi_rows"]
    headers = ["-I", str(Path(spec.origin).with_name("include"))]
    command = [find_linker(), "-c", "-O3", "-fPIC", *defines, *headers, "-o", str(path)]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("rows.c"))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(done.stderr)
    return Built("rows", None)

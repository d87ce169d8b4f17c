"""Read what a compiled kernel occupies off its binary, with no GPU."""

import re
import shutil
import struct
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from tempfile import TemporaryDirectory

from tilescout.spaces.errors import BuildError

CUOBJDUMP = "nvidia-cuda-cuobjdump"  # the package
_ELF_MAGIC = b"\x7fELF\x02\x01"  # 64-bit, little-endian
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_EM_CUDA = 190  # e_machine of GPU code
_SECTION = struct.Struct("<IIQQQQIIQQ")
_EXECUTABLE = 0x4  # the flag SHF_EXECINSTR of a section
INSTRUCTION_BYTES = 16
"""Size of a machine instruction on compute capability 7.0 and later."""

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def device_code(binary: bytes) -> list[bytes]:
    """The GPU ELF images (cubins) that are embedded in a host object file or shared library."""
    images = []
    start = binary.find(_ELF_MAGIC)
    while start >= 0:
        if len(binary) - start >= _ELF_HEADER.size:
            header = _ELF_HEADER.unpack_from(binary, start)
            machine, sections_at, section_size, sections = header[2], header[6], header[11], header[12]
            if machine == _EM_CUDA:
                # Section headers come last in the cubins that ptxas writes, or program headers right behind them.
                programs_at, program_size, programs = header[5], header[9], header[10]
                end = max(sections_at + section_size * sections, programs_at + program_size * programs)
                images.append(binary[start : start + end])
        start = binary.find(_ELF_MAGIC, start + 1)
    return images


def resource_usage(binary: bytes, folder: Path | None = None) -> tuple[int, int, int]:
    """Registers a thread, spilled bytes a thread and static shared memory a block of the kernels in a binary.

    Of several kernels the largest of each is reported. Spilled bytes are the stack frame plus local memory. Read by
    NVIDIA's ``cuobjdump -res-usage``, from a temporary file in a folder; None takes the system's.

    Raises
    ------
    BuildError
        If the binary holds no GPU code or ``cuobjdump`` can't read it.
    MemoryError
        If ``cuobjdump`` was killed. That says nothing of the binary.
    """
    usages = []
    with TemporaryDirectory(dir=folder) as scratch:
        for image in device_code(binary):
            cubin = Path(scratch, "kernel.cubin")
            cubin.write_bytes(image)
            command = [find_cuobjdump(), "-res-usage", str(cubin)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode < 0:
                raise MemoryError(f"cuobjdump was killed by signal {-done.returncode}")
            if done.returncode:
                raise BuildError(f"the compiled object holds no GPU code that cuobjdump can read: {done.stderr}")
            usages += [tuple(map(int, match)) for match in _USAGE.findall(done.stdout)]
    if not usages:
        raise BuildError("the compiled object holds no GPU code that cuobjdump can read")
    registers, stack, shared, local = (max(column) for column in zip(*usages, strict=True))
    return registers, stack + local, shared


def instruction_count(binary: bytes) -> int:
    """Machine instructions of the largest kernel in a binary, those that only pad it included.

    Counted by the size of its code: a disassembler, which could tell them apart, takes longer than the compiler.

    Raises
    ------
    BuildError
        If the binary holds no GPU code.
    """
    counts: list[int] = []
    for image in device_code(binary):
        header = _ELF_HEADER.unpack_from(image)
        sections_at, section_size, sections = header[6], header[11], header[12]
        for at in range(sections_at, sections_at + section_size * sections, section_size):
            _, _, flags, _, _, size, *_ = _SECTION.unpack_from(image, at)
            if flags & _EXECUTABLE:  # every kernel has a section of its own
                counts.append(size // INSTRUCTION_BYTES)
    if not counts:
        raise BuildError("the compiled object holds no GPU code")
    return max(counts)


@cache
def find_cuobjdump() -> str:
    """Path of ``cuobjdump``: the Python package's, else the one on the PATH.

    Raises
    ------
    BuildError
        If there is none.
    """
    try:
        packaged = [file for file in files(CUOBJDUMP) or [] if file.name == "cuobjdump"]
    except PackageNotFoundError:
        packaged = []
    if packaged:
        return str(packaged[0].locate())
    found = shutil.which("cuobjdump")
    if found is None:
        raise BuildError(f"cuobjdump is missing: install the package {CUOBJDUMP} or the CUDA toolkit")
    return found

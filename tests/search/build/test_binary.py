"""Reading GPU code and what it occupies off a compiled binary."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.build.artifacts import Artifact
from tilescout.search.build.binaries import (
    INSTRUCTION_BYTES,
    device_code,
    find_cuobjdump,
    instruction_count,
    resource_usage,
)
from tilescout.spaces.errors import BuildError

ELF_MAGIC = b"\x7fELF\x02\x01"


@pytest.fixture(scope="module")
def library(compiled_gemm: Artifact) -> bytes:
    return compiled_gemm.path.read_bytes()


def test_the_one_kernel_in_a_library_is_found(library: bytes) -> None:
    [cubin] = device_code(library)

    assert cubin.startswith(ELF_MAGIC)
    assert len(cubin) < len(library)
    assert library.count(ELF_MAGIC) == 2  # the library's own header, which is not GPU code, and the kernel's


def test_what_a_kernel_occupies_is_read(library: bytes, compiled_gemm: Artifact) -> None:
    registers, spilled, static = resource_usage(library)

    assert compiled_gemm.resources is not None
    assert (compiled_gemm.resources.registers, compiled_gemm.resources.spill_bytes) == (registers, spilled)
    assert 24 <= registers <= 255
    assert spilled == 0
    assert static == 1024  # what CUDA keeps for itself on sm_90


def test_instructions_are_those_of_the_code_section(library: bytes, compiled_gemm: Artifact) -> None:
    [cubin] = device_code(library)
    count = instruction_count(library)

    assert compiled_gemm.resources is not None
    assert compiled_gemm.resources.instructions == count == instruction_count(cubin)
    assert 300 <= count <= len(cubin) / INSTRUCTION_BYTES
    assert instruction_count(library + library) == count  # of the largest


@given(before=st.binary(max_size=100), after=st.binary(max_size=100))
def test_a_kernel_is_cut_out_exactly_wherever_it_stands(library: bytes, before: bytes, after: bytes) -> None:
    [cubin] = device_code(library)

    assert device_code(before + cubin + after) == [cubin]


def test_every_kernel_of_several_is_found(library: bytes) -> None:
    [cubin] = device_code(library)

    assert device_code(library + library) == [cubin, cubin]


@given(st.binary(max_size=30).map(lambda rest: b"no GPU code " + ELF_MAGIC + rest))
def test_a_header_without_a_body_is_no_kernel(binary: bytes) -> None:
    assert device_code(binary) == []


def test_a_kernel_that_nvcc_built_is_read_too(plain_gemm: ModuleType, build_plain: Callable[..., Artifact]) -> None:
    if not plain_gemm.find_nvcc():
        pytest.skip("nvcc is not installed")

    artifact = build_plain(arch="sm_90a")

    assert artifact.ok, artifact.error
    assert artifact.resources is not None
    assert 16 <= artifact.resources.registers <= 255
    assert artifact.resources.shared_memory == 0
    assert len(device_code(artifact.path.read_bytes())) == 1


def test_code_of_the_host_is_no_gpu_code(build_plain: Callable[..., Artifact]) -> None:
    binary = build_plain().path.read_bytes()

    assert device_code(binary) == []
    with pytest.raises(BuildError, match="no GPU code"):
        resource_usage(binary)
    with pytest.raises(BuildError, match="no GPU code"):
        instruction_count(binary)


def test_a_kernel_that_is_cut_short_is_refused(library: bytes) -> None:
    [cubin] = device_code(library)

    with pytest.raises(BuildError, match="no GPU code that cuobjdump can read"):
        resource_usage(cubin[: len(cubin) // 2])


@pytest.mark.parametrize(
    ("does", "raised", "told"),
    [
        ("kill -KILL $$", MemoryError, "cuobjdump was killed by signal 9"),
        ("echo 'out of luck' >&2; exit 255", BuildError, "no GPU code that cuobjdump can read: out of luck"),
    ],
)
def test_how_cuobjdump_ended_is_told(
    library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, raised: type[Exception], told: str
) -> None:
    tool = tmp_path / "cuobjdump"
    tool.write_text(f"#!/bin/sh\n{does}\n")
    tool.chmod(0o755)
    monkeypatch.setattr("tilescout.search.build.binaries.find_cuobjdump", lambda: str(tool))

    with pytest.raises(raised, match=told):
        resource_usage(library)


def test_cuobjdump_comes_with_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert Path(find_cuobjdump.__wrapped__()).is_file()

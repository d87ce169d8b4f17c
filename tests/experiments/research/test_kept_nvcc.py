"""The compiler that keeps objects: run as TorchInductor runs nvcc, with a compiler of the host in nvcc's place."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tilescout.experiments.research.kept_nvcc import KeptObjects
from tilescout.experiments.research.studies import backends
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inductor.tuning import Tuned

SOURCE = """#define PT_EXPORT __attribute__((__visibility__("default")))
extern "C" {{
PT_EXPORT int {name}(int x) {{
  return x {rest};
}}
}}

// CUDA Compilation cmd
// /some/nvcc -O1 -c -o /folder/{file}.o /folder/{file}.cu
"""


@pytest.fixture
def nvcc(tmp_path: Path) -> Path:
    """A program that compiles C++ as nvcc does CUDA C++, and counts how often it is asked."""
    program = tmp_path / "real_nvcc"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexec g++ -x c++ "$@"\n')
    program.chmod(0o755)
    return program


def compiled(compiler: Path, folder: Path, name: str, rest: str = "+ 1") -> subprocess.CompletedProcess[bytes]:
    source, out = folder / f"{name}.cu", folder / f"{name}.o"
    source.write_text(SOURCE.format(name=name, rest=rest, file=f"c{len(name)}x"))
    return subprocess.run([compiler, "-fPIC", "-c", "-o", out, source], capture_output=True, check=False)


def symbols(path: Path) -> str:
    return subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout


def test_a_source_that_differs_in_its_entrys_name_is_compiled_once(tmp_path: Path, nvcc: Path) -> None:
    kept = KeptObjects(tmp_path / "kept")
    compiler = kept.compiler(str(nvcc))

    done = [compiled(compiler, tmp_path, name) for name in ("cutlass_1", "cutlass_fused_mm")]
    done.append(compiled(compiler, tmp_path, "cutlass_2", "+ 2"))

    assert [each.returncode for each in done] == [0, 0, 0]
    assert len((tmp_path / "asked").read_text().splitlines()) == 2
    assert "cutlass_1" in symbols(tmp_path / "cutlass_1.o")
    assert "cutlass_fused_mm" in symbols(tmp_path / "cutlass_fused_mm.o")
    assert "cutlass_1" not in symbols(tmp_path / "cutlass_fused_mm.o")
    first, again, other = kept.given()
    assert first == again != other
    assert len(kept.spent(kept.given())) == 2
    assert all(0 < each.core_seconds < 60 and each.seconds > 0 for each in kept.spent([first, other]))


def test_what_does_not_compile_is_not_kept_and_says_why(tmp_path: Path, nvcc: Path) -> None:
    kept = KeptObjects(tmp_path / "kept")
    compiler = kept.compiler(str(nvcc))

    failed = compiled(compiler, tmp_path, "cutlass_1", "+ nonsense")
    good = compiled(compiler, tmp_path, "cutlass_1")

    assert failed.returncode != 0
    assert b"nonsense" in failed.stderr
    assert good.returncode == 0
    assert len(kept.given()) == 1


def test_other_calls_are_passed_on_as_they_are(tmp_path: Path, nvcc: Path) -> None:
    compiler = KeptObjects(tmp_path / "kept").compiler(str(nvcc))
    plain = tmp_path / "plain.cu"
    plain.write_text("int without_an_entry() { return 0; }\n")

    subprocess.run([compiler, "-c", "-o", tmp_path / "plain.o", plain], check=True)
    subprocess.run([compiler, "-shared", "-o", tmp_path / "plain.so", "-x", "none", tmp_path / "plain.o"], check=True)

    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == f"-c -o {tmp_path}/plain.o {plain}"
    assert (tmp_path / "plain.so").exists()
    assert KeptObjects(tmp_path / "kept").given() == []


def test_a_row_of_cutlass_says_what_nvcc_took_for_its_candidates(
    tmp_path: Path, nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "find_nvcc", lambda: str(nvcc))
    asked = backends.Asked((), (), (), 1, 0.0, 1.0, True, (), tmp_path, tmp_path / "kept", False, "cpu", 0, tmp_path)
    backend = asked.inductor["CUTLASS"]
    compiler, problem = Path(backend.settings["cuda.cuda_cxx"]), GemmProblem(16, 16, 16)

    def tune(*arguments: Any) -> Tuned:
        for name in ("cutlass_1", "cutlass_fused_mm"):
            assert compiled(compiler, tmp_path, name).returncode == 0
        return Tuned(len, seconds=2.0, benchmarking=1.0, precompiling=0.5, candidates=1)

    monkeypatch.setattr(backends, "tune_by", tune)
    first, again = (backend.tune(problem, ())[1] for _ in range(2))

    assert backend.objects is not None
    (took,) = backend.objects.spent(backend.objects.given())
    assert first["compiling"] == again["compiling"] == took.core_seconds
    assert first["the longest"] == took.seconds
    assert first["seconds"] == 2.0

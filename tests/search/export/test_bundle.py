"""Bundles: whole, or refused in one line before anything of them is used."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore
from tilescout.search.build.making import build
from tilescout.search.export import from_studies
from tilescout.search.export.bundle import INDEX, KERNELS, Bundle, Kernel, read_bundle, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence, Outcome
from tilescout.search.export.generated_calls import bind
from tilescout.search.export.loaded_kernels import find_family, name_of, register
from tilescout.search.export.ranges import Dispatch, Range
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ArtifactError, BundleError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import find_template


@pytest.fixture
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    return make_bundle(["16x64x32", "32x64x32"], ["64x64x32"])


def rewrite(bundle: Bundle, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the index and make its checksum right again, as someone would who means harm."""
    record = json.loads((bundle.path / INDEX).read_text())
    del record["digest"]
    change(record)
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    (bundle.path / INDEX).write_text(json.dumps({**record, "digest": digest}))


def refusal(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        read_bundle(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def library_of(bundle: Bundle) -> Path:
    (kernel,) = bundle.kernels.values()
    return bundle.path / kernel.file


def test_what_was_written_is_read(bundle: Bundle) -> None:
    assert read_bundle(bundle.path) == bundle
    assert [str(decision.problem) for decision in bundle.ours] == ["16x64x32:bf16", "32x64x32:bf16"]
    assert bundle.by_problem[GemmProblem(64, 64, 32)].choice is Choice.LIBRARY
    assert bundle.by_problem[GemmProblem(16, 64, 32)].evidence.high == 0.98


def test_a_bundle_is_what_it_holds_wherever_it_lies(bundle: Bundle, tmp_path: Path) -> None:
    moved = bundle.path.rename(tmp_path / "moved")
    assert read_bundle(moved).digest == bundle.digest


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_no_flipped_byte_goes_unnoticed(bundle: Bundle, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from([bundle.path / INDEX, library_of(bundle)]))
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(damaged)
    try:
        try:
            found = read_bundle(bundle.path)
        except BundleError:
            return
        assert found == bundle  # white space in the index, of the same meaning
    finally:
        file.write_bytes(content)


def test_a_truncated_or_missing_kernel_is_damage(bundle: Bundle) -> None:
    library = library_of(bundle)
    library.write_bytes(library.read_bytes()[:-1])
    assert "damaged" in refusal(bundle.path)
    library.unlink()
    assert "damaged" in refusal(bundle.path)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    assert "no bundle" in refusal(tmp_path / "nowhere")
    assert "no bundle" in refusal(tmp_path)
    for content in ("[]", "{}", '{"kind": "something"}'):
        (tmp_path / INDEX).write_text(content)
        assert "no bundle" in refusal(tmp_path)
    (tmp_path / INDEX).write_text("{")
    assert "no JSON" in refusal(tmp_path)


@pytest.mark.parametrize("version", [10, 0, "1", None])
def test_another_format_is_refused_with_what_to_do(bundle: Bundle, version: object) -> None:
    rewrite(bundle, lambda record: record.update(format=version))
    assert "this tilescout reads 1, 2, 3, 4" in refusal(bundle.path)


@pytest.mark.parametrize(
    "file", ["../kernel.so", f"{KERNELS}/../../kernel.so", "/etc/passwd", f"{KERNELS}/{'A' * 64}.so", INDEX, ""]
)
def test_a_kernel_outside_is_refused(bundle: Bundle, file: str) -> None:
    def change(record: dict[str, Any]) -> None:
        (kernel,) = record["kernels"].values()
        kernel["file"] = file

    rewrite(bundle, change)
    assert "is no file of a bundle" in refusal(bundle.path)


def test_a_link_inside_is_refused_even_to_the_right_content(bundle: Bundle, tmp_path: Path) -> None:
    library = library_of(bundle)
    library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(tmp_path / "elsewhere.so")
    assert "symbolic link" in refusal(bundle.path)
    library.unlink()
    (tmp_path / "elsewhere.so").rename(library)
    (bundle.path / KERNELS).rename(tmp_path / KERNELS)
    (bundle.path / KERNELS).symlink_to(tmp_path / KERNELS)
    assert "symbolic link" in refusal(bundle.path)


def test_a_linked_index_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.path / INDEX).rename(tmp_path / INDEX)
    (bundle.path / INDEX).symlink_to(tmp_path / INDEX)
    assert "symbolic link" in refusal(bundle.path)


@pytest.mark.parametrize("name", ["arch", "decisions", "kernels", "versions"])
def test_an_index_that_lacks_something_is_damaged(bundle: Bundle, name: str) -> None:
    rewrite(bundle, lambda record: record.pop(name))
    assert name in refusal(bundle.path)


def test_a_decision_without_its_kernel_is_damage(bundle: Bundle) -> None:
    rewrite(bundle, lambda record: record["decisions"][0].update(kernel="0" * 64))
    assert "lacks the kernel" in refusal(bundle.path)
    rewrite(bundle, lambda record: record["decisions"][0].update(problem="16x64"))
    assert "malformed problem" in refusal(bundle.path)


def test_nothing_is_written_over(bundle: Bundle, make_bundle: Callable[..., Bundle], tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is there already"):
        write_bundle(bundle.path, "host", "host", {}, [], {})
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(StoreError, match="is there already"):
        write_bundle(file, "host", "host", {}, [], {})
    assert read_bundle(bundle.path) == bundle


def test_a_kernel_that_changed_since_it_was_measured_is_not_exported(bundle: Bundle, tmp_path: Path) -> None:
    ((digest, kernel),) = bundle.kernels.items()
    (tmp_path / "other.so").write_bytes(b"other")
    out = tmp_path / "out"
    with pytest.raises(ArtifactError, match="SHA-256"):
        write_bundle(out, "host", "host", {}, bundle.ours, {digest: (kernel, tmp_path / "other.so")})
    assert [path.name for path in tmp_path.iterdir()] == ["other.so"]  # no trace


def test_a_kernel_that_needs_memory_gets_what_the_largest_of_its_problems_needs(tmp_path: Path) -> None:
    template, store = find_template("gemm_streamk_sm90"), ArtifactStore(tmp_path / "store")
    problems = [GemmProblem(m, 320, 24896) for m in (640, 282)]
    default = dict(template.default(problems[1], find_device("h200")))
    split = Configuration.of({**default, "split": 4, "stream_k": 0})
    key = ArtifactKey(template.name, template.source_hash, split, "bf16", "sm_90a", "4.8.1")
    content = b"library"
    with store.scratch() as scratch:
        (scratch / "kernel.so").write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        store.publish(key, Artifact(Path("kernel.so"), sha256, "entry", Resources(168, 0, 4096), 1.0), scratch)
    evidence = Evidence("study-7", "faster", 0.97, 0.96, 0.98, 12, "a test", {"nvidia-cutlass-dsl": "4.8.1"})
    outcomes = [
        Outcome(each, template.name, template.source_hash, "h200", Choice.OURS, evidence, split) for each in problems
    ]

    made = from_studies.make_bundle(outcomes, store, tmp_path / "bundle")

    (kernel,) = made.kernels.values()
    needed = [template.scratch_bytes(split, each) for each in problems]
    assert kernel.scratch_bytes == max(needed) > min(needed) > 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_kernel_of_two_dispatchers_gets_what_the_larger_of_them_needs(tmp_path: Path, order: int) -> None:
    content, library = b"library", tmp_path / "kernel.so"
    library.write_bytes(content)
    sha256, digest, dispatchers = hashlib.sha256(content).hexdigest(), "1" * 64, []
    for n, scratch_bytes in ((4096, 1 << 20), (1024, 1 << 10)):
        file, workload = f"{KERNELS}/{digest}.so", find_template("gemm_streamk_sm90").workload
        kernel = Kernel(file, sha256, "entry", workload, 1, {}, scratch_bytes=scratch_bytes)
        ranges = Dispatch(GemmProblem(1, n, 4096), (Range(1, 64, digest),))
        dispatchers.append(from_studies.Dispatched("h200", ranges, {digest: (kernel, library)}))

    made = from_studies.make_bundle(
        [], ArtifactStore(tmp_path / "store"), tmp_path / "bundle", dispatched=dispatchers[::order]
    )

    assert read_bundle(made.path).kernels[digest].scratch_bytes == 1 << 20


@pytest.mark.parametrize("claimed", [-1, 1 << 40, 1.5, "64"])
def test_memory_that_no_kernel_needs_is_damage(bundle: Bundle, claimed: object) -> None:
    (digest,) = bundle.kernels
    rewrite(bundle, lambda record: record["kernels"][digest].update(scratch_bytes=claimed))
    assert "damaged" in refusal(bundle.path)


@pytest.mark.slow
def test_a_kernel_is_given_its_memory_by_compiled_code_and_by_the_operator(
    plain_gemm: ModuleType, tmp_path: Path
) -> None:
    import torch

    template, problem = plain_gemm.SCRATCH, GemmProblem(16, 64, 32)
    configuration = template.default(problem, find_device("h200"))
    built = build(template, ArtifactKey.of(template, configuration, "bf16", "host"), ArtifactStore(tmp_path / "store"))
    memory = template.scratch_bytes(configuration, problem)
    a, b = torch.randn(1, 16, 32, dtype=torch.bfloat16), torch.randn(1, 64, 32, dtype=torch.bfloat16)
    for size in (memory, memory - 1):
        file = f"{KERNELS}/{size:064x}.so"
        kernel = Kernel(file, built.sha256, built.function, template.workload, 1, {}, scratch_bytes=size)
        decision = Decision(problem, Choice.OURS, Evidence("study-7", "faster", 0.97, 0.96, 0.98, 12), "kernel")
        made = write_bundle(tmp_path / str(size), "host", "host", {}, [decision], {"kernel": (kernel, built.path)})
        register(made)
        name, out = name_of(made, problem), torch.empty(1, 16, 64, dtype=torch.bfloat16)
        if size < memory:
            with pytest.raises(RuntimeError, match="too little scratch memory"):
                bind(name, 16, None)(a, b, out=out)
            continue
        bind(name, 16, None)(a, b, out=out)
        torch.testing.assert_close(out, a @ b.transpose(1, 2), rtol=2e-2, atol=2e-2)
        assert torch.equal(find_family(name)(a, b, None, None), out)

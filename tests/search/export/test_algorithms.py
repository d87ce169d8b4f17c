"""Algorithms of the library in bundles: chosen by a race, described, run by compiled code, refused elsewhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.export import from_studies, loaded_kernels
from tilescout.search.export.bundle import INDEX, Bundle, read_bundle
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.export.inductor import load, use
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.race import Estimate
from tilescout.spaces.checksums import digest_of, sealed
from tilescout.spaces.cublaslt.algorithms import KNOBS
from tilescout.spaces.errors import BundleError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

PROBLEM = GemmProblem(16, 64, 40)
PROVEN = Evidence("a-study", "proven", 0.97, 0.96, 0.98, 12, of=Choice.ALGORITHM)


@pytest.mark.parametrize("space", ["cublaslt_fast", "cutlass_operators"])
def test_kernels_that_keep_fewer_bits_of_sums_take_no_place_of_the_librarys(space: str) -> None:
    template, made = find_template(space), Configuration.of({"tile_m": 64})
    outcome = Outcome(GemmProblem.parse("16x64x40:e4m3-bf16"), space, "", "h200", Choice.OURS, PROVEN, made)

    assert "fewer bits than torch._scaled_mm" in from_studies.why_not(outcome, template)
    assert from_studies.why_not(replace(outcome, configuration=None, choice=Choice.LIBRARY), template) == ""
    fast = replace(outcome.problem, fast=True)
    assert str(fast) in from_studies.why_not(outcome, template)
    for other, problem in ((template, PROBLEM), (template, fast), (find_template("cublaslt"), outcome.problem)):
        assert "fewer bits" not in from_studies.why_not(replace(outcome, problem=problem), other)


def test_an_algorithm_is_exported_that_was_faster_than_the_kernel_of_a_search(tmp_path: Path) -> None:
    kernel = find_template("gemm_sm90")
    algorithm = Configuration.of(dict.fromkeys(KNOBS, 0) | {"guess": 3})
    best = LibraryBest(
        "cuBLASLt", "13.1.0", "cublaslt", algorithm, 8, Estimate(0.9, 0.89, 0.91), Estimate(1.1, 1.09, 1.11)
    )
    record = {
        "study": "a-study",
        "space": kernel.name,
        "space_hash": kernel.source_hash,
        "problem": str(PROBLEM),
        "device": "h200",
        "measured_by": {"kind": "live", "description": "measured on NVIDIA H200"},
        "versions": {},
        "best": {"trial": 3, "configuration": {"tile_m": 64}},
        "library": {"name": "torch.mm"},
        "library_best": best.to_dict(),
        "race": {"speedup_over_library": {"value": 1.01, "low": 1.005, "high": 1.015}, "rounds": 30},
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(sealed(record)))
    [outcome] = from_studies.read_outcomes([str(path)], tmp_path).outcomes

    assert (outcome.choice, outcome.space, outcome.library) == (Choice.ALGORITHM, "cublaslt", "13.1.0")
    made = from_studies.make_bundle([outcome], ArtifactStore(tmp_path / "store"), tmp_path / "bundle")
    assert [each.library for each in made.kernels.values()] == ["13.1.0"]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_kernels, "ALGORITHM_ALIGNMENT", 16)  # all that torch promises on the host
    loaded_kernels.load_kernel.cache_clear()


@pytest.fixture
def bundle(host_library: ModuleType, tmp_path: Path) -> Bundle:
    """A bundle of an algorithm whose results are 1.5 times the right ones, so that they show that it ran."""
    wrong = dict.fromkeys(KNOBS, 0) | {"algorithm": 7, "tile": 1, "stages": 4, "split_k": 1, "custom_option": 2}
    template = host_library.TEMPLATE
    evidence = replace(PROVEN, study=str(tmp_path))  # of equal bundles a process loads the kernels once
    outcome = Outcome(
        PROBLEM, template.name, "", "host", Choice.ALGORITHM, evidence, Configuration.of(wrong), library="13.1.0"
    )
    return from_studies.make_bundle([outcome], ArtifactStore(tmp_path / "store"), tmp_path / "bundle")


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(rows, 40, generator=made).bfloat16() for rows in (16, 64))  # type: ignore[return-value]


def is_times(found: torch.Tensor, factor: float) -> bool:
    a, b = operands()
    return torch.allclose(found.float().squeeze(), factor * (a.float() @ b.float().t()), rtol=0.02, atol=0.2)


def test_a_bundle_holds_an_algorithm_by_its_description_and_version(bundle: Bundle) -> None:
    [decision], [kernel] = bundle.chosen, bundle.kernels.values()

    assert not bundle.ours
    assert decision.evidence.of is Choice.ALGORITHM
    assert kernel.library == "13.1.0"
    assert json.loads((bundle.path / kernel.file).read_text())["knobs"]["custom_option"] == 2
    assert read_bundle(bundle.path) == bundle


def test_an_algorithm_of_a_template_without_a_library_is_damage(bundle: Bundle) -> None:
    record = json.loads((bundle.path / INDEX).read_text())
    del record["digest"]
    for kernel in record["kernels"].values():
        kernel["key"]["space"] = "gemm_sm90"
    (bundle.path / INDEX).write_text(json.dumps({**record, "digest": digest_of(record)}))
    with pytest.raises(BundleError, match="no library that is known"):
        read_bundle(bundle.path)


def test_compiled_code_and_the_operator_run_the_algorithm(bundle: Bundle) -> None:
    a, b = operands()
    load(bundle.path)
    family = loaded_kernels.find_family(loaded_kernels.name_of(bundle, PROBLEM))

    assert is_times(family(a[None], b[None], None, None), 1.5)
    assert is_times(family(a[None][:, :8], b[None], None, None)[0].repeat(2, 1)[:16], 1.5) is False  # another size
    with torch.no_grad(), use(bundle.path) as tuned:
        compiled = torch.compile(lambda a, b: (a @ b.t()).clone())
        assert is_times(compiled(a, b), 1.5)
    assert tuned.report.replaced == {str(PROBLEM): 1}


def test_misaligned_operands_go_to_the_library(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands()
    load(bundle.path)
    family = loaded_kernels.find_family(loaded_kernels.name_of(bundle, PROBLEM))
    monkeypatch.setattr(loaded_kernels, "ALGORITHM_ALIGNMENT", 1 << 40)

    assert is_times(family(a[None], b[None], None, None), 1)


def test_under_another_version_of_the_library_its_algorithms_are_refused(
    bundle: Bundle, host_library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands()
    monkeypatch.setattr(host_library.HostLoader, "version", "13.2.0")

    with pytest.warns(
        UserWarning, match=r"version 13\.1\.0 of the library, and torch brings 13\.2\.0: they are refused"
    ):
        load(bundle.path)
    family = loaded_kernels.find_family(loaded_kernels.name_of(bundle, PROBLEM))
    assert is_times(family(a[None], b[None], None, None), 1)


def test_a_version_in_a_warning_moves_no_cursor(bundle: Bundle) -> None:
    record = json.loads((bundle.path / INDEX).read_text())
    del record["digest"]
    for kernel in record["kernels"].values():
        kernel["library"] = "13.0\x1b]0;title\x07\nanother line"
    (bundle.path / INDEX).write_text(json.dumps({**record, "digest": digest_of(record)}))
    with pytest.warns(UserWarning, match="they are refused") as told:
        load(bundle.path)
    assert str(told[0].message).isprintable()


def test_an_algorithm_is_made_ready_on_each_device(
    bundle: Bundle, host_library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(bundle.path)
    current, ready, launch = list[int | None](), list[int | None](), host_library.HostLoader.launch

    @contextmanager
    def on_device(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        yield
        current.pop()

    def noted(loader: Any, description: str) -> Any:
        ready.append(current[-1])
        return launch(loader, description)

    monkeypatch.setattr(torch.cuda, "device", on_device)
    monkeypatch.setattr(loaded_kernels, "arch_of", lambda device: bundle.arch)
    monkeypatch.setattr(host_library.HostLoader, "launch", noted)
    [kernel] = bundle.kernels
    for index in (0, 1, 0):
        loaded_kernels.load_kernel(bundle.digest, kernel, torch.device("cuda", index))
    assert ready == [0, 1]

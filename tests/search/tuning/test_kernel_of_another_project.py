"""The documented example of another project's kernel, compiled for real, as far as no GPU is needed."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.binaries import resource_usage
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.building import check_shared_memory
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import KernelTemplate, load_template
from tilescout.spaces.workloads import load_workload

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
H200 = find_device("h200")


@pytest.fixture(scope="module")
def template() -> Iterator[KernelTemplate]:
    """The example's template, found as a user finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        importlib.invalidate_caches()
        yield load_template("quack_rms_norm:QuackRmsNorm")


@pytest.mark.slow
@pytest.mark.parametrize(
    "example",
    [
        "quack_rms_norm:QuackRmsNorm",
        "quack_rms_norm_backward:QuackRmsNormBackward",
        "quack_cross_entropy:QuackCrossEntropy",
    ],
)
@pytest.mark.usefixtures("template")  # which has the examples on the path
def test_kernels_ask_for_the_shared_memory_that_is_stated_and_do_not_spill(example: str, tmp_path: Path) -> None:
    template = load_template(example)
    problem = load_workload(template.workload).problem.parse("8x4096:bf16")
    space = template.space(problem, H200)
    drawn = [space[int(index)] for index in np.random.default_rng(0).choice(len(space), 1, replace=False)]
    with CompilePool(template, problem.signature, H200.arch, ArtifactStore(tmp_path), CompileOptions(1)) as pool:
        outcomes = [pool.submit(configuration).result() for configuration in (template.default(problem, H200), *drawn)]

    for outcome in outcomes:
        assert isinstance(outcome, Artifact), outcome.error
        assert outcome.resources is not None
        assert outcome.resources.spill_bytes == 0
        _, _, static = resource_usage(outcome.path.read_bytes())
        check_shared_memory(outcome.path, outcome.resources.shared_memory - static)


def test_the_length_of_a_row_is_compiled_in_and_the_number_of_rows_is_not(template: KernelTemplate) -> None:
    problem = load_workload(template.workload).problem.parse("8x4096:bf16")

    assert problem.with_signature("1024:fp16") == load_workload(template.workload).problem.parse("8x1024:fp16")
    assert load_workload(template.workload).edge_problem(problem).signature == problem.signature
    assert (dict(problem.sizes), problem.dimensions) == ({"rows": 8}, (8, 4096))  # it lies among others by both


def test_the_reference_is_the_norm_of_torch(template: KernelTemplate) -> None:
    torch = pytest.importorskip("torch")
    problem, workload = load_workload(template.workload).problem.parse("5x64:fp32"), load_workload(template.workload)
    x, weights = inputs = workload.inputs(problem, torch.Generator().manual_seed(0))

    expected = torch.nn.functional.rms_norm(x, (64,), weights, eps=1e-6)
    torch.testing.assert_close(workload.reference(problem, inputs), expected)


@pytest.mark.usefixtures("template")
def test_the_reference_of_the_gradient_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    workload = load_workload(load_template("quack_rms_norm_backward:QuackRmsNormBackward").workload)
    problem = workload.problem.parse("5x64:fp32")
    x, weights, gradient, _ = inputs = workload.inputs(problem, torch.Generator().manual_seed(0))

    followed = x.clone().requires_grad_()
    torch.nn.functional.rms_norm(followed, (64,), weights, eps=1e-6).backward(gradient)
    torch.testing.assert_close(workload.reference(problem, inputs), followed.grad)


@pytest.mark.usefixtures("template")
def test_the_reference_of_the_cross_entropy_is_the_gradient_of_torch() -> None:
    torch = pytest.importorskip("torch")
    workload = load_workload(load_template("quack_cross_entropy:QuackCrossEntropy").workload)
    problem = workload.problem.parse("5x64:fp32")
    logits, classes, _ = inputs = workload.inputs(problem, torch.Generator().manual_seed(0))

    followed = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(followed, classes.long(), reduction="sum").backward()
    torch.testing.assert_close(workload.reference(problem, inputs), followed.grad)


def test_blocks_never_share_rows_of_which_a_warp_has_several(template: KernelTemplate) -> None:
    space = template.space(load_workload(template.workload).problem.parse("8x2048:bf16"), H200)

    names = [knob.name for knob in space.knobs]
    threads, blocks = (
        np.array(space.knobs[names.index(name)].values)[space.codes[:, names.index(name)]]
        for name in ("row_threads", "cluster")
    )
    assert (threads < 32).any()
    assert (blocks[threads < 32] == 1).all()
    assert (blocks[threads >= 32] > 1).any()

"""The conformance suite of kernel templates: ours pass it, and each check fails where a template is wrong."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilescout.spaces.testing import TemplateConformance

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
KERNELS = Path(__file__).resolve().parents[1] / "search" / "kernels"
PRODUCTS = ("16x4096x4096:bf16", "1000x520x136x3:fp16-fp32", "4096x4096x4096:bf16")


class TestGemmSm90(TemplateConformance):
    template = "gemm_sm90"
    problems = (*PRODUCTS, "512x512x512:e4m3", "256x1024x512:bf16:mn:alpha+bias+gelu")
    compiles = True


class TestGemmStreamKSm90(TemplateConformance):  # its own tests, as those of softmax and grouped GEMM, compile more
    template = "gemm_streamk_sm90"
    problems = ("282x320x24896:bf16", "1000x520x136x3:fp16-fp32", "512x512x512:e4m3")


class TestSoftmaxSm90(TemplateConformance):
    template = "softmax_sm90"
    problems = ("8192x4096:bf16", "1x1:fp32", "33x8190:fp16", "3x131072:bf16")


class TestQuackSm90(TemplateConformance):
    template = "quack_sm90"
    problems = (*PRODUCTS, "512x512x512:e4m3")


class TestQuackSm100(TemplateConformance):
    template = "quack_sm100"
    problems = PRODUCTS
    device = "b200"


class TestQuackSm120(TemplateConformance):
    template = "quack_sm120"
    problems = PRODUCTS
    device = "rtx-pro-6000"


@pytest.mark.slow
class TestQuackVarlen(TemplateConformance):
    template = "quack_varlen"
    problems = ("8x512x4096x1024:bf16:zipf-1.2", "128x64x1536x2048:bf16:one", "3x7x8x8")
    compiles = True


class TestGroupedGemmSm90(TemplateConformance):
    template = "grouped_gemm_sm90"
    problems = (
        "128x512x1536x2048:bf16:zipf-1",
        "8x4096x4096x1024:bf16:zipf-1.2",
        "32x64x2880x2880:bf16:one",
        "3x7x8x8",
    )


@pytest.mark.slow
class TestGroupedStreamKSm90(TemplateConformance):
    template = "grouped_streamk_sm90"
    problems = ("128x512x1536x2048:bf16:zipf-1", "8x300x4096x1024:bf16:one", "3x7x8x8")


@pytest.mark.slow
class TestGroupedSwigluSm90(TemplateConformance):
    template = "grouped_swiglu_sm90"
    problems = (
        "128x512x1536x2048:bf16:swiglu:zipf-1",
        "8x4096x5760x2880:bf16:swiglu-pairs:one",
        "3x7x16x8:bf16:swiglu",
    )
    compiles = True


@pytest.mark.slow
class TestGroupedScaledSm90(TemplateConformance):
    template = "grouped_scaled_sm90"
    problems = ("128x512x2048x768:bf16:scaled:zipf-1", "8x4096x4096x1024:bf16:scaled:one", "3x7x8x8:bf16:scaled")
    compiles = True


@pytest.mark.slow
class TestQuackGathered(TemplateConformance):
    template = "quack_gathered"
    problems = ("128x512x1536x2048:bf16:gathered-8:zipf-1", "3x7x8x8:bf16:gathered-2")
    compiles = True


class TestCutlassOperators(TemplateConformance):
    template = "cutlass_operators"
    problems = PRODUCTS


class TestCutlassOperatorsSm100(TemplateConformance):
    template = "cutlass_operators_sm100"
    problems = PRODUCTS
    device = "b200"


@pytest.mark.slow
class TestTheDocumentedExample(TemplateConformance):
    template = "own_kernel:RmsNorm"
    problems = ("8192x4096:bf16", "100x264:fp32", "7x1:fp16")
    compiles = True

    @pytest.fixture(autouse=True)
    def _examples_on_the_path(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(EXAMPLES))
            importlib.invalidate_caches()
            yield


class TestTheKernelOfAnotherProject(TestTheDocumentedExample):
    template = "quack_rms_norm:QuackRmsNorm"
    problems = ("8192x4096:bf16", "100x264:fp32", "7x18432:fp16")
    compiles = False  # its own tests compile more


class TestAnotherKernelOfAnotherProject(TestTheDocumentedExample):
    template = "quack_rms_norm_backward:QuackRmsNormBackward"
    problems = ("8192x4096:bf16", "100x256:fp32", "7x16384:fp16")
    compiles = False  # its own tests compile more


class TestAThirdKernelOfAnotherProject(TestTheDocumentedExample):
    template = "quack_cross_entropy:QuackCrossEntropy"
    problems = ("8192x4096:bf16", "100x264:fp32", "7x18432:fp16")
    compiles = False  # its own tests compile more


TEMPLATE = """
import os
from tilescout.spaces import Built, Configuration, Constraint, Knob, KernelTemplate, RowwiseProblem, Softmax


class Wrong(Softmax):
    def edge_problem(self, problem):
        return RowwiseProblem(problem.rows, problem.columns, "fp16")


class Unseeded(Softmax):
    def inputs(self, problem, generator):
        import torch
        return (torch.randn(problem.rows, problem.columns).to(torch.bfloat16),)


class Rounded(Softmax):
    def reference(self, problem, inputs):
        return super().reference(problem, inputs).bfloat16()


class Template(KernelTemplate):
    name = "broken"
    workload = "tilescout.spaces.rowwise:Softmax"
    archs = ("sm_90a",)
    knobs = (Knob("threads", (32, 64, 128), "threads a block"), Knob("order", ("rows", "columns"), "which comes first"))
    constraints = (
        Constraint("wide", "a warp is not enough", ("threads",), lambda columns, *given: columns["threads"] > 32),
    )

    def default(self, problem, device):
        return Configuration.of({"threads": 64, "order": "rows"})

    def build(self, configuration, signature, arch, path):
        path.write_bytes(b"__tvm_ffi_broken")
        return Built("broken", 0)

"""
FAULTS = {
    "test_it_describes_itself": '    knobs = (Knob("threads", (32, 64), ""),)\n    constraints = ()',
    "test_problems_are_read_back_as_they_are_printed": """
    def parse(self, text):
        problem = super().parse(text)
        return RowwiseProblem(problem.rows + 1, problem.columns)
""",
    "test_a_space_holds_what_breaks_no_rule": """
    def space(self, problem, device):
        from tilescout.spaces import SearchSpace
        whole = SearchSpace(self.name, self.knobs, (), problem, device)
        whole.constraints = self.constraints
        return whole
""",
    "test_the_default_is_legal": """
    def default(self, problem, device):
        return Configuration.of({"threads": 32, "order": "rows"})
""",
    "test_it_is_not_offered_for_other_targets": """
    def space(self, problem, device):
        from tilescout.spaces import SearchSpace
        return SearchSpace(self.name, self.knobs, self.constraints, problem, device)
""",
    "test_a_launch_is_described": "    def blocks_per_cluster(self, configuration): return 0",
    "test_a_configuration_is_compiled_as_one_of_the_same_knobs": """
    def compiled_as(self, configuration):
        return Configuration.of({**configuration, "more": 1})
""",
    "test_the_hash_of_the_source_is_stable": """
    @property
    def source_hash(self):
        return f"{os.getpid():064x}"
""",
    "test_the_workload_measures_what_a_kernel_computes": '    workload = f"{__name__}:Rounded"',
    "test_the_default_compiles": """
    def build(self, configuration, signature, arch, path):
        os.abort()
""",
}
OTHER_FAULTS = [
    ("test_the_workload_measures_what_a_kernel_computes", '    workload = f"{__name__}:Wrong"'),
    ("test_the_workload_measures_what_a_kernel_computes", '    workload = f"{__name__}:Unseeded"'),
    ("test_the_default_compiles", '    def build(self, *asked): return Built("broken", 0)'),
    (
        "test_a_configuration_is_compiled_as_one_of_the_same_knobs",
        """
    def compiled_as(self, configuration):
        return Configuration.of({**configuration, "order": "columns" if configuration["order"] == "rows" else "rows"})
""",
    ),
]
CHECKS = [name for name in dir(TemplateConformance) if name.startswith("test_")]

Run = Callable[[str, str], None]


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Run]:
    """A function: run one check on a template that is right but for what its class says in addition."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        (tmp_path / "module_of_a_broken_template.py").write_text("")
        patch.delitem(sys.modules, "module_of_a_broken_template", raising=False)

        def run(name: str, members: str) -> None:
            (tmp_path / "module_of_a_broken_template.py").write_text(TEMPLATE + members + "\n")
            importlib.invalidate_caches()

            class Checked(TemplateConformance):
                template = "module_of_a_broken_template:Template"
                problems = ("64x128:bf16",)
                compiles = True
                compiler = "json"

            method = getattr(Checked(), name)
            method(tmp_path) if name == "test_the_default_compiles" else method()

        yield run


@pytest.mark.parametrize("name", CHECKS)
def test_a_template_that_is_right_passes(check: Run, name: str) -> None:
    check(name, "")


@pytest.mark.parametrize(("name", "members"), [*FAULTS.items(), *OTHER_FAULTS])
def test_each_check_fails_where_the_template_is_wrong(check: Run, name: str, members: str) -> None:
    with pytest.raises(AssertionError):
        check(name, members)


def test_every_check_is_seen_to_fail() -> None:
    assert set(FAULTS) == set(CHECKS)

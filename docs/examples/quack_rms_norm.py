"""A kernel of another project as a search space: RMS normalisation with weights, by Quack.

tilescout tune quack_rms_norm:QuackRmsNorm --problem 8192x4096:bf16
"""

import importlib
import os
import sys
from dataclasses import dataclass, replace
from types import ModuleType

from tilescout import spaces


@dataclass(frozen=True, order=True)
class LongRows(spaces.RowwiseProblem):
    """Rows whose length is compiled into a kernel: it is part of the signature."""

    @classmethod
    def small(cls, signature):
        return cls.parse(f"16x{signature}")

    @property
    def sizes(self):
        return {"rows": self.rows}

    @property
    def signature(self):
        return f"{self.columns}:{self.dtype}"


class WeightedRms(spaces.Rowwise):
    problem = LongRows

    def inputs(self, problem, generator):
        (x,) = super().inputs(problem, generator)
        return x, x.new_empty(problem.columns).normal_(generator=generator)

    def reference(self, problem, inputs):
        x, weights = (tensor.float() for tensor in inputs)
        return x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() * weights

    def edge_problem(self, problem):
        return replace(problem, rows=min(389, 2**25 // problem.columns | 1))


def elements(columns, problem):
    """How many elements of a row a thread has, in whole accesses of 16 bytes."""
    access = 16 // problem.element.bytes
    return -(-problem.columns // (columns["row_threads"] * columns["cluster"] * access)) * access


def import_quack(module="rmsnorm"):
    """A module of Quack's with a kernel, for a process that compiles: without a GPU, and without Quack's own tuner.

    The tuner imports Triton and torch's compiler, which take longer to import than a kernel to compile.
    """
    os.environ.setdefault("QUACK_ARCH", "sm_90")
    tuner = ModuleType("quack.autotuner")
    tuner.__dict__.update(AutotuneConfig=dict, autotune=lambda **options: lambda function: function)
    sys.modules.setdefault(tuner.__name__, tuner)
    return importlib.import_module(f"quack.{module}")


class QuackRmsNorm(spaces.KernelTemplate):
    name, workload, archs = "quack_rms_norm", f"{__name__}:WeightedRms", ("sm_90a",)
    knobs = (
        spaces.Knob("threads", (64, 128, 256, 512), "threads of a block"),
        spaces.Knob("row_threads", (8, 16, 32, 64, 128, 256, 512), "of them, those that share a row"),
        spaces.Knob("cluster", (1, 2, 4, 8), "blocks that share a row"),
        spaces.Knob("reload", ("no", "shared", "global"), "where a row is read again once its sum is known"),
        spaces.Knob("late_weights", (0, 1), "whether the weights are read behind the sum"),
    )
    constraints = (
        spaces.Constraint("rows", "a block has whole rows", ("threads", "row_threads"),
                          lambda columns, problem, device: columns["row_threads"] <= columns["threads"]),
        spaces.Constraint("warps", "blocks exchange one sum a warp, so that a row they share has whole warps",
                          ("row_threads", "cluster"),
                          lambda columns, problem, device: (columns["cluster"] == 1) | (columns["row_threads"] >= 32)),
        spaces.Constraint("work", "every thread has an access of 16 bytes of its row", ("row_threads", "cluster"),
                          lambda columns, problem, device: (problem.columns * problem.element.bytes % 16 == 0)
                          & (columns["row_threads"] * columns["cluster"] * 16
                             <= problem.columns * problem.element.bytes)),
        spaces.Constraint("registers", "a thread holds at most 128 elements in fp32", ("row_threads", "cluster"),
                          lambda columns, problem, device: elements(columns, problem) <= 128),
        spaces.Constraint("memory", "the rows of a block fit into its shared memory, beside 4 KiB for sums",
                          ("threads", "row_threads", "cluster"),
                          lambda columns, problem, device: elements(columns, problem) * columns["threads"]
                          * problem.element.bytes <= device.shared_memory - 4096),
        spaces.Constraint("guarded", "global memory is read again without a look at whether the row is there",
                          ("threads", "row_threads", "reload"),
                          lambda columns, problem, device: (columns["reload"] != "global")
                          | (columns["threads"] == columns["row_threads"])),
    )  # fmt: skip

    def default(self, problem, device):
        shared = next(count for count in (32, 64, 128, 256, 512) if problem.columns <= 96 * count or count == 512)
        cluster = next(count for count in (1, 2, 4, 8) if problem.columns <= 128 * shared * count or count == 8)
        return spaces.Configuration.of(
            {"threads": max(128, shared), "row_threads": shared, "cluster": cluster, "reload": "no", "late_weights": 0}
        )

    def warm_up(self):
        spaces.import_compiler()
        import_quack()

    def build(self, configuration, signature, arch, path):
        from cutlass import Constexpr, Float32, cute
        from cutlass.cute.runtime import make_fake_compact_tensor

        @cute.jit
        def launch(x: cute.Tensor, weights: cute.Tensor, y: cute.Tensor, norm: Constexpr, stream):
            norm(x, weights, None, None, y, None, None, None, Float32(1e-6), stream)

        def tensor(*shape):
            order = tuple(reversed(range(len(shape))))
            return make_fake_compact_tensor(element, shape, stride_order=order, assumed_align=16)

        quack = import_quack()
        problem, knobs = LongRows.small(signature), dict(configuration)
        element, columns = spaces.element_type(problem.element), problem.columns
        reload = {"no": None, "shared": "smem", "global": "gmem"}[knobs["reload"]]
        layout = knobs["threads"], knobs["row_threads"], knobs["cluster"], reload, bool(knobs["late_weights"])
        norm = quack.RMSNorm(element, columns, config=quack.RmsNormFwdConfig(*layout))
        matrices = tensor(cute.sym_int(), columns), tensor(columns), tensor(cute.sym_int(), columns)
        spaces.compile_object(launch, (*matrices, norm), path, self.name)
        held = int(elements(knobs, problem)) * knobs["threads"] * problem.element.bytes
        sums = 4 * knobs["cluster"] * knobs["threads"] // 32 + 8 * (knobs["cluster"] > 1)  # and a barrier
        return spaces.Built(self.name, shared_memory=held + sums)

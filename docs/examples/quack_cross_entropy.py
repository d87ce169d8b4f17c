"""The gradient of a cross entropy, found beside the loss in one pass over the logits, by Quack.

tilescout tune quack_cross_entropy:QuackCrossEntropy --problem 2048x32000:bf16
"""

from dataclasses import replace

from quack_rms_norm import LongRows, import_quack

from tilescout import spaces


class CrossEntropyGradient(spaces.Rowwise):
    problem = LongRows

    def inputs(self, problem, generator):
        """Logits, the class of each row, and where the kernel writes the losses."""
        (logits,) = super().inputs(problem, generator)
        drawn = logits.new_empty(problem.rows).float().uniform_(0, problem.columns, generator=generator)
        return logits.mul_(4), drawn.int().clamp(max=problem.columns - 1), drawn

    def reference(self, problem, inputs):
        logits, classes, _ = inputs
        gradient = logits.float().softmax(1)
        return gradient.scatter_add_(1, classes.long()[:, None], gradient.new_full((problem.rows, 1), -1))

    def edge_problem(self, problem):
        return replace(problem, rows=min(389, 2**25 // problem.columns | 1))


def elements(columns, problem):
    """How many elements of a row a thread has, in whole accesses."""
    access = columns["access"] // problem.element.bytes
    return -(-problem.columns // (columns["row_threads"] * columns["cluster"] * access)) * access


class QuackCrossEntropy(spaces.KernelTemplate):
    name, workload, archs = "quack_cross_entropy", f"{__name__}:CrossEntropyGradient", ("sm_90a",)
    knobs = (
        spaces.Knob("threads", (128, 256, 512, 1024), "threads of a block"),
        spaces.Knob("row_threads", (16, 32, 64, 128, 256, 512, 1024), "of them, those that share a row"),
        spaces.Knob("cluster", (1, 2, 4, 8), "blocks that share a row"),
        spaces.Knob("access", (8, 16), "bytes that a thread reads or writes at a time"),
        spaces.Knob("maximum", ("first", "first, read again", "with the sum"),
                    "when a row's maximum is found, and whether the row is read again from shared memory then"),
    )  # fmt: skip
    constraints = (
        spaces.Constraint("rows", "a block has whole rows", ("threads", "row_threads"),
                          lambda columns, problem, device: columns["row_threads"] <= columns["threads"]),
        spaces.Constraint("warps", "blocks exchange one sum a warp, so that a row they share has whole warps",
                          ("row_threads", "cluster"),
                          lambda columns, problem, device: (columns["cluster"] == 1) | (columns["row_threads"] >= 32)),
        spaces.Constraint("work", "rows are of whole accesses, and every thread has one",
                          ("row_threads", "cluster", "access"),
                          lambda columns, problem, device: (problem.columns * problem.element.bytes % 16 == 0)
                          & (columns["row_threads"] * columns["cluster"] * columns["access"]
                             <= problem.columns * problem.element.bytes)),
        spaces.Constraint("registers", "a thread holds at most 128 elements in fp32, and a block 32,768",
                          ("threads", "row_threads", "cluster", "access"),
                          lambda columns, problem, device: (elements(columns, problem) <= 128)
                          & (elements(columns, problem) * columns["threads"] <= 32768)),
    )  # fmt: skip

    def default(self, problem, device):
        """What Quack takes, where it is legal."""
        limits = (3072, 32), (6144, 64), (16384, 128), (problem.columns, 256)
        shared = next(threads for columns, threads in limits if problem.columns <= columns)
        cluster = next(count for count in (1, 2, 4, 8) if problem.columns <= 16384 * count or count == 8)
        space = self.space(problem, device)
        chosen = spaces.Configuration.of(
            {
                "threads": max(128, shared), "row_threads": shared, "cluster": cluster, "access": 16,
                "maximum": "first",
            }
        )  # fmt: skip
        return chosen if chosen in space else space[0]

    def blocks_per_cluster(self, configuration):
        return configuration["cluster"]

    def warm_up(self):
        spaces.import_compiler()
        import_quack("cross_entropy")

    def build(self, configuration, signature, arch, path):
        from cutlass import Constexpr, Float32, Int32, cute
        from cutlass.cute.runtime import make_fake_compact_tensor

        quack = import_quack("cross_entropy")
        problem, knobs = LongRows.small(signature), dict(configuration)

        class Laid(quack.CrossEntropy):
            """Quack's kernel, laid out by the configuration."""

            def __init__(self):
                super().__init__(element, columns, online_softmax=knobs["maximum"] == "with the sum")
                self.reload_from = "smem" if knobs["maximum"] == "first, read again" else None

            def _num_threads(self):
                return knobs["threads"]

            def _threads_per_row(self):
                return knobs["row_threads"]

            def _set_cluster_n(self):
                self.cluster_n = knobs["cluster"]

            def _get_tiled_copy(self, vecsize):
                return super()._get_tiled_copy(knobs["access"] // problem.element.bytes)

        @cute.jit
        def launch(
            x: cute.Tensor, classes: cute.Tensor, losses: cute.Tensor, gradient: cute.Tensor, entropy: Constexpr, stream
        ):  # fmt: skip
            entropy(x, classes, None, losses, None, gradient, None, Int32(-100), stream)

        def tensor(*shape, of=None, align=16):
            order = tuple(reversed(range(len(shape))))
            return make_fake_compact_tensor(of or element, shape, stride_order=order, assumed_align=align)

        element, columns = spaces.element_type(problem.element), problem.columns
        rows = cute.sym_int()
        tensors = tensor(rows, columns), tensor(rows, of=Int32), tensor(rows, of=Float32), tensor(rows, columns)
        spaces.compile_object(launch, (*tensors, Laid()), path, self.name)
        warps, online = knobs["threads"] // 32, knobs["maximum"] == "with the sum"
        held = int(elements(knobs, problem)) * knobs["threads"] * problem.element.bytes
        sums = 8 * warps * knobs["cluster"]  # two numbers in fp32 of each warp
        return spaces.Built(self.name, shared_memory=held + sums + (8 if online else 16) * (knobs["cluster"] > 1))

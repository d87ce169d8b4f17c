"""The gradient of an RMS normalisation with fixed weights, by Quack: several inputs, and a grid that stays.

tilescout tune quack_rms_norm_backward:QuackRmsNormBackward --problem 8192x4096:bf16
"""

from dataclasses import dataclass, replace

from quack_rms_norm import LongRows, elements, import_quack

from tilescout import spaces


@dataclass(frozen=True, order=True)
class RowsAndGradient(LongRows):
    """Rows, and a gradient of the same shape."""

    @property
    def bytes(self):
        return 3 * self.rows * self.columns * self.element.bytes


class RmsBackward(spaces.Rowwise):
    problem = RowsAndGradient

    def inputs(self, problem, generator):
        (x,) = super().inputs(problem, generator)
        gradient, weights = x.new_empty(x.shape), x.new_empty(problem.columns)
        scale = (x.float().square().mean(1) + 1e-6).rsqrt()  # of every row; the forward pass keeps it
        return x, weights.normal_(generator=generator), gradient.normal_(generator=generator), scale

    def reference(self, problem, inputs):
        x, weights, gradient, scale = (tensor.float() for tensor in inputs)
        normal, weighted = x * scale[:, None], gradient * weights
        return (weighted - normal * (normal * weighted).mean(1, keepdim=True)) * scale[:, None]

    def arguments(self, inputs, output, max_clusters):
        return (*inputs, output, max_clusters)

    def edge_problem(self, problem):
        return replace(problem, rows=min(389, 2**25 // problem.columns | 1))


class QuackRmsNormBackward(spaces.KernelTemplate):
    name, workload, archs = "quack_rms_norm_backward", f"{__name__}:RmsBackward", ("sm_90a",)
    knobs = (
        spaces.Knob("threads", (128, 256, 512), "threads of a block"),
        spaces.Knob("row_threads", (32, 64, 128, 256, 512), "of them, those that share a row"),
        spaces.Knob("cluster", (1, 2, 4), "blocks that share a row"),
        spaces.Knob("loads", ("threads", "tma"), "who loads rows: all threads, or the tensor memory accelerator"),
        spaces.Knob("stages", (2, 3), "rows of a thread's that are in shared memory, most of them ahead"),
        spaces.Knob("reload", ("no", "gradient", "both"), "what is read from there again once the sum is known"),
        spaces.Knob("resident", (1, 2, 4), "blocks of a multiprocessor that the grid is made for; each goes on"),
    )
    constraints = (
        spaces.Constraint("rows", "a block has whole rows", ("threads", "row_threads"),
                          lambda columns, problem, device: columns["row_threads"] <= columns["threads"]),
        spaces.Constraint("even", "threads have the same number of accesses of 16 bytes: behind the end of a row "
                          "shared memory is not cleared", ("row_threads", "cluster"),
                          lambda columns, problem, device: problem.columns * problem.element.bytes
                          % (16 * columns["row_threads"] * columns["cluster"]) == 0),
        spaces.Constraint("registers", "a thread holds at most 64 elements of a tensor", ("row_threads", "cluster"),
                          lambda columns, problem, device: elements(columns, problem) <= 64),
        spaces.Constraint("memory", "what is in flight fits into a block's shared memory, beside 4 KiB for sums",
                          ("threads", "row_threads", "cluster", "stages"),
                          lambda columns, problem, device: 2 * columns["stages"] * elements(columns, problem)
                          * columns["threads"] * problem.element.bytes <= device.shared_memory - 4096),
        spaces.Constraint("resident", "so many blocks fit into a multiprocessor, by threads", ("threads", "resident"),
                          lambda columns, problem, device: columns["threads"] * columns["resident"] <= 2048),
    )  # fmt: skip

    def default(self, problem, device):
        shared = next(count for count in (32, 64, 128, 256) if problem.columns <= 32 * count or count == 256)
        space = self.space(problem, device)
        for cluster in (1, 2, 4):
            chosen = spaces.Configuration.of(
                {
                    "threads": max(128, shared), "row_threads": shared, "cluster": cluster, "loads": "threads",
                    "stages": 2, "reload": "no", "resident": 1,
                }
            )  # fmt: skip
            if chosen in space:
                return chosen
        return space[0]

    def blocks_per_cluster(self, configuration):
        return configuration["cluster"]

    def warm_up(self):
        spaces.import_compiler()
        import_quack()

    def build(self, configuration, signature, arch, path):
        from cutlass import Constexpr, Float32, Int32, cute
        from cutlass.cute.runtime import make_fake_compact_tensor

        @cute.jit
        def launch(
            x: cute.Tensor, weights: cute.Tensor, gradient: cute.Tensor, scale: cute.Tensor, result: cute.Tensor,
            clusters: Int32, backward: Constexpr, resident: Constexpr, stream,
        ):  # fmt: skip
            backward(x, weights, gradient, None, scale, None, result, None, None, None, clusters * resident, stream)

        def tensor(*shape, of=None):
            order = tuple(reversed(range(len(shape))))
            return make_fake_compact_tensor(of or element, shape, stride_order=order, assumed_align=16)

        quack = import_quack()
        problem, knobs = RowsAndGradient.small(signature), dict(configuration)
        element, columns = spaces.element_type(problem.element), problem.columns
        config = quack.RmsNormBwdConfig(
            knobs["threads"], knobs["row_threads"], knobs["cluster"],
            reload_wdy=None if knobs["reload"] == "no" else "smem",
            reload_x="smem" if knobs["reload"] == "both" else None,
            use_tma=knobs["loads"] == "tma",
            smem_stages=knobs["stages"],
        )  # fmt: skip
        backward = quack.RMSNormBackward(element, columns, config=config)
        rows = cute.sym_int()
        tensors = tensor(rows, columns), tensor(columns), tensor(rows, columns), tensor(rows, of=Float32)
        arguments = *tensors, tensor(rows, columns), Int32(1), backward, knobs["resident"]
        spaces.compile_object(launch, arguments, path, self.name)
        held = 2 * knobs["stages"] * int(elements(knobs, problem)) * knobs["threads"] * problem.element.bytes
        sums = 2 * 4 * knobs["cluster"] * knobs["threads"] // 32
        tma, exchange = knobs["loads"] == "tma", knobs["cluster"] > 1
        barriers = 2 * 8 * knobs["stages"] * tma + exchange * (128 if tma else 32)  # what the TMA fills is aligned
        return spaces.Built(self.name, shared_memory=held + sums + barriers)

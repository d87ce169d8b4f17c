"""A kernel of your own as a search space: RMS normalisation, a warp a row.

tilescout tune own_kernel:RmsNorm --problem 8192x4096:bf16
"""

import cuda.bindings.driver as cuda
from cutlass import Constexpr, Float32, cute

from tilescout import spaces


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, warps: Constexpr, vector: Constexpr, stream: cuda.CUstream):
    grid = (cute.ceil_div(x.shape[0], warps), 1, 1)
    normalise(x, y, warps, vector).launch(grid=grid, block=(32 * warps, 1, 1), stream=stream)


@cute.kernel
def normalise(x: cute.Tensor, y: cute.Tensor, warps: Constexpr, vector: Constexpr):
    row = cute.arch.block_idx()[0] * warps + cute.arch.thread_idx()[0] // 32
    if row < x.shape[0]:
        source, target = (cute.zipped_divide(tensor[row, None], (vector,)) for tensor in (x, y))
        total = Float32(0)
        for part in range(cute.arch.lane_idx(), cute.size(source, mode=[1]), 32):
            values = source[None, part].load().to(Float32)
            total += (values * values).reduce(cute.ReductionOp.ADD, 0.0, 0)
        scale = cute.math.rsqrt(cute.arch.warp_reduction_sum(total) / x.shape[1] + 1e-6)
        for part in range(cute.arch.lane_idx(), cute.size(source, mode=[1]), 32):
            target[None, part].store((source[None, part].load().to(Float32) * scale).to(y.element_type))


class Rms(spaces.Rowwise):
    def reference(self, problem, inputs):
        x = inputs[0].float()
        return x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()


class RmsNorm(spaces.KernelTemplate):
    name, workload, archs = "rms_norm", f"{__name__}:Rms", ("sm_90a",)
    knobs = (
        spaces.Knob("warps", (1, 2, 4, 8, 16), "rows a block"),
        spaces.Knob("vector", (1, 2, 4, 8), "elements of an access"),
    )
    constraints = (
        spaces.Constraint("aligned", "accesses divide a row, and have at most 16 bytes", ("vector",),
                          lambda columns, problem, device: (problem.columns % columns["vector"] == 0)
                          & (columns["vector"] * problem.element.bytes <= 16)),
    )  # fmt: skip

    def default(self, problem, device):
        return spaces.Configuration.of({"warps": 4, "vector": 1})

    def build(self, configuration, signature, arch, path):
        element, vector = spaces.RowwiseProblem.small(signature).element, configuration["vector"]
        matrices = spaces.row_major(element, vector), spaces.row_major(element, vector)
        spaces.compile_object(launch, (*matrices, configuration["warps"], vector), path, self.name)
        return spaces.Built(self.name, shared_memory=0)

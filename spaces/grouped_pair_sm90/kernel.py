"""Two grouped kernels and the choice between them, in CuteDSL.

Three kernels are launched, each of which sets itself up while the last one runs. The first counts what the rule wants
to know of the offsets, and writes them twice: as they are for the kernel that is to run, and as zeros, all groups
empty, for the other, which then ends at once. Nothing of it is known to the host.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute, utils

from tilescout.spaces.gemm_sm90.layout import ALIGNMENT
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90
from tilescout.spaces.grouped_pair_sm90.rule import SCALE, PairRule, Side, sums_at
from tilescout.spaces.grouped_streamk_sm90.kernel import GroupedStreamKSm90

THREADS = 256
_WARPS = THREADS // 32
_COUNTS = 3  # experts that have tokens, and tiles of both kernels


def side_of(kernel: GroupedGemmSm90) -> Side:
    """How a kernel divides the work."""
    tokens, columns = kernel.steps()
    return Side(tokens, columns, kernel.shape.cluster_m * kernel.shape.cluster_n)


def launch(
    kernel: GroupedGemmSm90, operands: tuple[cute.Tensor, ...], blocks: Int32, sums: cute.Tensor, stream: cuda.CUstream
) -> None:
    """Launch one of a pair, with memory for the sums of a wave that it shares; only one of the two has work."""
    clusters = blocks // side_of(kernel).blocks
    if isinstance(kernel, GroupedStreamKSm90):
        kernel.sharing(*operands, clusters, sums, stream)
    else:
        kernel(*operands, clusters, stream)


@dataclass(frozen=True)
class GroupedPairSm90:
    """A generator of kernels: its entry point under ``cute.compile`` emits all three.

    Attributes
    ----------
    first, second
        The two.
    rule
        Which of them runs.
    """

    first: GroupedGemmSm90
    second: GroupedGemmSm90
    rule: PairRule

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        ends: cute.Tensor,
        d: cute.Tensor,
        blocks: Int32,
        workspace: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on the operands of `GroupedGemmSm90`, at most so many blocks at once, and memory for the offsets."""
        experts = cute.size(ends)
        words = cute.recast_ptr(workspace.iterator, dtype=Int32)
        of_first = cute.make_tensor(words, cute.make_layout(experts))
        of_second = cute.make_tensor(words + experts, cute.make_layout(experts))
        self.choose(ends, of_first, of_second, d, blocks).launch(
            grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream, use_pdl=True
        )
        sums = cute.make_tensor((words + sums_at(experts)).align(ALIGNMENT), cute.make_layout(1))
        launch(self.first, (a, b, of_first, d), blocks, sums, stream)
        launch(self.second, (a, b, of_second, d), blocks, sums, stream)

    @cute.kernel
    def choose(
        self, ends: cute.Tensor, of_first: cute.Tensor, of_second: cute.Tensor, d: cute.Tensor, blocks: Int32
    ) -> None:
        """Count, and write the offsets for both: one block."""
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % 32, thread // 32
        sums = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout((_COUNTS, _WARPS)))
        experts, tokens = Int32(cute.size(ends)), Int32(cute.size(d, mode=[0]))
        first, second = side_of(self.first), side_of(self.second)
        # What the kernel before wrote is there from here on.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        reached, first_tiles, second_tiles = Int32(0), Int32(0), Int32(0)
        for expert in cutlass.range(thread, experts, THREADS, unroll=1):
            start = Int32(0)
            if expert > 0:
                start = min(max(ends[expert - 1], Int32(0)), tokens)
            size = max(min(max(ends[expert], Int32(0)), tokens) - start, Int32(0))
            reached += min(size, Int32(1))
            first_tiles += (size + (first.tokens - 1)) // first.tokens
            second_tiles += (size + (second.tokens - 1)) // second.tokens
        for distance in cutlass.range_constexpr(5):
            reached += cute.arch.shuffle_sync_bfly(reached, 1 << distance)
            first_tiles += cute.arch.shuffle_sync_bfly(first_tiles, 1 << distance)
            second_tiles += cute.arch.shuffle_sync_bfly(second_tiles, 1 << distance)
        if lane == 0:
            sums[0, warp] = reached
            sums[1, warp] = first_tiles
            sums[2, warp] = second_tiles
        cute.arch.barrier()
        reached, first_tiles, second_tiles = Int32(0), Int32(0), Int32(0)
        for other in cutlass.range_constexpr(_WARPS):
            reached += sums[0, other]
            first_tiles += sums[1, other]
            second_tiles += sums[2, other]
        n = Int32(cute.size(d, mode=[1]))
        first_rounds = cute.ceil_div(first_tiles * cute.ceil_div(n, first.columns), blocks // first.blocks)
        second_rounds = cute.ceil_div(second_tiles * cute.ceil_div(n, second.columns), blocks // second.blocks)
        score = Float32(0.0)
        counts = (Int32(1), reached, first_tiles, second_tiles, first_rounds, second_rounds)
        for at in cutlass.range_constexpr(len(counts)):
            score += Float32(counts[at]) * (self.rule.weights[at] / SCALE)
        for expert in cutlass.range(thread, experts, THREADS, unroll=1):
            end, none = ends[expert], Int32(0)
            if score > 0.0:
                of_first[expert] = none
                of_second[expert] = end
            else:
                of_first[expert] = end
                of_second[expert] = none

"""A rank's part of a stack of blocks that several GPUs share: matrix products, and sums over the ranks."""

from typing import TYPE_CHECKING

from tilescout.experiments.research.llama_block import BlockSizes

if TYPE_CHECKING:
    import torch


def products(sizes: BlockSizes, ranks: int) -> list[tuple[int, int]]:
    """The n and k of a rank's products: queries, keys and values; their output; gate and up; down.

    Raises
    ------
    ValueError
        If the ranks can't share the heads, or the feed-forward layer.
    """
    if sizes.heads % ranks or sizes.kv_heads % ranks or sizes.intermediate % ranks:
        raise ValueError(f"{ranks} ranks can't share {sizes.kv_heads} heads of keys and {sizes.intermediate} columns")
    queries, inner = sizes.heads // ranks * sizes.head, sizes.intermediate // ranks
    return [
        (queries + 2 * sizes.kv_heads // ranks * sizes.head, sizes.hidden),
        (sizes.hidden, queries),
        (2 * inner, sizes.hidden),
        (sizes.hidden, inner),
    ]


def make_rank(sizes: BlockSizes, layers: int, ranks: int, device: str) -> "torch.nn.Module":
    """A rank's part, with random weights in bf16; a call takes and returns [rows, hidden], the same in all ranks.

    Columns of the first product of a pair are split, and rows of the second, so that each pair ends in one sum over the
    ranks (Megatron-LM, arXiv:1909.08053). Attention, which each rank has to itself, is left out: its output is the
    queries. The default group of `torch.distributed` must be there when it is called.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed import _functional_collectives as collectives
    from torch.nn import functional

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_attention = nn.RMSNorm(sizes.hidden, eps=1e-5, dtype=torch.bfloat16, device=device)
            self.before_feed_forward = nn.RMSNorm(sizes.hidden, eps=1e-5, dtype=torch.bfloat16, device=device)
            self.qkv, self.o, self.gate_up, self.down = (
                nn.Linear(k, n, bias=False, dtype=torch.bfloat16, device=device) for n, k in products(sizes, ranks)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            queries = self.qkv(self.before_attention(x))[:, : self.o.in_features]
            x = x + summed(self.o(queries))
            gate, up = self.gate_up(self.before_feed_forward(x)).chunk(2, -1)
            return x + summed(self.down(functional.silu(gate) * up))

    def summed(part: torch.Tensor) -> torch.Tensor:
        assert dist.group.WORLD is not None
        found: torch.Tensor = collectives.all_reduce(part, "sum", dist.group.WORLD)
        return found

    return nn.Sequential(*(Part() for _ in range(layers))).eval()

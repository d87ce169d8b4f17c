"""A Llama-style transformer block with random weights: what a compiled model is measured on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of a block; by default those of Llama 3 8B (arXiv:2407.21783, table 3).

    Attributes
    ----------
    hidden, intermediate
        Width of the residual stream and of the feed-forward layer.
    heads, kv_heads
        Heads of the queries, and of keys and values.
    """

    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    kv_heads: int = 8

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    def problems(self, rows: int, dtype: str) -> list[str]:
        """The block's linear layers on so many rows, as problems, each once."""
        shapes = {
            (self.hidden, self.hidden),
            (self.kv_heads * self.head, self.hidden),
            (self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        }
        return [f"{rows}x{n}x{k}:{dtype}" for n, k in sorted(shapes)]


def make_block(sizes: BlockSizes, dtype: "torch.dtype", device: str, seed: int = 0) -> "torch.nn.Module":
    """The block, in evaluation mode; a call takes and returns [batch, sequence, hidden]."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def linear(rows: int, columns: int) -> nn.Linear:
                return nn.Linear(rows, columns, bias=False, dtype=dtype, device=device)

            self.before_attention = nn.RMSNorm(sizes.hidden, eps=1e-5, dtype=dtype, device=device)
            self.before_feed_forward = nn.RMSNorm(sizes.hidden, eps=1e-5, dtype=dtype, device=device)
            self.q = linear(sizes.hidden, sizes.hidden)
            self.k = linear(sizes.hidden, sizes.kv_heads * sizes.head)
            self.v = linear(sizes.hidden, sizes.kv_heads * sizes.head)
            self.o = linear(sizes.hidden, sizes.hidden)
            self.gate = linear(sizes.hidden, sizes.intermediate)
            self.up = linear(sizes.hidden, sizes.intermediate)
            self.down = linear(sizes.intermediate, sizes.hidden)

        def rotate(self, x: torch.Tensor) -> torch.Tensor:
            """Rotary positions, base 500,000."""
            half = sizes.head // 2
            steps = torch.arange(half, device=x.device, dtype=torch.float32)
            positions = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
            angles = positions[:, None] * 500_000 ** (-steps / half)
            cosine, sine = angles.cos(), angles.sin()
            left, right = x.float().split(half, dim=-1)
            turned = torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
            result: torch.Tensor = turned.to(x.dtype)
            return result

        def attend(self, x: torch.Tensor) -> torch.Tensor:
            def heads(projected: torch.Tensor) -> torch.Tensor:
                split: torch.Tensor = projected.unflatten(-1, (-1, sizes.head))
                return split.transpose(1, 2)

            q, k, v = self.rotate(heads(self.q(x))), self.rotate(heads(self.k(x))), heads(self.v(x))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            result: torch.Tensor = self.o(attended.transpose(1, 2).flatten(2))
            return result

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attend(self.before_attention(x))
            y = self.before_feed_forward(x)
            result: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
            return result

    torch.manual_seed(seed)
    block: nn.Module = Block()
    return block.eval()

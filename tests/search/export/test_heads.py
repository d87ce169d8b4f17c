"""Heads that share keys and values read them where they are, and attention says the same."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tilescout.search.export.siblings.heads import read_in_place
from tilescout.search.export.torch_hooks import OPTION, changed_config

pytestmark = pytest.mark.usefixtures("fresh_inductor")

SIZE, TOKENS = 16, 24


class Heads:
    """The pass alone, and what it did to each graph."""

    def __init__(self) -> None:
        self.in_place: list[list[int]] = []
        self.copies = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.in_place.append(read_in_place(graph))
        graph.lint()
        clones = graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
        self.copies += sum(node.meta["val"].dim() == 5 for node in clones)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool = False
) -> torch.Tensor:
    """Attention as models write it that copy shared heads."""
    copies = query.shape[1] // key.shape[1]
    if copies > 1:
        key, value = (
            each[:, :, None].expand(-1, -1, copies, -1, -1).reshape(each.shape[0], query.shape[1], *each.shape[2:])
            for each in (key, value)
        )
    found = scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
    return found.transpose(1, 2).flatten(2)


def operands(batch: int, heads: int, copies: int, tokens: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, SIZE, generator=generator, dtype=torch.bfloat16)

    keys, values = (drawn(batch, heads, TOKENS) for _ in range(2))
    return drawn(batch, tokens, heads * copies).transpose(1, 2), keys, values


def seen(batch: int, heads: int = 1, tokens: int = 1) -> torch.Tensor:
    """A mask of tokens that are there: another number of them for each sequence."""
    ends = torch.arange(batch).view(-1, 1, 1, 1) + TOKENS // 2
    return (torch.arange(TOKENS) < ends).expand(batch, heads, tokens, TOKENS)


@pytest.mark.parametrize(
    ("batches", "heads", "copies", "compiled"),
    [((1,), 1, 3, 1), ((4, 2, 5), 3, 2, 2)],
    ids=["one head, one sequence", "any batch"],
)
def test_shared_keys_are_read_in_place(batches: tuple[int, ...], heads: int, copies: int, compiled: int) -> None:
    tried = Heads()
    with changed_config({OPTION: tried}):
        model = torch.compile(attend)  # for the second batch, any is compiled for
        for batch in batches:
            given = (*operands(batch, heads, copies), seen(batch))
            close(model(*given), attend(*given))
    bytes_copied = 2 * heads * copies * TOKENS * SIZE * torch.bfloat16.itemsize  # of one sequence
    assert tried.in_place == [[batch * bytes_copied] for batch in batches[:compiled]]
    assert tried.copies == 0


@pytest.mark.parametrize(("tokens", "masked_heads", "causal"), [(3, 8, False), (5, 0, True)], ids=str)
def test_so_they_are_with_any_tokens_and_masks(tokens: int, masked_heads: int, causal: bool) -> None:
    tried, given = Heads(), operands(2, 2, 4, tokens)
    mask = seen(2, masked_heads, tokens) if masked_heads else None
    with changed_config({OPTION: tried}):
        close(torch.compile(attend)(*given, mask, causal), attend(*given, mask, causal))
    assert (len(tried.in_place[0]), tried.copies) == (1, 0)


def test_attention_without_shared_heads_is_left_alone() -> None:
    tried, given = Heads(), operands(2, 3, 1)
    with changed_config({OPTION: tried}):
        close(torch.compile(attend)(*given, seen(2)), attend(*given, seen(2)))
    assert tried.in_place == [[]]


def test_attention_that_is_learned_from_is_left_alone() -> None:
    tried = Heads()
    query, keys, values = (each.requires_grad_() for each in operands(2, 2, 4))
    with changed_config({OPTION: tried}):
        found = torch.compile(attend)(query, keys, values, seen(2))
        found.float().square().mean().backward()
    assert not any(tried.in_place)
    assert keys.grad is not None

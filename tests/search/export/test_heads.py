"""Heads that share keys and values read them where they are, and attention says the same."""

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention

from tilescout.search.export.siblings.heads import read_in_place
from tilescout.search.export.torch_hooks import OPTION, changed_config

SIZE, TOKENS = 16, 24
Attend = Callable[..., torch.Tensor]


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


def copied(keys: torch.Tensor, copies: int) -> torch.Tensor:
    """Keys or values for each head that shares them, as models write it."""
    batch, heads, tokens, size = keys.shape
    wide = keys[:, :, None].expand(-1, -1, copies, -1, -1)
    return wide.reshape(batch, heads * copies, tokens, size) if copies > 1 else keys


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool = False
) -> torch.Tensor:
    """Attention as models write it that copy shared heads."""
    key, value = (copied(each, query.shape[1] // each.shape[1]) for each in (key, value))
    return scaled_dot_product_attention(query, key, value, mask, is_causal=causal).transpose(1, 2).flatten(2)


def drawn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, SIZE, generator=torch.Generator().manual_seed(sizes[0]), dtype=torch.bfloat16)


def operands(batch: int, heads: int, copies: int, tokens: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    keys, values = drawn(2, batch, heads, TOKENS)
    return drawn(batch, tokens, heads * copies).transpose(1, 2), keys, values


def seen(batch: int, heads: int = 1, tokens: int = 1) -> torch.Tensor:
    """A mask of tokens that are there: another number of them for each sequence."""
    ends = torch.arange(batch).view(-1, 1, 1, 1) + TOKENS // 2
    return (torch.arange(TOKENS) < ends).expand(batch, heads, tokens, TOKENS)


def in_place(attend: Attend, *given: object) -> tuple[list[int], int]:
    """The bytes that attention in a graph has not copied any more, and how many copies are left.

    The graph is run before and after, and says the same.
    """
    graph = make_fx(attend, tracing_mode="fake")(*given)
    expected, tried = graph(*given), Heads()
    tried(graph.graph)
    graph.recompile()
    close(graph(*given), expected)
    return tried.in_place[0], tried.copies


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_inductor")
def test_shared_keys_are_read_in_place_in_compiled_code_of_any_batch() -> None:
    tried, heads, copies = Heads(), 3, 2
    with changed_config({OPTION: tried}):
        model = torch.compile(attend)  # for the second batch, any is compiled for
        for batch in (4, 2, 5):
            given = (*operands(batch, heads, copies), seen(batch))
            close(model(*given), attend(*given))
    bytes_copied = 2 * heads * copies * TOKENS * SIZE * torch.bfloat16.itemsize  # of one sequence
    assert tried.in_place == [[4 * bytes_copied], [2 * bytes_copied]]
    assert tried.copies == 0


@pytest.mark.parametrize(
    ("heads", "tokens", "masked_heads", "causal"), [(1, 1, 1, False), (2, 3, 8, False), (2, 5, 0, True)], ids=str
)
def test_so_they_are_with_any_heads_tokens_and_masks(heads: int, tokens: int, masked_heads: int, causal: bool) -> None:
    query, keys, values = operands(2, heads, 8 // heads, tokens)
    mask = seen(2, masked_heads, tokens) if masked_heads else None
    bytes_copied = 2 * query.nbytes // tokens * TOKENS if heads > 1 else 0  # one head is a view for all
    assert in_place(attend, query, keys, values, mask, causal) == ([bytes_copied], 0)


def test_a_mask_of_numbers_and_a_scale_stay() -> None:
    def scaled(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        key, value = copied(key, 4), copied(value, 4)
        return scaled_dot_product_attention(query, key, value, mask, scale=0.7)

    found, copies = in_place(scaled, *operands(2, 2, 4), drawn(2, 1, 1, TOKENS)[..., 0])
    assert (len(found), copies) == (1, 0)


def test_two_attentions_that_read_one_copy_save_it_once() -> None:
    def twice(first: torch.Tensor, second: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        key, value = copied(key, 4), copied(value, 4)
        return scaled_dot_product_attention(first, key, value) + scaled_dot_product_attention(second, key, value)

    query, keys, values = operands(2, 2, 4)
    assert in_place(twice, query, -query, keys, values) == ([0, 2 * 4 * keys.nbytes], 0)


def test_a_copy_that_is_read_elsewhere_is_not_told_as_saved() -> None:
    def kept(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        key = copied(key, 4)
        return scaled_dot_product_attention(query, key, key) + key.sum(2, keepdim=True)

    query, keys, _ = operands(2, 2, 4)
    assert in_place(kept, query, keys) == ([0], 1)


def _fewer_heads_of_keys(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, copied(key[:, :1], 8), copied(value, 4))


def _keys_of_another_layout(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Copies that lie one behind the other, not head by head."""
    keys, values = (each[:, None].expand(-1, 4, -1, -1, -1).reshape(2, 8, TOKENS, SIZE) for each in (key, value))
    return scaled_dot_product_attention(query, keys, values)


def _one_prompt_of_all(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Keys that the sequences share too."""
    wide = (2, 2, 4, TOKENS, SIZE)
    keys, values = (each[:1, :, None].expand(wide).reshape(2, 8, TOKENS, SIZE) for each in (key, value))
    return scaled_dot_product_attention(query, keys, values)


def _begins_between(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Values that lie where no kernel reads them that takes 16 bytes at a time."""
    values = torch.cat([value, value], -1)[..., 3 : 3 + SIZE]
    return scaled_dot_product_attention(query, copied(key, 4), copied(values, 4))


def _tells_more(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention that tells the sums of its weights, as one that is learned from."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    found, sums = attention(query, copied(key, 4), copied(value, 4))
    return found + sums[..., None].to(found.dtype)


def _caps_its_logits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention of models that cap its logits, as Gemma 2, which is no operator."""
    logits = (query @ copied(key, 4).mT / 4).tanh() * 4
    return logits.softmax(-1) @ copied(value, 4)


@pytest.mark.parametrize(
    "attend",
    [
        _fewer_heads_of_keys,
        _keys_of_another_layout,
        _one_prompt_of_all,
        _begins_between,
        _tells_more,
        _caps_its_logits,
    ],
)
def test_attention_is_left_alone_where_its_kernel_may_not_take_them(attend: Attend) -> None:
    assert in_place(attend, *operands(2, 2, 4))[0] == []


def test_attention_without_shared_heads_is_left_alone() -> None:
    assert in_place(attend, *operands(2, 3, 1), seen(2), False) == ([], 0)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_inductor")
def test_attention_that_is_learned_from_is_left_alone() -> None:
    tried = Heads()
    query, keys, values = (each.requires_grad_() for each in operands(2, 2, 4))
    with changed_config({OPTION: tried}):
        found = torch.compile(attend)(query, keys, values, seen(2))
        found.float().square().mean().backward()
    assert not any(tried.in_place)
    assert keys.grad is not None

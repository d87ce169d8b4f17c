"""Compiled models: what is replaced, what is left, and that the results are those of the model itself."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from tilescout.search.export import inductor, loaded_kernels
from tilescout.search.export.bundle import INDEX, Bundle
from tilescout.search.export.inductor import GraphPass, graph_pass, use
from tilescout.search.export.torch_hooks import OPTION
from tilescout.spaces.errors import BundleError, DeviceError

Calls = Callable[[Bundle], int]
OURS = "tilescout.gemm_compiled"
CALL = re.compile(r"^ +(tilescout_\w+)\(.*, out=\w+\)$", re.MULTILINE)

pytestmark = pytest.mark.usefixtures("fresh_inductor")


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    """Decides for ours: a linear layer 32 to 64, one 64 to 32, both at 16 and 24 rows, and a batched product."""
    return make_bundle(["16x64x32", "24x64x32", "16x32x64", "24x32x64", "16x64x32x3"], ["8x64x32", "8x32x64"])


class Block(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(32, 64, bias=bias, dtype=torch.bfloat16)
        self.down = nn.Linear(64, 32, bias=bias, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def rows(m: int, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (m, 32)), generator=torch.Generator().manual_seed(m), dtype=torch.bfloat16)


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_an_object_compiled_in_the_block_uses_the_bundle_when_it_is_called_after_it(
    bundle: Bundle, calls: Calls
) -> None:
    model = Block()
    with use(bundle.path) as tuned:
        compiled = torch.compile(model)
    before = calls(bundle)
    close(compiled(rows(16)), model(rows(16)))
    assert calls(bundle) == before + 2
    assert tuned.report.replaced == {"16x64x32:bf16": 1, "16x32x64:bf16": 1}
    with torch.no_grad():
        close(compiled(rows(16)), model(rows(16)))
    assert calls(bundle) == before + 4


def test_what_is_compiled_outside_the_block_stays_as_it_was(bundle: Bundle, calls: Calls) -> None:
    outside, model = torch.compile(Block()), Block()
    with use(bundle.path):
        pass
    before = calls(bundle)
    close(outside(rows(16)), model(rows(16)))
    close(torch.compile(model)(rows(16)), model(rows(16)))
    assert calls(bundle) == before
    assert getattr(torch._inductor.config, OPTION) is None


def test_what_is_compiled_first_in_the_block_uses_the_bundle(bundle: Bundle, calls: Calls) -> None:
    model = torch.compile(Block())
    before = calls(bundle)
    with use(bundle.path):
        model(rows(16))
    assert calls(bundle) == before + 2


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_modes_keep_their_meaning(bundle: Bundle, calls: Calls, mode: str) -> None:
    model = Block()
    with use(bundle.path):
        compiled = torch.compile(model, mode=mode)
    before = calls(bundle)
    with torch.no_grad():
        close(compiled(rows(16)), model(rows(16)))
    assert calls(bundle) == before + 2
    assert compiled.get_compiler_config()["triton.cudagraphs"] == (mode == "reduce-overhead")  # type: ignore[attr-defined]


def test_a_module_compiled_in_place_uses_the_bundle(bundle: Bundle, calls: Calls) -> None:
    model = Block()
    expected = model(rows(16))
    with use(bundle.path):
        model.compile()
    before = calls(bundle)
    close(model(rows(16)), expected)
    assert calls(bundle) == before + 2


def test_the_pass_can_be_given_as_an_option(bundle: Bundle, calls: Calls) -> None:
    model, tuned = Block(), graph_pass(bundle.path)
    before = calls(bundle)
    close(torch.compile(model, options={OPTION: tuned})(rows(16)), model(rows(16)))
    assert calls(bundle) == before + 2
    assert isinstance(tuned, torch._inductor.custom_graph_pass.CustomGraphPass)


def test_a_pass_of_the_user_runs_first(bundle: Bundle, calls: Calls) -> None:
    seen = []

    def mine(graph: torch.fx.Graph) -> None:
        seen.append([node.target for node in graph.nodes if node.target is torch.ops.aten.mm.default])

    model = Block()
    with use(bundle.path):
        compiled = torch.compile(model, options={OPTION: mine})
    before = calls(bundle)
    with torch.no_grad():
        compiled(rows(16))
    assert len(seen[0]) == 2
    assert calls(bundle) == before + 2
    assert graph_pass(bundle.path, mine).uuid() is None  # a plain function names no version of itself
    inner = graph_pass(bundle.path)
    assert graph_pass(bundle.path, inner).uuid() not in (None, inner.uuid())


@pytest.mark.skipif(torch.__version__ < "2.13", reason="this torch tells no pass of inference")
def test_several_passes_of_the_user_run_first_and_are_told_of_inference(bundle: Bundle) -> None:
    from torch._inductor.custom_graph_pass import CustomInferenceAwareGraphPass

    told: list[object] = []

    class Aware(CustomInferenceAwareGraphPass):
        def __call__(self, graph: torch.fx.Graph, is_inference: bool) -> None:  # type: ignore[override]
            told.append(is_inference)

        def uuid(self) -> str:
            return "aware"

    def plain(graph: torch.fx.Graph) -> None:
        told.append("plain")

    graph_pass(bundle.path, [plain, Aware()])(torch.fx.Graph(), is_inference=True)
    assert told == ["plain", True]
    assert isinstance(graph_pass(bundle.path), CustomInferenceAwareGraphPass)
    assert graph_pass(bundle.path, [Aware(), plain]).uuid() is None
    named = graph_pass(bundle.path, [Aware()]).uuid()
    assert named not in (None, graph_pass(bundle.path).uuid())


def test_all_that_the_passes_import_of_the_export_is_in_their_key() -> None:
    package, prefix = Path(inductor.__file__).parent, "tilescout.search.export."
    # Code that TorchInductor generates imports the second; the last are of the passes of `autotune`.
    found, asked = set[str](), {"inductor.py", "generated_calls.py", "siblings/heads.py", "siblings/rewrite.py"}
    while asked:
        found |= asked
        trees = [ast.parse((package / name).read_text()) for name in asked]
        nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        named = {node.module.removeprefix(prefix) for node in nodes if node.module and node.module.startswith(prefix)}
        asked = {f"{name.replace('.', '/')}.py" for name in named} - found
    assert found == {*inductor._SOURCES}


@pytest.mark.parametrize("m", [8, 12, 48])
def test_sizes_that_were_not_decided_for_ours_are_left(bundle: Bundle, calls: Calls, m: int) -> None:
    model = Block()
    with use(bundle.path) as tuned:
        compiled = torch.compile(model, dynamic=False)
    before = calls(bundle)
    close(compiled(rows(m)), model(rows(m)))
    assert calls(bundle) == before
    assert not tuned.report.replaced
    met = tuned.report.left if m == 8 else tuned.report.unknown
    assert met == {f"{m}x64x32:bf16": 1, f"{m}x32x64:bf16": 1}


def test_other_types_layouts_and_forms_are_left(bundle: Bundle, calls: Calls) -> None:
    weight = torch.randn(32, 64, dtype=torch.bfloat16)
    bias = torch.randn(64, dtype=torch.bfloat16)
    forms: list[tuple[Callable[..., torch.Tensor], torch.Tensor]] = [
        (lambda x: x @ weight, rows(16)),  # B is [k, n] in memory
        (lambda x: x.t() @ weight.t().contiguous().t(), rows(16, 32, 16)),  # A is [k, m] in memory
        (lambda x: x @ weight.t().contiguous().t().half(), rows(16).half()),
        (lambda x: torch.addmm(bias, x, weight.t().contiguous().t()), rows(16)),
        (lambda x: x @ weight.t().contiguous().t().float(), rows(16).float()),
        (lambda x: x[:, :32] @ weight.t().contiguous().t(), rows(16, 16, 40)),  # rows of A are apart
    ]
    before = calls(bundle)
    for form, x in forms:
        torch._dynamo.reset()
        with use(bundle.path) as tuned:
            close(torch.compile(form)(x), form(x))
        assert not tuned.report.replaced
        assert tuned.report.unknown
    assert calls(bundle) == before


def test_leading_dimensions_are_rows(bundle: Bundle, calls: Calls) -> None:
    model = Block()
    with use(bundle.path):
        compiled = torch.compile(model)
    before = calls(bundle)
    close(compiled(rows(0, 2, 8, 32)), model(rows(0, 2, 8, 32)))
    assert calls(bundle) == before + 2


def test_a_batched_product_is_replaced(bundle: Bundle, calls: Calls) -> None:
    b = rows(1, 3, 64, 32)

    def product(a: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a + 1, b.transpose(1, 2)) * 2

    with use(bundle.path):
        compiled = torch.compile(product)
    before = calls(bundle)
    close(compiled(rows(0, 3, 16, 32)), product(rows(0, 3, 16, 32)))
    assert calls(bundle) == before + 1


def test_a_size_known_only_at_run_time_is_looked_up_then(bundle: Bundle, calls: Calls) -> None:
    model = Block()
    with use(bundle.path) as tuned:
        compiled = torch.compile(model, dynamic=True)
    with torch.no_grad():
        for m, ours in ((16, 2), (20, 2), (24, 2), (8, 0), (12, 0), (100, 0)):
            before = calls(bundle)
            close(compiled(rows(m)), model(rows(m)))
            assert calls(bundle) == before + ours, m
    assert tuned.report.replaced == {"*x64x32:bf16": 1, "*x32x64:bf16": 1}  # one graph for all of them


def test_a_weight_that_is_stored_as_another_type_is_read_as_what_it_is(bundle: Bundle, calls: Calls) -> None:
    stored = nn.Buffer(rows(1, 64, 32).view(torch.int16))

    def layer(x: torch.Tensor) -> torch.Tensor:
        return x @ stored.view(torch.bfloat16).t()

    with use(bundle.path):
        compiled = torch.compile(layer)
    with torch.no_grad():
        for m, ours in ((16, 1), (12, 0)):  # by our kernel, and by the library
            x, before = rows(m), calls(bundle)
            torch._dynamo.mark_dynamic(x, 0)
            close(compiled(x), layer(x))
            assert calls(bundle) == before + ours


@pytest.mark.slow
def test_training_replaces_what_is_decided_in_both_directions(bundle: Bundle, calls: Calls) -> None:
    model, reference = Block(), Block()
    with use(bundle.path) as tuned:
        compiled = torch.compile(model)
    before = calls(bundle)
    for trained, network in ((compiled, model), (reference, reference)):
        network.zero_grad()
        (trained(rows(16)) ** 2).sum().backward()
    assert calls(bundle) == before + 2
    # In the backward graph the operands have other layouts, of which nothing is decided.
    assert tuned.report.unknown
    for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
        close(mine.grad, expected.grad)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_backward_product_in_a_decided_layout_is_replaced(bundle: Bundle, calls: Calls) -> None:
    # The gradient of A @ W, W [k, n] in memory, by A is dD @ W.T: the layout of a linear layer.
    weight = rows(1, 64, 32)
    x = rows(16, 16, 64).requires_grad_()

    def step(a: torch.Tensor) -> torch.Tensor:
        return (a @ weight).relu().sum()

    with use(bundle.path) as tuned:
        compiled = torch.compile(step)
    before = calls(bundle)
    compiled(x).backward()
    assert calls(bundle) == before + 1
    assert tuned.report.replaced == {"16x64x32:bf16": 1}
    mine, x.grad = x.grad, None
    step(x).backward()
    assert mine is not None
    close(mine, x.grad)  # type: ignore[arg-type]


def test_every_new_node_has_the_metadata_of_the_product(bundle: Bundle) -> None:
    graphs = []

    class Spy(GraphPass):
        def __call__(self, graph: torch.fx.Graph, is_inference: bool = False) -> None:
            super().__call__(graph, is_inference)
            graphs.append(graph)

    with torch.no_grad():
        torch.compile(Block(), options={OPTION: Spy(graph_pass(bundle.path).bundle)})(rows(16))
    (graph,) = graphs
    graph.lint()
    made = [node for node in graph.nodes if OURS in str(node.target)]
    assert len(made) == 2
    for node in graph.nodes:
        assert node.op == "output" or "val" in node.meta, node
    for node in made:
        assert node.meta["val"].shape[0] == 1
        for name in ("stack_trace", "original_aten"):
            assert name in node.meta
            assert "self.up" in node.meta["stack_trace"] or "self.down" in node.meta["stack_trace"]


def test_generated_code_names_the_bundle_and_copies_no_operand(bundle: Bundle) -> None:
    with use(bundle.path):
        compiled = torch.compile(Block())
    with torch.no_grad():
        _, (code,) = run_and_get_code(compiled, rows(16))
    assert len(CALL.findall(code)) == 2  # straight from Python to the kernel
    assert OURS not in code
    assert bundle.digest in code
    assert not re.search(r"extern_kernels\.(mm|addmm|bmm)\(", code)
    assert code.count("empty_strided_cpu(") == 2  # the results: relu is done in place, and nothing is made contiguous


def test_products_of_one_operand_share_it_and_have_bindings_of_their_own(bundle: Bundle, calls: Calls) -> None:
    first, second = Block().up, Block().up

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * 2).unflatten(0, (2, -1))
        return first(y), second(y)

    with use(bundle.path):
        compiled = torch.compile(both)
    with torch.no_grad():
        (one, two), (code,) = run_and_get_code(compiled, rows(16))
        close(one, both(rows(16))[0])
        close(two, both(rows(16))[1])
        assert len(set(CALL.findall(code))) == 2
        assert code.count("empty_strided_cpu(") == 3
        # A weight that is elsewhere now, and one that is misaligned.
        moved = torch.randn_like(first.weight)
        shifted = torch.empty(moved.numel() + 1, dtype=moved.dtype)[1:].view_as(moved).copy_(moved)
        assert shifted.data_ptr() % 16
        for weight, ours in ((moved, 2), (shifted, 1)):
            first.weight.data = weight
            before = calls(bundle)
            for result, expected in zip(compiled(rows(16)), both(rows(16)), strict=True):
                close(result, expected)
            assert calls(bundle) == before + ours


def test_a_refused_bundle_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{}")
    made = torch._TorchCompileInductorWrapper.__init__
    with pytest.raises(BundleError, match="no bundle"), use(tmp_path):
        raise AssertionError("a refused bundle must not get here")
    assert torch._TorchCompileInductorWrapper.__init__ is made
    assert getattr(torch._inductor.config, OPTION) is None


def test_a_bundle_for_another_device_changes_nothing(
    make_strided: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_strided(["16x64x32"])
    monkeypatch.setattr(loaded_kernels, "arch_of", lambda device: "sm_75")
    made = torch._TorchCompileInductorWrapper.__init__
    with pytest.raises(DeviceError, match=r"is for host, cpu is sm_75") as caught, use(bundle.path):
        raise AssertionError("a refused bundle must not get here")
    assert "\n" not in str(caught.value)
    assert torch._TorchCompileInductorWrapper.__init__ is made
    assert getattr(torch._inductor.config, OPTION) is None
    with pytest.raises(BundleError, match="not loaded"):
        loaded_kernels.find_family(loaded_kernels.name_of(bundle, bundle.ours[0].problem))


def test_blocks_nest(bundle: Bundle, make_bundle: Callable[..., Bundle], calls: Calls) -> None:
    inner = make_bundle(["32x64x32"], repeats=2)
    model = Block()
    with use(bundle.path), use(inner.path):
        compiled = torch.compile(model, dynamic=False)
    before = calls(bundle), calls(inner)
    close(compiled(rows(16)), model(rows(16)))
    close(compiled(rows(32)), model(rows(32)))
    assert (calls(bundle), calls(inner)) == (before[0] + 2, before[1] + 1)

"""Compiled models: what the store knows is put in, and a machine without a GPU compiles as it would without us."""

import logging
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

from tilescout.search import autotune
from tilescout.search.autotuning import inductor
from tilescout.search.autotuning.inductor import TuningPass, backend
from tilescout.search.autotuning.tuner import Tuner, TunerOptions
from tilescout.search.export import graph_rewrite, loaded_kernels
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.epilogues import Product
from tilescout.search.export.generated_calls import bind
from tilescout.search.export.graph_rewrite import Sighting
from tilescout.search.export.inductor import in_force, pass_in_force, use
from tilescout.search.export.torch_hooks import OPTION
from tilescout.spaces.errors import DeviceError, StoreError
from tilescout.spaces.gemm import GemmProblem

Calls = Callable[[Bundle], int]
MakeTuner = Callable[..., Tuner]

pytestmark = pytest.mark.usefixtures("fresh_inductor")


def model() -> nn.Module:
    torch.manual_seed(0)
    up, down = (nn.Linear(64, 64, bias=False, dtype=torch.bfloat16) for _ in range(2))
    return nn.Sequential(up, nn.ReLU(), down)


def rows(m: int) -> torch.Tensor:
    return torch.randn(m, 64, generator=torch.Generator().manual_seed(m), dtype=torch.bfloat16)


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_products_that_the_store_knows_run_our_kernels(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], calls: Calls
) -> None:
    bundle, tuner, plain = decide_for(("64x64x64",)), make_tuner(), model()
    tuning = TuningPass(tuner)
    with in_force(tuning):
        compiled = torch.compile(plain, dynamic=False)
    before = calls(bundle)
    with torch.no_grad():
        close(compiled(rows(64)), plain(rows(64)))
    assert calls(bundle) == before + 2
    assert tuning.report.replaced == {"64x64x64:bf16": 2}
    assert "2 of 2 matrix products run tuned kernels" in str(tuner.summary)


def test_what_was_decided_beside_another_version_of_the_library_is_decided_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(version: str | None) -> Path:
        class Library:
            @property
            def version(self) -> str:
                if version is None:
                    raise DeviceError("torch has loaded none")
                return version

        monkeypatch.setattr(inductor, "load_loader", lambda path: Library())
        return inductor.make_tuner(tmp_path, TunerOptions()).store.folder

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    assert folder("13.1.0") == folder("13.1.0")
    assert len({folder("13.1.0"), folder("13.1.1"), folder(None)}) == 3


def test_shared_keys_are_read_in_place_and_told(make_tuner: MakeTuner) -> None:
    tuner, projection = make_tuner(seconds=0.0), nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    keys = torch.randn(1, 2, 24, 16, dtype=torch.bfloat16)
    seen = (torch.arange(24) < 9).view(1, 1, 1, 24)

    def attend(x: torch.Tensor) -> torch.Tensor:
        query = projection(x).view(1, 1, 4, 16).transpose(1, 2)
        copied = keys[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, 4, 24, 16)
        return nn.functional.scaled_dot_product_attention(query, copied, copied, seen)

    with in_force(TuningPass(tuner)), torch.no_grad():
        close(torch.compile(attend)(rows(1)), attend(rows(1)))
    assert tuner.summary.in_place == [4 * 24 * 16 * 2]  # bytes of one copy, which is both
    assert "1 × attention: shared keys and values are read in place" in str(tuner.summary)


@pytest.mark.slow
def test_products_that_nothing_is_tuned_for_are_told(make_tuner: MakeTuner, decide_for: Callable[..., Bundle]) -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scores = torch.baddbmm(x[None].float(), x[None].float(), w[None].float())
        return (x @ w.t()).float().tanh() * (x.float() @ w.float()).tanh() * scores[0].tanh()

    decide_for(("64x64x64",))
    tuner = make_tuner(seconds=0.0)
    with in_force(TuningPass(tuner)), torch.no_grad():
        close(torch.compile(mixed)(rows(64), rows(64)), mixed(rows(64), rows(64)))
        assert tuner.summary.others == {"mm": 1, "baddbmm": 1}
        head, _, *lines = str(tuner.summary).splitlines()
        assert "1 of 3 matrix products run tuned kernels" in head
        assert lines == [
            f"  1 × {name}: library's, of types, layouts or sizes that nothing is tuned for"
            for name in ("baddbmm", "mm")
        ]
        tuner = make_tuner(seconds=0.0)
    with in_force(TuningPass(tuner)), torch.no_grad():
        torch.compile(lambda x: x @ x)(torch.ones(8, 8))
    assert "0 of 1 matrix products run tuned kernels" in str(tuner.summary)


def test_a_graph_without_products_asks_for_no_decision(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_for(("64x64x64",))
    tuner = make_tuner()
    asked: list[list[Sighting]] = []
    monkeypatch.setattr(tuner, "decide", asked.append)
    with in_force(TuningPass(tuner)), torch.no_grad():
        torch.compile(torch.relu)(rows(64))
        assert not asked
        torch.compile(model(), dynamic=False)(rows(64))
    assert [len(products) for products in asked] == [2]


def test_a_model_that_breaks_the_pass_compiles_as_without_it(
    make_tuner: MakeTuner,
    decide_for: Callable[..., Bundle],
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given, alpha = [], graph_rewrite._alpha

    def fails_on_the_second(graph: torch.fx.Graph, product: Product) -> torch.fx.Node | None:
        given.append(product)
        if len(given) == 2:
            graph.call_function(torch.ops.aten.mm.default, (product.a,))  # what can't be made has no fake tensor
            raise KeyError("val")
        return alpha(graph, product)

    monkeypatch.setattr(graph_rewrite, "_alpha", fails_on_the_second)
    bundle, tuner, plain = decide_for(("64x64x64",)), make_tuner(), model()
    before = calls(bundle)
    with in_force(TuningPass(tuner)), torch.no_grad():
        close(torch.compile(plain)(rows(64)), plain(rows(64)))
    assert calls(bundle) == before + 1
    told = "a graph was left to the library, in whole or in part: KeyError: 'val'"
    assert told in caplog.text
    assert told in str(tuner.summary)


def test_a_store_that_cannot_be_read_leaves_the_model_to_inductor_and_its_code_in_no_cache(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    bundle, tuner, plain = decide_for(("64x64x64",)), make_tuner(), model()
    state, before = tuner.store.folder / "state.json", calls(bundle)
    written = state.read_text()
    for text, ours in (("{", 0), (written, 2)):
        torch._dynamo.reset()
        state.write_text(text)
        with in_force(TuningPass(tuner)), torch.no_grad():
            close(torch.compile(plain, dynamic=False)(rows(64)), plain(rows(64)))
        assert calls(bundle) == before + ours
    assert "state.json is damaged" in caplog.text


def test_a_dynamic_size_is_decided_as_it_was_traced(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], calls: Calls
) -> None:
    bundle, tuner, plain = decide_for(("48x64x64", "64x64x64")), make_tuner(seconds=0.0), model()
    with in_force(TuningPass(tuner)):
        compiled = torch.compile(plain, dynamic=True)
    before = calls(bundle)
    with torch.no_grad():
        for m, ours in ((48, 2), (56, 2), (80, 0)):
            close(compiled(rows(m)), plain(rows(m)))
            assert calls(bundle) == before + ours
            before += ours
    assert [(problem.m, count) for problem, count in tuner.summary.met.items()] == [(48, 2)]


@pytest.mark.slow
def test_code_of_inductors_cache_finds_its_kernels_until_a_graph_was_left_unfinished(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, plain = decide_for(("64x64x64",)), model()

    def compiled_anew(m: int = 64) -> tuple[Tuner, bool]:
        """Compile as another process would; the tuner, and whether the code came from the cache."""
        torch._dynamo.reset()
        PyCodeCache.cache_clear()
        counters.clear()
        monkeypatch.setattr(loaded_kernels, "_bundles", {})
        monkeypatch.setattr(loaded_kernels, "_families", {})
        tuner = make_tuner()
        tuner.summary.seconds = tuner.options.seconds
        with in_force(TuningPass(tuner)):
            compiled = torch.compile(plain, dynamic=False)
        with torch.no_grad():
            close(compiled(rows(m)), plain(rows(m)))
        return tuner, counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0

    before = calls(bundle)
    assert not compiled_anew()[1]
    tuner, cached = compiled_anew()
    assert cached
    assert calls(bundle) == before + 4
    assert not tuner.summary.met
    head, line = str(tuner.summary).splitlines()
    assert head.startswith(
        "tilescout: no matrix product was compiled: 2 of TorchInductor's cached code run tuned kernels"
    )
    assert line.startswith("  2 × 64x64x64:bf16: ours, proven as fast as torch.mm (10.00 µs); known")
    decide_for((), ("32x64x64",))  # what is decided later changes nothing for code that was complete
    assert compiled_anew()[1]
    compiled_anew(m=16)  # is left with products that are not decided
    assert not compiled_anew()[1]


def test_calls_that_look_their_rows_up_are_told_and_those_bound_before_are_not(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle]
) -> None:
    bundle, tuners = decide_for(("64x64x64",)), [make_tuner()]
    loaded_kernels.register(bundle)
    bind(loaded_kernels.name_of(bundle, GemmProblem(64, 64, 64)), None, None)
    tuners.append(make_tuner())
    told, empty = (str(tuner.summary) for tuner in tuners)
    assert told.splitlines()[1:] == ["  1 × *x64x64:bf16: by the rows of each call"]
    assert empty.endswith("no code of TorchInductor's cache runs tuned kernels")


@pytest.mark.slow
def test_a_bundle_comes_first_and_the_rest_is_looked_up(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], calls: Calls, plain_gemm: ModuleType
) -> None:
    exported, decided, plain = decide_for(("64x64x64",)), decide_for(("32x64x64",)), model()
    tuner = make_tuner()
    with use(exported.path, ["plain_gemm:TEMPLATE"]), in_force(TuningPass(tuner, pass_in_force())):
        compiled = torch.compile(plain, dynamic=False)
    before = calls(exported), calls(decided)
    with torch.no_grad():
        for m in (64, 32):
            close(compiled(rows(m)), plain(rows(m)))
    assert (calls(exported), calls(decided)) == (before[0] + 2, before[1] + 2)
    assert {problem.m for problem in tuner.summary.met} == {32}


def test_a_pass_of_the_user_runs_first(make_tuner: MakeTuner, decide_for: Callable[..., Bundle], calls: Calls) -> None:
    bundle, seen = decide_for(("64x64x64",)), []

    def mine(graph: torch.fx.Graph) -> None:
        seen.append(len(graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)))

    with in_force(TuningPass(make_tuner())):
        compiled = torch.compile(model(), options={OPTION: mine}, dynamic=False)
    before = calls(bundle)
    with torch.no_grad():
        compiled(rows(64))
    assert seen == [2]
    assert calls(bundle) == before + 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_it_says_so_and_the_model_is_left_to_inductor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = model()
    with caplog.at_level(logging.WARNING, "tilescout"), autotune(store=tmp_path / "store") as tuned:
        assert getattr(torch._inductor.config, OPTION) is None
        with torch.no_grad():
            close(torch.compile(plain)(rows(64)), plain(rows(64)))
    assert "no GPU is there" in caplog.text
    assert "no GPU is there" in str(tuned)
    assert not (tmp_path / "store").exists()


def test_an_empty_store_is_not_the_working_directory() -> None:
    with pytest.raises(StoreError, match="the name of the store is empty"), autotune(store=""):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_the_backend_is_inductor_where_there_is_no_gpu(mode: str | None) -> None:
    plain = model()
    with torch.no_grad():
        close(torch.compile(plain, backend=backend, mode=mode)(rows(64)), plain(rows(64)))


def test_the_backend_is_registered_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    registered = EntryPoint("tilescout", project["entry-points"]["torch_dynamo_backends"]["tilescout"], "")
    assert registered.load() is backend

"""The private parts of torch that the export uses: in one file, checked when they are used, and always given back."""

import ast
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tilescout.search import export
from tilescout.search.export import torch_hooks
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.inductor import GraphPass, graph_pass, load, use
from tilescout.search.export.nvgemm_ranker import Ranker, use_ranker
from tilescout.search.export.torch_hooks import COMPILE_WRAPPER, HOOKS, OPTION, TESTED, Hook, Patch, changed_config
from tilescout.spaces.errors import ExportError

MODULES = sorted(Path(str(export.__file__)).parent.glob("*.py"))
PATIENCE = 60.0

pytestmark = pytest.mark.usefixtures("fresh_inductor")


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    return make_bundle(["16x64x32"])


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    """Whatever a test does, torch is afterwards as it was."""
    before = torch._TorchCompileInductorWrapper.__init__
    yield
    assert torch._TorchCompileInductorWrapper.__init__ is before
    assert getattr(torch._inductor.config, OPTION) is None
    assert torch_hooks._WRAPPER._depth == 0


def made(**options: Any) -> Any:
    """The pass that an object carries which torch.compile makes here."""
    return torch._TorchCompileInductorWrapper(None, options, None).config.get(OPTION)


def is_private(name: str) -> bool:
    """Whether torch does not promise to keep this."""
    parts = name.split(".")
    private = (part == "experimental" or (part.startswith("_") and not part.endswith("__")) for part in parts)
    return parts[0] == "torch" and any(private)


def private_uses(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for block in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
        if ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = [ast.Pass()]
    for annotated in [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]:
        annotated.annotation = ast.Constant("not evaluated in a function")
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        yield from (f"{path.name}:{getattr(node, 'lineno', 0)} {name}" for name in names if is_private(name))


def test_private_parts_of_torch_are_named_in_one_file_only(tmp_path: Path) -> None:
    found = [use for path in MODULES if path.name != "torch_hooks.py" for use in private_uses(path)]
    assert not found, "\n".join(found)
    source = tmp_path / "source.py"
    source.write_text("import torch._inductor\nfrom torch.fx import experimental\ntorch._C.f()\ntorch.compile\n")
    assert {use.split()[0] for use in private_uses(source)} == {"source.py:1", "source.py:2", "source.py:3"}


@pytest.mark.parametrize("hook", HOOKS, ids=str)
def test_this_torch_has_every_part_that_it_should_have(hook: Hook) -> None:
    if torch.__version__ >= hook.since:
        assert hook.find() is not None
    else:
        with pytest.raises(ExportError, match=f"use {hook.since} or newer"):
            hook.find()


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "2.16.0a0+git1234567", "3.0.0+cu140"])
def test_a_torch_that_was_not_tested_is_refused_before_anything_is_done(
    bundle: Bundle, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_hooks, "_version", lambda: version)
    message = re.escape(f"torch {version} is installed, and the export was tested with {TESTED}: install one")
    with pytest.raises(ExportError, match=message), use(bundle.path):
        raise AssertionError("a refused torch must not get here")
    with pytest.raises(ExportError, match=message):
        graph_pass(bundle.path)
    with pytest.raises(ExportError, match=message), use_ranker(Ranker(lambda problem, candidates: np.ones(1), "v1")):
        raise AssertionError("a refused torch must not get here")
    load(bundle.path)  # for packages that are compiled already, this is all, and nothing of it is private


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1", "2.15.0+cu130", "2.15.3"])
def test_a_torch_that_was_tested_is_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_hooks, "_version", lambda: version)
    torch_hooks.check_version()


@pytest.mark.parametrize("hook", [Hook("torch", "_Nothing", "test"), Hook("torch._nowhere", "", "test")], ids=str)
def test_a_part_that_is_missing_is_named_with_what_to_do(hook: Hook) -> None:
    message = rf"has no {re.escape(str(hook))}, by which the export would test: install a release of torch >=2\.11"
    with pytest.raises(ExportError, match=message) as caught:
        hook.find()
    assert "\n" not in str(caught.value)


def test_without_the_wrapper_nothing_is_patched(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_TorchCompileInductorWrapper")
    with pytest.raises(ExportError, match="_TorchCompileInductorWrapper"), use(bundle.path):
        raise AssertionError("must not get here")
    assert getattr(torch._inductor.config, OPTION) is None
    monkeypatch.undo()
    assert made() is None


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_ends_a_block_torch_is_as_it_was(bundle: Bundle, error: type[BaseException]) -> None:
    with pytest.raises(error), use(bundle.path), use(bundle.path):
        raise error
    assert made() is None


def test_a_block_that_can_not_set_its_options_leaves_nothing_patched() -> None:
    with pytest.raises(AttributeError), torch_hooks.changed_options(dict.clear), changed_config({"no_such_option": 1}):
        raise AssertionError("must not get here")


def test_what_is_made_between_two_ends_of_blocks_carries_the_outer_one(bundle: Bundle) -> None:
    with use(bundle.path) as outer:
        with use(bundle.path) as inner:
            both = made()
        alone = made()
    assert (both.bundle, both.before) == (inner.bundle, (outer,))
    assert alone is outer
    assert outer.before == ()


def test_a_pass_of_an_object_runs_before_those_of_all_blocks(bundle: Bundle) -> None:
    def mine(graph: torch.fx.Graph) -> None:
        raise AssertionError("nothing is compiled")

    with use(bundle.path), use(bundle.path):
        inner = made(**{OPTION: mine})
    (outer,) = inner.before
    assert isinstance(outer, GraphPass)
    assert outer.before == (mine,)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="the threads of this torch share one configuration")
def test_blocks_of_two_threads_end_in_any_order_and_know_nothing_of_each_other(bundle: Bundle) -> None:
    steps = {name: threading.Event() for name in ("first is in", "second is in", "first is out")}

    def first() -> list[Any]:
        with use(bundle.path) as tuned:
            steps["first is in"].set()
            assert steps["second is in"].wait(PATIENCE)
            seen = [made() is tuned, getattr(torch._inductor.config, OPTION) is tuned]
        steps["first is out"].set()
        return [*seen, made()]

    def second() -> list[Any]:
        assert steps["first is in"].wait(PATIENCE)
        with use(bundle.path) as tuned:
            steps["second is in"].set()
            assert steps["first is out"].wait(PATIENCE)
            seen = [made() is tuned, getattr(torch._inductor.config, OPTION) is tuned]
            assert tuned.before == ()
        return [*seen, made()]

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(first), pool.submit(second)]
        assert steps["second is in"].wait(PATIENCE)
        assert made() is None  # this thread is in no block
        assert [done.result(PATIENCE) for done in found] == [[True, True, None]] * 2


def test_threads_that_come_and_go_leave_nothing_behind() -> None:
    def come_and_go(number: int) -> int:
        seen = []
        for turn in range(50):
            try:
                with torch_hooks.changed_options(lambda options: options.update(seen=number)):
                    seen.append(torch._TorchCompileInductorWrapper(None, None, None).config["seen"])
                    if turn % 3 == 0:
                        raise ValueError("on purpose")
            except ValueError:
                pass
        return seen.count(number)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(come_and_go, range(8))) == [50] * 8


def test_a_patch_of_somebody_else_stays_and_ours_below_it_changes_nothing() -> None:
    changes = []
    wrapper, plain = torch._TorchCompileInductorWrapper, torch._TorchCompileInductorWrapper.__init__
    with torch_hooks.changed_options(lambda options: changes.append("first")):
        below = wrapper.__init__

        def theirs(self: Any, *args: Any, **kwargs: Any) -> None:
            below(self, *args, **kwargs)

        wrapper.__init__ = theirs  # type: ignore[method-assign]
    try:
        assert wrapper.__init__ is theirs
        made()
        assert changes == []
        with torch_hooks.changed_options(lambda options: changes.append("second")):
            made()
        assert wrapper.__init__ is theirs
        assert changes == ["second"]  # once, although ours is there twice
    finally:
        wrapper.__init__ = plain  # type: ignore[method-assign]


def test_where_threads_share_a_configuration_one_at_a_time_compiles_with_a_bundle(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_hooks, "_version", lambda: "2.11.0")

    def elsewhere() -> None:
        with use(bundle.path):
            pass

    with ThreadPoolExecutor(1) as pool:
        message = r"another thread .* all threads share one .* or install torch >=2\.12"
        with use(bundle.path), use(bundle.path), pytest.raises(ExportError, match=message):
            pool.submit(elsewhere).result(PATIENCE)
        pool.submit(elsewhere).result(PATIENCE)


def test_a_patch_counts_its_blocks() -> None:
    class Owner:
        value = 1

    patch = Patch(Hook(__name__, "OWNER", "test"), "value", lambda old: old + 1)
    globals()["OWNER"] = Owner
    with patch.applied():
        with patch.applied():
            assert Owner.value == 2
        assert Owner.value == 2
    assert Owner.value == 1
    assert str(COMPILE_WRAPPER) == "torch._TorchCompileInductorWrapper"

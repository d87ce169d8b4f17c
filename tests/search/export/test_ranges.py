"""Ranges of m: those between tuned sizes, those of a dispatcher, their lookup, and bundles that hold them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._inductor.utils import run_and_get_code

from tilescout.search.build.loading import LoadedKernel
from tilescout.search.export import generated_calls, use
from tilescout.search.export.bundle import INDEX, Bundle, read_bundle, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.search.export.generated_calls import bind
from tilescout.search.export.inductor import load
from tilescout.search.export.loaded_kernels import Loaded, find_family, name_of
from tilescout.search.export.ranges import Dispatch, Lookup, Range, ranges_between, ranges_of
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.errors import BundleError
from tilescout.spaces.gemm import GemmProblem

PRODUCT = GemmProblem(1, 64, 32)


def decision(m: int, choice: Choice = Choice.OURS) -> Decision:
    kernel = f"kernel of {m}" if choice is Choice.OURS else ""
    return Decision(GemmProblem(m, 64, 32), choice, Evidence("s", "r"), kernel)


def kernel_at(ranges: list[Range], m: int) -> str:
    found = [each for each in ranges if each.low <= m <= each.high]
    assert len(found) <= 1
    return found[0].kernel if found else ""


def test_a_size_in_between_takes_the_next_larger_kernel_only_where_ours_won_at_both_ends_and_they_are_near() -> None:
    found = ranges_between([decision(16), decision(64), decision(128), decision(256, Choice.LIBRARY), decision(512)])
    served = {m: kernel_at(found, m).removeprefix("kernel of ") for m in (1, 16, 17, 33, 64, 65, 128, 129, 300, 513)}
    assert served == {
        1: "",
        16: "16",
        17: "",
        33: "64",
        64: "64",
        65: "128",
        128: "128",
        129: "",
        300: "",
        513: "",
    }
    assert [each.low for each in found if each.proven] == [16, 64, 128, 256, 512]


@given(st.dictionaries(st.integers(1, 300), st.sampled_from(Choice), min_size=1), st.integers(1, 400))
def test_a_range_between_tuned_sizes_never_reaches_past_what_was_measured(tuned: dict[int, Choice], m: int) -> None:
    served = kernel_at(ranges_between([decision(size, choice) for size, choice in tuned.items()]), m)
    if m in tuned:
        assert served == (f"kernel of {m}" if tuned[m] is Choice.OURS else "")
    elif served:
        above = int(served.removeprefix("kernel of "))
        below = max(size for size in tuned if size < m)
        assert tuned[below] is tuned[above] is Choice.OURS
        assert below < m < above < 2 * m
        assert not any(below < size < above for size in tuned)


stretches = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.sampled_from(["", "a", "b"])), min_size=1)


def laid(parts: list[tuple[int, int, str]]) -> list[Range]:
    """Ranges one after the other: a gap before each, how many sizes, the kernel."""
    found, reached = [], 0
    for gap, count, kernel in parts:
        found.append(Range(reached + gap + 1, reached + gap + count, kernel))
        reached += gap + count
    return found


@given(stretches, st.integers(0, 150))
def test_a_lookup_answers_as_the_ranges_say(parts: list[tuple[int, int, str]], m: int) -> None:
    ranges = laid(parts)
    lookup = Lookup([(each.low, each.high, each.kernel or None) for each in ranges])
    assert lookup.find(m) == (kernel_at(ranges, m) or None)
    found = Dispatch(PRODUCT, tuple(ranges)).find(m)
    assert (found.kernel if found is not None else "") == kernel_at(ranges, m)


@given(stretches, st.sampled_from([1, 8]))
def test_calls_of_one_product_share_what_starts_at_each_m(parts: list[tuple[int, int, str]], step: int) -> None:
    kernels = {name: LoadedKernel(print, lambda *_: (), clusters) for clusters, name in enumerate("ab", start=1)}
    lookup = Lookup[Loaded]([(each.low, each.high, kernels.get(each.kernel)) for each in laid(parts)])
    starts = generated_calls._starts(lookup, step)
    assert starts is generated_calls._starts(lookup, step)
    assert len(starts) == lookup.ends[-1] + 1
    for m, (_, clusters, _) in enumerate(starts):
        kernel = lookup.find(m) if m % step == 0 else None
        assert clusters == (kernel.max_clusters if isinstance(kernel, LoadedKernel) else 0)


@given(stretches, st.dictionaries(st.integers(1, 120), st.sampled_from(Choice)), st.integers(1, 150))
def test_a_tuned_size_is_served_as_it_was_decided_and_the_dispatcher_serves_the_others(
    parts: list[tuple[int, int, str]], tuned: dict[int, Choice], m: int
) -> None:
    ranges = laid(parts)
    found = ranges_of([decision(size, choice) for size, choice in tuned.items()], Dispatch(PRODUCT, tuple(ranges)))
    assert found == sorted(found, key=lambda each: each.low)
    expected = kernel_at(ranges, m)
    if m in tuned:
        expected = f"kernel of {m}" if tuned[m] is Choice.OURS else ""
    assert kernel_at(found, m) == expected


@given(stretches)
def test_dispatches_survive_json(parts: list[tuple[int, int, str]]) -> None:
    written = Dispatch(PRODUCT, tuple(laid(parts)), "d", "h200", {"torch": "2.11"}, (1, 16), 0.97)
    assert Dispatch.from_dict(json.loads(json.dumps(written.to_dict()))) == written


@pytest.mark.parametrize("ends", [(0, 3), (4, 3), (-1, 1)])
def test_no_range_is_empty_or_begins_before_one_row(ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no range goes from"):
        Range(*ends)


def test_ranges_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        Dispatch(PRODUCT, (Range(1, 8), Range(8, 9)))


Make = Callable[..., Bundle]


@pytest.fixture(scope="module")
def dispatched(make_bundle: Make, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two products by ranges: 4 to 20 rows and 30 to 40 by our kernel; and 50 rows of one as a search decided."""
    made = make_bundle(["50x64x32"], repeats=4)
    ((digest, kernel),) = made.kernels.items()
    ranges = (Range(1, 3), Range(4, 20, digest, True), Range(30, 40, digest))
    dispatches = [Dispatch(GemmProblem(1, n, k), ranges, "d", "a test") for n, k in ((64, 32), (32, 64))]
    out = tmp_path_factory.mktemp("dispatched") / "bundle"
    kernels = {digest: (kernel, made.path / kernel.file)}
    return write_bundle(out, "host", "host", {"made": str(out)}, made.decisions, kernels, dispatches=dispatches)


def test_a_bundle_gives_its_ranges_back(dispatched: Bundle) -> None:
    again = read_bundle(dispatched.path)
    assert again.dispatches == dispatched.dispatches
    assert again.digest == dispatched.digest
    choices = {m: again.choice(GemmProblem(m, 64, 32)) for m in (3, 4, 20, 21, 35, 50)}
    assert choices == {
        3: Choice.LIBRARY,
        4: Choice.OURS,
        20: Choice.OURS,
        21: None,
        35: Choice.OURS,
        50: Choice.OURS,
    }


@pytest.mark.parametrize("kernel", ["", "an unknown one"])
def test_a_bundle_whose_ranges_name_a_kernel_that_it_lacks_is_refused(
    dispatched: Bundle, tmp_path: Path, kernel: str
) -> None:
    made = tmp_path / "bundle"
    made.mkdir(mode=0o755)
    (made / "kernels").symlink_to(dispatched.path / "kernels")
    record = json.loads((dispatched.path / INDEX).read_text())
    del record["digest"]
    if kernel:
        record["dispatches"][0]["ranges"][1]["kernel"] = kernel
        record["kernels"] = {}
        record["decisions"] = []
        reason = "lacks the kernel"
    else:
        record["dispatches"].append(record["dispatches"][0])
        reason = "2 lists of ranges"
    (made / INDEX).write_text(json.dumps({**record, "digest": digest_of(record)}))
    with pytest.raises(BundleError, match=reason):
        read_bundle(made)


def test_a_model_of_dynamic_rows_runs_the_kernel_of_each_range(
    dispatched: Bundle, calls: Callable[[Bundle], int], fresh_inductor: None
) -> None:
    layer = torch.nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)
    with use(dispatched.path) as tuned:
        compiled = torch.compile(layer, dynamic=True)
    served = {}
    with torch.no_grad():
        _, written = run_and_get_code(compiled, torch.randn(3, 32, dtype=torch.bfloat16))
        assert "reinterpret_tensor(" not in written[0].partition("def call")[2], "the library should cost no view"
        for m in (3, 4, 20, 21, 30, 40, 41, 50, 51):
            x, before = torch.randn(m, 32, dtype=torch.bfloat16), calls(dispatched)
            torch.testing.assert_close(compiled(x), layer(x), rtol=2e-2, atol=2e-2)
            served[m] = calls(dispatched) - before
    assert served == {3: 0, 4: 1, 20: 1, 21: 0, 30: 1, 40: 1, 41: 0, 50: 1, 51: 0}
    assert list(tuned.report.replaced) == ["*x64x32:bf16"]


def test_a_model_of_fixed_rows_runs_the_kernel_of_its_range(
    dispatched: Bundle, calls: Callable[[Bundle], int], fresh_inductor: None
) -> None:
    layer = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)
    with use(dispatched.path) as tuned:
        compiled = torch.compile(layer, dynamic=False)
    with torch.no_grad():
        for m, ours in ((12, 1), (2, 0), (25, 0)):
            x, before = torch.randn(m, 64, dtype=torch.bfloat16), calls(dispatched)
            torch.testing.assert_close(compiled(x), layer(x), rtol=2e-2, atol=2e-2)
            assert calls(dispatched) - before == ours
    report = tuned.report
    assert (report.replaced, report.left) == ({"12x32x64:bf16": 1}, {"2x32x64:bf16": 1})


def test_nothing_is_loaded_once_a_call_is_bound(dispatched: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    load(dispatched.path)
    run = bind(name_of(dispatched, PRODUCT), None, None)

    def refuse(*arguments: object) -> None:
        raise AssertionError("a CUDA graph may be being captured")

    monkeypatch.setattr("tilescout.search.export.loaded_kernels.load_kernel", refuse)
    b = torch.randn(1, 64, 32, dtype=torch.bfloat16)
    for m in (7, 33, 60):
        a, out = torch.randn(1, m, 32, dtype=torch.bfloat16), torch.empty(1, m, 64, dtype=torch.bfloat16)
        run(a, b, out=out)
        torch.testing.assert_close(out, a @ b.transpose(1, 2), rtol=2e-2, atol=2e-2)


def test_matrices_that_stay_where_they_are_are_multiplied_anew_in_each_call(dispatched: Bundle) -> None:
    load(dispatched.path)
    run = bind(name_of(dispatched, PRODUCT), None, None, flat=True)
    a, b, out = (torch.empty(*sizes, dtype=torch.bfloat16) for sizes in ((12, 32), (1, 64, 32), (12, 64)))
    moved = torch.empty_like(b)
    for m, weight in ((12, b), (12, b), (12, b), (7, b), (7, b), (12, b), (12, moved), (12, moved), (12, b)):
        a.normal_(), weight.normal_(), out.zero_()
        run(a[:m], weight, out=out[:m])
        torch.testing.assert_close(out[:m], a[:m] @ weight[0].t(), rtol=2e-2, atol=2e-2)
        assert not out[m:].any()


def test_decisions_that_a_bundle_does_not_have_are_told_of(dispatched: Bundle) -> None:
    load(dispatched.path)
    with pytest.raises(BundleError, match="decides nothing of 96x64:bf16"):
        find_family(f"{dispatched.digest}/96x64:bf16")


def test_rows_that_run_along_m_go_to_the_library_where_they_are_not_aligned(make_strided: Make) -> None:
    made = make_strided(["64x512x1024:bf16:mk:relu", "80x512x1024:bf16:mk:relu"], activation="relu")
    load(made.path)
    held = find_family(name_of(made, made.decisions[0].problem))
    assert held.step == 8
    assert held.find(torch.device("cpu"), 72) is not None
    assert held.find(torch.device("cpu"), 70) is None

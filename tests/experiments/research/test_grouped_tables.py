"""Tables of grouped products are taken together, and judge dispatchers that did not see them."""

from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from tilescout.costmodel.evaluation import quality
from tilescout.costmodel.persistence import load_model
from tilescout.costmodel.relatives import relative_model
from tilescout.experiments.commands.grouped_tables import grouped_of_tables, grouped_times, joined
from tilescout.experiments.research.studies.grouped_beside import beside
from tilescout.experiments.research.studies.grouped_floor import floor_us, judged, standing, summary, without_gaps
from tilescout.experiments.research.studies.grouped_tables import ranges_of, unseen
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.dispatch import grouped_bundling
from tilescout.search.export.bundle import Kernel
from tilescout.search.export.from_studies import Wanted
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import samples_of
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.errors import TableError
from tilescout.spaces.gated import GatedProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import Named, find_template

ROOT = Path(__file__).parents[3]
SWIGLU = ROOT / "experiments/results/grouped-swiglu-2026-11-23/grouped_swiglu_sm90-h200-qwen3-30b-a3b.parquet"
SCALED = ROOT / "experiments/results/grouped-scaled-2026-11-23/grouped_scaled_sm90-h200-qwen3-30b-a3b.parquet"
TABLE = ROOT / "experiments/results/grouped-tables-2026-11-22/grouped_gemm_sm90-h200-qwen3-30b-a3b.parquet"


@pytest.mark.slow
def test_a_product_of_two_tables_is_one_unless_it_was_measured_in_another_way_which_is_told(tmp_path: Path) -> None:
    table, store = Table.read(TABLE), ArtifactStore(tmp_path)
    first, second = grouped_times(table)
    columns = range(len(first.problems))
    parts = [first.take(columns[:5]), second, first.take(columns[5:])]
    whole, other = joined(parts)
    assert (whole.problems, other.problems) == (first.problems, second.problems)
    assert whole.ratio.tolist() == first.ratio.tolist()
    twice, _ = joined([first, second, first])
    assert twice.ratio.tolist() == first.ratio.tolist()
    other_cards = {
        "on another GPU": replace(table.card, product="another GPU"),
        "from other kernel sources": replace(table.card, source_hash="0" * 64),
        "with other versions": replace(table.card, versions={**table.card.versions, "torch": "1.0"}),
    }
    for words, card in other_cards.items():
        elsewhere = Table.read(TABLE)
        elsewhere.card = card
        with pytest.raises(TableError, match=f"was measured {words} than in {TABLE.name}"):
            grouped_of_tables([table, elsewhere], store)


@pytest.mark.slow
def test_kernels_of_all_products_are_compiled_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, digests = Table.read(TABLE), dict[GroupedProblem, set[str]]()
    # The kernels that were recorded are none of today, which alone are compiled.
    table.card = replace(table.card, source_hash=find_template(table.card.space).source_hash)
    _, last = (each.product for each in grouped_times(table))
    last_began = Event()

    def built(wanted: Wanted, arch: str, store: ArtifactStore, named: Named, standby: bool) -> tuple[str, Kernel, Path]:
        assert isinstance(wanted.problem, GroupedProblem)
        assert not standby
        if wanted.problem == last:
            last_began.set()
        assert last_began.wait(60)  # none is built before those of the last product are begun, too
        kernel = Kernel("file", "0" * 64, "entry", "spaces.grouped:Grouped", 1, {"problem": str(wanted.problem)})
        digest = digest_of({"problem": str(wanted.problem), "kernel": str(wanted.configuration)})
        digests.setdefault(wanted.problem, set()).add(digest)
        return digest, kernel, tmp_path

    monkeypatch.setattr(grouped_bundling, "built_kernel", built)
    monkeypatch.setattr(grouped_bundling, "available_cores", lambda: 64)
    found = grouped_of_tables([table], ArtifactStore(tmp_path), standby=False)
    assert {each.dispatch.problem for each in found} == set(digests)
    for each in found:
        product = each.dispatch.problem
        assert set(each.kernels) == {one.kernel for one in each.dispatch.ranges if one.kernel} == digests[product]
        assert {kernel.key["problem"] for kernel, _ in each.kernels.values()} == {str(product)}


def test_kernels_of_the_wider_space_stand_beside_those_of_the_narrower_one() -> None:
    first, _ = grouped_times(Table.read(TABLE))
    shared = tuple(Configuration.of({**each, "shares": 1}) for each in first.configurations)
    other = replace(first, template=find_template("grouped_streamk_sm90"), configurations=shared)
    (both,) = joined([first, other])
    assert both.template.name == "grouped_streamk_sm90"
    assert [each["shares"] for each in both.configurations] == [0] * len(shared) + [1] * len(shared)
    assert both.ratio.tolist() == [*first.ratio.tolist(), *first.ratio.tolist()]


@pytest.mark.slow
def test_other_tables_judge_ranges_that_did_not_see_them() -> None:
    (times, _) = grouped_times(Table.read(TABLE))
    learned = times.take([at for at, each in enumerate(times.problems) if each.tokens != 2048])
    judged = times.take(times.columns(2048))
    found = unseen([learned], [judged])
    assert list(found) == [str(each) for each in judged.problems]
    assert all(0 <= value < 0.2 for value in found.values())
    assert unseen([learned], grouped_times(Table.read(TABLE))[1:]) == {}  # of another product


def test_a_product_with_swiglu_is_another_one_than_without_and_kernels_serve_all_its_tokens() -> None:
    (times,) = grouped_times(Table.read(SWIGLU))
    products = joined([*grouped_times(Table.read(TABLE)), times])
    assert [str(each.product) for each in products] == [
        "128x1x1536x2048:bf16:balanced", "128x1x2048x768:bf16:balanced", "128x1x1536x2048:bf16:swiglu:balanced"
    ]  # fmt: skip
    assert isinstance(products[2].product, GatedProblem)
    found = ranges_of(times)
    assert (found[0].low, found[-1].high) == (1, 131_072)
    assert all(each.kernel is not None for each in found)


def test_the_best_of_a_table_stands_above_a_floor_of_bytes_and_arithmetic() -> None:
    # The weights of 128 experts, A and D, and the offsets.
    assert floor_us(GroupedProblem.parse("128x128x16x16")) == pytest.approx((65_536 + 2 * 4096 + 512) / 4.3e6)
    rows = [row for times in grouped_times(Table.read(TABLE)) for row in standing(times)]
    assert {row["routing"] for row in rows} == {"balanced", "zipf-1"}
    assert all(row["over"] == row["us"] / row["floor_us"] > 0.8 and row["multiplied"] >= 1 for row in rows)
    found = summary(rows)
    assert [int(tokens) for tokens in found] == [1, 16, 64, 256, 1024, 4096, 16_384]
    for by_routing in found.values():
        assert by_routing["all"]["problems"] == sum(each["problems"] for each in by_routing.values()) / 2
        assert by_routing["balanced"]["least"] <= by_routing["balanced"]["over"] <= by_routing["all"]["largest"]


def test_of_a_race_the_faster_of_our_spaces_stands_above_the_floor() -> None:
    rows = [row for times in grouped_times(Table.read(TABLE)) for row in standing(times)]
    narrow, wide = ({**rows[0]["configuration"], "tile_n": width} for width in (128, 192))
    unseen = "128x32768x2048x768:bf16:zipf-1:draws-1000-1007"
    record = {
        "judged_on": unseen,
        "judged_us": 300.0,
        "spaces": {
            "grouped_gemm_sm90": [{"configuration": wide, "ratio": 0.5}],
            "grouped_streamk_sm90": [{"configuration": wide, "ratio": 0.6}, {"configuration": narrow, "ratio": 0.55}],
        },
        "speedup_over_library": {
            "grouped_gemm_sm90 best": {"value": 1.4},
            "grouped_streamk_sm90 best": {"value": 1.5},
            "quack_varlen best": {"value": 1.6},
        },
    }
    found = judged(record)
    assert (found["us"], found["tokens"], found["configuration"]["tile_n"]) == (200.0, 4096, 128)
    assert (found["problem"], found["over"]) == (unseen, 200 / floor_us(GroupedProblem.parse(unseen)))


def test_a_schedule_without_gaps_pays_for_tiles_that_are_not_full_and_for_experts_that_run_alone() -> None:
    full = GroupedProblem.parse("8x8192x4096x4096:bf16:balanced")
    assert without_gaps(full, (128,)) == pytest.approx({"overlapping": 1.0, "alone": 1.0})
    # 448 rows an expert: the fourth tile is half empty, and as half a tile its loads take two thirds of a tile's time.
    half = GroupedProblem.parse("8x3584x4096x4096:bf16:balanced")
    assert without_gaps(half, (128,))["overlapping"] == pytest.approx(512 / 448)
    assert without_gaps(half, (64, 128))["overlapping"] == pytest.approx((3 + 2 / 3) * 128 / 448)
    assert without_gaps(half, (64,))["overlapping"] == pytest.approx(7 * 2 / 3 * 128 / 448)
    # One expert with nearly all tokens is bound by the tensor cores, 63 with a few each by memory.
    uneven = GroupedProblem.parse("64x8192x2048x2048:bf16:recorded-" + ".".join(["7184", *["16"] * 63]))
    found = without_gaps(uneven, (64, 128))
    assert found["overlapping"] < 1.1 < 1.4 < found["alone"]


def test_the_model_of_the_product_ranks_the_product_with_swiglu() -> None:
    template, table = find_template("grouped_swiglu_sm90"), Table.read(SWIGLU)
    path = relative_model(template, "h200")
    assert path is not None
    model, _ = load_model(path)
    samples = [each for each in samples_of(table, template) if not each.censored.all()]
    ten = [quality(each, model.predict(each.features)).regret[10] for each in samples]
    assert np.mean(ten) < 0.01


def test_a_table_with_scaled_rows_stands_beside_that_of_the_products() -> None:
    scaled = Table.read(SCALED)
    found = beside(scaled, Table.read(TABLE))
    assert len(found["problems"]) == len(scaled.problems)
    for one in found["problems"].values():
        assert one["time_over_product"] == pytest.approx(one["product"] / one["speed"])
    with pytest.raises(TableError, match="has no product"):
        beside(scaled, Table.read(SWIGLU))

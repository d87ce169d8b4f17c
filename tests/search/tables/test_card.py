import json
from dataclasses import replace
from math import nan
from typing import Any

import pytest

from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.protocol import Objective
from tilescout.search.measure.race import Estimate
from tilescout.search.tables.card import FORMAT, TableCard
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, card_path
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Configuration

PROBLEM = "4096x4096x4096:bf16"


def test_a_card_reads_back_as_it_was(invented_card: TableCard) -> None:
    card = replace(invented_card, protocol_text="µs, ½ — “quoted”\n", rows=3, size=4, sha256="ab")
    assert TableCard.from_json(card.to_json()) == card
    assert TableCard.from_json(card.to_json().encode()) == card


def test_a_card_names_its_objective_and_one_of_before_is_a_chains(invented_card: TableCard) -> None:
    card = replace(invented_card, objective=Objective.SANDWICH)
    assert TableCard.from_json(card.to_json()).objective is Objective.SANDWICH

    record = json.loads(invented_card.to_json()) | {"format": 5}
    del record["objective"]
    assert TableCard.from_json(json.dumps(record)).objective is Objective.CHAIN


def test_a_card_has_the_librarys_best_of_a_problem_and_one_of_before_has_none(invented_card: TableCard) -> None:
    best = LibraryBest("cuBLASLt", "13.1.0", "cublaslt", Configuration.of({"guess": 2}), 8, Estimate(0.9, 0.8, 1.0))
    problem = next(iter(invented_card.baselines))
    baselines = {**invented_card.baselines, problem: replace(invented_card.baselines[problem], library_best=best)}
    card = replace(invented_card, baselines=baselines)

    found = TableCard.from_json(card.to_json()).baselines

    assert found[problem].library_best == best
    assert all(found[other].library_best is None for other in found if other != problem)
    record = json.loads(card.to_json())
    whole = best.to_dict()
    faults: list[Any] = [{}, [], {**whole, "ratio": {"value": 0, "low": 0, "high": 0}}, {**whole, "listed": "8"}]
    for damaged in faults:
        record["baselines"][str(problem)]["library_best"] = damaged
        with pytest.raises(TableError, match="library_best"):
            TableCard.from_json(json.dumps(record))


def test_a_cut_card_is_refused_wherever_it_is_cut(invented_table: Table) -> None:
    path = card_path(invented_table.path)
    text = path.read_text()
    for kept in range(0, len(text.rstrip()), 37):
        path.write_text(text[:kept])
        with pytest.raises(TableError, match="malformed card, not JSON"):
            Table.read(invented_table.path)


def test_a_card_that_is_not_text_is_refused(invented_table: Table) -> None:
    card_path(invented_table.path).write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(TableError, match="malformed card, not JSON"):
        Table.read(invented_table.path)


@pytest.mark.parametrize(
    ("keys", "value", "fault"),
    [
        (["format"], FORMAT + 1, f"format {FORMAT + 1} is newer than {FORMAT}, .* upgrade tilescout"),
        (["format"], 0, f"format: expected 2 to {FORMAT}, found 0"),
        (["format"], True, "format: expected an integer, found True"),
        (["space"], None, "space: expected a string, found None"),
        (["rows"], "600", "rows: expected an integer, found '600'"),
        (["rows"], 599, "600 rows, the card says 599"),
        (["size"], 1, "bytes, its card says 1"),
        (["sha256"], "0" * 64, "checksum"),
        (["objective"], "solo", "objective: expected chain or sandwich, found 'solo'"),
        (["recorded"], "yesterday", "recorded: expected a day as YYYY-MM-DD, found 'yesterday'"),
        (["versions"], ["2.11"], "versions: expected an object"),
        (["versions", "torch"], 2.11, "torch: expected a string, found 2.11"),
        (["knobs"], {}, "knobs: expected 1 to 1,000, found 0"),
        (["knobs"], {str(number): [1] for number in range(1001)}, "knobs: expected 1 to 1,000, found 1,001"),
        (["knobs", "tile_m"], 64, "values of tile_m: expected distinct strings or distinct integers"),
        (["knobs", "tile_m"], [], "values of tile_m"),
        (["knobs", "tile_m"], [64, 64], "values of tile_m"),
        (["knobs", "tile_m"], [64, "128"], "values of tile_m"),
        (["knobs", "tile_m"], [64, 2**31], "values of tile_m"),
        (["knobs", "tile_m"], [True, 64], "values of tile_m"),
        (["knobs", "ratio"], [1], "not a configuration of the card's knobs"),
        (["baselines", PROBLEM], 3, f"{PROBLEM}: expected an object, found 3"),
        (["baselines", "4096x4096"], {}, "baselines: malformed problem '4096x4096'"),
        (["baselines", "8x8x8"], {}, "baselines: '8x8x8' must be written 8x8x8:bf16"),
        (["baselines", PROBLEM, "library_us"], -1, "library_us: expected a positive number, found -1"),
        (["baselines", PROBLEM, "library_us"], nan, "library_us: expected a positive number, found nan"),
        (["baselines", PROBLEM, "library_us"], 10**400, "library_us: expected a positive number"),
        (["baselines", PROBLEM, "library_us"], "195", "library_us: expected a positive number, found '195'"),
        (["knobs", "raster"], ["m", "n" * 201], "a value of raster has 201 characters: 200 at most"),
        (["baselines", PROBLEM, "default", "tile_m"], 65, "its default is not a configuration"),
        (["baselines", PROBLEM, "default", "tile_m"], "64", "its default is not a configuration"),
        (["baselines", PROBLEM, "default", "tile_m"], [64], "its default is not a configuration"),
        (["baselines", PROBLEM, "default", "tile_m"], {}, "its default is not a configuration"),
        (["baselines", PROBLEM, "default", "tile_m"], nan, "its default is not a configuration"),
        (["baselines", PROBLEM, "default"], {"tile_m": 64}, "its default is not a configuration"),
    ],
)
def test_a_card_with_a_wrong_entry_is_refused(
    invented_table: Table, keys: list[str], value: object, fault: str
) -> None:
    path = card_path(invented_table.path)
    record = json.loads(path.read_text())
    entry = record
    for key in keys[:-1]:
        entry = entry[key]
    entry[keys[-1]] = value
    path.write_text(json.dumps(record))
    with pytest.raises(TableError, match=fault) as caught:
        Table.read(invented_table.path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("written", [1, 1.0, True])
def test_a_default_has_the_values_that_the_card_lists_however_it_writes_them(
    invented_card: TableCard, written: object
) -> None:
    record = json.loads(invented_card.to_json())
    baseline = next(iter(record["baselines"].values())) | {"default": {"a": written}}
    record |= {"knobs": {"a": [0, 1]}, "baselines": {PROBLEM: baseline}}
    (read,) = TableCard.from_json(json.dumps(record)).baselines.values()
    assert read.default == {"a": 1}
    assert type(read.default["a"]) is int


def test_the_order_in_which_a_card_lists_values_does_not_matter(
    invented_table: Table, invented_rows: list[Row]
) -> None:
    path = card_path(invented_table.path)
    record = json.loads(path.read_text())
    record["knobs"] = {name: values[::-1] for name, values in record["knobs"].items()}
    path.write_text(json.dumps(record))
    table = Table.read(invented_table.path)
    assert [table.configuration(row) for row in range(len(table))] == [
        configuration for configuration, _, _ in invented_rows
    ]


def test_a_card_that_lacks_an_entry_is_refused(invented_table: Table) -> None:
    record = json.loads(invented_table.card.to_json())
    for name in record.keys() - {"selection"}:  # what older cards do not have
        cut = {key: value for key, value in record.items() if key != name}
        with pytest.raises(TableError, match=f"malformed card, {name}: missing"):
            TableCard.from_json(json.dumps(cut))
    with pytest.raises(TableError, match="expected an object, found list"):
        TableCard.from_json("[]")


@pytest.mark.parametrize("member", ["space", "device", "product", "driver", "library", "protocol"])
@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028"])
def test_a_name_that_would_end_a_line_where_it_is_shown_is_refused(
    invented_card: TableCard, member: str, end: str
) -> None:
    record = json.loads(invented_card.to_json()) | {member: f"a name{end}tilescout: a forged message"}
    with pytest.raises(TableError, match=f"malformed card, {member}: expected a text of one line"):
        TableCard.from_json(json.dumps(record))


def test_names_of_knobs_and_versions_stay_on_their_lines_too(invented_card: TableCard) -> None:
    for member in ({"knobs": {"a\nb": [1]}}, {"versions": {"torch": "2\nforged"}}, {"versions": {"to\nrch": "2"}}):
        record = json.loads(invented_card.to_json()) | {"baselines": {}} | member
        with pytest.raises(TableError, match="expected a text of one line"):
            TableCard.from_json(json.dumps(record))

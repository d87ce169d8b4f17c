"""Evidence that was changed is refused: by its checksums, and where somebody renewed these, by what is possible."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from optuna.samplers import RandomSampler

from tilescout.search.export.bundle import INDEX, read_bundle, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.search.export.from_studies import read_outcomes
from tilescout.search.studies.journal_folder import JournalFolder, open_study
from tilescout.spaces.checksums import Chain, sealed
from tilescout.spaces.errors import BundleError, ExportError, StoreError, TilescoutError
from tilescout.spaces.gemm import GemmProblem

if TYPE_CHECKING:
    from conftest import ForkedScene  # type: ignore[import-not-found]

Record = dict[str, Any]


@pytest.fixture(scope="module")
def journal(searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a study of this format."""
    (path,) = (searched / "store" / "studies").glob("*.journal")
    return Path(shutil.copy(path, tmp_path_factory.mktemp("studies")))


@pytest.fixture(scope="module")
def content(journal: Path) -> bytes:
    """The bytes of that study."""
    return journal.read_bytes()


def without_sums(content: bytes) -> bytes:
    """The study as an older tilescout wrote it."""
    return re.sub(rb',"sum":"[0-9a-f]{16}"', b"", content)


def with_sums(content: bytes) -> bytes:
    """The study with checksums that fit, as whoever knows how they are made would write it."""
    chain = Chain()
    return b"".join(chain.seal(line) + b"\n" for line in without_sums(content).splitlines())


def read(path: Path, content: bytes) -> object:
    """The study with these bytes."""
    path.write_bytes(content)
    return JournalFolder(path.parent).read(path.stem)


@pytest.mark.slow
def test_the_study_is_one(journal: Path, content: bytes) -> None:
    assert read(journal, content) == read(journal, with_sums(content)) == read(journal, without_sums(content))
    assert with_sums(content) == content


@settings(max_examples=60)
@given(data=st.data())
def test_a_digit_of_a_study(journal: Path, content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.sampled_from([found.start() for found in re.finditer(rb"[0-9]", content)]))
    digit = data.draw(st.sampled_from(sorted(set(b"0123456789") - {content[at]})))

    with pytest.raises(StoreError, match=r"checksum|damaged"):
        read(journal, content[:at] + bytes([digit]) + content[at + 1 :])


@pytest.mark.parametrize("edit", ["leave out", "repeat", "exchange"])
@pytest.mark.parametrize("at", [1, 5, -3])
def test_a_record_of_a_study(journal: Path, content: bytes, edit: str, at: int) -> None:
    lines = content.splitlines(keepends=True)
    match edit:
        case "leave out":
            del lines[at]
        case "repeat":
            lines.insert(at, lines[at])
        case "exchange":
            lines[at], lines[at + 1] = lines[at + 1], lines[at]

    with pytest.raises(StoreError, match="checksum"):
        read(journal, b"".join(lines))


def test_a_record_without_a_checksum_behind_those_with(journal: Path, content: bytes) -> None:
    *lines, last = content.splitlines(keepends=True)

    with pytest.raises(StoreError, match="has no checksum"):
        read(journal, b"".join(lines) + without_sums(last))


def with_records(content: bytes, *records: Record) -> bytes:
    """The study with further records, and without checksums."""
    return without_sums(content) + b"".join(json.dumps(each).encode() + b"\n" for each in records)


def test_a_journal_of_many_studies_is_refused_before_their_names_are_compared(journal: Path, content: bytes) -> None:
    made: Record = {"op_code": 0, "worker_id": "x", "study_name": journal.stem, "directions": [1]}
    assert read(journal, with_records(content, made)) == read(journal, content), "as who resumes a study writes"
    others = [{**made, "study_name": f"s{number}"} for number in range(30_000)]  # which take a minute
    with pytest.raises(StoreError, match="several studies"):
        read(journal, with_records(content, *others))
    with pytest.raises(StoreError, match="several studies"), open_study(journal, RandomSampler()):
        pass


def test_numbers_of_trials_whose_hashes_are_all_equal_are_refused_before_they_are_compared(
    journal: Path, content: bytes
) -> None:
    ratio = {"value": 1, "low": 1, "high": 1}
    numbers = [number * (2**61 - 1) for number in range(1, 30_000)]  # to compare all of them takes some 10 s
    race = {"time_over_library": dict.fromkeys(map(str, numbers), ratio), "winner": 0, "answer": 0, "rounds": 1}
    result: Record = {"op_code": 2, "worker_id": "x", "study_id": 0, "user_attr": {"result": {"race": race}}}
    with pytest.raises(StoreError, match=r"no trial .* has the number '2305843009213693951'"):
        read(journal, with_records(content, result))


def with_timing(content: bytes, change: Callable[[Record], None]) -> bytes:
    """The study with the times of its second trial changed, and its value made to fit."""
    records = [json.loads(line) for line in without_sums(content).splitlines()]
    _, (told, timing), *_ = [
        (record["trial_id"], record["user_attr"]["measurement"]["timing"])
        for record in records
        if record.get("user_attr", {}).get("measurement", {}).get("timing") is not None
    ]
    change(timing)
    for record in records:
        if record.get("trial_id") == told and record.get("values") is not None:
            record["values"] = [timing["ratio"] * timing["library_us"]]
    return with_sums(b"\n".join(json.dumps(record, separators=(",", ":")).encode() for record in records))


def scaled(factor: float, *names: str) -> Callable[[Record], None]:
    """Change these times by a factor."""

    def change(timing: Record) -> None:
        for name in names:
            timing[name] *= factor

    return change


RATIOS = ("ratio", "ratio_low", "ratio_high", "ratio_q25", "ratio_q75")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (scaled(0.5, "ratio"), "interval"),
        (scaled(1.5, "ratio_low"), "interval"),
        (scaled(0.5, "ratio_high"), "interval"),
        (scaled(-1, "ratio_low"), "interval"),
        (scaled(float("nan"), "ratio"), "ratio can't be nan"),
        (scaled(float("inf"), "ratio_high"), "ratio_high can't be inf"),
        (scaled(-1, "library_us"), "library_us"),
        (scaled(0, "pairs"), "pairs"),
        (scaled(0.05, *RATIOS), "roofline"),
        (scaled(0.05, "library_us"), "roofline"),
    ],
)
def test_times_that_can_not_be(journal: Path, content: bytes, change: Callable[[Record], None], refusal: str) -> None:
    with pytest.raises(StoreError, match=refusal):
        read(journal, with_timing(content, change))


def test_a_value_that_is_not_the_time(journal: Path, content: bytes) -> None:
    forged = re.sub(rb'"values":\[(\d)', rb'"values":[9\1', without_sums(content), count=1)

    with pytest.raises(StoreError, match="not the time that was measured"):
        read(journal, forged)


@pytest.mark.slow
def test_an_older_study_is_read_and_said_to_be_unchecked(
    forked_scene: "ForkedScene", journal: Path, content: bytes
) -> None:
    for name, held in (("old", without_sums(content)), ("new", content)):
        folder = forked_scene.folder / name
        folder.mkdir()
        (folder / journal.name).write_bytes(held)

    old = forked_scene.survives("report", f"old/{journal.name}", "--out", "old.html", codes=(0,))
    new = forked_scene.survives("report", f"new/{journal.name}", "--out", "new.html", codes=(0,))

    assert "unchecked" in old.stderr
    assert "unchecked" not in new.stderr


@pytest.fixture(scope="module")
def result_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results") / "result.json"


@settings(max_examples=60)
@given(data=st.data())
def test_a_digit_of_a_result(result_path: Path, proven: Record, data: st.DataObject) -> None:
    text = json.dumps(proven)
    at = data.draw(st.sampled_from([found.start() for found in re.finditer(r"[0-9]", text)]))
    digit = data.draw(st.sampled_from(sorted(set("0123456789") - {text[at]})))
    changed = text[:at] + digit + text[at + 1 :]
    with suppress(json.JSONDecodeError):  # a number does not begin with 0
        assume(json.loads(changed) != proven)  # the last of 17 digits may say the same number
    result_path.write_text(changed)

    with pytest.raises(TilescoutError) as refused:
        read_outcomes([str(result_path)], result_path.parent)
    assert len(str(refused.value).splitlines()) == 1


def race(**speed: float) -> Callable[[Record], None]:
    """Let the race have told another speed."""
    return lambda result: result["race"]["speedup_over_library"].update(speed)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (race(value=5.9), "interval"),
        (race(low=1.105), "interval"),
        (race(high=float("inf")), "interval"),
        (race(low=-1.0), "interval"),
        (race(value=59.0, low=58.0, high=60.0), "roofline"),
        (race(value=1.1, low=1.0999, high=1.1001), ""),
        (lambda result: result["best"].update(speedup_over_library=1.05), "in one place"),
        (lambda result: result["race"].update(rounds=0), "rounds"),
        (lambda result: result["library"].update(time_us=1e-3), "roofline"),
        (lambda result: result["library"].update(time_us=-1.0), "time is -1"),
    ],
)
def test_results_that_can_not_be(
    result_path: Path, proven: Record, change: Callable[[Record], None], refusal: str
) -> None:
    forged = json.loads(json.dumps(proven))
    change(forged)
    forged["best"]["speedup_over_library"] = (
        forged["race"]["speedup_over_library"]["value"]
        if refusal != "in one place"
        else forged["best"]["speedup_over_library"]
    )
    result_path.write_text(json.dumps(sealed(forged)))

    if refusal:
        with pytest.raises(ExportError, match=refusal):
            read_outcomes([str(result_path)], result_path.parent)
    else:
        assert read_outcomes([str(result_path)], result_path.parent).outcomes[0].choice is Choice.OURS


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of a bundle that decides for the library, by a race."""
    evidence = Evidence("a-study", "not proven", 1.02, 1.01, 1.03, 12, "a test", {}, 8.31)
    decisions = [Decision(GemmProblem(1024, 1024, 1024), Choice.LIBRARY, evidence)]
    return write_bundle(tmp_path_factory.mktemp("bundles") / "bundle", "sm_90a", "h200", {}, decisions, {}).path / INDEX


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda decisions: decisions.append(decisions[0]), "decides 2 times"),
        (lambda decisions: decisions[0].update(choice="ours"), "its evidence speaks for library"),
        (lambda decisions: decisions[0].update(choice="ours", kernel="0" * 64), "its evidence speaks for library"),
        (lambda decisions: decisions[0].update(kernel="0" * 64), "with the kernel"),
        (lambda decisions: decisions[0]["evidence"].update(high=0.99), "its evidence speaks for ours"),
        (lambda decisions: decisions[0]["evidence"].update(ratio=1.1), "interval"),
        (lambda decisions: decisions[0]["evidence"].update(low=float("nan")), "interval"),
        (lambda decisions: decisions[0]["evidence"].update(high=float("inf")), "interval"),
        (lambda decisions: decisions[0]["evidence"].update(low=None), "missing"),
        (lambda decisions: decisions[0]["evidence"].update(rounds=0), "rounds"),
        (lambda decisions: decisions[0]["evidence"].update(library_us=0.01), "roofline"),
        (lambda decisions: decisions[0]["evidence"].update(library_us="8"), "damaged"),
    ],
)
def test_decisions_of_a_bundle_that_can_not_be(
    index: Path, tmp_path: Path, change: Callable[[list[Record]], None], refusal: str
) -> None:
    record = json.loads(index.read_bytes())
    del record["digest"]
    change(record["decisions"])
    record["digest"] = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    (tmp_path / INDEX).write_text(json.dumps(record))

    with pytest.raises(BundleError, match=refusal):
        read_bundle(tmp_path)

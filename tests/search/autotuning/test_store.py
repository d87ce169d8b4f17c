"""The evidence store: decisions stay, readers believe only what is theirs, and nothing half written is seen."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from errno import ENOSPC
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.export.bundle import INDEX, Bundle
from tilescout.spaces.errors import BundleError, StoreError
from tilescout.spaces.gemm import GemmProblem


def test_every_bundle_holds_what_was_known_before_and_stays(
    store: EvidenceStore, decide_for: Callable[..., Bundle]
) -> None:
    first = decide_for(("64x64x64",))
    second = decide_for((), ("32x64x64",))
    assert store.state().bundle == second.digest
    assert set(second.by_problem) == {GemmProblem(64, 64, 64), GemmProblem(32, 64, 64)}
    assert second.by_problem[GemmProblem(64, 64, 64)] == first.by_problem[GemmProblem(64, 64, 64)]
    again = store.bundle(first.digest)
    assert again is not None
    assert again.decisions == first.decisions
    assert sorted(path.name for path in store.bundles.iterdir()) == sorted([first.digest, second.digest])


def test_a_bundle_is_read_once_however_many_graphs_ask_for_it(
    store: EvidenceStore, decide_for: Callable[..., Bundle]
) -> None:
    first = decide_for(("64x64x64",))
    read = store.bundle(first.digest)
    assert read is not None
    assert store.bundle(first.digest) is read
    second = decide_for(("32x64x64",))
    found = store.bundle(second.digest)
    assert found is not None
    assert set(found.by_problem) == {GemmProblem(64, 64, 64), GemmProblem(32, 64, 64)}


def test_settings_share_nothing(tmp_path: Path, store: EvidenceStore, plain_gemm: ModuleType) -> None:
    other = EvidenceStore(tmp_path / "evidence", {"gpu": "another"}, plain_gemm.TEMPLATE)
    assert other.folder != store.folder
    assert other.state().name != store.state().name


def test_a_store_that_was_deleted_has_another_name(store: EvidenceStore) -> None:
    before = store.state().name
    assert store.state().name == before
    (store.folder / "state.json").unlink()
    anew = store.state().name
    assert anew != before
    shutil.rmtree(store.folder)  # as the message of a damaged one advises, while this process goes on
    assert store.state().name not in (before, anew)


def test_a_store_stays_where_it_is_when_the_working_directory_changes(
    tmp_path: Path, plain_gemm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = EvidenceStore(Path("evidence"), {"gpu": "the host"}, plain_gemm.TEMPLATE)
    name = store.state().name
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.state().name == name
    assert not list(Path().iterdir())


def test_what_others_may_write_is_refused(
    store: EvidenceStore, plain_gemm: ModuleType, decide_for: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle = decide_for(("64x64x64",))
    bundle.path.chmod(0o777)
    with pytest.raises(BundleError, match="others may write it"):
        store.bundle(bundle.digest)
    (store.folder / "state.json").chmod(0o666)
    with pytest.raises(StoreError, match="others may write it"):
        store.state()
    store.folder.chmod(0o777)
    with pytest.raises(StoreError, match="others may write it"):
        EvidenceStore(tmp_path / "evidence", store.setting, plain_gemm.TEMPLATE)


def test_a_changed_figure_is_refused(store: EvidenceStore, decide_for: Callable[..., Bundle]) -> None:
    bundle = decide_for((), ("64x64x64",))
    index = bundle.path / INDEX
    index.write_text(index.read_text().replace('"ratio": 1.1', '"ratio": 0.5'))
    with pytest.raises(BundleError, match="damaged"):
        store.bundle(bundle.digest)


@pytest.mark.parametrize(
    "state", ["{", "[]", '{"kind": "x"}', {"bundle": "../../elsewhere"}, {"bundle": 1}, {"unfinished": "1"}, {"x": 1}]
)
def test_a_damaged_state_is_refused_in_a_line(store: EvidenceStore, state: str | dict[str, object]) -> None:
    path = store.folder / "state.json"
    store.state()
    if isinstance(state, dict):
        record = json.loads(path.read_text())
        record["state"] |= state
        state = json.dumps(record)
    path.write_text(state)
    with pytest.raises(StoreError, match="damaged") as caught:
        store.state()
    assert "\n" not in str(caught.value)


def test_a_lock_that_another_holds_is_waited_for_in_vain_no_longer_than_told(
    store: EvidenceStore, tmp_path: Path, plain_gemm: ModuleType
) -> None:
    other = EvidenceStore(tmp_path / "evidence", store.setting, plain_gemm.TEMPLATE)
    with store.lock(1.0), pytest.raises(StoreError, match="has held"), other.lock(0.1):
        raise AssertionError("two processes must not decide at once")


def test_settings_that_take_turns_are_decided_one_at_a_time_and_keep_evidence_of_their_own(
    store: EvidenceStore, tmp_path: Path, plain_gemm: ModuleType
) -> None:
    setting = {**store.setting, "neighbours": "others"}
    other = EvidenceStore(tmp_path / "evidence", setting, plain_gemm.TEMPLATE, store.setting)
    assert other.folder != store.folder
    for first, second in ((store, other), (other, store)):
        with first.lock(1.0), pytest.raises(StoreError, match="has held"), second.lock(0.1):
            raise AssertionError("two processes must not decide at once")


def test_a_store_that_was_deleted_is_locked_and_noted_in_again(
    store: EvidenceStore, tmp_path: Path, plain_gemm: ModuleType
) -> None:
    setting = {**store.setting, "neighbours": "others"}
    other = EvidenceStore(tmp_path / "evidence", setting, plain_gemm.TEMPLATE, store.setting)
    shutil.rmtree(tmp_path / "evidence")
    assert other.state().bundle == ""  # which makes its own folder, not that of the lock
    with other.lock(1.0), pytest.raises(StoreError, match="has held"), store.lock(0.1):
        raise AssertionError("two processes must not decide at once")
    shutil.rmtree(tmp_path / "evidence")
    other.leave_unfinished()
    assert other.state().unfinished == 1


def test_a_note_that_a_graph_is_unfinished_and_a_new_bundle_are_not_lost_to_each_other(
    store: EvidenceStore, decide_for: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, asked = store._held, list[str]()

    def note_first(path: Path, seconds: float) -> AbstractContextManager[None]:
        if not asked:  # who decides is about to name its bundle, and another process notes something
            asked.append(path.name)
            store.leave_unfinished()
        return held(path, seconds)

    before = store.lock(1.0)
    monkeypatch.setattr(store, "_held", note_first)
    monkeypatch.setattr(store, "lock", lambda seconds: before)
    bundle = decide_for((), ("64x64x64",))
    assert asked == ["state.lock"]
    assert (store.state().bundle, store.state().unfinished) == (bundle.digest, 1)


def test_a_store_that_is_full_or_read_only_says_so_and_keeps_no_half_file(
    store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.state()

    def write_a_part(path: Path, text: str) -> int:
        path.write_bytes(text.encode()[:9])
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_a_part)
    with pytest.raises(StoreError, match=r"can't write the evidence store .*: No space left on device"):
        store.leave_unfinished()
    assert not list(store.folder.glob(".state-*"))
    assert store.state() == before
    (store.folder / "lock").mkdir()
    with pytest.raises(StoreError, match="can't write the evidence store"), store.lock(0.1):
        raise AssertionError("nobody could see that it is held")


def test_what_killed_processes_left_half_written_goes(store: EvidenceStore, decide_for: Callable[..., Bundle]) -> None:
    bundle, state = store.bundles / ".new-x1y2z3", store.folder / ".state-0123456789abcdef"
    now = store.bundles / ".new-a4b5c6"  # another process may be at it
    for left in (bundle / "bundle", now):
        left.mkdir(parents=True)
    state.touch()
    for left in (bundle, state):
        os.utime(left, (0, 0))
    decide_for((), ("64x64x64",))
    assert not bundle.exists()
    assert not state.exists()
    assert now.exists()

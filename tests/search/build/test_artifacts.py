"""The store of compiled kernels: what it finds, what it refuses, what it survives."""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, read_shared_object
from tilescout.spaces.errors import ArtifactError, StoreError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import find_template
from tilescout.spaces.trust import read_record

KEY = ArtifactKey("space", "5a5a", Configuration.of({"tile": 64, "raster": "m"}), "bf16", "sm_90a", "4.8.1")
MADE = Artifact(Path("kernel.so"), "c0ffee", "entry", Resources(168, 0, 4096), compile_seconds=0.75)
REFUSED = Artifact(Path("kernel.so"), "", "", None, compile_seconds=0.25, error="ptxas: too many registers")


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "made" / "on demand")


def publish(store: ArtifactStore, artifact: Artifact, content: bytes = b"library", key: ArtifactKey = KEY) -> Artifact:
    with store.scratch() as scratch:
        if artifact.ok:
            (scratch / "kernel.so").write_bytes(content)
        return store.publish(key, artifact, scratch)


def test_a_store_to_read_is_made_once_something_is_kept_in_it(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "made" / "on demand", to_read=True)

    assert store.find(KEY) is None
    assert not list(tmp_path.iterdir())
    assert publish(store, MADE) == store.find(KEY)


@pytest.mark.parametrize("to_read", [True, False])
def test_a_store_that_others_may_write_is_refused(tmp_path: Path, to_read: bool) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StoreError, match="can't trust"):
        ArtifactStore(tmp_path, to_read=to_read)


def test_a_store_that_is_made_where_no_mode_is_masked_is_not_refused(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = ArtifactStore(tmp_path / "made" / "on demand")
        assert publish(store, MADE) == ArtifactStore(store.root).find(KEY)
    finally:
        os.umask(before)


@pytest.mark.parametrize("artifact", [MADE, REFUSED])
def test_what_was_published_is_found(store: ArtifactStore, artifact: Artifact) -> None:
    assert store.find(KEY) is None

    stored = publish(store, artifact)

    assert stored == replace(artifact, path=store.folder(KEY) / "kernel.so")
    assert store.find(KEY) == stored
    assert ArtifactStore(store.root).find(KEY) == stored
    assert stored.path.exists() == stored.ok == artifact.ok


@pytest.mark.parametrize(
    "changes",
    [
        {"space": "other"},
        {"source_hash": "a5a5"},
        {"configuration": Configuration.of({"tile": 128, "raster": "m"})},
        {"configuration": Configuration.of({"tile": 64, "raster": "n"})},
        {"signature": "fp16"},
        {"arch": "sm_100a"},
        {"compiler": "4.9.0"},
    ],
)
def test_everything_a_kernel_depends_on_is_in_its_name(changes: dict[str, Any]) -> None:
    assert replace(KEY, **changes).digest != KEY.digest


def test_the_name_does_not_depend_on_the_order_of_knobs_nor_on_having_been_asked_before() -> None:
    turned = replace(KEY, configuration=Configuration.of({"raster": "m", "tile": 64}))

    assert turned.digest == KEY.digest
    assert replace(KEY).to_dict() == KEY.to_dict()
    assert set(KEY.to_dict()) == {"space", "source_hash", "configuration", "signature", "arch", "compiler"}


def test_a_key_holds_the_hash_of_the_source_and_the_version_of_the_compiler() -> None:
    template = find_template("gemm_sm90")

    key = ArtifactKey.of(template, KEY.configuration, "fp16", "sm_90a")

    assert key.source_hash == template.source_hash
    assert key.compiler[0].isdigit()
    assert (key.space, key.signature, key.arch) == ("gemm_sm90", "fp16", "sm_90a")


def without(name: str) -> Callable[[str], str]:
    return lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != name})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-2],
        lambda text: "null",
        lambda text: "[]",
        lambda text: "\0" * len(text),
        *map(without, ("sha256", "function", "resources", "compile_seconds", "error")),
        lambda text: text.replace("registers", "regs"),
    ],
)
def test_an_artifact_with_a_damaged_record_is_not_found_and_can_be_published_again(
    store: ArtifactStore, damage: Callable[[str], str]
) -> None:
    publish(store, MADE)
    record = store.folder(KEY) / "artifact.json"
    record.write_text(damage(record.read_text()))
    assert store.find(KEY) is None

    assert publish(store, replace(MADE, sha256="beef")).sha256 == "beef"


def test_an_artifact_whose_library_is_gone_is_not_found_and_can_be_published_again(store: ArtifactStore) -> None:
    publish(store, MADE).path.unlink()
    assert store.find(KEY) is None

    assert publish(store, MADE, b"again").path.read_bytes() == b"again"


def test_it_lists_the_kernels_that_differ_in_their_configuration_alone(store: ArtifactStore) -> None:
    wider, refused = (Configuration.of({"tile": tile, "raster": "m"}) for tile in (128, 256))
    assert store.configurations(KEY) == []

    publish(store, MADE)
    publish(store, MADE, key=replace(KEY, configuration=wider))
    publish(store, REFUSED, key=replace(KEY, configuration=refused))
    publish(store, MADE, key=replace(KEY, configuration=refused, signature="fp16"))

    assert set(store.configurations(replace(KEY, configuration=refused))) == {KEY.configuration, wider}
    for record in store.root.glob("??/*/artifact.json"):
        record.write_text("{")
    assert store.configurations(KEY) == []


def test_a_record_is_read_once_by_a_process_and_one_that_is_gone_is_not_listed(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def noted(path: Path, *others: Any) -> bytes:
        read.append(path)
        return read_record(path, *others)

    keys = [replace(KEY, configuration=Configuration.of({"tile": tile, "raster": "m"})) for tile in (1, 2, 3)]
    for key, artifact in zip(keys, (MADE, REFUSED, MADE), strict=True):
        publish(store, artifact, key=key)
    monkeypatch.setattr("tilescout.search.build.artifacts.read_record", noted)

    assert set(store.configurations(KEY)) == {keys[0].configuration, keys[2].configuration}
    assert len(read) == 3
    again = ArtifactStore(store.root)  # another search of the same process
    assert len(again.configurations(KEY)) == 2
    assert len(read) == 3
    shutil.rmtree(store.folder(keys[0]))
    assert again.configurations(KEY) == [keys[2].configuration]
    (store.folder(keys[2]) / "artifact.json").chmod(0o666)  # others may write it now
    assert again.configurations(KEY) == []


def test_of_two_writers_the_first_wins(store: ArtifactStore) -> None:
    first = publish(store, MADE, b"first")

    second = publish(store, replace(MADE, compile_seconds=9.0), b"second")

    assert second == first
    assert second.path.read_bytes() == b"first"


def test_scratch_folders_are_gone_afterwards(store: ArtifactStore) -> None:
    publish(store, MADE)
    publish(store, MADE)
    with suppress(ZeroDivisionError), store.scratch() as scratch:
        (scratch / "half a library").write_bytes(b"\x7fELF")
        raise ZeroDivisionError

    assert [entry.name for entry in store.root.iterdir()] == [KEY.digest[:2]]


@given(content=st.binary(min_size=1, max_size=50), data=st.data())
def test_only_the_very_bytes_that_were_recorded_are_accepted(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    library = tmp_path_factory.mktemp("library") / "kernel.so"
    library.write_bytes(content)
    read_shared_object(library, sha256(content).hexdigest())

    altered = data.draw(st.binary(max_size=50).filter(lambda other: other != content) | st.just(content[:-1]))
    library.write_bytes(altered)
    with pytest.raises(ArtifactError, match=r"is damaged: its SHA-256 is \w+…, recorded is \w+…; delete its folder"):
        read_shared_object(library, sha256(content).hexdigest())


def test_a_library_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"nothing\.so can't be read \(No such file or directory\)"):
        read_shared_object(tmp_path / "nothing.so", "c0ffee")


@pytest.mark.parametrize("under", ["", "deep/down"])
def test_a_store_that_can_not_be_made_is_refused(tmp_path: Path, under: str) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreError, match=r"can't make the artifact store .*file"):
        ArtifactStore(tmp_path / "file" / under)


def test_a_store_that_vanished_is_reported_not_made_again_in_silence(store: ArtifactStore) -> None:
    shutil.rmtree(store.root)
    store.root.write_text("in the way")

    with pytest.raises(StoreError, match="can't write the artifact store"):
        publish(store, MADE)


def test_what_killed_compilers_left_is_swept_and_what_is_being_written_stays(store: ArtifactStore) -> None:
    stale, fresh = store.root / "tmp-stale", store.root / "tmp-fresh"
    for folder in (stale, fresh):
        folder.mkdir()
        (folder / "kernel.o").write_bytes(b"half")
    two_hours_ago = time.time() - 7200
    os.utime(stale, (two_hours_ago, two_hours_ago))

    store.sweep()

    assert not stale.exists()
    assert fresh.exists()

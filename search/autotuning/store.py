"""The evidence store: what was decided on this machine while models were compiled, kept for the next process.

For each setting (GPU, versions, kernels) there is a folder with bundles of kernels, as `tilescout.search.export` reads
and checks them: each holds all that was decided until then, lies under its digest, and never changes. ``state.json``
names the newest. A decision that was made is not made again, so that the same evidence gives the same answer; delete
the folder to have everything decided anew.
"""

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import mkdtemp
from typing import BinaryIO

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.export.bundle import Bundle, read_bundle, write_bundle
from tilescout.search.export.decisions import Outcome
from tilescout.spaces.errors import MALFORMED, StoreError, one_line
from tilescout.spaces.inputs import parse_json
from tilescout.spaces.outputs import sweep
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.trust import check_folder, read_record

KIND, FORMAT = "tilescout autotune state", 1
_STATE, _LOCK, _BUNDLES = "state.json", "lock", "bundles"
_STATE_LOCK, _STATE_SECONDS = "state.lock", 10.0  # the state is replaced in some milliseconds
_NEW, _NEW_STATE = ".new-", ".state-"  # begin the names of what is not complete yet
_LARGEST = 1 << 16  # bytes of a state
_LOOK_SECONDS = 0.05  # between two looks at a lock that another process holds


@dataclass(frozen=True)
class State:
    """The knowledge of a setting.

    Attributes
    ----------
    name
        Random text that this state was given when it was made: code that was compiled with another store is not for
        this one.
    bundle
        Digest of the newest bundle; empty before anything was decided.
    unfinished
        How often a graph was left with products that were not decided. Code that was compiled then is not to be found
        in a cache again.
    """

    name: str
    bundle: str = ""
    unfinished: int = 0


class EvidenceStore:
    """The evidence of one setting.

    Parameters
    ----------
    root
        Folder of all settings; made where it is missing.
    setting
        What decisions depend on, by name: GPU, versions, kernels.
    template
        The kernels that are decided about.
    turns
        The setting whose lock this one shares: of both, one process decides at a time. By default it has its own.

    Raises
    ------
    StoreError
        If it can't be made, or others could have filled it.
    """

    def __init__(
        self, root: Path, setting: Mapping[str, str], template: KernelTemplate, turns: Mapping[str, str] | None = None
    ) -> None:
        self.setting = dict(setting)
        self.template = template
        root = root.absolute()  # a model may be compiled when the working directory is another one
        self.folder = root / _name_of(setting)
        self.bundles = self.folder / _BUNDLES
        self._lock = root / _name_of(turns or setting) / _LOCK
        self._read: tuple[str, Bundle] | None = None  # the last one; of many decisions it takes a tenth of a second
        try:
            self.bundles.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock.parent.mkdir(mode=0o755, exist_ok=True)
            for folder in (self.folder, self._lock.parent):
                check_folder(folder, StoreError)
        except OSError as error:
            raise StoreError(f"can't make the evidence store {root}: {error.strerror}") from error

    def state(self) -> State:
        """The state now; one is made where there is none.

        Raises
        ------
        StoreError
            If it can't be read, or is damaged or somebody else's.
        """
        path = self.folder / _STATE
        try:
            record = parse_json(read_record(path, _LARGEST, StoreError))
            if (record["kind"], record["format"]) != (KIND, FORMAT):
                raise ValueError("it is of another kind or format")
            state = State(**record["state"])
            if [type(each) for each in (state.name, state.bundle, state.unfinished)] != [str, str, int]:
                raise TypeError("its values are of other types")
            if state.bundle and not _is_digest(state.bundle):
                raise ValueError("it names no bundle")
            return state
        except FileNotFoundError:
            return self._first()
        except OSError as error:
            raise StoreError(f"can't read {path}: {error.strerror}") from error
        except MALFORMED as error:
            raise StoreError(
                f"{path} is damaged ({one_line(error, 80)}): delete {self.folder} to start anew"
            ) from error

    def bundle(self, digest: str) -> Bundle | None:
        """A bundle of the store, as it was when it was read first; None if there is no such one.

        Raises
        ------
        BundleError
            If it is damaged or somebody else's.
        """
        path = self.bundles / digest
        if not _is_digest(digest) or not path.is_dir():
            return None
        if self._read is None or self._read[0] != digest:
            self._read = digest, read_bundle(path, {self.template.name: self.template})
        return self._read[1]

    def add(self, outcomes: Sequence[Outcome], artifacts: ArtifactStore, arch: str, device: str) -> Bundle:
        """Write a bundle of all that was known and of new outcomes, and make it the newest; under `lock` alone.

        Raises
        ------
        StoreError, ArtifactError, ExportError, BundleError
            If it can't be written.
        """
        # It reads studies too, for which Optuna is imported: who only looks up would wait for that.
        from tilescout.search.export.from_studies import decisions_of, installed_versions

        known = self.bundle(self.state().bundle)
        decisions = list(known.decisions) if known is not None else []
        kernels = (
            {digest: (kernel, known.path / kernel.file) for digest, kernel in known.kernels.items()} if known else {}
        )
        named = {self.template.name: self.template}
        decisions += decisions_of(outcomes, kernels, arch, artifacts, named)
        scratch = self._scratch()
        try:
            made = write_bundle(scratch / "bundle", arch, device, installed_versions(), decisions, kernels, named=named)
            place = self.bundles / made.digest
            if not place.exists():
                made.path.rename(place)
        except OSError as error:
            raise StoreError(f"can't write the evidence store {self.folder}: {error.strerror}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._change(lambda state: replace(state, bundle=made.digest))
        return replace(made, path=place.resolve())

    def _scratch(self) -> Path:
        sweep(self.bundles, f"{_NEW}*")  # of processes that were killed
        sweep(self.folder, f"{_NEW_STATE}*")
        try:
            return Path(mkdtemp(prefix=_NEW, dir=self.bundles))
        except OSError as error:
            raise StoreError(f"can't write the evidence store {self.folder}: {error.strerror}") from error

    def leave_unfinished(self) -> None:
        """Note that a graph was left with products that are not decided, whoever decides now.

        Raises
        ------
        StoreError
            If the state can't be read or written.
        """
        self._change(lambda state: replace(state, unfinished=state.unfinished + 1))

    def lock(self, seconds: float) -> AbstractContextManager[None]:
        """Be the only process that decides; others wait until the block ends, or their time is over.

        Raises
        ------
        StoreError
            If another process has not let go in time, or the store can't be written.
        """
        return self._held(self._lock, seconds)

    @contextmanager
    def _held(self, path: Path, seconds: float) -> Iterator[None]:
        deadline = time.monotonic() + seconds
        with self._opened(path) as file:
            while True:
                try:
                    flock(file, LOCK_EX | LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise StoreError(f"another process has held {path} for {seconds:g} s") from error
                    time.sleep(_LOOK_SECONDS)
            yield

    def _opened(self, path: Path) -> BinaryIO:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # it may have been deleted
            return path.open("wb")
        except OSError as error:
            raise StoreError(f"can't write the evidence store {self.folder}: {error.strerror}") from error

    def _first(self) -> State:
        """Make the first state; of several processes that do, the first wins. The folder may have been deleted."""
        try:
            self.bundles.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"can't write the evidence store {self.folder}: {error.strerror}") from error
        path = self._written(State(secrets.token_hex(16)))
        try:
            os.link(path, self.folder / _STATE)
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreError(f"can't write the evidence store {self.folder}: {error.strerror}") from error
        finally:
            path.unlink(missing_ok=True)
        return self.state()

    def _change(self, change: Callable[[State], State]) -> None:
        """Replace the state; others that do wait, so that no change is lost."""
        with self._held(self.folder / _STATE_LOCK, _STATE_SECONDS):
            self._written(change(self.state())).replace(self.folder / _STATE)

    def _written(self, state: State) -> Path:
        record = {"kind": KIND, "format": FORMAT, "setting": self.setting, "state": asdict(state)}
        path = self.folder / f"{_NEW_STATE}{secrets.token_hex(8)}"
        try:
            path.write_text(json.dumps(record, indent=1) + "\n")
            path.chmod(0o644)
            return path
        except OSError as error:
            path.unlink(missing_ok=True)  # a full disk leaves a part of it
            raise StoreError(f"can't write the evidence store {self.folder}: {error.strerror}") from error


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _name_of(setting: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(setting), sort_keys=True).encode()).hexdigest()[:16]

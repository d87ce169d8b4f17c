"""The files in which studies keep what they measured: the result, and beside it when, where and how it was measured."""

import gzip
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from tilescout.search.engines.gpus import driver_version, visible_gpus
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.inputs import parse_json, read_unpacked
from tilescout.spaces.outputs import write_whole

_PACKAGES = ("tilescout", "torch", "nvidia-cutlass-dsl", "numpy", "scikit-learn", "optuna", "mlflow", "ray")
_LARGEST = 1 << 28  # bytes of a file, and of what is packed in it; the largest file has 460 kB
_VALUES = 1 << 24


@dataclass(frozen=True)
class Record:
    """The result of a study, and what it is to be reproduced with.

    Attributes
    ----------
    about
        Study, date, command, machine and versions; empty if the file is older than this.
    result
        Figures and raw data, in the form that the study has chosen; JSON can hold it.
    """

    about: dict[str, Any]
    result: Any

    @classmethod
    def of(cls, study: str, command: str, result: Any) -> Self:
        """A result that this machine found now."""
        about = {
            "study": study,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
            "machine": {
                "gpus": visible_gpus(),
                "cuda_driver": ".".join(map(str, driver_version() or ())),
                "cores": len(os.sched_getaffinity(0)),
                "platform": platform.platform(),
            },
            "versions": {"python": platform.python_version(), **dict(_versions())},
        }
        return cls(about, result)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file, compressed or not; one of an older tilescout is the result itself.

        Raises
        ------
        StoreError
            If it can't be read as JSON.
        """
        try:
            found = parse_json(read_unpacked(path, _LARGEST), _VALUES)
        except (OSError, ValueError) as error:
            raise StoreError(f"can't read {path} as the record of a study: {one_line(error)}") from error
        whole = isinstance(found, dict) and found.keys() == {"about", "result"}
        return cls(found["about"], found["result"]) if whole else cls({}, found)

    def write(self, path: Path) -> None:
        """Write JSON, compressed if the name ends in ``.gz``; the file is replaced as a whole."""
        record = asdict(self)
        if path.suffix == ".gz":
            content = gzip.compress(json.dumps(record).encode(), mtime=0)
        else:
            content = f"{json.dumps(record, indent=1)}\n".encode()
        write_whole(path, content)


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue

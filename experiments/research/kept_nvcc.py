"""An nvcc that keeps its objects, so that one source is compiled once, whatever its entry is called.

TorchInductor has nvcc compile every candidate of CUTLASS, some 40 s of a core each, and the chosen one once more under
another name. Its own cache serves the candidates again on the same machine and with the same paths alone. In the place
of its nvcc, this compiles a source under a name of its own, keeps the object and what nvcc took in a folder, and gives
out copies of it with the entry renamed. Whatever else nvcc is called for is passed on.

The file runs by itself too, as a program for `KeptObjects.compiler`: it imports nothing but the standard library.
"""

import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_ENTRY = "kept_entry"
_EXPORTED = re.compile(r"^PT_EXPORT\s+int\s+(\w+)\s*\(", re.MULTILINE)
_NOTE = "// CUDA Compilation cmd\n"  # behind it TorchInductor appends its command, whose paths differ
_USED = "used"  # a line for every object that was given out


@dataclass(frozen=True)
class Compiled:
    """The cost of an object: seconds from nvcc's start to its end, and of all cores."""

    seconds: float
    core_seconds: float


@dataclass(frozen=True)
class KeptObjects:
    """A folder of objects.

    Attributes
    ----------
    folder
        Where they are; it is made if need be. What is there was compiled by this machine's user, and is linked.
    """

    folder: Path

    def compiler(self, nvcc: str) -> Path:
        """A program that is called as `nvcc` is, and takes objects from this folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.folder / "nvcc"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{self.folder}" "{nvcc}" "$@"\n')
        program.chmod(0o755)
        return program

    def given(self) -> list[str]:
        """The keys of all objects that were given out until now, in that order."""
        try:
            return (self.folder / _USED).read_text().split()
        except FileNotFoundError:
            return []

    def spent(self, keys: Sequence[str]) -> list[Compiled]:
        """The costs of these objects, each of which counts once."""
        return [Compiled(**json.loads((self.folder / f"{key}.json").read_text())) for key in dict.fromkeys(keys)]

    def hold(self, source: str, options: Sequence[str], nvcc: str, out: Path) -> int:
        """Put the object of a source at `out`, compiled or kept; returns what nvcc returned, which is 0 if kept."""
        text = source.partition(_NOTE)[0].strip() + "\n"
        (name,) = _EXPORTED.findall(text)
        plain = re.sub(rf"\b{name}\b", _ENTRY, text)
        key = hashlib.sha256(plain.encode()).hexdigest()[:20]
        kept = self.folder / f"{key}.o"
        with open(self.folder / f"{key}.lock", "w") as lock:  # two may ask for it at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists() and (failed := self._compile(key, plain, [nvcc, *options])):
                return failed
        subprocess.run(["objcopy", "--redefine-sym", f"{_ENTRY}={name}", kept, out], check=True)
        with open(self.folder / _USED, "a") as used:
            used.write(f"{key}\n")
        return 0

    def _compile(self, key: str, plain: str, command: Sequence[str]) -> int:
        source, made = self.folder / f"{key}.cu", self.folder / f"{key}.part.o"
        source.write_text(plain)
        started = time.monotonic()
        done = subprocess.run([*command, "-c", "-o", made, source], check=False)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode == 0:
            told = Compiled(time.monotonic() - started, spent.ru_utime + spent.ru_stime)
            (self.folder / f"{key}.json").write_text(json.dumps(asdict(told)))
            made.rename(self.folder / f"{key}.o")
        return done.returncode


def find_nvcc() -> str | None:
    """The nvcc of this machine, if it has one."""
    return shutil.which("nvcc")


def main(arguments: Sequence[str]) -> int:
    """Do what nvcc is asked for: the arguments are the folder of objects, nvcc, and those that nvcc is called with."""
    folder, nvcc, *asked = arguments
    source = Path(asked[-1]) if "-c" in asked and asked[-1].endswith(".cu") else None
    text = source.read_text() if source is not None else ""
    if len(_EXPORTED.findall(text)) != 1:
        os.execv(nvcc, [nvcc, *asked])
    options = asked[: asked.index("-c")]
    return KeptObjects(Path(folder)).hold(text, options, nvcc, Path(asked[asked.index("-o") + 1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

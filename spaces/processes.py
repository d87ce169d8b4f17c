"""Processes of Python that find modules where this one does, and not in the working directory.

Python puts the working directory in front of all other places when it is started with ``-c`` or ``-m``, as
`multiprocessing` starts it. A file that lies there, ``select.py`` or ``torch.py``, would then be run in place of the
module of that name. Every process that is started goes through here.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from types import ModuleType
from typing import Any

from tilescout.spaces.texts import starred

_ENVIRONMENT = {"PYTHONSAFEPATH": "1"}
_STAND_INS = "torch_cutlass"
"""The folder in its cache that TorchInductor makes a place of modules once it has used CUTLASS.

It has empty packages ``cuda``, ``scipy`` and ``pydot`` (``torch/_inductor/codegen/cutlass/utils.py``). The real
``cuda`` is a namespace package, before which a package with a file is found wherever it lies: no compiler of CuteDSL
would start.
"""


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as a program, without the working directory among the places of modules."""
    return [sys.executable, "-P", "-m", module, *arguments]


def safe_environment() -> Mapping[str, str]:
    """The environment of this process, in which Python, and what that starts, leaves the working directory out."""
    return {**os.environ, **_ENVIRONMENT}


def module_places() -> list[str]:
    """Where this process looks for modules, for a process that it starts.

    An interactive Python and a notebook look in the working directory first; here it is the last place. A folder of
    TorchInductor's with stand-ins of other packages is left out.
    """
    places = _without_stand_ins(sys.path)
    return [*(place for place in places if place), *([] if all(places) else [os.getcwd()])]


def _without_stand_ins(places: Iterable[str]) -> list[str]:
    return [place for place in places if Path(place).name != _STAND_INS]


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Have processes that are started in the context never see Ctrl-C, which is for the one that starts them.

    They have the mask of signals of the thread that starts them from their first moment on, and so while they import. A
    terminal would else end them too, and what they were at would look like a crash.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hide_secrets() -> None:
    """Write stars over the passwords of addresses in the arguments of this process, as all users can list them.

    Linux lists what is in the memory where a process got its arguments; Python has copies of its own, which stay.
    Elsewhere nothing happens.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # numbers 48 and 49, the first of these being number 3: proc(5)
        typed = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return
    hidden = b"\0".join(map(starred, typed.split(b"\0")))
    if 0 < start < end and len(hidden) == end - start and hidden != typed:
        ctypes.memmove(start, hidden, len(hidden))


class _Folder(MetaPathFinder):
    """Finds modules in a folder when nothing else has found them, namespace packages included.

    It is no entry of `sys.path`: a module there would come before the namespace packages of others, and a folder there
    may claim to be an installed package, with plugins for anything.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self.folder]) if path is None else None


def find_modules_in(folder: str) -> None:
    """Let modules of a folder be found, behind all others, here and in the processes that are spawned from here."""
    if folder and folder not in own_folders():
        sys.meta_path.append(_Folder(folder))


def own_folders() -> list[str]:
    """The folders that `find_modules_in` was called for."""
    return [finder.folder for finder in sys.meta_path if isinstance(finder, _Folder)]


class _Safe:
    """A context, which several threads may be in, whose processes leave the working directory out.

    Processes that are spawned, and what libraries start, learn that from the environment, and no other way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = {name: os.environ.get(name) for name in _ENVIRONMENT}
                os.environ.update(_ENVIRONMENT)
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


safe_processes = _Safe()
"""The context; see the module."""


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Let what is spawned not know the script that runs here: it would run it again, up to its ``__main__`` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Process(SpawnProcess):
    """A process that is spawned without the working directory, and that never sees Ctrl-C.

    It then gets the places of the one that spawns it.
    """

    imports_main = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own_folders = own_folders()

    def run(self) -> None:
        """Do what the process is for."""
        sys.path[:] = _without_stand_ins(sys.path)  # the places of the one that spawned it
        for folder in self._own_folders:
            find_modules_in(folder)
        super().run()

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:  # noqa: N802 - the name is multiprocessing's
        assert isinstance(process_obj, _Process)
        with safe_processes, deaf_to_ctrl_c(), nullcontext() if process_obj.imports_main else _main_hidden():
            return SpawnProcess._Popen(process_obj)


class _Context(SpawnContext):
    Process = _Process


class _ProcessWithoutMain(_Process):
    imports_main = False


class _ContextWithoutMain(SpawnContext):
    Process = _ProcessWithoutMain


def spawn_context(imports_main: bool = True) -> SpawnContext:
    """The context ``spawn`` of `multiprocessing`, whose processes start without the working directory.

    Parameters
    ----------
    imports_main
        Whether they import the script that runs here, as those of `multiprocessing` do. A script that is not guarded by
        ``if __name__ == "__main__":`` is run again then.
    """
    with safe_processes:
        ensure_running()  # the process that counts semaphores, which would be started with the first of them
    return _Context() if imports_main else _ContextWithoutMain()


def context_for(work: object) -> SpawnContext:
    """`spawn_context` for processes that are sent some work: they import the script that runs here only if it is of it.

    It may be any user's: run again, one that is not guarded would begin anew, and one that is piped into Python can't
    be run again at all.

    Parameters
    ----------
    work
        What is sent to them. What can't be sent counts as the script's.
    """
    try:
        sent = bytes(ForkingPickler.dumps(work))
    except Exception:  # of a class of anybody's; whoever sends it is told
        return spawn_context()
    return spawn_context(imports_main=b"__main__" in sent)

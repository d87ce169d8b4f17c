"""Processes that stand by: what takes seconds to import is imported once, and outlives the command that asked for it.

A process that stands by listens on a socket of its user's. Whoever connects gets a session: a child that is forked from
it, with all that was imported, in the environment of the one who asked. It never does any work itself, and holds
nothing of a GPU. It is started when it is first asked for, and ends when nobody asked for a while.

What a session inherits must be what it would have imported itself. So there is a process for each state of the sources,
of the installed packages, of the places of modules, of the variables that they read, and of the groups, rights and
limits that the system sets; see `_state`.
"""

import errno
import fcntl
import hashlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.processes import module_command, module_places, own_folders, safe_environment

IDLE_SECONDS = 300.0
"""Seconds without a session after which a process that stands by ends."""

REQUEST_BYTES = 1 << 22
"""Bytes of a request for a session at most: its environment has 2 MiB at most where Linux has its default limits."""

HELD_SECONDS = 60.0
"""Seconds for which a session is held that nobody asks for; see `tilescout.search.build.holding`."""

HELD = "-held"
"""The end of the name of its socket."""

QUEUED = 64
"""Connections that wait while it gets ready."""

PACKAGES = ("spaces", "costmodel", "search")
"""The folders of the sources that what stands by has imported, where nothing else is said."""

_SERVER = "tilescout.search.build.standing"
# Variables that imports read: these, and those that begin like the others. A beginning is never so short that it is one
# of keys too, as those of NVIDIA_API_KEY, LANGSMITH_API_KEY and HOMEBREW_GITHUB_API_TOKEN would be.
_READ = {"HOME", "LANG", "LANGUAGE", "NVIDIA_TF32_OVERRIDE", "NVTX_INJECTION64_PATH", "PATH", "TMPDIR", "TZ"}
_READ_ALL = (
    *("ARROW_", "CUDA", "CUTE_", "KMP_", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_"),
    *("TORCH", "TRITON_", "TVM_", "XDG_"),
)
# Read by a session when it first uses the GPU, and not by an import; and set by threadpoolctl wherever it is imported.
_PER_SESSION = ("CUDA_VISIBLE_DEVICES", "KMP_DUPLICATE_LIB_OK")
_MAY = ("Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp")  # what a process may do, as its status begins the lines
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")  # of what is in a folder of packages
_IMPORTED = (".py", ".pyc", ".so")
_PEER = struct.Struct("3i")  # of SO_PEERCRED: process, user, group
ENDED = struct.Struct("i")
"""How a session's exit code is told."""

LEFT = b"\xff"
"""The byte by which a session is left alone; none of a request, which is a length below 16 MiB and ASCII, is equal."""


Do = Callable[[Connection, Mapping[str, Any]], None]
"""The work of a session: it talks over the connection, about what was requested."""

Ready = Do | tuple[Do, Callable[[], None]]
"""The outcome of getting ready: the work, or that and a step done once for later sessions, when the first has ended.

Who asks for one meanwhile waits for that. It is done while no session is held, so that none can end with it.
"""


class StandbyError(TilescoutError):
    """A process can't stand by here; the message says why."""


class NotReadyError(TilescoutError):
    """A process that is to stand by can't get ready.

    Attributes
    ----------
    instead
        What the sessions do that were asked for meanwhile: they say why.
    """

    def __init__(self, message: str, instead: Do) -> None:
        super().__init__(message)
        self.instead = instead


@dataclass(frozen=True)
class Standby:
    """A process that stands by, by what it is ready for.

    Attributes
    ----------
    entry
        A function, as module:name, that gets ready and returns a `Ready`. No data names it: it is of this package.
    arguments
        The texts that it is called with: what it gets ready for.
    packages
        The folders of the sources that it imports: where any of them has changed, another process stands by.
    """

    entry: str
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = PACKAGES


MEASURING = Standby("tilescout.search.measure.worker:ready_to_measure")
"""Measuring processes are forked from it: it has imported torch. It can be woken before what measures is imported."""


class Session:
    """A child of a process that stands by, as the one who asked for it sees it.

    Attributes
    ----------
    connection
        To talk to it. It is closed there when the child ends, however it ends.
    """

    def __init__(self, connection: Connection, control: socket.socket) -> None:
        self.connection, self._control = connection, control
        self._exitcode: int | None = None

    def kill(self) -> None:
        """Have it killed, with all that it has started."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """Let it go on alone: it reads all that it was sent, and ends when it likes."""
        with suppress(OSError):
            self._control.sendall(LEFT)
        self._control.close()
        self.connection.close()

    def wait(self) -> int:
        """Wait for its end; its exit code, or the negative number of the signal that ended it."""
        if self._exitcode is None:
            told = b""
            while len(told) < ENDED.size and (more := _received(self._control, ENDED.size - len(told))):
                told += more
            # Where the process that stood by is gone, it took the child along.
            self._exitcode = ENDED.unpack(told)[0] if len(told) == ENDED.size else -signal.SIGKILL
            self._control.close()
        return self._exitcode

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        if self._exitcode is None:
            ended = select.poll()  # `select.select` takes no file descriptor beyond 1023
            ended.register(self._control, select.POLLIN)
            if ended.poll(0):
                return self.wait()
        return self._exitcode


def can_stand_by() -> bool:
    """Whether this system has what it takes: Linux has."""
    return hasattr(os, "pidfd_open") and hasattr(select, "POLLRDHUP")


def wake(standby: Standby) -> None:
    """Have a process stand by, where there is none yet. Where there can't be one, `open_session` says why."""
    with suppress(OSError, StandbyError):
        _connected(standby).close()


def open_session(
    standby: Standby, request: Mapping[str, Any], output: int | None = None, place: Mapping[str, Any] | None = None
) -> Session:
    """Ask for a session, and start what stands by if it does not yet. Nothing is waited for.

    Parameters
    ----------
    standby
        What it is a session of.
    request
        A JSON object for it.
    output
        File descriptor that it writes what it prints to; by default nobody reads that.
    place
        The circumstances that it takes over, as `place_here` told them before; by default those of now.

    Raises
    ------
    StandbyError
        If it can't be had.
    """
    try:
        with open(os.devnull, "r+b") as nothing:
            printed = nothing.fileno() if output is None else output
            return ask(_connected(standby), request, (nothing.fileno(), printed, printed), place)
    except OSError as error:
        raise StandbyError(f"no process can stand by for {standby.entry}: {error.strerror or error}") from error


def open_ready(standby: Standby, request: Mapping[str, Any], streams: tuple[int, int, int]) -> Session | None:
    """Ask for a session of a process that is ready; None if there is none. Nothing is started, or waited for.

    Parameters
    ----------
    standby, request
        See `open_session`.
    streams
        File descriptors of its standard input, output and error.
    """
    try:
        place = place_of(standby)
        control = connection_to(place)
        if str(place) in _command(peer_of(control)[0]):
            return ask(control, request, streams)
        control.close()
    except (OSError, StandbyError):
        pass
    return None


def ask(
    control: socket.socket,
    request: Mapping[str, Any],
    streams: tuple[int, int, int],
    place: Mapping[str, Any] | None = None,
) -> Session:
    """Ask for a session over a connection to what stands by, which is closed if that fails."""
    try:
        message = {"place": dict(place or place_here()), "request": dict(request)}
        ours, theirs = socket.socketpair()
        with theirs:
            send_asked(control, [theirs.fileno(), *streams], message)
    except BaseException:
        control.close()
        raise
    return Session(Connection(ours.detach()), control)


def send_asked(control: socket.socket, given: Sequence[int], message: Mapping[str, Any]) -> None:
    """Send what is asked for, over a connection to who takes it; see `tilescout.search.build.standing.received`."""
    socket.send_fds(control, [b"s"], given)
    with Connection(os.dup(control.fileno())) as sending:
        sending.send_bytes(json.dumps(message).encode())


@dataclass(frozen=True)
class Running:
    """A process that stands by.

    Attributes
    ----------
    pid
        Its number.
    what
        What it is ready to do, and for what: ``measure``, ``compile gemm_sm90 sm_90a``.
    bytes
        Memory that it has to itself, its share of what it shares included.
    seconds
        It ends so long after its last use.
    """

    pid: int
    what: str
    bytes: int
    seconds: float = IDLE_SECONDS


def running(folder: Path | None = None) -> list[Running]:
    """The processes that stand by and are ready, of this user or, with a folder, those whose sockets are there."""
    try:
        places = sorted((folder or _folder()).glob("*.socket"))
    except (StandbyError, OSError):
        return []
    found = []
    for place in places:
        with suppress(OSError, ValueError, StopIteration), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.connect(str(place))
            pid, _ = peer_of(asked)
            is_held = place.stem.endswith(HELD)
            if is_held:  # the one that listens has a child, and the arguments of its parent
                [pid] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            command = _command(pid)
            memory = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
            kibibytes = next(int(line.split()[1]) for line in memory if line.startswith("Pss:"))
            if is_held:
                found.append(Running(pid, "measure on the GPU that it has", kibibytes << 10, HELD_SECONDS))
                continue
            entry, *arguments = command[command.index(str(place)) + 2 :]
            what = entry.rpartition(":")[2].removeprefix("ready_to_")
            found.append(Running(pid, " ".join([what, *arguments]), kibibytes << 10))
    return found


def place_here() -> dict[str, Any]:
    """The circumstances of this process, which a session takes over."""
    status = Path("/proc/self/status").read_text().splitlines()  # `os.umask` tells it by changing it, for all threads
    return {
        "environment": dict(safe_environment()),
        "folder": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "umask": next(int(line.split()[1], 8) for line in status if line.startswith("Umask:")),
        "folders": own_folders(),
        "pid": os.getpid(),
    }


def _received(control: socket.socket, size: int) -> bytes:
    try:
        return control.recv(size)
    except OSError:
        return b""


def place_of(standby: Standby) -> Path:
    """The socket of the process that stands by; raises as `_folder` does."""
    return _folder() / f"{_state(standby)}.socket"


def _connected(standby: Standby) -> socket.socket:
    """A connection to the process that stands by, started if there is none."""
    place = place_of(standby)
    try:
        return connection_to(place)
    except (FileNotFoundError, ConnectionRefusedError):
        with alone(place.parent):
            try:
                return connection_to(place)  # another process may have been faster
            except (FileNotFoundError, ConnectionRefusedError):
                _start(standby, place)
                return connection_to(place)


def connection_to(place: Path) -> socket.socket:
    """A connection to the socket in a place.

    Raises
    ------
    StandbyError
        If it is another user's.
    """
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asking.connect(str(place))
        if peer_of(asking)[1] != os.geteuid():
            raise StandbyError(f"{place} is another user's")
    except BaseException:
        asking.close()
        raise
    return asking


def _command(pid: int) -> list[str]:
    """The arguments of a process. Those of what stands by hold the place of its socket.

    The process at the other end of a socket is the one that listened last. Until what stands by is ready, that is the
    one that started it.
    """
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]


def _start(standby: Standby, place: Path) -> None:
    """Have a process stand by. Its socket takes connections at once, and it answers once it is ready."""
    leave(place)
    for other in place.parent.glob("*.socket"):
        if not answers(other):  # it was killed
            leave(other)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, open(place.with_suffix(".log"), "xb") as log:
        listener.bind(str(place))
        listener.listen(QUEUED)
        arguments = (str(listener.fileno()), str(place), json.dumps(module_places()))
        starting = Popen(
            module_command(_SERVER, *arguments, standby.entry, *standby.arguments),
            pass_fds=[listener.fileno()],
            # It outlives who starts it, so it gets no password or token that happens to be in its environment.
            env=read_by_imports(safe_environment()),
            cwd="/",
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        starting.wait()  # it forks what stands by, and ends


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only process that starts or ends what stands by in a folder."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def leave(place: Path) -> None:
    """Remove the files of a process that stood by."""
    for suffix in (".socket", ".log"):
        place.with_suffix(suffix).unlink(missing_ok=True)


def answers(place: Path) -> bool:
    """Whether somebody listens in a place."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.setblocking(False)
        return asked.connect_ex(str(place)) != errno.ECONNREFUSED


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """The process at the other end of a socket, and its user."""
    pid, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, user


def _folder() -> Path:
    """Where the sockets are: a folder that its user alone can open.

    Raises
    ------
    StandbyError
        If another user could.
    """
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    there = runtime is not None and os.path.isabs(runtime) and os.path.isdir(runtime)  # a relative one is to be ignored
    folder = Path(runtime) / "tilescout" if runtime and there else Path(f"/tmp/tilescout-{user}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise StandbyError(f"{folder} is not a folder that its user alone can open: remove it")
    return folder


def _state(standby: Standby) -> str:
    """A name for all that a session inherits: where any of it differs, another process stands by."""
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    environment = sorted(read_by_imports(safe_environment()).items())  # of a session, too, which has that already
    state: list[object] = [standby.entry, standby.arguments, sys.executable, environment, limits]
    state += [os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/cgroup").read_text()]
    state += [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(_MAY)]
    state += sorted(_sources(standby.packages))
    state += [_namespace(kind) for kind in ("mnt", "pid", "net", "user")]
    state += [(place, _changed(place)) for place in module_places()]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that imports read."""
    read = (name for name in environment if name in _READ or name.startswith(_READ_ALL))
    return {name: environment[name] for name in read if name not in _PER_SESSION}


def _namespace(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{kind}")


def _sources(packages: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """The files of some packages of this one, each with its size and when it was changed."""
    top = Path(__file__).parents[2]
    for package in packages:
        for folder, _, names in os.walk(top / package):
            for name in names:
                if name.endswith(".py"):
                    found = os.stat(os.path.join(folder, name))
                    yield os.path.join(folder, name), found.st_size, found.st_mtime_ns


def _changed(place: str) -> object:
    """When something was installed there, or removed; 0 if there is no such folder.

    Where nothing is installed, it is what modules are there. Such a place is the working directory where `PYTHONPATH`
    ends in a colon: a command that writes its results there must find again what stands by.
    """
    try:
        with os.scandir(place) as entries:
            found = list(entries)
        if any(entry.name.endswith(_INSTALLED) for entry in found):
            return os.stat(place).st_mtime_ns
        return sorted(
            (entry.name, 0 if entry.is_dir() else entry.stat().st_mtime_ns)
            for entry in found
            if (entry.name.isidentifier() if entry.is_dir() else entry.name.endswith(_IMPORTED))
        )
    except OSError:
        return 0

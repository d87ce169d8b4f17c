"""Bundles: a directory with decisions, the kernels that they name, and checksums, which is handed to users.

``bundle.json`` holds everything but the kernels, and its own SHA-256 over the rest of it; ``kernels/`` holds the shared
objects and the descriptions of the library's algorithms, each with its SHA-256 in ``bundle.json``. Loading one is
running its code, so that a bundle is checked as a whole before anything of it is used, and refused as a whole.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tilescout.search.build.artifacts import read_shared_object
from tilescout.search.export.decisions import Choice, Decision
from tilescout.search.export.grouped.dispatch import GroupedDispatch, grouped_family
from tilescout.search.export.ranges import Dispatch, Range, family, ranges_of
from tilescout.spaces.checking import check_types
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.errors import MALFORMED, ArtifactError, BundleError, StoreError, TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inputs import parse_json
from tilescout.spaces.outputs import scratch_beside
from tilescout.spaces.templates import NONE_NAMED, Named, find_template
from tilescout.spaces.trust import check_folder, read_record
from tilescout.spaces.workloads import BUILT_IN

KIND = "tilescout bundle"
FORMAT = 9
# Those of format 1 don't have the library's time, those of 1 and 2 no ranges of m, those of 1 to 3 no algorithms, those
# of 1 to 4 no grouped products, those of 1 to 5 no kernels that need memory of their own, those of 1 to 6 no grouped
# products with SwiGLU, those of 1 to 7 none with scaled rows, and only those of 9 some whose sums are fast.
_READ = range(1, FORMAT + 1)
INDEX = "bundle.json"
KERNELS = "kernels"
_LARGEST_INDEX = 1 << 26  # bytes; a decision and its kernel have 2 kB
_MOST_MEMORY = 1 << 36  # bytes for a launch

_FILE = re.compile(rf"{KERNELS}/[0-9a-f]{{64}}\.(so|json)")


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel of a bundle, or an algorithm of the library.

    Attributes
    ----------
    file
        Its shared object or its description, relative to the bundle.
    sha256
        Checksum of that.
    function
        Name of the entry point.
    workload
        What it computes, and how it is called.
    blocks_per_cluster
        Blocks that are launched together.
    key
        What it was built from: template, hash of its source, configuration, types, target, compiler.
    library
        The version of the library whose algorithm it is, which holds for no other; empty if it is a kernel.
    scratch_bytes
        Bytes of device memory that a launch needs for itself, at most, on the problems that it was chosen for and on
        those of fewer rows.
    """

    file: str
    sha256: str
    function: str
    workload: str
    blocks_per_cluster: int
    key: Mapping[str, Any]
    library: str = ""
    scratch_bytes: int = 0


def hold(kernels: dict[str, tuple[Kernel, Path]], digest: str, kernel: Kernel, path: Path) -> None:
    """Put a kernel among those of a bundle; one that is there already may need more memory from now on."""
    known = kernels[digest][0].scratch_bytes if digest in kernels else 0
    kernels[digest] = replace(kernel, scratch_bytes=max(known, kernel.scratch_bytes)), path


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and found whole.

    Attributes
    ----------
    path
        The directory.
    arch
        The compiler's target of all kernels.
    device
        The device that the decisions were measured on, by its short name.
    versions
        Versions of what made it.
    decisions, kernels
        What it holds; kernels by digest.
    digest
        SHA-256 over all of that: it names the bundle.
    dispatches
        Products whose kernel is chosen by ranges of m.
    grouped
        Grouped products, whose kernel is chosen by ranges of tokens.
    """

    path: Path
    arch: str
    device: str
    versions: Mapping[str, str]
    decisions: Sequence[Decision]
    kernels: Mapping[str, Kernel]
    digest: str
    dispatches: Sequence[Dispatch] = ()
    grouped: Sequence[GroupedDispatch] = ()

    @cached_property
    def by_problem(self) -> Mapping[GemmProblem, Decision]:
        """The decision of each problem."""
        return {decision.problem: decision for decision in self.decisions}

    @cached_property
    def ranges(self) -> Mapping[str, Sequence[Range]]:
        """The ranges of m of each product, by its family."""
        decisions: dict[str, list[Decision]] = {}
        for decision in self.decisions:
            decisions.setdefault(family(decision.problem), []).append(decision)
        dispatches = {family(dispatch.problem): dispatch for dispatch in self.dispatches}
        names = dict.fromkeys([*decisions, *dispatches])
        return {name: ranges_of(decisions.get(name, ()), dispatches.get(name)) for name in names}

    @cached_property
    def problems(self) -> Mapping[str, GemmProblem]:
        """A problem of each family; its m stands for any."""
        held = [*(decision.problem for decision in self.decisions), *(each.problem for each in self.dispatches)]
        return {family(problem): problem for problem in held}

    def choice(self, problem: GemmProblem) -> Choice | None:
        """Whose kernel was decided for exactly this problem, or for a range of m that it is in; None if neither."""
        decision = self.by_problem.get(problem)
        if decision is not None:
            return decision.choice
        found = next((each.find(problem.m) for each in self.dispatches if each.serves(problem)), None)
        return found.choice if found is not None else None

    @property
    def used(self) -> Sequence[str]:
        """The kernels that decisions and ranges name, by digest."""
        held = [*(each.ranges for each in self.dispatches), *(each.ranges for each in self.grouped)]
        of_ranges = [each.kernel for ranges in held for each in ranges if each.kernel]
        return list(dict.fromkeys([*(decision.kernel for decision in self.chosen), *of_ranges]))

    @property
    def ours(self) -> Sequence[Decision]:
        """The decisions for our kernels."""
        return [decision for decision in self.decisions if decision.choice is Choice.OURS]

    @property
    def chosen(self) -> Sequence[Decision]:
        """The decisions for a kernel that is named: ours, or an algorithm of the library."""
        return [decision for decision in self.decisions if decision.choice is not Choice.LIBRARY]


def write_bundle(
    path: Path,
    arch: str,
    device: str,
    versions: Mapping[str, str],
    decisions: Sequence[Decision],
    kernels: Mapping[str, tuple[Kernel, Path]],
    *,
    named: Named = NONE_NAMED,
    dispatches: Sequence[Dispatch] = (),
    grouped: Sequence[GroupedDispatch] = (),
) -> Bundle:
    """Write a bundle and read it back; it appears by a rename, complete.

    Parameters
    ----------
    path
        The directory to be; it must not exist, or be empty.
    arch, device, versions, decisions
        As in `Bundle`.
    kernels
        By digest: what is recorded of a kernel, and where its shared object lies now.
    named
        See `read_bundle`.
    dispatches, grouped
        As in `Bundle`.

    Raises
    ------
    StoreError
        If it can't be written, or `path` is taken.
    ArtifactError
        If a shared object is not what its record says.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError(f"{path} is there already: choose another `out`, or delete it")
    content = {
        "kind": KIND,
        "format": FORMAT,
        "arch": arch,
        "device": device,
        "versions": dict(versions),
        "decisions": [decision.to_dict() for decision in decisions],
        "dispatches": [dispatch.to_dict() for dispatch in dispatches],
        "grouped": [dispatch.to_dict() for dispatch in grouped],
        "kernels": {digest: asdict(kernel) for digest, (kernel, _) in kernels.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = scratch_beside(path)
        scratch.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}") from error
    try:
        (scratch / KERNELS).mkdir(mode=0o755)
        for kernel, source in kernels.values():
            (scratch / kernel.file).write_bytes(read_shared_object(source, kernel.sha256))
        text = json.dumps({**content, "digest": digest_of(content)}, indent=1, sort_keys=True)
        (scratch / INDEX).write_text(text + "\n")
        (scratch / INDEX).chmod(0o644)  # whatever the umask: it is refused if others may write it
        scratch.chmod(0o755)
        scratch.rename(path)
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return read_bundle(path, named)


def read_bundle(path: Path, named: Named = NONE_NAMED) -> Bundle:
    """Read a bundle, once all of it is found to be as it was written.

    Parameters
    ----------
    path
        The directory.
    named
        Templates whose kernels it may hold, beside those that tilescout and installed packages bring. Their workloads
        are code: no other is run, whatever the bundle says.

    Raises
    ------
    BundleError
        If there is none, or it is damaged, of another kind, of a newer format, reaches outside its directory, holds
        kernels of a workload that is neither tilescout's nor that of a known template, or if another user owns it or
        others may write it.
    """
    try:
        check_folder(path, BundleError)
        record = parse_json(read_record(_regular(path, INDEX), _LARGEST_INDEX, BundleError))
    except OSError as error:
        raise BundleError(f"{path} is no bundle: {INDEX} can't be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"bundle {path} is damaged: {INDEX} is no JSON ({one_line(error, 80)})") from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise BundleError(f"{path} is no bundle: {INDEX} does not say that it is a {KIND}")
    if record.get("format") not in _READ:
        raise BundleError(
            f"bundle {path} has format {one_line(str(record.get('format')), 20)}, this tilescout reads "
            f"{', '.join(map(str, _READ))}: "
            "install the version that wrote it, or export it again"
        )
    digest = record.pop("digest", None)
    if digest != digest_of(record):
        raise BundleError(f"bundle {path} is damaged: {INDEX} is not what was written; export it again")
    try:
        bundle = _parse(path, record, digest)
    except (*MALFORMED, TilescoutError) as error:
        raise BundleError(
            f"bundle {path} is damaged: {INDEX} lacks or misstates something ({one_line(error, 120)})"
        ) from error
    for kernel in bundle.kernels.values():
        if not _FILE.fullmatch(kernel.file):
            raise BundleError(f"bundle {path} is foreign: {one_line(kernel.file, 80)!r} is no file of a bundle")
        try:
            read_shared_object(_regular(path, kernel.file), kernel.sha256)
        except ArtifactError as error:
            raise BundleError(f"bundle {path} is damaged: {error}") from error
        if kernel.library and not loader_of(kernel, named):
            raise BundleError(f"bundle {path} is damaged: {kernel.file} is an algorithm of no library that is known")
        if not _is_known(kernel, named):
            raise BundleError(
                f"bundle {path} holds a kernel of {one_line(repr(kernel.workload), 80)}, which is code of neither "
                "tilescout nor an installed package that registers its space: name the space of the kernel to load it"
            )
    missing = [kernel for kernel in bundle.used if kernel not in bundle.kernels]
    if missing:
        raise BundleError(f"bundle {path} is damaged: it lacks the kernel {one_line(missing[0], 80)}")
    return bundle


def _parse(path: Path, record: Mapping[str, Any], digest: str) -> Bundle:
    decisions = tuple(Decision.from_dict(decision) for decision in record["decisions"])
    for problem, count in Counter(decision.problem for decision in decisions).items():
        if count > 1:
            raise ValueError(f"it decides {count} times for {problem}")
    for decision in decisions:
        decision.evidence.check(decision.problem, record["device"])
        check_types(decision)
    dispatches = tuple(Dispatch.from_dict(dispatch) for dispatch in record.get("dispatches", ()))
    grouped = tuple(GroupedDispatch.from_dict(dispatch) for dispatch in record.get("grouped", ()))
    for ranged in (*dispatches, *grouped):
        check_types(ranged)
    products = [*(family(each.problem) for each in dispatches), *(grouped_family(each.problem) for each in grouped)]
    for name, count in Counter(products).items():
        if count > 1:
            raise ValueError(f"it has {count} lists of ranges of {name}")
    return Bundle(
        path=path.resolve(),
        arch=str(record["arch"]),
        device=str(record["device"]),
        versions={str(name): str(version) for name, version in record["versions"].items()},
        decisions=decisions,
        kernels={name: _kernel(kernel) for name, kernel in record["kernels"].items()},
        digest=digest,
        dispatches=dispatches,
        grouped=grouped,
    )


def _kernel(record: Mapping[str, Any]) -> Kernel:
    kernel = Kernel(**record)
    texts = (kernel.file, kernel.sha256, kernel.function, kernel.workload, kernel.library)
    numbers = (kernel.blocks_per_cluster, kernel.scratch_bytes)
    if not all(isinstance(text, str) for text in texts) or any(type(number) is not int for number in numbers):
        raise TypeError(f"a kernel is {record}")
    if not 0 <= kernel.scratch_bytes <= _MOST_MEMORY:
        raise ValueError(f"a kernel needs {kernel.scratch_bytes} bytes of memory")
    return kernel


def loader_of(kernel: Kernel, named: Named = NONE_NAMED) -> str:
    """The loader of an algorithm, as its template names it; empty if there is none."""
    try:
        return find_template(kernel.key["space"], named).loader
    except (*MALFORMED, TilescoutError):
        return ""


def _is_known(kernel: Kernel, named: Named) -> bool:
    """Whether a kernel's workload is one of ours, or that of the template that the bundle says it was built from."""
    if kernel.workload in BUILT_IN:
        return True
    try:
        return find_template(kernel.key["space"], named).workload == kernel.workload
    except (*MALFORMED, TilescoutError):
        return False


def _regular(path: Path, name: str) -> Path:
    """A file of the bundle, if no link leads there: what is checked must be what is loaded."""
    file = path / name
    steps = [path / part for part in list(Path(name).parents)[:-1]] + [file]
    for step in steps:
        if step.is_symlink():
            raise BundleError(f"bundle {path} is foreign: {step.relative_to(path)} is a symbolic link")
    return file

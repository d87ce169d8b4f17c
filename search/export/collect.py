"""From studies to a bundle: what each decided, and the kernels that were decided for."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, write_bundle
from tilescout.search.export.decisions import Decision, Outcome, best_of, judge
from tilescout.search.studies.places import result_of, study_store
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, ExportError, StoreError, one_line
from tilescout.spaces.templates import KernelTemplate, find_template

COMPILER = "nvidia-cutlass-dsl"
_RESULT = ".json"


def read_outcomes(names: Sequence[str], studies: Path | str) -> list[Outcome]:
    """What studies decided, one outcome a problem.

    Parameters
    ----------
    names
        Names of studies in `studies`, or files: journals, or results that ``tune --json`` wrote. Without any, every
        study there that ended.
    studies
        The folder of the studies' journals, or the URL of a database.

    Raises
    ------
    ExportError
        If there is nothing, or a study did not end.
    StoreError
        If a study or file can't be read.
    """
    if names:
        records = {name: _read(name, studies) for name in names}
        open_ended = [name for name, record in records.items() if record is None]
        if open_ended:
            raise ExportError(f"study {open_ended[0]} did not end: finish it with tune --resume")
    else:
        records = study_store(studies).results()
    found = [_judge(name, record) for name, record in records.items() if record is not None]
    if not found:
        raise ExportError(
            f"no study in {study_store(studies).name} ended: run tilescout tune first, or name one with --study"
        )
    return best_of(found)


def _read(name: str, studies: Path | str) -> dict[str, Any] | None:
    if not name.endswith(_RESULT):
        return result_of(name, studies)
    try:
        record = json.loads(Path(name).read_bytes())
    except OSError as error:
        raise StoreError(f"can't read {name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name} is no result of a search: it is no JSON ({one_line(error, 80)})") from error
    return record if isinstance(record, dict) else {}


def _judge(name: str, record: Mapping[str, Any]) -> Outcome:
    try:
        return judge(record)
    except MALFORMED as error:
        raise StoreError(
            f"{name} is no result that can be exported ({type(error).__name__}: {one_line(error, 80)}): it was written "
            "by an older tilescout, or is something else"
        ) from error


def make_bundle(outcomes: Sequence[Outcome], store: ArtifactStore, out: Path) -> Bundle:
    """Write a bundle of what was decided; a kernel that the store lacks is compiled again.

    Raises
    ------
    ExportError
        If the outcomes are of several devices, or a kernel can't be had as it was measured.
    StoreError, ArtifactError
        If the bundle can't be written, or an artifact is damaged.
    """
    devices = sorted({outcome.device for outcome in outcomes})
    if len(devices) != 1:
        raise ExportError(
            f"the studies are of several devices ({', '.join(devices)}) and a bundle is for one: "
            "name its studies with --study"
        )
    device = devices[0]
    arch = find_device(device).arch
    decisions, kernels = [], {}
    for outcome in outcomes:
        digest = ""
        if outcome.configuration is not None:
            digest, kernel, library = _kernel(outcome, arch, store)
            kernels[digest] = (kernel, library)
        decisions.append(Decision(outcome.problem, outcome.choice, outcome.evidence, digest))
    return write_bundle(out, arch, device, _versions(), decisions, kernels)


def _kernel(outcome: Outcome, arch: str, store: ArtifactStore) -> tuple[str, Kernel, Path]:
    template = find_template(outcome.space)
    if template.source_hash != outcome.space_hash:
        raise ExportError(
            f"study {outcome.evidence.study} measured kernels of another version of {template.name}: they can't be "
            "built any more; search again, or export with the tilescout that searched"
        )
    assert outcome.configuration is not None
    if template.scratch_bytes(outcome.configuration, outcome.problem):
        raise ExportError(
            f"study {outcome.evidence.study} chose a kernel of {template.name} that needs memory beside its operands, "
            "which a bundle can't give it: export the other studies by name, with --study"
        )
    compiler = outcome.evidence.versions.get(COMPILER, "")
    key = ArtifactKey(
        template.name, template.source_hash, outcome.configuration, outcome.problem.signature, arch, compiler
    )
    artifact = store.find(key)
    if artifact is None:
        artifact = _compile(template, key, store, outcome)
    if not artifact.ok:
        raise ExportError(f"the kernel of {outcome.problem} does not compile any more: {artifact.error}")
    kernel = Kernel(
        file=f"{KERNELS}/{key.digest}.so",
        sha256=artifact.sha256,
        function=artifact.function,
        workload=template.workload,
        blocks_per_cluster=template.blocks_per_cluster(outcome.configuration),
        key=key.to_dict(),
    )
    return key.digest, kernel, artifact.path


def _compile(template: KernelTemplate, key: ArtifactKey, store: ArtifactStore, outcome: Outcome) -> Artifact:
    if key.compiler != version(COMPILER):
        raise ExportError(
            f"the kernel of {outcome.problem} is not in the store {store.root}, and the compiler that made it "
            f"({COMPILER} {key.compiler or 'unknown'}) is not the one installed ({version(COMPILER)})"
        )
    with CompilePool(template, key.signature, key.arch, store, CompileOptions(processes=1)) as pool:
        made = pool.submit(key.configuration).result()
    if not isinstance(made, Artifact):
        raise ExportError(f"the kernel of {outcome.problem} does not compile any more: {made.error}")
    return made


def _versions() -> dict[str, str]:
    found = {}
    for package in ("tilescout", COMPILER, "apache-tvm-ffi"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout
            found[package] = "not installed"
    return found

"""The steps that engines have in common: jobs of measuring processes, batches of jobs, and names of GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilescout.search.build.artifacts import Artifact
from tilescout.search.engines.engine import Task
from tilescout.search.measure.clocks import UNREAD
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import Objective, ProtocolOptions, protocol_of
from tilescout.search.measure.provenance import Provenance
from tilescout.search.measure.worker import Job
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import DeviceError
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.workloads import load_workload


def make_job(
    template: KernelTemplate,
    configuration: Configuration,
    artifact: Artifact,
    problem: Problem,
    library_us: float,
    options: ProtocolOptions,
) -> Job:
    """The job, for a measuring process, of measuring a compiled configuration on a problem in full."""
    return Job(
        shared_object=str(artifact.path),
        sha256=artifact.sha256,
        function=artifact.function,
        workload=template.workload,
        problem=str(problem),
        blocks_per_cluster=template.blocks_per_cluster(configuration),
        library_us=library_us,
        options=options,
        scratch_bytes=verified_scratch(template, configuration, problem),
        loader=template.loader,
    )


def verified_scratch(template: KernelTemplate, configuration: Mapping[str, Value], problem: Problem) -> int:
    """The most bytes that a kernel needs for itself, of a problem and of those that it is verified on with it."""
    verified = (problem, *load_workload(template.workload).edge_problems(problem))
    return max(template.scratch_bytes(configuration, each) for each in verified)


def job_of(template: KernelTemplate, task: Task, options: ProtocolOptions) -> Job:
    """The job, for a measuring process, of measuring a task."""
    job = make_job(task.template or template, task.configuration, task.artifact, task.problem, task.library_us, options)
    known = task.incumbent is not None and np.isfinite(task.incumbent)
    return replace(job, incumbent=task.incumbent) if known else job


def complete(measured: Measurement, artifact: Artifact) -> Measurement:
    """A measurement with the resources of the kernel and the seconds of compiling added."""
    return replace(measured, resources=artifact.resources, compile_seconds=artifact.compile_seconds)


def measure_batch(process: MeasuringProcess, jobs: Sequence[Job], prunable: Sequence[bool]) -> list[Measurement]:
    """Measure jobs of one problem one after the other.

    `prunable` says of each whether a faster job before it may lower its incumbent.
    """
    measured, best = [], np.inf
    for job, may_prune in zip(jobs, prunable, strict=True):
        if may_prune and best < (job.incumbent or np.inf):
            job = replace(job, incumbent=best)
        outcome = process.measure(job)
        if outcome.timing is not None:
            best = min(best, outcome.timing.ratio)
        measured.append(outcome)
    return measured


def device_of(product: str, given: Device | None = None) -> Device:
    """The device of this product name, unless another is given."""
    return given or find_device(product)


def describe_gpus(names: Sequence[str]) -> str:
    """The name that all GPUs have.

    Raises
    ------
    DeviceError
        If they are not alike, or there is none.
    """
    kinds = sorted(set(names))
    if len(kinds) != 1:
        found = ", ".join(f"{names.count(kind)} {kind}" for kind in kinds) or "none"
        raise DeviceError(f"a search or campaign needs GPUs of one kind, found {found}")
    return kinds[0]


def in_words(objective: Objective) -> str:
    """The end of a line that says where measurements come from, by an objective."""
    return ", in sandwiches" if objective is Objective.SANDWICH else ", in chains"


def provenance_of(
    product: str, gpus: int, versions: Mapping[str, str], objective: Objective, where: str = ""
) -> Provenance:
    """Where measurements come from that are made now: the GPUs of a product, `where` they are, and what they lack.

    Without NVML nobody knows whether the clock is throttled: the estimator then misses a clock that moves from one
    measurement to the next and does not show within them.
    """
    nvml = versions.get("nvml", "")
    lacks = f"; the GPU's clocks are not known, NVML is {nvml}" if nvml.startswith(UNREAD) else ""
    description = f"measured on {f'{gpus} ' if gpus > 1 else ''}{product}{where}{in_words(objective)}{lacks}"
    protocol, _ = protocol_of(objective)
    return Provenance("live", description, {**versions, "protocol": protocol}, objective=objective)

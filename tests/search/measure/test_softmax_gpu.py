"""Checks that need a Hopper GPU: the softmax's kernels are right."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import find_template

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TEMPLATE = find_template("softmax_sm90")
H200 = find_device("h200")  # the rules are those of every Hopper GPU
UNBEATEN = 0.01  # a ratio that no kernel reaches: with it as the incumbent a right one is verified, and not timed


@pytest.mark.parametrize("text", ["1x1:bf16", "389x24:bf16", "77x1001:bf16", "19x65540:fp32", "33x8190:fp16"])
def test_the_softmax_is_right_on_odd_sizes(text: str, tmp_path: Path) -> None:
    problem = TEMPLATE.parse(text)
    space = TEMPLATE.space(problem, H200)
    drawn = [space[int(index)] for index in space.sample(4, np.random.default_rng(7))]
    options = ProtocolOptions(heating_us=1000.0)

    failures = []
    with (
        CompilePool(TEMPLATE, problem.signature, H200.arch, ArtifactStore(tmp_path), CompileOptions()) as pool,
        MeasuringProcess("cuda", timeout=60) as process,
    ):
        compiled = [(each, pool.submit(each)) for each in [TEMPLATE.default(problem, H200), *drawn]]
        library_us = process.prepare(TEMPLATE.workload, str(problem), options)
        for configuration, future in compiled:
            built = future.result()
            assert isinstance(built, Artifact), built.error
            job = make_job(TEMPLATE, configuration, built, problem, library_us, options)
            measured = process.measure(replace(job, incumbent=UNBEATEN))
            if measured.failed:
                failures.append(f"{configuration}: {measured.status}: {measured.error}")

    assert not failures, "\n".join(failures)

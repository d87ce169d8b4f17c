"""``tilescout measure``: compile and measure given configurations on the GPU."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.commands.options import (
    chosen,
    examples,
    json_option,
    objective_option,
    problem_option,
    seed_option,
    set_option,
    space_argument,
    standby_option,
    store_option,
)
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.experiments.commands.printing import not_known, print_measurements
from tilescout.experiments.progress import counted
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.engines.library_candidates import known_or_why
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.protocol import DEFAULT_OBJECTIVE, Objective, ProtocolOptions
from tilescout.search.measure.race import Estimate
from tilescout.search.studies.folders import artifacts
from tilescout.search.studies.records import described_library_best
from tilescout.spaces.errors import DeviceError
from tilescout.spaces.templates import load_template
from tilescout.spaces.workloads import load_workload


@click.command(
    epilog=examples(
        "tilescout measure gemm_sm90 --problem 4096x4096x4096:bf16",
        "tilescout measure gemm_sm90 --problem 4096x4096x4096:bf16 --set stages=3 --sample 10 --json measured.json",
    )
)
@space_argument
@problem_option
@set_option
@click.option("--sample", type=click.IntRange(min=0), default=0, help="Random configurations besides the default.")
@seed_option
@click.option("--device", default="cuda", show_default=True, metavar="cuda[:N]", help="The GPU.")
@objective_option
@standby_option
@store_option
@json_option
def measure(
    space: str,
    problem: str,
    settings: tuple[str, ...],
    sample: int,
    seed: int,
    device: str,
    objective: Objective | None,
    standby: bool,
    store: Path,
    json_path: Path | None,
) -> int:
    """Verify and time the default configuration of SPACE, a changed one, or a sample, on the GPU.

    The library's own candidates are timed beside, where it has a list of them.

    The exit code is 1 if all of them failed.
    """
    check_result(json_path)
    if not visible_gpus():
        raise DeviceError("no NVIDIA GPU here: `measure` needs one, `tilescout tune --device replay` does not")
    if not device.startswith("cuda"):
        raise DeviceError(f"`measure` can't use the device {device!r}: allowed are cuda and cuda:N")
    template = load_template(space)
    parsed = template.parse(problem)
    template.check(parsed)
    live = LiveOptions(CompileOptions(standby=standby), ProtocolOptions(objective=objective or DEFAULT_OBJECTIVE))
    with (
        LocalEngine(template, artifacts(store), [device], options=live) as engine,
        Evaluator(engine, parsed) as evaluator,
    ):
        configurations = chosen(template, evaluator.space, settings, sample, seed)
        pending = [evaluator.space.index(configuration) for configuration in configurations]
        tried = list(dict.fromkeys([*pending, *evaluator.own_candidates]))
        measured = dict(counted(evaluate(evaluator, tried), "measure", len(tried)))
        best, unknown = known_or_why(lambda: evaluator.best_of_own(measured) or evaluator.library_best())
        rows = [(evaluator.space[index], measured[index]) for index in pending]
        title = f"{space} {parsed}: {evaluator.provenance.description}"
        library = load_workload(template.workload).library(parsed)
        library_us, console = evaluator.library_us(), console_beside(json_path)
        print_measurements(parsed, library, library_us, rows, title, console, best)
        if unknown:
            console.say(not_known(unknown))
        if json_path is not None:
            records = [{"configuration": dict(c), "measurement": m.to_dict(), **_speeds(m, best)} for c, m in rows]
            result = {
                "problem": str(parsed),
                "objective": str(engine.objective),
                "library_us": library_us,
                "library_best": described_library_best(best, unknown, parsed, library_us),
                "measurements": records,
            }
            write_result(json_path, result)
    return int(all(measurement.failed for _, measurement in rows))


def _speeds(measurement: Measurement, best: LibraryBest | None) -> dict[str, Any]:
    """The speeds of a kernel over the library and over its best candidate, as far as they are known."""
    if (timing := measurement.timing) is None:
        return {}
    over = {} if best is None else {"speedup_over_library_best": asdict(best.speed_of(Estimate.of(timing)))}
    return {"speedup_over_library": 1 / timing.ratio, **over}

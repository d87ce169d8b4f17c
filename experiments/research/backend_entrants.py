"""The kernels that take part in the study ``backends``: found by searches and by trying what other projects list."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.experiments.research.backend_rows import COSTS, CUBLASLT, DEFAULT, EXPORTED, OF_LIST, OURS
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.screening import Screen, screened
from tilescout.experiments.research.studies.nvgemm_ranking import predicted
from tilescout.experiments.research.studies.peer_kernels import listed
from tilescout.search.api import chosen_sampler
from tilescout.search.build.artifacts import Artifact
from tilescout.search.engines.engine import Engine, Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.export.decisions import Outcome, best_of, judge
from tilescout.search.measure.machine import Machine
from tilescout.search.studies.answers import by_problem
from tilescout.search.studies.answers import fastest as fastest_of
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.records import StudyResult
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import tune_suite
from tilescout.spaces.cublaslt.algorithms import KNOBS
from tilescout.spaces.cublaslt.loader import CublasLt
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import load_workload

TIMED, KEPT = 10, 4  # of the operators: by TorchInductor, and by our ranker
SCREENED = 12  # that are timed in pairs, of those that were screened
SEARCHED = {"gemm_sm90": OURS, "cublaslt": CUBLASLT}
"""The spaces that are searched, with the rows of their answers."""


@dataclass(frozen=True)
class Entrant:
    """A kernel of a space that takes part in the race, and what finding it took.

    Attributes
    ----------
    space, configuration
        What it is.
    seconds, compiling, benchmarking
        From asking to knowing; of one core that compiled; of the GPU.
    trials
        Of the search that found it; 0 if none did.
    """

    space: str
    configuration: Configuration
    seconds: float
    compiling: float
    benchmarking: float
    trials: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return asdict(self) | {"configuration": dict(self.configuration)}


@dataclass(frozen=True)
class Answers:
    """The findings of a search of a problem.

    Attributes
    ----------
    entrants
        The answer; of our kernels also the default and the best of the library's list.
    outcomes
        What may be exported.
    """

    entrants: Mapping[str, Entrant]
    outcomes: Sequence[Outcome]

    @classmethod
    def of(cls, results: Sequence[StudyResult], seconds: float) -> "Answers":
        """The answers of the studies of a problem, which took so many seconds.

        Raises
        ------
        TilescoutError
            If nothing works.
        """

        def entrant(result: StudyResult, seconds: float) -> Entrant:
            if result.best is None:
                raise TilescoutError("nothing works")
            cost = seconds, result.compile_seconds, result.gpu_seconds
            return Entrant(result.info.space, result.best.configuration, *cost, len(result.trials))

        first, outcomes = results[0], [judge(result.evidence()) for result in results]
        if SEARCHED.get(first.info.space) == CUBLASLT:
            return cls({CUBLASLT: entrant(first, seconds)}, outcomes)
        found = {DEFAULT: Entrant(first.info.space, first.info.default, 0.0, 0.0, 0.0)}
        if (best := first.library_best) is not None:
            found[OF_LIST] = Entrant(best.space, best.configuration, best.gpu_seconds, 0.0, best.gpu_seconds)
        if len(results) > 1:
            found |= {f"ours, of {result.info.space}": entrant(result, result.seconds) for result in results}
        compiling = sum(result.compile_seconds for result in results)
        benchmarking = sum(result.gpu_seconds for result in results)
        answer = replace(entrant(fastest_of(results), seconds), compiling=compiling, benchmarking=benchmarking)
        return cls(found | {OURS: answer}, outcomes)


Searches = Mapping[str, Mapping[str, Answers | str]]
"""The findings of searches by their spaces and problems, or why they found nothing."""


def searched(engine: Engine, problems: Sequence[GemmProblem], trials: int, store: Path) -> dict[str, Answers | str]:
    """Search each problem, and tell where that finds nothing; several are one suite, and share its seconds."""
    started = time.monotonic()
    sampler = chosen_sampler(engine.template, engine.device, {})
    options = TuneOptions(sampler, 0, Budget(trials * len(problems)), studies(store))
    try:
        results = by_problem(tune_suite(engine, problems, options, slice=trials))
    except TilescoutError as error:
        return {str(problem): one_line(error) for problem in problems}
    seconds = (time.monotonic() - started) / len(problems)
    found: dict[str, Answers | str] = {}
    for of_one in results:
        try:
            found[str(of_one[0].info.problem)] = Answers.of(of_one, seconds)
        except TilescoutError as error:
            found[str(of_one[0].info.problem)] = one_line(error)
    return found


def fastest(engine: Engine, problem: GemmProblem, configurations: Sequence[Configuration]) -> Entrant:
    """The fastest of configurations by its own pairs."""
    started = time.monotonic()
    built = [(each, engine.compile(each, problem.signature)) for each in configurations]
    made = [(each, found) for each, future in built if isinstance(found := future.result(), Artifact)]
    library_us = engine.prepare(0, problem).result()
    tasks = [Task(each, artifact, problem, library_us, math.inf) for each, artifact in made]
    outcomes = engine.measure(0, tasks).result()
    timed = {at: each.timing.ratio for at, each in enumerate(outcomes) if each.timing is not None}
    if not timed:
        raise TilescoutError(
            f"none of {len(configurations)} works: {next((each.error for each in outcomes), 'none compiles')}"
        )
    compiling = sum(artifact.compile_seconds for _, artifact in made)
    benchmarking = sum(each.gpu_seconds for each in outcomes)
    best = made[min(timed, key=lambda at: timed[at])][0]
    return Entrant(engine.template.name, best, time.monotonic() - started, compiling, benchmarking)


def choices(template: KernelTemplate, engine: Engine, problem: GemmProblem) -> dict[str, list[Configuration]]:
    """The kernels of another project among which is chosen, by who chooses."""
    space = engine.space(problem)
    every = [space[index] for index in listed(template, space)]
    if template.name == "quack_sm90":
        return {"Quack, tuned": every}
    ranked = [every[at] for at in np.argsort(predicted(problem), kind="stable")[:KEPT]]
    return {
        f"operators, first {TIMED}": every[:TIMED], f"operators, ranked {KEPT}": ranked, "operators, all": every,
    }  # fmt: skip


def begin_compiling(engines: Mapping[str, Engine | str], problems: Sequence[GemmProblem]) -> None:
    """Have what other projects list for problems of these signatures compiled while something else is done."""
    for engine in engines.values():
        if isinstance(engine, str) or engine.template.name in SEARCHED:
            continue
        for problem in {each.signature: each for each in problems}.values():  # their lists are alike
            with suppress(TilescoutError):  # what none of them computes is said when it is its turn
                for configurations in choices(engine.template, engine, problem).values():
                    for each in configurations:
                        engine.expect(each, problem.signature)


def found_by_engines(
    engines: Mapping[str, Engine | str], problem: GemmProblem, trials: int, store: Path, searches: Searches
) -> dict[str, Entrant | str]:
    """The kernels that each finds among those of spaces, or why it finds none; `searches` are over already."""
    found: dict[str, Entrant | str] = {}
    outcomes: list[Outcome] = []
    for space, engine in engines.items():
        if isinstance(engine, str):
            found[SEARCHED.get(space, space)] = engine
        elif space in SEARCHED:
            answers = (searches.get(space) or searched(engine, [problem], trials, store))[str(problem)]
            if isinstance(answers, str):
                found[SEARCHED[space]] = answers
                continue
            found |= answers.entrants
            outcomes += answers.outcomes
        else:
            try:
                listed_by = choices(engine.template, engine, problem)
                found |= {who: fastest(engine, problem, some) for who, some in listed_by.items()}
            except TilescoutError as error:
                found[space] = one_line(error)
    if outcomes:
        (chosen,) = best_of(outcomes)
        cost = [each for who in SEARCHED.values() if isinstance(each := found.get(who), Entrant)]
        if chosen.configuration is not None:
            found[EXPORTED] = Entrant(chosen.space, chosen.configuration, **_sums(cost))
    return found


def _sums(entrants: Sequence[Entrant]) -> dict[str, Any]:
    return {name: sum(getattr(each, name) for each in entrants) for name in (*COSTS, "trials")}


def engines_of(spaces: Sequence[str], store: Path, device: str, stack: ExitStack) -> dict[str, Engine | str]:
    """The engine of each space, or why there is none; they are closed with the stack."""
    found: dict[str, Engine | str] = {}
    for space in spaces:
        try:
            found[space] = stack.enter_context(
                LocalEngine(find_template(space), artifacts(store), [device], options=LIVE_CHAINS)
            )
        except (TilescoutError, ImportError) as error:
            found[space] = one_line(error)
    return found


def best_of_all(machine: Machine, engine: Engine, problem: GemmProblem, seconds: float, seed: int) -> Entrant:
    """The fastest of all of cuBLASLt's algorithms: screened for so long, the first of these timed in pairs."""
    started, template = time.monotonic(), engine.template
    loader, space = load_loader(template.loader), engine.space(problem)
    assert isinstance(loader, CublasLt)
    rows = np.stack([space.columns[name] for name in KNOBS], axis=1).astype(np.int32)
    found = screened(
        Screen(machine, load_workload(template.workload), loader, problem, seed), problem, rows, seconds, seed
    )
    machine.release()
    order = np.argsort(found.us, kind="stable")[:SCREENED]
    some = [Configuration(tuple(zip(KNOBS, row, strict=True))) for row in found.rows[order].tolist()]
    return replace(fastest(engine, problem, some), seconds=time.monotonic() - started)

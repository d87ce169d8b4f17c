"""Compare search strategies in one call: all that ``tilescout compare`` measures, for scripts and notebooks."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory

from tilescout.experiments.compare.contenders import MODELS, check_contenders
from tilescout.experiments.compare.play import FinishedRuns, Trace, find_cases, open_case, played_for, run_all, runs_of
from tilescout.experiments.compare.report import SEARCHES, check_comparison_files, write_comparison
from tilescout.experiments.compare.result import Comparison, compare_traces
from tilescout.search.build.cores import available_cores
from tilescout.search.samplers import AnySampler
from tilescout.search.tables.shipped import shipped_tables
from tilescout.spaces.errors import SamplerError, TableError
from tilescout.spaces.texts import check_several
from tilescout.spaces.trust import named_folder

_LOG = logging.getLogger(__name__)

DEFAULT_TRIALS = 200
DEFAULT_SEEDS = 20
DEFAULT_TIMEOUT = 3600.0


def compare(
    samplers: Sequence[AnySampler],
    *,
    tables: Sequence[Path | str] = (),
    problems: Sequence[str] = (),
    trials: int = DEFAULT_TRIALS,
    seeds: int = DEFAULT_SEEDS,
    processes: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    out: Path | str | None = None,
    resume: bool = False,
    anew: bool = False,
    models: Path | str = MODELS,
    on_begin: Callable[[int], None] = lambda searches: None,
    on_search: Callable[[Trace], None] = lambda trace: None,
) -> Comparison:
    """Have every strategy search every problem of some recorded tables with every seed, and score the searches.

    Searches run in processes of their own, which import the calling script if it defines a sampler: then keep the call
    under ``if __name__ == "__main__":``. Every search starts from nothing; the default configuration is not given to
    it. Scores are those of Willemsen et al.: 0 is random search, 1 the table's best from the first trial on.

    Parameters
    ----------
    samplers
        What is compared: text such as ``"tpe"``, ``"lfbo:copies=5"``, ``"my_module:MySampler"``,
        ``"kernel_tuner.genetic_algorithm"`` or ``"ranking.quack"`` (see `tilescout.experiments.compare.contenders`), or
        classes or objects of samplers that other processes can import. Objects are copied for every search and given
        its seed; an object of a plain optuna sampler searches every problem once.
    tables
        Files of tables; none means the shipped ones.
    problems
        Problems, as they are printed; none means all.
    trials, seeds
        Trials of a search at most, and searches of each strategy on each problem. One whose searches do not depend on
        the seed is run once a problem, and counts as often as the others.
    processes
        Searches at a time; None means one for each core.
    timeout
        Seconds after which a search is ended and counts as failed.
    out
        A folder for every search, figures and plots; None keeps nothing.
    resume
        Keep the searches that the folder has.
    anew
        Drop the searches that the folder has. With neither, it must have none.
    models
        Folder of the cost models that are trained without the problems that are replayed.
    on_begin
        Called with the number of searches that are to be run.
    on_search
        Called with every search as it ends.

    Returns
    -------
    Comparison
        The standing of each strategy, the highest score first, with intervals, and paired tests.

    Raises
    ------
    SamplerError
        If a strategy can't be run here, or two have one name, or nothing could be searched so often or so fast.
    TableError
        If a table can't be read, or does not hold a problem.
    StoreError
        If the folder can't be written, or has searches that are neither to be kept nor to be dropped, or files of
        somebody else's, or damaged ones.
    """
    check_several(samplers, "samplers", SamplerError)
    check_several(tables, "tables", TableError)
    check_several(problems, "problems", TableError)
    out = named_folder(out, "folder `out`") if out is not None else None
    for name, limit in {"trials": trials, "seeds": seeds, "processes": processes, "timeout": timeout}.items():
        kind, allowed = (Real, "numbers") if name == "timeout" else (Integral, "whole numbers")
        if limit is not None and not (isinstance(limit, kind) and not isinstance(limit, bool) and limit > 0):
            raise SamplerError(f"{name} can't be {limit!r}: allowed are {allowed} above 0")
    trials, seeds = int(trials), int(seeds)  # searches are stored with them: integers of NumPy are none of JSON
    contenders = check_contenders(samplers, Path(models).absolute())
    cases = find_cases([Path(table) for table in tables] or shipped_tables(), problems)
    truths = {case: open_case(case)[0] for case in cases}
    most = max(len(truth) for truth in truths.values())
    if trials > most:  # what a comparison works out takes memory and time for each trial
        _LOG.warning("no problem has more than %d configurations: searches have so many trials, not %d", most, trials)
        trials = most
    runs = runs_of(contenders, cases, trials, seeds)
    used = dict.fromkeys(case.table for case in cases)
    fixed = {(each.name, table) for each in contenders for table in used if each.deterministic_on(Path(table))}
    played = list(dict.fromkeys(played_for(run, fixed) for run in runs))
    workers = processes or available_cores()
    with ExitStack() as stack:
        folder = out if out is not None else Path(stack.enter_context(TemporaryDirectory(prefix="tilescout-")))
        check_comparison_files(folder)
        finished = stack.enter_context(FinishedRuns(folder / SEARCHES, resume, anew))
        finished.check({case: len(truth) for case, truth in truths.items()})
        for contender in contenders:
            for table in used:
                contender.prepare(Path(table), [case.problem for case in cases if case.table == table], workers)
        left = finished.left(played)
        on_begin(len(left))
        by_name = {contender.name: contender for contender in contenders}
        finished.take(run_all(left, min(workers, max(len(left), 1)), timeout, by_name), on_search)
        latest = {trace.run: trace for trace in finished.traces}
    traces = [replace(latest[played_for(run, fixed)], run=run) for run in runs]
    packages = ["tilescout", *dict.fromkeys(name for contender in contenders for name in contender.packages)]
    versions = {name: version(name) for name in packages}
    comparison = replace(compare_traces(truths, traces, trials, seeds), versions=versions)
    if out is not None:
        write_comparison(comparison, folder)
    return comparison

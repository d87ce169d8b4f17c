r"""The field's tuners live on the same kernels: what do they hand out, and what does it cost?

    python -m tilescout.experiments.research field --problem 768x18432x6144:bf16 --problem 3665x5120x3456:bf16 \
        --trials 40 --searches 3 --seconds 110 --out field.json

Every problem's part of `gemm_sm90` (--within, else the study's own) is compiled, and all of it is measured once. Then
every tuner searches the part by its own code, several times, each time from nothing and with other random numbers:

- ``tune.SAMPLER`` is ``tilescout tune``: the default first, the sampler, and the race that ends it;
- ``helion.SEARCH``, ``kernel_tuner.STRATEGY`` and samplers hand out the fastest that they measured. Helion measures its
  eight fastest once more, as it does by default;
- ``quack.autotuner`` and ``flashinfer.autotuner`` measure their libraries' lists, the second at the m of its bucket;
- ``ranking.LIST`` measures a list: of nvidia-matmul-heuristics, or the one that our defaults are chosen from;
- ``default`` tries nothing.

All measurements are those of our protocol, on one GPU, one at a time, and what is clearly slower than a search's
fastest is not timed in full. At last all answers, the default and the fastest of the part race anew together: regret,
what is slower than the default, and flips are by this race. A search's seconds on the GPU are those in which it was
measured for; its own seconds are the others, without waiting. Kernels are compiled once for all; counted is what a
search alone would have compiled.

Searches that the file of ``--out`` has are not played again: a run that was interrupted, or lacked a tuner, goes on by
the same command. All answers to a problem then race anew. Its part is measured once more, and where that is on another
GPU, it says how well the two agree on the order of the configurations.
"""

import hashlib
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import Finite, collected, processes_option, store_option
from tilescout.experiments.research.clock import Clock
from tilescout.experiments.research.field.playing import BUCKETED, Play, Player, bucketed, check_tuner, searched_at
from tilescout.experiments.research.field.referee import Account, Field, Kernels, Referee
from tilescout.experiments.research.field.standings import Standing, agreement, standings
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import VERSION
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import Device
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.subspace import Part, SubSpace, read_subspace
from tilescout.spaces.templates import KernelTemplate, find_template

SPACE = "gemm_sm90"
WITHIN = SubSpace(
    (
        Part(
            (
                ("tile_k", (64,)),
                ("split_k", (1, 2)),
                ("cluster_m", (1, 2)),
                ("cluster_n", (1, 2)),
                ("swizzle", (1,)),
                ("raster", ("m",)),
            ),
            "stages",
        ),
    )
)
"""Every tile, schedule and number of warp groups, with and without a split of k, the ring as deep as fits."""

TUNERS = (
    "tune.guided", "tune.guided-cold", "default", "random", "evolutionary", "lfbo", "tpe",
    "helion.LFBOTreeSearch", "helion.LFBOPatternSearch", "helion.PatternSearch",
    "kernel_tuner.adaptive_tabu_greywolf", "kernel_tuner.hybrid_vndx", "kernel_tuner.genetic_algorithm",
    "kernel_tuner.diff_evo", "kernel_tuner.greedy_ils",
    "quack.autotuner", "flashinfer.autotuner", "ranking.portfolio:top=40",
)  # fmt: skip
PACKAGES = (
    "flashinfer-python", "helion", "kernel_tuner", "optuna", "nvidia-matmul-heuristics", "quack-kernels",
    "scikit-learn", "torch",
)  # fmt: skip
FASTEST = 5  # of the survey, that race beside the answers
HEATS, ROUNDS = 6, 6
TOP = 50  # the fastest configurations, on whose order GPUs are compared apart
LONGEST = 60.0  # s, of a search
RESERVED = 10.0  # s, for the race of a problem


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    problems: tuple[str, ...]
    tuners: tuple[str, ...]
    space: str
    within: Path | None
    trials: int
    searches: int
    seconds: float
    processes: int | None
    device: str
    store: Path

    def plays(self, problem: str) -> list[Play]:
        """The searches of a problem: first one by each tuner, then the second ones, and so on."""
        numbers = range(self.searches)
        return [Play(tuner, problem, number, self.trials) for number in numbers for tuner in self.tuners]


def played_in(play: Play, done: Mapping[str, Any]) -> bool:
    """Whether the problems of a file have this search."""
    runs = done.get(play.problem, {}).get("runs", ())
    return any((run["tuner"], run["number"]) == (play.tuner, play.number) for run in runs)


def searched_in(space: str, within: Path | None, tuners: Sequence[str]) -> tuple[KernelTemplate, SubSpace]:
    """The template that tuners search, and the sub-space: of a file, else `WITHIN`. Who is no tuner is refused."""
    for tuner in tuners:
        check_tuner(tuner)
    template = find_template(space)
    return template, WITHIN if within is None else read_subspace(within, template.knobs)


def parts(template: KernelTemplate, names: Sequence[str], within: SubSpace, device: Device) -> dict[str, SearchSpace]:
    """The part of each problem that is searched: the sub-space, and the problem's default."""
    found = {}
    for name in names:
        space = template.space(template.parse(name), device)
        kept = within.holds(space)
        kept[space.index(template.default_in(space))] = True
        found[name] = space.subset(np.flatnonzero(kept))
    return found


def bucket_space(template: KernelTemplate, name: str, plays: Sequence[Play], device: Device) -> SearchSpace | None:
    """The space of a problem at the m at which FlashInfer measures; None if that is its own, or nobody asks."""
    if all(play.tuner != BUCKETED for play in plays) or bucketed(name) == name:
        return None
    return template.space(template.parse(bucketed(name)), device)


def kernels_of(engine: Engine, spaces: Iterable[SearchSpace]) -> Kernels:
    """Have the configurations of parts of a space compiled, each once."""
    wanted = {space[index]: space.problem.signature for space in spaces for index in range(len(space))}
    return {one: engine.compile(one, signature) for one, signature in wanted.items()}


def play_all(players: Sequence[Player], plays: Sequence[Play], referee: Referee, clock: Clock) -> list[dict[str, Any]]:
    """Have all searches played, a few at a time; what has not begun when the time is over is left out."""
    waiting: queue.SimpleQueue[Play] = queue.SimpleQueue()
    for play in plays:
        waiting.put(play)
    found: list[dict[str, Any]] = []
    interrupted = threading.Event()

    def drive(player: Player) -> None:
        while clock.left > RESERVED and not interrupted.is_set():
            try:
                play = waiting.get_nowait()
            except queue.Empty:
                return
            account = Account()
            limit = min(LONGEST, max(clock.left - RESERVED / 2, 1.0))
            try:
                outcome = player.play(play, partial(referee.answer, account=account), limit)
            except Exception:
                if interrupted.is_set():  # the player was ended, and the engine
                    return
                raise
            found.append(
                {
                    "tuner": play.tuner,
                    "number": play.number,
                    "answer": outcome.answer,
                    "kernels": len({index for _, index in account.tried}),
                    "gpu_seconds": account.gpu_seconds,
                    "own_seconds": outcome.seconds,
                    "error": outcome.error,
                }
            )

    threads = [threading.Thread(target=drive, args=(player,)) for player in players]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        interrupted.set()
        raise
    order = {(play.tuner, play.number): at for at, play in enumerate(plays)}
    return sorted(found, key=lambda run: order[run["tuner"], run["number"]])


def searched(
    field: Field,
    wide: SearchSpace | None,
    plays: Sequence[Play],
    players: Sequence[Player],
    referee: Referee,
    clock: Clock,
) -> list[dict[str, Any]]:
    """The searches of one problem; `wide` is its space at the m at which FlashInfer measures, None if nobody asks."""
    name = str(field.space.problem)
    elsewhere = [play for play in plays if searched_at(play.tuner, name) != name]
    sent = [field.sent()]
    if elsewhere and wide is not None:
        sent.append(referee.bucket(field, wide.problem, wide).sent())
    for player in players:
        player.send(sent)
    # A problem is set up at a time: what is measured at another one is measured by itself.
    runs = play_all(players, elsewhere, referee, clock) if wide is not None else []
    return [*runs, *play_all(players, [play for play in plays if play not in elsewhere], referee, clock)]


def raced(field: Field, answers: Sequence[int], referee: Referee) -> dict[str, Any]:
    """The race of answers to a problem with its default and the fastest of its survey."""
    default = field.space.index(field.default)
    fastest = np.argsort(np.where(np.isfinite(field.ratios), field.ratios, np.inf))[:FASTEST].tolist()
    racing = list(dict.fromkeys([default, *answers, *fastest]))
    logs = referee.race(field, racing, HEATS, ROUNDS)
    return {
        "race": {str(index): logs[:, :, at].round(6).tolist() for at, index in enumerate(racing)},
        "configurations": {str(index): dict(field.space[index]) for index in racing},
    }


def survey_record(field: Field) -> dict[str, Any]:
    """The record of a survey."""
    return {
        "size": len(field.space),
        "default": field.space.index(field.default),
        "library_us": field.library_us,
        "survey": {
            "codes": field.space.codes.tolist(),
            "ratios": [None if np.isnan(value) else round(float(value), 6) for value in field.ratios],
            "gpu_seconds": field.gpu_seconds,
        },
    }


def runs_in(record: Mapping[str, Any], space: SearchSpace) -> list[dict[str, Any]]:
    """The searches of a problem's record, with answers as indices of this part; without those whose answer it lacks."""
    found = []
    for run in record.get("runs", ()):
        answer = None if run["answer"] is None else int(space.find(record["survey"]["codes"][run["answer"]]))
        if answer != -1:
            found.append({**run, "answer": answer})
    return found


def agreements(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """How well the orders of a problem's configurations on two GPUs agree, for problems that were measured on two."""
    found = {}
    for name, earlier in result.get("earlier", {}).items():
        later = result["problems"][name]
        if earlier["card"] == later["card"]:
            continue
        at = {tuple(code): place for place, code in enumerate(later["survey"]["codes"])}
        both = [(place, at[tuple(code)]) for place, code in enumerate(earlier["survey"]["codes"]) if tuple(code) in at]
        first, second = (np.array(each["survey"]["ratios"], dtype=np.float64) for each in (earlier, later))
        found[name] = agreement(first[[a for a, _ in both]], second[[b for _, b in both]], TOP)
    return found


def print_all(console: Console, result: Mapping[str, Any]) -> None:
    """Print the standings, and how GPUs agree."""
    problems = result["problems"]
    if problems:
        console.print(grid_of(standings(problems), len(problems), result["trials"]))
    errors = {run["error"]: run["tuner"] for record in problems.values() for run in record["runs"] if run["error"]}
    for error, tuner in errors.items():
        console.print(f"{tuner} failed: {error}", highlight=False, markup=False)
    for name, figures in agreements(result).items():
        console.print(f"{name} on two GPUs: {figures}", highlight=False)
    console.print(f"versions: {result['versions']}", highlight=False)


def grid_of(found: Mapping[str, Standing], problems: int, trials: int) -> Grid:
    """The standings as a table."""
    grid = Grid(title=f"{problems} problems, {trials} trials a search", title_justify="left")
    heads = ("tuner", "searches", "regret [95 %]", "worst", "slower than the default", "flips", "kernels", "GPU s")
    for head in (*heads, "own s"):
        grid.add_column(head, no_wrap=True)
    for tuner, one in found.items():
        grid.add_row(
            tuner,
            f"{one.searches}" + (f", {one.failed} failed" if one.failed else ""),
            f"{one.regret:.2%} \\[{_share(one.regret_low)}, {_share(one.regret_high)}]",
            f"{one.worst:.2%}",
            f"{one.slower_than_default:.1%}",
            _share(one.flips),
            f"{one.kernels:.1f}",
            f"{one.gpu_seconds:.2f}",
            f"{one.own_seconds:.2f}",
        )
    return grid


def _share(value: float) -> str:
    return f"{value:.2%}" if np.isfinite(value) else "-"


def versions() -> dict[str, str]:
    """Of the packages whose code searches."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def card() -> str:
    """A mark that tells one GPU from another, and says nothing else of it; empty where none can be asked."""
    import pynvml

    try:
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return ""
    return hashlib.sha256(str(name).encode()).hexdigest()[:8]


@study(GPU_OR_RECORD, again=True)
@click.option("--problem", "problems", multiple=True, metavar="NAME", help="A problem; repeatable, played in order.")
@click.option("--tuner", "tuners", multiple=True, default=TUNERS, metavar="NAME", help="A tuner; repeatable.")
@click.option("--space", default=SPACE, show_default=True, help="The kernel.")
@click.option("--within", type=click.Path(path_type=Path), help="The sub-space, a TOML file; else the study's own.")
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Trials of a search.")
@click.option("--searches", type=click.IntRange(min=1), default=3, show_default=True, help="By each of a problem.")
@click.option("--seconds", type=Finite(min=0), default=600.0, show_default=True, help="End after that.")
@processes_option
@device_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Have the tuners compete, and print their standings."""
    console = Console(width=200)
    if run.record is not None:
        print_all(console, run.record.result)
        return
    if not asked.problems or run.out is None:
        raise click.UsageError("name --problem and --out, or a file with --again")
    template, within = searched_in(asked.space, asked.within, asked.tuners)
    clock = Clock(asked.seconds)
    kept = Record.read(run.out).result if run.out.exists() else {"problems": {}}
    done, earlier = kept["problems"], kept.get("earlier", {})
    result: dict[str, Any] = {
        "protocol": VERSION, "space": asked.space, "within": str(within), "trials": asked.trials,
        "versions": kept.get("versions", {}) | versions(), "problems": done, "earlier": earlier,
    }  # fmt: skip
    left = {name: [play for play in asked.plays(name) if not played_in(play, done)] for name in asked.problems}
    with ExitStack() as stack:
        engine = stack.enter_context(LocalEngine(template, artifacts(asked.store), [asked.device]))
        wanted = parts(template, [name for name, plays in left.items() if plays], within, engine.device)
        referee = Referee(engine, kernels_of(engine, wanted.values()))
        count = asked.processes or available_cores()
        players = [Player(template, engine.device, asked.tuners) for _ in range(count)]
        for player in players:
            stack.callback(player.close)
        result["objective"] = str(engine.objective)
        for name, space in wanted.items():
            if clock.left < 2 * RESERVED:
                break
            field = referee.survey(space, template.default_in(space))
            wide = bucket_space(template, name, left[name], engine.device)
            before = runs_in(done.get(name, {}), field.space)
            runs = [*before, *searched(field, wide, left[name], players, referee, clock)]
            answers = [each["answer"] for each in runs if each["answer"] is not None]
            found = {**survey_record(field), "runs": runs, **raced(field, answers, referee)}
            if name in done:
                earlier[name] = {"card": done[name]["card"], "survey": done[name]["survey"]}
            done[name] = {"card": card(), **found}
            run.keep(result)
            console.print(f"{name}: {len(field.space)} configurations, {clock.left:.0f} s left", highlight=False)
    print_all(console, result)

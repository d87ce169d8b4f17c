"""The measuring protocol on a shared object whose kernels take known times, under drift and noise of known size."""

import ctypes
import hashlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tilescout.search.build.loading import Launch, load_library
from tilescout.search.build.making import find_linker
from tilescout.search.measure.bench import Bench, rewrite
from tilescout.search.measure.machine import Block, HostMachine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.race import Race, RaceOptions, run_race
from tilescout.search.measure.worker import Job, Worker
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

PROBLEM = GemmProblem(8, 8, 8)
# One set of inputs: there is no cache to get past.
OPTIONS = ProtocolOptions(Objective.CHAIN, cold_bytes=1, heating_us=10_000.0)
MAX_KERNELS = 64
NUMBERS = ("library_us", "now_us", "drift", "period_us", "phase", "noise", "hiccups")


class Timed:
    """The shared object: sets its numbers, reads its clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        loaded = load_library(path, self.sha256)
        self.module, self.library = loaded.module, ctypes.CDLL(loaded.name)
        self.times_us = (ctypes.c_double * MAX_KERNELS).in_dll(self.library, "times_us")
        self.launches = (ctypes.c_int64 * MAX_KERNELS).in_dll(self.library, "launches")
        self.clock_us = ctypes.c_double.in_dll(self.library, "now_us")

    def set(self, seed: int, times_us: Sequence[float] = (), **numbers: float) -> None:
        """Take up a new state: what is not given is 0, but for a library of 200 µs and a period of 20 ms."""
        numbers = {"library_us": 200.0, "period_us": 20_000.0, **numbers}
        for name in NUMBERS:
            ctypes.c_double.in_dll(self.library, name).value = numbers.get(name, 0.0)
        rng = np.random.default_rng(seed)
        ctypes.c_double.in_dll(self.library, "phase").value = rng.uniform(0, 2 * np.pi)
        ctypes.c_uint64.in_dll(self.library, "state").value = int(rng.integers(1, 2**63))
        for number, time_us in enumerate(times_us):
            self.times_us[number] = time_us

    @property
    def now_us(self) -> float:
        return self.clock_us.value

    def job(self, kernel: int, incumbent: float | None = None, options: ProtocolOptions = OPTIONS) -> Job:
        return Job(
            str(self.path), self.sha256, f"kernel_{kernel:02o}", "timed", str(PROBLEM), 1, None, options, incumbent
        )


class TimedMachine(HostMachine):
    """The host, with the shared object's clock."""

    def __init__(self, timed: Timed) -> None:
        super().__init__()
        self.timed = timed

    def start(self, block: Block) -> Callable[[], float]:
        before = self.timed.now_us
        block.run()
        time_us = self.timed.now_us - before
        return lambda: time_us


class TimedGemm(Gemm):
    """A GEMM whose library is the shared object's."""

    def __init__(self, timed: Timed) -> None:
        self.entry: Callable[..., None] = timed.module.library

    def run_library(self, problem: GemmProblem, inputs: Tensors, output: "torch.Tensor") -> None:
        self.entry(*inputs, output)

    def edge_problem(self, problem: GemmProblem) -> GemmProblem:
        return GemmProblem(5, 8, 16, batch=2)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Timed:
    spec = find_spec("tvm_ffi")
    assert spec is not None
    assert spec.origin is not None
    headers = ["-I", str(Path(spec.origin).with_name("include"))]
    source, path = Path(__file__).parents[1] / "kernels" / "timed_gemm.c", tmp_path_factory.mktemp("timed") / "timed.so"
    flags = ["-shared", "-fPIC", "-O2", "-Wl,-Bsymbolic"]  # its names are its own, whatever else has them
    subprocess.run([find_linker(), *flags, *headers, "-o", path, source, "-lm"], check=True)
    return Timed(path)


@pytest.fixture
def worker(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> Worker:
    for module in ("measure.worker", "build.loading"):
        monkeypatch.setattr(f"tilescout.search.{module}.load_workload", lambda _: TimedGemm(timed))
    worker = Worker("cpu")
    worker.machine = TimedMachine(timed)
    return worker


def set_up(worker: Worker, options: ProtocolOptions = OPTIONS) -> Bench:
    """The problem, set up anew."""
    worker._benches.clear()
    bench = worker.bench("timed", str(PROBLEM), options, None)
    assert isinstance(bench, Bench)
    return bench


def measure(worker: Worker, timed: Timed, kernel: int = 0, incumbent: float | None = None) -> Measurement:
    measurement = worker.measure(timed.job(kernel, incumbent))
    assert measurement.status in (Status.OK, Status.PRUNED), measurement.error
    return measurement


def ratio_of(worker: Worker, timed: Timed, kernel: int = 0) -> float:
    timing = measure(worker, timed, kernel).timing
    assert timing is not None
    return timing.ratio


def test_without_noise_and_drift_everything_is_exact(worker: Worker, timed: Timed) -> None:
    timed.set(0, [230.0])
    bench = set_up(worker)

    measurement = measure(worker, timed)

    assert bench.launches == 1
    assert bench.library_us == pytest.approx(200)
    assert measurement.timing is not None
    assert measurement.timing.ratio == pytest.approx(1.15)
    assert measurement.timing.ratio_low == pytest.approx(measurement.timing.ratio_high, rel=6 * OPTIONS.repeat)
    assert measurement.time_us == pytest.approx(230)
    assert measurement.pilot_us == pytest.approx(230)


@pytest.mark.parametrize("library_us", [200.0, 12.5])
def test_under_five_percent_of_drift_the_ratio_is_right_where_a_median_of_repeats_is_not(
    worker: Worker, timed: Timed, library_us: float
) -> None:
    paired, plain = [], []
    for seed in range(30):
        timed.set(seed, [1.1 * library_us], library_us=library_us, drift=0.05, period_us=50_000.0, noise=0.002)
        bench = set_up(worker)
        assert (bench.launches == 1) == (library_us == 200)
        paired.append(ratio_of(worker, timed) / 1.1)
        block = bench.make_block(launcher(worker, timed))
        times = worker.machine.times_us([block] * 21)
        plain.append(median(times) / bench.launches / bench.library_us / 1.1)

    assert max(abs(np.array(paired) - 1)) < 0.003
    assert max(abs(np.array(plain) - 1)) > 0.03


def launcher(worker: Worker, timed: Timed, kernel: int = 0) -> Launch:
    launch: Launch = worker.load(timed.job(kernel))
    return launch


def test_the_interval_holds_the_true_ratio(worker: Worker, timed: Timed) -> None:
    inside = []
    for seed in range(100):
        timed.set(seed, [220.0], drift=0.05, noise=0.01, hiccups=0.02)
        set_up(worker)
        timing = measure(worker, timed).timing
        assert timing is not None
        inside.append(timing.ratio_low <= 1.1 <= timing.ratio_high)

    assert np.mean(inside) >= 0.88  # 0.95, but for stopping when it is narrow, and for the noise of 100 draws


def pairs_at(worker: Worker, timed: Timed, noise: float, incumbent: float | None = None, drift: float = 0.05) -> float:
    pairs = []
    for seed in range(10):
        timed.set(seed, [220.0], drift=drift, noise=noise)
        set_up(worker)
        timing = measure(worker, timed, incumbent=incumbent).timing
        assert timing is not None
        pairs.append(timing.pairs)
    return float(np.mean(pairs))


def test_the_louder_the_noise_the_more_pairs(worker: Worker, timed: Timed) -> None:
    pairs = [pairs_at(worker, timed, noise, drift=0.003) for noise in (0.0005, 0.002, 0.03)]

    assert pairs[0] < pairs[1] < pairs[2]
    most = OPTIONS.pairs_us / (200 + 220)
    assert 0.9 * most <= pairs[2] <= 1.1 * most


def test_a_kernel_that_can_not_win_is_given_up_early_and_one_that_can_is_not(worker: Worker, timed: Timed) -> None:
    noise = 0.01
    in_full = pairs_at(worker, timed, noise)

    assert pairs_at(worker, timed, noise, incumbent=1.0) < in_full / 3  # 1.1 is 10 % more
    assert pairs_at(worker, timed, noise, incumbent=1.1) > 0.6 * in_full  # a search asks for less precision


def random_times(seed: int) -> list[float]:
    """Of 50 random configurations of a real space: some good ones, most twice to ten times as slow."""
    return (200 * (0.95 + np.random.default_rng(seed).gamma(1.5, 1.2, 50))).tolist()


def search(worker: Worker, timed: Timed, count: int) -> list[Measurement]:
    """Measure kernels one after another as the loop does: the first in full, the best so far is the incumbent."""
    outcomes: list[Measurement] = []
    incumbent: float | None = None
    for kernel in range(count):
        outcomes.append(measure(worker, timed, kernel, incumbent))
        if (timing := outcomes[-1].timing) is not None:
            incumbent = min(incumbent or np.inf, timing.ratio)
    return outcomes


@pytest.mark.parametrize("hiccups", [0.0, 0.02])
def test_the_best_is_never_pruned_and_most_slow_ones_are(worker: Worker, timed: Timed, hiccups: float) -> None:
    slow, slow_pruned, spent_us, fixed_us = 0, 0, 0.0, 0.0
    for seed in range(40):
        times = random_times(seed)
        timed.set(seed, times, drift=0.05, noise=0.02, hiccups=hiccups)
        set_up(worker)
        before = timed.now_us
        outcomes = search(worker, timed, len(times))
        spent_us, fixed_us = spent_us + timed.now_us - before, fixed_us + 20 * sum(times)

        assert outcomes[int(np.argmin(times))].status is Status.OK, seed
        best_before = np.minimum.accumulate([np.inf, *times[:-1]])
        slow += int(np.sum(times > 2 * best_before))
        slow_pruned += sum(
            outcome.status is Status.PRUNED
            for outcome, time_us, best in zip(outcomes, times, best_before, strict=True)
            if time_us > 2 * best
        )

    assert slow > 1000
    assert slow_pruned > 0.97 * slow
    assert spent_us < fixed_us / 2.5


def test_a_pruned_kernel_costs_its_pilot_alone(worker: Worker, timed: Timed) -> None:
    timed.set(0, [200.0, 401.0])
    set_up(worker)
    measure(worker, timed, 0)
    before = timed.launches[1]

    pruned = measure(worker, timed, 1, incumbent=1.0)

    assert pruned.status is Status.PRUNED
    assert pruned.pilot_us == pytest.approx(401)
    assert timed.launches[1] == before + 1


def race(worker: Worker, timed: Timed, candidates: Sequence[int], default: int, seed: int) -> Race:
    def rounds(indices: Sequence[int], rounds: int, pairs: int, seed: int) -> Any:
        return np.array(worker.race([timed.job(index) for index in indices], rounds, pairs, seed))

    return run_race(candidates, default, rounds, RaceOptions(), seed)


def test_rounds_are_ratios_in_the_order_of_the_jobs_and_follow_from_the_seed(worker: Worker, timed: Timed) -> None:
    ratios = []
    for _ in range(2):
        timed.set(4, [220.0, 180.0, 260.0], drift=0.05, noise=0.005)
        set_up(worker)
        ratios.append(np.array(worker.race([timed.job(kernel) for kernel in range(3)], 6, 5, seed=1)))

    assert ratios[0].shape == (6, 3)
    assert abs(ratios[0] / [1.1, 0.9, 1.3] - 1).max() < 0.02
    assert (ratios[0] == ratios[1]).all()


def test_a_disturbed_pair_does_not_decide_a_race(worker: Worker, timed: Timed) -> None:
    timed.set(0, [220.0], noise=0.002)
    bench = set_up(worker)
    queue = bench.machine.times_us

    def disturbed(blocks: Sequence[Block], *arguments: Any, **more: Any) -> list[float]:
        times = queue(blocks, *arguments, **more)
        return [time_us * (3 if at == 15 else 1) for at, time_us in enumerate(times)]  # a block of the kernel

    bench.machine.times_us = disturbed  # type: ignore[method-assign]
    ratios = np.array(worker.race([timed.job(0)], 12, 1, seed=0))

    assert ratios.shape == (12, 1)
    assert abs(ratios / 1.1 - 1).max() < 0.02


@pytest.mark.parametrize(("library_us", "sets"), [(200.0, 6), (60.0, 24), (60.0, 23), (60.0, 3), (12.5, 100)])
def test_no_inputs_are_read_again_before_all_others_were(
    worker: Worker, timed: Timed, library_us: float, sets: int
) -> None:
    input_bytes = 2 * 8 * 8 * 2
    timed.set(0, [1.1 * library_us], library_us=library_us)
    bench = set_up(worker, replace(OPTIONS, cold_bytes=sets * input_bytes))
    kernel = launcher(worker, timed)
    order: list[int] = []
    read: dict[str, list[int]] = {"kernel": [], "library": []}

    def reading(name: str, launch: Launch) -> Launch:
        def noted(inputs: Tensors, output: "torch.Tensor") -> None:
            order.append(inputs[0].data_ptr())
            read[name].append(inputs[0].data_ptr())
            launch(inputs, output)

        return noted

    bench._library = bench.make_block(reading("library", bench.run_library))
    order.clear()
    bench.time(reading("kernel", kernel), incumbent=None)

    rotated = len(bench._inputs)
    last: dict[int, int] = {}
    for at, pointer in enumerate(order):
        if pointer in last:
            assert len(set(order[last[pointer] : at])) == rotated
        last[pointer] = at
    assert sets <= rotated <= sets + 2 * bench.launches
    assert {len(set(each)) for each in read.values()} == {rotated}  # the kernel and the library both read them all


def test_the_rounds_of_a_race_are_one_queue(worker: Worker, timed: Timed) -> None:
    timed.set(0, [220.0, 180.0])
    bench = set_up(worker)
    queue, lengths = bench.machine.times_us, []

    def counted(blocks: Sequence[Block], *arguments: Any, **more: Any) -> list[float]:
        lengths.append(len(blocks))
        return queue(blocks, *arguments, **more)

    bench.machine.times_us = counted  # type: ignore[method-assign]
    worker.race([timed.job(0), timed.job(1)], rounds=6, pairs=2, seed=0)

    loading, measuring = lengths
    assert loading == 2
    assert measuring == 2 * (bench._settling + 2 * 6 * 2) + 1  # pairs, and the library's block before them


@pytest.mark.slow
def test_search_and_race_find_the_winner_by_one_percent_at_least_95_times_in_100_under_five_percent_of_drift(
    worker: Worker, timed: Timed
) -> None:
    default, right, intervals = 0, [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        good = 1.0 + np.array([0.0, 0.01, 0.01, 0.012, 0.015, 0.02, 0.03])
        times = 190.0 * np.array([1.05, *rng.permutation([*good, *rng.uniform(1.2, 6.0, 5)])])
        timed.set(seed, times.tolist(), drift=0.05, period_us=rng.uniform(5e3, 2e5), noise=0.006, hiccups=0.01)
        set_up(worker)
        outcomes = search(worker, timed, len(times))
        timings = {kernel: outcome.timing for kernel, outcome in enumerate(outcomes) if outcome.timing is not None}
        best = min(timing.ratio for timing in timings.values())
        options = RaceOptions()
        ordered = sorted(timings, key=lambda kernel: timings[kernel].ratio)
        close = [kernel for kernel in ordered if timings[kernel].ratio_low <= best * (1 + options.within)]
        result = race(worker, timed, close[: options.candidates], default, seed)
        right.append(result.answer == result.winner == int(times.argmin()))
        estimate = result.ratios[result.winner]
        intervals.append(estimate.high / estimate.low - 1)

    assert np.mean(right) >= 0.95
    assert np.median(intervals) < 0.013


def test_a_default_that_is_the_best_by_one_percent_stays_the_answer(worker: Worker, timed: Timed) -> None:
    answers = []
    for seed in range(50):
        timed.set(seed, [200.0, 202.0, 202.0, 203.0], drift=0.05, noise=0.006, hiccups=0.01)
        set_up(worker)
        answers.append(race(worker, timed, [1, 2, 3], 0, seed).answer)

    assert np.mean([answer == 0 for answer in answers]) >= 0.95


def test_a_known_library_time_scales_the_times_and_not_the_ratios(worker: Worker, timed: Timed) -> None:
    timed.set(0, [220.0])
    worker._benches.clear()
    measurement = worker.measure(replace(timed.job(0), library_us=100.0))

    assert measurement.timing is not None
    assert measurement.timing.ratio == pytest.approx(1.1)
    assert measurement.time_us == pytest.approx(110)
    assert measurement.pilot_us == pytest.approx(110)


def test_the_library_is_heated_until_it_is_steady(worker: Worker, timed: Timed) -> None:
    timed.set(0, drift=0.05, period_us=4 * 60_000.0)
    ctypes.c_double.in_dll(timed.library, "phase").value = 0.0  # it slows down for a quarter of the wave
    bench = set_up(worker)

    assert timed.now_us > 3 * OPTIONS.heating_us
    assert bench.library_us > 200 * 1.045


NEIGHBOUR_US = 20.0
SANDWICHES = replace(OPTIONS, objective=Objective.SANDWICH)


@pytest.fixture
def rewritten(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> "list[torch.Tensor]":
    """The tensors that neighbours rewrite, each of which takes its time."""
    tensors: list[torch.Tensor] = []

    def timed_rewrite(tensor: "torch.Tensor") -> None:
        tensors.append(tensor)
        timed.clock_us.value += NEIGHBOUR_US

    monkeypatch.setattr("tilescout.search.measure.bench.rewrite", timed_rewrite)
    return tensors


@pytest.mark.parametrize(("library_us", "launches"), [(200.0, 1), (60.0, 3), (12.5, 6)])
def test_a_kernels_time_in_sandwiches_is_what_it_adds_to_their_graph(
    worker: Worker, timed: Timed, rewritten: "list[torch.Tensor]", library_us: float, launches: int
) -> None:
    timed.set(0, [1.15 * library_us], library_us=library_us)
    bench = set_up(worker, SANDWICHES)

    timing = bench.time(launcher(worker, timed), incumbent=None)
    [[raced]] = bench.race([launcher(worker, timed)], rounds=1, pairs=4, seed=0)

    assert bench.launches == launches  # of 300 µs with their neighbours
    assert bench.around_us == pytest.approx(2 * NEIGHBOUR_US * launches)
    assert bench.library_us == pytest.approx(library_us)
    assert timing.ratio == pytest.approx(1.15)
    assert timing.time_us == pytest.approx(1.15 * library_us)
    assert raced == pytest.approx(1.15)


def test_the_neighbours_write_the_first_input_of_the_launch_and_read_its_output(
    worker: Worker, timed: Timed, rewritten: "list[torch.Tensor]"
) -> None:
    timed.set(0, [70.0], library_us=60.0)
    bench = set_up(worker, replace(SANDWICHES, cold_bytes=5 * 2 * 8 * 8 * 2))
    order: list[object] = []

    def launch(inputs: Tensors, output: "torch.Tensor") -> None:
        order.append((len(rewritten), inputs[0].data_ptr(), output.data_ptr()))

    rewritten.clear()
    bench.make_block(launch).run()

    assert len(rewritten) == 2 * bench.launches
    pointers = [tensor.data_ptr() for tensor in rewritten]
    assert order == [(2 * at + 1, pointers[2 * at], pointers[2 * at + 1]) for at in range(bench.launches)]
    assert len(set(pointers[::2])) == bench.launches  # the inputs rotate


def test_a_chain_has_no_neighbours(worker: Worker, timed: Timed, rewritten: "list[torch.Tensor]") -> None:
    timed.set(0, [70.0], library_us=60.0)
    bench = set_up(worker)
    measure(worker, timed)

    assert bench.around_us == 0
    assert not rewritten


def test_what_the_neighbours_take_does_not_decide_which_kernel_is_faster_than_the_library(
    worker: Worker, timed: Timed, rewritten: "list[torch.Tensor]"
) -> None:
    timed.set(0, [11.0, 9.0, 10.0], library_us=10.0)
    bench = set_up(worker, SANDWICHES)
    bench.around_us *= 1.2  # taken too high by a fifth

    slower, faster, same = (bench.time(launcher(worker, timed, kernel), None).ratio for kernel in range(3))

    assert faster < 0.97
    assert same == pytest.approx(1, abs=0.01)
    assert slower > 1.03
    bench.around_us = 1e6  # as if something had disturbed them: a ratio is still a positive number
    assert 0 < bench.time(launcher(worker, timed), None).ratio < 100


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_a_neighbour_leaves_the_values_as_they_are(dtype: str) -> None:
    import torch

    tensor = torch.randn(6, 10).to(getattr(torch, dtype)).t()
    before = tensor.clone()
    rewrite(tensor)

    assert torch.equal(tensor.float(), before.float())

"""Time kernels on one problem, inside the measuring process.

The code is the same on a GPU and on a CPU (which the tests use); only the machine differs.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.loading import Launch
from tilescout.search.measure.interval import usual_range
from tilescout.search.measure.machine import Block, Machine
from tilescout.search.measure.measurement import Clocks, Timing
from tilescout.search.measure.pilot import Pilots
from tilescout.search.measure.protocol import (
    Estimate,
    Objective,
    ProtocolOptions,
    block_launches,
    input_sets,
    is_settled,
    most_pairs,
    pairs_to_add,
    rotation,
    settling_pairs,
)
from tilescout.search.measure.reference import Reference
from tilescout.search.measure.verification import Case, Verifier
from tilescout.spaces.problems import Problem
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

# Stretches of heating at most. At the power cap they never settle: at 768x15360x5120 the library took 175, 200, 201,
# 202, 206, 202, 207, 201, 217 and 204 µs in ten of them on an H200.
_STRETCHES = 5
_SETTLED = 0.005  # relative difference of two stretches
_ALONE = 12  # blocks of the library that tell its noise
_LEAST = 0.01  # of a block's time that is the kernel's: the neighbours' may have been taken too high, in a disturbance


class Bench:
    """A problem set up for measuring: operands, reference, and the library's kernel heated and timed.

    Parameters
    ----------
    machine, workload, problem
        Where, and what.
    options
        The protocol's numbers. By their objective, launches follow one another alone or each between its neighbours;
        times of the latter are those of the whole less the neighbours' alone.
    library_us
        The library's steady time, if it was taken before (a replaced process goes on with the first one's); None takes
        it now.

    Attributes
    ----------
    run_library
        The library's version of the computation.
    library_us
        The library's steady time, in µs.
    launches
        Launches in a block, of the library and of every kernel.
    around_us
        The time of a block of the neighbours alone, in µs; 0 where launches have none.
    reference
        What the measurements so far tell of the library's times.
    clocks
        The state of the device while it ran what was verified or timed last; None where nothing tells.
    """

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        problem: Problem,
        options: ProtocolOptions,
        library_us: float | None = None,
    ) -> None:
        import torch

        self.machine, self.workload, self.problem, self.options = machine, workload, problem, options
        self.run_library = partial(workload.time_library, problem)
        self._draws = workload.draws(problem)
        generator = torch.Generator(machine.device)
        generator.seed()  # fresh inputs every time; no global random state
        self._case = Case.draw(workload, problem, generator)
        edges = [Case.draw(workload, edge, generator) for edge in workload.edge_problems(problem)]
        self._verifier = Verifier(machine, self._case, edges)
        input_bytes = sum(tensor.nbytes for tensor in self._case.inputs)
        sets = self._for_all_draws(input_sets(input_bytes, machine.l2_bytes, options))
        self._inputs = [self._case.inputs]
        self._inputs += workload.more_inputs(problem, generator, self._inputs, sets - 1)
        self._sandwiched = options.objective is Objective.SANDWICH
        first = library_us or self._single_us(self.run_library)  # of a short launch also its latency; corrected below
        beside_us = self._single_us(None) if self._sandwiched else 0.0
        self.launches = self._block_launches(first + beside_us)
        self._turns = itertools.count()  # of blocks, whoever's: each reads the inputs behind those of the last one
        self._racers: dict[int, tuple[Launch, Block]] = {}  # of the last heat, by the launches' identities
        self.clocks: Clocks | None = None
        if self._sandwiched:
            beside_us = self._block_us(None)
        if self.launches > 1 and library_us is None:
            # By the block's own events: the latency of starting a graph is not in them.
            first = max(self._block_us(self.run_library) - beside_us, 0.0)
            self.launches = self._block_launches(first + beside_us)
        sets, self.launches = rotation(sets, self.launches)
        self._inputs += workload.more_inputs(problem, generator, self._inputs, sets - len(self._inputs))
        self._library = self.make_block(self.run_library)
        self._pilot_launches = block_launches(first, options.pilot_us, options)
        steady_us = self._steady_us(first + beside_us) if library_us is None else math.nan
        self.around_us = self._neighbours_us() if self._sandwiched else 0.0
        added_us = max(steady_us - self.around_us / self.launches, _LEAST * steady_us)
        self.library_us = added_us if library_us is None else library_us
        settling_us = options.settling_us if self.launches > 1 else 0.0
        block_us = self.library_us * self.launches
        self._settling = max(1, math.ceil(settling_us / (2 * (block_us + self.around_us))))
        alone = self._kernels_us(np.array(machine.times_us([self._library] * _ALONE))).tolist()
        self.reference = Reference(block_us, alone, options)
        # A long kernel's pilot is its verifying launch, after which the library's was taken with the same steps.
        once = self._library_once_us() if self.launches == 1 else None
        self._pilots = Pilots(machine, self._pilot_block(self.run_library), once)

    def _block_launches(self, library_us: float) -> int:
        return self._for_all_draws(block_launches(library_us, self.options.block_us, self.options))

    def _for_all_draws(self, count: int) -> int:
        """At least `count`, and as many for each draw of the inputs: every block is then a mean over the draws."""
        return math.ceil(count / self._draws) * self._draws

    def make_block(self, launch: Launch | None, launches: int | None = None) -> Block:
        """Launches of a kernel over the inputs in turn, to be timed as one; as many as in every block unless told.

        In sandwiches, if that is the objective; without a kernel, their neighbours alone.

        The block reads on where the last one ended, a kernel's or the library's: a block of few launches alone would
        read the same few inputs over and over, from the L2.
        """
        count = launches or self.launches
        parts = math.ceil(len(self._inputs) / count)
        turns = [
            [step for number in range(count) for step in self._turn(launch, part * count + number)]
            for part in range(parts)
        ]
        return self.machine.block(turns, partial(next, self._turns))

    def _turn(self, launch: Launch | None, number: int) -> list[Callable[[], None]]:
        # Nothing of the bench itself is kept: its operands go when it goes.
        inputs, output = self._inputs[number % len(self._inputs)], self._case.output
        if self._sandwiched or launch is None:
            return sandwich(launch, inputs, output, self.options.overlapped)
        return [partial(_launch, launch, inputs, output)]

    def _pilot_block(self, launch: Launch) -> Block:
        turns, count, inputs, output = self._turns, self._pilot_launches, self._inputs, self._case.output

        def run() -> None:
            first = next(turns) * count
            for number in range(first, first + count):
                launch(inputs[number % len(inputs)], output)

        return Block(run)

    def _single_us(self, launch: Launch | None) -> float:
        """The time of a single launch, or of the neighbours' once, without the host."""
        inputs, output = self._inputs[0], self._case.output
        around = self.options.overlapped
        steps = sandwich(None, inputs, output, around) if launch is None else [partial(launch, inputs, output)]

        def run() -> None:
            for step in steps:
                step()

        return median(self.machine.times_us([Block(run)] * (self.options.batch + 2)))

    def _library_once_us(self) -> float | None:
        """The library's time where a kernel's is taken that is verified; None if the host was too slow to tell."""

        def once() -> float:
            time_us = self._verifier.start(self.run_library, edge=False)
            self.machine.synchronize()
            return time_us()

        times = [time_us for _ in range(self.options.batch + 1) if not math.isnan(time_us := once())]
        return median(times) if times else None

    def _block_us(self, launch: Launch | None) -> float:
        """The time of a launch in a block that runs alone; of the neighbours, without a kernel."""
        block = self.make_block(launch)

        def once() -> float:
            time_us = self.machine.start(block)
            self.machine.synchronize()
            return time_us()

        return median(once() for _ in range(self.options.batch + 1)) / self.launches

    def _steady_us(self, first: float) -> float:
        """The time of a launch of the library, with its neighbours if it has some, once it does not change any more."""
        count = max(3, math.ceil(self.options.heating_us / (first * self.launches)))
        before = math.inf
        for _ in range(_STRETCHES):
            times = self.machine.times_us([self._library] * count, lost=0.5)
            now = float(np.nanmedian(times)) / self.launches
            if abs(now / before - 1) < _SETTLED:
                break
            before = now
        return now

    def _neighbours_us(self) -> float:
        """The time of a block of the neighbours alone, each after a block of the library."""
        alone = self.make_block(None)
        self._upload([alone])
        blocks = [self._library, *[alone, self._library] * _ALONE]
        return median(self.machine.times_us(blocks)[::2])

    def verify(self, launch: Launch, edge: bool) -> tuple[float, float | None]:
        """Run a kernel once on the problem, after two runs on each edge problem if `edge` asks for them.

        Where a launch is long, that one is the kernel's pilot. Else a short block is queued right behind it, and all of
        it is waited for once.

        Returns
        -------
        relative_error, pilot
            The largest relative Frobenius error, and the ratio to the library that the pilot tells; None if the host
            was too slow for one.

        Raises
        ------
        WrongResultError
            If a result is wrong, differs between runs, or memory outside the output was written.
        """
        launch_us = self._verifier.start(launch, edge)
        block = self._pilot_block(launch)
        pilot = self._pilots.start(block) if self.launches > 1 else lambda: self._pilots.ratio(launch_us())
        self._watch()
        return self._verifier.judge(edge), pilot()

    def verify_again(self, launch: Launch) -> None:
        """Run a kernel that was verified on the problem twice more.

        Raises
        ------
        WrongResultError
            If the two results differ.
        """
        self._verifier.repeat(launch)

    def pilot(self, launch: Launch) -> float:
        """The ratio to the library that a short block of each tells, one right after the other."""
        return self._pilots.beside(self._pilot_block(launch))

    def learn(self, pilot: float, ratio: float) -> None:
        """Take in what the pilot of the kernel that was verified last should have told."""
        self._pilots.learn(pilot, ratio)

    def time(self, launch: Launch, incumbent: float | None) -> Timing:
        """Time a kernel in turns with the library, for as long as the decision needs.

        Parameters
        ----------
        launch
            The kernel; it has run before.
        incumbent
            The best known ratio, if there is one.

        Raises
        ------
        WrongResultError
            If one of the launches wrote outside the output.
        """
        kernel = self.make_block(launch)
        kernel_us, beside_us = self._pairs([kernel] * self.options.first, self._settling)
        while True:
            settling = settling_pairs(beside_us, self.options)
            counted = kernel_us[settling:], beside_us[settling:]
            estimate = self._estimate(*counted)
            pair_us = float((kernel_us + beside_us).mean()) + 2 * self.around_us
            most = most_pairs(pair_us, self.launches == 1, self.options) - settling
            if is_settled(estimate, most, incumbent, self.options):
                break
            more = [kernel] * pairs_to_add(estimate, most, incumbent, self.options)
            more_us, beside_more_us = self._pairs(more, settling=1)  # the device waited for a look only
            kernel_us, beside_us = np.append(kernel_us, more_us), np.append(beside_us, beside_more_us)
        self.reference.learn(*counted)
        self._case.check_bands()
        q25, _, q75 = quantiles(estimate.values, n=4, method="inclusive")
        return Timing(estimate.ratio, q25, q75, estimate.low, estimate.high, self.library_us, len(estimate.values))

    def _estimate(self, kernel_us: NDArray[np.float64], beside_us: NDArray[np.float64]) -> Estimate:
        throttled = self.clocks is not None and self.clocks.throttle != ""
        return self.reference.estimate(kernel_us, beside_us, throttled)

    def _pairs(self, kernels: Sequence[Block], settling: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times of the kernels' blocks, and the mean of the library's just before and just after each, in µs.

        Those of sandwiches are less what their neighbours take alone: what the kernel adds to their graph.

        So many pairs run before, while the device settles, and count for nothing.
        """
        before = [kernels[0], self._library] * settling
        blocks = [self._library, *before, *(block for kernel in kernels for block in (kernel, self._library))]
        times = self._kernels_us(np.array(self.machine.times_us(blocks, skip=len(before), meanwhile=self._watch)))
        return times[1::2], (times[:-1:2] + times[2::2]) / 2

    def _kernels_us(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """The time that a kernel adds to the graph of its neighbours, from the times of whole blocks, in µs."""
        return np.maximum(times - self.around_us, _LEAST * times)

    def _watch(self) -> None:
        """Look at the clocks, while the device is at work."""
        self.clocks = self.machine.clocks()

    def _stir(self) -> None:
        """Read and write all inputs, which leaves them as they are.

        A kernel whose operands are larger than the L2 may be in one of several states, some of them 9 % apart. At
        143x7680x5120 one took 1.38, 1.47 or 1.51 times as long as the library, and the same for hundreds of launches
        until it changed (H200s, `experiments/results/race-intervals.md`). Heats that follow one another then agree on a
        time that the next minute does not have. Behind this they differ.
        """
        for tensor in {id(tensor): tensor for inputs in self._inputs for tensor in inputs}.values():
            if 0 not in tensor.stride():  # else several elements are one, which torch does not write
                rewrite(tensor)

    def race(self, launches: Sequence[Launch], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Measure several kernels in rounds, their pairs in turns: each time round in a new random order.

        All rounds are one queue, so that the device settles once. The ratio of a round is the geometric mean of its
        pairs', where one that was disturbed counts as the last that is usual. Before that all inputs are rewritten, so
        that races one behind the other find what the L2 holds in different states; see `_stir`.

        Parameters
        ----------
        launches
            The kernels.
        rounds, pairs
            Rounds, and pairs of a kernel and the library in each.
        seed
            Of the order.

        Returns
        -------
        array
            Ratio of each kernel in each round, of shape [rounds, kernels].
        """
        generator = np.random.default_rng(seed)
        self._stir()
        blocks = self._blocks_of(launches)
        order = np.concatenate([generator.permutation(len(blocks)) for _ in range(rounds * pairs)])
        kernel_us, beside_us = self._pairs([blocks[kernel] for kernel in order], self._settling)
        ratios = np.empty((rounds, len(blocks)))
        for kernel in range(len(blocks)):
            mine = order == kernel
            logs = np.log(self._estimate(kernel_us[mine], beside_us[mine]).values)
            ratios[:, kernel] = np.exp(np.clip(logs, *usual_range(logs)).reshape(rounds, pairs).mean(axis=1))
        return ratios

    def _blocks_of(self, racing: Sequence[Launch]) -> list[Block]:
        """The blocks of kernels that race, kept from one heat to the next: those of short kernels are many launches.

        To make them anew for each heat takes longer than to run them.
        """
        kept = {
            name: self._racers.get(name) or (launch, self.make_block(launch))
            for name, launch in {id(launch): launch for launch in racing}.items()
        }
        new = [block for name, (_, block) in kept.items() if name not in self._racers]
        if new:
            self._upload(new)
        self._racers = kept
        return [kept[id(launch)][1] for launch in racing]

    def _upload(self, blocks: Sequence[Block]) -> None:
        """Run all parts of new blocks once: the first replay of a graph uploads it."""
        graphs = self.launches > 1 or self._sandwiched
        parts = math.ceil(len(self._inputs) / self.launches) if graphs else 1
        self.machine.times_us([*blocks] * parts, lost=1.0)


def sandwich(
    launch: Launch | None, inputs: Tensors, output: "torch.Tensor", overlapped: bool = False
) -> list[Callable[[], None]]:
    """The launches of a sandwich, in order; of its neighbours alone where there is no kernel.

    The neighbours stand for the kernels before and after it in a model. One writes its first input, one reads its
    output. Both are torch's, so that nothing is to be compiled, and they are launched as torch launches everything:
    without programmatic dependent launch. Overlapped ones are Triton's, with it.
    """
    again = partial(rewrite, overlapped=True) if overlapped else rewrite
    first = partial(again, inputs[0])
    if launch is None:
        return [first, partial(again, output)]
    results: list[torch.Tensor] = []

    def kernel() -> None:
        result = launch(inputs, output)
        results.append(output if result is None else result)

    return [first, kernel, lambda: again(results.pop())]


def _launch(launch: Launch, inputs: Tensors, output: "torch.Tensor") -> None:
    """Launch, and let go of a result that is elsewhere."""
    launch(inputs, output)


def rewrite(tensor: "torch.Tensor", overlapped: bool = False) -> None:
    """Read a tensor and write what it holds, with one elementwise kernel.

    The values stay: a kernel's results can be verified between two sandwiches, and multiplications that follow draw the
    power that random numbers draw.

    Parameters
    ----------
    tensor
        What is rewritten.
    overlapped
        Begin before the last kernel ends, and let the next begin before this one ends: on a GPU, and of what lies in
        memory without gaps.
    """
    import torch

    words = tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(tensor.itemsize, torch.int64))
    in_order = words if words.is_contiguous() else words.mT
    if overlapped and words.is_cuda and in_order.is_contiguous():
        blocks = -(-words.numel() // _ELEMENTS)
        _overlapped_kernel()[(blocks,)](in_order, words.numel(), elements=_ELEMENTS, launch_pdl=True)
    else:
        words.bitwise_xor_(0)  # of integers: torch has no arithmetic for e4m3


_ELEMENTS = 1024  # of a block of that kernel


@cache
def _overlapped_kernel() -> Any:
    """Triton's kernel that rewrites: it waits for the last kernel, and lets the next begin, as TorchInductor's do."""
    import triton
    from triton import language

    @triton.jit  # type: ignore[untyped-decorator]
    def rewritten(words, count, elements: language.constexpr):  # type: ignore[no-untyped-def]
        language.extra.cuda.gdc_wait()
        at = language.program_id(0) * elements + language.arange(0, elements)
        found = language.load(words + at, mask=at < count)
        language.extra.cuda.gdc_launch_dependents()
        language.store(words + at, found, mask=at < count)

    return rewritten

"""The options of the guided samplers, with what was measured of their defaults."""

from dataclasses import dataclass

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.search.samplers.options import option
from tilescout.spaces.constraints import Mask


@dataclass(frozen=True)
class GuidedOptions:
    """The options of a guided search. Each field has its range and its meaning, see `options_of`.

    Scores are those of ``tilescout compare``: 0 is random search, 1 the optimum from the first trial on.
    """

    # Without a prior, on recorded spaces of three other kernels, searches that began with 5 configurations spread over
    # the space were closer to the best after 5, 10 and 20 trials than those that began with 10 at random.
    startup: int = option(5, 1, 10_000, "configurations spread over the space to begin with where there is no prior")
    drawn: int = option(64, 1, 10**6, "configurations that are drawn for each of them; the one furthest from all is it")
    candidates: int = option(1024, 1, 10**6, "configurations that are looked at for a proposal, besides neighbours")
    tops: int = option(3, 0, 1000, "best trials whose neighbours are looked at too")
    # Without a prior, on recorded spaces of other kernels, 2 scored 0.73 and 1 scored 0.69.
    radius: int = option(2, 0, 100, "knobs at most in which a neighbour differs")
    length: float = option(1.5, 1e-3, 1e3, "distance over which a prior's errors are alike; 1 is a knob's whole range")
    # By knobs alone, and without an error of a configuration alone, the process was too sure near what it had measured.
    # Chosen on 48 recorded problems that the models had not seen. Lengths of 0.8 to 2 and 0.1 to 0.35 for the error
    # searched alike there; a model that is the reverse of the truth is overcome with 2 and 0.1 as it was with knobs
    # alone, and not with 1.2 (`experiments/results/correlated-errors.md`).
    work_length: float = option(2.0, 1e-3, 1e3, "the same of features; 1 is a feature's whole range in the space")
    alone: float = option(0.1, 0.0, 1e3, "the error of a configuration alone, in its expected standard deviations")
    # Of 96 replayed searches of cuBLASLt's algorithms 92 ended within 1 % of the best with 0.1, 96 with 0.3 and 95 with
    # 0.5; of 67 on which it was not chosen, 64 with 0.1 and 67 with 0.3 (`experiments/results/library-model.md`).
    alone_apart: float = option(0.3, 0.0, 1e3, "the same of a library's kernels")
    noise: float = option(0.005, 1e-6, 1.0, "standard deviation of a measured log time")
    pilot_noise: float = option(0.3, 1e-6, 10.0, "the same of a pruned trial's, which one launch has told")
    # Of 48 recorded problems that the models had not seen, with 16 proposals in flight, 0.5 % is left to find after ten
    # trials and 0.3 % after sixteen, not 0.8 and 0.5; to within 1 % it takes 5.8 trials in the mean, not 7.5.
    around: int = option(
        3, 0, 1000, "of proposals before any outcome, with a prior, each such one has a new tile; 0: none"
    )
    # Replayed on four kernels that describe no tiling, 40 problems, three searches each, 10.1 % is left after five
    # trials, 3.7 after ten and 1.4 after twenty without; with one earlier study 4.9, 2.3 and 0.9, with four 3.4, 1.4
    # and 0.6 (`experiments/results/few-shot.md`).
    recall: int = option(1, 0, 1, "without a prior, learn from earlier studies of the kernel in the store; 0: do not")
    failure: float = option(2.0, 0.0, 100.0, "how much slower than expected a failure counts, in standard deviations")
    refit: int = option(20, 1, 10_000, "trials after which the kernel is fitted anew without a prior; early on sooner")
    # Calibrated by conformal risk control at 10 %, on 84 recorded problems of 71 shapes that the models had not seen,
    # with 16 proposals in flight: 15 is the least with which so few answers are more than 1 % off, 16 is it with fewer
    # in flight (`experiments/results/stop-rule.md`). What counts as faster is `ALIKE` in `joint`.
    patience: int = option(15, 1, 10**6, "trials without a faster one after which a search stops, with a prior")
    # Replayed in both spaces on what judged tunings had tried on 45 problems, from an empty store, by models that had
    # not seen them: with 3, 5 and 7, 7, 6 and 3 answers are more than 1 % off, and 17.7, 19.8 and 21.9 kernels are
    # compiled in the mean (`experiments/results/stop-rule.md`).
    seeing: int = option(7, 0, 10**6, "of these, the fewest that were proposed once the best was known")
    # Replayed on 108 problems of an H100 that are recorded in both spaces, by models that had not seen their shapes:
    # with 10 and 5, from an empty store 9 and 8 answers are more than 1 % off, after 25.2 and 23.2 trials in the mean;
    # with both portfolios 1 and 2, after 22.6 and 19.8, of which 8.0 and 5.5 are compiled.
    each: int = option(5, 1, 10**6, "the fewest trials in each of several spaces that are searched together")
    least: int = option(10, 1, 10**6, "finished trials before which a search does not stop by itself")
    # Without a prior the process is too sure of itself early on: of 104 searches of other kernels' recorded spaces that
    # stopped after 20 to 199 trials, 33 had more than 1 % left to find.
    least_cold: int = option(100, 1, 10**6, "the same where there is no prior")
    # Of 96 replayed searches of cuBLASLt's algorithms the rule would have ended 91 before the 40th trial, 17 in all
    # with more than 1 % left to find. After 40 trials 4 had (`experiments/results/library-model.md`). Two searches of
    # 56 trials with a relative's model found their answers in the 36th and the 49th (`stream-k.md` there).
    least_apart: int = option(40, 1, 10**6, "the same of a library's kernels, and with a relative's model")
    gain: float = option(0.01, 0.0, 0.99, "relative improvement worth going on for without a prior")
    ahead: int = option(10, 1, 10**6, "likeliest configurations that are considered before such a search stops")
    chance: float = option(0.05, 0.0, 1.0, "it stops if they find the gain with less than this probability")
    # Replayed on 36 recorded problems by models that had not seen the shapes, with the portfolio in the store: with 1,
    # 0.25, 0.05 and 0.01, 21.1, 17.2, 14.5 and 13.0 kernels are compiled in the mean. Of 36 answers, 3 each are more
    # than 1 % off. The mean regret is 0.22, 0.30, 0.31 and 0.32 %.
    stored: float = option(0.01, 1e-4, 1.0, "price of a trial whose kernel is compiled already; others cost 1")
    # A trial takes a GPU some 25 ms, and a kernel 16 cores some 90 ms: so much is left of the price without the latter.
    relaunched: float = option(0.25, 1e-4, 1.0, "the same of one whose kernel the search has had compiled for another")
    # The same problems and 36 more, with the portfolio in the store: where a compiled trial takes a patience of 1, 2, 3
    # and 5, 9.4, 5.7, 4.4 and 3.2 kernels are compiled in the mean; without `capital` 14.4, from an empty store 20.2.
    # Of 72 answers 4, 5, 6, 7, 4, 6 are more than 1 % off. The mean regret is 0.25, 0.32, 0.35, 0.38, 0.23, 0.33 %.
    # Only of the portfolio: with a store that earlier searches filled 27 of 216 answers are over 1 % off so, and 46
    # where whatever is stored goes first (`experiments/results/stop-rule.md`).
    capital: float = option(
        0.3, 0.0, 100.0, "kernels of the portfolio go first that are expected this near to the best, log time"
    )
    # What was proposed before any outcome is compiled while a GPU is set up, and takes 1. In both spaces of 25
    # problems, with both portfolios in the store, 8.6 kernels are compiled in the mean so, and 10.4 where each trial
    # takes 1; 1 answer is more than 1 % off either way, and the mean regret is 0.10 and 0.08 %.
    compiled: float = option(3.0, 1.0, 100.0, "patience that another trial takes then, if `least` such are stored")
    # Of 84 problems, with the portfolio in the store and 14 and 16 proposals in flight, 7 and 10 answers are more than
    # 1 % off without, 6 and 6 with 8, and 9 with 6 and 14 in flight. These kernels are compiled while a GPU is set up.
    ventured: int = option(
        8, 0, 1000, "of proposals before any outcome, where such are stored, each such one is another; 0: none"
    )
    # Replayed on 54 problems of an H100 that are recorded in both spaces, by models that had not seen the shapes, with
    # the portfolio in the store: with 0 and 0.01, 3 and 2 kernels are compiled in the median, and a search waits 0.81
    # and 0.61 s for compilers in the mean, by a simulated clock. 4 answers are more than 1 % off either way, and the
    # mean regret is 0.20 % (`experiments/results/wall-time.md`).
    dear: float = option(0.01, 0.0, 1.0, "expected gain from which one more kernel is compiled then, once one is timed")
    enough: int = option(40, 1, 10**6, "timed trials of other problems from which a missing model is learned")
    trees: int = option(24, 1, 1000, "trees of the forest of that model")

    def noise_of(self, pruned: Mask) -> Floats:
        """Standard deviations of measured log times, of the shape of `pruned`, which says of which a pilot told."""
        return np.where(pruned, self.pilot_noise, self.noise)

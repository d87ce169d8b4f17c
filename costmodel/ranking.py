"""A small neural network that learns which of two configurations of a problem is faster.

C. Burges et al.: Learning to rank using gradient descent. ICML 2005 (RankNet). Pairs are drawn within a problem. Fast
configurations are drawn more often, because the order among slow ones is of no use. A second term of the loss, the
squared error of the log times, keeps the scores in that unit: they are predictions too. Like the forest it corrects the
analytic model.

Torch is used to fit; a fitted network is a list of arrays and predicts with NumPy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.analytic import HANDFUL, Constants, calibrate_from, log_base
from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.ensemble import EnsembleModel
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.threads import in_parts, one_thread

if TYPE_CHECKING:
    import torch

Layers = tuple[tuple[Floats, Floats], ...]
"""Weights [inputs, outputs] and biases [outputs] of each layer."""

Single = NDArray[np.float32]

ROWS = 4096
"""Rows that are predicted together: what lies between two layers fits into the processor's cache."""

THREADS = 4
"""Threads that predict a large space."""

REACH = 4.0
"""Standardised features beyond this count as this: a network extrapolates without bound."""


@dataclass(frozen=True)
class RankingOptions:
    """How networks are fitted.

    Attributes
    ----------
    members
        Networks of the ensemble, from different random weights. Eight order kernels better than two.
    validation_members
        Networks of each ensemble that is fitted without some of the problems, to estimate the errors on new ones.
    width
        Units of each of the two hidden layers.
    steps, problems, pairs
        Steps of the optimiser, the most problems that are drawn for each of them, and pairs of all these together. A
        step takes 2.5 ms on one core, however many problems there are.
    rate
        Largest learning rate of Adam; it falls to zero along a cosine.
    temperature
        Scale of the difference of scores in the loss: pairs much further apart than this count as decided. It is the
        weight of the order beside the squared error, too: with 0.05 in place of 0.02 times were further off.
    focus
        How fast the probability to be drawn decays with the log of the time over the fastest.
    absolute
        Weight of the squared error of the log times.
    decay
        Weight decay.
    handful
        Random measurements a problem that the analytic model is calibrated with.
    seed
        Seed of all random draws.
    """

    members: int = 8
    validation_members: int = 2
    width: int = 48
    steps: int = 4000
    problems: int = 64
    pairs: int = 768
    rate: float = 3e-3
    temperature: float = 0.02
    focus: float = 4.0
    absolute: float = 1.0
    decay: float = 0.1
    handful: int = HANDFUL
    seed: int = 0


@dataclass(frozen=True)
class Networks:
    """A fitted ensemble.

    Attributes
    ----------
    names
        The features.
    centre, scale
        Mean and standard deviation of each feature in the training, of shape [features].
    members
        The layers of each network.
    constants
        Of the analytic model that they correct; None if they predict the log time.
    """

    names: tuple[str, ...]
    centre: Floats
    scale: Floats
    members: tuple[Layers, ...]
    constants: Constants | None

    def settled(self, name: str, value: float) -> "Networks":
        """The same of configurations whose feature of this name is a given one, which they need not have any more."""
        column = self.names.index(name)
        names = self.names[:column] + self.names[column + 1 :]
        known = np.clip((value - self.centre[column]) / self.scale[column], -REACH, REACH)
        members = []
        for (weight, bias), *others in self.members:
            members.append(((np.delete(weight, column, axis=0), bias + known * weight[column]), *others))
        centre, scale = (np.delete(each, column) for each in (self.centre, self.scale))
        return Networks(names, centre, scale, tuple(members), self.constants)

    def first(self, members: int) -> "Networks":
        """The same with the first members alone."""
        return replace(self, members=self.members[:members])

    @one_thread()
    @np.errstate(over="ignore", invalid="ignore")
    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """The mean log time, and the variance between networks, each of shape [configurations].

        They are infinite, or no numbers, if those of damaged networks are too large: a `Prediction` refuses them.
        """
        said = np.empty((len(self.members), len(features)))
        # 258,007 configurations take 0.20 s of CPU time, and 0.37 s in double precision, most of it for exponentials.
        # Log times differ by less than 1e-7 (2026-11-28).
        members = [
            [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers] for layers in self.members
        ]

        @np.errstate(over="ignore", invalid="ignore")  # once more: it holds for one thread
        def forward(rows: slice) -> None:
            values = np.ascontiguousarray(features.values[rows])  # the last bits of a product depend on the order
            inputs = np.clip((values - self.centre) / self.scale, -REACH, REACH).astype(np.float32)
            for member, layers in enumerate(members):
                said[member, rows] = _forward(layers, inputs)

        in_parts(forward, len(features), ROWS, THREADS)
        return log_base(features, self.constants) + said.mean(axis=0), said.var(axis=0)


class RankingModel(EnsembleModel):
    """See the module. A censored measurement takes part only in pairs that it loses."""

    def __init__(self, options: RankingOptions | None = None) -> None:
        self.options = options if options is not None else RankingOptions()
        self.seed = self.options.seed

    def grow(self, samples: Sequence[Sample], draft: bool = False) -> Networks:
        options = self.options
        samples = [sample for sample in samples if not sample.censored.all()]
        features = [np.ascontiguousarray(sample.features.values) for sample in samples]
        values = np.concatenate(features)
        centre, scale = values.mean(axis=0), values.std(axis=0)
        scale[scale == 0] = 1.0
        names = samples[0].features.names
        constants = calibrate_from(samples, options.handful, options.seed)
        inputs = [np.clip((each - centre) / scale, -REACH, REACH) for each in features]
        bases = [log_base(s.features, constants) for s in samples]
        members = range(min(options.validation_members, options.members) if draft else options.members)
        layers = [_train(samples, inputs, bases, options, options.seed + member) for member in members]
        return Networks(names, centre, scale, tuple(layers), constants)


def _train(
    samples: Sequence[Sample], inputs: Sequence[Floats], bases: Sequence[Floats], options: RankingOptions, seed: int
) -> Layers:
    import torch

    generator = torch.Generator().manual_seed(seed)
    sizes = [inputs[0].shape[1], options.width, options.width, 1]
    weights: list[torch.Tensor] = []
    for size, outputs in pairwise(sizes):
        weights += [torch.randn(size, outputs, generator=generator) * (2 / size) ** 0.5, torch.zeros(outputs)]
    weights[-2] *= 0.1  # the first guess is the analytic model's
    for weight in weights:
        weight.requires_grad_()
    optimiser = torch.optim.AdamW(weights, lr=options.rate, weight_decay=options.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.steps)
    measured = _Measured.of(samples, inputs, bases, options)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other: the networks are small
    try:
        for _ in range(options.steps):
            optimiser.zero_grad()
            loss = _loss(weights, measured, options, generator)
            loss.backward()
            optimiser.step()
            schedule.step()
    finally:
        torch.set_num_threads(threads)
    arrays = [weight.detach().double().numpy() for weight in weights]
    return tuple(zip(arrays[::2], arrays[1::2], strict=True))


@dataclass(frozen=True)
class _Measured:
    """The measurements of all problems one behind the other: one pass of a network serves them all."""

    inputs: "torch.Tensor"  # [measurements, features]
    base: "torch.Tensor"
    log_time: "torch.Tensor"
    exact: "torch.Tensor"
    chance: "torch.Tensor"  # of being drawn, [problems, measurements of the largest]; zero behind a problem's last
    first: "torch.Tensor"  # measurement of each problem, [problems, 1]

    @classmethod
    def of(
        cls, samples: Sequence[Sample], inputs: Sequence[Floats], bases: Sequence[Floats], options: RankingOptions
    ) -> "_Measured":
        import torch

        chance = np.zeros((len(samples), max(map(len, samples))))
        for row, sample in zip(chance, samples, strict=True):
            row[: len(sample)] = np.exp(-options.focus * (sample.log_time - sample.log_time.min()))
        ends = np.cumsum([len(sample) for sample in samples])
        return cls(
            torch.as_tensor(np.concatenate(inputs), dtype=torch.float32),
            torch.as_tensor(np.concatenate(bases), dtype=torch.float32),
            torch.as_tensor(np.concatenate([sample.log_time for sample in samples]), dtype=torch.float32),
            torch.as_tensor(np.concatenate([~sample.censored for sample in samples])),
            torch.as_tensor(chance, dtype=torch.float32),
            torch.as_tensor(np.concatenate([[0], ends[:-1]])[:, None]),
        )


def _loss(
    weights: "list[torch.Tensor]", measured: _Measured, options: RankingOptions, generator: "torch.Generator"
) -> "torch.Tensor":
    import torch
    from torch.nn.functional import silu, softplus

    # Few problems a step, and many steps: of 683 samples as much is learned in a third of the time of all at once.
    problems = torch.randperm(len(measured.first), generator=generator)[: options.problems]
    pairs = -(-options.pairs // len(problems))
    drawn = torch.multinomial(measured.chance[problems], 2 * pairs, replacement=True, generator=generator)
    drawn = drawn + measured.first[problems]  # [problems, 2 * pairs]
    hidden = measured.inputs[drawn]
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = silu(hidden @ weight + bias)
    score = (hidden @ weights[-2] + weights[-1])[..., 0] + measured.base[drawn]
    truth, exact = measured.log_time[drawn], measured.exact[drawn]
    one, other = score.chunk(2, dim=1)
    faster, slower = truth.chunk(2, dim=1)
    # Of a pair with a censored one the order is known only if that is the slower.
    one_is_exact, other_is_exact = exact.chunk(2, dim=1)
    known = torch.where(faster < slower, one_is_exact, other_is_exact)
    sign = torch.sign(slower - faster)
    ranked = softplus(-sign * (other - one) / options.temperature) * known
    squared = (score - truth) ** 2 * exact
    loss: torch.Tensor = ranked.mean() * options.temperature + options.absolute * squared.mean()
    return loss


def _forward(layers: Sequence[tuple[Single, Single]], inputs: Single) -> Single:
    hidden = inputs
    for weight, bias in layers[:-1]:
        hidden = hidden @ weight
        hidden += bias
        gate = np.clip(hidden, -60, 60)  # in place from here on: no time goes into allocating memory
        np.negative(gate, out=gate)
        np.exp(gate, out=gate)
        gate += 1
        hidden /= gate
    weight, bias = layers[-1]
    return np.asarray((hidden @ weight + bias)[:, 0])

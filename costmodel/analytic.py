"""A roofline with latency terms for tiled products, whose constants a few dozen measurements of a device settle.

The time of a configuration is that of its busiest multiprocessor or of device memory, whichever is longer:

    time  = launch + (processor^p + memory^p)^(1/p)
    processor = waves * (fill + steps * step + store)
    step  = (multiply^p + shared^p + l2^p + latency^p)^(1/p) + overhead

The norm with p = 4 is a maximum with a rounded corner: two limits that are nearly equal slow each other down.
``multiply`` is the time of one stage of the ring on the tensor cores, ``shared`` the time to read its operands from
shared memory, ``l2`` the time of its bytes at the rate that the busy multiprocessors share. A stage is requested,
arrives, is multiplied and only then is free again; ``latency`` is the time of all that over the stages in flight.
The counts come from `tilescout.costmodel.features`, the constants from `AnalyticModel.fit`.

After S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009, and J. Little's law for the latency term.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.shipped import shipped_file
from tilescout.costmodel.threads import one_thread
from tilescout.spaces.errors import ModelError

HANDFUL = 24
"""Random measurements a problem that a learned model calibrates the analytic one with, unless others are asked for."""

_POWER = 4
_FEATURES = (
    "waves", "steps", "stages", "stage_cycles", "smem_intensity", "l2_intensity", "rows", "columns", "depth", "area",
    "busy", "cluster", "warp_groups", "time_memory",
)  # fmt: skip


@dataclass(frozen=True)
class Constants:
    """Rates and latencies of a device; a calibration starts from the defaults.

    Attributes
    ----------
    launch_us
        From the launch to the first load, and from the last store to the end, in µs.
    clock_ghz
        Clock under load.
    multiply
        Cycles of a stage on the tensor cores, over their ideal number.
    lone_group
        A further factor if one warp group multiplies alone, which waits for its own instructions.
    shared
        Cycles to read operands from shared memory, over their ideal number.
    l2_bytes
        Bytes a cycle that one multiprocessor reads of the L2.
    l2_total
        Bytes a cycle that all of them together read, over the number of multiprocessors.
    latency_us
        From the request of a stage to its first bytes.
    held
        Stages that are idle: released, but not requested yet.
    overhead_us
        Of each stage: barriers.
    cluster_us
        Of each stage, for every doubling of the cluster.
    fill_us
        Of each tile: until the first stage is there.
    store_bytes
        Bytes of D a cycle that one multiprocessor writes.
    memory
        Time of device memory over that at the datasheet's bandwidth.
    """

    launch_us: float = 2.0
    clock_ghz: float = 1.7
    multiply: float = 1.05
    lone_group: float = 1.2
    shared: float = 1.0
    l2_bytes: float = 60.0
    l2_total: float = 30.0
    latency_us: float = 0.6
    held: float = 0.3
    overhead_us: float = 0.01
    cluster_us: float = 0.01
    fill_us: float = 0.7
    store_bytes: float = 32.0
    memory: float = 1.1


@dataclass(frozen=True)
class Calibration:
    """Constants with what is known of them.

    Attributes
    ----------
    constants
        The constants.
    spread, shift
        Standard deviations of the log error of a configuration, and of a problem as a whole.
    measurements
        The number of measurements that they were fitted to.
    source
        Where the measurements come from.
    """

    constants: Constants
    spread: float
    shift: float
    measurements: int
    source: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The features that the model reads; it takes others beside them."""
        return _FEATURES

    def predict(self, features: Features) -> Prediction:
        """Log times of configurations, every one with the same spread."""
        mean = np.log(time_us(features, self.constants))
        return Prediction(mean, np.full(len(mean), self.spread), self.shift)

    def to_json(self) -> str:
        """A text that `from_json` reads back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Calibration":
        """Read what `to_json` wrote.

        Raises
        ------
        ModelError
            If it is something else.
        """
        try:
            record = json.loads(text)
            return cls(**{**record, "constants": Constants(**record["constants"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError("not a calibration; make one with `tilescout train`") from error


class AnalyticModel(CostModel):
    """See the module.

    Parameters
    ----------
    calibration
        Constants that were fitted before; without them, call `fit`.
    """

    fitted: Calibration | None

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.fitted = calibration

    def known(self, features: Features) -> Features:
        _check_tiled(features)
        return features

    def learn(self, samples: Sequence[Sample]) -> Calibration:
        """Settle the constants by least squares of log times, without regard for censored measurements."""
        from scipy.optimize import least_squares

        exact = [sample.exact() for sample in samples]
        exact = [sample for sample in exact if len(sample)]
        counts = [_Counts.of(sample.features) for sample in exact]
        start = np.log([getattr(Constants(), field.name) for field in fields(Constants)])

        def misses(constants: Constants) -> list[Floats]:
            return [s.log_time - np.log(_time_us(c, constants)) for s, c in zip(exact, counts, strict=True)]

        def errors(logs: Floats) -> Floats:
            # A weak pull to the start settles what the measurements leave open.
            return np.concatenate([*misses(_constants(logs)), 0.1 * (logs - start)])

        # With two threads OpenBLAS adds up in another order: constants differed by 3e-6 (AMD EPYC, 2026-11-28).
        with one_thread():
            found = least_squares(errors, start, loss="soft_l1", f_scale=0.1, max_nfev=60)
        constants = _constants(found.x)
        left = misses(constants)
        own = np.concatenate([miss - np.median(miss) for miss in left])
        return Calibration(
            constants=constants,
            spread=max(float(np.quantile(np.abs(own), 0.683)), 1e-3),
            shift=float(np.sqrt(np.mean([np.median(miss) ** 2 for miss in left]))),
            measurements=sum(map(len, exact)),
        )


def calibrate_from(samples: Sequence[Sample], handful: int, seed: int) -> Constants | None:
    """Constants from some random measurements of each problem; None if there is none, or the features are of no tiling.

    Parameters
    ----------
    samples
        Measurements; not all of them are censored.
    handful
        Measurements a problem to calibrate with.
    seed
        Of which they are.
    """
    if not is_tiled(samples[0].features.names):
        return None
    generator = np.random.default_rng(seed)
    exact = [sample.exact() for sample in samples]
    few = [s.take(generator.choice(len(s), min(handful, len(s)), replace=False)) for s in exact if len(s)]
    return AnalyticModel().learn(few).constants if few else None


def is_tiled(names: tuple[str, ...]) -> bool:
    """Whether features of these names are enough for the analytic model."""
    return set(_FEATURES) <= set(names)


def _check_tiled(features: Features) -> None:
    missing = [name for name in _FEATURES if name not in features.names]
    if missing:
        raise ModelError(
            f"the analytic model needs the features of a tiled product, {missing[0]} is missing: "
            "the template must describe its tiling"
        )


def time_us(features: Features, constants: Constants) -> Floats:
    """The model's time of each configuration in µs, of shape [configurations]."""
    return _time_us(_Counts.of(features), constants)


def log_base(features: Features, constants: Constants | None) -> Floats:
    """The log times of the model, of shape [configurations], for another one to correct; zeros without constants."""
    return np.zeros(len(features)) if constants is None else np.log(time_us(features, constants))


def shipped_calibration(device: str) -> Calibration | None:
    """The calibration of a device that comes with the package; None if there is none."""
    path = shipped_file("analytic", device, ".json")
    return None if path is None else Calibration.from_json(path.read_text())


@dataclass(frozen=True)
class _Counts:
    waves: Floats
    steps: Floats
    stages: Floats
    multiply: Floats  # cycles of a stage
    shared: Floats  # cycles of a stage
    l2_bytes: Floats  # of a stage
    tile_bytes: Floats
    busy: Floats  # share of multiprocessors
    doublings: Floats  # of the cluster
    lone: Floats  # 1 with one warp group
    memory_us: Floats

    @classmethod
    def of(cls, features: Features) -> "_Counts":
        _check_tiled(features)
        logs = {name: features.values[:, features.names.index(name)] for name in _FEATURES}
        operations = logs["rows"] + logs["columns"] + logs["depth"] + 1
        return cls(
            waves=2 ** logs["waves"],
            steps=2 ** logs["steps"],
            stages=2 ** logs["stages"],
            multiply=2 ** logs["stage_cycles"],
            shared=2 ** (logs["stage_cycles"] - logs["smem_intensity"]),
            l2_bytes=2 ** (operations - logs["l2_intensity"]),
            tile_bytes=2 ** (logs["area"] + 1),
            busy=2 ** logs["busy"],
            doublings=logs["cluster"],
            lone=np.asarray(logs["warp_groups"] == 0, dtype=np.float64),
            memory_us=2 ** logs["time_memory"],
        )


def _constants(logs: Floats) -> Constants:
    return Constants(**{field.name: float(value) for field, value in zip(fields(Constants), np.exp(logs), strict=True)})


def _time_us(work: _Counts, c: Constants) -> Floats:
    cycle_us = 1e-3 / c.clock_ghz
    multiply = work.multiply * c.multiply * c.lone_group**work.lone * cycle_us
    shared = work.shared * c.shared * cycle_us
    l2 = work.l2_bytes / np.minimum(c.l2_bytes, c.l2_total / work.busy) * cycle_us
    latency = (c.latency_us + l2 + np.maximum(multiply, shared)) / (work.stages - min(c.held, 1.5))
    step = _level(multiply, shared, l2, latency)
    step = step + c.overhead_us + c.cluster_us * work.doublings
    store = work.tile_bytes / c.store_bytes * cycle_us
    processor = work.waves * (c.fill_us + work.steps * step + store)
    return c.launch_us + _level(processor, work.memory_us * c.memory)


def _level(*times: Floats) -> Floats:
    """The largest time, with the corner rounded where two are level."""
    total: Floats = sum((time**_POWER for time in times), start=np.zeros(1))
    return np.asarray(total ** (1 / _POWER))

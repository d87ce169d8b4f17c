"""Features of configurations, which models learn from, computed for a whole space at once.

Two levels. The generic features are the knobs themselves, under their names: any space has them. The features of a
tiled matrix product say what the hardware must do for a configuration; they exist where its template describes a
`Tiling`, and make different problems and releases of a kernel comparable. Those of grouped products are in
`tilescout.costmodel.grouped`.

Features of a tiled product, all dimensionless or with the unit named, those of wide range as binary logarithms:

======================  ==================================================================================
``m n k batch``         log2 of the problem's sizes
``intensity``           log2 of operations a byte of compulsory traffic, over the device's balance
``rows columns depth``  log2 of the block's tile, in elements; ``area`` of rows x columns; ``aspect`` rows / columns
``pad_m pad_n pad_k``   log2 of padded size / size: tile, cluster and stage quantisation
``units``               log2 of units of work (a tile for every block of a cluster) / clusters that run at once
``waves``               log2 of the rounds of the persistent grid; ``tail`` log2 of rounds / ``units`` (>= 0)
``busy``                log2 of the share of multiprocessors that have any work
``steps``               log2 of ring stages that a block consumes for one tile
``stage_bytes``         log2 of bytes of a stage; ``ring_bytes`` of all stages
``stage_cycles``        log2 of cycles of tensor core for a stage; ``ring_cycles`` of all stages
``ring_steps``          log2 of steps / stages: how often the ring is filled for a tile
``l2_intensity``        log2 of operations a byte read from L2, with multicast
``smem_intensity``      log2 of operations a byte read from shared memory by the matrix instructions
``multicast_a _b``      log2 of blocks that share a load of A, of B
``cluster split``       log2 of blocks a cluster, of blocks that share a tile along k
``together``            log2 of clusters that are launched side by side
``wave_bytes``          log2 of bytes of distinct A and B that one round of blocks reads, over the L2's size
``traffic``             log2 of bytes through device memory, re-reads of A and B included, / the compulsory ones
``warp_groups``         log2; ``accumulators`` log2 of fp32 accumulators a thread; ``mma_columns`` log2
``free_shared``         share of the block's shared memory that is left over
``ping_pong``           0 or 1, as are ``early_launch shares_evenly swapped along_m``;  ``swizzle`` log2
``time_mma``            log2 of a lower bound in µs, as ``time_l2 time_memory time_latency time_store``: the parts of
                        the analytic model
``bound``               log2 of the largest of them; ``second`` of the next
======================  ==================================================================================

Features of a compiled kernel, for configurations whose artifact exists; a space as a whole has none:

=========================  ===============================================================================
``binary:registers``       log2 of registers a thread at launch
``binary:spill_bytes``     log2 of 1 + bytes of stack frame and local memory a thread
``binary:instructions``    log2 of machine instructions of 16 bytes
=========================  ===============================================================================

They are read from the cubin: registers and bytes by NVIDIA's ``cuobjdump -res-usage``, instructions off the size of its
code section (`tilescout.search.build.binaries`).

The rates of the hardware and their sources are in `tilescout.spaces.devices` and `tilescout.spaces.hardware`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.grouped import grouped_features
from tilescout.costmodel.roofline import parts_us
from tilescout.costmodel.threads import in_parts
from tilescout.costmodel.work import work_of
from tilescout.spaces.description import Describes
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.faults import described
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.tiling import Tiling, ceil_div

BINARY_PREFIX = "binary:"
"""The beginning of the names of features of a compiled kernel."""

KNOB = "knob:"
"""The beginning of the names of features that are a knob's values, and say nothing of what they do."""

ROWS, THREADS = 16384, 8
"""Configurations that are described together, and threads that do so at most. What a step leaves for the next one then
fits into a processor's cache: 258,007 take 0.19 s of CPU time, and 0.22 s all at once (2026-11-28)."""


@dataclass(frozen=True)
class Features:
    """Named columns.

    Attributes
    ----------
    names
        What each column is.
    values
        Of shape [configurations, features]; in memory one column lies behind the other, where that is quicker.
    """

    names: tuple[str, ...]
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.int64]) -> "Features":
        """The features of some configurations."""
        return Features(self.names, self.values[rows])

    def only(self, names: tuple[str, ...]) -> "Features":
        """The features of these names."""
        return Features(names, self.values[:, [self.names.index(name) for name in names]])

    def beside(self, others: "Features") -> "Features":
        """These features and others of the same configurations."""
        return Features(self.names + others.names, np.concatenate([self.values, others.values], axis=1))

    @classmethod
    def of(cls, columns: dict[str, Floats]) -> "Features":
        """Features from columns by name."""
        return cls(tuple(columns), np.stack(list(columns.values())).T)  # of 266,527 row by row takes 0.14 s, so 0.02


def knob_features(space: SearchSpace, rows: slice = slice(None)) -> dict[str, Floats]:
    """The knobs of a space as numbers: log2 of a positive number's value, else the position of the value."""
    found = {}
    for knob, codes in zip(space.knobs, space.codes[rows].T, strict=True):
        if all(isinstance(value, int) and value > 0 for value in knob.values):
            found[KNOB + knob.name] = np.log2(np.array(knob.values, dtype=np.float64))[codes]
        else:
            found[KNOB + knob.name] = codes.astype(np.float64)
    return found


def space_features(space: SearchSpace, template: Describes | None = None) -> Features:
    """The features of every configuration of a space.

    Parameters
    ----------
    space
        The configurations.
    template
        Describes how they divide the work. Without one, or if it describes no tiling, the features are the knobs.

    Raises
    ------
    SpaceError
        If the template can't describe them.
    """
    if template is None:
        return Features.of(knob_features(space))
    try:
        found = _filled(space, template)
    except Exception as error:  # whatever code of others raises
        raise SpaceError(f"{space.name}: the tiling of its template failed: {described(error)}") from error
    if not np.isfinite(found.values).all():
        row, column = np.argwhere(~np.isfinite(found.values))[0].tolist()
        raise SpaceError(
            f"{space.name}: by the tiling of its template {found.names[column]} is {found.values[row, column]} for "
            f"{space[row]}: sizes, stages and numbers of blocks are at least 1"
        )
    return found


def _filled(space: SearchSpace, template: Describes) -> Features:
    """The features of a space, some configurations after others."""
    names = tuple(_described(space, template, slice(1)))
    values = np.empty((len(names), len(space)))

    def fill(rows: slice) -> None:
        for name, column in _described(space, template, rows).items():
            values[names.index(name), rows] = column

    in_parts(fill, len(space), ROWS, THREADS)
    return Features(names, values.T)


def _described(space: SearchSpace, template: Describes, rows: slice) -> dict[str, Floats]:
    """The features of some configurations, by name: each of shape [rows], or of all of them alike."""
    columns = {name: column[rows] for name, column in space.columns.items()}
    with np.errstate(all="ignore"):  # what becomes of a zero is refused later
        grouped = template.grouped_tiling(columns, space.problem)
        if grouped is not None:
            return knob_features(space, rows) | grouped_features(grouped, space.device)
        tiling = template.tiling(columns, space.problem)
        return knob_features(space, rows) if tiling is None else tiling_features(tiling, space.device)


def binary_features(registers: Floats, spill_bytes: Floats, instructions: Floats) -> Features:
    """The features of compiled kernels; see the module's table.

    Parameters
    ----------
    registers, spill_bytes
        A thread, of shape [configurations].
    instructions
        Of the kernel, of the same shape.
    """
    columns = {"registers": registers, "spill_bytes": 1 + spill_bytes, "instructions": instructions}
    return Features.of({BINARY_PREFIX + name: np.log2(column) for name, column in columns.items()})


def tiling_features(tiling: Tiling, device: Device) -> dict[str, Floats]:
    """The features of a tiled product, by name; see the module's table."""
    t, problem, work = tiling, tiling.product, work_of(tiling, device)
    ones = np.ones(len(t))
    stage_operations = 2.0 * t.rows * t.columns * t.depth
    times = parts_us(work, t.stages, device)
    ordered = np.sort(np.stack(list(times.values())), axis=0)
    balance = device.peak_of(problem.element) / device.bandwidth
    logs = {
        "m": problem.m * ones,
        "n": problem.n * ones,
        "k": problem.k * ones,
        "batch": problem.batch * ones,
        "intensity": problem.flops / problem.bytes / balance * ones,
        "rows": t.rows,
        "columns": t.columns,
        "depth": t.depth,
        "area": t.rows * t.columns,
        "aspect": t.rows / t.columns,
        "pad_m": ceil_div(problem.m, t.rows * t.cluster_m) * t.rows * t.cluster_m / problem.m,
        "pad_n": ceil_div(problem.n, t.columns * t.cluster_n) * t.columns * t.cluster_n / problem.n,
        "pad_k": work.steps * t.depth * t.split_k / problem.k,
        "units": work.units / work.at_once,
        "waves": work.waves,
        "tail": work.waves * work.at_once / work.units,
        "busy": work.busy / device.sms,
        "steps": work.steps,
        "stage_bytes": work.stage_bytes,
        "ring_bytes": work.stage_bytes * t.stages,
        "stage_cycles": work.mma_cycles,
        "ring_cycles": work.mma_cycles * t.stages,
        "ring_steps": work.steps / t.stages,
        "stages": t.stages,
        "l2_intensity": stage_operations / work.l2_bytes,
        "smem_intensity": work.mma_cycles / work.smem_cycles,
        "multicast_a": t.cluster_n,
        "multicast_b": t.cluster_m,
        "cluster": work.blocks,
        "split": t.split_k,
        "together": t.together * ones,
        "wave_bytes": work.wave_bytes / device.l2,
        "traffic": work.memory_bytes / problem.bytes,
        "warp_groups": t.warp_groups,
        "accumulators": t.accumulators,
        "mma_columns": t.mma_columns,
        "swizzle": t.swizzle,
        **{f"time_{name}": time for name, time in times.items()},
        "bound": ordered[-1],
        "second": ordered[-2],
    }
    features = {name: np.log2(np.asarray(column, dtype=np.float64)) for name, column in logs.items()}
    features["free_shared"] = 1 - t.shared_memory / device.shared_memory
    for name in ("along_m", "ping_pong", "early_launch", "shares_evenly", "swapped"):
        features[name] = getattr(t, name) * ones
    return features

"""Relatives: kernels, and devices, that are described in the same terms: the model of one speaks of the others.

A kernel that no table holds may still be a tiled matrix product. The features of those name no knob
(`tilescout.costmodel.features`), so a model that learned from one such kernel predicts another one. It ranks well: the
log times that the shipped model of ``gemm_sm90`` expects of cuBLASLt's algorithms correlate with those of a screening
by 0.94 in the median of 21 problems (H200, 2026-11-22). Kernels of grouped products are relatives where their knobs are
the same: the model of ``grouped_gemm_sm90`` ranks the same products with SwiGLU behind them
(`experiments/results/grouped-swiglu.md`). A model does not know how wrong it is of a relative, so `doubted` says.

Devices of one architecture are siblings. Features hold how much slower memory is there, how many multiprocessors there
are and how large the L2 is, so that a model of one predicts times on another.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilescout.costmodel.estimator import Prediction
from tilescout.costmodel.persistence import shipped_model
from tilescout.costmodel.shipped import shipped_folder
from tilescout.spaces.description import Describes
from tilescout.spaces.devices import siblings
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.templates import find_template
from tilescout.spaces.texts import file_name

ERROR = 0.2
"""Standard deviation of the error that a model has of a relative, beside the one that it states: of the log time of
each configuration, and of all together. Beyond what was stated, it was 0.03, 0, 0.05, 0.16 and 0.29 where models had
not seen a schedule, swapped operands, a split k, fp8 and cuBLASLt; of 0.1 to 0.4, no value searched better on all. On a
sibling of the device nothing was measured: it is taken to be the same."""


def model_for(space: str, device: str) -> Path | None:
    """The shipped model of a space on a device or, if there is none, on a sibling of it; None if there is none either.

    Siblings are tried in the order of `siblings`.
    """
    return _nearest(lambda each: shipped_model(space, each), device)


def relative_model(space: Describes | str, device: str) -> Path | None:
    """The shipped model of another kernel that describes its work in the terms of this space; None if there is none.

    Parameters
    ----------
    space
        The template of the space, also one that no package registers; or the name of one that is known.
    device
        The name of the device. If none of it is shipped, one of a sibling is taken.
    """
    return _nearest(lambda each: _relative_on(space, each), device)


def _nearest(find: Callable[[str], Path | None], device: str) -> Path | None:
    """Return what is found for a device, else for the first of its siblings for which there is something."""
    found = map(find, (device, *siblings(device)))
    return next((path for path in found if path is not None), None)


def _relative_on(space: Describes | str, device: str) -> Path | None:
    terms = _terms(space)
    if not terms:
        return None
    own = space if isinstance(space, str) else space.name
    ending = f"-{file_name(device)}"
    models = sorted(path for path in shipped_folder().glob("*.npz") if path.stem.endswith(ending))
    others = {path.stem.removesuffix(ending): path for path in models}
    return next(
        (path for name, path in others.items() if name != own and _terms(name) == terms and _is_lent(name)), None
    )


def doubted(prediction: Prediction) -> Prediction:
    """The prediction of a model for a relative, or on a sibling, with the error that it has there."""
    return replace(
        prediction, spread=np.hypot(prediction.spread, ERROR), shift=float(np.hypot(prediction.shift, ERROR))
    )


def _is_lent(space: str) -> bool:
    """Whether others may have the model of this space; a library's own algorithms are known by numbers alone."""
    return not find_template(space).loader


def _terms(space: Describes | str) -> tuple[str, ...]:
    """The terms in which a space describes the work of its configurations; empty if it does not.

    The features of a grouped product name the knobs too, so they are among the terms.
    """
    try:
        template = find_template(space) if isinstance(space, str) else space
    except SpaceError:
        return ()
    if template.is_tiled:
        return ("matrix",)
    return ("groups", *(knob.name for knob in template.knobs)) if template.is_grouped else ()

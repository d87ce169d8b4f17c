"""Trials of earlier searches of a kernel: a search of another problem learns from them."""

import logging
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.samplers import AnySampler, find_sampler
from tilescout.search.samplers.others import OtherTrials
from tilescout.search.studies.places import study_store
from tilescout.search.studies.records import StudyInfo
from tilescout.search.studies.trials import INFO
from tilescout.spaces.errors import MALFORMED, TilescoutError, one_line
from tilescout.spaces.problems import Problem

_LOG = logging.getLogger(__name__)

USED = 32
"""Most studies of a kernel that are learned from: those that come last by their names."""

READ = 128
"""Most studies that are read to find them, each of a hundred trials in 24 ms: many may be of an older kernel."""


def recalled(sampler: AnySampler, place: Path | str, evaluator: Evaluator, but: Collection[Problem]) -> dict[str, Any]:
    """The settings of a sampler that takes trials of earlier studies: where to ask for them, see `earlier_trials`.

    Empty for others, and where nothing is measured anew: what is replayed follows from its seed alone.
    """
    if not evaluator.measures_anew or not isinstance(sampler, str | type) or not find_sampler(sampler).recalls:
        return {}
    return {"earlier": partial(earlier_trials, place, evaluator, but)}


def earlier_trials(place: Path | str, evaluator: Evaluator, but: Collection[Problem]) -> list[OtherTrials]:
    """The trials of earlier studies of a kernel; what is no longer today's, or can't be read, is left out.

    They are of the same source of the kernel, the same kind of device and the same objective, and measured likewise:
    live, or replayed from the same table.

    Parameters
    ----------
    place
        Where studies are kept, see `tilescout.search.studies.places.study_store`.
    evaluator
        What the search tries configurations with.
    but
        Problems whose studies are left out: what is searched now.

    Raises
    ------
    StoreError
        If the place can't be read.
    """
    store, found = study_store(place), list[OtherTrials]()
    for name in _promising(store.names(), evaluator, but)[:READ]:
        if len(found) == USED:
            break
        try:
            trials = _trials(store.load(name), evaluator, but)
        except (*MALFORMED, TilescoutError, OptunaError) as error:
            _LOG.debug("nothing is learned from the study %s: %s", name, one_line(error))
            continue
        if trials is not None:
            found.append(trials)
    return found[::-1]


def _promising(names: Sequence[str], evaluator: Evaluator, but: Collection[Problem]) -> list[str]:
    """The names, the last first, that studies of other problems may have on this kind of device, measured likewise."""
    begin, place = f"{evaluator.template.name}-", f"-{evaluator.device.name}-{evaluator.provenance.kind}-"
    own = tuple(f"{begin}{problem}{place}".replace(":", "-") for problem in but)
    return [name for name in reversed(names) if name.startswith(begin) and place in name and not name.startswith(own)]


def _trials(study: optuna.Study, evaluator: Evaluator, but: Collection[Problem]) -> OtherTrials | None:
    """The trials of a study; None if it is of something else, or has none."""
    template, here = evaluator.template, evaluator.provenance
    described = study.user_attrs[INFO]
    about = StudyInfo.from_dict(described, template.parse(described["problem"]))
    alike = (about.space, about.space_hash, about.device) == (
        template.name,
        template.source_hash,
        evaluator.device.name,
    )
    likewise = (about.provenance.objective, about.provenance.table) == (here.objective, here.table)
    if not (alike and likewise) or about.problem in but:
        return None
    return OtherTrials.of_study(study, template.space(about.problem, evaluator.device))

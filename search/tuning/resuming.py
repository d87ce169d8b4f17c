"""Whether a search may go on with a study that another one began."""

from collections.abc import Mapping
from typing import Any

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.measure.protocol import UNNAMED
from tilescout.search.measure.provenance import Dataset
from tilescout.search.samplers.base import SpaceSampler
from tilescout.spaces.errors import StoreError

_DIGITS = 12  # of a checksum, as a message tells it


def check_resumable(
    name: str, about: Mapping[str, Any], info: Mapping[str, Any] | None, sampler: SpaceSampler, evaluator: Evaluator
) -> None:
    """Refuse to go on with a study whose kernels, times or choices would not be those of this search.

    Parameters
    ----------
    name
        The study.
    about, info
        What it stored of the search that began it, and its description; None if it was killed before it had one.
    sampler, evaluator
        This search.

    Raises
    ------
    StoreError
        If it searched other kernels, holds times by another objective, replayed another table, or was begun with
        another cost model.
    """
    template, objective = evaluator.template, str(evaluator.provenance.objective)
    if about["space_hash"] != template.source_hash:
        raise StoreError(
            f"study {name} searched another version of {template.name}: its kernels are not today's; start a new study"
        )
    if about.get("objective", UNNAMED) != objective:
        raise StoreError(
            f"study {name} holds times by the objective {about.get('objective', UNNAMED)}, asked for is {objective}: "
            "their times are not comparable; start a new study"
        )
    table, begun = evaluator.provenance.table, _table_of(info)
    if table is not None and begun is not None and table.sha256 != begun.sha256:
        raise StoreError(
            f"study {name} was begun with the table {_named(begun)}, and this search replays {_named(table)}: times of "
            "two tables are not comparable; name the first one, or start a new study"
        )
    if about.get("model_sha256", sampler.model_sha256) != sampler.model_sha256:  # studies of before do not have it
        raise StoreError(
            f"study {name} was begun with {_model_named(about['model_sha256'])}, and this search has "
            f"{_model_named(sampler.model_sha256)}: what its trials were chosen by would be misstated; name that "
            "model, or start a new study"
        )


def _table_of(info: Mapping[str, Any] | None) -> Dataset | None:
    """The table that a study began with; None if it replays none, or has not told."""
    table = None if info is None else info["provenance"].get("table")
    return None if table is None else Dataset(**table)


def _named(table: Dataset) -> str:
    return f"{table.path} (SHA-256 {table.sha256[:_DIGITS]})"


def _model_named(sha256: str) -> str:
    return f"the cost model of SHA-256 {sha256[:_DIGITS]}" if sha256 else "no cost model that has a checksum"

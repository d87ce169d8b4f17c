"""All ranks of a job choose the same: the first that asks decides, the others are told.

Where `torch.distributed` is initialised, ranks agree through its key-value store. That is no collective: a rank that
compiles other graphs, or none, is not waited for. Processes that share nothing but the evidence store agree through its
lock alone, as its decisions never change.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tilescout.search.export import torch_hooks
from tilescout.spaces.errors import StoreError, one_line

_PREFIX = "tilescout/autotune"


def agree(request: str, answer: Callable[[], str], seconds: float) -> str:
    """The answer to a request: the same in every rank of this job.

    Parameters
    ----------
    request
        Names what is asked.
    answer
        Finds the answer; called in one rank alone.
    seconds
        How long the others wait for it.

    Raises
    ------
    StoreError
        If the rank that was to answer did not in time, or the job's store is lost.
    """
    job = _job()
    if job is None:
        return answer()
    key = f"{_PREFIX}/{request}"
    try:
        first = job.add(f"{key}/asked", 1) == 1
        if not first:
            job.wait([key], timedelta(seconds=seconds))
            return str(job.get(key).decode())
    except RuntimeError as error:  # of which torch's DistError is one
        raise StoreError(f"no answer from the rank that decides: {one_line(error, 120)}") from error
    found = ""
    try:
        found = answer()
    finally:  # whatever happens, the others need not wait
        job.set(key, found)
    return found


def _job() -> Any:
    """The key-value store of the job; None outside one."""
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch_hooks.JOB_STORE.find()()

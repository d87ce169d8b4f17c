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
_LONGEST = 7 * 86_400.0  # seconds: torch counts in milliseconds, and has no end of time


def agree(request: str, answer: Callable[[], str], seconds: float, otherwise: str = "") -> str:
    """The answer to a request: the same in every rank of this job, and another one each time that a rank asks again.

    Parameters
    ----------
    request
        Names what is asked. When a graph is compiled anew more may be known, and another budget may be there: so a rank
        that asks for the n-th time is told what the first one that did so found.
    answer
        Finds the answer; called in one rank alone.
    seconds
        How long the others wait for it.
    otherwise
        The answer that the others are told if `answer` raises an error: what the rank that asked first goes on with.

    Raises
    ------
    StoreError
        If the rank that was to answer did not in time, or the job's store is lost.
    """
    job = _job()
    if job is None:
        return answer()
    asked = f"{_PREFIX}/{request}"
    try:
        key = f"{asked}/{job.add(f'{asked}/of rank {_rank()}', 1)}"
        first = job.add(f"{key}/asked", 1) == 1
        if not first:
            job.wait([key], timedelta(seconds=min(seconds, _LONGEST)))
            return str(job.get(key).decode())
    except RuntimeError as error:  # of which torch's DistError is one
        raise StoreError(f"no answer from the rank that decides: {one_line(error, 120)}") from error
    found = otherwise
    try:
        found = answer()
    finally:  # whatever happens, the others need not wait
        try:
            job.set(key, found)
        except RuntimeError as error:
            raise StoreError(f"the other ranks can't be told what was decided: {one_line(error, 120)}") from error
    return found


def _rank() -> int:
    import torch.distributed

    return torch.distributed.get_rank()


def _job() -> Any:
    """The key-value store of the job; None outside one."""
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch_hooks.JOB_STORE.find()()

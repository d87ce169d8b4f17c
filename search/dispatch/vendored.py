"""A dispatcher as a plain Python file that other projects can copy: it imports nothing but the standard library."""

from collections.abc import Iterator
from pathlib import Path
from pprint import pformat

from tilescout.search.dispatch.dispatcher import Dispatcher

_WIDTH = 118
_HEAD = '''"""Which kernel serves which number of rows m of one product; written by tilescout.

`kernel_of(m)` gives the configuration of the kernel, or None where the vendor's library serves. All else is data: the
product with m written as 1, the device, where the times come from, the kernels and the space of each, the last m of
each range, and what serves it: the number of a kernel or None. Of ranges that are not in PROVEN no m was measured.
"""

from bisect import bisect_left
'''
_FUNCTION = '''

def kernel_of(m):
    """The configuration of the kernel that serves m rows; None for the library, and for m beyond the last range."""
    if not 1 <= m <= ENDS[-1]:
        return None
    number = SERVES[bisect_left(ENDS, m)]
    return None if number is None else KERNELS[number]
'''


def python_text(dispatcher: Dispatcher) -> str:
    """The text of the file. All that comes from the dispatcher is written as a literal."""
    return _HEAD + "".join(_constants(dispatcher)) + _FUNCTION


def is_written(path: Path) -> bool:
    """Whether a file begins as those that `python_text` writes: a module that imports one does not."""
    begin = _HEAD.partition("\n")[0].encode()
    with path.open("rb") as file:
        return file.read(len(begin)) == begin


def _constants(dispatcher: Dispatcher) -> Iterator[str]:
    values = {
        "PRODUCT": str(dispatcher.problem),
        "SPACE_HASHES": dict(dispatcher.hashes),
        "DEVICE": dispatcher.device,
        "MEASURED_BY": dispatcher.measured_by,
        "VERSIONS": dict(dispatcher.versions),
        "KERNELS": tuple(dict(kernel) for kernel in dispatcher.kernels),
        "SPACES": dispatcher.spaces,
        "ENDS": tuple(each.high for each in dispatcher.stretches),
        "SERVES": tuple(each.kernel for each in dispatcher.stretches),
        "PROVEN": tuple(at for at, each in enumerate(dispatcher.stretches) if dispatcher.is_proven(each)),
    }
    for name, value in values.items():
        yield f"\n{name} = {pformat(value, width=_WIDTH, compact=True, sort_dicts=False)}"
    yield "\n"

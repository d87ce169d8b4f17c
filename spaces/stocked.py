"""The kernels of a space that are worth having in a store before problems are tuned: the `stock.json` of its package.

``stocked-kernels`` of `experiments.research` chooses them.
"""

import json
from functools import cache
from pathlib import Path

from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import DTYPES

STOCK = "stock.json"


@cache
def stocked(package: Path, element_bytes: int) -> tuple[Configuration, ...]:
    """The configurations that are stocked for operands whose elements have so many bytes.

    Parameters
    ----------
    package
        The folder of the template.
    element_bytes
        Of a signature that the file has a list of.
    """
    read = json.loads((package / STOCK).read_text())
    lists = {DTYPES[signature.partition("-")[0]].bytes: rows for signature, rows in read["of"].items()}
    return tuple(Configuration(tuple(zip(read["knobs"], row, strict=True))) for row in lists[element_bytes])

"""Import modules of a package without what the package's own ``__init__`` imports."""

import sys
from importlib.util import find_spec, module_from_spec


def without_init(*packages: str) -> None:
    """Make packages importable bare, in this process, unless they are imported already or not installed."""
    for name in packages:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            sys.modules[name] = module_from_spec(spec)

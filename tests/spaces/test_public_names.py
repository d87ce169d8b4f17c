"""The public names of `tilescout.spaces`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tilescout import spaces

SOURCE = Path(spaces.__file__).read_text(encoding="utf-8")


def test_importing_the_package_loads_none_of_its_modules() -> None:
    listed = "(name for name in sys.modules if name.startswith(('numpy', 'tilescout')))"
    code = f"import sys, tilescout.spaces; print(*{listed})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"tilescout", "tilescout.spaces", "tilescout.spaces.lazy"}


def test_every_public_name_is_there_and_is_seen_by_type_checkers() -> None:
    imported = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.ImportFrom)]
    seen = {
        alias.name: node.module
        for node in imported
        for alias in node.names
        if node.module not in ("typing", "tilescout.spaces.lazy")
    }
    assert set(seen) == set(spaces.__all__) == set(dir(spaces))
    for name in spaces.__all__:
        assert seen[name] == f"tilescout.spaces.{spaces._MODULES[name]}"
        assert getattr(spaces, name) is getattr(sys.modules[f"tilescout.spaces.{spaces._MODULES[name]}"], name)


def test_every_error_of_ours_is_public() -> None:
    from tilescout.spaces import errors

    assert {name for name in vars(errors) if name.endswith("Error")} <= set(spaces.__all__)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Gem'"):
        spaces.Gem  # noqa: B018

"""The public names of `tilescout.costmodel`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tilescout import costmodel

PACKAGE = "tilescout.costmodel"


def test_importing_the_package_loads_none_of_its_modules() -> None:
    listed = "(name for name in sys.modules if name.startswith(('numpy', 'tilescout.costmodel')))"
    code = f"import sys, {PACKAGE}; print(*{listed})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [PACKAGE]


def test_every_public_name_is_there_and_is_seen_by_type_checkers() -> None:
    source = Path(costmodel.__file__).read_text(encoding="utf-8")
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    seen = {
        alias.name: node.module for node in imported for alias in node.names if str(node.module).startswith(PACKAGE)
    }
    assert set(seen) == set(costmodel.__all__) == set(dir(costmodel))
    for name in costmodel.__all__:
        assert seen[name] == f"{PACKAGE}.{costmodel._MODULES[name]}"
        assert getattr(costmodel, name) is getattr(sys.modules[str(seen[name])], name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Model'"):
        costmodel.Model  # noqa: B018

"""The public names of `tilescout.search.export`."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tilescout.search import export

PACKAGE = "tilescout.search.export"


def test_importing_the_package_loads_none_of_its_modules() -> None:
    listed = f"(name for name in sys.modules if name.startswith(('numpy', 'torch', '{PACKAGE}')))"
    code = f"import sys, {PACKAGE}; print(*{listed})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [PACKAGE]


def test_every_public_name_is_there_and_is_seen_by_type_checkers() -> None:
    source = Path(str(export.__file__)).read_text(encoding="utf-8")
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    own = [node for node in imported if str(node.module).startswith(PACKAGE)]
    seen = {alias.name: str(node.module) for node in own for alias in node.names}
    assert set(seen) == set(export.__all__) == set(dir(export))
    for name in export.__all__:
        assert seen[name] == f"{PACKAGE}.{export._MODULES[name]}"
        assert getattr(export, name) is getattr(import_module(seen[name]), name)


def test_no_public_name_is_that_of_a_module() -> None:
    # A module that was imported would hide the name.
    assert not set(export.__all__) & {path.stem for path in Path(str(export.__file__)).parent.glob("*.py")}


def test_the_documented_module_has_what_the_package_has() -> None:
    import tilescout.search.export.inductor

    for name in ("use", "load", "graph_pass"):
        assert getattr(tilescout.search.export.inductor, name) is getattr(export, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'uses'"):
        export.uses  # noqa: B018

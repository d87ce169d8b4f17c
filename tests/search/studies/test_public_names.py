"""Every public name of the rooms of studies and of tracking is there, and its module is loaded when it is used."""

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("room", ["studies", "tracking"])
def test_public_names_are_there(room: str) -> None:
    package = import_module(f"tilescout.search.{room}")
    assert sorted(package.__all__) == dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


@pytest.mark.parametrize("room", ["studies", "tracking"])
def test_a_room_loads_nothing_before_it_is_used(room: str) -> None:
    code = f"import sys, tilescout.search.{room}; print(*{{name for name in sys.modules if 'search.{room}.' in name}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

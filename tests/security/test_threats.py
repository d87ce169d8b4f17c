"""Every threat that the documents name has its tests, and every file of tests here is named there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THREATS = ROOT / "docs" / "explanation" / "threats.md"
SECURITY = ROOT / "SECURITY.md"


def rows() -> list[tuple[str, list[str]]]:
    """The threats of the table, each with the files of tests that it names."""
    lines = [line.strip("| ") for line in THREATS.read_text().splitlines() if line.startswith("| ")]
    heading, _, *cells = [line.split(" | ") for line in lines]
    assert heading == ["threat", "what happens", "tests (`tests/`)"]
    return [(threat, re.findall(r"`([^`]+)`", tests)) for threat, _, tests in cells]


@pytest.mark.parametrize(("threat", "tests"), rows())
def test_a_threat_has_tests(threat: str, tests: list[str]) -> None:
    assert tests, threat
    for name in tests:
        tree = ast.parse((ROOT / "tests" / name).read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in tree.body), name


def test_every_attack_is_of_a_threat() -> None:
    named = {name for _, tests in rows() for name in tests}
    ours = {f"security/{path.name}" for path in Path(__file__).parent.glob("test_*.py")} - {"security/test_threats.py"}
    assert ours <= named


def test_what_is_promised_has_tests() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", SECURITY.read_text())
    assert len(named) >= 4
    assert all((ROOT / name).is_file() for name in named)

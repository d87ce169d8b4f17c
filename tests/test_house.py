"""The rules that hold across the rooms, read from their source and from what an import really loads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ALLOWED = {
    "spaces": {"spaces"},
    "costmodel": {"costmodel", "spaces"},
    "search": {"search", "costmodel", "spaces"},
    "experiments": {"experiments", "search", "costmodel", "spaces"},
}
"""Room to the rooms that it may import."""

UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "skops"}
"""Libraries whose loading runs, or may run, code that a file names."""

HEAVY = {"cutlass", "matplotlib", "mlflow", "pandas", "pyarrow", "ray", "sklearn", "torch"}
"""Libraries that take longer to import than `import tilescout.<anything>` may."""

LONGEST = 500

SOURCES = sorted(path for room in ALLOWED for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that is imported anywhere, in functions too, and the line; relative imports as ".name"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from tilescout import spaces` names the room only among what it imports.
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("tilescout", *parts)).removesuffix(".__init__")


def is_kernel_source(path: Path) -> bool:
    """Whether this is written in CuteDSL: it is then imported where a kernel is compiled, and nowhere else."""
    statements = [node for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.partition(".")[0] for name, _ in imports_of(ast.Module(statements, []))}
    return path.parent.parent == ROOT / "spaces" and "cutlass" in names


def unpickles(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) == "torch.load" or node.attr == "read_pickle"
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        return ast.unparse(node.value) != "False"
    return False


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def loaded_by(imports: str) -> set[str]:
    """Top-level names in sys.modules after a fresh interpreter ran `imports`."""
    code = f"{imports}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT.anchor)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_rooms_are_where_the_rules_look_for_them():
    rooms = {path.name for path in ROOT.iterdir() if path.name.isidentifier() and (path / "__init__.py").exists()}
    assert rooms - {"tests"} == set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_run_one_way(room: str):
    wrong = []
    for path in (ROOT / room).rglob("*.py"):
        for name, line in imports_of(tree_of(path)):
            first, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if first == "" or first in ALLOWED or (first == "tilescout" and target not in ALLOWED[room]):
                wrong.append(f"{where(path, line)} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ["spaces", "costmodel"])
def test_spaces_and_cost_models_know_neither_mlflow_nor_optuna(room: str):
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in (ROOT / room).rglob("*.py")
        for name, line in imports_of(tree_of(path))
        if name.partition(".")[0] in {"mlflow", "optuna"}
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_unpickled():
    wrong = []
    for path in SOURCES:
        tree = tree_of(path)
        wrong += [
            f"{where(path, line)} imports {name}"
            for name, line in imports_of(tree)
            if name.partition(".")[0] in UNPICKLERS or name == "torch.load"
        ]
        wrong += [f"{where(path, node.lineno)}: {ast.unparse(node)}" for node in ast.walk(tree) if unpickles(node)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ["spaces", "costmodel", "search"])
def test_a_library_does_not_print(room: str):
    wrong = [
        where(path, node.lineno)
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert not wrong, f"{wrong}: log it, with a logger named after the module"


def test_no_file_is_long():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (*SOURCES, *TESTS)}
    long = [f"{where(path, length)}, at most {LONGEST}" for path, length in lengths.items() if length > LONGEST]
    assert not long, "\n".join(long)


def test_importing_search_loads_no_heavy_library():
    assert not loaded_by("import tilescout.search") & HEAVY


def test_importing_any_module_loads_no_heavy_library_but_for_the_source_of_kernels():
    light = [module_of(path) for path in SOURCES if not is_kernel_source(path)]
    assert "tilescout.spaces.gemm_sm90.template" in light
    loaded = loaded_by("\n".join(f"import {module}" for module in light)) & HEAVY
    assert not loaded, f"{sorted(loaded)} loaded; `python -X importtime -c 'import ...'` shows by whom"

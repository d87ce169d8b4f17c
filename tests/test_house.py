"""The rules that hold across the rooms, read from their source and from what an import really loads."""

import ast
import gc
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

import pytest

from tilescout.spaces.templates import find_template, template_names

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

LIBRARY = ("spaces", "costmodel", "search")
"""The rooms that know nothing of the command line."""

MOST_ARROWS, MOST_MODULES = 39, 16
"""Imports between the rooms of search/, counted as pairs of rooms, and modules in one of its folders."""

OTHER_PROGRAMS = {
    "search/measure/machine.py": {"--query-gpu", "--format"},
    "search/tracking/runs.py": {"--run-id"},
    "search/tracking/server.py": {
        *("--backend-store-uri", "--artifacts-destination"),
        *("--app-name", "--host", "--port", "--workers", "--uvicorn-opts", "--log-level"),
    },
    "spaces/building.py": {"--enable-tvm-ffi"},
    "spaces/gemm_sm90/build.py": {"--enable-tvm-ffi"},
    "spaces/libraries/build.py": {"--enable-tvm-ffi"},
}
"""File to the options in it that are those of nvidia-smi, MLflow and CuteDSL's compiler."""

SOURCES = sorted(path for room in ALLOWED for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    gc.freeze()  # all stay: to look through them for garbage again and again takes longer than to parse them
    return tree


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
    """Whether this is CuteDSL, or builds its folder's kernel: imported where one is compiled, and nowhere else."""
    statements: list[ast.stmt] = [node for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name for name, _ in imports_of(ast.Module(statements, []))]
    written = ("cutlass", f"tilescout.spaces.{path.parent.name}.kernel")
    return path.parent.parent == ROOT / "spaces" and any(
        f"{name}.".startswith(f"{each}.") for name in names for each in written
    )


def unpickles(node: ast.AST) -> TypeGuard[ast.expr | ast.keyword]:
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


def test_tests_lie_where_what_they_test_lies():
    folders = {path.parent.relative_to(ROOT) for path in SOURCES}
    homes = {path.parent.relative_to(ROOT / "tests") for path in TESTS if path.name.startswith("test_")}
    loose = {path.name for path in (ROOT / "tests/search").glob("test_*.py")}
    assert homes - folders <= {Path(), Path("security")}
    assert Path("experiments") not in homes
    assert loose <= {"test_api.py", "test_public_names.py"}


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


def paths_of(room: str) -> list[Path]:
    return [path for path in SOURCES if path.is_relative_to(ROOT / room)]


def room_of_search(name: str) -> str | None:
    """The folder of search/ that holds what an import names, or the module or name that lies loose in it."""
    parts = name.split(".")
    return parts[2] if len(parts) > 2 and parts[:2] == ["tilescout", "search"] else None


def arrows_of_search() -> dict[tuple[str, str], list[str]]:
    """Where a room of search/ imports another, by the two."""
    arrows = defaultdict(list)
    for path in paths_of("search"):
        own = room_of_search(".".join(("tilescout", *path.relative_to(ROOT).with_suffix("").parts)))
        for name, line in imports_of(tree_of(path)):
            other = room_of_search(name)
            if own is not None and other is not None and own != other:
                arrows[own, other].append(f"{where(path, line)} imports {name}")
    return arrows


def imported_modules() -> dict[str, set[str]]:
    """Every module of the rooms to those that it imports, anywhere in it."""
    modules = {module_of(path): path for path in SOURCES}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        targets = set()
        for name, _ in imports_of(tree_of(path)):
            while name and name not in modules:  # what is imported from a module is no module
                name = name.rpartition(".")[0]
            targets.add(name)
        found[module] = targets - {"", module}
    return found


def circles(graph: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    """The sets of nodes that reach one another."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        left = [start]
        while left:
            for node in graph.get(left.pop(), set()) - seen:
                seen.add(node)
                left.append(node)
        reached[start] = seen
    return {
        frozenset(node for node in graph if node in reached[start] and start in reached[node])
        for start in graph
        if start in reached[start]
    }


def strings_of(tree: ast.Module) -> Iterator[ast.Constant]:
    """The string literals of a module that are no docstrings."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node


def flags_in(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z][\w-]*", text)


def test_the_rooms_of_search_import_each_other_one_way():
    arrows = arrows_of_search()
    graph: dict[str, set[str]] = defaultdict(set)
    for own, other in arrows:
        graph[own].add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring = error.args[1][::-1]  # each imports the next
        pytest.fail("\n".join(arrows[pair][0] for pair in pairwise(ring)))


def test_few_arrows_run_between_the_rooms_of_search():
    arrows = sorted(arrows_of_search())
    assert len(arrows) <= MOST_ARROWS, f"{len(arrows)} arrows: {arrows}"


def test_the_architecture_says_which_rooms_of_search_import_which():
    told = re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", (ROOT / "docs/explanation/architecture.md").read_text(), re.M)
    rooms = {own: set(re.findall(r"`(\w+)`", others)) for own, others in told if (ROOT / "search" / own).is_dir()}
    found = {own: {other for room, other in arrows_of_search() if room == own} for own in rooms}
    assert rooms == found
    assert set(rooms) == {path.parent.name for path in (ROOT / "search").glob("*/__init__.py")}


def test_no_modules_import_one_another():
    found = circles(imported_modules())
    assert not found, "\n".join(" <-> ".join(sorted(circle)) for circle in found)


def test_search_holds_rooms_of_few_modules_and_nothing_loose():
    loose = {path.name for path in (ROOT / "search").glob("*.py")}
    assert loose <= {"__init__.py", "api.py"}
    counts = Counter(path.parent for path in paths_of("search") if path.name != "__init__.py")
    assert not {folder: count for folder, count in counts.items() if count > MOST_MODULES}


def test_a_library_does_not_name_what_is_built_on_it():
    wrong = [
        f"{where(path, number)}: {line.strip()}"
        for room in LIBRARY
        for path in paths_of(room)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"tilescout\.experiments|experiments/(commands|compare|research|scripts)", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_library_advises_no_option_of_the_command_line():
    wrong = [
        f"{where(path, node.lineno)} {flag}"
        for path in (path for room in LIBRARY for path in paths_of(room))
        for node in strings_of(tree_of(path))
        for flag in flags_in(str(node.value))
        if flag not in OTHER_PROGRAMS.get(str(path.relative_to(ROOT)), ())
    ]
    assert not wrong, "\n".join(wrong)


def test_docstrings_say_what_a_thing_is_or_does_and_do_not_begin_with_what():
    templates = [find_template(name) for name in template_names()]
    hashed = {files(template.package).joinpath(name) for template in templates for name in template.sources}
    assert hashed <= set(SOURCES)
    wrong = []
    for path in {*SOURCES, *TESTS} - hashed:  # a word more in what is hashed, and the recorded tables would be stale
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if (ast.get_docstring(node) or "").startswith("What "):
                        wrong.append(where(path, getattr(node, "lineno", 1)))
    assert not wrong, "\n".join(sorted(wrong))

"""The private parts of optuna and MLflow are used in one file each."""

import ast
from collections.abc import Iterator
from pathlib import Path

SEARCH = Path(__file__).parents[3] / "search"
HOOKS = {SEARCH / "studies" / "optuna_hooks.py", SEARCH / "tracking" / "mlflow_hooks.py"}
PRIVATE = {"_storage", "_study_id", "_trial_id", "_tracking_client", "_sample_relative_impl"}


def private_uses(tree: ast.Module) -> Iterator[str]:
    """Private modules of the two that are imported, and private attributes that only they have."""
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            package, *rest = name.split(".")
            private = any(part.startswith("_") for part in rest) or rest[:1] == ["store"]
            if package in ("optuna", "mlflow") and private:
                yield name
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE and ast.unparse(node.value) != "self":
            yield ast.unparse(node)
        if isinstance(node, ast.Constant) and node.value == "fixed_params":
            yield str(node.value)


def test_no_other_file_uses_what_is_private() -> None:
    found = {path: list(private_uses(ast.parse(path.read_text(encoding="utf-8")))) for path in SEARCH.rglob("*.py")}
    assert {path for path, uses in found.items() if uses} == HOOKS

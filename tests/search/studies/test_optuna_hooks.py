"""The private parts of optuna and MLflow are used in one file each."""

import ast
from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tilescout.search.studies.optuna_hooks import LongJournal

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


def test_a_long_journal_lists_trials_as_optuna_does(tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = JournalFileBackend(str(tmp_path / "journal"))
    ours, theirs = LongJournal(backend), JournalStorage(backend)
    study = optuna.create_study(storage=ours, study_name="one")
    optuna.create_study(storage=ours, study_name="another").enqueue_trial({"x": 1})
    same = optuna.load_study(storage=theirs, study_name="one")

    def check() -> None:
        for states in (None, (TrialState.WAITING,), (TrialState.RUNNING, TrialState.COMPLETE), tuple(TrialState), ()):
            for deepcopy in (False, True):
                assert study.get_trials(deepcopy, states) == same.get_trials(deepcopy, states)

    check()
    study.enqueue_trial({"x": 3})
    check()
    running = [study.ask() for _ in range(3)]
    check()
    running[1].suggest_int("x", 0, 9)
    running[2].set_user_attr("why", "a test")
    study.tell(running[1], 1.0)
    check()
    study.tell(running[0], state=TrialState.FAIL)
    study.ask()
    check()
    study.get_trials(deepcopy=True)[1].user_attrs["mine"] = 1
    check()

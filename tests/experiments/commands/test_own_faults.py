"""Mistakes in a kernel of the user's own: one line each, with the line of the user's file."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., None]

SOURCE = """
import numpy as np
from tilescout import spaces

class Mine(spaces.KernelTemplate):
    name, workload, archs = "mine", "tilescout.spaces.rowwise:Softmax", ("sm_90a",)
    knobs = (spaces.Knob("warps", (1, 2), "rows a block"),)
    constraints = ()

    def default(self, problem, device):
        return spaces.Configuration.of({"warps": 1})

    def build(self, configuration, signature, arch, path):
        raise KeyError("vector")
"""

NO_RULE = "constraints = ()"
RULE = 'constraints = (spaces.Constraint("even", "must be even", ("warps",), lambda columns, problem, device: {}),)'
NAME, FAULTY = "name, workload", "1 / 0; name, workload"
ZERO = "ZeroDivisionError: division by zero ({file}, "
DEFAULT = 'return spaces.Configuration.of({"warps": 1})'


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function: write the module `mine` with some of its text replaced, where the command line looks for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # what the command adds is taken back
    monkeypatch.delitem(sys.modules, "mine", raising=False)

    def write(before: str = "", after: str = "") -> None:
        assert before in SOURCE
        (tmp_path / "mine.py").write_text(SOURCE.replace(before, after, 1))

    return write


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (NO_RULE, RULE.format('columns["wraps"] == 1'), "the rule even failed: KeyError: 'wraps' ({file}, 8,"),
        (NO_RULE, RULE.format("1 / 0"), f"the rule even failed: {ZERO}8,"),
        (NO_RULE, RULE.format('columns["warps"]'), "gave int64 of shape (2,), expected a mask: bool of shape"),
        (NO_RULE, RULE.replace('("warps",)', '("warps")'), "the knobs of constraint even are 'warps', expected n"),
        (NO_RULE, RULE.replace('"must be even"', "None"), "the name 'even' and the reason None, expected texts"),
        ('"rows a block"', "None", "knob warps has the doc None, expected a text"),
        ('(spaces.Knob("warps", (1, 2), "rows a block"),)', "()", "its knobs is (), expected a tuple of Knobs"),
        (NO_RULE, RULE.format("np.array([True])"), "gave bool of shape (1,), expected a mask: bool of shape"),
        (NO_RULE, RULE.format('columns["warps"] > 2'), "no legal configuration is left for 64x64:bf16 on h200"),
        (DEFAULT, "return self.best", "AttributeError: 'Mine' object has no attribute 'best' ({file}, 11, in default)"),
        (DEFAULT, 'return spaces.Configuration.of({"warps": 3})', "the default of mine is not legal: knob warps"),
        (DEFAULT, DEFAULT.replace("1", "np.int64(1)"), "`default` of mine has warps as np.int64(1), expected an int"),
        (NO_RULE, 'launched = {"warps": 2}', "its launched['warps'] is 2, expected a tuple of values"),
        (NO_RULE, 'sources, package = ("gone.py",), "tilescout.spaces"', "can't read the source of its kernels: File"),
        ("import numpy", "raise SystemExit(2); import numpy", "can't load 'mine:Mine': SystemExit: 2 ({file}, 2,"),
        (NAME, FAULTY, f"can't load 'mine:Mine': {ZERO}6,"),
        ("class Mine", "class Yours", "can't load 'mine:Mine': AttributeError: module 'mine' has no attribute 'Mine'"),
        ("import numpy", "import no_such_module", "can't load 'mine:Mine': ModuleNotFoundError: No module named"),
        ('"mine", "tile', '"", "tile', "mine:Mine: its name is '', expected a text that is not empty"),
        ('("sm_90a",)', '"sm_90a"', "mine:Mine: its archs is 'sm_90a', expected a tuple of texts"),
        ('spaces.Knob("warps", (1, 2), "rows a block")', '("warps", (1, 2))', "its knobs is (('warps', (1, 2)),)"),
        ("(1, 2)", "(1, 2.5)", "knob warps has the value 2.5, allowed are integers and texts"),
        ("(1, 2)", "(1, True)", "knob warps has the value True, allowed are integers and texts"),
        ("(1, 2)", "(1, [2])", "knob warps has the value [2], allowed are integers and texts"),
        ("(1, 2)", "(1, 'auto')", "knob warps has integers and texts, (1, 'auto'): make all of them texts, or all"),
        ("(1, 2)", "(1, 2**40)", "knob warps has the value 1099511627776, allowed are integers of 32 bits"),
        ("(1, 2)", "range(40_000)", "knob warps has 40,000 values: 32,768 at most"),
        ("(1, 2)", "(1, 1)", "the values of knob warps are (1, 1), expected a tuple, each once"),
        (DEFAULT, DEFAULT.replace(".of", ""), "takes a tuple of pairs, not a dict: make it by `Configuration.of`"),
        (DEFAULT, "return None", "`default` of mine returned a NoneType, expected a Configuration"),
        ("spaces.KernelTemplate", "object", "'mine:Mine' is no KernelTemplate, but a Mine"),
        ("rowwise:Softmax", "rowwise:Hardmax", "Hardmax"),
        ("rowwise:Softmax", "rowwise:Rowwise", "no workload 'tilescout.spaces.rowwise:Rowwise' (TypeError: Can't inst"),
        ("rowwise:Softmax", "problems:Rate", "no workload 'tilescout.spaces.problems:Rate' (TypeError: "),
        ("tilescout.spaces.rowwise:Softmax", "fractions:Fraction", "'fractions:Fraction' is no workload, but of type"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_the_line_of_the_file(
    run: Run, write: Callable[..., None], capsys: pytest.CaptureFixture[str], before: str, after: str, said: str
) -> None:
    write(before, after)
    run("compile", "mine:Mine", "--problem", "64x64:bf16", code=2)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert said.replace("{file}, ", f"{Path.cwd() / 'mine.py'}, line ") in line


def test_a_default_that_is_not_legal_is_told_where_the_space_is_shown(
    run: Run, write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(NO_RULE, RULE.format('columns["warps"] > 1'))
    run("spaces", "mine:Mine", "--problem", "64x64:bf16")
    said = " ".join(capsys.readouterr().out.split())
    assert "1 legal configuration for" in said
    assert "default: warps=1; it is not legal: mine: not a legal configuration (even: must be even): warps=1" in said


def test_debug_shows_the_traceback_of_it(
    run: Run, write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(NO_RULE, RULE.format("1 / 0"))
    run("--debug", "compile", "mine:Mine", "--problem", "64x64:bf16", code=2)
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "lambda columns, problem, device: 1 / 0" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "said"), [('KeyError("vector")', "KeyError:'vector'"), ("SystemExit(3)", "SystemExit:3")]
)
def test_a_build_that_raises_fails_its_configuration_alone_and_all_of_them_fail_the_command(
    run_command: Callable[..., object], write: Callable[..., None], tmp_path: Path, raised: str, said: str
) -> None:
    write('KeyError("vector")', raised)
    done = run_command(tmp_path, "compile", "mine:Mine", "--problem", "64x64:bf16", "--sample", 2, "--processes", 1)
    assert done.returncode == 1  # type: ignore[attr-defined]
    shown = "".join(done.stdout.split())  # type: ignore[attr-defined]  # long lines are folded, paths too
    assert f"failed:warps=2:{said}({tmp_path / 'mine.py'},line14,inbuild)" in shown
    assert "0compiledin" in shown
    assert ",2failed" in shown
    assert "Traceback" not in done.stdout + done.stderr  # type: ignore[attr-defined]


def test_a_warm_up_that_raises_ends_the_command_with_the_line_of_the_file(
    run_command: Callable[..., object], write: Callable[..., None], tmp_path: Path
) -> None:
    write("    def build", "    def warm_up(self):\n        raise OSError('no licence')\n\n    def build")
    done = run_command(tmp_path, "compile", "mine:Mine", "--problem", "64x64:bf16", "--sample", 2, "--processes", 1)
    assert done.returncode == 2  # type: ignore[attr-defined]
    said = done.stderr  # type: ignore[attr-defined]
    assert f"compilers can't get ready: OSError: no licence ({tmp_path / 'mine.py'}, line 14, in warm_up)" in said
    assert "Traceback" not in said

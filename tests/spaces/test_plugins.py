"""Spaces of other packages, which are really installed: found, refused, broken."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.templates import find_template, load_template, load_templates, other_spaces, template_names

H200 = find_device("h200")
Install = Callable[..., None]

TEMPLATE = """
from tilescout.spaces.gemm_sm90.template import GemmSm90Template

class Template(GemmSm90Template):
    name = {name!r}
"""


def test_an_installed_space_is_found_by_its_name(install: Install) -> None:
    install("one-kernel", "unheard_of")

    template = find_template("unheard_of")

    assert "unheard_of" in template_names()
    assert len(template.space(template.parse("8x8"), H200)) == 2
    assert other_spaces().usable["unheard_of"].distribution == "one-kernel 1.0"


def test_a_name_of_ours_stays_ours(install: Install) -> None:
    ours = find_template("gemm_sm90")
    install("greedy-kernels", "gemm_sm90")

    assert find_template("gemm_sm90") is ours
    assert template_names().count("gemm_sm90") == 1
    assert other_spaces().refused["gemm_sm90"] == (
        "space 'gemm_sm90' of greedy-kernels 1.0 is refused: the name is tilescout's own"
    )


def test_a_name_that_two_packages_claim_belongs_to_neither_and_both_are_reached_otherwise(install: Install) -> None:
    install("former-kernels", "twice")
    install("latter-kernels", "twice")

    assert "twice" not in template_names()
    with pytest.raises(SpaceError, match=r"'twice' is registered by former-kernels 1\.0 and latter-kernels 1\.0: unin"):
        find_template("twice")
    for module in ("former_kernels", "latter_kernels"):
        assert load_template(f"{module}:Template").name == "twice"


def test_a_name_that_was_read_somewhere_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lying_about.py").write_text(TEMPLATE.format(name="found"))
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(SpaceError, match="is not imported unless you name it"):
        find_template("lying_about:Template")
    assert "lying_about" not in sys.modules

    named = load_templates(["lying_about:Template"])
    assert find_template("lying_about:Template", named) is find_template("found", named)
    with pytest.raises(SpaceError, match="unknown space 'found'"):
        find_template("found")


@pytest.mark.parametrize(
    ("source", "attribute", "reason"),
    [
        ("raise RuntimeError('no such driver')", "Template", "RuntimeError: no such driver"),
        ("import a_module_that_nobody_has", "Template", "ModuleNotFoundError: No module named"),
        ("nothing = 0", "Template", "has no attribute 'Template'"),
        ("class Template: pass", "Template", "is no KernelTemplate, but a Template"),
        ("from tilescout.spaces.templates import KernelTemplate as Template", "Template", "abstract class"),
        ("from tilescout.spaces.gemm_sm90 import TEMPLATE as other", "other", "calls itself 'gemm_sm90'"),
    ],
    ids=["raises", "lacks a package", "lacks the template", "no template", "abstract", "another name"],
)
def test_a_broken_package_says_why_and_breaks_no_other(
    install: Install, source: str, attribute: str, reason: str
) -> None:
    name = f"broken_{abs(hash(reason))}"  # a module is imported once a process
    install(name.replace("_", "-"), "broken", source, attribute)
    install("right-kernels", "right")

    assert {"broken", "right"} <= set(template_names())
    assert find_template("right").name == "right"
    with pytest.raises(SpaceError, match=r"space 'broken' of broken-\d+ 1\.0") as refused:
        find_template("broken")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:Template", "ModuleNotFoundError"),
        ("tilescout.spaces.templates:KernelTemplate", "abstract class"),
        (":", "ValueError: Empty module name"),
        ("tilescout.spaces.knobs:Knob", "missing 3 required positional arguments"),
    ],
)
def test_what_is_no_template_is_refused_by_its_path(name: str, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        load_template(name)


@pytest.fixture
def own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a user's own, which lies where Python looks."""
    (tmp_path / "own_norm_kernel.py").write_text("import json\na = b = c = d = e = f = g = 0\nclass RmsNorm: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_norm_kernel", raising=False)


@pytest.mark.usefixtures("own_kernel")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own_norm_kernl:RmsNorm", "No module named 'own_norm_kernl'; Python looked in .*: mend the name, or add"),
        ("own_norm_kernel.py:RmsNorm", "a module is written without .py: own_norm_kernel:RmsNorm$"),
        ("own_norm_kernel:RmsNrm", "has no attribute 'RmsNrm'; it has RmsNorm, ., . and 5 more$"),
        ("no_such_package.kernels:RmsNorm", "No module named 'no_such_package'; Python looked in"),
        ("tilescout.spaces.no_such_module:RmsNorm", "No module named 'tilescout.spaces.no_such_module'$"),
    ],
)
def test_a_name_that_is_mistyped_is_told_with_what_there_is(name: str, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        load_template(name)


def test_a_module_that_lacks_another_is_not_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking_kernel.py").write_text("import a_module_that_nobody_has")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpaceError, match="No module named 'a_module_that_nobody_has'") as refused:
        load_template("lacking_kernel:RmsNorm")
    assert "Python looked" not in str(refused.value)


def test_the_source_of_a_template_in_one_file_is_that_file(install: Install, tmp_path: Path) -> None:
    install("hashed-kernels", "hashed")
    before = find_template("hashed").source_hash

    with (tmp_path / "installed" / "hashed_kernels.py").open("a") as file:
        file.write("# changed\n")

    assert find_template("hashed").source_hash != before


def test_a_text_in_the_place_of_spaces_is_not_read_letter_by_letter() -> None:
    with pytest.raises(SpaceError, match="`spaces` is 'own_kernel:RmsNorm', expected a sequence, as"):
        load_templates("own_kernel:RmsNorm")

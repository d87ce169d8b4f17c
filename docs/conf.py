"""How Sphinx builds these pages: ``make docs``. What is generated here is not kept in the repository."""

import ast
import os
import re
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
ROOT = HERE.parent
API = HERE / "reference" / "api"
MEASURED = ROOT / "experiments" / "results"  # a page a question; copied to RESULTS, where Sphinx finds them
RESULTS = HERE / "results"

project = "tilescout"
author = "The tilescout authors"
copyright = author
release = metadata.version("tilescout")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "sphinx_copybutton"]
exclude_patterns = ["examples"]
html_theme = "furo"
html_static_path, html_css_files = ["static"], ["wide.css"]
html_title = f"tilescout {release}"
html_show_sphinx = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

smartquotes = False  # they would make one dash of the two before an option
suppress_warnings = ["ref.python"]  # a type `bytes` in a signature is not one of our properties of that name
default_role = "literal"  # a name in single backquotes, as docstrings have them
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
    "ignore-module-all": True,  # what a module names again is described where it is defined
}
# With an entry for every class and method, the tree of contents that stands on each page took a third of the build.
toc_object_entries = False
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True  # or each attribute of a dataclass would be described twice

IMAGES = {".png", ".svg"}
ROOMS = ("spaces", "costmodel", "search")
_COMPILERS = {"cutlass", "quack", "triton"}  # what imports them is a kernel's source, and is read as such


def is_described(path: Path) -> bool:
    """Whether a module has something to say and can be imported anywhere."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
    return bool(body) and not {name.partition(".")[0] for name in names} & _COMPILERS


def module_name(path: Path) -> str:
    """The dotted name that a file of the rooms, or a folder, is imported as."""
    return ".".join(("tilescout", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def tree_of(module: str) -> ast.Module:
    """The source of a module or package of the rooms."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def public_names(module: str) -> list[str]:
    """The names in a module's ``__all__``, in its order."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def defined_in(name: str, module: str) -> str:
    """The module that defines a name which `module` has, by its import statements."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
            origin = node.module or ""
            return defined_in(name, origin) if origin.startswith("tilescout.") else origin
    return module


def summary(name: str, module: str) -> str:
    """The first paragraph of the docstring of a class, function or constant, or of its module; empty without one."""
    tree = tree_of(module)
    for node, after in pairwise([*tree.body, ast.Pass()]):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) == name and isinstance(after.value, ast.Constant):
                return " ".join(str(after.value.value).partition("\n\n")[0].split())
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            own = ast.get_docstring(node) or ""
            first = (ast.get_docstring(tree) or "" if own.startswith("See the module") else own).partition("\n\n")[0]
            return " ".join(first.split())
    return ""


def public_section(package: str) -> str:
    """The public names of a package, each with a link to its description; empty if it declares none."""
    lines = []
    for name in public_names(package):
        origin = defined_in(name, package)
        text = summary(name, origin)
        lines.append(f"- {{py:obj}}`{name} <{origin}.{name}>`" + (f": {text}" if text else ""))
    return f"Import these from `{package}`:\n\n" + "\n".join(lines) + "\n" if lines else ""


def write_pages(folder: Path, pages: dict[str, str]) -> None:
    """Make `folder` hold these pages and no others; a page that is as it was keeps its date."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def write_api_pages(app: Sphinx) -> None:
    """Write a page for each package of the rooms that are a library: its public names first, then its modules."""
    pages = {}
    for room in ROOMS:
        for folder in sorted({path.parent for path in (ROOT / room).rglob("*.py")}):
            name = module_name(folder)
            described = [module_name(path) for path in sorted(folder.glob("*.py")) if is_described(path)]
            sections = [f"## {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n```\n" for module in described]
            if sections:
                pages[name] = "\n".join([f"# {name}\n", *filter(None, [public_section(name)]), *sections])
    write_pages(API, pages)


def relink(text: str, source: Path, linked: Callable[[str, Path], str]) -> str:
    """Replace the links of a text that lead to files by what `linked` makes of their words and target."""

    def replace(match: re.Match[str]) -> str:
        words, target, anchor = match.groups(default="")
        path = Path(os.path.normpath(source.parent / target))
        return linked(words, path).replace("#", anchor) if path.exists() else match[0]

    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)", replace, text)


def page_of(path: Path) -> Path | None:
    """The page that shows a file of the repository; None if no page does."""
    if path.parent == MEASURED and path.suffix == ".md":
        return RESULTS / ("index.md" if path.name == "README.md" else path.name)
    if path == ROOT / "CHANGELOG.md":
        return HERE / "changelog.md"
    return path if path.is_relative_to(HERE) else None


def from_page(text: str, source: Path, page: Path) -> str:
    """A text that lies at `source` and is shown as `page`: links lead to pages, and are words where there is none."""

    def linked(words: str, path: Path) -> str:
        target = path if path.suffix in IMAGES else page_of(path)
        return words if target is None else f"[{words}]({os.path.relpath(target, page.parent)}#)"

    return relink(text, source, linked)


def write_result_pages(app: Sphinx) -> None:
    """Copy the pages that say what was measured, with their index."""
    pages = {}
    for path in sorted(MEASURED.glob("*.md")):
        page = page_of(path)
        assert page is not None
        pages[page.stem] = from_page(path.read_text(encoding="utf-8"), path, page)
    pages["index"] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    write_pages(RESULTS, pages)


def read_source(app: Sphinx, page: str, source: list[str]) -> None:
    """Let the links of a page lead to pages; the changelog's text is that of the file in the root."""
    path = HERE / f"{page}.md"
    shown = ROOT / "CHANGELOG.md" if page == "changelog" else path
    if page == "changelog":
        app.env.note_dependency(str(shown))
        source[0] = shown.read_text(encoding="utf-8")
    if not path.is_relative_to(API):
        source[0] = from_page(source[0], shown, path)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_api_pages)
    app.connect("builder-inited", write_result_pages)
    app.connect("source-read", read_source)

"""How Sphinx builds these pages: ``make docs``. What is generated here is not kept in the repository."""

import ast
import re
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
ROOT = HERE.parent
API = HERE / "reference" / "api"

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
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True  # or each attribute of a dataclass would be described twice

# Pages whose text lies elsewhere in the repository.
ELSEWHERE = {"results": ROOT / "experiments" / "results" / "README.md", "changelog": ROOT / "CHANGELOG.md"}

ROOMS = ("spaces", "costmodel", "search")
_COMPILERS = {"cutlass", "quack", "triton"}  # what imports them is a kernel's source, and is read as such


def is_described(path: Path) -> bool:
    """Whether a module has something to say and can be imported anywhere."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
    return bool(body) and not {name.partition(".")[0] for name in names} & _COMPILERS


def module_name(path: Path) -> str:
    """What a file of the rooms, or a folder, is imported as."""
    return ".".join(("tilescout", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def write_api_pages(app: Sphinx) -> None:
    """A page a package of the rooms that are a library; a page that is as it was keeps its date."""
    API.mkdir(parents=True, exist_ok=True)
    pages = {}
    for room in ROOMS:
        for folder in sorted({path.parent for path in (ROOT / room).rglob("*.py")}):
            described = [module_name(path) for path in sorted(folder.glob("*.py")) if is_described(path)]
            sections = [f"## {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n```\n" for module in described]
            if sections:
                name = module_name(folder)
                pages[name] = "\n".join([f"# {name}\n", *sections])
    for path in API.glob("*.md"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = API / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def read_elsewhere(app: Sphinx, page: str, source: list[str]) -> None:
    """The text of a page that lies elsewhere; links to what has no page here are left as words."""
    if page in ELSEWHERE:
        app.env.note_dependency(str(ELSEWHERE[page]))
        source[0] = re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", ELSEWHERE[page].read_text(encoding="utf-8"))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_api_pages)
    app.connect("source-read", read_elsewhere)

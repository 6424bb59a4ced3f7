"""How Sphinx makes the site of the documentation: `sphinx-build -W -c docs . site`.

The pages are the Markdown files that GitHub shows too; the order is that of the links in `docs/README.md`.
"""

import re
from importlib import metadata
from pathlib import Path
from shutil import copyfile
from typing import Any

ROOT = Path(__file__).parents[1]
INDEX = "docs/README"
OUTSIDE = ("notebooks/labs/README", "perfkit/charts/scripts", "CONTRIBUTING", "CHANGELOG")

project = "perfkit"
author = "the perfkit authors"
release = metadata.version("perfkit")
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "docs/*.md", *(f"{page}.md" for page in OUTSIDE)]
myst_heading_anchors = 3  # the links that GitHub gives headings
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "description": "Why is the GPU slow?"}
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}


def _pages() -> list[str]:
    """Return the names of the pages in the order of the index."""
    text = (ROOT / f"{INDEX}.md").read_text(encoding="utf-8")
    linked = [f"docs/{name}" for name in re.findall(r"\]\((\w+)\.md\)", text)]
    return [INDEX, *linked, *OUTSIDE]


def _with_contents(app: Any, name: str, source: list[str]) -> None:
    """Give the first page the contents of the site, which GitHub would show as code."""
    if name == root_doc:
        listed = "\n".join(_pages())
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listed}\n```\n"


def _with_index(app: Any, failure: Exception | None) -> None:
    """Let a server find the first page under the name that it looks for."""
    if failure is None and app.builder.name == "html":
        copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Any) -> None:
    """Register both."""
    app.connect("source-read", _with_contents)
    app.connect("build-finished", _with_index)

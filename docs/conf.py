"""The site of the documentation, made by ``make docs``: Sphinx, MyST for Markdown, Furo. A warning is an error.

Its front page is the README, whose links go from the root of the checkout; an example that a link names is copied
beside the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

import penstock

project = "Penstock"
version = release = penstock.__version__
project_copyright = "the authors of Penstock"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = f"Penstock {version}"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88

CHECKOUT = Path(__file__).parent.parent
AT_THE_TOP = {"index": "README.md", "changes": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
"""Pages whose text stands at the top of the checkout."""


def text_from_the_top(app: Sphinx, page: str, source: list[str]) -> None:
    """Such a page is that file; what stands in ``docs`` comes behind it."""
    if page in AT_THE_TOP:
        text = (CHECKOUT / AT_THE_TOP[page]).read_text(encoding="utf-8")
        source[0] = re.sub(r"\]\(([^)#\s]+)", lambda link: f"]({seen_from_docs(link[1])}", text) + "\n" + source[0]


def seen_from_docs(link: str) -> str:
    """A link of the checkout's root, as a page of ``docs`` has it."""
    pages = {file: f"{page}.md" for page, file in AT_THE_TOP.items()}
    if "://" in link:
        return link
    return pages.get(link) or (link.removeprefix("docs/") if link.startswith("docs/") else f"../{link}")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", text_from_the_top)

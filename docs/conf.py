"""How the documentation is built: Sphinx, with pages in Markdown (MyST) and the Furo theme."""

from __future__ import annotations

from importlib.metadata import version as version_of

from sphinx.application import Sphinx

project = "dibs"
project_copyright = "the dibs developers"
version = release = version_of("dibs")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
default_role = "literal"  # so that `this` is code in docstrings, as it is in Markdown

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nitpick_ignore = [("myst", "LICENSE")]  # the README links to it; the site has no page for it

autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = "dibs"
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    """Show of a named tuple's fields only what we say of them ourselves."""

    def drop(_app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
        if lines and lines[0].startswith("Alias for field number"):
            lines.clear()

    app.connect("autodoc-process-docstring", drop)

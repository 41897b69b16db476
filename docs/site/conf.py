"""Sphinx: how the pages of the static site are made. `make site` lays out their sources."""

import re
from importlib.metadata import version as version_of

project = "fedlib"
copyright = "the fedlib authors"
version = release = version_of("fedlib")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "furo"
html_title = "fedlib"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_show_search_summary = False  # excerpts are fetched, which pages opened as files cannot
html_show_sourcelink = html_copy_source = False

# Notebooks are shown with the outputs that they were stored with, never executed here.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # outputs too have formulas
myst_enable_extensions = ["dollarmath"]
myst_update_mathjax = False
# Formulas are written into the pages, so that nothing is loaded from elsewhere to show them.
html_math_renderer = "mathml"
myst_heading_anchors = 3
myst_ref_domains = ["std"]

autosummary_generate = True
autosummary_ignore_module_all = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# A package lists its modules; what it re-exports is shown where it is written.
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
# Widgets' views, and headings of notebooks that begin at a lower level.
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]


def escaped(app, what, name, obj, options, lines):
    """Show equations as they are written; bars and stars elsewhere are no markup.

    Equations are indented and follow an empty line. Fields begin with a colon by now.
    """
    shown, literal = [], False
    for line in lines:
        indented = line.startswith("    ")
        literal = literal and (indented or not line)
        if indented and not literal and shown and not shown[-1]:
            text = next((x for x in reversed(shown) if x), ":")
            literal = text[0] not in " :.*-"
            if literal and not text.endswith("::"):
                shown += ["::", ""]
        parts = line.split("``")  # whose code stays as it is
        parts[::2] = [re.sub(r"([|*])", r"\\\1", text) for text in parts[::2]]
        shown.append(line if literal else "``".join(parts))
    lines[:] = shown


def written(display):
    """Return what writes a formula into a page as MathML, which browsers draw by themselves."""
    from docutils.nodes import SkipNode
    from latex2mathml.converter import convert

    def visit(writer, node):
        tex = node.astext().replace(r"\tag", r"\qquad\tag")
        tex = tex.replace(r"\arg", r"\mathrm{arg}\,")  # which the converter does not know
        formula = convert(tex, display=display)
        if display == "block":  # also in the lines of an array
            formula = formula.replace("<mtable", '<mtable displaystyle="true"')
            formula = f'<div class="math" style="margin: 0.8em 0">{formula}</div>'
        writer.body.append(formula)
        raise SkipNode

    return visit, None


def setup(app):
    """Tell Sphinx of both."""
    app.add_html_math_renderer("mathml", written("inline"), written("block"))
    app.connect("autodoc-process-docstring", escaped)

"""The sources of the static site, as they are laid out before Sphinx reads them."""

import importlib.util
import re

import pytest

from fedlib import paths
from papers import told


def load(name):
    spec = importlib.util.spec_from_file_location(name, paths.ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build(tmp_path):
    module = load("build")
    module.SOURCES = tmp_path / "site"
    module.SOURCES.mkdir()
    return module


def test_a_figure_is_shown_at_its_largest_scale(build):
    for scale, name in (("quick", "01_a"), ("standard", "01_a"), ("quick", "02_b_c")):
        folder = paths.figures() / scale
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_text(scale)
    build._figures()
    shown = build.SOURCES / "figures"
    assert (shown / "01_a.png").read_text() == "standard"
    assert (shown / "02_b_c.png").read_text() == "quick"
    assert {f.name for f in (paths.ROOT / "docs/figures").iterdir()} <= {
        f.name for f in shown.iterdir()
    }, "what the README shows is there before any figure is drawn"
    page = (build.SOURCES / "figures.md").read_text()
    assert "## Notebook 01" in page and "*b c, quick scale*" in page


def test_links_of_the_texts_point_into_the_site(build):
    build._pages()
    manual, first = (build.SOURCES / "manual.md").read_text(), build._index([])
    assert "(architecture.md)" in manual and "(campaigns.md)" in manual and "(index.md)" in manual
    assert "(figures/forest.png)" in first and "(manual.md#verdicts)" in first
    assert "ARCHITECTURE.md)" not in first + manual and "figures/standard/" not in first + manual
    findings = (build.SOURCES / "findings.md").read_text()
    assert "(figures/forest.png)" in findings and "(readings.md)" in findings
    assert "(notebooks/08_privacy.ipynb)" in findings and "(../" not in findings
    assert "(code/examples/sweep.py.md)" in manual and "(code/examples.md)" in first
    assert "import sys" in (build.SOURCES / "code/examples/sweep.py.md").read_text()


def test_links_of_notebooks_and_of_html_lead_to_pages(build):
    home = paths.ROOT / "notebooks"
    for text, there in {
        "[a](../docs/READINGS.md#gates)": "[a](../readings.md#gates)",
        "[a](01_gradient_divergence.ipynb)": "[a](../notebooks/01_gradient_divergence.ipynb)",
        "[a](#What-phi-reveals)": "[a](#what-phi-reveals)",
        "[a](../fedlib/tasks.py)": "[a](../code/fedlib/tasks.py.md)",
        '<a href="../docs/GLOSSARY.md#gate">': '<a href="../glossary.html#gate">',
        "[a](https://example.org) and [b](nothing.md)": None,
    }.items():
        assert build._linked(text, home, "../") == (there or text)


def test_a_dead_link_and_a_picture_without_a_text_are_faults(tmp_path, build):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there"></a><a href="b.html#gone"></a><a href="c.html"></a>'
        '<a href="https://example.org"></a><img src="x.svg" alt="x.svg"><img src="x.svg" alt="a b">'
    )
    (tmp_path / "b.html").write_text('<p id="there"><a href="#there">')
    (tmp_path / "x.svg").write_text("")
    faults = sorted(build._faults(tmp_path))
    assert [fault.split(": ")[-1] for fault in faults] == ["b.html#gone", "c.html", "x.svg"]


def test_every_picture_that_is_kept_for_texts_is_shown_by_one():
    texts = "".join(
        (paths.ROOT / name).read_text("utf-8") for name in ("README.md", "docs/FINDINGS.md")
    )
    kept = {f"docs/figures/{f.name}" for f in (paths.ROOT / "docs/figures").iterdir()}
    assert {name for name in kept if name not in texts} == set()


def test_the_site_opens_with_a_result_the_scorecard_and_what_came_out(build):
    first = build._index([])
    parts = (
        "**The answer.**",
        "- **FedMix** minus",
        "figures/forest.png",
        "make test",
        "## Notebooks",
    )
    places = [first.index(x) for x in parts]
    assert places == sorted(places) and "toctree" in first[places[-1] :]


def test_every_paper_has_a_page_with_what_to_believe_its_promises_and_their_figure(
    build, monkeypatch
):
    for name in ("results", "figures"):
        monkeypatch.setenv(f"FEDLIB_{name.upper()}", str(paths.ROOT / name))
    monkeypatch.setattr(told, "number", lambda *_: "one")  # test_told has the real ones
    (build.SOURCES / "figures").mkdir(parents=True)
    build._papers()
    for paper in told.papers():
        page = (build.SOURCES / f"paper_{paper}.md").read_text()
        assert "**What to believe.**" in page
        promises = told.promises()
        for promise, of in zip(promises["promise"], promises["paper"], strict=True):
            assert (f"| {promise} |" in page) >= (of == paper), promise
        assert f"](figures/forest_{paper}.png)" in page
        assert (build.SOURCES / "figures" / f"forest_{paper}.png").exists()
        assert f"paper_{paper}" in build._index([])


def test_code_is_folded_and_controls_without_a_kernel_are_said_to_be_so(build):
    still = {"image/png": "", "text/plain": "Controls: open the notebook in JupyterLab."}
    dead = {"output_type": "display_data", "data": still, "metadata": {}}
    moves = {**dead, "data": {**still, "text/html": "<div>"}}
    cells = [{"id": i, "metadata": {}, "outputs": [o]} for i, o in (("09-33", dead), ("x", moves))]
    cells.append({"id": "nothing-fedavg", "metadata": {"tags": ["a"]}, "outputs": []})
    for cell in cells:
        build._adapt(cell, "Fig. 1", shades=cell["id"] == "x")
    told = [c["metadata"]["mystnb"]["image"] for c in cells]
    shaded = {"alt": "Figure: Fig. 1", "classes": "shades"}
    assert told[0] == {"alt": "Figure: Fig. 1"} and told[1] == shaded
    assert [c["metadata"].get("tags") for c in cells] == [["hide-input"], ["hide-input"], ["a"]]
    assert [len(c["outputs"]) for c in cells] == [2, 1, 0]
    assert "kernel" in cells[0]["outputs"][1]["data"]["text/markdown"]


def test_every_module_and_notebook_has_a_page(build):
    modules = []
    for home in (paths.ROOT / "fedlib", paths.ROOT / "fedrun"):
        modules += [f"{home.name}.{file.stem}" for file in home.glob("[a-z]*.py")]
        modules += [f"{home.name}.{file.parent.name}" for file in home.glob("*/__init__.py")]
    listed = re.findall(r"^   (\w+\.\w+)", build._api(), re.MULTILINE)
    others = {"fedlib.callbacks", "fedlib.flower", "fedrun.example"}
    assert {*listed} == {*modules} - others
    assert "\nnotebooks/00_start_here\n" in build._index(["00_start_here"])


def test_outputs_have_formulas_as_texts_do():
    """What a notebook opens with is an output; it stood as "$p$" on its page."""
    told = (paths.ROOT / "docs" / "site" / "conf.py").read_text()
    assert 'nb_render_markdown_format = "myst"' in told and '["dollarmath"]' in told

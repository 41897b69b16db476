"""The sources of the static site, as they are laid out before Sphinx reads them."""

import importlib.util

import pytest

from fedlib import paths


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


def test_every_picture_that_is_kept_for_texts_is_shown_by_one():
    texts = "".join(
        (paths.ROOT / name).read_text("utf-8") for name in ("README.md", "docs/FINDINGS.md")
    )
    kept = {f"docs/figures/{f.name}" for f in (paths.ROOT / "docs/figures").iterdir()}
    assert {name for name in kept if name not in texts} == set()


def test_the_site_opens_with_a_result_the_scorecard_and_what_came_out(build):
    first = build._index([])
    parts = ("Three of the four mixtures", "figures/forest.png", "make test", "## Notebooks")
    told = [first.index(x) for x in parts]
    assert told == sorted(told) and "toctree" in first[told[-1] :]


def test_code_is_folded_and_controls_without_a_kernel_are_said_to_be_so(build):
    still = {"image/png": "", "text/plain": "Controls: open the notebook in JupyterLab."}
    dead = {"output_type": "display_data", "data": still, "metadata": {}}
    moves = {**dead, "data": {**still, "text/html": "<div>"}}
    cells = [{"id": i, "metadata": {}, "outputs": [o]} for i, o in (("09-33", dead), ("x", moves))]
    cells.append({"id": "nothing-fedavg", "metadata": {"tags": ["a"]}, "outputs": []})
    for cell in cells:
        build._adapt(cell)
    assert [c["metadata"].get("tags") for c in cells] == [["hide-input"], ["hide-input"], ["a"]]
    assert [len(c["outputs"]) for c in cells] == [2, 1, 0]
    assert "kernel" in cells[0]["outputs"][1]["data"]["text/markdown"]


def test_every_room_and_notebook_has_a_page(build):
    home = paths.ROOT / "fedlib"
    rooms = [p.stem for p in home.glob("[a-z]*.py") if p.stem not in ("callbacks", "flower")]
    rooms += [p.parent.name for p in home.glob("*/__init__.py")]
    listed = [line.strip() for line in build._api().splitlines() if "fedlib." in line]
    assert sorted(listed) == sorted(f"fedlib.{room}" for room in rooms)
    assert "\nnotebooks/00_start_here\n" in build._index(["00_start_here"])


def test_outputs_have_formulas_as_texts_do():
    """What a notebook opens with is an output; it stood as "$p$" on its page."""
    told = (paths.ROOT / "docs" / "site" / "conf.py").read_text()
    assert 'nb_render_markdown_format = "myst"' in told and '["dollarmath"]' in told

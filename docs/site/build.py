"""Build the static site: the notebooks with their outputs, all figures, the API.

Lays out sources in build/site-src and has Sphinx write build/site; nothing is downloaded. Fails for
warnings, links that lead nowhere and pictures without a description.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from companion import plotting
from companion.scorecard import LARGEST_FIRST
from companion.widgets import STILL
from fedlib import paths
from papers import told

HERE = Path(__file__).parent
SOURCES, SITE = paths.ROOT / "build" / "site-src", paths.ROOT / "build" / "site"
READ = ("nothing-", "try")  # how the ids of cells begin whose code is there to be read
SHADES = re.compile(r"\b(white|black|gr[ea]y|dark|darker|paler|images?|digits?)\b", re.IGNORECASE)
NEEDS_KERNEL = "*The controls need a running kernel: open the notebook in JupyterLab.*"
# Links of Markdown and of HTML: what is before the target, the file, and the heading on its page.
LINK = re.compile(r"""(\]\(|href=")([^)"#\s:]*)(#[^)"\s]*)?(?=[)"])""")


def main() -> int:
    """Lay out the sources, run Sphinx and check its pages; return 1 if anything is wrong."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    (SOURCES / "notebooks").mkdir(parents=True)
    shutil.copy(HERE / "conf.py", SOURCES)
    (SOURCES / "_static").mkdir()
    shutil.copy(HERE / "site.css", SOURCES / "_static")
    shutil.copytree(paths.ROOT / "docs" / "pictures", SOURCES / "docs" / "pictures")
    names = _notebooks()
    _figures()
    _pages()
    _papers()
    (SOURCES / "index.md").write_text(_index(names), "utf-8")
    (SOURCES / "api.md").write_text(_api(), "utf-8")
    call = ["-m", "sphinx", "-q", "-b", "html", "-W", "--keep-going", "-j", "auto"]
    code = subprocess.run([sys.executable, *call, str(SOURCES), str(SITE)], check=False).returncode
    for fault in (faults := sorted({*_faults(SITE)})):
        print(fault, file=sys.stderr)
    return code or int(bool(faults))


def _notebooks() -> list[str]:
    """Copy the notebooks with the outputs that they are stored with; return their names."""
    names = []
    for notebook in sorted((paths.ROOT / "notebooks").glob("*.ipynb")):
        read, section = json.loads(notebook.read_text("utf-8")), notebook.stem
        texts = ["".join(c["source"]) * (c["cell_type"] == "markdown") for c in read["cells"]]
        for i, cell in enumerate(read["cells"]):
            if cell["cell_type"] == "code":
                around = texts[max(i - 1, 0)] + "".join(texts[i + 1 : i + 2])
                _adapt(cell, section, shades=SHADES.search(around) is not None)
                continue
            cell["source"] = _linked("".join(cell["source"]), notebook.parent, "../")
            headings = re.findall(r"^#+ (.+)", cell["source"], re.MULTILINE)
            section = re.sub(r"[`*$\\]", "", headings[-1]) if headings else section
        (SOURCES / "notebooks" / notebook.name).write_text(json.dumps(read), "utf-8")
        names.append(notebook.stem)
    return names


def _adapt(cell: dict[str, Any], section: str, *, shades: bool) -> None:
    """Fold a cell's code, unless it is there to be read; say where controls need a kernel.

    Its figures are described by the section that they are in, and keep their shades in the dark
    theme if a text names these. Its links lead into the site.
    """
    if not cell["id"].startswith(READ):
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
    image = {"alt": f"Figure: {section}"} | ({"classes": "shades"} if shades else {})
    cell["metadata"]["mystnb"] = {"image": image}
    shown = [output.get("data", {}) for output in cell["outputs"]]
    for data in shown:
        for kind in data.keys() & {"text/html", "text/markdown"}:
            data[kind] = _linked("".join(data[kind]), paths.ROOT / "notebooks", "../")
    if any(STILL in "".join(d.get("text/plain", "")) and "text/html" not in d for d in shown):
        note = {"text/markdown": NEEDS_KERNEL, "text/plain": NEEDS_KERNEL}
        cell["outputs"].append({"output_type": "display_data", "data": note, "metadata": {}})


def _figures() -> None:
    """Copy every figure at its largest scale, and write a page that shows them all."""
    found: dict[str, tuple[str, Path]] = {}
    folders = [(scale, paths.figures() / scale) for scale in LARGEST_FIRST]
    folders.append(("quick", paths.ROOT / "docs" / "figures"))  # the README's, ever there
    for scale, folder in folders:
        for picture in sorted(folder.glob("*.png")):
            found.setdefault(picture.name, (scale, picture))
    (SOURCES / "figures").mkdir()
    lines = ["# Figures", "", "Each at the largest scale at which it has been drawn.", ""]
    last = ""
    for name, (scale, picture) in sorted(found.items()):
        shutil.copy(picture, SOURCES / "figures" / name)
        number, _, what = picture.stem.partition("_")
        if number != last:
            lines += [f"## Notebook {number}", ""]
            last = number
        told = (what or number).replace("_", " ")
        lines += [f"![{told}](figures/{name})", "", f"*{told}, {scale} scale*", ""]
    (SOURCES / "figures.md").write_text("\n".join(lines), "utf-8")


TEXTS = {
    "findings": "docs/FINDINGS.md",
    "index": "README.md",
    "manual": "docs/MANUAL.md",
    "glossary": "docs/GLOSSARY.md",
    "architecture": "docs/ARCHITECTURE.md",
    "readings": "docs/READINGS.md",
    "campaigns": "docs/CAMPAIGNS.md",
    "flower": "examples/flower/README.md",
    "algorithms": "docs/ALGORITHMS.md",
    "contributing": "docs/CONTRIBUTING.md",
    "changelog": "docs/CHANGELOG.md",
    "mutants": "docs/MUTANTS.md",
    "determinism": "benchmarks/DETERMINISM.md",
    "gpu": "benchmarks/GPU.md",
    "robustness": "benchmarks/ROBUSTNESS.md",
}
PAGES = {source: f"{name}.md" for name, source in TEXTS.items()}


def _pages() -> None:
    """Copy the texts but for the README, which begins the first page."""
    for name, source in TEXTS.items():
        if name != "index":
            (SOURCES / f"{name}.md").write_text(_text(source), "utf-8")


def _papers() -> None:
    """Write a page for each paper: what to believe, its promises, and their figure."""
    plotting.use_style()
    for paper in told.papers():
        figure, _ = told.forest(paper)
        figure.savefig(SOURCES / "figures" / f"forest_{paper}.png")
        page = _linked(told.paper_page(paper), paths.ROOT / "docs", "")
        (SOURCES / f"paper_{paper}.md").write_text(page, "utf-8")


def _text(source: str) -> str:
    """Return a text, its links made to point into the site."""
    file = paths.ROOT / source
    return _linked(file.read_text("utf-8"), file.parent, "")


def _linked(text: str, home: Path, up: str) -> str:
    """Return a text with links to files of the repository made links to pages of the site.

    Args:
        text: Markdown, or HTML.
        home: the folder of the text's file.
        up: what leads from the text's page to the site's first folder.
    """

    def into_the_site(link: re.Match[str]) -> str:
        before, target, heading = link.groups()
        file = (home / target).resolve()
        if target and not file.exists():
            return link[0]
        page = up + _page(file) if target else ""
        if before != "](":
            page = re.sub(r"\.(md|ipynb)$", ".html", page)
        # Jupyter keeps capitals in the ids of headings.
        anchor = "#" + re.sub(r"[^\w-]", "", unquote(heading).lower()) if heading else ""
        return before + page + anchor

    return LINK.sub(into_the_site, text)


def _page(file: Path) -> str:
    """Return the page, or the picture, of a file of the repository; code gets a page of its own."""
    name = file.relative_to(paths.ROOT).as_posix()
    if name in PAGES or file.suffix == ".ipynb":
        return PAGES.get(name, name)
    if file.suffix in (".png", ".svg"):
        return f"figures/{file.name}" if "figures" in file.parts else name
    page = SOURCES / "code" / f"{name}.md"
    if not page.exists():
        page.parent.mkdir(parents=True, exist_ok=True)
        lines = ["---", "orphan: true", "---", "", f"# {name}", ""]
        for part in sorted(file.glob("*.py")) if file.is_dir() else [file]:
            lines += [f"## {part.name}"] if file.is_dir() else []
            language = "python" if part.suffix == ".py" else "text"
            lines += ["", f"`````{language}", part.read_text("utf-8").rstrip(), "`````", ""]
        page.write_text("\n".join(lines), "utf-8")
    return f"code/{name}.md"


class _Read(HTMLParser):
    """What a page links to, the ids that can be linked to, and its pictures without a text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.untold: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.links |= {given[name] for name in ("href", "src") if given.get(name)}
        if tag == "img" and given.get("alt", "") in ("", given.get("src")):
            self.untold.add(given.get("src", "")[:80])


def _faults(site: Path) -> Iterator[str]:
    """Yield links that lead nowhere and pictures without a description, with their pages."""
    files = [f.resolve() for f in site.rglob("*.html")]
    pages = {file: _Read(file.read_text("utf-8")) for file in files}
    for file, page in pages.items():
        name = file.relative_to(site.resolve())
        yield from (f"{name}: a picture without alt text: {src}" for src in page.untold)
        for link in page.links:
            parts = urlsplit(link)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.scheme or parts.netloc:
                continue
            there = pages[target].ids if target in pages else {unquote(parts.fragment)}
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in there):
                yield f"{name}: a link that leads nowhere: {link}"


def _index(names: list[str]) -> str:
    """Return the first page: the README, and what the other pages are."""
    listed = "\n".join(f"notebooks/{name}" for name in names)
    papers = "\n".join(f"paper_{paper}" for paper in told.papers())
    return f"""{_text("README.md")}

**More:** [what was found](findings.md), with intervals; all [figures](figures.md); the
[scorecard](notebooks/16_scorecard.ipynb) of published and measured numbers;
the [manual](manual.md); the [API](api.md).

```{{toctree}}
:hidden:
findings
figures
manual
glossary
```

```{{toctree}}
:caption: What to believe
:hidden:
{papers}
```

```{{toctree}}
:caption: Notebooks
:hidden:
{listed}
```

```{{toctree}}
:caption: How it works
:hidden:
architecture
algorithms
readings
campaigns
flower
api
```

```{{toctree}}
:caption: The project
:hidden:
contributing
changelog
determinism
robustness
gpu
mutants
```
"""


def _api() -> str:
    """Return the page of all modules, with their docstrings and those of what they hold."""
    modules = sorted(
        f"{package}.{p.stem}"
        for package in ("fedlib", "fedrun")
        for p in (paths.ROOT / package).iterdir()
        if (p.suffix == ".py" or (p / "__init__.py").exists())
        and not p.stem.startswith("_")
        and p.stem not in ("callbacks", "flower", "example")  # former addresses, and no code
    )
    listed = "\n".join(f"   {module}" for module in modules)
    return f"""# API

Rooms and what they export; ARCHITECTURE says how they hang together.

```{{eval-rst}}
.. autosummary::
   :toctree: api
   :recursive:

{listed}
```
"""


if __name__ == "__main__":
    sys.exit(main())

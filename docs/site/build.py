"""Build the static site: the notebooks with their outputs, all figures, the scorecard, the API.

Lays out sources in build/site-src and has Sphinx write build/site; nothing is downloaded.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from companion.scorecard import LARGEST_FIRST, write
from fedlib import paths
from papers.book import BOOK

HERE = Path(__file__).parent
SOURCES, SITE = paths.ROOT / "build" / "site-src", paths.ROOT / "build" / "site"
# A link to a stored run in the scorecard, and a picture in the README.
PICTURE = re.compile(r'<img src="[^"]*figures/(?:[^"]*/)?([^"/]+\.png)" width="(\d+)">')


def main() -> int:
    """Lay out the sources and run Sphinx; its exit code, 1 for warnings too."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    (SOURCES / "notebooks").mkdir(parents=True)
    shutil.copy(HERE / "conf.py", SOURCES)
    (SOURCES / "_static").mkdir()
    shutil.copy(HERE / "site.css", SOURCES / "_static")
    shutil.copytree(paths.ROOT / "docs" / "pictures", SOURCES / "docs" / "pictures")
    names = _notebooks()
    _figures()
    _scorecard()
    _pages()
    (SOURCES / "index.md").write_text(_index(names))
    (SOURCES / "api.md").write_text(_api())
    call = ["-m", "sphinx", "-q", "-b", "html", "-W", "--keep-going", "-j", "auto"]
    return subprocess.run([sys.executable, *call, str(SOURCES), str(SITE)], check=False).returncode


def _notebooks() -> list[str]:
    """Copy the notebooks with the outputs that they are stored with; return their names."""
    names = []
    for notebook in sorted((paths.ROOT / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, SOURCES / "notebooks" / notebook.name)
        names.append(notebook.stem)
    return names


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
        lines += [
            f"![{what}](figures/{name})",
            "",
            f"*{what.replace('_', ' ')}, {scale} scale*",
            "",
        ]
    (SOURCES / "figures.md").write_text("\n".join(lines))


def _scorecard() -> None:
    """Write the scorecard anew and put its page beside the site's."""
    file, _, _ = write(BOOK)
    (SOURCES / "extra").mkdir()
    page = file.read_text().replace("../notebooks/", "notebooks/").replace(".ipynb", ".html")
    page = page.replace("<h1>", '<p><a href="index.html">fedlib</a></p>\n<h1>', 1)
    (SOURCES / "extra" / "scorecard.html").write_text(page)


TEXTS = {
    "findings": "FINDINGS.md",
    "readme": "README.md",
    "architecture": "ARCHITECTURE.md",
    "readings": "docs/READINGS.md",
    "flower": "docs/FLOWER.md",
}


def _pages() -> None:
    """Copy the texts; the README from its third part on, what is before is the first page."""
    for name, source in TEXTS.items():
        text = _text(source)
        if name == "readme":
            text = "# How to use it\n\n" + text[_opening(text) :]
        (SOURCES / f"{name}.md").write_text(text)


def _text(source: str) -> str:
    """Return a text, its links made to point into the site."""
    text = (paths.ROOT / source).read_text()
    text = PICTURE.sub(r'<img src="_images/\1" width="\2">', text)
    text = re.sub("(docs/figures|figures/standard)/", "figures/", text)
    for other, file in TEXTS.items():
        text = text.replace(f"({file})", f"({other}.md)")
    return text


def _opening(readme: str) -> int:
    """Return where the README's second part ends: what it is, what was found, the notebooks."""
    return [found.start() for found in re.finditer("^## ", readme, re.MULTILINE)][1]


def _index(names: list[str]) -> str:
    """Return the first page: the README's opening, and what the other pages are."""
    readme = _text("README.md")
    listed = "\n".join(f"notebooks/{name}" for name in names)
    return f"""{readme[: _opening(readme)]}

**More:** [what was found](findings.md), with intervals; all [figures](figures.md); the
<a href="scorecard.html">scorecard</a> of published and measured numbers;
[how to use it](readme.md); the [API](api.md).

```{{toctree}}
:hidden:
findings
figures
readme
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
readings
flower
api
```
"""


def _api() -> str:
    """Return the page of all rooms, with their docstrings and those of what they hold."""
    rooms = sorted(
        p.stem
        for p in (paths.ROOT / "fedlib").iterdir()
        if (p.suffix == ".py" or (p / "__init__.py").exists()) and not p.stem.startswith("_")
    )
    listed = "\n".join(f"   fedlib.{room}" for room in rooms)
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

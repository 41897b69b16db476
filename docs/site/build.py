"""Build the static site: the notebooks with their outputs, all figures, the API.

Lays out sources in build/site-src and has Sphinx write build/site; nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from companion.scorecard import LARGEST_FIRST
from companion.widgets import STILL
from fedlib import paths

HERE = Path(__file__).parent
SOURCES, SITE = paths.ROOT / "build" / "site-src", paths.ROOT / "build" / "site"
READ = ("nothing-", "try")  # how the ids of cells begin whose code is there to be read
NEEDS_KERNEL = "*The controls need a running kernel: open the notebook in JupyterLab.*"


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
    _pages()
    (SOURCES / "index.md").write_text(_index(names), "utf-8")
    (SOURCES / "api.md").write_text(_api(), "utf-8")
    call = ["-m", "sphinx", "-q", "-b", "html", "-W", "--keep-going", "-j", "auto"]
    return subprocess.run([sys.executable, *call, str(SOURCES), str(SITE)], check=False).returncode


def _notebooks() -> list[str]:
    """Copy the notebooks with the outputs that they are stored with; return their names."""
    names = []
    for notebook in sorted((paths.ROOT / "notebooks").glob("*.ipynb")):
        text = notebook.read_text("utf-8")
        text = text.replace('\\"../docs/GLOSSARY.md\\"', '\\"../glossary.html\\"')
        read = json.loads(text)
        for cell in read["cells"]:
            if cell["cell_type"] == "code":
                _adapt(cell)
        (SOURCES / "notebooks" / notebook.name).write_text(json.dumps(read), "utf-8")
        names.append(notebook.stem)
    return names


def _adapt(cell: dict[str, Any]) -> None:
    """Fold a cell's code, unless it is there to be read; say where controls need a kernel."""
    if not cell["id"].startswith(READ):
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
    shown = [output.get("data", {}) for output in cell["outputs"]]
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
        lines += [
            f"![{what}](figures/{name})",
            "",
            f"*{what.replace('_', ' ')}, {scale} scale*",
            "",
        ]
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
}


def _pages() -> None:
    """Copy the texts but for the README, which begins the first page."""
    for name, source in TEXTS.items():
        if name != "index":
            (SOURCES / f"{name}.md").write_text(_text(source), "utf-8")


def _text(source: str) -> str:
    """Return a text, its links made to point into the site."""
    text = (paths.ROOT / source).read_text("utf-8").replace("](../", "](")
    text = re.sub(r"\]\((docs/figures|figures/standard|figures/paper)/", "](figures/", text)
    for other, file in TEXTS.items():
        links = f"{re.escape(file)}|{re.escape(Path(file).name)}"  # as texts link to it
        text = re.sub(rf"\(({links})(#[^)]*)?\)", rf"({other}.md\2)", text)
    return text


def _index(names: list[str]) -> str:
    """Return the first page: the README, and what the other pages are."""
    listed = "\n".join(f"notebooks/{name}" for name in names)
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
:caption: Notebooks
:hidden:
{listed}
```

```{{toctree}}
:caption: How it works
:hidden:
architecture
readings
campaigns
flower
api
```
"""


def _api() -> str:
    """Return the page of all rooms, with their docstrings and those of what they hold."""
    rooms = sorted(
        p.stem
        for p in (paths.ROOT / "fedlib").iterdir()
        if (p.suffix == ".py" or (p / "__init__.py").exists())
        and not p.stem.startswith("_")
        and p.stem not in ("callbacks", "flower")  # former addresses
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

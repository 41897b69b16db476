"""The driver of the notebooks, end to end on throw-away notebooks."""

import base64
import json
import os
import re
import time
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
from cases import refused
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image
from test_notebook_rules import LINES

from companion.notebooks import Failure, relinked, select, write_back
from companion.sections import NothingStored, OtherData
from fedlib import PINNED, paths
from papers.__main__ import main

SAVES = """
import pandas as pd
from companion import plotting
print(dataset, plotting.save_table(pd.DataFrame({"a": [1]}), "01_claims", scale).parent.name)
"""
SHOW = "print(scale, repr(seeds), repr(rounds))"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for notebooks, with everything that the driver writes beside it."""
    for name in ("notebooks", "build", "runs", "figures"):
        monkeypatch.setenv(f"FEDLIB_{name.upper()}", str(tmp_path / name))
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


def write(folder: Path, name: str, *sources: str) -> Path:
    cells = [new_markdown_cell("# A title"), new_code_cell(LINES)]
    cells[1].metadata.tags = ["parameters"]
    cells += [new_code_cell(source) for source in sources]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path = folder / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


def printed(notebook: Path) -> str:
    cells = nbformat.read(notebook, as_version=4).cells
    return "".join(o.text for c in cells for o in c.get("outputs", []) if "text" in o)


def raising(kind: type[Exception], text: str) -> str:
    """Code that ends with an error of a kind's name, as `panels` does: test_show."""
    return f"class {kind.__name__}(ValueError): pass\nraise {kind.__name__}({text!r})"


@pytest.mark.slow
def test_figures_passes_typed_values_and_leaves_the_source_alone(folder, capsys):
    source = write(folder, "00_good", SHOW, f"import fedlib; assert fedlib.PINNED is {PINNED}")
    before = source.read_bytes()
    assert main(["figures", "--scale", "paper", "--seeds", "3", "--jobs", "1"]) == 0
    assert source.read_bytes() == before
    built = folder.parent / "build" / "paper" / "seeds=3"
    assert printed(built / "00_good.ipynb") == "paper 3 0\n"
    assert sorted(p.name for p in built.iterdir()) == ["00_good.ipynb", "00_good.log"]
    said = capsys.readouterr().out
    assert "00_good: started with scale='paper', seeds=3" in said
    assert said.splitlines()[-2].endswith("00_good: done")
    assert said.splitlines()[-1].startswith(f"executed notebooks: {built}; figures: ")


@pytest.mark.slow
def test_a_failed_cell_stops_the_build_and_keeps_the_copy(folder, capsys):
    beat = folder.parent / "beat"
    wait = f"import os, time\nwhile not os.path.exists({str(beat)!r}): time.sleep(0.1)"
    write(folder, "00_bad", SHOW, wait, "answer = 42\nraise RuntimeError('no such luck')")
    wait = f"    time.sleep(0.05)\n    open({str(beat)!r}, 'a').write('x')"
    write(folder, "01_long", f"import time\nwhile True:\n{wait}")
    write(folder, "02_never", SHOW)
    assert main(["figures", "--rounds", "2", "--jobs", "2"]) == 1
    (kept,) = (folder.parent / "build" / "quick" / "rounds=2").glob("*.ipynb")
    assert kept.name == "00_bad.failed.ipynb" and printed(kept).startswith("quick 0 2")
    said, failed = capsys.readouterr(), '00_bad failed: Exception encountered at "In [5]"'
    told = failed, "answer", "RuntimeError: no such luck", str(kept)
    assert all(part in said.err for part in told)
    assert said.out.splitlines()[-1].endswith("01_long: stopped")
    time.sleep(3)
    size = beat.stat().st_size
    time.sleep(0.5)
    assert beat.stat().st_size == size, "its kernel still runs"


@pytest.mark.slow
def test_of_stored_runs_only_a_notebook_of_which_nothing_is_stored_is_left_out(folder, capsys):
    write(folder, "00_bare", raising(NothingStored, "of long nothing is stored"))
    write(folder, "01_bad", "raise ValueError('a real error')")
    stored = ["figures", "--scale", "standard", "--stored", "--jobs", "1"]
    assert main([*stored, "--only", "00"]) == 0
    assert "00_bare: left out: of long nothing is stored" in capsys.readouterr().out
    assert main([*stored, "--only", "01"]) == 1
    assert "ValueError: a real error" in capsys.readouterr().err


@pytest.mark.slow
def test_a_notebook_without_the_data_set_is_left_out_unless_it_is_named(folder, capsys):
    """One of them stopped all others, and names that sections alone have were refused."""
    write(folder, "00_other", raising(OtherData, "unknown data set at scale"))
    write(folder, "01_good", SAVES)
    asked = ["figures", "--scale", "standard", "--dataset", "rotated_mnist", "--jobs", "1"]
    assert main(asked) == 0
    assert "00_other: left out: unknown data set at scale" in capsys.readouterr().out
    built = folder.parent / "build" / "standard" / "dataset=rotated_mnist" / "01_good.ipynb"
    assert printed(built) == "rotated_mnist dataset=rotated_mnist\n"
    assert main([*asked, "--only", "00"]) == 1
    assert "OtherData: unknown data set" in capsys.readouterr().err


@pytest.mark.slow
def test_papermill_with_other_seeds_replaces_no_complete_figure(folder):
    """Only the command line had a folder for them: the stored evidence was overwritten silently."""
    source, copy = write(folder, "01_good", SAVES), folder.parent / "copy.ipynb"
    papermill.execute_notebook(source, copy, {"scale": "standard", "seeds": 1}, progress_bar=False)
    written = folder.parent / "figures" / "standard"
    assert [p.relative_to(written).as_posix() for p in written.rglob("*.csv")] == [
        "seeds=1/01_claims.csv"
    ]


@pytest.mark.slow
def test_refresh_writes_stable_outputs_into_the_source(folder):
    shows = "import os, sys\nprint('one')\nsys.stdout.flush()\nprint('two')"
    shows += "\nos.environ['FEDLIB_RUNS']"
    source = write(folder, "00_good", SHOW, shows)
    assert main(["notebooks", "--jobs", "1"]) == 0
    first = source.read_bytes()
    notebook = json.loads(first)
    kernel, language = notebook["metadata"].pop("kernelspec"), {"name": "python"}
    assert kernel["name"] == "python3" and notebook["metadata"] == {"language_info": language}
    assert [c["metadata"] for c in notebook["cells"]] == [{}, {"tags": ["parameters"]}, {}, {}]
    assert [c["execution_count"] for c in notebook["cells"][1:]] == [1, 2, 3]
    stream, value = notebook["cells"][3]["outputs"]
    assert "".join(stream["text"]) == "one\ntwo\n"
    store = "".join(value["data"]["text/plain"]).strip("'")
    assert not Path(store).exists() and store != os.environ["FEDLIB_RUNS"]
    assert [p.name for p in folder.iterdir()] == ["00_good.ipynb"]


@refused("figures")
def test_bad_arguments_are_named_before_anything_runs(folder, capsys, code, message):
    write(folder, "00_good", SHOW)
    assert main(["figures", *code.split()]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (folder.parent / "build").exists()


@pytest.mark.parametrize("only", ["01", "01_b", " 01,", "01_b.ipynb"])
def test_only_takes_numbers_and_names(only, folder):
    notebooks = [write(folder, name) for name in ("00_a", "01_b")]
    assert select(only) == notebooks[1:]
    assert select("") == notebooks


def test_links_of_a_copy_lead_where_those_of_its_source_do(folder):
    """Pictures were missing in every copy, which lies a folder deeper."""
    text = '![a](../docs/a.svg) and [all](../docs/b.md), <a href="../docs/b.md">all</a>, ../ [c](c)'
    source, built = write(folder, "00_good", SHOW), folder.parent / "build" / "quick"
    built.mkdir(parents=True)
    copy = built / source.name
    notebook = nbformat.read(source, as_version=4)
    notebook.cells[0].source = text
    nbformat.write(notebook, copy)
    relinked(source, copy)
    (now, *_), deeper = nbformat.read(copy, as_version=4).cells, "../../docs"
    assert now.source == text.replace("../docs", deeper)
    assert (built / deeper).resolve() == (folder / "../docs").resolve()


def test_a_source_edited_meanwhile_is_not_overwritten_and_of_widgets_a_picture_is_kept(folder):
    source, copy = write(folder, "00_good", SHOW), write(folder, "copy", "print()")
    before = source.read_bytes()
    with pytest.raises(Failure, match=r"00_good\.ipynb changed while it was executed"):
        write_back(source, copy)
    assert source.read_bytes() == before
    notebook = nbformat.read(source, as_version=4)
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "x"}
    shades = np.random.default_rng(0).integers(256, size=(100, 100, 1)).repeat(3, axis=2)
    picture, file = Image.fromarray(shades.astype(np.uint8)), BytesIO()
    picture.save(file, "png", dpi=(144, 144))
    drawn = {**view, "image/png": base64.b64encode(file.getvalue()).decode()}
    notebook.cells[2].outputs = [new_output("display_data", v) for v in (view, drawn)]
    nbformat.write(notebook, copy)
    write_back(source, copy)
    (kept,) = nbformat.read(source, as_version=4).cells[2].outputs
    assert {*kept.data} == {"text/plain", "image/png"}
    again = Image.open(BytesIO(base64.b64decode(kept.data["image/png"])))
    assert (again.mode, again.size, round(again.info["dpi"][0])) == ("P", (100, 100), 144)
    assert np.abs(np.asarray(again.convert("RGB"), int) - shades).max() <= 8  # half of 17


def test_paths_are_absolute_and_follow_their_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("CACHE", "FIGURES"):
        monkeypatch.delenv(f"FEDLIB_{name}", raising=False)
    monkeypatch.setenv("FEDLIB_RUNS", "here/runs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.runs() == tmp_path / "here" / "runs" and paths.cache() == tmp_path / "fedlib"
    assert paths.ROOT.is_absolute() and paths.figures() == paths.ROOT / "figures"

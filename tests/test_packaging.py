"""One package, whichever way it is installed: pip and conda take the same extras and pins."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from setuptools import find_packages
from test_architecture import imports

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = ("fedlib", "fedrun", "companion", "papers")
BESIDE = ("tests", "benchmarks", "examples", "conftest")  # of a checkout
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [Requirement(r) for r in sum(extras.values(), PROJECT["dependencies"])]


def pins() -> list[tuple[str, str]]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(equals for _, equals, _ in found), "constraints.txt holds exact pins only"
    return [(canonicalize_name(name), version) for name, _, version in found]


def test_pip_and_conda_install_the_same_package_extras_and_pins():
    recipe = re.search(r"pip install (?:--quiet )?(.+)", (ROOT / "Makefile").read_text())
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    through_pip = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert recipe and recipe.group(1).replace("'", "") == " ".join(through_pip)
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    # Everything but Python and pip comes from the pins, so conda names nothing else.
    conda = [d for d in environment["dependencies"] if isinstance(d, str)]
    assert conda == [f"python={PROJECT['requires-python'].removeprefix('>=')}", "pip"]


def test_every_python_that_is_promised_is_tested():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    pythons = job["strategy"]["matrix"]["python"]
    assert [word.rpartition(" ")[2] for word in PROJECT["classifiers"]] == pythons
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert job["steps"][-1] == {"run": ".ci/run"}


def test_every_dependency_is_pinned_once_within_its_bounds():
    names = [name for name, _ in pins()]
    assert len(names) == len(set(names)), "a package is pinned twice"
    versions = dict(pins())
    assert not Version(versions["torch"]).local, "a build, where CPU and CUDA wheels are to fit"
    for requirement in requirements():
        assert str(requirement.specifier).startswith(">="), f"{requirement}: lower bounds only"
        version = versions.get(canonicalize_name(requirement.name))
        assert version, f"{requirement} is not pinned in constraints.txt"
        assert version in requirement.specifier, f"{requirement} excludes the pin {version}"


def test_every_pin_can_be_installed_on_the_oldest_python_that_is_promised():
    """One that needs 3.11.5 stopped `make figures` on Debian 12, whose Python is 3.11.2."""
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    for name, pinned in pins():
        with suppress(metadata.PackageNotFoundError):
            installed = metadata.metadata(name)
            needs = SpecifierSet(installed["Requires-Python"] or "")
            assert installed["Version"] != pinned or oldest in needs, f"{name} needs {needs}"


def sources() -> list[tuple[str, str]]:
    files = [p for f in (*OURS, "tests", "benchmarks") for p in sorted((ROOT / f).rglob("*.py"))]
    found = [(str(path.relative_to(ROOT)), path.read_text()) for path in files]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        found.append((path.name, re.sub(r"^\s*[%!].*$", "", code, flags=re.MULTILINE)))
    return found


def imported(code: str) -> set[str]:
    """The top-level modules that some code imports, its own package's aside."""
    names = {name.partition(".")[0] for name in imports(code)}
    return names - set(sys.stdlib_module_names) - {*OURS, *BESIDE}


def test_every_third_party_import_is_declared():
    declared = {canonicalize_name(r.name) for r in requirements()}
    providers = metadata.packages_distributions()
    beside = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    missing = []
    for where, code in sources():
        for module in sorted(imported(code) - beside):
            names = {canonicalize_name(name) for name in providers.get(module, [module])}
            if not names & declared:
                missing.append(f"{where} imports {module}")
    assert not missing, "not declared in pyproject.toml: " + "; ".join(missing)


def test_the_distribution_is_the_library_and_an_editable_install_the_checkout():
    """With one named folder for all packages setuptools puts that folder on the path."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = find_packages(str(ROOT), **told["packages"]["find"])
    found = {name.partition(".")[0] for name in packages}
    assert found == {"fedlib", "fedrun"} and told["package-dir"] == {"": "."}


def test_the_library_needs_no_more_than_it_says():
    """What is imported when a module is comes with the package; the rest where it is asked for."""
    core = {canonicalize_name(Requirement(r).name) for r in PROJECT["dependencies"]}
    providers = metadata.packages_distributions()
    for path in sorted((ROOT / "fedlib").rglob("*.py")):
        tree = ast.parse(path.read_text())
        top = ast.unparse([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)])
        for module in imported(top):
            names = {canonicalize_name(name) for name in providers.get(module, [module])}
            assert names & core, f"{path.relative_to(ROOT)} imports {module}"


def test_the_citation_names_this_version_and_every_paper():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["version"] == PROJECT["version"] == metadata.version("fedlib")
    assert CITATION["license"] == PROJECT["license"] == "MIT"
    papers = CITATION["references"]
    titles = (ROOT / "papers" / "titles.csv").read_text().splitlines()
    ours = [line for line in titles if line[:3].isdigit()]  # a paper's number and short name
    cited = f"CITATION.cff has {len(papers)} papers, papers/titles.csv has {len(ours)}"
    assert len({paper["title"] for paper in papers}) == len(papers) == len(ours), cited
    assert f"## {PROJECT['version']}" in (ROOT / "docs" / "CHANGELOG.md").read_text()
    for paper in papers:
        assert paper["authors"] and paper["year"] and "arxiv.org/abs" in paper["url"]


@pytest.mark.parametrize("name", ["DATASET", "ONLY", "SCALE", "SECTIONS", "JOBS"])
def test_no_setting_of_make_runs_a_command(name, tmp_path):
    """Neither one of the command line nor one of the environment, which is no setting at all."""
    value = "x'; touch ran; '$(shell touch ran)`touch ran`"
    call = ["make", "-s", "-f", str(ROOT / "Makefile"), "PY=echo", "figures", "plan", "browser"]
    for more, given in (([f"{name}={value}"], {}), ([], {name: value})):
        environment = {**os.environ, **given}
        how = {"cwd": tmp_path, "capture_output": True, "text": True, "env": environment}
        done = subprocess.run([*call, *more], **how)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("asked", "why"),
    [("plan SCLE=quick", "unknown variable: SCLE"), ("campaign SCALE=quick", "make paper takes")],
)
def test_make_refuses_what_it_would_not_use(asked, why):
    call = ["make", "-n", "-f", str(ROOT / "Makefile"), "PY=echo", *asked.split()]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr


def test_make_trains_every_block_of_the_campaign(tmp_path):
    """Of fifteen, written in a list of their own, a sixteenth would have been left out."""
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "campaign.toml").write_text("[[blocks]]\nhours = 1\n\n[[blocks]]\n")
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    call = ["make", "-n", "-C", str(tmp_path), "PY=echo", "campaign"]
    done = subprocess.run(call, capture_output=True, text=True)
    assert re.findall(r"--block \d+", done.stdout) == ["--block 1", "--block 2"], done.stderr


@pytest.mark.slow
def test_the_commands_work_in_a_folder_of_any_name(tmp_path):
    home = tmp_path / "Übung 1 (neu) $x 'a'"
    checkout = home / "fed lib"
    for name in (*OURS, "docs", "benchmarks", "figures/standard", "figures/paper"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.*"), ROOT / "Makefile", *(ROOT / "notebooks").glob("00_*")):
        if path.is_file():
            (checkout / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
            shutil.copy(path, checkout / path.relative_to(ROOT))
    clean = {n: v for n, v in os.environ.items() if not n.startswith("FEDLIB_")}
    how = {"cwd": checkout, "capture_output": True, "encoding": "utf-8"}
    how["env"] = clean | {"PYTHONPATH": str(checkout), "HOME": str(home)}
    make = ["make", f"PY={sys.executable}", "JOBS=1"]
    for call in (
        [*make, "figures", "ONLY=00", "ROUNDS=2"],
        [sys.executable, "-m", "fedrun", "runs"],
    ):
        done = subprocess.run(call, **how)
        assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* runs", done.stdout), "where they are looked for by default"
    assert [*(checkout / "figures" / "quick").rglob("00_*.png")]


def test_the_front_page_has_one_page():
    """Others are in docs/, where GitHub looks for CONTRIBUTING, too."""
    assert [path.name for path in ROOT.glob("*.md")] == ["README.md"]
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150, "docs/MANUAL.md has the rest"
    assert (ROOT / "docs" / "CONTRIBUTING.md").is_file()


def test_a_workflow_may_only_read_and_packages_have_one_index():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert yaml.safe_load(workflow)["permissions"] == {"contents": "read"}
    assert "EXTRA_INDEX" not in workflow + (ROOT / "docs" / "MANUAL.md").read_text()


WEIGHTS = {"results": 42, "notebooks": 15, "figures": 10, "": 62}  # most MB of tracked files


def test_a_clone_is_small():
    """Numbers and pictures are what it weighs: `fedrun.results` and `companion.plotting`."""
    call = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(call, capture_output=True, check=True, encoding="utf-8").stdout
    files = {name: ROOT / name for name in names.split("\0") if (ROOT / name).is_file()}
    for folder, most in WEIGHTS.items():
        sizes = [path.stat().st_size for name, path in files.items() if name.startswith(folder)]
        assert 0 < sum(sizes) < most * 1e6, folder or "all"


TOLD = re.compile(
    r"(?:python|\$\(PY\)) -m ((?:fedlib|fedrun|companion|papers|benchmarks)(?:\.\w+)*)\b"
)


def test_every_command_that_is_told_is_one():
    """Except in the changes of earlier versions, which had other commands."""
    places = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), ROOT / "Makefile"]
    places += [path for folder in (*OURS, "examples") for path in (ROOT / folder).rglob("*.py")]
    told = {
        name: path.name
        for path in places
        if path.name != "CHANGELOG.md"
        for name in TOLD.findall(path.read_text("utf-8"))
    }
    assert {"fedrun", "papers"} <= {*told}
    for name, place in told.items():
        found = ROOT.joinpath(*name.split("."))
        assert found.with_suffix(".py").exists() or (found / "__main__.py").exists(), (name, place)

"""Change the code a little, everywhere, and count the changes that no test sees: `make mutants`.

    python -m benchmarks.mutants [--some PATTERN] [FILE ...]

mutmut makes the mutants of one file after another, in a copy of the project in build/mutants, and
runs the tests of `TESTS` that reach them, without those of hypothesis, whose draws would decide.
`--some` takes a part of them: "*[37]" is one in five. A mutant that no test kills is printed.
docs/MUTANTS.md has the score.
"""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from fedlib import paths

COPIED = ("fedlib", "companion", "papers", "benchmarks", "tests", "notebooks", "figures", "docs")
# Which test files see the mutants of a file; of what is not here, those of its room.
TESTS = {
    "fedlib/algorithms/arithmetic.py": "fedmix loops mixture",
    "fedlib/algorithms/drift.py": "loops",
    "fedlib/algorithms/fedavg.py": "optim engine private",
    "fedlib/algorithms/fedem.py": "loops",
    "fedlib/algorithms/fedmix.py": "fedmix newcomers",
    "fedlib/algorithms/ifca.py": "ifca",
    "fedlib/algorithms/local.py": "newcomers metrics",
    "fedlib/algorithms/mixture.py": "mixture ifca",
    "fedlib/algorithms/personal.py": "loops splitting",
    "fedlib/algorithms/pmmoe.py": "pmmoe",
    "fedlib/algorithms/private.py": "private",
    "fedlib/algorithms/server_training.py": "loops splitting",
    "fedlib/algorithms/splitting.py": "splitting",
    "fedlib/engine/selection.py": "training",
    "fedlib/engine": "engine batches training",
    "fedlib/partition/held_out.py": "partition opt_out",
    "fedlib/partition": "partition partition_schemes",
    "companion/claims.py": "claims",
}
CONFIGURATION = """
[tool.mutmut]
source_paths = ["companion", "fedlib"]
only_mutate = ["{file}"]
also_copy = {copied}
pytest_add_cli_args = ["-m", "not hypothesis", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = {tests}
"""


def files() -> list[str]:
    """Return all files that are mutated."""
    found = (paths.ROOT / one for one in TESTS)
    some = (sorted(path.glob("*.py")) if path.is_dir() else [path] for path in found)
    return [str(file.relative_to(paths.ROOT)) for part in some for file in part]


def tests_of(file: str) -> list[str]:
    """Return the test files that see a file's mutants."""
    names = TESTS.get(file) or TESTS[str(Path(file).parent)]
    return [f"tests/{file.partition('/')[0]}/test_{name}.py" for name in names.split()]


def measure(file: str, some: list[str]) -> Counter[str]:
    """Run the mutants of a file, or those of some patterns; return what became of how many."""
    home = paths.build() / "mutants"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    skipped = shutil.ignore_patterns("__pycache__", "*.png", "*.pdf", "paper", "quick")
    for folder in COPIED:
        shutil.copytree(paths.ROOT / folder, home / folder, ignore=skipped)
    copied = [folder for folder in COPIED if folder not in ("companion", "fedlib", "tests")]
    told = CONFIGURATION.format(file=file, copied=copied, tests=tests_of(file))
    project = (paths.ROOT / "pyproject.toml").read_text()
    (home / "pyproject.toml").write_text(project + told.replace("'", '"'))
    mutmut = [sys.executable, "-m", "mutmut"]
    subprocess.run([*mutmut, "run", "--max-children", "1", *some], cwd=home, check=False)
    how = {"cwd": home, "check": True, "capture_output": True, "text": True}
    said = subprocess.run([*mutmut, "results", "--all", "true"], **how).stdout
    lines = [line.strip() for line in said.splitlines() if ": " in line]
    print(*(line for line in lines if line.endswith("survived")), sep="\n")
    return Counter(line.rpartition(": ")[2] for line in lines)


def main(asked: list[str]) -> None:
    """Print the score of every file that is asked for, or of all."""
    some = asked[1:2] if asked[:1] == ["--some"] else []
    for file in asked[2 * len(some) :] or files():
        found = measure(file, some)
        killed = found["killed"] + found["timeout"]
        total = killed + found["survived"] + found["no tests"]
        share = killed / max(total, 1)
        print(f"{file}: {killed} of {total} mutants killed ({share:.0%})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

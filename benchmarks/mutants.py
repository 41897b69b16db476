"""Mutation tests: count the small changes of the code that no test detects: `make mutants`.

    python -m benchmarks.mutants [--some PATTERN] [FILE ...]

mutmut makes the mutants of the files of one room (a folder or file) after another, in a copy of the
project in build/mutants, and runs the tests of `TESTS` that reach them. Tests with hypothesis are
left out, because their result depends on random draws, and so are slow tests of the engine.
`--some` takes a part of the mutants: "*[37]" is one in five. Mutants that survive are printed as
lines before and after, except those that drop a device, which changes nothing on a CPU.
docs/MUTANTS.md has the score.
"""

import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedlib import paths

MUTATED = ("companion", "fedlib", "fedrun")
COPIED = ("benchmarks", "docs", "examples", "figures", "notebooks", "papers")
# The test files that run on the mutants of a room.
TESTS = {
    "fedlib/algorithms": "algorithms batches fedmix ifca loops metrics mixture modules newcomers "
    "opt_out pmmoe private splitting trained unequal",
    "fedlib/engine": "batches captured cohort_early_stop engine opt_out trained training unequal",
    "fedlib/partition": "newcomers opt_out partition partition_schemes values",
    "companion/claims.py": "claims",
}
# Rooms with slow tests, which run every algorithm for minutes, leave these out.
MARKS = {"fedlib/engine": "not hypothesis and not slow"}
CONFIGURATION = """
[tool.mutmut]
source_paths = ["companion", "fedlib", "fedrun"]
only_mutate = {files}
also_copy = {copied}
timeout_constant = 10.0
timeout_multiplier = 3.0
pytest_add_cli_args = ["-m", "{marks}", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = {tests}
"""
MUTMUT = (sys.executable, "-m", "mutmut")
_DEVICE = re.compile(r"device=[\w.]+|[ ,]")


def files(asked: Sequence[str]) -> dict[str, list[str]]:
    """Return the files to mutate by room: those ``asked`` for, or all.

    Raises:
        ValueError: for a file that is in no room.
    """
    found = {}
    for room in TESTS:
        path = paths.ROOT / room
        every = sorted(path.glob("*.py")) if path.is_dir() else [path]
        names = [str(file.relative_to(paths.ROOT)) for file in every]
        found[room] = [name for name in names if name in asked or not asked]
    if unknown := set(asked).difference(*found.values()):
        raise ValueError(f"no mutants are made of {', '.join(sorted(unknown))}, only of {[*TESTS]}")
    return {room: names for room, names in found.items() if names}


def measure(room: str, names: Sequence[str], some: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Run the mutants of some files of a room; yield each mutant's name and outcome."""
    home = paths.build() / "mutants"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    skipped = shutil.ignore_patterns("__pycache__", "*.png", "*.pdf", "paper", "quick")
    for folder in (*MUTATED, *COPIED, "tests"):
        shutil.copytree(paths.ROOT / folder, home / folder, ignore=skipped)
    tests = [f"tests/{room.partition('/')[0]}/test_{name}.py" for name in TESTS[room].split()]
    marks = MARKS.get(room, "not hypothesis")
    told = CONFIGURATION.format(files=[*names], copied=[*COPIED], tests=tests, marks=marks)
    project = (paths.ROOT / "pyproject.toml").read_text("utf-8")
    (home / "pyproject.toml").write_text(project + told.replace("'", '"'), "utf-8")
    subprocess.run([*MUTMUT, "run", "--max-children", "1", *some], cwd=home, check=False)
    for line in output_of(home, "results", "--all", "true"):
        name, _, end = line.strip().rpartition(": ")
        if end == "survived":
            shown = output_of(home, "show", name)
            changed = [text for text in shown if re.match(r"[+-](?![+-]{2} )", text)]
            if len({_DEVICE.sub("", text[1:]) for text in changed}) == 1:
                continue
            print(name, *changed, sep="\n")
        if name:
            yield name, end


def output_of(home: Path, *words: str) -> list[str]:
    """Return the lines that a command of mutmut prints."""
    command = [*MUTMUT, *words]
    done = subprocess.run(command, cwd=home, check=True, capture_output=True, encoding="utf-8")
    return done.stdout.splitlines()


def main(words: list[str]) -> None:
    """Print the score of the given files, or of all."""
    some = words[1:2] if words[:1] == ["--some"] else []
    for room, names in files(words[2 * len(some) :]).items():
        ends = defaultdict[str, Counter[str]](Counter)
        for name, end in measure(room, names, some):
            ends[f"{name.rpartition('.')[0].replace('.', '/')}.py"][end] += 1
        for file, found in ends.items():
            killed = found["killed"] + found["timeout"]
            total = killed + found["survived"] + found["no tests"]
            share = killed / max(total, 1)
            print(f"{file}: {killed} of {total} mutants killed ({share:.0%})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

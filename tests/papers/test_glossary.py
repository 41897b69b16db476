"""Prose, titles and labels use the glossary's terms, and plain English."""

import ast
import csv
import json
import re

from fedlib import paths

ROOT = paths.ROOT
PATTERNS = {
    r"\bbeside\b": "next to", r"\banew\b": "again", r"\b(right|wrong)ly\b": "correctly",
    r"\bin the end\b": "after the last round", r"\bas far as\b": "if, where",
    r"\b(experts?|models?|gates?|heads?) (say|says|said|tell|tells|told)\b": "models predict",
    r"\b(ahead|behind|beats|costs?|trails|loses?)\b[^.;:|]{0,40} by \+\d": "sign and direction",
}  # fmt: skip
# Numbers of papers and of readings stay in code, and in the texts about it.
CODES = [r"(?<![\d.,])00\d(?![\d.])\b", r"\bA\d\d\b"]
OF_CODE = ("README.md", "MANUAL.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "READINGS.md", "flower")
TABLES = ("titles.csv", "theme.csv", "claims.csv", "findings.csv", "short.csv", "compared.csv")


def refused() -> list[str]:
    """What the glossary's last column refuses, as patterns."""
    rows = [r.split("|") for r in (ROOT / "docs" / "GLOSSARY.md").read_text().splitlines()]
    words = [w.strip() for r in rows if len(r) == 5 for w in r[3].split(",")]
    words = [w for w in words if w and w not in ("instead of", "---")]
    assert len(words) > 15
    return [rf"\b{re.escape(w)}(s|'s)?\b" for w in words]


def prose() -> dict[str, str]:
    """All prose by where it stands, without code and quotations."""
    texts = {p.name: p.read_text() for p in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
    texts["flower"] = (ROOT / "examples" / "flower" / "README.md").read_text()
    del texts["GLOSSARY.md"]
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        markdown = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
        code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        labels = re.findall(r'"([^"\n]* [^"\n]*)"', "\n".join(code))  # a label has a space in it
        texts[path.name] = "\n\n".join([*markdown, *labels])
    for name in TABLES:
        rows = csv.DictReader((ROOT / "papers" / name).open(newline=""))
        kept = ("title", "claim", "place", "sentence", "says", "found", "sure", "out", "asks")
        texts[name] = "\n".join(r.get(k, "") for r in rows for k in kept)
    drawn = json.loads((ROOT / "docs" / "pictures.json").read_text())
    texts["pictures.json"] = "\n".join(str(v) for each in drawn.values() for v in each.values())
    code = re.compile(r"```.*?```|`[^`\n]*`|\*?[\"“][^\"”]*[\"”]\*?|\]\([^)]*\)", re.DOTALL)
    return {name: code.sub(" ", text) for name, text in texts.items()}


def docstrings(*rooms: str) -> dict[str, str]:
    """All docstrings of some packages by file, without code, examples and quotations."""
    code = re.compile(r"^ *(>>>|\.\.\.).*$|``[^`]*``|`[^`\n]*`|[\"“][^\"”]*[\"”]", re.MULTILINE)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = {}
    for path in (p for room in rooms for p in (ROOT / room).rglob("*.py")):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, kinds)]
        every = "\n\n".join(ast.get_docstring(node) or "" for node in nodes)
        texts[f"{path.parent.name}/{path.name}"] = code.sub(" ", every)
    return texts


def complaints(texts: dict[str, str], patterns: list[str]) -> list[str]:
    """Every place at which a pattern stands."""
    found = []
    for name, text in texts.items():
        for pattern in patterns:
            for match in re.finditer(pattern, text, re.IGNORECASE):
                around = text[max(0, match.start() - 30) : match.end() + 30].replace("\n", " ")
                found.append(f"{name}: {match[0]!r} in {around!r}")
    return found


def test_texts_use_the_terms_of_the_glossary():
    assert complaints(prose(), refused()) == []


def test_texts_are_plain_english():
    texts = prose()
    assert complaints(texts, [*PATTERNS]) == []
    assert complaints({n: t for n, t in texts.items() if n not in OF_CODE}, CODES) == []


def test_docstrings_are_plain_english():
    assert complaints(docstrings("fedlib", "companion", "papers"), [*PATTERNS]) == []
    refuse = [word for word in refused() if "the\\ floor" not in word]  # which is also a function
    assert complaints(docstrings("fedlib"), refuse) == []


def test_what_is_refused_is_found():
    bad = {"x": "Always the commonest label; newcomers; behind by 3; it is behind by +2.7 points."}
    assert len(complaints(bad, refused())) == 2 and len(complaints(bad, [*PATTERNS])) == 1
    assert complaints({"x": "`newcomer` stays code"}, []) == []

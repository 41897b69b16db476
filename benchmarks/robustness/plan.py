"""How much trouble is made, and what came of it."""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Plan:
    """How much is done: kills in all, cases of each kind of fuzzed file; the seed; where."""

    kills: int
    cases: int
    seed: int
    folder: Path

    def rng(self, *what: object) -> random.Random:
        """Return random numbers of their own for one purpose."""
        return random.Random(repr((self.seed, *what)))

    def place(self, name: str) -> Path:
        """Return a new folder for one purpose."""
        place = self.folder / name
        place.mkdir(parents=True)
        return place


@dataclass
class Row:
    """One row of the report: what was done, how each time ended, and which promises were broken.

    ``checked`` counts comparisons that came out well, beside the outcomes.
    """

    what: str
    outcomes: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    @property
    def times(self) -> int:
        """How many cases there were."""
        return self.outcomes.total()

    def note(self, outcome: str) -> None:
        """Count a case that ended as it may."""
        self.outcomes[outcome] += 1

    def broke(self, what: str) -> None:
        """Count a case that ended as none may."""
        self.outcomes["BROKEN"] += 1
        self.broken.append(what)

    def check(self, sound: bool, good: str, bad: str = "") -> None:
        """Count a comparison that came out well, or write down the broken promise."""
        if sound:
            self.checked[good] += 1
        else:
            self.broken.append(bad or f"not so: {good}")

    def text(self) -> str:
        """Return the outcomes in words, the most frequent first."""
        parts = [p for p in (self.outcomes, self.checked) if p]
        return "; ".join(", ".join(f"{n} {what}" for what, n in p.most_common()) for p in parts)

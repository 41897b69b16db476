"""The amount of trouble, its outcomes, and which errors are clear."""

import random
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fedlib.data import DatasetError
from fedrun import RunDiverged, StoreError
from fedrun.files import Damaged

OURS = (StoreError, Damaged, DatasetError, RunDiverged)


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Attributes:
        kills: the number of kills in all.
        cases: the number of cases of each kind of damaged file.
        seed: the seed.
        folder: where it is done.
    """

    kills: int
    cases: int
    seed: int
    folder: Path

    def rng(self, *what: object) -> random.Random:
        """Return a random number generator for one purpose."""
        return random.Random(repr((self.seed, *what)))

    def place(self, name: str) -> Path:
        """Return a new folder for one purpose."""
        place = self.folder / name
        place.mkdir(parents=True)
        return place


@dataclass
class Row:
    """One row of the report.

    Attributes:
        what: what was done.
        outcomes: the number of cases by outcome.
        checked: the number of comparisons with a good result.
        broken: the broken promises.
    """

    what: str
    outcomes: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    @property
    def times(self) -> int:
        """The number of cases."""
        return self.outcomes.total()

    def note(self, outcome: str, case: object = "") -> None:
        """Count a case by its outcome; "!" marks a broken promise."""
        if outcome.startswith("!"):
            self.outcomes["BROKEN"] += 1
            self.broken.append(f"{outcome[1:]} ({str(case)[:100]})" if case else outcome[1:])
        else:
            self.outcomes[outcome] += 1

    def check(self, sound: bool, good: str, bad: str = "") -> None:
        """Count a comparison with a good result, or note the broken promise."""
        if sound:
            self.checked[good] += 1
        else:
            self.broken.append(bad or f"not so: {good}")

    def text(self) -> str:
        """Return the outcomes in words, the most frequent first."""
        parts = [p for p in (self.outcomes, self.checked) if p]
        return "; ".join(", ".join(f"{n} {what}" for what, n in p.most_common()) for p in parts)


def judged(error: BaseException) -> str:
    """Return the outcome of an error: whether it is clear.

    It is clear if its class is one of the project's, or if it is a ValueError or TypeError that a
    file of fedlib raised, with a message of a sensible length.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    refused = isinstance(error, ValueError | TypeError) and "fedlib" in Path(last.filename).parts
    if (isinstance(error, OURS) or refused) and 0 < len(str(error)) < 5000:
        return "clear error"
    where = f"{Path(last.filename).name}:{last.lineno}"
    return f"!{type(error).__name__} in {where}: {error}"[:300]

"""The five papers as one value: what `python -m papers` and notebooks hand to the companion."""

from __future__ import annotations

from pathlib import Path

from companion.book import Book, Floored
from companion.sections import Section
from papers.adaptive import experiments as adaptive
from papers.adaptive.experiments import ADAPTIVE
from papers.comparison.experiments import EVERY_METHOD
from papers.exhibits import EXHIBITS, why_not
from papers.fedmix import experiments as fedmix
from papers.pm_moe.experiments import FOURTEEN, GATES, PRIVATE_PARTS
from papers.published import published
from papers.specialists import experiments as specialists
from papers.specialists.analysis import GLOBAL
from papers.specialists.experiments import FIRST_VERSION, SPECIALISTS

_ALL: tuple[Section, ...] = (
    *fedmix.SECTIONS,
    *specialists.SECTIONS,
    *adaptive.SECTIONS,
    *(FOURTEEN, PRIVATE_PARTS, GATES),
    EVERY_METHOD,
)
SECTIONS = {section.name: section for section in _ALL}

# In which order `make paper` trains: parts as `companion.plan.planned` takes them, of their first
# seeds. What a scale does not have is left out, and all else follows.
_ROWS = ("specialists", "specialists_rates", "specialists_dirichlet", "architectures",
         "as_released", "first_version", "adaptive", "adaptive_participation")  # fmt: skip
_SECOND = ("fourteen", "private_parts", "gates", "every_method")  # of 004
_FIVE = ("adaptive_writers", "permuted", "communication:femnist", "communication:cifar100",
         "rotated", "privacy", "specialists:fashion_mnist", "specialists_dirichlet",
         "first_version:cifar100", "adaptive_rotated", "label_skew:fashion_mnist")  # fmt: skip
_FEDMIX = ("privacy", "communication:femnist", "communication:cifar100", "rotated", "permuted",
           "label_skew")  # fmt: skip
ORDER = (
    *(f"{name}@3" for name in _FEDMIX),
    *(f"{name}@3" for name in _ROWS),
    *(f"{name}:{dataset}" for dataset in ("mnist", "fashion_mnist") for name in _SECOND),
    *_FIVE,
    "opt_out",
    *(f"{name}:cifar10" for name in _SECOND),
    "long@1",
)

BOOK = Book(
    sections=SECTIONS,
    order=ORDER,
    exhibits=EXHIBITS,
    published=published,
    why_not=why_not,
    floored={
        "001": Floored(SPECIALISTS, "p", but=GLOBAL),
        "002": Floored(FIRST_VERSION, "p", "validation", but=GLOBAL),
        "003": Floored(ADAPTIVE, "p", but=GLOBAL),
        "004": Floored(FOURTEEN, "S", weighted=True, but=GLOBAL),
    },
    floors=Path(__file__).with_name("floors.csv"),
)

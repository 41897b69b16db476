"""Texts as rows of token ids: the tokens, and a vocabulary made from the training texts."""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")

# The customary "basic English" rules: these marks are tokens, those below only separate.
_TOKEN = re.compile(r"""['.,()!?]|[^\s'.,()!?;:]+""")

Ids = NDArray[np.int32]


def tokens(text: str) -> list[str]:
    """The tokens of a text: lower-case words and the punctuation marks between them.

    Quotation marks vanish; semicolons and colons separate words. Tokens joined by spaces give the
    same tokens again, so text that was tokenised before is left alone.
    """
    return _TOKEN.findall(text.lower().replace('"', ""))


def learn(texts: Iterable[str], count: int, length: int) -> tuple[Ids, tuple[str, ...]]:
    """Ids [count, length] of the training texts, and the vocabulary that names them.

    Texts are cut and padded at the end. Tokens that are kept are numbered by descending frequency,
    ties alphabetically, after the padding and the unknown token.
    """
    known: dict[str, int] = {}
    ids = np.zeros((count, length), np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = tokens(text)[:length]
        row[: len(found)] = [known.setdefault(t, len(known) + len(SPECIAL)) for t in found]
    words = list(known)
    frequency = np.bincount(ids.ravel(), minlength=len(words) + len(SPECIAL))[len(SPECIAL) :]
    order = sorted(range(len(words)), key=lambda i: (-frequency[i], words[i]))
    final = np.arange(len(words) + len(SPECIAL), dtype=np.int32)
    final[np.array(order, np.int64) + len(SPECIAL)] = final[len(SPECIAL) :].copy()
    return final[ids], (*SPECIAL, *(words[i] for i in order))


def encode(texts: Iterable[str], count: int, length: int, vocabulary: tuple[str, ...]) -> Ids:
    """Ids [count, length] of texts in a vocabulary; tokens that it lacks are unknown."""
    known = {token: i for i, token in enumerate(vocabulary) if i >= len(SPECIAL)}
    ids = np.zeros((count, length), np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = tokens(text)[:length]
        row[: len(found)] = [known.get(t, UNKNOWN) for t in found]
    return ids

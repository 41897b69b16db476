"""Models of texts: token ids, 0 for padding and 1 for unknown words, ordered by frequency."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedlib.models.families import Family, positive
from fedlib.values import value

UNKNOWN = 1


@value
class BiLSTM(Family):
    """An embedding and a bidirectional LSTM whose two last states are the features (001, sec. 4).

    ``vocabulary`` counts padding and unknown too: the default is the 10,000 most frequent words,
    1,085,708 parameters with 4 classes. Padding is read like any token, as released.
    """

    vocabulary: int = 10_002
    embedding: int = 100
    hidden: int = 64

    def check(self) -> None:
        positive("BiLSTM's sizes", (self.vocabulary, self.embedding, self.hidden))

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return embedding and LSTM; see ``Family``."""
        tokens(self, shape)
        words = _Words(self.vocabulary, self.embedding)
        return nn.Sequential(words, _LastStates(self.embedding, self.hidden)), 2 * self.hidden


@value
class FastText(Family):
    """The mean embedding of all tokens, padding included, and one linear layer (004; PFLlib).

    ``vocabulary`` counts padding and unknown too. The default sizes have 3,157,508 parameters with
    4 classes.
    """

    vocabulary: int = 98_635
    width: int = 32

    def check(self) -> None:
        positive("FastText's sizes", (self.vocabulary, self.width))

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return embedding, mean and linear layer; see ``Family``."""
        tokens(self, shape)
        words = _Words(self.vocabulary, self.width, padding_idx=0)
        return nn.Sequential(words, _Mean(), nn.Linear(self.width, self.width)), self.width


def tokens(family: Family, shape: tuple[int, ...]) -> int:
    """Return the number of tokens; ValueError for examples that are not texts."""
    if len(shape) != 1:
        raise ValueError(f"{family} is for texts, and an example here is of shape {shape}")
    return shape[0]


class _Words(nn.Embedding):
    """An embedding of the most frequent words; the others are unknown."""

    def forward(self, ids: Tensor) -> Tensor:
        """Return ``[B, T, width]`` of token ids ``[B, T]``."""
        return super().forward(torch.where(ids < self.num_embeddings, ids, UNKNOWN))


class _LastStates(nn.LSTM):
    """A bidirectional LSTM that returns the last state of each direction."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, state: Any = None) -> Tensor:  # type: ignore[override]
        """Return ``[B, 2 hidden]`` of a sequence ``[B, T, width]``."""
        # The list would still hold the module's own weights when others are put in their place.
        self._flat_weights = [self._parameters[name] for name in self._flat_weights_names]
        _, (last, _) = super().forward(x, state)
        return torch.cat([last[0], last[1]], -1)


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, width]``, the mean over the tokens of ``[B, T, width]``."""
        return x.mean(-2)

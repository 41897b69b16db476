"""Architectures for texts, which are token ids: 0 is padding, 1 unknown, others by frequency."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from fedlib.models.architectures import Architecture, shaped
from fedlib.values import PositiveInt, value

UNKNOWN = 1
DIRECTIONS = ("", "_reverse")
_allowed: ContextVar[bool] = ContextVar("allowed", default=False)


@contextmanager
def sparse_gradients(allowed: bool) -> Iterator[None]:
    """Allow sparse gradients of embeddings, which vmap and most optimisers do not support.

    A mini-batch contains few of the words of a vocabulary. With dense gradients, a step of
    ``FastText`` spends most of its time on rows whose gradient is 0.

    Args:
        allowed: whether they are allowed within the ``with`` statement.
    """
    before = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(before)


@value
class BiLSTM(Architecture):
    """An embedding and a bidirectional LSTM, whose two last states are the features.

    Padding is read like any token, as in the released code. With the default sizes and 4
    classes, the network has 1,085,708 parameters.

    Args:
        vocabulary: number of token ids, with padding and unknown; others become unknown. Default:
            10,002, the 10,000 most frequent words.
        embedding: length of an embedding. Default: 100.
        hidden: length of the state of each direction. Default: 64.
        tokens: number of tokens of a text that are read. Default: None, all.

    >>> module, width = BiLSTM(vocabulary=50, hidden=8).base((200,))
    >>> width
    16
    """

    vocabulary: PositiveInt = 10_002
    embedding: PositiveInt = 100
    hidden: PositiveInt = 64
    tokens: PositiveInt | None = None

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return embedding and LSTM; see ``Architecture``."""
        shaped(self, shape, 1, "texts")
        words = _Words(self.vocabulary, self.embedding)
        words.most = self.tokens
        return nn.Sequential(words, _LastStates(self.embedding, self.hidden)), 2 * self.hidden


@value
class FastText(Architecture):
    """The mean embedding of all tokens, padding included, and a linear layer (PFLlib).

    With the default sizes and 4 classes, the network has 3,157,508 parameters.

    Args:
        vocabulary: number of token ids, with padding and unknown; others become unknown. Default:
            98,635.
        width: length of an embedding. Default: 32.
        sparse: whether gradients of embeddings are sparse, so that a step updates only the words of
            its mini-batch. They are dense on a GPU, under vmap (if several clients are trained
            together), and for optimisers other than plain SGD. Results of sparse and dense
            gradients differ by rounding. Default: False.

    >>> module, width = FastText(vocabulary=50, width=6).base((200,))
    >>> width
    6
    """

    vocabulary: PositiveInt = 98_635
    width: PositiveInt = 32
    sparse: bool = False

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return embedding, mean and linear layer; see ``Architecture``."""
        shaped(self, shape, 1, "texts")
        words = _Words(self.vocabulary, self.width, padding_idx=0)
        words.sparse = self.sparse
        return nn.Sequential(words, _Mean(), nn.Linear(self.width, self.width)), self.width


class _Words(nn.Embedding):
    """An embedding in which token ids beyond the vocabulary become unknown.

    The first ``most`` tokens of a text are read (None for all). The embedding of padding, if that
    has an index, is always zero.
    """

    most: int | None = None
    sparse: bool = False  # where `sparse_gradients` allows it

    def forward(self, ids: Tensor) -> Tensor:
        """Return ``[B, T, width]`` of token ids ``[B, T]``."""
        ids = ids[..., : self.most]
        known = torch.where(ids < self.num_embeddings, ids, UNKNOWN)
        if self.sparse and _allowed.get():
            return embedding(known, self.weight, self.padding_idx, sparse=True)
        words = embedding(known, self.weight)
        if self.padding_idx is None:
            return words
        # Under vmap, `padding_idx` of torch's embedding does not stop gradients of padding.
        return words * (ids != self.padding_idx).unsqueeze(-1)  # five times as fast as `where`


class _LastStates(nn.LSTM):
    """A bidirectional LSTM that returns the last state of each direction.

    Parameters and initialisation are those of ``nn.LSTM``. The steps are explicit matrix products,
    which vmap turns into batched ones, so that a cohort trains in one program; vmap does not
    support ``nn.LSTM``. Both directions share a product, and the input transform is one product for
    the whole text.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, state: Any = None) -> Tensor:  # type: ignore[override]
        """Return ``[B, 2 hidden]`` of a sequence ``[B, T, width]``."""
        by_words, recurrent = self._of_words(x), self._stacked("weight_hh").mT
        h = c = by_words[0].new_zeros(()).expand(2, x.shape[0], self.hidden_size)
        for words in by_words:
            gates = torch.baddbmm(words, h, recurrent)
            # One sigmoid for all gates: an additional kernel costs more than the unused quarter.
            taken, kept, _, shown = gates.sigmoid().chunk(4, -1)
            seen = gates.chunk(4, -1)[2].tanh()
            c = torch.addcmul(kept * c, taken, seen)
            h = shown * c.tanh()
        return torch.cat([h[0], h[1]], -1)

    def _of_words(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the input transform of each step, ``[2, B, 4 hidden]`` for the two directions.

        The second direction reads from the end.
        """
        bias = self._stacked("bias_ih") + self._stacked("bias_hh")
        read = torch.stack([x, x.flip(-2)])
        out = torch.baddbmm(bias.unsqueeze(1), read.flatten(1, 2), self._stacked("weight_ih").mT)
        return out.view(2, x.shape[-3], x.shape[-2], -1).unbind(2)

    def _stacked(self, kind: str) -> Tensor:
        """Return a parameter of both directions, stacked: ``[2, ...]``."""
        return torch.stack([getattr(self, f"{kind}_l0{d}") for d in DIRECTIONS])


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, width]``, the mean over the tokens of ``[B, T, width]``."""
        return x.mean(-2)

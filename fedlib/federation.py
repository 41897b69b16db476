"""A federation in memory: the examples of all clients on one device."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedlib.data import Split
from fedlib.data.parquet import UNKNOWN
from fedlib.models import Batch, FunctionalModel, Params
from fedlib.values import NonNegativeInt, check_choice, value

_NONE = np.zeros(0, dtype=np.float32)
AHEAD = 2**20  # elements of inputs that are computed at once, 4 MiB of floats
OPTED_IN = "opted_in"  # side information: 1 for training examples that take part, else 0


@value
class Augmentation:
    """Base class of random augmentations of training examples. This one does nothing.

    To write another one, inherit from this class, decorate with ``@value`` and override
    ``__call__``. Random numbers are drawn anew for every mini-batch.

    Attributes:
        numbers: random numbers per example, at least 1.
        images_only: whether data that are not images stay unchanged.

    >>> from dataclasses import replace
    >>> from fedrun import tiny
    >>> replace(tiny.task, augment=Augmentation()).build(seed=0).train.noise_taken
    1
    """

    numbers: ClassVar[int] = 1
    images_only: ClassVar[bool] = False

    def check(self) -> None:
        if self.numbers < 1:  # without random numbers the augmentation would not be called
            need = "numbers must be at least 1, even if none is used"
            raise ValueError(f"{type(self).__name__}.{need}, got {self.numbers}")

    def __call__(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return augmented examples of the same shape and type.

        Args:
            x: examples as stored: uint8 ``[N, H, W, C]``, floats ``[N, ...]`` or int32 tokens ``[N,
                T]``.
            noise: uniform random numbers in [0, 1), ``[N, numbers]``, the only source of
                randomness.
        """
        return x


@value
class CropFlip(Augmentation):
    """Random crops of an image padded with a black border, and random horizontal flips.

    Args:
        padding: the width of the border in pixels. Default: 4, as in Reisser et al. (2021) for
            CIFAR-100.

    Reference: He et al., Deep residual learning for image recognition, CVPR 2016.

    >>> from dataclasses import replace
    >>> from fedrun import tiny
    >>> replace(tiny.task, augment=CropFlip(padding=2)).build(seed=0).train.noise_taken
    3
    """

    padding: NonNegativeInt = 4
    numbers = 3  # down, right, mirrored
    images_only = True

    def __call__(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return uint8 ``[N, H, W, C]``, cropped and flipped by noise ``[N, 3]`` in [0, 1)."""
        height, width = x.shape[1:3]
        p = self.padding
        wide = functional.pad(x, (0, 0, p, p, p, p))
        down, right = (noise[:, :2] * (2 * p + 1)).to(torch.int64).unbind(1)
        rows = down[:, None] + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device).expand(len(x), width)
        columns = torch.where(noise[:, 2:] < 0.5, width - 1 - columns, columns)
        columns = right[:, None] + columns
        each = torch.arange(len(x), device=x.device)
        return wide[each[:, None, None], rows[:, :, None], columns[:, None, :]]


class Precomputed(NamedTuple):
    """Precomputed quantities of examples, by name.

    Args:
        extra: quantities that a batch has in addition to the examples.
        replace: quantities that replace the examples; ``x`` of the batch is then None.
    """

    extra: Params
    replace: Params


NOTHING = Precomputed({}, {})


@dataclass(eq=False)
class ClientData:
    """The examples of one split (train, validation or test), and which client holds which.

    Memory is proportional to the number of examples held. Padded rows of equal width are built only
    for clients that are trained or evaluated together (``padded``).

    Args:
        x: the examples of all clients: uint8 ``[N, height, width, channels]``, int32 ``[N,
            tokens]`` for text, or float32 or float64 ``[N, ...]``.
        y: their labels, int64 ``[N]``.
        indices: positions in ``x``, client after client, int64 ``[held]``.
        sizes: the number of examples of each client, int64 ``[clients]``.
        scale, shift: one number per value of an example, ``[height * width * channels]``; model
            inputs are ``scale * x + shift`` in float32. Empty for text.
        side: side information of the examples held, int64 ``[held]`` by name.
        augment: random augmentation of training examples, or None.
        separate: whether the examples exist apart from clients, as those of a test split do. They
            are then kept even if no client holds them.
        shared: whether each client holds the first ``sizes[i]`` of the same ``indices``.

    Raises:
        ValueError: if the sizes do not match the indices.
    """

    x: Tensor
    y: Tensor
    indices: Tensor
    sizes: np.ndarray
    scale: Tensor
    shift: Tensor
    side: dict[str, Tensor] = field(default_factory=dict)
    augment: Augmentation | None = None
    separate: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if the sizes do not match the indices."""
        held = len(self.indices)
        told = self.sizes.max(initial=0) if self.shared else self.sizes.sum()
        if told != held and not (self.shared and told < held):
            what = f"{held} examples are held, but the sizes imply {told}"
            raise ValueError(f"{what}; see `ClientData.subset`")

    @cached_property
    def offsets(self) -> tuple[Tensor, Tensor]:
        """The start in ``indices`` and the number of each client's examples, ``[clients]``."""
        sizes = torch.as_tensor(self.sizes, device=self.indices.device)
        return 0 * sizes if self.shared else sizes.cumsum(0) - sizes, sizes

    @property
    def owners(self) -> Tensor:
        """The index of the client that holds each example, int64 ``[held]``."""
        return torch.repeat_interleave(self.offsets[1])

    def client(self, row: int) -> Tensor:
        """Return the positions in ``x`` of one client's examples, int64 ``[sizes[row]]``."""
        return self.indices[int(self.offsets[0][row]) :][: int(self.sizes[row])]

    def padded(
        self, rows: np.ndarray, width: int = 0, column: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the examples of some clients as rows of equal width, and a mask of real entries.

        Args:
            rows: indices of the clients, int64 ``[rows]``.
            width: the width of the rows. Default: that of the largest client.
            column: values of the examples, ``[held, ...]``, that are returned in place of
                ``indices``.

        Returns:
            int64 ``[rows, width]`` (or ``[rows, width, ...]``), 0 in the padding, and bool
            ``[rows, width]``.
        """
        wide, where = width or int(self.sizes[rows].max(initial=0)), self.indices.device
        starts, sizes = (t[torch.as_tensor(rows, device=where), None] for t in self.offsets)
        places = torch.arange(wide, device=where)
        real = places < sizes
        return _taken(self.indices if column is None else column, starts + places, real), real

    def subset(self, rows: np.ndarray, most: int | np.ndarray | None = None) -> ClientData:
        """Return the table of some clients.

        Args:
            rows: indices of the clients, in the order of the result.
            most: the number of examples to keep of each, its first ones. Default: all.
        """
        sizes = self.sizes[rows] if most is None else np.minimum(self.sizes[rows], most)
        shift = self.offsets[0].cpu().numpy()[rows] - (np.cumsum(sizes) - sizes)
        held = np.repeat(shift, sizes) + np.arange(sizes.sum())
        places = torch.as_tensor(held, device=self.indices.device)
        side = {n: t[places] for n, t in self.side.items()}
        return replace(self, indices=self.indices[places], sizes=sizes, side=side, shared=False)

    def batches(
        self,
        rows: Tensor,
        positions: np.ndarray,
        counts: np.ndarray,
        widths: np.ndarray,
        noise: Iterable[np.ndarray] | None = None,
        precomputed: Precomputed = NOTHING,
    ) -> Iterator[Batch]:
        """Yield the mini-batches of some clients, step by step.

        Args:
            rows: indices of the clients, int64 ``[clients]``.
            positions: positions among each client's examples, int64 ``[clients, steps, B]``.
            counts: how many of the B examples are real, int64 ``[clients, steps]``.
            widths: the width of each step's batch, int64 ``[steps]``.
            noise: uniform random numbers of each step, ``[clients, B, numbers]``. Augmentation uses
                the first of them, the batch has the others.
            precomputed: columns ``[clients, examples, ...]``.

        Yields:
            Batches with ``x`` ``[clients, width, ...]``, ``y``, ``weight`` (0 for padding) and the
            side information.
        """
        within = torch.as_tensor(positions, device=rows.device)
        starts, sizes = (t[rows, None, None] for t in self.offsets)
        picked = starts + within, sizes > 0
        examples = _taken(self.indices, *picked)
        each = torch.arange(positions.shape[2], device=rows.device)
        real = each < torch.as_tensor(counts, device=rows.device)[..., None]
        held = {
            "y": self.y[examples],
            "weight": real.to(torch.float32),
            **{name: _taken(column, *picked) for name, column in self.side.items()},
        }
        columns = {**precomputed.extra, **precomputed.replace}
        wide = max((column.shape[1] for column in columns.values()), default=0)
        places = within + wide * torch.arange(len(rows), device=rows.device)[:, None, None]
        split = {name: values.unbind(1) for name, values in held.items()}
        by_step, numbers = examples.transpose(0, 1), examples[:, :1].numel() * self.x[:1].numel()
        ahead = 1 if self.augment or rows.is_cuda else max(1, AHEAD // max(numbers, 1))
        for (t, width), drawn in zip(enumerate(widths), noise or repeat(_NONE), strict=False):
            seen = {name: values[t] for name, values in split.items()}
            if width < positions.shape[2]:
                seen = {name: values[:, :width] for name, values in seen.items()}
            batch = Batch(None, seen.pop("y"), seen.pop("weight"), side=seen)  # type: ignore[arg-type]
            batch.precomputed = {n: _at(c, places[:, t, :width]) for n, c in columns.items()}
            change = None
            if drawn.size:
                u = torch.as_tensor(drawn, device=rows.device)
                change, rest = u.tensor_split([self.noise_taken], dim=-1)
                batch.noise = rest[:, :width] if rest.shape[-1] else None
            if not precomputed.replace:
                if t % ahead == 0:
                    x = self.inputs(by_step[t : t + ahead], change)
                batch.x = x[t % ahead, :, :width]
            yield batch

    @property
    def noise_taken(self) -> int:
        """Random numbers per example that the augmentation needs."""
        return self.augment.numbers if self.augment else 0

    def all_examples(self, rows: Tensor, precomputed: Precomputed = NOTHING) -> Batch:
        """Return all examples of some clients as one padded batch; arguments as of ``blocks``."""
        size = int(self.sizes[rows.cpu().numpy()].max(initial=0))
        return next(self.blocks(rows, size, precomputed))

    def blocks(
        self, rows: Tensor, size: int, precomputed: Precomputed = NOTHING
    ) -> Iterator[Batch]:
        """Yield all examples of some clients in order, in padded batches.

        Args:
            rows: indices of the clients, int64 ``[clients]``.
            size: the maximal width of a batch. With 0 one empty batch is yielded; otherwise none,
                if no client has examples.
            precomputed: columns ``[clients, examples, ...]``.
        """
        sizes = self.sizes[rows.cpu().numpy()]
        starts = np.arange(0, int(sizes.max(initial=0)) if size else 1, max(1, size))
        counts = np.clip(sizes[:, None] - starts, 0, size)
        places = starts[:, None] + np.arange(size)
        places = np.minimum(places, np.maximum(sizes, 1)[:, None, None] - 1)
        yield from self.batches(rows, places, counts, counts.max(0), precomputed=precomputed)

    def inputs(self, examples: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the inputs of a model for some examples.

        Args:
            examples: positions in ``x``, int64 ``[...]``.
            noise: random numbers ``[..., numbers]`` of the augmentation. Default: no augmentation.

        Raises:
            ValueError: if the augmentation returns another shape.

        Returns:
            Normalised images ``[..., C, H, W]``, other normalised numbers, or tokens ``[..., T]``.
            Images are stored channels-last and only viewed as ``[C, H, W]``, the layout in which
            convolutions are fastest on a CPU.
        """
        flat = self.x.flatten(1).index_select(0, examples.flatten())
        shape = (*examples.shape, *self.x.shape[1:])
        if self.augment is not None and noise is not None:
            rows = flat.view(-1, *self.x.shape[1:])
            changed = self.augment(rows, noise.reshape(len(rows), -1))
            if not isinstance(changed, Tensor) or changed.shape != rows.shape:
                got = [*changed.shape] if isinstance(changed, Tensor) else repr(changed)
                raise ValueError(f"{self.augment} must return {[*rows.shape]}, got {got}")
            flat = changed.flatten(1)
        if not len(self.scale):
            return flat.to(torch.int64).view(shape)
        # One number per value, because broadcasting over three channels is slow.
        seen = flat.to(self.scale.dtype).mul_(self.scale).add_(self.shift)
        seen = seen.to(torch.float32).view(shape)
        return seen.movedim(-1, -3) if self.x.ndim == 4 else seen

    def counts(self, kinds: int, side: str = "") -> Tensor:
        """Return how often each client holds each label, or each value of a side information.

        Args:
            kinds: the number of labels or values.
            side: the name of the side information. Default: the labels.

        Returns:
            int64 ``[clients, kinds]``.
        """
        values = self.side[side] if side else self.y[self.indices]
        cells = torch.bincount(self.owners * kinds + values, minlength=len(self.sizes) * kinds)
        return cells.view(-1, kinds)


@dataclass(eq=False)
class Federation:
    """The clients, their data and the network that they train.

    If ``train`` has the side information ``OPTED_IN``, the tables contain only the training
    examples that take part, the validation examples of clients that take part, and these clients
    are the ``participants``. All data are in ``all_data``, and ``full_view`` returns a federation
    with them. An algorithm that communicates is trained on ``participating_view``, which has
    neither ``all_data`` nor tests of clients that opted out.

    Args:
        net: the network.
        classes: the number of classes.
        device: the device of all tensors.
        train, validation, test: the tables of the three splits.
        ids: the id of the client at each index, int64 ``[clients]``. Random draws depend on ids,
            not on indices.
        balanced: a class-balanced test set that all clients share, or None.
        class_names: the names of the classes, or ().
        client_names: the names of the clients, such as the values of a ``NaturalPartition``'s
            column, or ().
        source: name and fingerprint of the data.
        ranks: the new token id of each token id of the data set, if tokens were ranked by
            frequency.
        participants: indices of the clients from which cohorts are drawn; None for all.
        kinds: the number of values of each side information, by name.
        all_data: the tables for training and validation with the data that opted out.
        includes_opted_out: whether ``train`` and ``validation`` contain data that opted out.
    """

    net: FunctionalModel
    classes: int
    device: torch.device
    train: ClientData
    validation: ClientData
    test: ClientData
    ids: np.ndarray
    balanced: ClientData | None = None
    class_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()
    source: str = ""
    ranks: np.ndarray | None = field(default=None, repr=False)
    participants: np.ndarray | None = None
    kinds: dict[str, int] = field(default_factory=dict)
    all_data: tuple[ClientData, ClientData] | None = field(default=None, repr=False)
    includes_opted_out: bool = False
    # A copy made by ``replace`` does not inherit these.
    _shares: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _views: dict[str, Federation] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Move the data that opted out from the tables to ``all_data``, and make the views."""
        if OPTED_IN in self.train.side and not self.includes_opted_out:
            self.all_data = self.train, self.validation
            self.train = _restricted(self.train, self.train.side[OPTED_IN] > 0)
            self.participants = np.flatnonzero(self.train.sizes)
            there = self.train.offsets[1] > 0
            self.validation = _restricted(self.validation, there[self.validation.owners])
            self.balanced = self.balanced and _compact(self.balanced)
        if self.all_data is None:
            return
        everything: Any = dict(zip(("train", "validation"), self.all_data, strict=True))
        none: Any = {"participants": None, "all_data": None, "includes_opted_out": True}
        there = self.train.offsets[1] > 0
        inside = replace(self, test=_restricted(self.test, there[self.test.owners]), all_data=None)
        full = replace(self, **everything, **none)
        known = (full.train.side[OPTED_IN] > 0) | ~there[full.train.owners]
        train, validation = _restricted(full.train, known), _compact(full.validation)
        evaluated = replace(full, train=train, validation=validation)
        # A view does not name itself: a circle of references would keep its tables in memory.
        evaluated._views = {"train": inside}
        full._views = {**evaluated._views, "eval": evaluated}
        self._views = {**full._views, "full": full}

    @property
    def num_clients(self) -> int:
        """The number of clients, with those that opted out."""
        return len(self.ids)

    @property
    def participating(self) -> int:
        """The number of clients from which cohorts are drawn."""
        return self.num_clients if self.participants is None else len(self.participants)

    @property
    def member_rows(self) -> Tensor:
        """Indices of the clients from which cohorts are drawn, int64 ``[participating]``."""
        rows = torch.arange(self.num_clients, device=self.device)
        return rows if self.participants is None else rows[torch.as_tensor(self.participants)]

    @property
    def sizes(self) -> Tensor:
        """The number N_s of training examples of each client, float64 ``[clients]``."""
        return torch.as_tensor(self.train.sizes, dtype=torch.float64, device=self.device)

    @property
    def by_id(self) -> Tensor:
        """Indices of the clients in the order of their ids, int64 ``[clients]``."""
        return torch.as_tensor(self.ids, device=self.device).argsort()

    def row(self, client: int | str) -> int:
        """Return the index of a client, given by id or by name.

        Raises:
            ValueError: if there is no such client.
        """
        names: list[Any] = [*(self.client_names if isinstance(client, str) else self.ids.tolist())]
        if client in names:
            return names.index(client)
        there = f"clients are {self.ids.min()} to {self.ids.max()}"
        if some := difflib.get_close_matches(str(client), self.client_names, 5, 0.5):
            there += f"; names like it are {', '.join(map(repr, some))}"
        elif self.client_names:
            some = [*map(repr, self.client_names[:5])]
            there += f", named {', '.join(some)}{', ...' * (len(self.client_names) > 5)}"
        raise ValueError(f"there is no client {client!r}: {there}")

    def examples(self, client: int | str, split: str = "train") -> Split:
        """Return a client's own examples, which ``fedrun.predict`` and ``evaluate`` accept.

        Args:
            client: id or name of the client.
            split: "train", "validation" or "test". Default: "train".

        Returns:
            Features as the client has them, before normalisation and augmentation; labels; and the
            side information as columns.

        Raises:
            ValueError: if there is no such client or split.

        >>> fed = tiny.task.build(seed=0)
        >>> tests = fed.examples(2, "test")
        >>> tests.features.shape, tests.labels.shape
        ((10, 8, 8, 1), (10,))
        """
        check_choice("split", split, ("train", "validation", "test"))
        table, row = getattr(self, split), self.row(client)
        held, first = table.client(row), int(table.offsets[0][row])
        x, y = (t[held].cpu().numpy() for t in (table.x, table.y))
        if self.ranks is not None:
            tokens = np.full(len(self.ranks), UNKNOWN, np.int32)
            tokens[self.ranks] = np.arange(len(tokens))
            tokens[UNKNOWN] = UNKNOWN
            x = tokens[x]
        side = {n: t[first : first + len(y)].cpu().numpy() for n, t in table.side.items()}
        return Split(x, y, side)

    def called(self, ids: Iterable[int]) -> str:
        """Return ids of clients for a message, with their names if there are any."""
        known = dict(zip(self.ids.tolist(), self.client_names, strict=False))
        return ", ".join(f"{i} ({known[i]!r})" if i in known else f"{i}" for i in map(int, ids))

    def participating_view(self) -> Federation:
        """Return the federation without the examples and clients that opted out.

        Indices of clients do not change: a client that opted out has no examples and is no
        participant. Returns the federation itself if nobody opted out, or if it is such a view.
        """
        return self._view("train")

    def full_view(self) -> Federation:
        """Return the federation with all data, for what stays with the clients.

        Its training examples have the side information ``OPTED_IN``. Returns the federation itself
        if nobody opted out.
        """
        return self._view("full")

    def eval_view(self) -> Federation:
        """Return the federation with which clients predict.

        Participants have their examples that take part. Clients that opted out altogether have all
        of theirs, because their choices concern themselves only. Returns the federation itself if
        nobody opted out.
        """
        return self._view("eval")

    def _view(self, name: str) -> Federation:
        whole = self.includes_opted_out and OPTED_IN in self.train.side
        if whole and not self._views:  # a changed copy of a full view
            views = replace(self, includes_opted_out=False)._views
            self._views = {n: views[n] for n in ("train", "eval")}
        return self._views.get(name, self)

    def values(self, condition: str) -> int:
        """Return the number of values of the label, or of a side information."""
        if condition == "label":
            return self.classes
        check_choice("side information", condition, ("label", *self.train.side))
        return self.kinds.get(condition) or int(self.train.side[condition].max()) + 1

    def shares(self, condition: str) -> Tensor:
        """Return p(condition | s) of the training examples of each client.

        Args:
            condition: "label", for p(y|s), or the name of a side information.

        Returns:
            float32 ``[clients, values]``; zeros for a client without examples.
        """
        if condition not in self._shares:
            side = "" if condition == "label" else condition
            counts = self.train.counts(self.values(condition), side)
            self._shares[condition] = counts / counts.sum(1, keepdim=True).clamp(min=1)
        return self._shares[condition]

    def permuted(self, order: np.ndarray) -> Federation:
        """Return the federation with its clients in another order; ids move with the clients.

        Args:
            order: the old index of each client, int64 ``[clients]``.
        """
        members = self.participants
        if members is not None:
            members = np.flatnonzero(np.isin(order, members))
        names = tuple(self.client_names[row] for row in order if self.client_names)
        changes = {"ids": self.ids[order], "client_names": names, "participants": members}
        return self._changed(lambda table: table.subset(order), **changes)

    def pooled(self) -> Federation:
        """Return a federation of one client that holds the data of all, for centralised training.

        It has neither side information nor data that opted out.
        """
        ids = np.zeros(1, dtype=self.ids.dtype)
        inside = replace(self.participating_view(), test=self.test)
        return inside._changed(_pooled, ids=ids, client_names=(), participants=None)

    def _changed(self, change: Callable[[ClientData], ClientData], **others: Any) -> Federation:
        """Return the federation with the same change applied to all tables of clients."""
        tables = {name: change(getattr(self, name)) for name in ("train", "validation", "test")}
        home = self.all_data and (change(self.all_data[0]), change(self.all_data[1]))
        return replace(self, **{**tables, "all_data": home, **others})


def _at(column: Tensor, places: Tensor) -> Tensor:
    """Return entries ``[clients, B, ...]`` of a column ``[clients, examples, ...]``."""
    found = column.flatten(0, 1).index_select(0, places.flatten())
    return found.view(*places.shape, *column.shape[2:])


def _taken(column: Tensor, places: Tensor, real: Tensor) -> Tensor:
    """Return entries of a column ``[held, ...]``, and 0 in the padding."""
    if not len(column):
        return column.new_zeros(*places.shape, *column.shape[1:])
    real = real.view(*real.shape, *[1] * (column.ndim - 1))
    return torch.where(real, column[places.clamp(max=len(column) - 1)], 0)


def _restricted(table: ClientData, chosen: Tensor) -> ClientData:
    """Return a table with some of its examples, ``chosen`` bool ``[held]``.

    The other examples are removed from memory, so that they cannot be read by accident, not even as
    padding.
    """
    sizes = torch.bincount(table.owners[chosen], minlength=len(table.sizes)).cpu().numpy()
    side = {n: t[chosen] for n, t in table.side.items() if n != OPTED_IN}
    return _compact(replace(table, indices=table.indices[chosen], sizes=sizes, side=side))


def _compact(table: ClientData) -> ClientData:
    """Return a table without examples that no client holds, unless it is ``separate``."""
    if table.separate:
        return table
    used, place = table.indices.unique(return_inverse=True)
    # At least one example, which pads clients without examples.
    x, y = (t[used] if len(used) else torch.zeros_like(t[:1]) for t in (table.x, table.y))
    return replace(table, x=x, y=y, indices=place)


def _pooled(table: ClientData) -> ClientData:
    """Return a table with one client that holds all examples."""
    held = table.indices.unique()
    return replace(table, indices=held, sizes=np.array([len(held)]), side={})

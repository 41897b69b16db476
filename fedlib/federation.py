"""A federation in memory: every client's examples on one device, as tables of who holds what."""

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

from fedlib.models import Batch, FunctionalModel, Params
from fedlib.values import NonNegativeInt, check_choice, value

_NONE = np.zeros(0, dtype=np.float32)
AHEAD = 2**20  # numbers of the steps whose inputs are computed at once, 4 MiB of floats
OPTED_IN = "opted_in"  # side information: 1 for a training example that may take part, else 0


@value
class Augmentation:
    """Any batched function of training examples, drawn for every batch; this one does nothing.

    One's own is a value that inherits from this one and overrides ``__call__``. It is given what a
    data set stores: uint8 ``[N, H, W, C]``, floats ``[N, ...]`` or int32 tokens ``[N, T]``, and
    ``numbers`` uniform ones in [0, 1) per example, ``[N, numbers]``, which are its only randomness.
    Where it is ``images_only`` other examples stay as they are.

    >>> from dataclasses import replace
    >>> replace(tiny.task, augment=Augmentation()).build(seed=0).train.noise_taken
    1
    """

    numbers: ClassVar[int] = 1
    images_only: ClassVar[bool] = False

    def check(self) -> None:
        if self.numbers < 1:  # nothing would be drawn, and so nothing changed
            need = "numbers must be 1 at least, of which it may use none"
            raise ValueError(f"{type(self).__name__}.{need}, got {self.numbers}")

    def __call__(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return changed examples of the same shape and type."""
        return x


@value
class CropFlip(Augmentation):
    """A crop of the image's own size from a black border, and a mirror image half of the time.

    Drawn for every batch. ``padding`` is the border's width in pixels (4: 000, CIFAR-100;
    He et al., 2016).

    >>> from dataclasses import replace
    >>> replace(tiny.task, augment=CropFlip(padding=2)).build(seed=0).train.noise_taken
    3
    """

    padding: NonNegativeInt = 4
    numbers = 3  # down, right, mirrored
    images_only = True

    def __call__(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return uint8 ``[N, H, W, C]`` cropped and mirrored by noise ``[N, 3]`` in [0, 1)."""
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
    """What is known of examples, by name: columns ``extra`` to them, or that ``replace`` them.

    Where there are any of these a batch has nothing else of the examples: its ``x`` is None.
    """

    extra: Params
    replace: Params


NOTHING = Precomputed({}, {})


@dataclass(eq=False)
class ClientData:
    """Who holds which example of one split (train, validation or test).

    ``x`` is uint8 ``[N, height, width, channels]``, int32 ``[N, tokens]`` for text, or float32 or
    float64 ``[N, ...]``, and ``y`` int64 ``[N]``, shared by all clients; ``indices`` int64
    ``[held]`` points into them, client after client, of whom client i holds ``sizes[i]``. ``side``
    holds per-example side information, int64 ``[held]`` each. So a table is as large as what is
    held: rows of one width are made of those clients only that are trained or evaluated together
    (``padded``). ``scale`` and ``shift``, a number per value of an image ``[height * width *
    channels]``, turn pixels into normalised float32, and other numbers likewise, computed in their
    own precision; text has none. ``augment`` changes examples at random each time they are trained
    on. ``separate`` says that the examples are no client's own, as a test split is,
    ``server_params`` that every client has all of ``indices``.
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
        """Raise ValueError where sizes are not those of what is held."""
        held, told = (
            len(self.indices),
            self.sizes.max(initial=0) if self.shared else self.sizes.sum(),
        )
        if told != held and not (self.shared and told < held):
            raise ValueError(f"{held} examples are held, and sizes are of {told}; see `Table.some`")

    @cached_property
    def offsets(self) -> tuple[Tensor, Tensor]:
        """Where in ``indices`` each client's examples begin, and how many, ``[clients]`` each."""
        sizes = torch.as_tensor(self.sizes, device=self.indices.device)
        return 0 * sizes if self.shared else sizes.cumsum(0) - sizes, sizes

    @property
    def owners(self) -> Tensor:
        """The row of the client who holds each example, int64 ``[held]``."""
        return torch.repeat_interleave(self.offsets[1])

    def client(self, row: int) -> Tensor:
        """Return the examples that one client holds, int64 ``[sizes[row]]``."""
        return self.indices[int(self.offsets[0][row]) :][: int(self.sizes[row])]

    def padded(
        self, rows: np.ndarray, width: int = 0, column: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the examples of some clients as rows, and which of them are no padding.

        int64 and bool ``[rows, width]``, by default as wide as the widest; 0 in the padding. Of a
        ``column`` ``[held, ...]`` what it says of them, ``[rows, width, ...]``.
        """
        wide, where = width or int(self.sizes[rows].max(initial=0)), self.indices.device
        starts, sizes = (t[torch.as_tensor(rows, device=where), None] for t in self.offsets)
        places = torch.arange(wide, device=where)
        real = places < sizes
        return _taken(self.indices if column is None else column, starts + places, real), real

    def subset(self, rows: np.ndarray, most: int | np.ndarray | None = None) -> ClientData:
        """Return the table of some clients, in this order, of each the first ``most`` examples."""
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
        """Yield what some clients see step by step.

        ``rows`` are client rows ``[clients]``, ``positions`` places among what each of them holds
        ``[clients, steps, B]``, ``counts`` ``[clients, steps]`` how many of the B are real,
        ``widths [steps]`` how many are looked at. A batch has ``x [clients, width, ...]``, ``y``,
        ``weight`` (0 marks padding) and every side information. ``noise`` are uniform random
        numbers step by step, ``[clients, B, numbers]`` each: augmentation takes the first, the rest
        is in the batch. ``precomputed`` are columns ``[clients, examples, ...]``.
        """
        within = torch.as_tensor(positions, device=rows.device)
        starts, sizes = (t[rows, None, None] for t in self.offsets)
        picked = starts + within, sizes > 0
        examples = _taken(self.indices, *picked)
        real = np.arange(positions.shape[2]) < counts[..., None]
        held = {
            "y": self.y[examples],
            "weight": torch.as_tensor(real, device=rows.device).to(torch.float32),
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
        """How many random numbers per example the augmentation takes."""
        return self.augment.numbers if self.augment else 0

    def all_examples(self, rows: Tensor, precomputed: Precomputed = NOTHING) -> Batch:
        """Return all examples of some clients as one padded batch."""
        size = int(self.sizes[rows.cpu().numpy()].max(initial=0))
        return next(self.blocks(rows, size, precomputed))

    def blocks(
        self, rows: Tensor, size: int, precomputed: Precomputed = NOTHING
    ) -> Iterator[Batch]:
        """Yield all examples of some clients in order, in padded batches of at most ``size``.

        None where nobody has any, unless ``size`` is 0.
        """
        sizes = self.sizes[rows.cpu().numpy()]
        starts = np.arange(0, int(sizes.max(initial=0)) if size else 1, max(1, size))
        counts = np.clip(sizes[:, None] - starts, 0, size)
        places = starts[:, None] + np.arange(size)
        places = np.minimum(places, np.maximum(sizes, 1)[:, None, None] - 1)
        yield from self.batches(rows, places, counts, counts.max(0), precomputed=precomputed)

    def inputs(self, examples: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return what a model takes: images ``[..., C, H, W]`` and other numbers normalised, or
        tokens ``[..., T]``.

        With ``noise`` ``[..., numbers]`` they are augmented.

        Pixels are stored channels-last and only viewed the other way, the layout in which
        convolutions run fastest on a CPU.
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
        # A number per value, not per channel: broadcasting over three channels is slow.
        seen = flat.to(self.scale.dtype).mul_(self.scale).add_(self.shift)
        seen = seen.to(torch.float32).view(shape)
        return seen.movedim(-1, -3) if self.x.ndim == 4 else seen

    def counts(self, kinds: int, side: str = "") -> Tensor:
        """Return how often each client holds each label, or value of a side information.

        int64 ``[clients, kinds]``.
        """
        values = self.side[side] if side else self.y[self.indices]
        cells = torch.bincount(self.owners * kinds + values, minlength=len(self.sizes) * kinds)
        return cells.view(-1, kinds)


@dataclass(eq=False)
class Federation:
    """Clients, their data and the model they train: all that an algorithm may ask about.

    ``ids`` numbers the client behind every row; random draws follow the id, not the row.
    ``client_names`` are what the partition calls these clients, row by row, as ``NaturalPartition``
    by the values of its column; () where they have none. ``participants`` are the rows that a
    cohort is drawn from, None for all.

    Where ``train`` comes with side information ``OPTED_IN``, the federation's tables do not hold
    what opted out: they have the training examples that take part, the validation examples of
    clients that do, and these clients as members. The rest is in ``all_data``, tables for training
    and validation, which ``full_view`` makes a view of (``includes_opted_out``). An algorithm that
    federates gets ``participating_view()``, which has no ``all_data`` and no tests of those who
    stay out either.

    ``ranks`` is what a data set's token ids have become, where these were ranked for it.
    ``balanced`` is a test set that all clients share, if there is one. ``source`` names the data
    and their fingerprint. ``kinds`` is how many values side information can take, by name, so that
    it need not be counted on what someone holds.
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
    # What a changed copy (``replace``) computes for itself: counts, and the other views.
    _shares: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _inside: Federation | None = field(default=None, init=False, repr=False)
    _home: Federation | None = field(default=None, init=False, repr=False)
    _eval_view: Federation | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Take what opted out from the tables, into ``all_data``."""
        flag = self.train.side.get(OPTED_IN)
        if flag is None or self.includes_opted_out:
            return
        self.all_data = self.train, self.validation
        self.train = _restricted(self.train, flag > 0)
        self.participants = np.flatnonzero(self.train.sizes)
        there = self.train.offsets[1] > 0
        self.validation = _restricted(self.validation, there[self.validation.owners])
        self.balanced = self.balanced and _compact(self.balanced)

    @property
    def num_clients(self) -> int:
        """The population M."""
        return len(self.ids)

    @property
    def participating(self) -> int:
        """How many clients a cohort is drawn from: the population without those that opt out."""
        return self.num_clients if self.participants is None else len(self.participants)

    @property
    def member_rows(self) -> Tensor:
        """The rows that a cohort is drawn from, int64 ``[participating]``."""
        rows = torch.arange(self.num_clients, device=self.device)
        return rows if self.participants is None else rows[torch.as_tensor(self.participants)]

    @property
    def sizes(self) -> Tensor:
        """Training examples per client N_s, float64 ``[clients]``."""
        return torch.as_tensor(self.train.sizes, dtype=torch.float64, device=self.device)

    @property
    def by_id(self) -> Tensor:
        """The rows in the order of their clients' ids, int64 ``[clients]``."""
        return torch.as_tensor(self.ids, device=self.device).argsort()

    def row(self, client: int | str) -> int:
        """Return the row of a client, who is told by id or by name; ValueError if there is none."""
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

    def called(self, ids: Iterable[int]) -> str:
        """Return what an error calls some clients: ids, and names where there are any."""
        known = dict(zip(self.ids.tolist(), self.client_names, strict=False))
        return ", ".join(f"{i} ({known[i]!r})" if i in known else f"{i}" for i in map(int, ids))

    def participating_view(self) -> Federation:
        """Return the federation without what opted out: examples, and whole clients.

        Rows stay in their places. A client that has opted out altogether is no member, and has no
        examples here; nothing leads from here to what it has. The same federation if nobody opts
        out, or if it is such a view.
        """
        if self._inside is None and self.includes_opted_out and OPTED_IN in self.train.side:
            self._inside = replace(self, includes_opted_out=False).participating_view()
        elif self._inside is None and self.all_data is not None:
            test = _restricted(self.test, (self.train.offsets[1] > 0)[self.test.owners])
            self._inside = replace(self, test=test, all_data=None)
        return self._inside or self

    def full_view(self) -> Federation:
        """Return the view with all that clients have, for what stays with them.

        The training examples have ``OPTED_IN`` there. The same federation if nobody opts out.
        """
        if self._home is None and self.all_data is not None:
            tables: Any = dict(zip(("train", "validation"), self.all_data, strict=True))
            self._home = replace(
                self, **tables, participants=None, all_data=None, includes_opted_out=True
            )
            self._home._inside = self.participating_view()
        return self._home or self

    def eval_view(self) -> Federation:
        """Return the view that clients predict with.

        Members know what takes part. Those who opted out altogether decide for themselves only,
        with all that they have. The same federation if nobody opts out.
        """
        home = self.full_view()
        if OPTED_IN not in home.train.side:
            return self
        if home._eval_view is None:
            inside = home.participating_view()
            alone = (inside.train.offsets[1] == 0)[home.train.owners]
            train = _restricted(home.train, (home.train.side[OPTED_IN] > 0) | alone)
            home._eval_view = replace(home, train=train, validation=_compact(home.validation))
            home._eval_view._inside = inside
        return home._eval_view

    def values(self, condition: str) -> int:
        """Return how many values the label, or a named side information, can take."""
        if condition == "label":
            return self.classes
        check_choice("side information", condition, ("label", *self.train.side))
        return self.kinds.get(condition) or int(self.train.side[condition].max()) + 1

    def shares(self, condition: str) -> Tensor:
        """Return p(condition | s) over a client's training examples, float32 ``[clients, values]``.

        For the condition "label" that is p(y|s).
        """
        if condition not in self._shares:
            side = "" if condition == "label" else condition
            counts = self.train.counts(self.values(condition), side)
            self._shares[condition] = counts / counts.sum(1, keepdim=True).clamp(min=1)
        return self._shares[condition]

    def permuted(self, order: np.ndarray) -> Federation:
        """Return the same federation with its rows in another order; ids move with the rows."""
        members = (
            None if self.participants is None else np.flatnonzero(np.isin(order, self.participants))
        )
        names = tuple(self.client_names[row] for row in order if self.client_names)
        changes = {"ids": self.ids[order], "client_names": names, "participants": members}
        return self._changed(lambda table: table.subset(order), **changes)

    def pooled(self) -> Federation:
        """Return one client that holds what all have, split by split: training in one place.

        Side information stays behind, and so does what has opted out.
        """
        ids = np.zeros(1, dtype=self.ids.dtype)
        inside = replace(self.participating_view(), test=self.test)
        return inside._changed(_pooled, ids=ids, client_names=(), participants=None)

    def _changed(self, change: Callable[[ClientData], ClientData], **others: Any) -> Federation:
        """Return this federation with every client's table changed alike."""
        tables = {name: change(getattr(self, name)) for name in ("train", "validation", "test")}
        home = self.all_data and (change(self.all_data[0]), change(self.all_data[1]))
        return replace(self, **{**tables, "all_data": home, **others})


def _at(column: Tensor, places: Tensor) -> Tensor:
    """Return entries ``[clients, B, ...]`` of a column ``[clients, examples, ...]``, by place."""
    found = column.flatten(0, 1).index_select(0, places.flatten())
    return found.view(*places.shape, *column.shape[2:])


def _taken(column: Tensor, places: Tensor, real: Tensor) -> Tensor:
    """Return entries of a column ``[held, ...]`` at some places, 0 where none is real."""
    if not len(column):
        return column.new_zeros(*places.shape, *column.shape[1:])
    real = real.view(*real.shape, *[1] * (column.ndim - 1))
    return torch.where(real, column[places.clamp(max=len(column) - 1)], 0)


def _restricted(table: ClientData, chosen: Tensor) -> ClientData:
    """Return a table with the chosen of the examples that are held only, bool ``[held]``.

    The table does not hold the others, so that nothing can read them, not even as padding.
    """
    sizes = torch.bincount(table.owners[chosen], minlength=len(table.sizes)).cpu().numpy()
    side = {n: t[chosen] for n, t in table.side.items() if n != OPTED_IN}
    return _compact(replace(table, indices=table.indices[chosen], sizes=sizes, side=side))


def _compact(table: ClientData) -> ClientData:
    """Return a table without the examples that nobody holds, unless they are nobody's own."""
    if table.separate:
        return table
    used, place = table.indices.unique(return_inverse=True)
    # What pads the row of a client without examples.
    x, y = (t[used] if len(used) else torch.zeros_like(t[:1]) for t in (table.x, table.y))
    return replace(table, x=x, y=y, indices=place)


def _pooled(table: ClientData) -> ClientData:
    """Return a table whose only client holds every example that some client holds."""
    held = table.indices.unique()
    return replace(table, indices=held, sizes=np.array([len(held)]), side={})

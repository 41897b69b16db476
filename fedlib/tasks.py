"""Who trains what on which data: tasks as values, and the federations that are built of them.

Images are as clients see them: turned by an angle, called by other labels, cropped in training.
"""

import math
import os
import warnings
from dataclasses import replace
from typing import Annotated, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedlib import data as datasets
from fedlib import processor
from fedlib.data import OWN, Dataset, Fitted, Split
from fedlib.data.parquet import warn_of_unknown
from fedlib.federation import OPTED_IN, Augmentation, ClientData, Federation
from fedlib.models import Architecture, FunctionalModel
from fedlib.partition import LabelPermuted, Partition, Partitioner, Rotated, balanced, holdout
from fedlib.partition.held_out import Division, LocalHoldout, MatchedHoldout, OptOut, divide
from fedlib.values import UnknownName, check_choice, value

Pool = tuple[Tensor, Tensor]
Layer = TypeVar("Layer", bound=Partitioner)
BLOCK = 4096  # images turned at once
LARGE = 1e4  # deviations from 0 to the mean of numbers that float32 still brings to scale


def view(
    request: Partitioner, pool: Pool, part: Partition, seed: int, classes: int
) -> tuple[Pool, Partition]:
    """Return the examples of a part, each way of seeing one once, and the part pointing at them.

    ``pool`` is ``x`` uint8 ``[N, height, width, channels]`` (tokens where nothing is turned) and
    ``y`` int64 ``[N]``. The sides "angle" and "permutation" of ``part`` say how its examples are
    seen, ``request`` what these numbers mean.
    """
    x, y = pool
    rotated, permuted = _layer(request, Rotated), _layer(request, LabelPermuted)
    angles = rotated.angles if rotated else (0.0,)
    tables = permuted.tables(seed, classes) if permuted else np.arange(classes)[None]
    turn, call = (part.side.get(n, np.zeros_like(part.flat)) for n in ("angle", "permutation"))
    code = (part.flat * len(angles) + turn) * len(tables) + call
    seen, place = np.unique(code, return_inverse=True)
    rest, call = np.divmod(seen, len(tables))
    example, turn = np.divmod(rest, len(angles))
    where, called = (torch.as_tensor(numbers, device=x.device) for numbers in (example, call))
    labels = torch.as_tensor(tables, device=x.device)[called].gather(1, y[where, None])[:, 0]
    images = x[where]
    if len(angles) > 1:
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise ValueError("only images of whole pixels can be rotated, and these are no such")
        for number, degrees in enumerate(angles):
            rows = torch.as_tensor(np.flatnonzero(turn == number), device=x.device)
            images[rows] = rotate(images[rows], degrees)
    return (images, labels), Partition(place, part.sizes, part.side)


def _layer(request: Partitioner | None, kind: type[Layer]) -> Layer | None:
    """Return the outermost request of a kind among one and those that it is around."""
    while request is not None and not isinstance(request, kind):
        request = getattr(request, "of", None)
    return request


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Return images uint8 ``[N, height, width, channels]`` turned counter-clockwise, black outside.

    Bilinear between pixels; exact for right angles of square images.
    """
    quarters, rest = divmod(degrees % 360, 90)
    if rest == 0 and images.shape[1] == images.shape[2]:
        return torch.rot90(images, int(quarters), (1, 2))
    return torch.cat([_resampled(block, degrees) for block in images.split(BLOCK)])


def _resampled(images: Tensor, degrees: float) -> Tensor:
    height, width = images.shape[1:3]
    turn = math.radians(degrees)
    cos, sin = math.cos(turn), math.sin(turn)
    # affine_grid speaks of a square from -1 to 1, whatever the sides of the image.
    across = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    theta = torch.tensor(across, dtype=torch.float32, device=images.device)
    planes = images.movedim(-1, 1).to(torch.float32)
    grid = functional.affine_grid(theta.expand(len(images), 2, 3), list(planes.shape), False)
    turned = functional.grid_sample(planes, grid, align_corners=False)
    return turned.round().clamp(0, 255).to(torch.uint8).movedim(1, -1).contiguous()


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """Return a device: "auto" is CUDA where there is one, else the CPU.

    From then on a GPU's convolutions and recurrent nets use all bits of a float, as its other
    kernels do. ``FEDLIB_PIN=0`` leaves torch's default, which rounds factors to 10 bits (TF32).

    UnknownName for a kind of device that is unknown, or not there.
    """
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    check_choice("device", name.partition(":")[0], ("auto", "cpu", "cuda"))
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UnknownName(f"device {name!r} is not there: torch sees no CUDA device")
    if name.startswith("cuda") and os.environ.get(processor.VARIABLE) != "0":
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def _splits(data: Dataset, origin: str) -> list[Split]:
    """What a part points at: a split, or "merged", both; see ``Division.origin``."""
    return [data.train, data.test] if origin == "merged" else [getattr(data, origin)]


def _labels(data: Dataset, origin: str) -> np.ndarray:
    """The labels ``[N]`` that a part points at."""
    return np.concatenate([split.labels for split in _splits(data, origin)])


def _features(data: Dataset, origin: str) -> np.ndarray:
    """The examples ``[N, ...]`` that a part points at, where they lie if that is one place."""
    arrays = [split.features for split in _splits(data, origin)]
    return np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])


def _constant(data: Dataset) -> Fitted:
    """What brings the examples of a known dataset to one scale."""
    return Fitted(data.mean, data.std)


def _pool(data: Dataset, origin: str, device: torch.device, fitted: Fitted) -> Pool:
    features = _features(data, origin)
    with warnings.catch_warnings():
        # On the array's own memory, which processes share if it is a mapped file.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        x = torch.from_numpy(features if fitted.ids is None else fitted.ids[features])
    return x.to(device), torch.tensor(_labels(data, origin), device=device)


def _some(split: Split, portion: float, seed: int) -> Split:
    """A share of a split's examples, class by class."""
    leave = len(split) - math.ceil(portion * len(split))
    if not leave:
        return split
    rows, _ = holdout(split.labels, leave, seed)
    columns = {name: values[rows] for name, values in split.columns.items()}
    return Split(split.features[rows], split.labels[rows], columns)


@value
class Task:
    """Who trains what on which data.

    ``partition`` deals the training examples to clients, ``held_out`` says what they are validated
    and tested on (docs/READINGS.md, A04): examples from elsewhere in their label shares
    (``MatchedHoldout``), or some of their own, at random (``LocalHoldout``) or by columns of the
    data (``HoldoutByColumn``). Model and round selection look at validation only. ``portion`` is
    the share of the data that is used at all, class by class. ``augment`` changes training examples
    at random in every batch. ``opt_out`` says which training examples no federated algorithm gets
    to see. ``balanced`` is the size of a set that all clients share, with as many examples of each
    class, on which each is scored too (001); 0 for none. It is drawn from the "test" split, or,
    ``balanced_on`` "validation", from the training examples that nobody trains on. ``validate_on``
    "test" has every choice that validation examples should decide made on the tests themselves, as
    003's released code does: only to show what that is worth.

    ``dataset`` is the name of data that ``data.load`` has or gets, ``model`` the network.

    >>> clients = Dirichlet(clients=20, alpha=0.1, size=60)
    >>> task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
    >>> task.build(seed=0).num_clients
    20
    """

    dataset: str
    partition: Partitioner
    model: Architecture
    held_out: MatchedHoldout | LocalHoldout = MatchedHoldout()
    portion: Annotated[float, "(0, 1]"] = 1.0
    augment: Augmentation | None = None
    opt_out: OptOut | None = None
    balanced: int = 0
    balanced_on: Annotated[str, ("test", "validation")] = "test"
    validate_on: Annotated[str, ("validation", "test")] = "validation"

    def check(self) -> None:
        datasets.require(self.dataset)
        if self.balanced and not (self.balanced > 0 and self._tests_apart):
            need = ">= 0, with a test split for tests only: MatchedHoldout(source='train')"
            got = f"got {self.balanced} with {self.held_out}"
            raise ValueError(f"Task.balanced must be {need}; {got}")

    def build(
        self, seed: int, device: str | torch.device = "cpu", fitted: Fitted | None = None
    ) -> Federation:
        """Return the federation of one seed: partition, twins and examples on a device.

        Args:
            seed: of the draws who holds what.
            device: "cpu", "cuda", "cuda:N" or "auto".
            fitted: what brings numbers to one scale and ranks tokens, for a model that has been
                trained on another build; by default what ``fit`` says of this one.

        Returns:
            The federation without what opted out; that is at hand with ``full_view()``.

        Raises:
            ValueError: for what does not fit together, and where no client has a test example.
        """
        fed = self.assembled(*self.divided(seed), seed, device, fitted)
        if not len(fed.test.y):
            most = int(fed.full_view().train.sizes.max() + fed.validation.sizes.max())
            have = f"the largest of {fed.num_clients:,} clients holds {most} in all"
            raise ValueError(f"{self.held_out} leaves no example for tests: {have}")
        return fed

    def fit(self, seed: int) -> Fitted:
        """Return what is fitted to the training examples of those who take part, or constant."""
        data = datasets.load(self.dataset)
        return self._fitted(*self.divided(seed)) if self._fits(data) else _constant(data)

    def assembled(
        self,
        data: Dataset,
        division: Division,
        inside: np.ndarray,
        seed: int,
        device: str | torch.device = "cpu",
        fitted: Fitted | None = None,
    ) -> Federation:
        """Return what ``build`` does, of what ``divided`` returns: of any examples that one likes.

        Args as of ``build``.
        """
        where = pick_device(device)
        if fitted is None:
            fitted = self._fitted(data, division, inside) if self._fits(data) else _constant(data)
        tables = self._tables(data, division, seed, where, fitted)
        train = tables["train"]
        if fitted.ids is not None:
            test = tables["test"]
            warn_of_unknown(test.x[test.indices].cpu().numpy(), "the clients' test texts")
        train.augment = self.augment
        if self.augment and self.augment.images_only and len(data.shape) != 3:
            train.augment = None
        net = FunctionalModel(self.model, data.shape, data.classes, where)
        of_tokens = data.train.features.dtype == np.int32
        if net.reads_tokens != of_tokens:
            what = "tokens" if of_tokens else "numbers"
            told = f"if it does, its class may say so: reads_tokens = {of_tokens}"
            raise ValueError(f"{data.name} holds {what}, which {self.model} does not read; {told}")
        if self.opt_out is not None:
            train.side[OPTED_IN] = torch.tensor(inside.astype(np.int64), device=where)
        _ = net.dry_run  # an error for one that cannot be trained here
        return Federation(
            net=net,
            classes=data.classes,
            device=where,
            train=train,
            validation=tables[self.validate_on],
            test=tables["test"],
            ids=np.arange(division.parts["train"].clients),
            balanced=self._balanced(data, tables, seed),
            kinds=self.partition.kinds(),
            class_names=data.class_names,
            client_names=division.parts["train"].names,
            source=f"{data.source}, {data.fingerprint[:12]}",
            ranks=fitted.ids,
        )

    def divide(self, seed: int) -> Division:
        """Return who trains, validates and tests on what, without looking at an example."""
        return self.divided(seed)[1]

    def counts(self, seed: int) -> dict[str, np.ndarray]:
        """Return each client's class counts in every part, int64 ``[clients, classes]`` each."""
        data, division, _ = self.divided(seed)
        return {
            name: part.counts(_labels(data, division.origin[name]), data.classes)
            for name, part in division.parts.items()
        }

    @property
    def _tests_apart(self) -> bool:
        """Whether the test split is for tests only: then all of it is the global test."""
        held = self.held_out
        return isinstance(held, MatchedHoldout) and held.source == "train" and held.group is None

    def divided(self, seed: int) -> tuple[Dataset, Division, np.ndarray]:
        """Return the share of the data set that is used, its division, and who takes part.

        That is bool ``[examples]``, of the training part.
        """
        data = datasets.load(self.dataset)
        train, test = (_some(split, self.portion, seed) for split in (data.train, data.test))
        division = divide(self.partition, self.held_out, train, test, data.classes, seed)
        data, part = replace(data, train=train, test=test), division.parts["train"]
        inside = np.ones(len(part.flat), bool)
        if self.opt_out is not None:
            labels = _labels(data, division.origin["train"])
            inside = self.opt_out.stays_in(part, labels, seed, *self.partition.choose_clients())
        return data, division, inside

    def _fits(self, data: Dataset) -> bool:
        """Return whether something is fitted: also to known texts, where somebody opts out."""
        return data.fit or bool(data.vocabulary and self.opt_out and data.source != OWN)

    def _fitted(self, data: Dataset, division: Division, inside: np.ndarray) -> Fitted:
        rows = division.parts["train"].flat[inside]
        features = _features(data, division.origin["train"])
        return datasets.fitted(data, features, np.unique(rows))

    def _tables(
        self, data: Dataset, division: Division, seed: int, device: torch.device, fitted: Fitted
    ) -> dict[str, ClientData]:
        """Return the tables of a division's parts; parts of one origin share its examples.

        Those with side information, and a test part that is no split of its own, have examples of
        their own: each that they hold as a client sees it.
        """
        origins = {*division.origin.values()}
        pools = {origin: _pool(data, origin, device, fitted) for origin in origins}
        # Scale and shift of every value of an example; text has none.
        times = math.prod(data.shape) // max(len(fitted.mean), 1)
        mean, std = (np.tile(v, times) for v in (fitted.mean, fitted.std))
        unit = 255 if data.train.features.dtype == np.uint8 else 1
        # Numbers that are large next to how they vary are brought to scale in float64.
        near = data.train.features.dtype != np.float64 and (np.abs(mean) <= LARGE * std).all()
        kind = torch.float32 if near else torch.float64
        scale, shift = (torch.tensor(v).to(device, kind) for v in (1 / (unit * std), -mean / std))
        tables = {}
        for name, part in division.parts.items():
            pool = pools[division.origin[name]]
            if part.side or (name == "test" and not self._tests_apart):
                pool, part = view(self.partition, pool, part, seed, data.classes)
            flat = torch.tensor(part.flat, device=device)
            side = {n: torch.tensor(v, device=device) for n, v in part.side.items()}
            tables[name] = ClientData(*pool, flat, np.array(part.sizes), scale, shift, side)
            tables[name].separate = name == "test" and self._tests_apart
        return tables

    def _balanced(
        self, data: Dataset, tables: dict[str, ClientData], seed: int
    ) -> ClientData | None:
        """Return the set that all clients share."""
        if not self.balanced:
            return None
        table, labels = tables[self.balanced_on], data.test.labels
        if table.side:
            raise ValueError(f"clients of {self.partition} see an example in different ways")
        apart = np.arange(len(labels))
        if self.balanced_on == "validation":
            assert isinstance(self.held_out, MatchedHoldout)
            labels = data.train.labels
            _, apart = holdout(labels, self.held_out.pool, seed)
        chosen = apart[balanced(labels[apart], self.balanced, seed)]
        clients = len(table.sizes)
        flat, sizes = torch.tensor(chosen, device=table.y.device), np.full(clients, len(chosen))
        return replace(table, indices=flat, sizes=sizes, side={}, shared=True)

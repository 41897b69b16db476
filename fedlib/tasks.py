"""Tasks as values: data, partition and network, from which federations are built.

Images are transformed as each client sees them: rotated, relabelled, or augmented in training.
"""

import math
import os
import warnings
from dataclasses import field, replace
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
BLOCK = 4096  # images rotated at once
LARGE = 1e4  # |mean| / std above which float32 is too inexact to normalise


def view(
    request: Partitioner, pool: Pool, part: Partition, seed: int, classes: int
) -> tuple[Pool, Partition]:
    """Return the examples of a part as its clients see them, and the part that indexes these.

    Each combination of example, angle and permutation is stored once.

    Args:
        request: the partitioner, which defines the angles and permutations.
        pool: ``x`` uint8 ``[N, height, width, channels]`` (or tokens, which are not rotated) and
            ``y`` int64 ``[N]``.
        part: the partition, whose side information "angle" and "permutation" apply.
        seed: the seed of the permutations.
        classes: the number of classes.
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
    if rotated:
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise ValueError("only images stored as uint8 can be rotated")
        for number in np.unique(turn).tolist():
            rows = torch.as_tensor(np.flatnonzero(turn == number), device=x.device)
            images[rows] = rotate(images[rows], angles[number])
    return (images, labels), Partition(place, part.sizes, part.side)


def _layer(request: Partitioner | None, kind: type[Layer]) -> Layer | None:
    """Return the outermost partitioner of a type among nested ones, or None."""
    while request is not None and not isinstance(request, kind):
        request = getattr(request, "of", None)
    return request


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Return images rotated counter-clockwise, with black outside.

    Interpolation is bilinear; rotations of square images by right angles are exact.

    Args:
        images: uint8 ``[N, height, width, channels]``.
        degrees: the angle.
    """
    quarters, rest = divmod(degrees % 360, 90)
    if rest == 0 and images.shape[1] == images.shape[2]:
        return torch.rot90(images, int(quarters), (1, 2))
    return torch.cat([_resampled(block, degrees) for block in images.split(BLOCK)])


def _resampled(images: Tensor, degrees: float) -> Tensor:
    height, width = images.shape[1:3]
    turn = math.radians(degrees)
    cos, sin = math.cos(turn), math.sin(turn)
    # affine_grid has coordinates from -1 to 1 on both axes, whatever the sides.
    across = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    theta = torch.tensor(across, dtype=torch.float32, device=images.device)
    planes = images.movedim(-1, 1).to(torch.float32)
    grid = functional.affine_grid(theta.expand(len(images), 2, 3), list(planes.shape), False)
    turned = functional.grid_sample(planes, grid, align_corners=False)
    return turned.round().clamp(0, 255).to(torch.uint8).movedim(1, -1).contiguous()


def device_name(device: str | torch.device) -> str:
    """Return the name of a device as torch has it; raise UnknownName if it is of no known kind.

    >>> device_name("GPU")
    'cuda'
    """
    kind, colon, number = str(device).lower().partition(":")
    kind = "cuda" if kind == "gpu" else kind
    check_choice("device", kind, ("auto", "cpu", "cuda"))
    return kind + colon + number


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """Return a torch device.

    On a GPU this also disables TF32 in convolutions and recurrent networks, as torch does by
    default for its other kernels, unless the environment variable ``FEDLIB_PIN`` is 0.

    Args:
        device: "cpu", "cuda" (or "gpu"), "cuda:N", or "auto" for CUDA if it is available. Default:
            "auto".

    Raises:
        UnknownName: if the device is unknown or not available.
    """
    name = device_name(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UnknownName(f"device {name!r} is not available: torch finds no CUDA device")
    if name.startswith("cuda") and os.environ.get(processor.VARIABLE) != "0":
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


def _splits(data: Dataset, origin: str) -> list[Split]:
    """Return the splits that a part indexes; see ``Division.origin``."""
    return [data.train, data.test] if origin == "merged" else [getattr(data, origin)]


def _labels(data: Dataset, origin: str) -> np.ndarray:
    """Return the labels ``[N]`` that a part indexes."""
    return np.concatenate([split.labels for split in _splits(data, origin)])


def _features(data: Dataset, origin: str) -> np.ndarray:
    """Return the examples ``[N, ...]`` that a part indexes, without a copy if possible."""
    arrays = [split.features for split in _splits(data, origin)]
    return np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])


def _constant(data: Dataset) -> Fitted:
    """Return the normalisation constants of a known data set."""
    return Fitted(data.mean, data.std)


def _pool(data: Dataset, origin: str, device: torch.device, fitted: Fitted) -> Pool:
    features = _features(data, origin)
    with warnings.catch_warnings():
        # No copy: processes share the memory of a mapped file.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        x = torch.from_numpy(features if fitted.ids is None else fitted.ids[features])
    return x.to(device), torch.tensor(_labels(data, origin), device=device)


def _some(split: Split, portion: float, seed: int) -> Split:
    """Return a stratified subset with a fraction of a split's examples."""
    leave = len(split) - math.ceil(portion * len(split))
    if not leave:
        return split
    rows, _ = holdout(split.labels, leave, seed)
    columns = {name: values[rows] for name, values in split.columns.items()}
    return Split(split.features[rows], split.labels[rows], columns)


@value
class Task:
    """The data set, its partition over clients, the network and the held-out examples.

    Models and rounds are selected on validation examples only.

    Args:
        dataset: the name of a data set: one of ``data.names()``, or one that ``add_data`` stored
            from arrays or a table.
        partition: how training examples are assigned to clients.
        model: the architecture of the network.
        held_out: validation and test examples of clients: other examples with the client's label
            proportions (``MatchedHoldout``), or examples of its own, drawn at random
            (``LocalHoldout``) or by columns of the data (``HoldoutByColumn``).
            Default: ``MatchedHoldout()``.
        portion: fraction of the data that is used, stratified by class, in (0, 1]. Default: 1.
        augment: random augmentation of training examples in every batch. Default: None.
        opt_out: which training examples are hidden from federated algorithms. Default: None.
        balanced: size of a class-balanced set on which all clients are evaluated, too; 0 for none.
            Default: 0.
        balanced_on: the split from which this set is drawn: "test", or "validation" for training
            examples that no client trains on. Default: "test".
        validate_on: "validation", or "test" to select models on test examples, as the released
            code of Isaksson et al. (2022) does. The latter only serves to measure its effect.
            Default: "validation".

    >>> clients = Dirichlet(clients=20, alpha=0.1, size=60)
    >>> task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
    >>> task.build(seed=0).num_clients
    20
    """

    dataset: str = field(metadata={"hint": "fedlib.add_data stores arrays or a table by a name"})
    partition: Partitioner
    model: Architecture = field(
        metadata={"hint": "FromFunction('mine:net') uses the torch module that a function returns"}
    )
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
        """Return the federation of a seed.

        Args:
            seed: the seed of the partition and the held-out examples.
            device: "cpu", "cuda", "cuda:N" or "auto". Default: "cpu".
            fitted: normalisation constants and token ranks of another build, for a network trained
                on that one. Default: the result of ``fit`` for this build.

        Returns:
            The federation without data that opted out; ``full_view()`` of it includes them.

        Raises:
            ValueError: if the settings are incompatible, or no client has a test example although
                ``held_out`` asks for some.
        """
        fed = self.assembled(*self.divided(seed), seed, device, fitted)
        if not len(fed.test.y) and self.held_out.test:
            most = int(fed.full_view().train.sizes.max() + fed.validation.sizes.max())
            have = f"the largest of {fed.num_clients:,} clients holds {most} in all"
            raise ValueError(f"{self.held_out} leaves no example for tests: {have}")
        return fed

    def fit(self, seed: int) -> Fitted:
        """Return normalisation constants and token ranks, fitted to participating training data.

        Args:
            seed: as in ``build``.
        """
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
        """Return the federation for a given division of the data, such as that of ``divided``.

        Args:
            data: the data set.
            division: the partitions for training, validation and tests.
            inside: which training examples take part, bool ``[examples]``.
            seed, device, fitted: as in ``build``.
        """
        where = pick_device(device)
        if not len(division.parts["train"].flat):
            raise ValueError(f"{self.partition} gives no client a training example")
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
            told = f"if it does, set reads_tokens = {of_tokens} in its class"
            if of_tokens:
                told += "; for integers that are not token ids, use add_data(..., tokens=False)"
            raise ValueError(f"{data.name} holds {what}, which {self.model} does not read; {told}")
        if self.opt_out is not None:
            train.side[OPTED_IN] = torch.tensor(inside.astype(np.int64), device=where)
        _ = net.dry_run  # raises an error if the network cannot be trained
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
        """Return the partitions for training, validation and tests, without reading an example.

        Args:
            seed: as in ``build``.
        """
        return self.divided(seed)[1]

    def counts(self, seed: int) -> dict[str, np.ndarray]:
        """Return the class counts of each part's clients, int64 ``[clients, classes]`` by name.

        Args:
            seed: as in ``build``.
        """
        data, division, _ = self.divided(seed)
        return {
            name: part.counts(_labels(data, division.origin[name]), data.classes)
            for name, part in division.parts.items()
        }

    @property
    def _tests_apart(self) -> bool:
        """Whether the test split is used for tests only: all of it is the global test set."""
        held = self.held_out
        return isinstance(held, MatchedHoldout) and held.source == "train" and held.group is None

    def divided(self, seed: int) -> tuple[Dataset, Division, np.ndarray]:
        """Return the data that are used, their division, and which training examples take part.

        The last one is bool ``[examples]``, in the order of the training part.
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
        """Return whether normalisation or token ranks are fitted.

        They are also fitted to a known text data set if clients opt out, whose texts must not be
        used.
        """
        return data.fit or bool(data.vocabulary and self.opt_out and data.source != OWN)

    def _fitted(self, data: Dataset, division: Division, inside: np.ndarray) -> Fitted:
        rows = division.parts["train"].flat[inside]
        features = _features(data, division.origin["train"])
        return datasets.fitted(data, features, np.unique(rows))

    def _tables(
        self, data: Dataset, division: Division, seed: int, device: torch.device, fitted: Fitted
    ) -> dict[str, ClientData]:
        """Return the tables of a division. Parts that index the same split share its examples.

        Parts with side information, and a test part that shares its split, have copies of the
        examples that they hold, as their clients see them.
        """
        origins = {*division.origin.values()}
        pools = {origin: _pool(data, origin, device, fitted) for origin in origins}
        # Scale and shift of every value of an example; empty for text.
        times = math.prod(data.shape) // max(len(fitted.mean), 1)
        mean, std = (np.tile(v, times) for v in (fitted.mean, fitted.std))
        unit = 255 if data.train.features.dtype == np.uint8 else 1
        # Values that are large compared to their deviation are normalised in float64.
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
        """Return the class-balanced table that all clients share, or None."""
        if not self.balanced:
            return None
        table, labels = tables[self.balanced_on], data.test.labels
        if table.side:
            what = "Task.balanced needs clients that see examples alike"
            raise ValueError(f"{what}, unlike those of {self.partition}")
        apart = np.arange(len(labels))
        if self.balanced_on == "validation":
            assert isinstance(self.held_out, MatchedHoldout)
            labels = data.train.labels
            _, apart = holdout(labels, self.held_out.pool, seed)
        chosen = apart[balanced(labels[apart], self.balanced, seed)]
        clients = len(table.sizes)
        flat, sizes = torch.tensor(chosen, device=table.y.device), np.full(clients, len(chosen))
        return replace(table, indices=flat, sizes=sizes, side={}, shared=True)

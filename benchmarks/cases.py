"""The timed cases: a round of each, played in several ways on the same random examples.

``engine``  fedlib's ``play_round``, with its defaults
``plain``   the loop of ``benchmarks.plain``, as it is usually written
``floor``   forward, backward and step on ready batches of the same shapes, without drawing,
            copying, sending or averaging; images have the fastest layout
``tight``   one module, a fused optimiser, all images as floats in the fastest layout, and batches
            from a permutation (A to C)
``cores``   ``engine`` on two cores (A to C)

A case with populations plays the engine's round with each of them instead, and one with rivals
the engine's round of several algorithms on the same cohort. ``cases.toml`` lists the cases.
"""

import math
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks import fresh, plain
from fedlib.algorithms import FedAvg, FedMix, Mixture, PMMoE, PrunedFedMix
from fedlib.algorithms.fedmix import MEMORY
from fedlib.engine import State, play_round
from fedlib.federation import ClientData, Federation
from fedlib.models import BiLSTM, FunctionalModel, LeNet
from fedlib.parallel import all_cores
from fedlib.values import from_code

SEED = 0
Round = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A cohort and an algorithm.

    Attributes:
        title: the case in words.
        algorithm, model: what is trained.
        shape, classes: of an example.
        clients, size, cohort: the number of clients, of examples of each, and of clients per round.
        most: the largest wanted ratio of engine over floor on one CPU core.
        gain: the wanted speedup of a round on two cores. With it, the case is also played as
            ``tight`` and on two cores.
        rivals: other algorithms by name, each with the largest wanted ratio to ``algorithm``; every
            client of such a case has one class only.
        populations: other numbers of clients by name, each with the largest wanted ratio.
        first: the name of the denominator of these ratios. Default: the class of ``algorithm``.
    """

    title: str
    algorithm: Any = field(default_factory=FedAvg)
    model: Any = field(default_factory=LeNet)
    shape: tuple[int, ...] = (32, 32, 3)
    clients: int = 100
    size: int = 450
    cohort: int = 10
    classes: int = 10
    most: float = math.inf
    gain: float = 0.0
    rivals: Mapping[str, tuple[Any, float]] = field(default_factory=dict)
    populations: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    first: str = ""

    @property
    def ways(self) -> dict[str, Callable[[torch.device], Round]]:
        """By way, a function that prepares a round and returns a function that plays it."""
        if others := {**self.rivals, **self.populations}:
            first = self.first or type(self.algorithm).__name__
            return {name: partial(self._other, name) for name in (first, *others)}
        ways = {"floor": _floor, "engine": one_core, "plain": _plain}
        ways |= {"tight": _tight, "cores": on_two_cores} if self.gain else {}
        return {name: partial(self._prepared, way) for name, way in ways.items()}

    def _prepared(self, way: Callable[["Case", Federation], Round], device: torch.device) -> Round:
        return way(self, federation(self, device))

    def _other(self, name: str, device: torch.device) -> Round:
        """Prepare the engine's round of another algorithm, or with another population."""
        algorithm, _ = self.rivals.get(name, (self.algorithm, 0))
        clients, _ = self.populations.get(name, (self.clients, 0))
        fed = federation(self, device, clients)
        if self.rivals:
            owner = torch.arange(self.clients, device=device).repeat_interleave(self.size)
            fed.train.y = owner % self.classes
        return one_core(replace(self, algorithm=algorithm), fed)

    @property
    def ratios(self) -> list[tuple[str, str, float]]:
        """The compared ways: (over, under, the largest wanted ratio on one CPU core)."""
        if others := {**self.rivals, **self.populations}:
            first, *_ = self.ways
            return [(name, first, most) for name, (_, most) in others.items()]
        ratios = [("engine", "floor", self.most), ("plain", "engine", math.inf)]
        if self.gain:
            ratios += [("engine", "tight", 1.05), ("cores", "engine", 1 / self.gain)]
        return ratios

    def measure(self, repeat: int, device: torch.device) -> pd.DataFrame:
        """Return the seconds of a round, one row per repetition and way."""
        plays = {way: prepare(device) for way, prepare in self.ways.items()}
        for play in plays.values():
            play()  # warm up
        rows, ways = [], [*plays]
        for repetition in range(repeat):
            for offset in range(len(plays)):  # every way comes first in turn
                way = ways[(repetition + offset) % len(plays)]
                begin = time.perf_counter()
                plays[way]()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                rows.append((repetition, way, time.perf_counter() - begin))
        return pd.DataFrame(rows, columns=["repetition", "way", "seconds"])

    def peak_mib(self, way: str, device: torch.device, threads: int) -> float:
        """Play a round in this process; return its peak MiB, on a GPU those of torch there."""
        torch.set_num_threads(threads)
        self.ways[way](device)()
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device) / 2**20
        return fresh.peak_mib()

    def text(self, frame: pd.DataFrame) -> str:
        """Return the table and the ratios as text, for those ways that were measured."""
        ways = [way for way in self.ways if way in {*frame["way"]}]
        wide = max(14, *map(len, ways))
        lines = [self.title, f"   {'way':<{wide}}  s/round   (fastest, slowest)   peak MiB"]
        for way in ways:
            rows = frame[frame["way"] == way]
            s = rows["seconds"]
            span = f"({s.min():.3f}, {s.max():.3f})"
            peak = rows["peak_mib"].median()
            lines.append(f"   {way:<{wide}}{s.median():>9.3f}   {span:<20}{peak:>8.0f}")
        for over, under, most in self.ratios:
            if {over, under} <= {*ways}:
                wanted = f"   (wanted: at most {most:.3g})" if math.isfinite(most) else ""
                lines.append(f"   {over} / {under}: {ratio(frame, over, under):.2f}{wanted}")
        return "\n".join(lines)


def ratio(frame: pd.DataFrame, over: str, under: str) -> float:
    """Return the median over repetitions of the ratio of seconds of two ways."""
    wide = frame.pivot(index="repetition", columns="way", values="seconds")
    return float((wide[over] / wide[under]).median())


def _read(case: dict[str, Any]) -> Case:
    made = {name: from_code(case.pop(name)) for name in ("algorithm", "model") if name in case}
    shape = {"shape": tuple(case.pop("shape"))} if "shape" in case else {}
    rivals = {n: (from_code(code), most) for n, (code, most) in case.pop("rivals", {}).items()}
    return Case(**case, **made, **shape, rivals=rivals)


_TABLES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text("utf-8"))
CASES = {name: _read(case) for name, case in _TABLES.items()}


def federation(case: Case, device: torch.device, clients: int = 0) -> Federation:
    """Return clients of equal size with random examples; large populations share them."""
    rng, clients = np.random.default_rng(SEED), clients or case.clients
    pool = case.clients * case.size
    x, look = _inputs(case, pool, rng, device)
    y = torch.tensor(rng.integers(case.classes, size=pool), device=device)
    flat = torch.arange(clients * case.size, device=device) % pool
    train = ClientData(x, y, flat, np.full(clients, case.size), *look)
    few = ClientData(x, y, flat[:: case.size], np.ones(clients, dtype=np.int64), *look)
    net = FunctionalModel(case.model, case.shape, case.classes)
    return Federation(net, case.classes, device, train, few, few, np.arange(clients))


def _inputs(
    case: Case, count: int, rng: np.random.Generator, device: torch.device
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return random texts, or random images with the scale and shift of their values."""
    if isinstance(case.model, BiLSTM):
        words = rng.integers(case.model.vocabulary, size=(count, *case.shape), dtype=np.int32)
        return torch.tensor(words, device=device), (torch.ones(0), torch.zeros(0))
    x = _mapped(rng.integers(0, 256, (count, *case.shape), dtype=np.uint8)).to(device)
    values = math.prod(case.shape)
    return x, (
        torch.full((values,), 1 / 128, device=device),
        torch.full((values,), -1.0, device=device),
    )


def _mapped(images: np.ndarray) -> Tensor:
    """Return images of a mapped file, as in a run: copies of the process share it."""
    with TemporaryFile() as file:
        images.tofile(file)
        return torch.from_numpy(np.memmap(file, images.dtype, "c", shape=images.shape))


def one_core(case: Case, fed: Federation) -> Round:
    """Return the engine's round."""
    state, played = begun(case.algorithm, fed), 0

    def play() -> None:
        nonlocal state, played
        state, _ = play_round(
            case.algorithm, fed, state, round=played, seed=SEED, cohort=case.cohort
        )
        played += 1

    return play


def on_two_cores(case: Case, fed: Federation) -> Round:
    """Return the engine's round on two cores."""
    play = one_core(case, fed)

    def both() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        with all_cores(fed.device, case.cohort):
            play()
        torch.set_num_threads(threads)

    return both


def begun(algorithm: FedAvg, fed: Federation) -> State:
    """Return the first state; with pruning, the one in which every class has a single expert."""
    before = algorithm.of if isinstance(algorithm, PMMoE) else FedAvg()
    staged = isinstance(algorithm, PMMoE | Mixture)
    state = algorithm.init(fed, SEED, before.init(fed, SEED) if staged else None)
    if isinstance(algorithm, PrunedFedMix):
        k = algorithm.experts
        one = torch.arange(fed.classes, device=fed.device) % k
        state.server_params["phi"] = 50.0 * torch.nn.functional.one_hot(one, k).to(torch.float32)
        state.server_memory[MEMORY] = fed.shares("label") @ state.server_params["phi"].softmax(-1)
    return state


def _plain(case: Case, fed: Federation) -> Round:
    clients = plain.clients_of(fed, case.algorithm.batch_size or case.size)
    rng = np.random.default_rng(SEED)
    client, epochs = case.algorithm.client, case.algorithm.epochs
    if isinstance(case.algorithm, FedMix):
        mixture = plain.Mixture(_experts(case, fed)).to(fed.device)
        plain.add_gates(clients, mixture)
        server = torch.optim.Adam(mixture.parameters(), lr=case.algorithm.server.lr)
        prior = plain.label_shares(clients)

        def play() -> None:
            cohort = plain.draw(clients, case.cohort, rng)
            plain.fedmix_round(mixture, server, cohort, client.lr, prior)
    else:
        model = plain.usual(fed.net.module_of(SEED)).to(fed.device)

        def play() -> None:
            plain.fedavg_round(model, plain.draw(clients, case.cohort, rng), client, epochs)

    return play


def _tight(case: Case, fed: Federation) -> Round:
    memory, rng = plain.memory_of(fed), np.random.default_rng(SEED)
    model = fed.net.module_of(SEED).to(fed.device, memory_format=torch.channels_last)
    algorithm, batch = case.algorithm, case.algorithm.batch_size or case.size

    def play() -> None:
        cohort = rng.choice(case.clients, case.cohort, replace=False).tolist()
        plain.tight_round(model, memory, cohort, batch, algorithm.client, algorithm.epochs)

    return play


def _floor(case: Case, fed: Federation) -> Round:
    batches = _ready_batches(case, fed)
    if isinstance(case.algorithm, FedMix):
        mixture = plain.Mixture(_experts(case, fed)).to(fed.device)
        gate = mixture.new_gate()
        p_y = torch.full((case.classes,), 1 / case.classes, device=fed.device)
        model: nn.Module = nn.ModuleList([mixture, gate])

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return mixture.loss(gate, x, y, p_y)
    else:
        model = plain.usual(fed.net.module_of(SEED)).to(fed.device)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(model(x), y)

    model.to(memory_format=torch.channels_last)
    optimizer = plain.optimizer_of(case.algorithm.client, model)

    def play() -> None:
        for _ in range(case.cohort * case.algorithm.epochs):
            for x, y in batches:
                optimizer.zero_grad()
                loss(x, y).backward()
                optimizer.step()

    return play


def _ready_batches(case: Case, fed: Federation) -> list[tuple[Tensor, Tensor]]:
    batch = case.algorithm.batch_size or case.size
    rows = fed.train.client(0).split(batch)
    assert len(rows) == math.ceil(case.size / batch)
    images = len(case.shape) == 3
    like = {"memory_format": torch.channels_last if images else torch.contiguous_format}
    return [(fed.train.inputs(r).contiguous(**like), fed.train.y[r]) for r in rows]


def _experts(case: Case, fed: Federation) -> list[nn.Module]:
    assert isinstance(case.algorithm, FedMix)
    return [fed.net.module_of(SEED + k) for k in range(case.algorithm.experts)]

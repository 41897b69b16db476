"""What is measured: one round of each case, played in several ways on the same random examples.

``engine``  fedlib's ``play_round``, with its defaults
``plain``   the loop of ``benchmarks.plain``, as it is usually written
``floor``   forward, backward and step on ready batches of the same shapes, and nothing else: no
            drawing, copying, sending or averaging; images in the layout that is fastest here
``tight``   one module, a fused optimiser, all images kept as floats as they lie fastest, and
            batches cut by a permutation (A to C)
``cores``   what ``engine`` plays, on two cores (A to C)

A case with populations plays the engine's round with each of them instead, and one with rivals
the engine's round of several algorithms on the same cohort.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import plain
from fedlib.algorithms import (
    DBE,
    GPFL,
    IFCA,
    MOON,
    SCAFFOLD,
    FedAvg,
    FedBABU,
    FedCP,
    FedGen,
    FedGH,
    FedMix,
    FedPer,
    FedProx,
    FedRep,
    FedRoD,
    FedSynMoE,
    LGFedAvg,
    LocalGlobal,
    Mixture,
    Personal,
    PMMoE,
    PrunedFedMix,
)
from fedlib.algorithms.fedmix import MEMORY
from fedlib.algorithms.ifca import EpsilonGreedy
from fedlib.engine import State, play_round
from fedlib.federation import ClientData, Federation
from fedlib.models import MLP, BiLSTM, FunctionalModel, LeNet
from fedlib.optim import adam, sgd
from fedlib.parallel import all_cores

WAYS = ("floor", "engine", "plain")
CORES, TIGHT = "cores", "tight"
Round = Callable[[], None]
SEED = 0


@dataclass(frozen=True)
class Case:
    """A cohort and an algorithm; ``title`` says it in words.

    ``most`` is the largest ratio that is wanted on one CPU core: of engine over floor, or of a
    population over the first. ``gain`` is how many times as fast a round is wanted on two cores.
    ``rivals`` are algorithms by name, each with the largest ratio that
    is wanted of it over ``algorithm``; every client of such a case holds one class only.
    """

    title: str
    algorithm: FedAvg | FedMix
    model: LeNet | MLP | BiLSTM
    shape: tuple[int, ...] = (32, 32, 3)
    clients: int = 100
    size: int = 450
    cohort: int = 10
    classes: int = 10
    populations: tuple[int, ...] = ()
    most: float = math.inf
    gain: float = 0.0
    rivals: tuple[tuple[str, FedAvg, float], ...] = ()

    @property
    def ways(self) -> tuple[str, ...]:
        """The names of the ways in which the case is played."""
        if self.rivals:
            return (type(self.algorithm).__name__, *(name for name, _, _ in self.rivals))
        more = (TIGHT, CORES) if self.gain else ()
        return tuple(f"{n:,} clients" for n in self.populations) or WAYS + more

    @property
    def ratios(self) -> tuple[tuple[str, str, float], ...]:
        """Which ways are compared: (over, under, the most that is wanted on one CPU core)."""
        if self.rivals:
            return tuple((name, self.ways[0], most) for name, _, most in self.rivals)
        if self.populations:
            return tuple((way, self.ways[0], self.most) for way in self.ways[1:])
        ratios = ("engine", "floor", self.most), ("plain", "engine", math.inf)
        if not self.gain:
            return ratios
        return (*ratios, ("engine", TIGHT, 1.05), (CORES, "engine", 1 / self.gain))

    def plays(self, ways: tuple[str, ...], device: torch.device) -> dict[str, Round]:
        """Return the functions that play a round, by way; ways of one population share its data."""
        if self.populations:
            sizes = dict(zip(self.ways, self.populations, strict=True))
            return {w: one_core(self, federation(self, device, sizes[w])) for w in ways}
        fed = federation(self, device)
        if self.rivals:
            owner = torch.arange(self.clients, device=device).repeat_interleave(self.size)
            fed.train.y = owner % self.classes
            every = {self.ways[0]: self.algorithm, **{name: a for name, a, _ in self.rivals}}
            return {w: one_core(replace(self, algorithm=every[w]), fed) for w in ways}
        make = {"floor": _floor, "engine": one_core, "plain": _plain}
        make |= {TIGHT: _tight, CORES: on_two_cores}
        return {way: make[way](self, fed) for way in ways}


TWENTY = {"batch_size": 20}
FEW = {"clients": 20, "size": 400, "cohort": 20}
MANY = {"clients": 100, "size": 100, "cohort": 20}
OTHERS: tuple[FedAvg, ...] = (
    FedProx(**TWENTY),
    SCAFFOLD(**TWENTY),
    MOON(**TWENTY),
    FedGen(**TWENTY, steps=100),
    FedPer(**TWENTY),
    LGFedAvg(**TWENTY),
    FedRep(**TWENTY, head_epochs=1),
    FedBABU(**TWENTY),
    FedRoD(**TWENTY),
    FedGH(**TWENTY),
    FedCP(**TWENTY, lam=1.0),
    GPFL(**TWENTY),
    DBE(**TWENTY, kappa=1.0),
)
A = Case(
    "FedAvg, LeNet 6/16 on 3x32x32, 100 clients x 450, 10 per round, batch 64, 1 epoch, SGD",
    FedAvg(),
    LeNet(),
    most=1.15,
    gain=1.7,
)
CASES = {
    "A": A,
    "B": Case(
        "FedAvg, LeNet 6/16 on 3x32x32, 5 clients x 100, batch 10, 3 epochs, Adam",
        FedAvg(epochs=3, batch_size=10, client=adam(5e-5)),
        LeNet(),
        size=100,
        cohort=5,
        most=1.15,
        gain=1.4,
    ),
    "C": Case(
        "FedAvg, CNN 32/64/512 on 3x32x32, 20 clients x 500, batch 10, 1 epoch, SGD",
        FedAvg(batch_size=10, client=sgd(0.005)),
        LeNet(channels=(32, 64), hidden=(512,)),
        clients=20,
        size=500,
        cohort=20,
        most=1.15,
        gain=1.7,
    ),
    "D": Case("FedMix, K = 4, on A", FedMix(experts=4, server=adam(1e-3)), LeNet()),
    "E": Case(
        "FedAvg on A, the engine with populations of 100, 1,000 and 100,000 clients",
        FedAvg(),
        LeNet(),
        populations=(100, 1_000, 100_000),
        most=1.10,
    ),
    "F": Case(
        "FedAvg, MLP 784-200-200-10, 100 clients x 100, 20 per round, batch 10, SGD",
        FedAvg(batch_size=10),
        MLP(),
        (28, 28, 1),
        **MANY,
    ),
    "G": Case(
        "FedAvg, MLP 784-64-10, 100 clients x 100, 20 per round, batch 10, SGD",
        FedAvg(batch_size=10),
        MLP((64,)),
        (28, 28, 1),
        **MANY,
    ),
    "H": Case(
        "FedAvg on A, FedMix, K = 4, and FedMix pruned to one expert per client, on one cohort",
        FedAvg(server=adam(1e-3)),
        LeNet(),
        rivals=(
            ("FedMix, K = 4", FedMix(server=adam(1e-3)), 4.4),
            ("one expert each", PrunedFedMix(server=adam(1e-3), eta=1.0), 1.6),
        ),
    ),
    "I": Case(
        "FedAvg, BiLSTM 100-64, texts of 40 words, 100 clients x 100, 20 per round, batch 10, Adam",
        FedAvg(batch_size=10, client=adam(5e-4)),
        BiLSTM(),
        (40,),
        **MANY,
        classes=4,
    ),
    "J": Case(
        "FedAvg, 20 clients x 400, batch 10, and ten epochs of PM-MoE's gates: heads, bases",
        FedAvg(batch_size=10),
        LeNet(),
        **FEW,
        rivals=(
            ("heads, ten epochs", PMMoE(of=FedPer(), epochs=10), 2.0),
            ("bases, ten epochs", PMMoE(of=LGFedAvg(), epochs=10), 10.0),
        ),
    ),
    "M": Case(
        "FedAvg, LeNet 6/16 on 3x32x32, 20 clients x 400, batch 10, and parts that stand still",
        FedAvg(batch_size=10),
        LeNet(),
        **FEW,
        # A forward pass in large batches is a fifth of a step.
        rivals=(
            ("FedRep, one head epoch", FedRep(batch_size=10, head_epochs=1), 1.15),
            ("MOON", MOON(batch_size=10), 1.5),
            ("FedCP", FedCP(batch_size=10, lam=1.0), 1.5),
        ),
    ),
    "K": Case(
        "FedAvg, LeNet 6/16 on 3x32x32, 20 clients x 400, batch 20, and the other methods of 004",
        FedAvg(batch_size=20),
        LeNet(),
        **FEW,
        rivals=tuple((type(a).__name__, a, math.inf) for a in OTHERS),
    ),
    "L": Case(
        "FedAvg, LeNet 6/16 on 3x32x32, 20 clients x 400, batch 20, and methods of 000 to 003",
        FedAvg(**TWENTY),
        LeNet(),
        **FEW,
        rivals=(
            ("personal biases", Personal(**TWENTY), math.inf),
            ("LocalGlobal", LocalGlobal(**TWENTY), math.inf),
            # A forward pass is a third of a step. IFCA asks four models first; a gate is a second
            # network, and the generalist beside it only says something.
            ("IFCA, J = 4", IFCA(**TWENTY, clusters=4), 2.4),
            ("exploring", IFCA(**TWENTY, clusters=4, explore=EpsilonGreedy()), 2.4),
            ("Mixture, one epoch", Mixture(**TWENTY, epochs=1, stop=None), 2.5),
            ("FedSynMoE", FedSynMoE(**TWENTY), math.inf),
        ),
    ),
}


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
    """Return images of a mapped file, as a run has them: copies of the process share it."""
    with TemporaryFile() as file:
        images.tofile(file)
        return torch.from_numpy(np.memmap(file, images.dtype, "c", shape=images.shape))


def one_core(case: Case, fed: Federation) -> Round:
    state, played = _begun(case.algorithm, fed), 0

    def play() -> None:
        nonlocal state, played
        state, _ = play_round(
            case.algorithm, fed, state, round=played, seed=SEED, cohort=case.cohort
        )
        played += 1

    return play


def on_two_cores(case: Case, fed: Federation) -> Round:
    play = one_core(case, fed)

    def both() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        with all_cores(fed.device, case.cohort):
            play()
        torch.set_num_threads(threads)

    return both


def _begun(algorithm: FedAvg, fed: Federation) -> State:
    """Return the first state; with pruning the one in which every class has one expert."""
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

"""What an algorithm is: the mathematics of one client and one mini-batch, and what a server does.

The engine calls these methods and knows no algorithm by name. What most algorithms leave out has a
default here, ``FedAvg`` has all others; another algorithm overrides the ones in which it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from fedlib.federation import Federation, Precomputed
from fedlib.models import Architecture, Batch, FunctionalModel, Params
from fedlib.optim import Optimizer
from fedlib.values import NonNegativeFloat, PositiveInt, short_repr, value

if TYPE_CHECKING:
    from fedlib.engine.train import Cohort

# As many random numbers as a model has features, or takes to drop units.
FEATURES, DROPOUT = "features", "dropout"

# The fields of a state that hold tensors, by the names that they are stored under.
_GROUPS = {
    "shared": "server_params",
    "local": "client_params",
    "optimizer": "server_optimizer",
    "memory": "server_memory",
}
# How an algorithm's memory began in checkpoints that kept it together with the optimiser's.
_REMEMBERED = ("clients/", "clusters/", "settled/", "average.", "server/")


def numbers_of(net: FunctionalModel, count: int | str | Architecture) -> int:
    """Return how many numbers per example a phase of ``net`` asks for by a ``count``."""
    if isinstance(count, Architecture):
        return net.like(count).noise
    named = {FEATURES: net.width, DROPOUT: net.noise}
    return named[count] if isinstance(count, str) else count


@value
class EarlyStop:
    """Stop a client when its validation loss stops improving, and keep its best weights.

    Checked every ``every`` epochs of the client; an improvement counts when larger than
    ``min_delta``; after ``patience`` checks without one the client stands still. ``select`` "last"
    keeps the weights that it has then, as 001's released code does by mistake. A client without
    validation examples is never checked: it trains to the end and keeps its last weights.

    >>> Local(stop=EarlyStop(every=1, patience=3), epochs=50).phases()[0].stop.patience
    3
    """

    every: PositiveInt = 5
    patience: PositiveInt = 10
    min_delta: NonNegativeFloat = 0.0
    keep: Annotated[str, ("best", "last")] = "best"


@value
class Phase:
    """One stretch of local training: which leaves move, on which data, how.

    ``train`` are prefixes of the leaves that move, "" is all of them, among the ``scope`` that is
    "local", "shared" or "both"; ValueError, when a run starts, for one of no leaf. ``loss`` names
    the algorithm's method to minimise. ``random_inputs`` are pairs of a name and how many uniform
    random numbers per example the loss finds under that name in ``batch.random``; "features" is one
    for each of the model's features, "dropout" what the model takes, and a family stands for what a
    network of it takes. ``monitor`` is what early stopping looks at, on validation examples: "nll",
    the negative log-likelihood of the algorithm's predictions, or "loss". ``steps_per_batch`` steps
    are taken on every mini-batch. ``project`` names a method ``(net, params, ctx, batch)`` that
    returns what then takes the place of leaves that move, a projection for one.

    ``server_optimizer`` moves them for ``epochs`` passes over a client's examples in batches of
    ``batch_size``, None for all at once, or instead for ``steps`` batches, as many at every
    client; ``stop`` may end a client's training before.

    >>> FedAvg(epochs=2).phases()
    (Phase(optimizer=Optimizer(), epochs=2),)
    """

    optimizer: Optimizer
    epochs: PositiveInt = 1
    batch_size: PositiveInt | None = 64
    train: tuple[str, ...] = ("",)
    loss: str = "loss"
    stop: EarlyStop | None = None
    random_inputs: tuple[tuple[str, int | str | Architecture], ...] = ()
    monitor: Annotated[str, ("nll", "loss")] = "nll"
    scope: Annotated[str, ("local", "shared", "both")] = "both"
    steps_per_batch: PositiveInt = 1
    project: str = ""
    steps: PositiveInt | None = None

    def trained_names(self, params: Iterable[str], local: Collection[str]) -> tuple[str, ...]:
        """Return which of some leaves move, given which ones are local."""
        sides = {"both": (True, False), "local": (True,), "shared": (False,)}[self.scope]
        return tuple(n for n in params if n.startswith(self.train) and (n in local) in sides)


@dataclass(eq=False)
class State:
    """All that lasts from round to round.

    ``server_params`` leaves live at the server; ``client_params`` leaves ``[population, ...]``
    never leave their client. The server remembers two things: ``server_optimizer`` is what its
    optimiser does, ``server_memory`` what an algorithm does, such as who chose which cluster.
    Memory lasts until it is replaced. ``round`` is the one that is played (or was last) and
    ``seed`` its experiment's: what a server does at random follows from them.

    >>> for moment in simulate(tiny):
    ...     state = moment.state
    >>> [*state.server_params], [*state.client_params]
    (['base.1.weight', 'base.1.bias', 'head.weight', 'head.bias'], [])
    """

    server_params: Params
    client_params: Params
    server_optimizer: Params = field(default_factory=dict)
    server_memory: Params = field(default_factory=dict)
    round: int = 0
    seed: int = 0

    def with_decisions(self, clients: Tensor, decisions: Params) -> State:
        """Return the state in which the server remembers what some clients have decided."""
        made = {n: self.server_memory[n].index_copy(0, clients, t) for n, t in decisions.items()}
        return replace(self, server_memory={**self.server_memory, **made}) if made else self

    def flat(self) -> Params:
        """Return every tensor under one name, for a checkpoint."""
        groups = {g: getattr(self, name) for g, name in _GROUPS.items()}
        return {f"{g}:{n}": t for g, params in groups.items() for n, t in params.items()}

    @classmethod
    def from_flat(cls, flat: Params) -> State:
        """Rebuild what ``indices`` returned, now or when both memories were one group, "server"."""
        groups: dict[str, Params] = {g: {} for g in _GROUPS}
        for name, tensor in flat.items():
            group, _, param = name.partition(":")
            if group == "server":
                group = "memory" if param.startswith(_REMEMBERED) else "optimizer"
            groups[group][param] = tensor
        return cls(groups["shared"], groups["local"], groups["optimizer"], groups["memory"])


class Prediction(NamedTuple):
    """Log-probabilities ``logp [B, classes]`` and the ``gate [B, K]``, K = 0 if no mixture."""

    logp: Tensor
    gate: Tensor

    @classmethod
    def single(cls, logp: Tensor) -> Prediction:
        """Return the prediction of one model, without a gate."""
        return cls(logp, logp[..., :0])


Update = tuple[Params, Params]  # what one client keeps, and what it sends
Loss = TypeVar("Loss", bound=Callable[..., Tensor])


def uses_precomputed(method: str) -> Callable[[Loss], Loss]:
    """Mark a loss that finds in its batch what another ``method`` says of examples.

    ``method(self, net, frozen, ctx, batch)`` returns what the leaves that a phase does not train
    say of examples, ``[B, ...]`` each. It is asked once per example before the phase. A loss
    without this mark is given the examples, whatever the loss that it overrides or calls uses.

    Args:
        method: its name, "precompute" by custom.

    >>> class Mine(FedAvg):
    ...     @uses_precomputed("precompute")
    ...     def loss(self, net, params, ctx, batch):
    ...         return 2 * FedAvg.loss(self, net, params, ctx, batch)
    """

    def mark(loss: Loss) -> Loss:
        loss.uses_precomputed = method  # type: ignore[attr-defined]
        return loss

    return mark


def precompute_of(loss: Any) -> Callable[..., Precomputed] | None:
    """Return the method that precomputes what a loss, a bound method, uses, or None."""
    method = getattr(loss, "uses_precomputed", None)
    return method and getattr(loss.__self__, method)


# What ``client_constants`` and ``new_client_output`` may return besides what is an algorithm's own.
SHAPES, LOG_DENSITY = "shapes", "log_density"


class Algorithm(Protocol):
    """Two facts and twenty hooks; ``ctx`` is ``context`` and ``common`` together, one client's.

    In training ``ctx`` has the "round" and the "seed", too. What has no default here has one in
    ``FedAvg``, as the last words of each line say; the first say who calls it.
    """

    @property
    def communicates(self) -> bool:
        """Whether clients send anything: then what opted out is kept from them, and from it."""

    @property
    def shares_asked(self) -> tuple[str, ...]:
        """Of which conditions the server asks clients for p(condition | s), "label" for one."""
        return ()

    # --- A run -----------------------------------------------------------------------------------

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Start of a run: the state before round 0, after a stage's ``first``. Fresh leaves."""

    # --- A round: the server ---------------------------------------------------------------------

    def choose(self, fed: Federation, state: State, clients: Tensor) -> State:
        """Return the state in which the cohort has chosen. Called once, before a round.

        Each client knows what it is sent and its own examples; ``state.with_decisions`` notes what
        it chose in the server's memory. Default: the state as it is.
        """
        return state

    def download(self, state: State, row: int) -> State:
        """On a wire: what of the state a client downloads for ``client_params``. The shared
        leaves.
        """
        return State(state.server_params, {})

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Per group of clients: their leaves ``[clients, ...]``. Those received, and their own."""

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Per group: constants that differ between clients, ``[clients, ...]``. None.

        Of clients with other numbers under ``SHAPES`` leaves may differ in shape: they share no
        program, and are asked for apart in ``client_params``.
        """
        return {}

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Per group: constants of the round that all clients share, no client axis. None."""
        return {}

    # --- A round: one client and one mini-batch --------------------------------------------------

    def phases(self) -> tuple[Phase, ...]:
        """In every round: the stretches of local training. One over all leaves."""

    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Named by a phase, in every step: a client's loss, a scalar. The cross-entropy."""

    def client_update(
        self, net: FunctionalModel, before: Params, after: Params, ctx: Params
    ) -> Update:
        """After the phases: what a client keeps, and sends. Before - after of what has moved.

        It keeps its local leaves as it has trained them, and what is returned first in their place.
        """

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """At last: what clients keep and send, ``[clients, ...]``. ``update`` as it is.

        Each may look at its own examples in ``cohort.fed``, and draw by round, seed and its id.
        """
        return update

    # --- A round: the server again ---------------------------------------------------------------

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """After the clients: leaves' weights, float64 ``[clients]`` or ``[clients, K]``. p(s)."""

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """After the clients: the next state. A server's step along the weighted messages."""

    def communication_bytes(
        self, state: State, clients: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """After the clients: bytes of downloads and uploads, int64 ``[clients]``. As they are."""

    # --- Predictions -----------------------------------------------------------------------------

    def assign_clusters(
        self, fed: Federation, state: State, *, for_selection: bool = False
    ) -> State:
        """Before predictions: the state in which clients have decided by which model. As it is.

        A state in which they have is returned as it is. Rounds go on from the state before.
        ``for_selection`` is of validation examples, which say what round a run keeps.
        """
        return state

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Per block of examples, once for all clients: what shared leaves say ``[B, ...]``. log p.

        With the examples themselves under "x" where every client's own network reads these.
        """

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Per client and block: its prediction from ``shared_forward``'s result. The global
        model's.
        """

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Per client, of a new client's examples: what is averaged, ``[B, ...]``. Its prediction.

        The average is by p(s), or by p(s|x) where ``LOG_DENSITY`` is log p(x|s) ``[B]`` but for a
        constant.
        """

    def combine_clients(
        self, net: FunctionalModel, shared: Params, code: Params, outputs: Params
    ) -> Tensor:
        """Per block: a new client's log p ``[B, classes]`` from mean outputs. Their logarithm."""

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """After a round: what is logged, scalars, ``[experts]``, ``[item, experts]``. Nothing."""
        return {}


def tensors(algorithm: Algorithm, hook: str, found: Any, clients: int | None = None) -> Params:
    """Return what a hook has returned; an error by its name unless these are tensors by name.

    With ``num_clients`` each has a row for every one of them: with one client alone an axis of
    another length would be taken for its own.
    """
    where = f"{type(algorithm).__name__}.{hook}"
    if not isinstance(found, dict):
        raise TypeError(f"{where} must return tensors by name, a dict, got {short_repr(found)}")
    for name, t in found.items():
        if not isinstance(t, Tensor):
            raise TypeError(
                f"{where}: {name!r} must be a tensor, got {short_repr(t)}: torch.as_tensor"
            )
        if clients is not None and (not t.ndim or len(t) != clients):
            need = f"{name!r} must be [{clients}, ...], a row for each of `clients`"
            raise ValueError(f"{where}: {need}, got {[*t.shape]}")
    return found


def train_view(algorithm: Algorithm, fed: Federation) -> Federation:
    """Return what an algorithm trains on: all, or without what opted out if it federates."""
    return fed.participating_view() if algorithm.communicates else fed.full_view()


def eval_view(algorithm: Algorithm, fed: Federation) -> Federation:
    """Return what clients predict with: all, or what ``Federation.eval_view`` has of it."""
    return fed.eval_view() if algorithm.communicates else fed.full_view()

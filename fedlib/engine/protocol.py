"""The interface between an algorithm and the engine: one client, one mini-batch, and the server.

The engine calls the methods of ``Algorithm`` and knows no algorithm by name. ``Algorithm`` lists
everything that an algorithm may override. Rarely needed hooks have their default here, all others
in ``FedAvg``. An algorithm subclasses ``FedAvg`` and overrides the methods in which it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fedlib.federation import NOTHING, Federation, Precomputed
from fedlib.models import Architecture, Batch, Params
from fedlib.models import FunctionalModel as Net
from fedlib.optim import Optimizer
from fedlib.values import NonNegativeFloat, PositiveInt, former, short_repr, value

# Symbolic counts of random numbers per example; see `numbers_of`.
FEATURES, DROPOUT = "features", "dropout"

# Fields of a state that hold tensors, by the names under which checkpoints store them.
_GROUPS = {
    "shared": "server_params",
    "local": "client_params",
    "optimizer": "server_optimizer",
    "memory": "server_memory",
}
# Prefixes of an algorithm's memory in old checkpoints, which had one group for it and the
# optimiser's state.
_REMEMBERED = ("clients/", "clusters/", "settled/", "average.", "server/")


def numbers_of(net: Net, count: int | str | Architecture) -> int:
    """Return the number of random numbers per example that ``count`` stands for.

    Args:
        net: the network that is trained.
        count: the number itself; ``"features"`` for one per feature of ``net``; ``"dropout"`` for
            as many as the dropout layers of ``net`` need; or an ``Architecture``, for as many as a
            network of that architecture needs.
    """
    if isinstance(count, Architecture):
        return net.like(count).noise
    named = {FEATURES: net.width, DROPOUT: net.noise}
    return named[count] if isinstance(count, str) else count


@value
class EarlyStop:
    """Early stopping of a client's local training on its validation loss.

    A client without validation examples is never stopped early and keeps its last weights.

    Args:
        every: epochs of the client between two checks. Default: 5.
        patience: number of consecutive checks without an improvement after which the client stops.
            Default: 10.
        min_delta: least decrease of the loss that counts as an improvement. Default: 0.
        keep: ``"best"`` returns the weights with the lowest validation loss, ``"last"`` those at
            the time of stopping, as the released code of Listo Zec et al. (2021) does by mistake.
            Default: ``"best"``.

    >>> Local(stop=EarlyStop(every=1, patience=3), epochs=50).phases()[0].stop.patience
    3
    """

    every: PositiveInt = 5
    patience: PositiveInt = 10
    min_delta: NonNegativeFloat = 0.0
    keep: Annotated[str, ("best", "last")] = "best"


@value
class Phase:
    """One phase of local training: which parameters are trained, on what data, and how.

    Args:
        optimizer: the optimiser of the trained parameters.
        epochs: passes over the client's training examples. Default: 1.
        batch_size: examples per mini-batch, None for the full batch. Default: 64.
        train: prefixes of the names of the trained parameters; ``""`` matches all. A prefix that
            matches no parameter raises ValueError when the run starts. Default: all.
        loss: name of the algorithm's method that is minimised. Default: ``"loss"``.
        stop: early stopping, None for none. Default: None.
        random_inputs: pairs (name, count) of random numbers that the loss needs: uniform in [0, 1),
            ``[B, count]``, in ``batch.random[name]``. See ``numbers_of`` for the counts. Default:
            none.
        monitor: the validation loss of early stopping: ``"nll"``, the negative log-likelihood of
            the algorithm's predictions, or ``"loss"``. Default: ``"nll"``.
        scope: ``"local"`` or ``"shared"`` restricts ``train`` to these parameters, ``"both"`` does
            not. Default: ``"both"``.
        steps_per_batch: optimiser steps on each mini-batch. Default: 1.
        project: name of a method ``(net, params, ctx, batch)`` that returns new values of trained
            parameters after each mini-batch, such as a projection; ``""`` for none. Default: none.
        steps: number of mini-batches of every client, in place of ``epochs``; None for ``epochs``.
            Default: None.

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
        """Return the names of the parameters that this phase trains.

        Args:
            params: the names of all parameters of a client.
            local: the names of those that stay with their client.
        """
        sides = {"both": (True, False), "local": (True,), "shared": (False,)}[self.scope]
        return tuple(n for n in params if n.startswith(self.train) and (n in local) in sides)


@dataclass(eq=False)
class State:
    """Everything that lasts from one round to the next.

    Args:
        server_params: the server's parameters by name.
        client_params: local parameters by name, ``[population, ...]``; they never leave their
            client.
        server_optimizer: the state of the server's optimiser, by name.
        server_memory: other tensors that an algorithm keeps at the server, by name, such as the
            cluster of each client. An entry stays until it is replaced.
        round: the index of the current round, or of the last completed one, from 0. In
            ``RoundInfo.round`` and in curves, which count completed rounds, the first round is 1.
        seed: the experiment's seed. Random numbers at the server depend on it and on ``round``.

    >>> from fedrun import simulate, tiny
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
    shared, local = former("shared", "server_params"), former("local", "client_params")
    memory, optimizer = former("memory", "server_memory"), former("optimizer", "server_optimizer")

    def with_decisions(self, clients: Tensor, decisions: Params) -> State:
        """Return the state with ``decisions`` of some clients stored in ``server_memory``.

        Args:
            clients: indices of the clients, int64 ``[clients]``.
            decisions: new entries by name, ``[clients, ...]``.
        """
        made = {n: self.server_memory[n].index_copy(0, clients, t) for n, t in decisions.items()}
        return replace(self, server_memory={**self.server_memory, **made}) if made else self

    def flat(self) -> Params:
        """Return all tensors in one dictionary, as a checkpoint stores them."""
        groups = {g: getattr(self, name) for g, name in _GROUPS.items()}
        return {f"{g}:{n}": t for g, params in groups.items() for n, t in params.items()}

    @classmethod
    def from_flat(cls, flat: Params) -> State:
        """Rebuild a state from the result of ``flat``.

        Checkpoints of old versions, with both kinds of memory in one group ``"server"``, are read
        too.
        """
        groups: dict[str, Params] = {g: {} for g in _GROUPS}
        for name, tensor in flat.items():
            group, _, param = name.partition(":")
            if group == "server":
                group = "memory" if param.startswith(_REMEMBERED) else "optimizer"
            groups[group][param] = tensor
        return cls(groups["shared"], groups["local"], groups["optimizer"], groups["memory"])


class TrainingDiverged(FloatingPointError):
    """A loss or a parameter is not finite.

    Args:
        message: the message of the error.
        clients: ids of the clients concerned.
    """

    def __init__(self, message: str, clients: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.clients = tuple(clients)


@dataclass(eq=False)
class Cohort:
    """Clients that are trained together.

    Args:
        fed: the federation.
        clients: their indices, int64 ``[clients]``.
        params: their parameters by name, ``[clients, ...]``.
        context: constants that differ between clients, ``[clients, ...]``.
        common: constants that all clients share, without a client axis.
        loss: each client's mean training loss in its last phase, ``[clients]``.
        precomputed: quantities of the training examples that the loss of the phase uses.
        precomputed_validation: the same of the validation examples.
    """

    fed: Federation
    clients: Tensor
    params: Params
    context: Params
    common: Params
    loss: Tensor
    precomputed: Precomputed = NOTHING
    precomputed_validation: Precomputed = NOTHING

    def part(self, some: slice) -> Cohort:
        """Return the cohort restricted to a slice of its clients."""
        names = ("clients", "params", "context", "loss", "precomputed", "precomputed_validation")
        own = {n: getattr(self, n) for n in names}
        return replace(self, **tree_map_only(Tensor, lambda t: t[some], own))


class Prediction(NamedTuple):
    """The prediction of one client for B examples.

    Args:
        logp: log p(y|x), ``[B, classes]``.
        gate: weights of the K experts, ``[B, K]``; K = 0 if the model is not a mixture.
    """

    logp: Tensor
    gate: Tensor

    @classmethod
    def single(cls, logp: Tensor) -> Prediction:
        """Return a prediction without a gate."""
        return cls(logp, logp[..., :0])


Update = tuple[Params, Params]  # what a client keeps, and what it sends
Bytes = tuple[Tensor, Tensor]  # sent to, and by, every client of a cohort, int64 ``[clients]`` each
Loss = TypeVar("Loss", bound=Callable[..., Tensor])


def uses_precomputed(method: str) -> Callable[[Loss], Loss]:
    """Declare that a loss reads quantities which another method precomputes once per example.

    Before a phase the engine calls ``method(self, net, frozen, ctx, batch)`` on all training
    examples, with the parameters that the phase does not train. It returns a ``Precomputed`` of
    tensors ``[B, ...]``, which the loss finds in ``batch.precomputed``. The mark is not inherited:
    a loss that overrides a marked one, or calls one, receives the examples themselves unless it is
    marked too.

    Args:
        method: the name of the method, by convention "precompute".

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
    """Return the method that precomputes inputs of a loss, a bound method, or None."""
    method = getattr(loss, "uses_precomputed", None)
    return method and getattr(loss.__self__, method)


# Reserved names in the results of ``client_constants`` and ``new_client_output``, respectively.
SHAPES, LOG_DENSITY = "shapes", "log_density"


class Algorithm(Protocol):
    """The methods that the engine calls in a run, in the order of a round.

    ``ctx`` is one client's ``client_constants`` and the ``round_constants``, in one dictionary;
    during training it also has the "round" and the "seed". Hooks without a body have their
    default in ``FedAvg``.
    """

    @property
    def communicates(self) -> bool:
        """Whether clients send messages. Read by the engine before training and evaluation.

        If true, neither the server nor the training sees examples and clients that opted out. If
        false, a message is a RuntimeError. Default: True.
        """

    @property
    def shares_asked(self) -> tuple[str, ...]:
        """Names of conditions whose distribution p(condition | s) clients report to the server.

        For instance ("label",). Read by deployments over a network, whose server has no data.

        Default: none.
        """
        return ()

    @property
    def local(self) -> tuple[str, ...]:
        """Name prefixes of the parameters that stay with their client, which never sends them.

        Read by ``init`` and ``client_update``. ``"*running_mean"`` matches every layer that has a
        parameter of this name.

        Default: none.
        """

    # --- Start of a run --------------------------------------------------------------------------

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0. Called once, when a run starts.

        Args:
            fed: the federation as the server sees it, without clients that opted out.
            seed: the experiment's seed; it determines the initial parameters.
            first: the final state of an earlier stage, or None.

        Default: the parameters of ``init_params``. A parameter that ``first`` has under the same
        name starts from there.
        """

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return freshly initialised parameters of the server and of one client, by name.

        Called by ``init``. A parameter that starts as a copy of another one, such as a personal
        model, is the same tensor under a second name: then it also starts from the other's value if
        a first stage lacks it.

        Args:
            fed: the federation, whose ``net`` is the task's model.
            seed: the experiment's seed; it determines the initial parameters.

        Default: those of the task's model.
        """

    # --- A round: the server ---------------------------------------------------------------------

    def choose(self, fed: Federation, state: State, clients: Tensor) -> State:
        """Return the state after the clients of a cohort have made choices, such as their cluster.

        Called once at the start of a round. The choice of a client may depend on what the server
        sent and on its own examples; ``state.with_decisions`` stores it.

        Args:
            fed: the federation.
            state: the state before the round.
            clients: indices of the cohort, int64 ``[clients]``.

        Default: ``state`` unchanged.
        """
        return state

    def download(self, state: State, row: int) -> State:
        """Return the part of the state that one client downloads.

        Called by ``communication_bytes``, and by deployments over a network, such as the one with
        Flower in ``examples/flower``.

        Args:
            state: the server's state.
            row: the index of the client.

        Default: all ``server_params``.
        """
        return State(state.server_params, {})

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the parameters with which clients start a round, ``[clients, ...]`` each.

        Called in every round for each group of clients that are trained together.

        Args:
            fed: the federation.
            state: the state after ``choose``.
            clients: indices of the group, int64 ``[clients]``.

        Default: the ``server_params``, repeated, and the clients' own ``client_params``.
        """

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return constants that differ between clients, ``[clients, ...]`` each.

        Called for the whole cohort in training, and for each group of clients in evaluation.
        Clients with different numbers under the name ``SHAPES`` may have parameters of different
        shapes; they are trained in separate groups.

        Args:
            fed: the federation.
            state: the current state.
            clients: indices of the group, int64 ``[clients]``.

        Default: none.
        """
        return {}

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return constants of a round that all clients share, without a client axis.

        Called once per round in training, and for each group of clients in evaluation.

        Args:
            fed: the federation.
            state: the current state.

        Default: none.
        """
        return {}

    # --- A round: one client and one mini-batch --------------------------------------------------

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of local training, in their order. Called in every round.

        Default: one phase that trains all parameters.
        """

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the loss of one client on a mini-batch, a scalar. Called in every step of a phase.

        A phase may name another method with the same arguments (``Phase.loss``).

        Args:
            net: the network as functions of its parameters.
            params: the client's parameters, without a client axis.
            ctx: the client's constants.
            batch: its mini-batch. Padded examples have the weight 0.

        Default: the mean cross-entropy.
        """

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return what a loss looks up in ``batch.precomputed`` instead of computing it every step.

        Called before a phase whose loss is marked with ``uses_precomputed("precompute")``, on all
        training examples of a client.

        Args:
            net: the network as functions of its parameters.
            frozen: the client's parameters that the phase does not train.
            ctx: the client's constants.
            batch: a block of its examples.

        Default: the features, if the base is not trained.
        """

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return what one client keeps and what it sends to the server. Called after the phases.

        Args:
            net: the network as functions of its parameters.
            before: the client's parameters before training.
            after: its parameters after training.
            ctx: the client's constants.

        Returns:
            A pair of dictionaries: new values of local parameters, and the message. Local
            parameters that the first one does not name keep their trained values.

        Default: nothing, and before - after of all trained parameters that are shared.
        """

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return the updates of clients that share a program.

        Called after ``client_update``. May read the clients' examples in ``cohort.fed``, and draw
        random numbers from the round, the seed and a client's id, for instance to add noise.

        Args:
            cohort: the clients, with their parameters before training.
            after: their parameters after training, ``[clients, ...]``.
            update: what ``client_update`` returned, ``[clients, ...]``.

        Default: ``update`` unchanged.
        """
        return update

    # --- A round: the server again ---------------------------------------------------------------

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return the weights of clients in the average of each message.

        Called after local training, by the engine to log the gradient divergence and by
        ``FedAvg.aggregate``. It must not change its arguments.

        Args:
            fed: the federation.
            state: the state after ``choose``.
            clients: indices of the cohort, int64 ``[clients]``.
            messages: what they sent, ``[clients, ...]`` by name.

        Returns:
            Weights by name of a parameter, float64 ``[clients]``, or ``[clients, K]`` for one per
            expert.

        Default: p(s), a client's share of the cohort's training examples.
        """

    def client_weight(self, p: Tensor, messages: Params) -> Params:
        """Return the weights of clients before they are divided by their sum over the cohort.

        Called by ``Private`` at the clients, which do not know each other, and by secure sums. An
        algorithm that overrides ``weights`` must override this method, too, to be wrapped by them.

        Args:
            p: a weight of each client by itself, such as its number of examples, ``[clients]``.
            messages: what they send, ``[clients, ...]`` by name.

        Returns:
            Weights by name of a parameter, ``[clients]`` or ``[clients, K]``.

        Default: ``p`` for every parameter.
        """

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state after the round.

        Called once per round, after ``weights``.

        Args:
            fed: the federation.
            state: the state after ``choose``.
            clients: indices of the cohort, int64 ``[clients]``.
            messages: what they sent, ``[clients, ...]`` by name.

        Default: one step of the server's optimiser along the weighted mean of the messages. A
        parameter without a message does not change, nor does an expert (an index k of a parameter
        with weights ``[clients, K]``) to which every client gives weight 0.
        """

    def server_update(
        self, fed: Federation, state: State, gradients: Params, frozen_rows: Params | None = None
    ) -> State:
        """Return the state after a step of the server along the pseudo-gradients.

        Called by ``aggregate``. A regulariser of the server adds its gradient here.

        Args:
            fed: the federation.
            state: the state after ``choose``.
            gradients: the weighted means of w - w_s, by name of a parameter.
            frozen_rows: bool ``[K]`` by name, True for experts that must not change.

        Default: a step of the optimiser ``server``; running statistics are averaged.
        """

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes that each client downloads and uploads. Called once per round.

        Args:
            state: the state after ``choose``.
            clients: indices of the cohort, int64 ``[clients]``.
            messages: what they sent, ``[clients, ...]`` by name.

        Returns:
            A pair of int64 ``[clients]``: bytes of downloads and of uploads.

        Default: the sizes of what ``download`` returns for the first client and of a message.
        """
        down = self.download(state, int(clients[0])).flat() if len(clients) else {}
        return equal_bytes(clients, down, {n: t[0] for n, t in messages.items() if len(t)})

    # --- Predictions -----------------------------------------------------------------------------

    def assign_clusters(
        self, fed: Federation, state: State, *, for_selection: bool = False
    ) -> State:
        """Return the state in which all clients have chosen the model that they predict with.

        Called before an evaluation. The next round continues from the state before. A state in
        which the choices have been made is returned unchanged.

        Args:
            fed: the federation as clients see it for their predictions.
            state: the current state.
            for_selection: whether the predictions are for validation examples that select a round.

        Default: ``state`` unchanged.
        """
        return state

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the part of the prediction that is the same for all clients, ``[B, ...]`` by name.

        Called once per block of examples. Return the examples as ``{"x": x}`` if every client
        predicts with a network of its own.

        Args:
            net: the network as functions of its parameters.
            shared: the ``server_params``.
            x: normalised examples, ``[B, ...]``.

        Default: log p(y|x) of the global model, or the examples if some of its parameters are
        local.
        """

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of one client. Called for every client and block of examples.

        Args:
            net: the network as functions of its parameters.
            params: the shared and the client's own parameters.
            ctx: the client's constants.
            code: the result of ``shared_forward``.

        Default: the global model's prediction, or that of the client's own parameters.
        """

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return what one client contributes to predictions for a new client, ``[B, ...]`` by name.

        Called for every client and block of examples in the global evaluation. The engine averages
        the contributions with weights p(s), or p(s|x) if ``LOG_DENSITY`` names log p(x|s) ``[B]``
        up to a constant. Arguments as of ``predict``.

        Default: its prediction p(y|x, s).
        """

    def combine_clients(self, net: Net, shared: Params, code: Params, outputs: Params) -> Tensor:
        """Return log p(y|x) ``[B, classes]`` for a new client from the averaged contributions.

        Called for every block of examples in the global evaluation.

        Args:
            net: the network as functions of its parameters.
            shared: the ``server_params``.
            code: the result of ``shared_forward``.
            outputs: averages of the results of ``new_client_output``.

        Default: the logarithm of the mean prediction.
        """

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return quantities to log: scalars, ``[experts]`` or ``[item, experts]``, by name.

        Called before round 0 and after every round. Scalars are always logged, others in evaluated
        rounds only.

        Args:
            fed: the federation that the algorithm is trained on.
            state: the current state, in evaluated rounds after ``assign_clusters``.

        Default: none.
        """
        return {}


def nbytes(params: Params) -> int:
    """Return the total size of the tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in params.values())


def equal_bytes(clients: Tensor, down: Params, up: Params) -> Bytes:
    """Return the bytes of every client if all download ``down`` and upload ``up``."""
    return torch.full((len(clients),), nbytes(down)), torch.full((len(clients),), nbytes(up))


def tensors(algorithm: Algorithm, hook: str, found: Any, clients: int | None = None) -> Params:
    """Return ``found`` if it is a dictionary of tensors; raise an error that names the hook if not.

    Args:
        algorithm: the algorithm whose hook was called.
        hook: the name of the hook.
        found: what it returned.
        clients: if given, the length that the first axis of every tensor must have. This catches a
            missing client axis, which would go unnoticed with a single client.

    Raises:
        TypeError: if it is not a dictionary, or an entry is not a tensor.
        ValueError: if the first axis has another length.
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
            need = f"{name!r} must be [{clients}, ...], one row per client in `clients`"
            raise ValueError(f"{where}: {need}, got {[*t.shape]}")
    return found


def train_view(algorithm: Algorithm, fed: Federation) -> Federation:
    """Return the federation that an algorithm is trained on.

    If clients communicate, it lacks the examples and clients that opted out.
    """
    return fed.participating_view() if algorithm.communicates else fed.full_view()


def eval_view(algorithm: Algorithm, fed: Federation) -> Federation:
    """Return the federation that clients predict with; see ``Federation.eval_view``.

    If clients do not communicate, it has all their examples.
    """
    return fed.eval_view() if algorithm.communicates else fed.full_view()

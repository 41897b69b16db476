"""Training without a server, from scratch or after a federation, and the majority class."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.ifca import FIT, best_fit, pick
from fedlib.algorithms.interface import *
from fedlib.algorithms.splitting import Personal
from fedlib.models.architectures import auto_encoder, evidence, evidence_bound

COUNTS, TOGETHER = "counts", "counts_together"  # label counts of a client, of the federation
VAE, LATENT = "vae.", "latent"


@dataclass(frozen=True)
class NoServer(FedAvg):
    """A base class of methods without communication, which use opted-out examples as well."""

    communicates = False

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return no bytes, as the model of a first stage has been downloaded before."""
        return equal_bytes(clients, {}, {})


@value
class Local(NoServer):
    """Local training of a model per client, from scratch or from a federation's model.

        w_s <- w_s - eta grad CE(w_s)     from fresh weights, or from w_s = w, the global model

    From fresh weights this is the baseline "local". After a first stage
    (``Experiment.first_stage``) every client starts from that stage's global model, or after
    ``IFCA`` from its cluster's: this is the baseline "fine-tuned".

    Train for one round with all clients (``rounds=1, cohort=1.0``): a client that is in no cohort
    is not trained.

    Args:
        stop: early stopping of each client on its own validation loss, or None. Default: None.
        model: the network, None for the task's model. Default: None.
        epochs, batch_size, client, steps: as in ``FedAvg``; ``server`` is not used.

    Reference: a baseline of all papers; Step 2 of Listo Zec et al., 2021, fine-tuning of FedBABU.

    >>> from fedrun import Experiment, run, tiny
    >>> alone = Experiment(tiny.task, Local(epochs=50, client=sgd(0.2)), rounds=1, cohort=6)
    >>> run(alone, progress=False).final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    local = ("",)
    stop: EarlyStop | None = None
    model: Architecture | None = None

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return freshly initialised parameters of one client."""
        return to_device(fed.net.like(self.model).init(torch_seed(seed, "model", 0)), fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the clients' parameters, and the shared ones of a ``first`` stage."""
        if first is None:
            return FedAvg.init(self, fed, seed)
        if FIT in first.server_memory:
            mine = pick(first.server_params, best_fit(first))
            first = State({}, {n: t.clone() for n, t in mine.items()})
        return State(first.server_params, FedAvg.init(self, fed, seed, first).client_params)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over all parameters, with early stopping unless ``stop`` is None."""
        noise = (("dropout", self.model),) if self.model else ()
        return (self.phase(stop=self.stop, random_inputs=noise),)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of one client's mini-batch."""
        return FedAvg.loss(self, net.like(self.model), params, ctx, batch)

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return the features where the network's base is frozen."""
        return FedAvg.precompute(self, net.like(self.model), frozen, ctx, batch)

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the examples, as every client predicts with a model of its own."""
        return {"x": x}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the client's model."""
        return Prediction.single(net.like(self.model).logp(params, code["x"]))


@dataclass(frozen=True)
class LaterStage(NoServer):
    """A base class of later stages, whose model predicts as that of an algorithm ``of`` does.

    Subclasses override ``init`` and ``phases``. The shared parameters of the first stage do not
    change.

    Args:
        of: the algorithm of the first stage (``Experiment.first_stage``). Default: ``FedAvg()``.
    """

    of: FedAvg = FedAvg()  # noqa: RUF009, a value

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the parameters that ``of`` gives its clients, and all local parameters."""
        own = {n: t[clients] for n, t in state.client_params.items()}
        return {**self.of.client_params(fed, state, clients), **own}


for hook in (
    "_optional", "local", "client_constants", "round_constants", "shared_forward", "predict",
    "new_client_output", "combine_clients", "assign_clusters",
):  # fmt: skip
    setattr(LaterStage, hook, wrapped(hook))


@value(kind="Newcomers")
class NewClients(LaterStage):
    """New clients that join after the training of ``of`` and fit its local parameters.

    A new client downloads the shared parameters and sends nothing. It trains the local parameters
    of ``of`` from fresh values, on its own labelled examples, with the objective of ``of``. For
    FedMix

        theta_s <- theta_s + alpha grad mean_i E_q(z|y_i)[ log p(y_i, z|x_i, s) ]         (sec. 2)

    FedAvg has no local parameters, so new clients use its global model. This is a second stage:
    ``Experiment.first_stage`` trained ``of`` on other clients of a partition (``ClientSubset``).
    Train for one round with all new clients (``rounds=1, cohort=1.0``).

    Args:
        of: the algorithm of the first stage. Its clients must train local parameters by minimising
            one loss, without FedEM's E-step, IFCA's choice or Ditto's second model.
            Default: ``FedAvg()``.
        stop: early stopping on a new client's validation examples, or None. Default: None.
        epochs, batch_size, client, steps: as in ``FedAvg``; ``server`` is not used.

    Reference: Reisser et al., Federated mixture of experts, 2021, sec. 2.

    >>> from dataclasses import replace
    >>> from fedlib.partition import ClientSubset
    >>> from fedrun import Experiment, simulate, tiny
    >>> some = lambda *ids: replace(tiny.task, partition=ClientSubset(tiny.task.partition, *ids))
    >>> first = Experiment(some(0, 4), Personal(), rounds=2, cohort=4)
    >>> joined = Experiment(some(4, 6), NewClients(of=Personal()), 1, 2, first_stage=first)
    >>> len([*simulate(joined)][-1].state.client_params["head.bias"])
    2
    """

    loss = wrapped("loss")
    communication_bytes = FedAvg.communication_bytes  # what is shared comes down, nothing goes up
    stop: EarlyStop | None = None

    def check(self) -> None:
        of = self.of
        while isinstance(inner := getattr(of, "of", None), FedAvg) and of.communicates:
            of = inner  # Private wraps the algorithm
        kind, phases = type(of), of.phases()
        one = of.client, "loss", 1, ""
        usual = all((p.optimizer, p.loss, p.steps_per_batch, p.project) == one for p in phases)
        own = () if isinstance(of, Personal) else of.local
        trained = all(any(n.startswith(p.train) for p in phases) for n in own)
        if not (of.communicates and usual and trained and kind.choose is Algorithm.choose):
            what = "by minimising one loss over it"
            raise ValueError(f"NewClients fit what is personal {what}: {kind.__name__} needs more")
        if of._needs_plain_sgd and self.client != of.client:
            rate = f"give client={of.client} to NewClients, too"
            raise ValueError(f"{kind.__name__} depends on its clients' learning rate: {rate}")

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the shared parameters of the first stage, and fresh local ones for each client.

        Raises:
            ValueError: without a first stage that has shared parameters, those of ``of``.
        """
        if first is None or not first.server_params:
            what = "a federation that shares a model"
            raise ValueError(f"NewClients join {what}: give its experiment as `first_stage`")
        fresh = self.of.init(fed, seed)
        _require_params(fresh, first, f"NewClients.of is {self.of}")
        return State(first.server_params, fresh.client_params)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the local parameters, with the random inputs of ``of``."""
        noise = {name: count for phase in self.of.phases() for name, count in phase.random_inputs}
        return (self.phase(stop=self.stop, random_inputs=tuple(noise.items()), scope="local"),)

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return what a client of ``of`` keeps, without the message that it would send."""
        return self.of.postprocess(cohort, after, update)[0], update[1]


def _require_params(fresh: State, first: State, what: str) -> None:
    """Raise ValueError unless the first stage has the server's parameters of a fresh state."""
    if lacking := fresh.server_params.keys() - first.server_params.keys():
        raise ValueError(f"{what}, and first_stage has no {min(lacking)}: give its algorithm as of")


@value(kind="CommonestLabel")
class MajorityClass(NoServer):
    """The majority-class baseline: each client predicts its most frequent training label.

        p(y|x, s) = (n_sy + 1) / (N_s + C)     n_sy examples of label y, C labels

    The accuracy is the share of the majority class (of classes with equal counts, the smallest
    label), and nll is that of the smoothed label distribution, which is finite for every label. A
    new client gets the majority class of all participating examples; opted-out examples count for
    their own client only. Nothing is trained or sent; use one round.

    Args:
        other arguments: as in ``FedAvg``; none has an effect.

    Reference: none. The accuracy of a trained model can be below this baseline.

    >>> from fedrun import Experiment, majority_accuracy, run, tiny
    >>> result = run(Experiment(tiny.task, MajorityClass(), rounds=1, cohort=6), progress=False)
    >>> result.final("test_accuracy") == majority_accuracy(tiny)
    True
    """

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the label counts: the federation's, and as local parameters each client's."""
        together = fed.participating_view().train.counts(fed.classes).sum(0)
        return State({TOGETHER: together}, {COUNTS: fed.train.counts(fed.classes)})

    local = (COUNTS,)

    def phases(self) -> tuple[Phase, ...]:
        """Return no phases, as nothing is trained."""
        return ()

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return one zero per example, as predictions do not depend on the inputs."""
        return {"none": x.new_zeros(x.shape[0], 1)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the logarithms of the client's smoothed label distribution."""
        return Prediction.single(log_shares(params[COUNTS], code["none"].shape[0]))

    def combine_clients(self, net: Net, shared: Params, code: Params, outputs: Params) -> Tensor:
        """Return those of the federation, in which each example counts the same."""
        return log_shares(shared[TOGETHER], code["none"].shape[0])


def log_shares(counts: Tensor, examples: int) -> Tensor:
    """Return log (n_y + 1) / (n + classes), ``[examples, classes]``, from counts ``[classes]``.

    >>> log_shares(torch.tensor([1, 0, 3]), 1).exp()  # 2/7, 1/7, 4/7
    tensor([[0.2857, 0.1429, 0.5714]])
    """
    shares = (counts + 1) / (counts.sum() + len(counts))
    return shares.log().expand(examples, -1)


@value(kind="Densities")
class VAEDensity(LaterStage):
    """A variational auto-encoder per client, whose density weights clients for new clients.

    Predictions for a new client's example x weight the clients s by p(s|x) in place of p(s).

        p(z|x) = sum_s p_theta_s(z|x, s) p(s|x),     p(s|x) prop. to p(x|s) p(s)       (eq. 18)
        log p(x|s) = log mean_l p(x|u_l) p(u_l) / r(u_l|x)       over L = ``samples`` draws u_l

    This is a second stage: ``Experiment.first_stage`` is the experiment that trained ``of``. Only
    the auto-encoders are trained (r encodes, p decodes); participating clients predict as with
    ``of``. The examples must be images in bytes. Train for one round with all clients
    (``rounds=1, cohort=1.0``).

    Args:
        of: the algorithm of the first stage. Default: ``FedAvg()``.
        epochs: most epochs of an auto-encoder. Default: 100.
        batch_size: examples per mini-batch. Default: 10.
        client: optimiser of the auto-encoders. Default: Adam with rate 0.001.
        hidden: widths of the encoder's hidden layers; the decoder reverses them.
            Default: ``(512, 256)``.
        latent: number of latent variables u. Default: 32.
        samples: number L of draws in an estimate of log p(x|s). Default: 1.
        stop: early stopping on the bound of a client's validation examples. Default: every epoch,
            patience 3.
        steps: as in ``FedAvg``; ``server`` is not used.

    Reference: Reisser et al., Federated mixture of experts, 2021, App. F. Deviation: all
    clients and examples share the noise of the estimates. Without this stage new clients use p(s).

    >>> from fedrun import Experiment, run, tiny
    >>> first = Experiment(tiny.task, FedAvg(), rounds=2, cohort=6)
    >>> density = VAEDensity(hidden=(16,), latent=2, epochs=2)
    >>> result = run(Experiment(tiny.task, density, 1, 1.0, first_stage=first), progress=False)
    >>> result.model().state_dict()["head.bias"].shape
    torch.Size([10])
    """

    communicates = True  # the auto-encoders are sent
    epochs: int = 100
    batch_size: int | None = 10
    client: Optimizer = adam(1e-3)
    hidden: tuple[PositiveInt, ...] = (512, 256)
    latent: PositiveInt = 32
    samples: PositiveInt = 1
    stop: EarlyStop = EarlyStop(every=1, patience=3)

    @property
    def local(self) -> tuple[str, ...]:
        """The auto-encoders, and the local parameters of ``of``."""
        return (VAE, *self.of.local)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the first stage's parameters and a fresh auto-encoder for every client.

        Raises:
            ValueError: without a first stage of ``of``, or if the examples are not images in bytes.
        """
        if first is None:
            what = "give its experiment as `first_stage`"
            raise ValueError(f"VAEDensity follows a federation: {what}")
        if fed.train.x.dtype != torch.uint8:
            raise ValueError(f"VAEDensity needs images in bytes, got {str(fed.train.x.dtype)[6:]}")
        _require_params(self.of.init(fed, seed), first, f"VAEDensity.of is {self.of}")
        inputs, draw = math.prod(fed.net.shape), torch_seed(seed, "model", 0)
        fresh = add_prefix(auto_encoder(inputs, self.hidden, self.latent, draw), VAE)
        mine = {**own_params(first, fed), **broadcast_to_clients(fresh, fed)}
        return replace(first, client_params=mine)

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the constants of ``of``, those that undo the normalisation, and fixed noise."""
        draw = torch.Generator().manual_seed(0)
        noise = torch.randn(self.samples, self.latent, generator=draw).to(fed.device)
        look = {"vae:scale": fed.train.scale, "vae:shift": fed.train.shift}
        return {**self.of.round_constants(fed, state), **look, "vae:noise": noise}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the auto-encoders, with early stopping on their own loss."""
        noise = ((LATENT, self.latent),)
        return (self.phase(train=(VAE,), stop=self.stop, random_inputs=noise, monitor="loss"),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the negative lower bound of log p(x|s) in nats.

        Validation has no random inputs, and evaluates the bound at the posterior mean.
        """
        pixels = _pixels(batch.x, ctx)
        if LATENT in batch.random:
            normal = torch.special.ndtri(batch.random[LATENT].clamp(1e-7, 1 - 1e-7))
        else:
            normal = pixels.new_zeros(self.latent)
        return -mean(evidence_bound(select_prefix(params, VAE), pixels, normal), batch.weight)

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return no bytes down, and every client's auto-encoder up."""
        own = select_prefix(state.client_params, VAE)
        return equal_bytes(clients, {}, {n: t[0] for n, t in own.items()})

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the result of ``of``, and the examples themselves."""
        return {**self.of.shared_forward(net, shared, x), "vae:x": x}

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the output of ``of``, and the estimate of log p(x|s), ``[B]``."""
        pixels = _pixels(code["vae:x"], ctx)
        log_p = evidence(select_prefix(params, VAE), pixels, ctx["vae:noise"])
        return {**self.of.new_client_output(net, params, ctx, code), LOG_DENSITY: log_p}


def _pixels(x: Tensor, ctx: Params) -> Tensor:
    """Return normalised images as flat pixels in [0, 1], ``[B, pixels]``, channels last."""
    flat = x.movedim(-3, -1).flatten(1)
    return ((flat - ctx["vae:shift"]) / (255 * ctx["vae:scale"])).clamp(0, 1)

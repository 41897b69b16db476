"""PM-MoE: a gate per client mixes what all clients' private parts say (004)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedlib.algorithms.expert_diagnostics import error_spread, expert_diagnostics, on_tests
from fedlib.algorithms.fedavg import mean_cross_entropy, one_hot, placed, rows_of
from fedlib.algorithms.personal import FedPer
from fedlib.algorithms.splitting import Split
from fedlib.algorithms.stages import SecondStage
from fedlib.engine import EarlyStop, Phase, Prediction, State, tabulate
from fedlib.federation import Federation, Known
from fedlib.models import GateNet, Net, Params, each, named, part
from fedlib.optim import Optimizer, sgd
from fedlib.partition.chance import whole_part
from fedlib.randomness import torch_seed
from fedlib.values import value

POOL, GATE, KEPT, PLACE = "pool.", "gate.", "kept.experts", "place"
REST, SAID = "moe:rest", "moe:said"


@value
class PMMoE(SecondStage):
    """A mixture of the private parts of a finished federation, ``of`` a method that splits models.

    Every client gets the others' private parts, heads, bases or vectors, and trains a ``gate`` over
    these M experts, which stay as they are, as does all else (004, eq. 5 to 8 and 13). The gate
    sees what the private part is given: features below a head or a vector, the raw image below a
    base, for text the client's own features (A33). Its ``top`` largest weights count (0:
    all), divided by their sum if they are to be ``renormalised`` (A32).

    ``denoise`` leaves out that share of the experts, per client those with the least energy score
    T log sum_d e^(v_d / T), where v is the elementwise product of an expert's and the own expert's
    outputs at unit length, averaged over the client's training examples (eq. 10 to 12, A31). The
    own expert always stays. T is ``temperature``.

    ``favour`` adds to the initial bias of the own expert, so that the mixture begins near the
    client's own prediction: an extension (A42). After FedBABU's ``Local``
    stage ``of`` says which base is used: ``FedBABU()`` the server's, ``Personal(local=("base.",
    "head."))`` the client's own, as released (A43). Play one round with every client (cohort 1.0).
    """

    drops = False  # the noise in its batches is the gate's
    of: Split = FedPer()
    epochs: int = 50
    batch_size: int | None = 10
    client: Optimizer = sgd(0.1)
    gate: GateNet = GateNet()
    top: int = 0
    renormalised: bool = False
    denoise: float = 0.0
    temperature: float = 1.0
    favour: float = 0.0
    stop: EarlyStop | None = None

    def check(self) -> None:
        SecondStage.check(self)
        if self.top < 0:
            raise ValueError(f"PMMoE.top (k) must be >= 1, or 0 for all, got {self.top}")
        if not 0 <= self.denoise < 1 or self.temperature <= 0:
            raise ValueError(
                "PMMoE needs denoise (gamma) in [0, 1) and temperature (T) > 0, got "
                f"{self.denoise} and {self.temperature}"
            )

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is a client's: its gate, and what ``of`` keeps there."""
        if name.startswith(POOL):
            return False
        return name.startswith((GATE, KEPT)) or self.of.is_local(name)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the federation's leaves, the pool of private parts, and fresh gates.

        ValueError without a first stage that has all leaves of ``of``, and where somebody opts out.
        """
        if fed.at_home() is not fed.taking_part():
            raise ValueError("PMMoE hands every private part to everybody: nobody can opt out")
        needed, of = self.of.leaves(fed, seed), type(self.of).__name__
        there = first or State({}, {})
        sides = {n: there.local if self.of.is_local(n) else there.shared for n in needed}
        if lacking := [n for n, side in sides.items() if n not in side]:
            raise ValueError(
                f"PMMoE mixes the private parts of a finished {of}: give its experiment as `after` "
                f"(it lacks {', '.join(lacking)})"
            )
        mine = {n: there.local[n].clone() for n in needed if self.of.is_local(n)}
        shared = {n: t for n, t in there.shared.items() if not self.of.is_local(n)}
        pool = {POOL + n: t.clone() for n, t in part(mine, self.of.experts).items()}
        experts = len(next(iter(pool.values())))
        shared |= pool
        mine |= rows_of(self._gate(fed, experts, seed), fed)
        mine[f"{GATE}head.bias"] += self.favour * torch.eye(experts, device=fed.device)
        mine[KEPT] = torch.ones(fed.clients, experts, device=fed.device)
        state = State(shared, mine)
        if self.denoise:
            mine[KEPT] = self.clean(self.energies(fed, state))
        return state

    def _gate(self, fed: Federation, experts: int, seed: int) -> Params:
        """Return the leaves of a fresh gate."""
        net = fed.net.like(self.gate, experts, self._sees(fed.net))
        draw = torch_seed(seed, "model", 1)
        return placed(named(self.gate.begun(net.init(draw), draw), GATE), fed)

    def _sees(self, net: Net) -> tuple[int, ...]:
        """Return the shape of what the gate sees: an image, or features."""
        return net.shape if self._lends_bases and len(net.shape) == 3 else (net.width,)

    @property
    def _lends_bases(self) -> bool:
        return self.of.experts == "base."

    def energies(self, fed: Federation, state: State) -> Tensor:
        """Return every expert's energy score for every client, ``[clients, M]``.

        The mean over its training examples; NaN for a client without any.
        """
        each_example = tabulate(fed, self, state, fed.train, self._energy)
        sizes = torch.as_tensor(fed.train.sizes, device=fed.device)
        total = torch.where(fed.train.real.unsqueeze(-1), each_example, 0).sum(1)
        return total / torch.where(sizes > 0, sizes, torch.nan).unsqueeze(1)

    def _energy(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the experts' energy scores, ``[B, M]``."""
        said = normalize(self._outputs(net, params, ctx, code), dim=-1)
        own = one_hot(ctx[PLACE], said.shape[-2]).to(said.dtype)
        mine = (said * own.unsqueeze(-1)).sum(-2, keepdim=True)
        return self.temperature * (said * mine / self.temperature).logsumexp(-1)

    def clean(self, energies: Tensor) -> Tensor:
        """Return 1 for experts that stay and 0 for those left out, floor(gamma M) of M.

        ``[clients, M]``, from ``energies`` of the same shape; a client's own is in its own place.
        """
        experts = energies.shape[-1]
        own = torch.eye(experts, device=energies.device).bool()
        ranks = torch.where(own, torch.inf, energies.nan_to_num(0.0)).argsort(-1).argsort(-1)
        gone = min(whole_part(self.denoise * experts), experts - 1)
        return (ranks >= gone).to(energies.dtype)

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return what ``of`` tells its clients, and which expert is a client's own."""
        return {**self.of.client_context(fed, state, rows), PLACE: rows}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the gate."""
        return (
            Phase(
                self.client,
                self.epochs,
                self.batch_size,
                train=(GATE,),
                stop=self.stop,
                watch="loss",
                side="local",
                noise=(("dropout", self.gate.noise),),
            ),
        )

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Known:
        """Return what experts say of examples, and what the gate sees of them if not the image."""
        code = self.encode(net, frozen, batch["x"])
        rest, said, entry = self._consulted(net, frozen, ctx, code)
        told = {REST: rest, SAID: said}
        return Known(told, {}) if entry.ndim > 2 else Known({}, {**told, "x": entry})

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy of the mixture on one client's mini-batch."""
        if SAID in batch:
            rest, said, entry = batch[REST], batch[SAID], batch["x"]
        else:
            code = self.encode(net, params, batch["x"])
            rest, said, entry = self._consulted(net, params, ctx, code)
        gate = self.opening(net, params, entry, batch.get("noise"))
        logits = rest + (gate.unsqueeze(-1) * said).sum(-2)
        return mean_cross_entropy(logits, batch["y"], batch["weight"])

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return what ``of`` has, and where bases are lent, their features ``[B, M, D]``."""
        code = self.of.encode(net, shared, x)
        if not self._lends_bases:
            return code
        bases = named(part(shared, POOL), "base.")
        return {**code, "out": torch.stack(each(net.features, bases, x), 1)}

    def _outputs(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return what every expert makes of its entry, ``[B, M, ...]``."""
        if "out" in code:
            return code["out"]
        entry = self.of.opened(net, params, ctx, code).entry
        pool = named(part(params, POOL), self.of.experts)
        ask = each(lambda w: self.of.private(net, {**params, **w}, entry), pool)
        return torch.stack(ask, 1)

    def _consulted(
        self, net: Net, params: Params, ctx: Params, code: Params
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rest ``[B, C]``, experts' logits ``[B, M, C]`` and what the gate sees."""
        entry, rest = self.of.opened(net, params, ctx, code)
        said = self.of.joined(net, params, self._outputs(net, params, ctx, code))
        if not entry.is_floating_point():
            entry = self.of.private(net, params, entry)
        return rest, said, entry

    def opening(self, net: Net, params: Params, entry: Tensor, noise: Tensor | None) -> Tensor:
        """Return the weights of the experts, ``[B, M]``."""
        own = part(params, GATE)
        experts = own["head.bias"].shape[-1]
        a = net.like(self.gate, experts, self._sees(net))(own, entry, noise)
        a = torch.where(params[KEPT] > 0, a, -torch.inf).softmax(-1)
        if 0 < self.top < experts:
            least = a.topk(self.top, -1).values[..., -1:]
            a = torch.where(a >= least, a, 0)
            a = a / a.sum(-1, keepdim=True) if self.renormalised else a
        return a

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the mixture's prediction and the gate, ``[B, M]``."""
        rest, said, entry = self._consulted(net, params, ctx, code)
        gate = self.opening(net, params, entry, None)
        return Prediction((rest + (gate.unsqueeze(-1) * said).sum(-2)).log_softmax(-1), gate)

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's logits, as its prediction's logarithm."""
        return {"logits": self.predict(net, params, ctx, code).logp}

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """Return the bytes: the private part goes up, everybody's and the global model go down.

        As in 004, algorithm 1, lines 1 and 2: what ``of`` shares is sent once more.
        """
        pool = part(state.shared, POOL)
        experts = state.local[KEPT].shape[1]
        all_of_them = sum(t.numel() * t.element_size() for t in pool.values())
        shared = [t for n, t in state.shared.items() if not n.startswith(POOL)]
        model = sum(t.numel() * t.element_size() for t in shared)
        down = torch.full((len(rows),), all_of_them + model)
        return down, torch.full((len(rows),), all_of_them // experts)

    def observe(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return what experts are worth to clients, whom gates trust, and how energies tell.

        ``[clients, M]``: "expert_accuracy" and "gate_share" on the client's tests,
        "expert_energy" and "kept_experts"; ``[clients, 1]``: "gate_entropy" (nats) and
        "error_spread", the variance of how many experts are right over what it would be if they
        erred independently (Theorem 3.1 assumes 1; M experts that always agree have M).
        """
        tests = on_tests(fed, self, state, self._asked)
        seen = {
            **expert_diagnostics(tests),
            "error_spread": error_spread(tests),
            "expert_energy": self.energies(fed, state),
            "kept_experts": state.local[KEPT],
        }
        return {name: values[fed.by_id] for name, values in seen.items()}

    def _asked(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the label that each expert alone would give, then the gate, ``[B, 2 M]``."""
        rest, said, entry = self._consulted(net, params, ctx, code)
        labels = (rest.unsqueeze(-2) + said).argmax(-1)
        gate = self.opening(net, params, entry, None)
        return torch.cat([labels.to(gate.dtype), gate], -1)

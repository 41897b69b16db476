"""A federation over a real wire: an experiment as Flower's ServerApp and ClientApp.

The server holds what is shared, its optimiser's state and its memory, every client its own examples
and its rows of what is local. In a round go down what ``Algorithm.handed`` says and up a client's
message, and before the first one a client tells how many examples it has. An algorithm is the same
object as in the simulation, and ends with the same bits (docs/FLOWER.md). Needs ``fedlib[flower]``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedlib import paths
from fedlib.engine import Algorithm, State, clients_round, draw, hand_out, select
from fedlib.engine.protocol import playing
from fedlib.federation import Federation, Table
from fedlib.models import Net, Params
from fedlib.runs import Experiment
from fedlib.runs.atomic import load_tensors, save_tensors, write
from fedlib.values import from_code

NODE = "client"  # in a node's configuration: whose machine it is
SERVER, LEDGER = "server.safetensors", "wire.json"
RAW = "fedlib.raw"  # how tensors are packed: their bytes, without a header
PACE = 0.5  # seconds between two looks who has joined

Mine = Callable[[Experiment, Mapping[str, Any]], Federation]


def packed(leaves: Params) -> ArrayRecord:
    """Return tensors as Flower's arrays, whose ``data`` are the tensors' bytes and nothing else."""
    record = {}
    for name, t in leaves.items():
        t = t.detach().cpu().contiguous()
        kind, raw = str(t.dtype).removeprefix("torch."), t.flatten().view(torch.uint8)
        record[name] = Array(kind, tuple(t.shape), RAW, raw.numpy().tobytes())
    return ArrayRecord(record)


def unpacked(record: ArrayRecord, device: str | torch.device = "cpu") -> Params:
    """Return the tensors that ``packed`` was given, bit by bit."""
    leaves = {}
    for name, array in record.items():
        raw = torch.from_numpy(np.frombuffer(array.data, dtype=np.uint8).copy())
        leaves[name] = raw.view(getattr(torch, array.dtype)).view(array.shape).to(device)
    return leaves


def payload(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message."""
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def asked(context: Context) -> Experiment:
    """Return the experiment of a run's configuration, the code that it prints as.

    ValueError for what a wire has no use for: stages after others, and clients that send nothing.
    """
    experiment: Experiment = from_code(str(context.run_config["experiment"]))
    if experiment.after or not experiment.algorithm.federates:
        raise ValueError(f"nothing travels in {experiment}: only a federation from its start does")
    return experiment


def kept(experiment: Experiment, context: Context) -> Path:
    """Return where this machine keeps what is its own of a run."""
    return paths.runs() / ".flower" / f"{experiment.key}-{context.run_id}"


def _save(path: Path, leaves: Params, completed: int) -> None:
    said = {"completed": str(completed)}
    write(path, lambda file: save_tensors(file, leaves, said), "what a round has left")


# --- a client ----------------------------------------------------------------------------------


def of_task(experiment: Experiment, node: Mapping[str, Any]) -> Federation:
    """Return one client of the experiment's task: that of the row ``client`` of a node."""
    whole = experiment.task.build(experiment.seed, str(node.get("device", "cpu")))
    return whole.permuted(np.array([int(node[NODE])]))


def client_app(mine: Mine = of_task) -> ClientApp:
    """Return the app of a client, whose federation of one ``mine`` returns.

    ``mine`` is given the experiment and the node's configuration; the ``ids`` of what it returns
    name the client. What has opted out is in no index of what the app looks at.
    """
    app = ClientApp()

    def begun(context: Context) -> tuple[Experiment, Federation]:
        e = asked(context)
        return e, playing(e.algorithm, mine(e, context.node_config))

    @app.query("join")
    def join(message: Message, context: Context) -> Message:
        _, fed = begun(context)
        told: dict[str, Any] = {NODE: int(fed.ids[0]), "examples": int(fed.train.sizes[0])}
        if told["examples"]:
            told |= {"shape": [*fed.net.shape], "classes": fed.classes}
        return Message(RecordDict({"told": ConfigRecord(told)}), reply_to=message)

    @app.query("shares")
    def shares(message: Message, context: Context) -> Message:
        _, fed = begun(context)
        share = fed.shares(str(message.content["asked"]["condition"]))
        return Message(RecordDict({"told": packed({"shares": share})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        e, fed = begun(context)
        if not fed.train.sizes[0]:
            raise RuntimeError(f"client {fed.ids[0]} has opted out: it does not train")
        file = kept(e, context) / f"client-{fed.ids[0]}.safetensors"
        sent = _trained(e, fed, message.content, file)
        return Message(RecordDict({"message": packed(sent)}), reply_to=message)

    return app


def _trained(e: Experiment, fed: Federation, content: RecordDict, file: Path) -> Params:
    """Return a client's message of a round; its local leaves stay in a file of its own."""
    algorithm, me = e.algorithm, np.zeros(1, dtype=np.int64)
    where, t = torch.as_tensor(me, device=fed.device), int(content["round"]["t"])
    got = {name: unpacked(record, fed.device) for name, record in content.array_records.items()}
    first = algorithm.init(fed, e.seed)
    own = load_tensors(file)[0] if file.exists() else first.local
    own = {n: leaf.to(fed.device) for n, leaf in own.items()}
    # In the order of the simulation: a sum over leaves has its bits.
    shared = {n: got["shared"][n] for n in first.shared if n in got["shared"]}
    state = State(shared, own, {}, {**first.memory, **got["memory"]}, t, e.seed)
    decided = algorithm.decide(fed, state, where, round=t, seed=e.seed)
    handed = hand_out(algorithm, fed, state.told(where, decided), where)
    handed = replace(handed, common={**handed.common, **got["common"]})
    plans = draw(algorithm, fed, me, round=t, seed=e.seed)
    sent = clients_round(algorithm, handed, plans, own, chunk=1)
    if own:
        _save(file, sent.kept, t + 1)
    return {**sent.messages, **decided}


# --- the server --------------------------------------------------------------------------------


@dataclass(eq=False)
class Clients:
    """The clients at the other end of a grid, ``nodes`` in the order of the federation's rows."""

    grid: Grid
    nodes: Sequence[int]

    def ask(self, what: str, contents: Mapping[int, RecordDict]) -> list[RecordDict]:
        """Return the answers to questions, each to a row; RuntimeError if one does not come."""
        questions = [
            Message(content, dst_node_id=self.nodes[row], message_type=what)
            for row, content in contents.items()
        ]
        replies = {m.metadata.src_node_id: m for m in self.grid.send_and_receive(questions)}
        for node in (self.nodes[row] for row in contents):
            if node not in replies or replies[node].has_error():
                why = replies[node].error.reason if node in replies else "no answer"
                raise RuntimeError(f"node {node}, {what}: {why}")
        return [replies[self.nodes[row]].content for row in contents]

    def shares(self, condition: str) -> Tensor:
        """Return p(condition | s) of every client, which each is asked for."""
        question = RecordDict({"asked": ConfigRecord({"condition": condition})})
        answers = self.ask("query.shares", {r: question for r in range(len(self.nodes))})
        return torch.cat([unpacked(a.array_records["told"])["shares"] for a in answers])


@dataclass(eq=False)
class Absent(Table):
    """A split of which the server knows the sizes."""

    def _missing(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("the examples are at the clients, and the server asks for some")

    batches, real = _missing, property(_missing)


@dataclass(eq=False)
class Told(Federation):
    """A federation as its server knows it: who there is, and of how many examples.

    What else an algorithm's server asks about, p(y|s), clients are asked for once, with ``ask``.
    """

    ask: Callable[[str], Tensor] = field(kw_only=True)

    def shares(self, condition: str) -> Tensor:
        """Return p(condition | s), float32 ``[clients, values]``, as the clients tell."""
        if condition not in self._shares:
            self._shares[condition] = self.ask(condition)
        return self._shares[condition]


def joined(e: Experiment, grid: Grid, clients: int) -> tuple[Clients, Told]:
    """Wait for the nodes of so many clients; return those that take part, and what they tell."""
    while len(nodes := [*grid.get_node_ids()]) < clients:
        time.sleep(PACE)
    answers = Clients(grid, nodes).ask("query.join", {r: RecordDict() for r in range(len(nodes))})
    told = {int(a["told"][NODE]): (node, a["told"]) for node, a in zip(nodes, answers, strict=True)}
    there = {i: (node, say) for i, (node, say) in sorted(told.items()) if say["examples"]}
    forms = {(tuple(say["shape"]), say["classes"]) for _, say in there.values()}
    if len(told) < len(nodes) or len(forms) != 1:
        raise RuntimeError(f"{len(nodes)} nodes, clients {[*told]}, examples of forms {[*forms]}")
    ((shape, classes),), found = forms, Clients(grid, [node for node, _ in there.values()])
    none, sizes = torch.zeros(0, dtype=torch.int64), [say["examples"] for _, say in there.values()]
    index = torch.full((len(there), 1), -1)
    train = Absent(none, none, index, np.array(sizes), none, none)
    other = replace(train, sizes=np.zeros_like(sizes))
    net, kinds = Net(e.task.model, shape, classes), e.task.partition.kinds()
    ids, where = np.array([*there]), torch.device("cpu")
    tables = train, other, other
    return found, Told(net, classes, where, *tables, ids, kinds=kinds, ask=found.shares)


def play(
    e: Experiment, clients: Clients, fed: Federation, state: State, t: int
) -> tuple[State, dict[str, Any]]:
    """Play round ``t``; return the next state, and the bytes that were to go and that went."""
    algorithm, rows = e.algorithm, select(fed, e.cohort, e.seed, t)
    state = replace(state, round=t, seed=e.seed)
    where = torch.as_tensor(rows)
    if type(algorithm).decide is Algorithm.decide:  # else clients decide, and tell in their message
        state = algorithm.before_round(fed, state, where, round=t, seed=e.seed)
    common = algorithm.broadcast(fed, state)
    # What a client can make of what it is sent is not sent beside it.
    common = {n: c for n, c in common.items() if not any(c is s for s in state.shared.values())}
    down = {}
    for row in rows.tolist():
        handed = algorithm.handed(state, row)
        parts = {"shared": handed.shared, "memory": handed.memory, "common": common}
        down[row] = RecordDict({name: packed(leaves) for name, leaves in parts.items()})
        down[row]["round"] = ConfigRecord({"t": t})
    up = clients.ask("train", down)
    heard = [unpacked(reply.array_records["message"]) for reply in up]
    messages = {n: torch.cat([each[n] for each in heard]) for n in heard[0]}
    state = state.told(where, {n: messages.pop(n) for n in [*messages] if n in state.memory})
    with torch.no_grad():
        ledger = algorithm.communication_bytes(state, where, messages)
        state = algorithm.aggregate(fed, state, where, messages)
    return state, {
        "clients": fed.ids[rows].tolist(),
        "ledger": [sent.tolist() for sent in ledger],
        "wire": [[*map(payload, sent)] for sent in (down.values(), up)],
    }


server = ServerApp()
client = client_app()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Play an experiment's rounds with ``clients`` clients, and keep the server's final state."""
    e = asked(context)
    home = kept(e, context)
    clients, fed = joined(e, grid, int(context.run_config["clients"]))
    state = replace(e.algorithm.init(fed, e.seed), local={})
    rounds = []
    for t in range(e.rounds):
        state, sent = play(e, clients, fed, state, t)
        rounds.append(sent)
        _save(home / SERVER, state.flat(), t + 1)
        write(home / LEDGER, lambda file: file.write_text(json.dumps(rounds)), "what was sent")
        down, up = map(sum, sent["wire"])
        print(f"round {t + 1} of {e.rounds}: {down:,} bytes down, {up:,} up", flush=True)

"""One run on several cores: the same bits, errors as in a loop, and nothing left behind."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import LENET, make_federation
from playing import FAST, begun, equal, play
from small import TASK

from fedlib import adam, parallel, sgd
from fedlib.algorithms import IFCA, SCAFFOLD, FedAvg, FedGH, FedMix, FedRep, Local
from fedlib.engine import TrainingDiverged
from fedlib.parallel import all_cores, map_chunks, picklable_error
from fedrun import Experiment, run_with_state

CPU = torch.device("cpu")


@pytest.fixture
def forks(monkeypatch):
    """All work is worth a copy of the process; the numbers of those that were made."""
    made, fork = [], os.fork

    def noted():
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(parallel, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(parallel, "_pace", {})
    monkeypatch.setattr(os, "fork", noted)
    yield made
    torch.set_num_threads(1)
    for pid in made:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def on(threads, play, cohort=1.0):
    """What comes out on so many cores, after torch has used as many threads."""
    torch.set_num_threads(threads)
    a = torch.ones(300, 300)
    (a @ a).sum().item()
    try:
        with all_cores(CPU, cohort):
            return play()
    finally:
        assert torch.get_num_threads() == threads
        torch.set_num_threads(1)


ENDING = """
import torch
from fedlib.parallel import all_cores, map_ordered

a, some = torch.ones(300, 300), [torch.ones(64, 64)] * 4
for _ in range(80):
    for threads in (3, 2):  # with fewer than before one ends, at some time
        torch.set_num_threads(threads)
        a @ a
    with all_cores(a.device, 1.0):
        map_ordered(lambda x: x @ x, some, "products")
"""


def test_no_copy_is_made_while_threads_end():
    """They hold locks of MKL's: one copy in twenty waited for ever."""
    script = "from fedlib import parallel; parallel.MIN_SECONDS = 0.0" + ENDING
    subprocess.run([sys.executable, "-c", script], check=True, timeout=500)


ROUNDS = {
    "server's optimiser": (FedMix(experts=2, server=adam(0.01), **FAST), None),
    "local leaves": (SCAFFOLD(client=sgd(0.1), **FAST), None),
    "clusters": (IFCA(clusters=2, **FAST), None),
    "statistics": (FedGH(**FAST), None),
    "phases": (FedRep(head_epochs=2, **FAST), 2),
    "phases side by side": (FedRep(head_epochs=2, client=adam(0.01), **FAST), None),
}


@pytest.mark.parametrize(("algorithm", "chunk"), ROUNDS.values(), ids=ROUNDS)
def test_rounds_have_the_same_bits_on_any_number_of_cores(forks, algorithm, chunk):
    fed = make_federation((9, 4, 11, 6, 5, 8), model=LENET, shape=(12, 12, 1))

    def three():
        return play(algorithm, fed, state=begun(algorithm, fed), chunk=chunk, score=True)

    state, report = three()
    assert not forks
    for threads in (2, 3):
        other, said = on(threads, three)
        assert equal(state.flat(), other.flat())
        assert equal(report.messages, said.messages) and equal(report.adapted, said.adapted)
        assert torch.equal(report.losses, said.losses)
    assert len(forks) >= 3


def test_a_run_of_two_stages_has_the_same_bits(forks, tmp_path, monkeypatch):
    first = Experiment(replace(TASK, model=LENET), FedAvg(server=adam(0.01), **FAST), 2, cohort=3)
    last = replace(first, algorithm=Local(**FAST), first_stage=first, cohort=4)
    results = []
    for threads in (1, 2):
        monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / str(threads)))
        torch.set_num_threads(threads)
        results.append(run_with_state(last, device="cpu", progress=False))
    (one, state), (other, again) = results
    assert forks
    assert one.metrics.equals(other.metrics) and equal(state.flat(), again.flat())
    assert [s["threads"] for s in other.provenance["segments"]] == [1]


def doubled(i):
    return {"twice": torch.tensor([2 * i]), "where": os.getpid()}


def test_work_is_shared_out_and_comes_back_once(forks):
    def work(i):
        time.sleep(0.02)
        return doubled(i)

    def all_of_it():
        return dict(map_chunks(work, range(12), "test"))

    found = on(3, all_of_it)
    assert {i: int(f["twice"]) for i, f in found.items()} == {i: 2 * i for i in range(12)}
    assert {f["where"] for f in found.values()} == {os.getpid(), *forks} and len(forks) == 2


def test_little_work_stays_here(forks, monkeypatch):
    def found(threads, items, cohort=1.0):
        return len(on(threads, lambda: [*map_chunks(doubled, items, "test")], cohort))

    assert found(3, range(9), cohort=1) == found(1, range(9)) == 9
    monkeypatch.setattr(parallel, "MIN_SECONDS", 60.0)
    assert [found(3, items) for items in (range(9), [], [1])] == [9, 0, 1]
    assert not forks


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(a)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(lambda i: TrainingDiverged(f"client {i}", [i]), TrainingDiverged),
     (lambda i: Unpicklable(f"client {i}", i), RuntimeError)],
)  # fmt: skip
def test_the_first_error_comes_as_from_a_loop(forks, raised, expected):
    """From whatever process, with its traceback, after what was begun before it."""
    here, seen = os.getpid(), []

    def fails(i):
        time.sleep(0.05 if i == 1 else 0.0)
        if i == 1 and os.getpid() == here:  # leave it to a copy
            time.sleep(0.5)
        if i:
            raise raised(i)
        return i

    with pytest.raises((expected, Unpicklable), match="client 1") as caught:
        on(2, lambda: seen.extend(map_chunks(fails, range(5), "test")))
    assert seen == [(0, 0)]
    if isinstance(caught.value, TrainingDiverged):
        assert caught.value.clients == (1,)


def test_an_error_reaches_another_process_with_the_place_that_it_came_from():
    spawned = type("Spawned", (Exception,), {"__module__": "__mp_main__"})
    for error in (ValueError("no"), Unpicklable(1, 2), spawned("no")):
        try:
            raise error
        except Exception as caught:
            sent = pickle.loads(pickle.dumps(picklable_error(caught)))
        assert type(sent) is (ValueError if isinstance(error, ValueError) else RuntimeError)
        assert str(error) in str(sent) and "test_cores.py" in str(sent.__cause__)


def test_a_copy_that_is_killed_is_an_error(forks):
    here = os.getpid()

    def killed(i):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5 * bool(i))

    with pytest.raises(RuntimeError, match="exit code -9"):
        on(2, lambda: [*map_chunks(killed, range(4), "test")])


ORPHANED = """
import os, sys, time, torch
from fedlib import parallel
from fedrun.workers import Processes

def work(i):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(300 * (i > 0))

if __name__ == "__main__":
    pool, _ = Processes(1, {}, None)._hired()
    os.write(1, b"%d\\n" % pool.submit(os.getpid).result())
    torch.set_num_threads(2)
    parallel.MIN_SECONDS = 0.0
    with parallel.all_cores(torch.device("cpu"), 3):
        [*parallel.map_chunks(work, range(3), "test")]
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_one_that_made_it(tmp_path, how):
    """Neither its copies nor a sweep's worker, which first has to be there, however it ends."""
    script = tmp_path / "orphaned.py"
    script.write_text(ORPHANED)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    made = {int(parent.stdout.readline()) for _ in range(4)} - {parent.pid}
    assert len(made) == 2 and all(map(there, made))
    parent.send_signal(how)
    assert parent.wait() == -how
    for _ in range(600):
        if not any(map(there, made)):
            return
        time.sleep(0.1)
    pytest.fail(f"{made} are still there")


def there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_tensors_of_every_kind_come_back_as_they_are(forks):
    images = torch.arange(48.0).view(2, 2, 3, 4).to(memory_format=torch.channels_last)
    every = [
        images, torch.ones(3, 4).mT[1:], torch.arange(6.0).to(torch.bfloat16), torch.zeros(0, 3),
        torch.tensor([True, False]), torch.tensor([1 + 2j]).conj(), torch.ones(1, 3).expand(4, 3),
        torch.tensor(2.5, requires_grad=True) * 2, torch.nn.Parameter(torch.ones(2)),
        torch.eye(3).to_sparse(),
    ]  # fmt: skip
    here = os.getpid()

    def work(i):
        time.sleep(0.2 * (i > 0 and os.getpid() == here))
        return every

    for _, found in on(2, lambda: [*map_chunks(work, range(6), "test")]):
        for t, back in zip(every, found, strict=True):
            assert (back.dtype, back.shape, back.layout) == (t.dtype, t.shape, t.layout)
            assert torch.equal(back.to_dense(), t.to_dense())
    assert found[0].is_contiguous(memory_format=torch.channels_last), "laid out as it was"


def test_where_no_process_can_be_made_the_work_is_done_here(forks, monkeypatch):
    def refused():
        raise BlockingIOError("Resource temporarily unavailable")

    for owner, name in ((os, "fork"), (multiprocessing.get_context("fork"), "Value")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_: refused())
            found = dict(on(3, lambda: [*map_chunks(doubled, range(9), "test")]))
        assert {i: int(f["twice"]) for i, f in found.items()} == {i: 2 * i for i in range(9)}


def test_an_interrupt_leaves_no_process(forks):
    here = os.getpid()

    def interrupted(i):
        if i and os.getpid() == here:
            raise KeyboardInterrupt
        time.sleep(60.0 * bool(i))

    with pytest.raises(KeyboardInterrupt):
        on(3, lambda: [*map_chunks(interrupted, range(9), "test")])
    assert len(forks) == 2


def test_ctrl_c_is_heard_here_only(forks):
    """A terminal's SIGINT reaches every process of the group."""
    here = os.getpid()

    def pressed(i):
        if i:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return os.getpid() == here

    # A shell's background jobs are deaf to it, and so are their tests.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            on(2, lambda: [*map_chunks(pressed, range(4), "test")])
    finally:
        signal.signal(signal.SIGINT, before)

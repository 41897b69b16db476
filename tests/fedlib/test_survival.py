"""Runs that survive: killed at any moment, damaged files, full disks, numbers that explode."""

import errno
import os
import re
import signal
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from playing import equal
from safetensors.torch import save_file
from small import ALONE, AVG, MIX, TASK, bits, interrupted, play, running, undisturbed

from benchmarks.robustness import child
from fedlib import paths
from fedlib.engine import State, select
from fedrun import RunDiverged, find_result, provenance, run, run_with_state, store
from fedrun.cli import main
from fedrun.files import DamagedWarning, load_tensors, save_tensors

# What is told beside the warning that a test is about.
IGNORED = pytest.mark.filterwarnings("ignore::fedrun.files.DamagedWarning")
pytestmark = [pytest.mark.slow, IGNORED]


@pytest.fixture
def at_once(monkeypatch):
    """Store a checkpoint after every round."""
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "-1")


def test_kills_between_touches_of_files_change_no_bit(at_once, tmp_path):
    """`make robust` counts some hundred kills of every kind of run, sweep and writer."""
    expected, deaths = undisturbed(MIX, tmp_path), 0
    for n in range(15, 65, 7):
        if find_result(MIX) is None:
            deaths += child.call(child.dying_at(n, lambda: play(MIX))).killed
    play(MIX)
    assert deaths >= 3 and bits(MIX) == expected and not list(store.folder(MIX).glob(".*"))


def test_a_time_between_checkpoints_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "abc")
    with pytest.raises(ValueError, match="FEDLIB_CHECKPOINT_SECONDS must be a number, got 'abc'"):
        play(MIX)


def test_a_run_that_is_interrupted_loses_no_round(monkeypatch, tmp_path, capsys):
    """Ctrl-C lost all since the last checkpoint, and a young run began again."""
    expected, playing = undisturbed(MIX, tmp_path), running.play_round

    def pressed(*args, **how):
        for _ in range(presses if how["round"] == 1 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return playing(*args, **how)

    monkeypatch.setattr(running, "play_round", pressed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for presses, stored in ((2, None), (1, 2)):  # noqa: B007
            told = f"2 of 5 rounds of run {MIX.key} are stored; the same call continues"
            with pytest.raises(KeyboardInterrupt, match=told if stored else None):
                play(MIX)
            kept = store.RunFolder(MIX).restore()
            assert (kept and kept.completed) == stored
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert main(["show", MIX.key]) == 0 and "unfinished" in capsys.readouterr().out
    finally:
        signal.signal(signal.SIGINT, before)
    play(MIX)
    assert bits(MIX) == expected


# Damaged files


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def garbage(path):
    path.write_bytes(b"\x93garbage {" * 40)


def flipped(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def a_value_flipped(path):
    column = pq.ParquetFile(path).metadata.row_group(0).column(5)
    start = column.dictionary_page_offset or column.data_page_offset
    flipped(path, start + column.total_compressed_size - 20)


def shortened(path):
    metrics = pd.read_parquet(path)
    metrics[metrics["round"] < MIX.rounds].to_parquet(path, index=False)


# One of each kind: `make robust` spoils every file a hundred times.
CASES = [
    (cut, store.SPEC, True), (shortened, store.METRICS, True), (flipped, store.CHECKPOINT, True),
    (a_value_flipped, store.METRICS, True),
    (Path.unlink, store.CHECKPOINT, True), (garbage, store.METRICS, False),
]  # fmt: skip


def files_of(home):
    return {path.name: path.read_bytes() for path in home.iterdir()}


@pytest.mark.parametrize(("damage", "name", "finished"), CASES)
def test_what_is_damaged_is_moved_aside_and_trained_again(damage, name, finished):
    """The result of a finished run is passed over, unless it is only its state that is damaged."""
    play(MIX)
    expected, home = bits(MIX), store.folder(MIX)
    if not finished:
        (home / store.PROVENANCE).unlink()
    damage(home / name)
    left, passed_over = files_of(home), name != store.CHECKPOINT
    with pytest.warns(DamagedWarning) as heard:
        assert (find_result(MIX) is None) == (passed_over or not finished)
        run_with_state(MIX, device="cpu", progress=False)
    said = "\n".join(str(one.message) for one in heard)
    assert not (finished and passed_over) or re.search(f"{name} .*skipped", said)
    (aside,) = (paths.runs() / "damaged").iterdir()
    assert f"the run was moved to {aside}" in said and files_of(aside) == left
    assert bits(MIX) == expected and find_result(MIX) is not None


@pytest.mark.parametrize("name", [store.METRICS, store.CHECKPOINT, store.PROVENANCE])
def test_what_a_busy_machine_cannot_open_is_not_damaged(monkeypatch, name):
    """Too many open files, a network disk that is away: nothing may be moved aside for that."""
    play(AVG)
    expected, path, plain = bits(AVG), store.folder(AVG) / name, Path.open

    def refuse(file, *args, **kwargs):
        if file == path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return plain(file, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open files"):
        patch.setattr(Path, "open", refuse)
        run_with_state(AVG, device="cpu", progress=False)
    assert not (paths.runs() / "damaged").exists() and bits(AVG) == expected


# Numbers that explode


def explode(leaves, name="", row=...):
    """Make a leaf infinite, or a row of it."""
    name = next(n for n in leaves if n.endswith(name))
    leaves[name] = leaves[name].clone()
    leaves[name][row] = float("inf")


EXPLOSIONS = {
    "server": lambda state, report: explode(state.server_params),
    "memory": lambda state, report: explode(state.server_optimizer, "exp_avg_sq"),
    "client": lambda state, report: (explode(report.messages, row=1), explode(state.server_params)),
    "local": lambda state, report: explode(state.client_params, row=report.clients[1]),
}


PHI = "shared:phi"
HOSTILE = {
    "another shape": lambda leaves: leaves.update({PHI: leaves[PHI][..., :1].clone()}),
    "without a leaf": lambda leaves: leaves.pop(PHI),
    "not finite": lambda leaves: explode(leaves, "bias"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_sound_checkpoint_of_something_else_is_moved_aside(tmp_path, change):
    """Nor does a run count as diverged because of what it went on from."""
    expected = undisturbed(MIX, tmp_path)
    interrupted(MIX, 2)
    path = store.folder(MIX) / store.CHECKPOINT
    leaves, metadata = load_tensors(path)
    change(leaves)
    save_tensors(path, leaves, metadata)
    with pytest.warns(DamagedWarning, match="the run was moved to"):
        play(MIX)
    assert store.diverged(MIX) is None and bits(MIX) == expected
    assert len([*(paths.runs() / "damaged").iterdir()]) == 1


@pytest.mark.parametrize("where", EXPLOSIONS)
def test_leaves_that_are_not_finite_stop_the_run_and_nothing_is_lost(monkeypatch, tmp_path, where):
    experiment, play_round = ALONE if where == "local" else MIX, running.play_round
    expected = undisturbed(experiment, tmp_path)

    def exploding(*args, **kwargs):
        state, report = play_round(*args, **kwargs)
        if kwargs["round"] == 2:
            EXPLOSIONS[where](state, report)
        return state, report

    with monkeypatch.context() as patch:
        patch.setattr(running, "play_round", exploding)
        with pytest.raises(RunDiverged, match=r"round 2: .* not finite") as caught:
            play(experiment)
    error, home = caught.value, store.folder(experiment)
    rows = select(TASK.build(experiment.seed), experiment.cohort, experiment.seed, 2)
    assert error.clients == ((int(rows[1]),) if where in ("client", "local") else ())
    assert error.clients or "after the server's step" in str(error)
    assert error.round == 2 and str(home) in str(error)
    assert store.diverged(experiment).round == 2
    assert store.last_round(store.read_metrics(home)) == 2
    with pytest.raises(RunDiverged, match=r"round 2: .* not finite") as again:
        play(experiment)
    assert str(again.value) == str(error)
    run(experiment, device="cpu", progress=False, retry=True)
    assert bits(experiment) == expected and not (home / "failure.json").exists()


def test_what_was_stored_without_checksums_is_still_read(monkeypatch):
    result, state = run_with_state(AVG, device="cpu", progress=False)
    home = store.folder(AVG)
    result.metrics.to_pandas().to_parquet(home / store.METRICS, compression="zstd", index=False)
    _, said = load_tensors(home / store.CHECKPOINT)
    tensors = {n: t.clone() for n, t in state.flat().items()}
    save_file(tensors, home / store.CHECKPOINT, metadata=said)
    assert store.RunFolder(AVG).restore().completed == AVG.rounds
    assert find_result(AVG).metrics.equals(result.metrics)


def test_a_number_of_one_client_is_stored(tmp_path):
    """APFL's mixing weight of a federation of one has the stride 0, and was no bytes to torch."""
    one = torch.tensor(0.25).expand(1)
    assert one.stride() == (0,) and provenance.digest(State({}, {"mix": one}))
    save_tensors(tmp_path / "t", {"mix": one}, {})
    assert load_tensors(tmp_path / "t")[0]["mix"].tolist() == [0.25]


@pytest.mark.parametrize("said", ["", "a line that moves what follows"])
def test_restored_tensors_begin_where_torch_puts_them(tmp_path, said):
    """Wherever a file's header ends, and in their order: bits of some sums hang on both."""
    tensors = {"b": torch.arange(7.0), "a": torch.arange(50.0)}
    save_tensors(tmp_path / "t", tensors, {"completed": "3", "note": said})
    loaded, rest = load_tensors(tmp_path / "t")
    assert rest == {"completed": "3", "note": said} and equal(tensors, loaded)
    assert [*loaded] == ["b", "a"], "a file sorts names, and GPFL's loss is a sum over them"
    assert all(t.data_ptr() % 64 == 0 for t in loaded.values())

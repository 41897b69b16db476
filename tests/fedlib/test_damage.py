"""Damage that a decoder does not see, or answers with an error of its own."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from safetensors.torch import save_file
from small import AVG, MIX, bits, play

from fedlib import paths
from fedlib.runs import DamagedWarning, RunDiverged, export, find, run_with_state, store
from fedlib.runs.exported import path_of

pytestmark = pytest.mark.filterwarnings("ignore::fedlib.runs.DamagedWarning")


def flipped(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def values_at(path):
    """The place in a Parquet file where the last page of its column of values ends."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = next(
        c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "value"
    )
    start = column.dictionary_page_offset or column.data_page_offset
    return start + column.total_compressed_size - 2


def test_a_flipped_bit_of_stored_metrics_is_seen():
    play(AVG)
    path = store.folder(AVG) / store.METRICS
    for at in range(values_at(path) - 40, values_at(path)):
        before = path.read_bytes()
        flipped(path, at)
        with pytest.warns(DamagedWarning, match="passed over"):
            assert find(AVG) is None
        path.write_bytes(before)
    assert find(AVG) is not None


def test_a_flipped_bit_of_an_exported_result_is_seen(tmp_path, monkeypatch):
    target = export([play(AVG)], "some")
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "empty"))
    flipped(target, values_at(target))
    with pytest.raises(ValueError, match="is no exported result of fedlib"):
        find(AVG)


def test_a_flipped_bit_of_a_weight_is_seen_and_trained_again():
    play(AVG)
    expected = bits(AVG)
    flipped(store.folder(AVG) / store.CHECKPOINT, -1)
    with pytest.raises(store.Damaged, match="checksum differs"):
        store.restore(AVG)
    with pytest.warns(DamagedWarning, match="moved to checkpoint.safetensors.damaged"):
        run_with_state(AVG, device="cpu", progress=False)
    assert bits(AVG) == expected


def test_what_was_stored_without_checksums_is_still_read(monkeypatch):
    result, state = run_with_state(AVG, device="cpu", progress=False)
    home = store.folder(AVG)
    result.metrics.to_pandas().to_parquet(home / store.METRICS, compression="zstd", index=False)
    _, said = store.atomic.load_header(home / store.CHECKPOINT)
    said.pop("crc32")
    tensors = {n: t.clone() for n, t in state.flat().items()}
    save_file(tensors, home / store.CHECKPOINT, metadata=said)
    assert store.restore(AVG).completed == AVG.rounds
    assert find(AVG).metrics.equals(result.metrics)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("name", [store.SPEC, store.PROVENANCE])
@pytest.mark.parametrize("text", [DEEP, '{"a":' + DEEP + "}", "[" * 600 + "]" * 600])
def test_json_that_is_nested_too_deeply_is_damage(name, text):
    play(AVG)
    (store.folder(AVG) / name).write_text(text)
    find(AVG)
    with pytest.warns(DamagedWarning, match=f"{name}.damaged"):
        store.mend(AVG)


@pytest.mark.parametrize("said", [{"round": "x"}, {"clients": 3}])
def test_a_failure_of_which_no_error_can_be_made_is_damage(said):
    store.tell(AVG, store.FAILURE, said)
    with pytest.warns(DamagedWarning, match=r"failure.json.damaged"):
        play(AVG)
    store.tell(MIX, store.FAILURE, {"round": 1})
    with pytest.raises(RunDiverged):
        play(MIX)


@pytest.mark.parametrize(
    "change",
    [
        {"round": "one"},
        {"round": [[1]]},
        {"client": 1.5},
        {"value": "high"},
    ],
    ids=repr,
)
def test_metrics_of_other_kinds_are_damage(change):
    metrics = play(AVG).metrics.to_pandas()
    column, value = next(iter(change.items()))
    held = value * len(metrics) if isinstance(value, list) else value
    path = store.folder(AVG) / store.METRICS
    metrics.assign(**{column: held}).to_parquet(path, index=False)
    with pytest.warns(DamagedWarning, match="is no readable Parquet file"):
        assert find(AVG) is None


def test_what_a_killed_export_left_goes_with_the_next_one():
    half = paths.results() / ".0123.parquet.abcd.tmp"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    export([play(AVG)], "some")
    assert not half.exists() and path_of(AVG).exists()

"""Finished runs worth keeping: one small Parquet file each, with spec and provenance inside.

results/<key>.parquet             metrics with spec and provenance in the file's metadata
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedlib import paths
from fedlib.experiment import disk
from fedlib.experiment.log import require_tidy
from fedlib.experiment.result import Result
from fedlib.experiment.spec import Experiment
from fedlib.values import from_dict, to_dict


def export(result: Result) -> Path:
    """Write a result as one Parquet file with its spec and provenance into ``results/``."""
    table = pa.Table.from_pandas(result.metrics, preserve_index=False)
    for name in ("metric", "item"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].dictionary_encode())
    said = {"spec": to_dict(result.experiment), "provenance": result.provenance}
    slim = table.replace_schema_metadata({"fedlib": json.dumps(said, sort_keys=True)})
    target = path_of(result.experiment)

    def put(path: Path) -> None:
        pq.write_table(
            slim, path, compression="zstd", compression_level=19, write_page_checksum=True
        )

    what, variable = "the exported result", "FEDLIB_RESULTS"
    with disk.alone(target.parent, what, variable):
        disk.write(target, put, what, variable)
    return target


def path_of(experiment: Experiment) -> Path:
    """Return where the exported result of an experiment lies, if it does."""
    return paths.results() / f"{experiment.key}.parquet"


def read_exported(path: Path) -> Result:
    """Read a file that ``export`` wrote; ValueError if it is not one."""
    with disk.reading(path, "exported result of fedlib"):
        table = pq.read_table(path, page_checksum_verification=True)
        said = json.loads((table.schema.metadata or {})[b"fedlib"])
        frame = table.to_pandas().astype({"metric": "str", "item": "str"})
        require_tidy(frame)
        spec, provenance = from_dict(said["spec"]), said["provenance"]
        if not isinstance(spec, Experiment) or not isinstance(provenance, dict):
            raise ValueError("it does not say of which experiment it is")
        return Result(spec, frame, provenance)


def find_exported(experiment: Experiment) -> Result | None:
    """Return the exported result of an experiment, or None; ValueError if it is of another."""
    path = path_of(experiment)
    if not path.exists():
        return None
    result = read_exported(path)
    if result.experiment.key != experiment.key:
        raise ValueError(f"{path} holds another experiment: {result.experiment}")
    return result


def exported() -> list[Result]:
    """Return every exported result."""
    return [read_exported(p) for p in sorted(paths.results().glob("*.parquet"))]

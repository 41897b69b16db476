"""The former address of an example, ``examples/callbacks.py``; gone in 0.4."""

import warnings

from fedlib import paths

_FILE = paths.ROOT / "examples" / "callbacks.py"
_NOW = (
    "CSV, TensorBoard and WandB are an example now, examples/callbacks.py in the sources: copy it"
)
if not (paths.IN_CHECKOUT and _FILE.is_file()):
    raise ImportError(_NOW)
warnings.warn(_NOW, DeprecationWarning, stacklevel=2)
exec(compile(_FILE.read_text("utf-8"), str(_FILE), "exec"))

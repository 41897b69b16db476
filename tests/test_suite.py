"""A suite that breaks off ends, and names the test in which it did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedlib.models import FromFunction
from fedlib.values import from_code

CONFIGURATION = Path(__file__).resolve().parent.parent / "pyproject.toml"
# Each breaks off its process: by a signal, as a kernel of torch may, or by never ending.
BREAKING = {"dies": "import os\n\ndef test_dies():\n    os.kill(os.getpid(), 11)\n"}
BREAKING["hangs"] = "import time\n\ndef test_hangs():\n    time.sleep(1000)\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKING)
def test_a_worker_that_breaks_off_ends_the_suite_with_its_tests_name(name, tmp_path):
    for file, code in {name: BREAKING[name], "fine": "def test_fine():\n    pass\n"}.items():
        (tmp_path / f"test_{file}.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-c", CONFIGURATION]
    command += ["-p", "no:cacheprovider", "--rootdir", tmp_path, "-o", "faulthandler_timeout=1"]
    how = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    how["env"] = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others import for seconds
    ended = subprocess.run([*command, "-n", "2", "--dist", "worksteal", tmp_path], **how)
    assert ended.returncode == 1
    assert f"test_{name}.py::test_{name}" in ended.stdout.partition("short test summary")[2]
    assert f"line 4 in test_{name}" in ended.stderr, "where it was"


@pytest.mark.parametrize("test", ["first", "second"])
def test_what_a_test_names_is_not_allowed_in_the_next(test):
    """With one worker the test of attacks came after one that had named `builtins:dict`."""
    with pytest.raises(ValueError, match="may not name"):
        from_code("FromFunction('builtins:eval')")
    FromFunction("builtins:dict")

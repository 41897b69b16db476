"""What a run says of where it comes from: code, processor, and the stages before it."""

import platform
import subprocess
from dataclasses import replace

import pytest
import torch
from small import interrupted, play

from benchmarks.robustness.tiny import BEST, MIXED, TUNED
from fedlib import paths
from fedlib.runs import provenance, store

INTEL = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Intel(R) Xeon(R)\n"
)


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Let the system say something of its processor, or nothing."""

    def said(text):
        if text is not None:
            (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(provenance, "CPUINFO", tmp_path / "cpuinfo")
        return provenance.processor.__wrapped__()

    return said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INTEL, "Intel(R) Xeon(R)"),
        (INTEL + INTEL.replace("Intel(R) Xeon(R)", "another"), "Intel(R) Xeon(R)"),
        ("model name : AMD EPYC 9B14 : a\n", "AMD EPYC 9B14 : a"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "fallback"),
        ("\xff\x00 no colon", "fallback"),
        ("", "fallback"),
        (None, "fallback"),
    ],
)
def test_the_processor_is_named_as_the_system_names_it(cpuinfo, monkeypatch, text, expected):
    monkeypatch.setattr(platform, "processor", lambda: "fallback")
    assert cpuinfo(text) == expected


def test_a_system_that_says_nothing_names_its_kind(cpuinfo, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert cpuinfo(None) == "arm64"


def test_a_run_resumed_on_another_machine_names_both(monkeypatch):
    machine = {"processor": "first"}
    monkeypatch.setattr(provenance, "processor", lambda: machine["processor"])
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    interrupted(BEST, 2)
    machine["processor"] = "second"
    said = play(BEST).provenance
    assert (said["processor"], said["instructions"]) == ("second", "AVX2")
    assert [part["processor"] for part in said["segments"]] == ["first", "second"]
    assert {part["instructions"] for part in said["segments"]} == {"AVX2"}


def test_a_stage_says_which_code_made_the_stages_before_it(monkeypatch):
    """Also if these are trained anew, or forgotten, later."""
    monkeypatch.setattr(provenance, "commit", lambda: "aaa-dirty")
    play(BEST)
    monkeypatch.setattr(provenance, "commit", lambda: "bbb")
    tuned = play(TUNED).provenance
    assert tuned["segments"][0]["stages"] == {BEST.key: ["aaa-dirty"]}
    assert provenance.dirty(tuned) == ["aaa-dirty"]
    third = replace(TUNED, after=TUNED, rounds=1)
    said = play(third).provenance
    assert said["segments"][0]["stages"] == {BEST.key: ["aaa-dirty"], TUNED.key: ["bbb"]}
    assert provenance.dirty(said) == ["aaa-dirty"]
    assert provenance.dirty(store.find(BEST).provenance) == ["aaa-dirty"]


@pytest.mark.slow
def test_a_resumed_stage_still_says_so(monkeypatch):
    for stage in MIXED.before:
        play(stage)
    interrupted(MIXED, 1)
    first, second = play(MIXED).provenance["segments"]
    assert {*first["stages"]} == {e.key for e in MIXED.before} and "stages" not in second


def test_clean_code_is_clean():
    assert provenance.dirty({}) == provenance.dirty({"commit": "abc", "segments": []}) == []
    assert provenance.dirty({"commit": "unknown", "segments": [{"rounds": [0, 1]}]}) == []
    parts = [{"commit": "c-dirty"}, {"commit": "b-dirty"}, {"commit": "b-dirty"}]
    assert provenance.dirty({"commit": "a", "segments": parts}) == ["b-dirty", "c-dirty"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a package and results, and what its commit is said to be."""
    for name in ("fedlib/code.py", "results/some.parquet"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1")

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    for words in (("init",), ("add", "."), ("commit", "-m", "one")):
        git(*words)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


def test_only_changes_of_the_package_make_a_commit_dirty(checkout):
    """Results that `make results` has just written are no code."""
    clean = COMMIT()
    assert len(clean) == 12 and not clean.endswith("-dirty")
    (checkout / "results" / "some.parquet").write_text("2")
    (checkout / "notes.txt").write_text("new")
    assert COMMIT() == clean
    (checkout / "fedlib" / "new.py").write_text("2")
    assert COMMIT() == f"{clean}-dirty"
    (checkout / "fedlib" / "new.py").unlink()
    (checkout / "fedlib" / "code.py").write_text("2")
    assert COMMIT() == f"{clean}-dirty"


def test_an_installed_copy_is_of_no_commit(checkout, monkeypatch):
    """It may be asked from within anybody's checkout."""
    monkeypatch.setattr(paths, "IN_CHECKOUT", False)
    assert COMMIT() == "unknown"


def test_without_git_a_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert COMMIT() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert COMMIT() == "unknown"


COMMIT = provenance.commit.__wrapped__  # before tests are given a commit of their own

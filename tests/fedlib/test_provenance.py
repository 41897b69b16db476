"""What a run says of where it comes from: code, processor, and the stages before it."""

import platform
import shutil
import subprocess
import warnings
from dataclasses import replace

import pytest
import torch
from conftest import alone
from small import interrupted, play

from benchmarks.robustness.tiny import BEST, TUNED
from companion.frames import together
from fedlib import State, paths, processor
from fedrun import compare, provenance, store

INTEL = "processor\t: 0\nvendor_id\t: Intel\ncpu family\t: 6\nmodel name\t: Intel(R) Xeon(R)\n"


@pytest.mark.parametrize(("text", "name"), [(INTEL, "Intel(R) Xeon(R)"), ("\xff", "fallback")])
def test_the_processor_is_named_as_the_system_names_it(tmp_path, monkeypatch, text, name):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "fallback")
    assert processor.model() == name


def test_a_run_resumed_on_another_machine_names_both(monkeypatch):
    machine = {"processor": "first"}
    monkeypatch.setattr(processor, "model", lambda: machine["processor"])
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    interrupted(BEST, 2)
    machine["processor"] = "second"
    said = play(BEST).provenance
    assert (said["processor"], said["instructions"]) == ("second", "AVX2")
    assert [part["processor"] for part in said["segments"]] == ["first", "second"]
    assert {part["instructions"] for part in said["segments"]} == {"AVX2"}


def test_a_stage_says_which_code_and_states_it_stands_on(monkeypatch):
    """Also if these are trained anew, or forgotten, later."""
    monkeypatch.setattr(provenance, "commit", lambda: "aaa-dirty")
    first = play(BEST).provenance
    monkeypatch.setattr(provenance, "commit", lambda: "bbb")
    tuned = play(TUNED).provenance
    third = play(replace(TUNED, first_stage=TUNED, rounds=1)).provenance
    stages = {BEST.key: ["aaa-dirty"]}, {BEST.key: ["aaa-dirty"], TUNED.key: ["bbb"]}
    assert [tuned["segments"][0]["stages"], third["segments"][0]["stages"]] == [*stages]
    assert [provenance.dirty(said) for said in (first, tuned, third)] == [["aaa-dirty"]] * 3
    began = [provenance.began_with(said) for said in (first, tuned, third)]
    states = {BEST.key: first["state"]}, {BEST.key: first["state"], TUNED.key: tuned["state"]}
    assert began == [{}, *states]
    assert first["state"] == provenance.digest(store.RunFolder(BEST).restore().state)


def test_a_digest_is_of_the_bits_and_of_nothing_else():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([[0.0]])
    one = provenance.digest(State({"a": a, "b": b}, {}))
    assert one == provenance.digest(State({"b": b.clone(), "a": a.clone()}, {}))
    others = [{"a": a, "b": -b}, {"a": a[None], "b": b}, {"a": a.double(), "b": b}, {"a": a}]
    assert one not in [provenance.digest(State(other, {})) for other in others]


ASKED = "; import sys, fedlib; assert 'torch' not in sys.modules; print(fedlib.PINNED)"
ASKED += "; import torch; print(fedlib.PINNED, torch.backends.cpu.get_cpu_capability())"
TESTED = f"import sys; sys.path[:0] = [{str(paths.ROOT / 'tests')!r}]; import conftest, fedlib"
TESTED += "; print(fedlib.PINNED)"
IMPORTED = [
    ("import companion" + ASKED, {}, "True True AVX2"),
    ("import benchmarks" + ASKED, {}, "True True AVX2"),
    ("import fedlib" + ASKED, {"FEDLIB_PIN": "1"}, "True True AVX2"),
    ("import torch, fedlib, papers; print(fedlib.PINNED)", {}, "True"),
    (TESTED, {}, "True"),
    ("import fedlib; print(fedlib.PINNED)", {}, "False"),
    ("import companion, fedlib; print(fedlib.PINNED)", {"FEDLIB_PIN": "0"}, "False"),
    ("import companion, fedlib; print(fedlib.PINNED)", {"MKL_CBWR": "COMPATIBLE"}, "False"),
]


@pytest.mark.skipif(not processor.has_avx2(), reason="another kind of processor")
@pytest.mark.parametrize(("code", "variables", "expected"), IMPORTED)
def test_torch_is_held_to_avx2_before_it_computes(code, variables, expected):
    said = alone(code, **variables)
    assert said.stdout.split() == expected.split(), said.stderr


def test_a_comparison_of_pinned_runs_with_others_says_so_in_one_line():
    """Whether runs on a GPU were pinned is no matter, and older ones do not say."""
    cpu, other = {"device": "x86_64"}, {"device": "NVIDIA H200", "pinned": False}
    free, held = {**cpu, "pinned": False}, {**cpu, "pinned": True}
    resumed = {**held, "segments": [held, free]}
    run = play(BEST)

    def compared(*every):
        runs = [replace(run, provenance=made) for made in every]
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            compare({f"{i}": [one] for i, one in enumerate(runs)})
            together([("mine", {}, runs)])
        return [str(w.message).partition(" were ")[0] for w in heard]

    assert compared(free, free, cpu) == compared(held, cpu, other) == []
    assert compared(held, free, cpu) == ["1 of 3 runs"] * 2
    assert compared(resumed) == ["1 of 1 runs"] * 2


def test_clean_code_is_clean():
    assert provenance.dirty({}) == provenance.dirty({"commit": "abc", "segments": []}) == []
    assert provenance.dirty({"commit": "unknown", "segments": [{"rounds": [0, 1]}]}) == ["unknown"]
    parts = [{"commit": "c-dirty"}, {"commit": "b-dirty"}, {"commit": "b-dirty"}]
    assert provenance.dirty({"commit": "a", "segments": parts}) == ["b-dirty", "c-dirty"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a package and results, and what its commit is said to be."""
    for name in ("fedlib/code.py", "fedrun/code.py", "results/some.parquet"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1")
    git = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false"
    for words in ("init", "add .", "commit -m one"):
        subprocess.run(f"{git} {words}".split(), cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


def test_a_tag_which_may_be_moved_does_not_name_a_commit(checkout):
    clean = COMMIT()
    call = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "tag", "-a", "-m", "one", "v1"]
    subprocess.run(call, cwd=checkout, check=True)
    assert COMMIT() == clean != "v1"


@pytest.mark.parametrize("name", ["new.py", "code.py"])
def test_only_changes_of_the_package_make_a_commit_dirty(checkout, name):
    """Results that `make results` has just written are no code."""
    clean = COMMIT()
    assert len(clean) == 12 and not clean.endswith("-dirty")
    (checkout / "results" / "some.parquet").write_text("2")
    (checkout / "notes.txt").write_text("new")
    assert COMMIT() == clean
    (checkout / "fedlib" / name).write_text("2")
    assert COMMIT() == f"{clean}-dirty"


def test_an_installed_copy_is_of_no_commit(checkout, monkeypatch, recwarn):
    """It may be asked from within anybody's checkout; nor is a copy that no git ever held."""
    with monkeypatch.context() as patch:
        patch.setattr(paths, "IN_CHECKOUT", False)
        assert COMMIT() == "unknown"
    shutil.rmtree(checkout / ".git")
    assert COMMIT() == "unknown" and not recwarn


def within_another_repository(checkout, patch):
    shutil.copytree(checkout / "fedlib", checkout / "vendored" / "fedlib")
    (checkout / ".gitignore").write_text("vendored")
    patch.setattr(paths, "ROOT", checkout / "vendored")


REFUSING = {  # what is wrong with a checkout, or done to it, and what is said
    "no git": (lambda c, patch: patch.setenv("PATH", str(c)), "No such file or directory: 'git'"),
    "another owner": (lambda c, patch: patch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1"),
                      "detected dubious ownership .* safe.directory"),
    # Of this `git describe` knows nothing: the commit was known, and no change was.
    "a broken index": (lambda c, patch: (c / ".git" / "index").write_bytes(b"DIRC"), "index"),
    "within another": (within_another_repository, "'fedlib' did not match any file"),
}  # fmt: skip


@pytest.mark.parametrize(("broken", "why"), REFUSING.values(), ids=REFUSING)
def test_a_commit_that_git_does_not_tell_is_unknown_and_said_to_be(
    checkout, monkeypatch, broken, why
):
    monkeypatch.setenv("LC_ALL", "C")
    broken(checkout, monkeypatch)
    with pytest.warns(UserWarning, match=f"not known: .*not exported.*{why}") as said:
        assert COMMIT() == "unknown"
    assert len(said) == 1


def test_neither_settings_of_git_nor_a_hook_hide_what_has_changed(checkout, monkeypatch):
    """A hook sets GIT_DIR, which goes before the folder that git is told to look at."""
    clean, none = COMMIT(), {"COUNT": "1", "KEY_0": "status.showUntrackedFiles", "VALUE_0": "no"}
    for name, text in none.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", text)
    (checkout / "fedlib" / "new.py").write_text("2")
    assert COMMIT() == f"{clean}-dirty"
    subprocess.run(["git", "init", "-q", str(checkout / "other")], check=True)
    monkeypatch.setenv("GIT_DIR", str(checkout / "other" / ".git"))
    assert COMMIT() == f"{clean}-dirty"


def test_the_code_that_runs_is_named_as_it_was_imported():
    """A checkout may move on before this process trains."""
    assert ASKED == 1


# Before tests are given a commit of their own.
COMMIT, ASKED = provenance.commit.__wrapped__, provenance.commit.cache_info().currsize

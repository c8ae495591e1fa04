"""A bundle's replacement, killed at each of its steps: the old one or the new one is there, and the next writer cleans up."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blockforge.core import replacing
from blockforge.core.bundle import MANIFEST, Bundle, write_bundle
from blockforge.core.errors import UsageError
from blockforge.core.partial import lock_folder
from blockforge.core.replacing import recover

from .test_bundle import left_over, written

KILLED = """
import os, shutil, sys, pathlib
sys.path.insert(0, sys.argv[3])
from test_bundle import written

step, rename, rmtree, calls = int(sys.argv[2]), pathlib.Path.rename, shutil.rmtree, []

def dies(work):
    def maybe(*arguments, **options):
        calls.append(work)
        if len(calls) == step:
            os._exit(9)
        return work(*arguments, **options)
    return maybe

def half(folder, **options):
    os.remove(folder / "manifest.json")
    os._exit(9)

pathlib.Path.rename = dies(rename)
shutil.rmtree = half if step == 5 else dies(rmtree)
written(pathlib.Path(sys.argv[1]), b"new")
"""
STEPS = {  # the call before which the process ends -> what is there afterwards
    1: b"old",  # the old one's rename
    2: b"old",  # the new one's rename: nothing is at its place
    3: b"new",  # the old one's, to be removed
    4: b"new",  # its removal
    5: b"new",  # half-way through it
}


def killed(path, step):
    """Replace the bundle at `path` in a process that ends without a word at a step."""
    command = [sys.executable, "-c", KILLED, str(path), str(step), str(Path(__file__).parent)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 9


def content(path):
    bundle = Bundle.open(path)
    bundle.verify()
    return (bundle.path / "fp32/model.onnx").read_bytes()


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_loses_nothing(tmp_path, step):
    here, there = tmp_path / "here", tmp_path / "there"
    written(here / "b", b"old")
    killed(here / "b", step)
    assert left_over(here) != ["b"], "the kill left something"
    assert (here / "b").exists() is (step != 2)
    shutil.copytree(here, there)
    assert content(here / "b") == STEPS[step], "whoever opens it finds it"
    written(here / "b", b"third")
    assert content(here / "b") == b"third" and left_over(here) == ["b"]
    with pytest.raises(RuntimeError), write_bundle(there / "b"):  # a writer that fails itself
        raise RuntimeError
    assert content(there / "b") == STEPS[step] and left_over(there) == ["b"]


def moved_aside(folder, number=1):
    """A bundle as a killed writer leaves it."""
    written(folder / "b", b"aside %d" % number)
    aside = folder / f".b.1234567{number}.old"
    (folder / "b").rename(aside)
    return aside


def test_an_empty_folder_in_the_place_does_not_stop_it(tmp_path):
    moved_aside(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(RuntimeError), write_bundle(tmp_path / "b"):
        raise RuntimeError
    assert content(tmp_path / "b") == b"aside 1"


def test_what_somebody_else_put_there_stops_it(tmp_path):
    aside = moved_aside(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="no bundle"):
        written(tmp_path / "b")
    recover(tmp_path / "b", MANIFEST)
    assert left_over(tmp_path) == [aside.name, "b"] and (aside / MANIFEST).is_file()


def test_near_misses_are_left_alone(tmp_path):
    """A folder that is no bundle, one of another name, a file."""
    for name in (".b.12345678.old", ".c.12345678.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("x")
    (tmp_path / ".b.file.old").write_text("x")
    before = left_over(tmp_path)
    recover(tmp_path / "b", MANIFEST)
    assert left_over(tmp_path) == before
    with pytest.raises(UsageError, match="no such folder"):
        Bundle.open(tmp_path / "b")


def test_a_living_writer_is_left_alone(tmp_path, monkeypatch):
    """Between its two renames, when nothing is at the place, and with the folder that it is about to remove."""
    written(tmp_path / "b", b"old")
    seen, rename = [], Path.rename

    def looked(self, target):
        if self.name.startswith(".b."):
            before = left_over(tmp_path)
            recover(tmp_path / "b", MANIFEST)
            assert left_over(tmp_path) == before
            seen.append((tmp_path / "b").exists())
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", looked)
    written(tmp_path / "b", b"new")
    assert seen == [False, True]
    assert content(tmp_path / "b") == b"new" and left_over(tmp_path) == ["b"]


def test_without_locks_nobody_is_judged(tmp_path, monkeypatch):
    aside = moved_aside(tmp_path)
    monkeypatch.setattr(replacing, "lock_folder", lambda folder, *, wait: None)
    recover(tmp_path / "b", MANIFEST)
    assert left_over(tmp_path) == [aside.name]
    monkeypatch.setattr(replacing, "lock_folder", lock_folder)
    recover(tmp_path / "b", MANIFEST)
    assert left_over(tmp_path) == ["b"]


def test_a_rename_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    written(tmp_path / "b", b"old")
    rename = Path.rename

    def full(self, target):
        if self.suffix == ".partial":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path / "b", b"new")
    assert left_over(tmp_path) == ["b"] and content(tmp_path / "b") == b"old"

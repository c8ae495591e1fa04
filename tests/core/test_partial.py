"""Half-written folders: one whose process was killed is swept, one that is being written never."""

import signal
import subprocess
import sys

import pytest

from blockforge.core.bundle import write_bundle
from blockforge.core.partial import partial_folder, sweep

WRITER = """
import sys
from blockforge.core.bundle import write_bundle
with write_bundle(sys.argv[1]) as folder:
    (folder / "half").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of writing tmp_path/b."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "b")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_killed_writer_leaves_a_folder_that_the_next_sweeps(writer, tmp_path):
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    (left,) = names(tmp_path)
    assert left.startswith(".b.") and left.endswith(".partial")
    with write_bundle(tmp_path / "b") as folder:
        assert names(tmp_path) == [folder.name] != [left]


def test_near_miss_a_living_writer_keeps_its_folder(writer, tmp_path):
    (working,) = names(tmp_path)
    assert sweep(tmp_path) == ()
    with write_bundle(tmp_path / "b") as folder:
        assert {working, folder.name} == set(names(tmp_path))
    assert (tmp_path / working / "half").exists()


def test_only_folders_of_the_same_name_are_swept(tmp_path):
    for name in (".b.12345678.partial", ".b.c.12345678.partial", "b.12345678.partial", ".b.1.old"):
        (tmp_path / name).mkdir()
    (tmp_path / ".b.file.partial").write_text("not a folder")
    with partial_folder(tmp_path, "b"):
        pass
    assert names(tmp_path) == [
        ".b.1.old",
        ".b.c.12345678.partial",
        ".b.file.partial",
        "b.12345678.partial",
    ]
    assert [p.name for p in sweep(tmp_path)] == [".b.c.12345678.partial"]


def test_our_own_folder_is_no_leftover(tmp_path):
    with partial_folder(tmp_path, "b") as folder:
        assert sweep(tmp_path) == () and folder.is_dir()
    assert names(tmp_path) == []


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / ".b.12345678.partial").symlink_to(tmp_path / "real")
    assert sweep(tmp_path) == () and (tmp_path / "real").is_dir()

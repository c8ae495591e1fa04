"""The engine cache: whole entries or none, whatever happens to the processes and the disk, and a reason for each miss."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from engine_graphs import HIDDEN, Chain, write

from blockforge.core.errors import UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines import building
from blockforge.engines.cache import (
    EngineCache,
    Key,
    bytes_from_text,
    key_of,
    open_cache,
    settled_parts,
    store,
)
from blockforge.engines.compile import BuildOptions, CompileRequest, compile_engine, dry_run
from blockforge.engines.target import Target

RTX = Target.parse("tensorrt-rtx:sm89")
ROOM = 1 << 30


def key(**parts):
    return Key({"graph": "a", "weights": "b"} | parts)


@pytest.fixture
def files(tmp_path):
    """What a build writes: name -> path."""
    folder = tmp_path / "built"
    folder.mkdir()
    made = {"plan": folder / "plan", "listing.txt": folder / "listing.txt"}
    made["plan"].write_bytes(b"p" * 5000)
    made["listing.txt"].write_text("Layers:")
    return made


@pytest.fixture
def cache(tmp_path):
    return EngineCache(tmp_path / "cache", ROOM)


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def left_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def test_what_is_kept_comes_back(cache, files, out):
    assert cache.keep(key(), files, {"seconds": 2.5})
    found = cache.fetch(key(), out)
    assert found.hit and found.result == {"seconds": 2.5}
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {
        name: path.read_bytes() for name, path in files.items()
    }
    assert not any(p.name.startswith(".") for p in cache.root.iterdir())


def test_a_miss_names_the_parts_that_differ_from_the_nearest_entry(cache, files, out):
    assert cache.fetch(key(), out).reason == "the cache is empty"
    cache.keep(key(level="3", arch="sm89"), files, {})
    cache.keep(key(level="3", arch="sm120", graph="z"), files, {})
    miss = cache.fetch(key(level="5", arch="sm89"), out)
    assert not miss.hit and left_in(out) == []
    near = key(level="3", arch="sm89").digest[:12]
    assert miss.reason == f"the nearest entry {near} differs in level (3 there, 5 here)"


@pytest.mark.parametrize("name", ["plan", "listing.txt"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_entry_is_a_miss_and_goes(cache, files, out, name, damage):
    cache.keep(key(), files, {})
    path = cache.entries()[0].folder / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"x" + path.read_bytes()[1:] if damage == "changed" else b"")
    found = cache.fetch(key(), out)
    assert not found.hit and "damaged" in found.reason and name in found.reason
    assert cache.entries() == ()
    assert cache.keep(key(), files, {}) and cache.fetch(key(), out).hit


@pytest.mark.parametrize("text", ["", "{", '{"parts": {}, "files": {"../x": {}}, "result": {}}'])
def test_an_unreadable_record_is_a_miss_and_is_pruned(cache, files, out, text):
    cache.keep(key(), files, {})
    (cache.entries()[0].folder / "entry.json").write_text(text)
    assert not cache.fetch(key(), out).hit
    assert len(cache.prune()) == 1 and cache.entries() == ()


def test_verify_removes_what_does_not_match_and_nothing_else(cache, files):
    for level in "12":
        cache.keep(key(level=level), files, {})
    assert cache.verify() == ()
    bad = next(e for e in cache.entries() if e.digest == key(level="1").digest)
    (bad.folder / "plan").write_bytes(b"q" * 5000)
    ((entry, fault),) = cache.verify()
    assert entry.digest == bad.digest and "plan" in fault
    assert [e.digest for e in cache.entries()] == [key(level="2").digest]


def test_an_entry_under_another_name_is_found(cache, files):
    cache.keep(key(), files, {})
    entry = cache.entries()[0]
    entry.folder.rename(entry.folder.with_name("0" * 64))
    assert "parts" in cache.verify()[0][1]


def aged(cache, level, seconds):
    path = cache.root / "engines" / key(level=level).digest / "entry.json"
    os.utime(path, (time.time() - seconds,) * 2)


def test_the_least_used_go_first(cache, files, out):
    for level in "123":
        cache.keep(key(level=level), files, {})
        aged(cache, level, 100 - int(level))
    cache.fetch(key(level="1"), out)  # the oldest, but used just now
    size = cache.entries()[0].bytes
    cache.max_bytes = 3 * size
    assert cache.prune() == ()
    cache.keep(key(level="4"), files, {})
    left = {e.digest for e in cache.entries()}
    assert left == {key(level=level).digest for level in "134"}
    assert [e.digest for e in cache.prune(size)] == [key(level=x).digest for x in "13"]


def test_an_engine_larger_than_the_limit_drives_nothing_out(cache, files):
    cache.keep(key(level="1"), files, {})
    cache.max_bytes = 5006
    assert not cache.keep(key(level="2"), files, {})
    assert [e.digest for e in cache.entries()] == [key(level="1").digest]


def test_a_full_disk_keeps_nothing_and_fails_nothing(cache, files, out, monkeypatch, caplog):
    cache.keep(key(level="1"), files, {})

    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.Path, "rename", full)
        assert not cache.keep(key(level="2"), files, {})
    real = store._copied

    def half(source, target):
        target.write_bytes(b"half")
        raise UsageError("write", found="No space left on device")

    monkeypatch.setattr(store, "_copied", half)
    assert not cache.keep(key(level="3"), files, {})
    monkeypatch.setattr(store, "_copied", real)
    assert caplog.text.count("No space left") == 2
    assert [e.digest for e in cache.entries()] == [key(level="1").digest]
    assert sorted(p.name for p in cache.root.iterdir()) == ["engines"]


def test_a_full_disk_where_the_engine_goes_is_one_error(cache, files, out):
    cache.keep(key(), files, {})
    (out / "plan").symlink_to("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        cache.fetch(key(), out)
    assert len(cache.entries()) == 1


WRITERS = """
import signal, sys, pathlib
from blockforge.engines.cache import EngineCache, Key
signal.alarm(300)  # whoever started it may be gone
folder, files = pathlib.Path(sys.argv[1]), {"plan": pathlib.Path(sys.argv[2])}
cache, n = EngineCache(folder, int(sys.argv[3])), 0
print("go", flush=True)
while True:
    n += 1
    key = Key({"level": str(n % 5)})
    out = folder.parent / f"out{sys.argv[4]}"
    out.mkdir(exist_ok=True)
    found = cache.fetch(key, out)
    assert not found.hit or (out / "plan").read_bytes() == files["plan"].read_bytes()
    if not found.hit:
        assert cache.keep(key, files, {"n": n}), found.reason
    if n % 7 == 0:
        cache.prune(0)
    if n == int(sys.argv[5]):
        break
"""


def writers(tmp_path, count, rounds):
    plan = tmp_path / "plan"
    plan.write_bytes(os.urandom(3_000_000))
    made = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                WRITERS,
                tmp_path / "cache",
                plan,
                str(7_000_000),
                str(n),
                str(rounds),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for n in range(count)
    ]
    for process in made:
        assert process.stdout.readline() == b"go\n", process.stderr.read()
    return made


def test_three_processes_that_write_read_and_prune_at_once(tmp_path):
    for process in writers(tmp_path, 3, 60):
        assert process.wait(timeout=120) == 0, process.stderr.read().decode()
    cache = EngineCache(tmp_path / "cache", ROOM)
    assert cache.verify() == ()


def test_killed_at_any_moment_it_holds_only_whole_entries(tmp_path):
    cache = EngineCache(tmp_path / "cache", ROOM)
    for delay in (0.0, 0.003, 0.011, 0.02, 0.037, 0.05):
        (process,) = writers(tmp_path, 1, 0)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert cache.verify() == ()
    cache.prune()
    assert sorted(p.name for p in cache.root.iterdir()) == ["engines"]


# ---- keys


def key_in(folder):
    graph = (folder / "model.onnx").read_bytes()
    return key_of(graph, folder, settled_parts(runtime="r 1", architectures=["sm89"]))


def test_the_key_reads_the_weights_and_nothing_beside_them(tmp_path):
    write(Chain("fp16", blocks=1).build(), tmp_path)
    data, first = tmp_path / "model.onnx.data", key_in(tmp_path)
    with data.open("ab") as file:
        file.write(b"no tensor's")
    assert key_in(tmp_path).digest == first.digest
    tensors = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer
    outside = [t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL]
    assert len(outside) > 5
    for tensor in outside:
        where = {entry.key: entry.value for entry in tensor.external_data}
        content = bytearray(data.read_bytes())
        content[int(where["offset"]) + int(where["length"]) - 1] ^= 1
        kept = data.read_bytes()
        data.write_bytes(content)
        changed = key_in(tmp_path)
        assert [d.split()[0] for d in changed.differences(first.parts)] == ["weights"]
        data.write_bytes(kept)


def test_sizes():
    assert bytes_from_text("20GiB") == 20 * 2**30 and bytes_from_text("1.5KiB") == 1536
    assert bytes_from_text("17") == 17
    for wrong in ("", "GiB", "-1", "5GB", "1e3"):
        with pytest.raises(UsageError, match="no size"):
            bytes_from_text(wrong)


def test_the_environment_names_the_cache(tmp_path, monkeypatch):
    assert open_cache() is None
    monkeypatch.setenv("BLOCKFORGE_CACHE", str(tmp_path))
    monkeypatch.setenv("BLOCKFORGE_CACHE_SIZE", "3MiB")
    assert open_cache().root == tmp_path and open_cache().max_bytes == 3 * 2**20
    assert open_cache(tmp_path / "x", "1KiB").root == tmp_path / "x"


# ---- real builds


def asked(folder, **rest):
    folder.mkdir(exist_ok=True)
    profile = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}
    model = write(Chain("fp16", blocks=1).build(), folder)
    return CompileRequest(model, RTX, profile, folder, num_blocks=1, **rest)


def test_the_second_build_is_a_copy_of_the_first(tmp_path, monkeypatch, blockforge):
    cache = tmp_path / "cache"
    first = asked(tmp_path / "a", cache=cache)
    assert dry_run(first).cached == "the cache is empty" and not cache.exists()
    record, steps = compile_engine(first), []
    monkeypatch.setattr(building, "run_job", None)
    again = asked(tmp_path / "b", cache=cache)
    assert compile_engine(again, steps.append) == record
    assert any("cache hit" in step.detail for step in steps)
    assert left_in(tmp_path / "a" / "engines") == left_in(tmp_path / "b" / "engines")
    for name in left_in(tmp_path / "a" / "engines"):
        assert (tmp_path / "a/engines" / name).read_bytes() == (
            tmp_path / "b/engines" / name
        ).read_bytes()

    other = asked(tmp_path / "c", cache=cache, options=BuildOptions(optimization_level=2))
    assert "option.optimization_level (null there, 2 here)" in dry_run(other).cached
    assert not dry_run(other).hit and dry_run(first).hit
    idle = asked(tmp_path / "d", cache=cache, options=BuildOptions(timeout_seconds=9))
    assert "has the same" in dry_run(idle).cached
    with pytest.raises(TypeError):  # a miss builds: there is no run_job
        compile_engine(other)

    ran = blockforge("cache", "ls", "--dir", cache, "--json")
    assert ran.returncode == 0 and '"option.tf32": "false"' in ran.stdout
    entry = next((cache / "engines").iterdir())
    (entry / "plan").write_bytes(b"")
    ran = blockforge("cache", "verify", "--dir", cache)
    assert ran.returncode == 5 and "plan is not what was stored" in ran.stdout
    ran = blockforge("cache", "prune", "--dir", cache, "--max-size", "0")
    assert ran.returncode == 0 and "0 engines" in ran.stdout


def test_a_killed_build_leaves_nothing_once_the_next_is_done(tmp_path):
    request = asked(tmp_path / "a")
    stale = request.folder / "engines" / ".tensorrt-rtx-sm89.abcdefgh.partial"
    stale.mkdir(parents=True)
    (stale / "plan").write_text("half")
    compile_engine(request)
    assert left_in(Path(request.folder) / "engines") == [
        "tensorrt-rtx-sm89.layers.json",
        "tensorrt-rtx-sm89.plan",
    ]


def test_the_command_needs_a_folder(blockforge, monkeypatch):
    ran = blockforge("cache", "ls")
    assert ran.returncode == 2 and "BLOCKFORGE_CACHE" in ran.stderr

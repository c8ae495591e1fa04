"""The model repository on disk: whole or not at all, and what was there stays."""

import filecmp
import multiprocessing
import shutil

import numpy as np
import pytest
from engine_graphs import HIDDEN, model_of
from onnx import TensorProto, helper
from serving_bundles import Parts, make_bundle
from triton_rules import faults, read_config

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.engines.serving import triton_repository
from blockforge.engines.serving.triton_repository import PackOptions, pack_triton
from blockforge.engines.target import Target

CPU = [Target.parse("onnxruntime:cpu")]


def pack(bundle, repository, **options):
    return pack_triton(bundle, repository, targets=CPU, options=PackOptions(**options))


def tree(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_the_weights_lie_beside_the_graph_and_are_copies(bundle, tmp_path):
    (model,) = pack(bundle, tmp_path / "new" / "repository")
    version = model.path / "1"
    assert tree(version) == ["model.onnx", "model.onnx.data"]
    for name in tree(version):
        source = bundle.path / "fp32" / name
        assert filecmp.cmp(version / name, source, shallow=False)
        assert source.stat().st_nlink == 1  # compile refuses weights with two links
    assert model.path.stat().st_mode & 0o777 == 0o755
    assert [p.name for p in model.path.parent.iterdir()] == ["chain"]


def int8_weights(scale):
    """One product with an INT8 weight, whose scale's type decides what ONNX Runtime makes of it."""
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["q", "s"], ["w"], axis=1, output_dtype=TensorProto.FLOAT16
        ),
        helper.make_node("MatMul", ["hidden_states", "w"], ["output"]),
    ]
    edge = ("fp16", ["b", "s", HIDDEN])
    constants = {"q": np.ones((HIDDEN, HIDDEN), np.int8), "s": np.full(HIDDEN, 0.01, scale)}
    return model_of(nodes, {"hidden_states": edge}, {"output": edge}, constants)


@pytest.mark.parametrize(("scale", "level"), [(np.float32, 2), (np.float16, 0)])
def test_a_graph_that_onnxruntime_would_spoil_is_left_as_it_is(tmp_path, scale, level):
    """FP32 scales beside FP16 products: Triton's backend is told not to optimise, else it refuses the model."""
    parts = Parts(model=int8_weights(scale), precision="fp16", golden=False)
    (model,) = pack(make_bundle(tmp_path / "b", parts), tmp_path / "r")
    config = read_config(model.path)
    assert config.optimization.graph.level == level and faults(model.path, config) == []
    assert any("Q/DQ" in note for note in model.notes) == bool(level)


def test_a_second_version_keeps_the_first(bundle, tmp_path):
    pack(bundle, tmp_path)
    (tmp_path / "chain" / "labels.txt").write_text("kept")
    first = (tmp_path / "chain/1/model.onnx.data").read_bytes()
    (model,) = pack(bundle, tmp_path, version=2, delay=7)
    assert tree(tmp_path / "chain/1") == tree(tmp_path / "chain/2")
    assert (tmp_path / "chain/1/model.onnx.data").read_bytes() == first
    assert (tmp_path / "chain/labels.txt").read_text() == "kept"
    config = read_config(model.path)
    assert faults(model.path, config) == []
    assert config.dynamic_batching.max_queue_delay_microseconds == 7
    assert [p.name for p in tmp_path.iterdir()] == ["chain"]


def test_a_version_that_is_there_needs_force(bundle, tmp_path):
    pack(bundle, tmp_path)
    before = tree(tmp_path)
    (tmp_path / "chain/1/model.onnx").write_bytes(b"old")
    with pytest.raises(UsageError, match=r"version 1 is there already.*--version.*--force"):
        pack(bundle, tmp_path)
    assert (tmp_path / "chain/1/model.onnx").read_bytes() == b"old"
    pack(bundle, tmp_path, force=True)
    assert (tmp_path / "chain/1/model.onnx").read_bytes() != b"old"
    assert tree(tmp_path) == before


def test_another_signature_needs_another_name(bundle, tmp_path):
    pack(bundle, tmp_path)
    for changed in ({"max_batch": 4}, {"max_batch": 4, "force": True}):
        with pytest.raises(UsageError, match=r"version 1 there has another signature.*--name"):
            pack(bundle, tmp_path, version=2, **changed)
    pack(bundle, tmp_path, max_batch=4, force=True)  # the only version: nothing else depends on it
    assert read_config(tmp_path / "chain").max_batch_size == 4


def test_a_folder_that_is_no_model_is_left_alone(bundle, tmp_path):
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="no model of Triton's"):
        pack(bundle, tmp_path, force=True)
    assert tree(tmp_path) == ["chain/thesis.txt"]


@pytest.mark.parametrize("there", [False, True])
def test_an_interruption_leaves_what_was_there(bundle, tmp_path, monkeypatch, there):
    if there:
        pack(bundle, tmp_path)
    before = tree(tmp_path)

    def full(source, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(triton_repository.shutil, "copyfile", full)
    with pytest.raises(UsageError, match="No space left on device"):
        pack(bundle, tmp_path, version=2)
    monkeypatch.setattr(
        triton_repository.shutil, "copyfile", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        pack(bundle, tmp_path, version=2)
    assert tree(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == (["chain"] if there else [])


def test_a_swap_that_fails_puts_the_old_model_back(bundle, tmp_path, monkeypatch):
    pack(bundle, tmp_path)
    before, path = tree(tmp_path), triton_repository.Path
    rename = path.rename

    def refuse(self, target):
        if self.name.endswith(".partial"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(path, "rename", refuse)
    with pytest.raises(UsageError, match="Input/output error"):
        pack(bundle, tmp_path, version=2)
    assert tree(tmp_path) == before


def test_a_damaged_bundle_is_not_packed(bundle, tmp_path):
    shutil.copytree(bundle.path, tmp_path / "b")
    data = tmp_path / "b/fp32/model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ArtefactError, match=r"model\.onnx\.data"):
        pack(type(bundle).open(tmp_path / "b"), tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "../up"}, "a folder and a part of the URL"),
        ({"name": ".hidden"}, "a folder and a part of the URL"),
        ({"version": 0}, "1 or more"),
        ({"instances": 0}, "1 or more"),
        ({"delay": -1}, "0 or more"),
    ],
)
def test_options_that_triton_cannot_have(options, words):
    with pytest.raises(UsageError, match=words):
        PackOptions(**options)


def _pack_version(path, repository, version):
    from blockforge.core.bundle import Bundle

    pack(Bundle.open(path), repository, version=version)


def test_two_processes_at_once_lose_no_version(bundle, tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_pack_version, args=(bundle.path, tmp_path, n)) for n in (1, 2, 3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert sorted(p.name for p in (tmp_path / "chain").iterdir() if p.is_dir()) == ["1", "2", "3", "warmup"]  # fmt: skip


def test_a_name_that_no_folder_can_have_is_mended(tmp_path):
    made = make_bundle(tmp_path / "b", Parts(golden=False))
    renamed = type(made)(made.path, made.manifest.model_copy(update={"name": "../a b"}))
    (model,) = pack(renamed, tmp_path / "r")
    assert model.path.parent == tmp_path / "r" and faults(model.path, read_config(model.path)) == []


def test_a_model_that_a_killed_pack_had_moved_aside_is_back(bundle, tmp_path):
    pack(bundle, tmp_path)
    (tmp_path / "chain").rename(tmp_path / ".chain.12345678.old")
    pack(bundle, tmp_path, version=2)
    assert (tmp_path / "chain/1/model.onnx").is_file() and (tmp_path / "chain/2").is_dir()
    assert [p.name for p in tmp_path.iterdir()] == ["chain"]

"""The bundle is written whole or not at all, and a changed byte is found."""

import json

import pytest

from blockforge.core.bundle import MANIFEST, Bundle, adopt, seal, write_bundle
from blockforge.core.errors import ArtefactError, UsageError
from blockforge.core.manifest import Manifest


def manifest(**changes):
    fields = {
        "name": "tiny",
        "created": "2026-01-01T00:00:00Z",
        "recipe": {"name": "tiny"},
        "tools": {"torch": "2.13.0"},
        "variants": (),
    }
    return Manifest(**fields | changes)


def written(path, content=b"weights"):
    with write_bundle(path) as folder:
        (folder / "fp32").mkdir()
        (folder / "fp32" / "model.onnx").write_bytes(content)
        seal(folder, manifest())
    return Bundle.open(path)


def left_over(folder):
    return sorted(p.name for p in folder.iterdir())


def test_what_is_written_is_read_and_verifies(tmp_path):
    bundle = written(tmp_path / "b")
    bundle.verify()
    assert bundle.manifest.files["fp32/model.onnx"].bytes == 7
    assert left_over(tmp_path) == ["b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interruption_leaves_nothing(tmp_path, error):
    with pytest.raises(error), write_bundle(tmp_path / "deep" / "b") as folder:
        (folder / "half").write_text("x")
        raise error
    assert left_over(tmp_path) == []


def test_an_interruption_leaves_the_earlier_bundle(tmp_path):
    written(tmp_path / "b")
    with pytest.raises(KeyboardInterrupt), write_bundle(tmp_path / "b"):
        raise KeyboardInterrupt
    Bundle.open(tmp_path / "b").verify()
    assert left_over(tmp_path) == ["b"]


def test_a_new_build_replaces_the_earlier_one(tmp_path):
    written(tmp_path / "b")
    written(tmp_path / "b", b"other").verify()
    assert (tmp_path / "b/fp32/model.onnx").read_bytes() == b"other"
    assert left_over(tmp_path) == ["b"]


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="no bundle"):
        written(tmp_path / "home")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="a file"):
        written(tmp_path / "file")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "x"


def test_any_manifest_does_not_make_a_folder_a_bundle(tmp_path):
    (tmp_path / "ext").mkdir()
    (tmp_path / "ext" / MANIFEST).write_text('{"name": "an extension"}')
    (tmp_path / "ext" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="no bundle"):
        written(tmp_path / "ext")
    assert (tmp_path / "ext" / "thesis.tex").read_text() == "x"


def test_a_file_that_the_manifest_does_not_list_is_never_lost(tmp_path):
    written(tmp_path / "b")
    (tmp_path / "b" / "NOTES.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"NOTES\.txt"):
        written(tmp_path / "b")
    assert (tmp_path / "b" / "NOTES.txt").read_text() == "mine"


def test_an_output_that_is_a_link_is_written_where_it_leads(tmp_path):
    written(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    written(tmp_path / "link", b"through the link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/fp32/model.onnx").read_bytes() == b"through the link"
    assert left_over(tmp_path) == ["link", "real"]


def test_a_name_that_no_file_system_takes_is_one_error(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        written(tmp_path / ("n" * 300))


@pytest.mark.parametrize("path", ["golden.safetensors", "../outside", "/etc/passwd"])
def test_a_manifest_that_names_what_it_does_not_hash_is_refused(tmp_path, path):
    written(tmp_path / "b")
    file = tmp_path / "b" / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | {"golden": path}))
    with pytest.raises(ArtefactError, match=r"without its hash|leaves"):
        Bundle.open(tmp_path / "b")


def test_a_place_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write"):
        written(tmp_path / "file" / "b")


def test_a_folder_adopts_what_it_does_not_have(tmp_path):
    bundle = written(tmp_path / "b")
    with write_bundle(bundle.path) as folder:
        (folder / "new").write_text("y")
        adopt(bundle, folder)
        seal(folder, bundle.manifest)
    edited = Bundle.open(tmp_path / "b")
    edited.verify()
    assert set(edited.manifest.files) == {"fp32/model.onnx", "new"}
    assert (edited.path / "fp32/model.onnx").stat().st_nlink == 1
    with pytest.raises(RuntimeError), write_bundle(bundle.path) as folder:
        adopt(edited, folder)
        (folder / "new").unlink()
        raise RuntimeError
    Bundle.open(tmp_path / "b").verify()


def test_a_file_that_replaces_an_adopted_one_is_hashed_anew(tmp_path):
    bundle = written(tmp_path / "b")
    with write_bundle(bundle.path) as folder:
        (folder / "fp32").mkdir()
        (folder / "fp32/model.onnx").write_bytes(b"another")
        adopt(bundle, folder)
        seal(folder, bundle.manifest)
    Bundle.open(tmp_path / "b").verify()
    assert (tmp_path / "b/fp32/model.onnx").read_bytes() == b"another"


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_a_damaged_file_is_named(tmp_path, damage):
    bundle = written(tmp_path / "b")
    file = tmp_path / "b/fp32/model.onnx"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"weigh" if damage == "cut" else b"Weights")
    with pytest.raises(ArtefactError, match=r"fp32/model\.onnx"):
        bundle.verify()


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b", "", "a\\..\\b"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, path):
    bundle = written(tmp_path / "b")
    with pytest.raises(ArtefactError, match="leaves"):
        bundle.file(path)


def test_a_link_that_leaves_the_folder_is_refused(tmp_path):
    bundle = written(tmp_path / "b")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "b" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ArtefactError, match="link"):
        bundle.file("link")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"surprise": 1}, "surprise"),
        ({"name": None}, "name"),
        ({"files": {"a": {"bytes": 1, "sha256": "short"}}}, "sha256"),
    ],
)
def test_a_manifest_that_does_not_fit_names_the_field(tmp_path, change, word):
    written(tmp_path / "b")
    file = tmp_path / "b" / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ArtefactError, match=word):
        Bundle.open(tmp_path / "b")


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe"])
def test_no_manifest_is_one_error(tmp_path, content):
    if content is not None:
        (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(ArtefactError):
        Bundle.open(tmp_path)

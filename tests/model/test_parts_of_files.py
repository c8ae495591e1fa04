"""A checkpoint in parts: joined in order, once, whole or not at all; every wrong name is one error."""

import sys

import pytest

from blockforge.core.errors import UnavailableError, UsageError
from blockforge.model.checkpoints.parts import joined

SOURCE = "package:big_part*/data/big.gguf.part*"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Two packages with a part each, on the import path, and an empty cache."""
    site = tmp_path / "site"
    for number, text in ((2, b"second"), (1, b"first ")):
        folder = site / f"big_part{number}" / "data"
        folder.mkdir(parents=True)
        (folder / f"big.gguf.part0{number - 1}").write_bytes(text)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return site


def test_parts_are_joined_in_order_and_once(installed):
    path = joined(SOURCE)
    assert path.read_bytes() == b"first second" and path.suffix == ".gguf"
    stamp = path.stat().st_mtime_ns
    assert joined(SOURCE) == path and path.stat().st_mtime_ns == stamp


def test_other_parts_make_another_file(installed):
    before = joined(SOURCE)
    (installed / "big_part1" / "data" / "big.gguf.part00").write_bytes(b"other ")
    after = joined(SOURCE)
    assert after != before and after.read_bytes() == b"other second"


def test_no_part_is_not_an_empty_file(installed, tmp_path):
    with pytest.raises(UnavailableError, match="no such part"):
        joined("package:small_part*/data/big.gguf.part*")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "source", ["package:big_part1/data/big.gguf.part*", "package:big*/../x.part*", "package:big*/*"]
)
def test_another_form_is_refused(installed, source):
    with pytest.raises(UsageError, match="not the form"):
        joined(source)


def test_a_cache_that_cannot_be_written_is_named(installed, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        joined(SOURCE)

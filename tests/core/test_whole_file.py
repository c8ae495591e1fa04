"""A file is whole or is not there, and nothing is left beside it."""

import pytest

from blockforge.core.whole_file import whole_file, write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("content", "stored"), [(b"\x00new", b"\x00new"), ("né\n", b"n\xc3\xa9\n")]
)
def test_it_replaces_what_was_there(tmp_path, content, stored):
    (tmp_path / "f").write_bytes(b"old, and longer")
    write_whole(tmp_path / "f", content)
    assert (tmp_path / "f").read_bytes() == stored and names(tmp_path) == ["f"]
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_one(tmp_path, error):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(error), whole_file(tmp_path / "f") as file:
        file.write(b"half")
        assert len(names(tmp_path)) == 2 and (tmp_path / "f").read_bytes() == b"old"
        raise error
    assert (tmp_path / "f").read_bytes() == b"old" and names(tmp_path) == ["f"]


def test_a_place_that_is_a_folder_stays_one(tmp_path):
    (tmp_path / "f").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "f", b"new")
    assert names(tmp_path) == ["f"] and (tmp_path / "f").is_dir()

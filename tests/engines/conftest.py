"""Small graphs for engine tests, and the folder of listings that TensorRT-RTX 1.7.1 wrote for some of them."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # engine_graphs


@pytest.fixture(scope="session")
def listings():
    """Name -> text of a recorded `Layers:` listing."""
    return {
        path.stem: path.read_text(encoding="utf-8") for path in (HERE / "listings").glob("*.txt")
    }


@pytest.fixture(autouse=True)
def no_cache_of_the_user(monkeypatch):
    """Engines are built, whatever the shell names as their cache."""
    monkeypatch.delenv("BLOCKFORGE_CACHE", raising=False)
    monkeypatch.delenv("BLOCKFORGE_CACHE_SIZE", raising=False)

"""Fixtures of the plugin tests: the interpreter process and TensorRT's plugin layer, each started once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside the tests


@pytest.fixture(scope="session")
def interpret():
    """Triton's interpreter with corrected casts, in its own process."""
    from blockforge.plugins.interpreter import Interpreter

    pytest.importorskip("triton")
    with Interpreter() as run:
        yield run


@pytest.fixture
def trtp():
    """TensorRT's own plugin layer, freshly loaded over a stand-in for the library."""
    from tensorrt_stand_in import load_plugin_layer

    if not (layer := load_plugin_layer()):
        pytest.skip("tensorrt-cu13-bindings is not installed")
    return layer

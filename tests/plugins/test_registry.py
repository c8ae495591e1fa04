"""The registry: one row per key, an error that lists what exists, and nothing in onnx's own tables."""

import subprocess
import sys

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from blockforge.core.errors import UsageError
from blockforge.plugins.registry import find_plugin, register, registered


def test_a_key_is_taken_once():
    with pytest.raises(ValueError, match="already registered"):
        register(find_plugin("blockforge", "SwiGLU", 1))


def test_an_unknown_operator_lists_what_exists():
    with pytest.raises(UsageError, match=r"blockforge::SwiGLU version 1"):
        find_plugin("blockforge", "SwiGLU", 2)


def test_onnx_can_still_load_its_reference_evaluator():
    """ONNX has an operator SwiGLU too, and refuses two of one name in its global table."""
    code = "import blockforge.plugins, onnx.reference, onnxscript"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_swiglu_body_equals_the_formula():
    plugin = next(p for p in registered() if p.key == ("blockforge", "SwiGLU", 1))
    gate = np.concatenate([np.linspace(-20, 20, 101), [-800, 800]])
    up = np.linspace(3, -2, gate.size)
    with np.errstate(over="ignore"):
        expected = gate / (1 + np.exp(-gate)) * up
    narrow = {"gate": gate.astype(np.float32), "up": up.astype(np.float32)}
    (body,) = ReferenceEvaluator(plugin.body).run(None, narrow, attributes={})
    np.testing.assert_allclose(plugin.reference(gate, up), expected, rtol=1e-14)
    # Rounded inputs, exp, divide and two products: six roundings; exp moves by |gate| eps.
    slack = (6 + np.abs(gate)) * np.finfo(np.float32).eps * np.abs(expected)
    assert (np.abs(body - expected) <= slack + 1e-38).all()

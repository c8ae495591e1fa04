"""Who gets a plugin: the recipe's wish, the runtime's abilities, the evidence."""

import json

import pytest
from plugin_samples import NAMES

from blockforge.core.errors import UsageError
from blockforge.plugins.listing import list_plugins
from blockforge.plugins.policy import EVIDENCE, Evidence, plugin_policy

SHOWN = {"AddRMSNorm": Evidence(rtx_kernels=1, speedup={90: 1.2, 100: 1.01})}
FULL = {"runtime": "tensorrt", "arch": 90}


def test_auto_takes_nothing_without_a_measurement():
    choices = plugin_policy("auto", NAMES, **FULL)
    assert [c.operator for c in choices] == NAMES
    assert not any(c.plugin for c in choices)
    assert choices[0].reason == "not measured on sm_90; TensorRT-RTX plans 1 kernel(s) for the body"


def test_every_operator_has_its_evidence():
    assert list(EVIDENCE) == NAMES


def test_auto_takes_what_is_shown_to_win():
    (choice,) = plugin_policy("auto", ["AddRMSNorm", "AddRMSNorm"], **FULL, evidence=SHOWN)
    assert choice.plugin
    assert choice.reason == "measured: beats the body, 1.20x"
    (choice,) = plugin_policy("auto", ["AddRMSNorm"], runtime="tensorrt", arch=100, evidence=SHOWN)
    assert not choice.plugin  # within the noise


@pytest.mark.parametrize("runtime", ["tensorrt-rtx", "onnxruntime"])
def test_other_runtimes_get_the_body(runtime):
    (choice,) = plugin_policy("auto", ["AddRMSNorm"], runtime=runtime, arch=90, evidence=SHOWN)
    assert not choice.plugin
    assert choice.reason == f"{runtime} takes no plugins"
    with pytest.raises(UsageError, match=f"{runtime} takes no plugins. Leave AddRMSNorm out"):
        plugin_policy(["AddRMSNorm"], ["AddRMSNorm"], runtime=runtime, arch=90)


def test_off_and_names():
    off = plugin_policy("off", ["AddRMSNorm"], **FULL, evidence=SHOWN)
    assert [(c.plugin, c.reason) for c in off] == [(False, "plugins are off")]
    named = plugin_policy(["RMSNorm"], ["SwiGLU", "RMSNorm"], **FULL)
    assert [c.plugin for c in named] == [False, True]


@pytest.mark.parametrize(
    ("setting", "words"), [("always", "neither auto nor off"), (["RmsNorm"], "no such operator")]
)
def test_a_setting_that_does_not_exist(setting, words):
    with pytest.raises(UsageError, match=words):
        plugin_policy(setting, ["RMSNorm"], **FULL)


def test_a_named_plugin_without_a_kernel():
    with pytest.raises(UsageError, match="no kernel for sm_80"):
        plugin_policy(["SwiGLUQuantize"], ["SwiGLUQuantize"], runtime="tensorrt", arch=80)


def test_the_listing_counts_bytes_as_the_facts_do():
    """Bytes per element for two-byte activations: fused, in primitive operators, one kernel per operator."""
    rows = {p.name: (p.bytes_fused, p.bytes_primitive, p.bytes_kernels) for p in list_plugins()}
    assert list(rows) == NAMES
    assert rows["RMSNorm"] == (4, 36, 4)
    assert rows["AddRMSNorm"] == (8, 42, 10)
    assert rows["RMSNormQuantize"] == (3, 47, 7)
    assert rows["AddRMSNormQuantize"] == (7, 53, 13)
    assert rows["SwiGLU"] == rows["SwiGLUPacked"] == (6, 16, 6)
    assert rows["SwiGLUQuantize"] == rows["SwiGLUPackedQuantize"] == (5, 27, 9)
    assert rows["QKNormRope"] == (4, 56, 8)


def test_the_listing_is_json():
    text = json.dumps([p.json() for p in list_plugins()])
    assert json.loads(text)[0]["registers"]["90"] > 0

"""Fused operators, one file each. The rows below are the registry: importing the package registers them all."""

from . import (
    add_layer_norm,
    add_layer_norm_quantize,
    add_rms_norm,
    add_rms_norm_quantize,
    geglu,
    geglu_packed,
    geglu_packed_quantize,
    geglu_quantize,
    layer_norm,
    layer_norm_quantize,
    qk_norm_rope,
    rms_norm,
    rms_norm_quantize,
    swiglu,
    swiglu_packed,
    swiglu_packed_quantize,
    swiglu_quantize,
)
from .registry import register

OPERATORS = (
    rms_norm.PLUGIN,
    add_rms_norm.PLUGIN,
    rms_norm_quantize.PLUGIN,
    add_rms_norm_quantize.PLUGIN,
    layer_norm.PLUGIN,
    add_layer_norm.PLUGIN,
    layer_norm_quantize.PLUGIN,
    add_layer_norm_quantize.PLUGIN,
    swiglu.PLUGIN,
    swiglu_packed.PLUGIN,
    swiglu_quantize.PLUGIN,
    swiglu_packed_quantize.PLUGIN,
    geglu.PLUGIN,
    geglu_packed.PLUGIN,
    geglu_quantize.PLUGIN,
    geglu_packed_quantize.PLUGIN,
    qk_norm_rope.PLUGIN,
)

for _plugin in OPERATORS:
    register(_plugin)

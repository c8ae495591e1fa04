"""Registers per thread, read from the cubin: FP16, rows of 4096 (heads of 128); operator -> sm -> count.

Written by `python -m blockforge.plugins.measure`; a test says when a number is out of date.
"""

REGISTERS: dict[str, dict[int, int]] = {
    "RMSNorm": {80: 47, 89: 46, 90: 46, 100: 46, 120: 45},
    "AddRMSNorm": {80: 47, 89: 46, 90: 46, 100: 46, 120: 45},
    "RMSNormQuantize": {89: 48, 90: 48, 100: 48, 120: 47},
    "AddRMSNormQuantize": {89: 48, 90: 48, 100: 48, 120: 48},
    "LayerNorm": {80: 61, 89: 63, 90: 63, 100: 61, 120: 61},
    "AddLayerNorm": {80: 61, 89: 63, 90: 61, 100: 61, 120: 61},
    "LayerNormQuantize": {89: 64, 90: 64, 100: 57, 120: 58},
    "AddLayerNormQuantize": {89: 64, 90: 64, 100: 59, 120: 61},
    "SwiGLU": {80: 32, 89: 40, 90: 32, 100: 32, 120: 40},
    "SwiGLUPacked": {80: 32, 89: 39, 90: 32, 100: 32, 120: 38},
    "SwiGLUQuantize": {89: 39, 90: 32, 100: 32, 120: 40},
    "SwiGLUPackedQuantize": {89: 39, 90: 32, 100: 32, 120: 40},
    "GeGLU": {80: 32, 89: 40, 90: 32, 100: 34, 120: 40},
    "GeGLUPacked": {80: 47, 89: 47, 90: 48, 100: 48, 120: 48},
    "GeGLUQuantize": {89: 40, 90: 32, 100: 32, 120: 40},
    "GeGLUPackedQuantize": {89: 48, 90: 48, 100: 48, 120: 48},
    "QKNormRope": {80: 72, 89: 72, 90: 72, 100: 80, 120: 72},
}

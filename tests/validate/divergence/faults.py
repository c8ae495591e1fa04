"""The faults that diff must find: where each is planted, at which node it lies and what it is called."""

from dataclasses import dataclass

import numpy as np

from .planted import (
    Edit,
    add_to_positions,
    attribute,
    bad_column,
    bad_row,
    become,
    before,
    exchanged_rows,
    fp8_activation,
    fp16_statistics,
    gelu_gate,
    heads,
    look_ahead,
    narrow_angles,
    rewire,
    swap,
    tiled_heads,
    untouched,
    weight,
)


@dataclass(frozen=True)
class Fault:
    """graph: which clean export it goes into. node: the right culprit. cause: the right diagnosis; words: in its text."""

    graph: str
    edit: Edit
    node: str
    cause: str
    words: str = ""


A0, A1, M0, M1 = "layers.0.self_attn", "layers.1.self_attn", "layers.0.mlp", "layers.1.mlp"
FAULTS: dict[str, Fault] = {
    "eps": Fault(
        "llama",
        attribute("layers.1.input_layernorm/RMSNormalization", epsilon=1e-2),
        "layers.1.input_layernorm/RMSNormalization",
        "epsilon",
        "0.01",
    ),
    "mask off by one": Fault(
        "llama", look_ahead(f"{A0}/Attention", 1), f"{A0}/Attention", "mask", "1 key"
    ),
    "missing causal": Fault(
        "llama", attribute(f"{A1}/Attention", is_causal=0), f"{A1}/Attention", "mask", "causal"
    ),
    "swapped gate and up": Fault("llama", swap(f"{M0}/SwiGLU"), f"{M0}/SwiGLU", "swapped operands"),
    "un-rotated K": Fault(
        "llama",
        rewire(f"{A1}/Attention", i1=f"{A1}.k_proj"),
        f"{A1}/Attention",
        "wrong operand",
        f"{A1}.k_proj",
    ),
    "wrong scale": Fault(
        "llama", attribute(f"{A0}/Attention", scale=0.125), f"{A0}/Attention", "scale", "0.5"
    ),
    "fp16 norm": Fault(
        "loud",
        fp16_statistics("layers.1.post_attention_layernorm/RMSNormalization"),
        "layers.1.post_attention_layernorm/RMSNormalization/Mul_0",
        "overflow",
    ),
    "transposed weight": Fault(
        "llama",
        weight(f"{A0}.q_proj.weight", np.transpose),
        f"{A0}.q_proj/MatMul",
        "transposed weight",
    ),
    "one bad row": Fault(
        "llama",
        weight(f"{M1}.down_proj.weight", lambda w: bad_row(w, 77, 3.0)),
        f"{M1}.down_proj/MatMul",
        "weight row",
        "77",
    ),
    "one bad column": Fault(
        "llama",
        weight(f"{M0}.up_proj.weight", lambda w: bad_column(w, 5)),
        f"{M0}.up_proj/MatMul",
        "weight column",
        "5",
    ),
    "wrong head order": Fault(
        "llama",
        weight(f"{A0}.q_proj.weight", lambda w: heads(w, [1, 0, 2, 3], 1, 16)),
        f"{A0}.q_proj/MatMul",
        "channel order",
        "16",
    ),
    "wrong head order in o_proj": Fault(
        "llama",
        weight(f"{A1}.o_proj.weight", lambda w: heads(w, [3, 1, 2, 0], 0, 16)),
        f"{A1}.o_proj/MatMul",
        "channel order",
        "16",
    ),
    "missing bias": Fault(
        "bert", become(f"{A0}.q_proj/Add", "Identity", (0,)), f"{A0}.q_proj/Add", "missing bias"
    ),
    "gelu tanh": Fault(
        "bert", attribute(f"{M0}/Gelu", approximate="tanh"), f"{M0}/Gelu", "activation", "tanh"
    ),
    "relu for gelu": Fault(
        "bert", become(f"{M0}/Gelu", "Relu", (0,)), f"{M0}/Gelu", "activation", "Gelu"
    ),
    "gelu for silu": Fault(
        "llama", gelu_gate(f"{M1}/SwiGLU"), f"{M1}/SwiGLU", "activation", "GeGLU"
    ),
    "rope theta": Fault(
        "llama",
        weight("rotary_emb/constant_2", lambda w: 500000.0 ** -(np.arange(8) / 8)),
        "rotary_emb/Mul",
        "rope theta",
        "500000",
    ),
    "position off by one": Fault(
        "llama", add_to_positions(1), "rotary_emb/Expand", "positions", "1"
    ),
    "rope layout": Fault(
        "llama",
        attribute(f"{A0}/RotaryEmbedding", interleaved=1),
        f"{A0}/RotaryEmbedding",
        "rope layout",
        "interleaved",
    ),
    "tiled key heads": Fault(
        "llama", tiled_heads(f"{A0}/Attention", 2, 16), f"{A0}/Attention", "head mapping"
    ),
    "softcap missing": Fault(
        "gemma", attribute(f"{A0}/Attention", softcap=None), f"{A0}/Attention", "softcap", "50"
    ),
    "window off by one": Fault(
        "gemma", become("masks/Greater", "GreaterOrEqual", (0, 1)), "masks/Greater", "mask", "1 key"
    ),
    "final norm weight": Fault(
        "llama",
        weight("norm.weight", lambda w: w * 0 + 1.5),
        "norm/RMSNormalization",
        "constant weight",
        "1.5",
    ),
    "tied head, other rows": Fault(
        "llama",
        before("lm_head/MatMul", 1, "Gather", (np.roll(np.arange(256), 1),), axis=1),
        "lm_head/MatMul",
        "channel order",
    ),
    "residual skipped": Fault(
        "llama",
        become("layers.0/Add", "Identity", (1,)),
        "layers.0/Add",
        "missing operand",
        "embed_tokens",
    ),
    "fp16 overflow": Fault("overflow", untouched, f"{M0}/SwiGLU", "overflow"),
    "fp8 scale": Fault(
        "llama",
        fp8_activation(f"{M0}.down_proj/MatMul", 1.8),
        "planted/quantize",
        "saturation",
        "is too small",
    ),
    "embedding row swapped": Fault(
        "llama",
        weight("embed_tokens.weight", lambda w: exchanged_rows(w, 3, 200)),
        "embed_tokens/Gather",
        "weight row",
        "3",
    ),
    "norm bias": Fault(
        "bert",
        weight("layers.0.post_attention_layernorm.bias", lambda b: b * 0),
        "layers.0.post_attention_layernorm/LayerNormalization",
        "zeroed weight",
    ),
    "zeroed weight": Fault(
        "llama",
        weight(f"{A1}.v_proj.weight", lambda w: w * 0),
        f"{A1}.v_proj/MatMul",
        "zeroed weight",
    ),
    "cast too early": Fault("long", narrow_angles, "rotary_emb/Mul", "narrow type", "fp16"),
}

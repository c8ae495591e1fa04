"""Which systems the zoo builds: the rows of docs/models.md, each with its tiny presets and its published ones."""

from dataclasses import dataclass

from blockforge.model.presets import PRESETS


@dataclass(frozen=True, slots=True)
class System:
    """One row of the page.

    needs: what sets it apart. tiny: the presets that are built. published: how names of its full sizes begin; () for
    a variant that no published model is.
    """

    name: str
    needs: str
    tiny: tuple[str, ...]
    published: tuple[str, ...] = ()

    def full_sizes(self) -> tuple[str, ...]:
        """The presets of published sizes."""
        return tuple(
            name
            for name in PRESETS
            if name.startswith(self.published) and "-tiny" not in name and name != "llama-small"
        )


SYSTEMS: tuple[System, ...] = (
    System(
        "Original Transformer",
        "post-norm, LayerNorm, ReLU, biases, sinusoidal positions; encoder-decoder, encoder, decoder-only",
        ("transformer-tiny", "transformer-tiny-encoder", "transformer-tiny-decoder"),
        ("transformer-",),
    ),
    System(
        "BERT",
        "post-norm, LayerNorm, GELU, padding mask, learned positions, token types, pooler",
        ("bert-tiny",),
        ("bert-", "minilm-"),
    ),
    System(
        "GPT-2, GPT-3",
        "pre-norm, LayerNorm, GELU (tanh), biases, learned positions, packed QKV",
        ("gpt2-tiny",),
        ("gpt2", "gpt-3"),
    ),
    System(
        "Llama 1, 2, 3, Yi",
        "pre-norm, RMSNorm, SwiGLU, RoPE (Llama 3: scaled), multi-head or grouped-query attention",
        ("llama-tiny", "llama-tiny-untied"),
        ("llama-", "smollm2", "tinyllama", "yi-"),
    ),
    System("Mistral", "Llama with a sliding window", ("mistral-tiny",), ("mistral",)),
    System("Qwen2.5", "Llama with biases of q, k and v", ("qwen2.5-tiny",), ("qwen2.5",)),
    System(
        "Qwen3", "Llama with an RMSNorm over each query and key head", ("qwen3-tiny",), ("qwen3",)
    ),
    System(
        "PaLM",
        "attention and feed-forward in parallel, multi-query attention, SwiGLU, no biases",
        ("palm-tiny",),
        ("palm-",),
    ),
    System(
        "T5 v1.1",
        "RMSNorm, unscaled attention, relative position bias, GeGLU; encoder-decoder, encoder",
        ("t5-tiny", "t5-tiny-encoder"),
        ("t5-",),
    ),
    System(
        "Phi-3",
        "Llama with packed QKV, packed gate-up, a window or LongRoPE",
        ("phi-3-tiny", "phi-3-tiny-longrope"),
        ("phi-3",),
    ),
    System(
        "Gemma 2",
        "norms before and after, 1+w norm, GeGLU, softcaps, a window in every other layer",
        ("gemma-2-tiny",),
        ("gemma-2",),
    ),
    System(
        "Gemma 3",
        "Gemma 2 without softcaps, q and k norms, a window in five layers of six",
        ("gemma-3-tiny",),
        ("gemma-3",),
    ),
    System(
        "Grok-1",
        "norms before and after, softcap of the scores, two of eight experts",
        ("grok-1-tiny",),
        ("grok-1",),
    ),
    System(
        "DeepSeek-V3",
        "multi-head latent attention, experts by sigmoid in groups, a shared expert",
        ("deepseek-v3-tiny",),
        ("deepseek-v3",),
    ),
    System("Sandwich norm", "Llama, norms before and after each sub-layer", ("sandwich-tiny",)),
    System("DeepNorm", "norm(alpha x + f(x)), weights shrunk by beta", ("deepnorm-tiny",)),
    System("Partial RoPE", "Llama, a part of each head rotated", ("partial-rope-tiny",)),
    System("Parallel", "Llama, attention and feed-forward over one norm", ("parallel-tiny",)),
    System(
        "GLU, ReGLU, GeGLU",
        "Llama with another gate (SwiGLU is Llama's own)",
        ("glu-tiny", "reglu-tiny", "geglu-tiny"),
    ),
    System(
        "RMSNorm, eps outside the root",
        "Llama with the norm of the RMSNorm paper (inside the root is Llama's own)",
        ("rms-eps-outside-tiny",),
    ),
    System("BatchNorm", "Llama with running statistics, for contrast", ("batchnorm-tiny",)),
)

"""Published sizes by name, and tiny ones of every family for tests and trials."""

from .config import ModelConfig
from .presets_early import EARLY
from .presets_gemma import GEMMA
from .presets_llama import LLAMA
from .presets_tiny import TINY

PRESETS: dict[str, ModelConfig] = {**TINY, **EARLY, **LLAMA, **GEMMA}

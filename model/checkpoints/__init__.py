"""Where weights come from: Hugging Face folders, GGUF files, presets with random weights."""

from .open import open_checkpoint
from .preset import preset_checkpoint
from .protocol import Checkpoint

__all__ = ["Checkpoint", "open_checkpoint", "preset_checkpoint"]

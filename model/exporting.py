"""Whether the module is being captured: then each part emits the ONNX operator that it is."""

import torch


def exporting() -> bool:
    """True inside torch.onnx.export, where parts emit operators instead of plain torch."""
    return torch.onnx.is_in_onnx_export()

"""Keep quantised weights in files until the model is saved, so that memory holds one of them."""

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from .calibrate import Quantized
from .grids import E4M3, ONNX_TYPES
from .qdq import StoredWeight, scale_tensor
from .weights import WeightFormat, codes_tensor, global_scale, scale_codes


@dataclass(slots=True)
class Spill:
    """Writes codes into files of `folder`, one each; the tensors that refer to them live as long as it does."""

    folder: Path
    count: int = 0

    def store(self, done: Quantized, form: WeightFormat, scale_dtype: ir.DataType) -> StoredWeight:
        """The codes of one linear as external data, with its scales in memory."""
        linear = done.linear
        name = f"{linear.weight.name}/quantized"
        codes = codes_tensor(done.codes, form, linear.wants_transposed, name)
        path = self.folder / f"{self.count}.codes"
        self.count += 1
        path.write_bytes(codes.tobytes())
        stored = ir.ExternalTensor(
            path.name, 0, path.stat().st_size, codes.dtype,
            shape=ir.Shape(codes.shape.numpy()), name=name, base_dir=self.folder,
        )  # fmt: skip
        transposed, axis = linear.wants_transposed, _axis(form, linear.wants_transposed)
        scales = done.scales.T.contiguous() if transposed and form.block else done.scales
        if form.two_level:
            whole = global_scale(scales, scale_dtype)
            inner = scale_tensor(
                scale_codes(scales, whole, scale_dtype).numpy(),
                ONNX_TYPES[E4M3.name],
                f"{name}/scale",
            )
            outer = scale_tensor(whole.numpy(), scale_dtype, f"{name}/whole")
            return StoredWeight(stored, inner, axis, form.block, outer)
        kept = scale_tensor(scales.numpy(), scale_dtype, f"{name}/scale")
        return StoredWeight(stored, kept, axis, form.block)


def _axis(form: WeightFormat, transposed: bool) -> int:
    """Output channels for one scale each, the input axis for blocks."""
    out_axis = 0 if transposed else 1
    return 1 - out_axis if form.block else out_axis

"""What a power of two costs the channels that did not need it: those that FP16 then holds as subnormals are named.

    lost bits of channel c:  max |x_c| 2^-k < 2^-14 <= max |x_c|            k: exponent of the whole value

One exponent for a value is chosen by its largest channel. Where channels can have exponents of their own they have them
(migrate.py); what is left here is read by something that sees all channels.
"""

import onnx_ir as ir

from .rescale import Rescaling
from .sizes import Sizes
from .subnormal import NORMAL


def pushed_down(rescaling: Rescaling, sizes: Sizes) -> list[str]:
    """A sentence for each stream with such channels, by its worst value; none for BF16, which has FP32's exponents."""
    if sizes.options.smallest != NORMAL:
        return []
    worst: dict[ir.Value, tuple[int, str]] = {}
    for value, largest in sizes.channels.items():
        bits = rescaling.held.get(value, 0)
        low = (largest >= NORMAL) & (largest * 2.0**-bits < NORMAL)
        count, root = int(low.sum()), sizes.streams.root(value)
        if count > worst.get(root, (0, ""))[0]:
            name = (value.name or "").removesuffix("/unscaled")
            worst[root] = (
                count,
                f"{name}: held at 2^-{bits} of its size, {count} of its {largest.size} channels, up to "
                f"{float(largest[low].max()):.3g}, fall among FP16's subnormals and lose bits; BF16 would hold them",
            )
    return [text for _, text in worst.values()]

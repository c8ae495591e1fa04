"""Give channels powers of two of their own, where one for the whole value would lose bits.

    y_c = x W_c,  z = sum_c y_c V_c      ->      y_c 2^-e_c = x (W_c 2^-e_c),  z = sum_c (y_c 2^-e_c) (V_c 2^e_c)

The exponents are folded into the weights on both sides: no new node, one number a channel. Only channels that pass
the range get one, or are lost among the subnormals (faint_channels). One exponent for all loses bits where it pushes the largest number of another channel, or of the
weight that makes it, among the subnormals, or is not enough to lift the weight that reads an outlier out of them.
Exact in FP32 but for subnormal numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .channels import Along, Channels
from .faint_channels import lifted_channels
from .report import ByChannel, Migrated, PrecisionReport
from .sizes import Sizes
from .weights import Weights, scaled_tensor

# Where the largest number is 8 times the smallest normal one, subnormals lose 2^-14 of it at most: less than rounding
# takes from numbers of a quarter of its size. Below, they lose more.
_ROOM = 8.0


def migrate(
    channels: Channels,
    needs: Mapping[ir.Value, int],
    sizes: Sizes,
    weights: Weights,
    report: PrecisionReport,
) -> None:
    """Change the weights of the graph, and tell `sizes`. needs: bits by which a value passes the range."""
    chosen = lifted_channels(channels, sizes, weights, report)
    asked = [v for v in channels.of if v in needs and sizes.by_channel(v) is not None]
    if asked:
        tally = _tally(channels, asked, sizes, weights)
        for value in asked:
            own = np.unique(channels.of[value])
            if tally.pays(own, needs[value]):
                chosen[own] = np.where(chosen[own] < 0, chosen[own], tally.exponents[own])
    if not chosen.any():
        return
    for along in (*channels.made, *channels.biases):
        _fold(along, chosen[along.channels], weights, report)
    for along in channels.read:
        _fold(along, -chosen[along.channels], weights, report)
    _note(channels, chosen, sizes, report)


@dataclass(frozen=True, slots=True)
class _Tally:
    """What is known of each channel, over all values and weights that it goes through.

    lowest: the exponent that brings it into the range; highest: the largest that the weights reading it can take.
    thin: the smallest of the largest numbers of its values and of the weights that make it, which an exponent shrinks.
    faint: the same of the weights that read it, which an exponent grows. floor: below it a tensor loses bits.
    """

    lowest: np.ndarray
    highest: np.ndarray
    thin: np.ndarray
    faint: np.ndarray
    floor: float

    @property
    def exponents(self) -> np.ndarray:
        """The least exponent of each channel that passes the range at which no weight that reads it loses bits."""
        wish = -np.floor(np.log2(self.faint / self.floor))
        most = np.minimum(self.highest, np.floor(np.log2(self.thin / self.floor)))
        found = np.clip(wish, self.lowest, np.maximum(self.lowest, most))
        return np.where(self.lowest > 0, found, 0).astype(int)

    def pays(self, own: np.ndarray, bits: int) -> bool:
        """Whether exponents by channel hold a value's channels `own` better than 2^-bits for all, and can be given."""
        lowest, thin, faint = self.lowest[own], self.thin[own], self.faint[own]
        exponents = self.exponents[own]
        if bool((lowest > self.highest[own]).any()):
            return False
        pushed = (thin >= self.floor) & (thin * 2.0**-bits < self.floor) & (exponents < bits)
        left = (lowest > 0) & (faint * 2.0**bits < self.floor) & (exponents > bits)
        return bool((pushed | left).any())


def _tally(channels: Channels, asked: list[ir.Value], sizes: Sizes, weights: Weights) -> _Tally:
    """Read the weights, one at a time, that the channels of the values `asked` go through."""
    count, limit = channels.count, sizes.options.limit
    largest, reading = np.zeros(count), np.zeros(count)
    thin, faint = np.full(count, np.inf), np.full(count, np.inf)
    concerned, free = np.zeros(count, bool), channels.free.copy()
    for value in asked:
        concerned[channels.of[value]] = True
    for value, numbers in channels.of.items():
        if not concerned[numbers].any():
            continue
        size = sizes.by_channel(value)
        if size is None:
            free[numbers] = False
        else:
            np.maximum.at(largest, numbers, size)
            np.minimum.at(thin, numbers, np.where(size > 0, size, np.inf))
    for places, most, least in (
        (channels.made, largest, thin),
        (channels.biases, largest, None),
        (channels.read, reading, faint),
    ):
        for along in places:
            if not concerned[along.channels].any():
                continue
            size = weights.largest_along(along.weight, along.axis)
            np.maximum.at(most, along.channels, size)
            if least is not None:
                np.minimum.at(least, along.channels, np.where(size > 0, size, np.inf))
    with np.errstate(divide="ignore"):
        lowest = np.maximum(np.ceil(np.log2(largest / limit)), 0)
        highest = np.where(free, np.maximum(np.floor(np.log2(limit / reading)), 0), 0)
    return _Tally(lowest, highest, thin, faint, sizes.options.smallest * _ROOM)


def _fold(along: Along, bits: np.ndarray, weights: Weights, report: PrecisionReport) -> None:
    """Divide the weight by 2^bits along its axis."""
    weight = along.weight
    if not bits.any() or weight.const_value is None:
        return
    shape = [1] * len(weight.const_value.shape)
    shape[along.axis] = bits.size
    weight.const_value = scaled_tensor(weight.const_value, bits.reshape(shape))
    weights.rescaled_along(weight)
    exponents = {int(place): int(bits[place]) for place in np.flatnonzero(bits)}
    report.by_channel.setdefault(str(weight.name), []).append(ByChannel(along.axis, exponents))


def _note(channels: Channels, chosen: np.ndarray, sizes: Sizes, report: PrecisionReport) -> None:
    """Tell the sizes and the report which values hold channels with exponents."""
    values: dict[ir.Value, list[ir.Value]] = {}
    for value, numbers in channels.of.items():
        for origin in {channels.origin(n) for n in np.unique(numbers[chosen[numbers] != 0])}:
            values.setdefault(origin, []).append(value)
    for origin, held in values.items():
        own = np.unique(np.concatenate([channels.of[v].reshape(-1) for v in held]))
        bits = [int(chosen[n]) for n in own if chosen[n] and channels.origin(n) is origin]
        worst = max(held, key=sizes.size)
        report.migrated.append(
            Migrated(
                len(bits), (min(bits), max(bits)), str(worst.name), sizes.size(worst),
                tuple(str(v.name) for v in held),
            )
        )  # fmt: skip
    for value in {v: None for held in values.values() for v in held}:
        size = sizes.by_channel(value)
        if size is not None and size.any():
            sizes.shrunk[value] = float(
                (size * 2.0 ** -chosen[channels.of[value]]).max() / size.max()
            )

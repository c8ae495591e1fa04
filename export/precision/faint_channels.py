"""Channels that FP16 would hold as subnormals while they matter to what reads them: each by a power of two of its own.

    lost = sum_c taken_c |V_c|^2  /  sum_c |W_c|^2 |V_c|^2           W_c makes channel c, V_c reads it

A weight's own energy does not show such a channel. One that is tiny and is read as the others are loses nothing to speak of.
"""

from collections.abc import Iterator

import numpy as np
import torch

from .channels import Along, Channels
from .report import PrecisionReport
from .sizes import Sizes
from .subnormal import LOST, NORMAL, Faint, bits_to_hold, room_to_shrink
from .weights import Weights


def lifted_channels(
    channels: Channels, sizes: Sizes, weights: Weights, report: PrecisionReport
) -> np.ndarray:
    """Channel number -> exponent, below 0 where the channel is to be held larger, 0 elsewhere."""
    chosen = np.zeros(channels.count, int)
    if sizes.options.smallest != NORMAL:
        return chosen
    for along in channels.made:
        whole = weights.faint(along.weight).too_faint  # then one exponent for all of it will do
        faint = {} if whole else dict(_faint(along, weights))
        if faint:
            for number, bits in _worth(along, faint, channels, sizes, weights, report):
                chosen[number] = -bits
    return chosen


def _faint(along: Along, weights: Weights) -> Iterator[tuple[int, Faint]]:
    """Places along the axis that lose too much of their own energy."""
    rms = weights.rms_along(along.weight, along.axis)
    places = torch.nonzero((rms > 0) & (rms < NORMAL)).flatten().tolist()
    if not places:
        return
    numbers = weights.along(along.weight, along.axis)
    for place in places:
        found = Faint.of(numbers[place])
        if found.too_faint:
            yield place, found


def _worth(
    along: Along,
    faint: dict[int, Faint],
    channels: Channels,
    sizes: Sizes,
    weights: Weights,
    report: PrecisionReport,
) -> Iterator[tuple[int, int]]:
    """Number and bits of the faint channels that matter and have the room."""
    own = along.channels.reshape(-1)
    readers = [r for r in channels.read if np.isin(r.channels, own).any()]
    read, rows = np.zeros(channels.count), np.full(channels.count, np.inf)
    for reader in readers:
        numbers = weights.along(reader.weight, reader.axis).double()
        energy, nonzero = numbers.square().sum(1).numpy(), numbers.count_nonzero(1).numpy()
        np.add.at(read, reader.channels, energy)
        np.minimum.at(rows, reader.channels, np.sqrt(energy / np.maximum(nonzero, 1)))
    made = weights.along(along.weight, along.axis).double().square().sum(1).numpy()
    total = float((made * read[own]).sum())
    lost = {place: found.taken * read[own[place]] for place, found in faint.items()}
    if sum(lost.values()) <= LOST * total:
        return
    seen = [place for place in faint if not channels.free[own[place]]]
    if share := sum(lost[place] for place in seen) / total if total else 0.0:
        report.notes.append(
            f"{along.weight.name}: {len(seen)} channel(s) would lose {share:.2g} of the energy that reaches its readers "
            "among the subnormals; more than linears see them, so they cannot grow"
        )
    for place, found in faint.items():
        number = int(own[place])
        least, bits = bits_to_hold(found.rms)
        room = min(_room(number, channels, sizes, weights), room_to_shrink(float(rows[number])))
        if channels.free[number] and room >= least:
            yield number, min(room, bits)


def _room(number: int, channels: Channels, sizes: Sizes, weights: Weights) -> int:
    """By how many bits the channel may grow in all values, and all weights and biases, that hold it."""
    largest = 0.0
    for value, numbers in channels.of.items():
        here = numbers == number
        if here.any():
            size = sizes.by_channel(value)
            if size is None:
                return 0
            largest = max(largest, float(size[here].max()))
    for along in (*channels.made, *channels.biases):
        here = along.channels == number
        if here.any():
            largest = max(
                largest, float(weights.largest_along(along.weight, along.axis)[here].max())
            )
    return int(np.floor(np.log2(sizes.options.limit / largest))) if largest else 0

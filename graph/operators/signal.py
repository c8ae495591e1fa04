"""Fourier transforms and mel filters; complex numbers lie in a last axis of two."""

import torch

from ..values import integers
from .registry import Call, Tensor, math


def _complex(x: Tensor) -> Tensor:
    """[..., 1 or 2] as complex [...]."""
    wide = x.double()
    if wide.shape[-1] == 1:
        return torch.complex(wide[..., 0], torch.zeros_like(wide[..., 0]))
    return torch.view_as_complex(wide.contiguous())


@math("DFT")
def dft(call: Call, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Tensor:
    """The transform of one axis, cut or zero-padded to dft_length; inverse divides by it."""
    where = (
        call.get_int("axis", 1)
        if call.version < 20
        else (-2 if axis is None else integers(axis)[0])
    )
    dim = where if where >= 0 else where + x.ndim
    n = None if length is None else integers(length)[0]
    inverse, onesided = call.get_int("inverse", 0), call.get_int("onesided", 0)
    if inverse and onesided:
        real: Tensor = torch.fft.irfft(_complex(x), n, dim)
        return real.unsqueeze(-1)
    z = _complex(x)
    result = torch.fft.ifft(z, n, dim) if inverse else torch.fft.fft(z, n, dim)
    if onesided:
        result = result.narrow(dim, 0, result.shape[dim] // 2 + 1)
    return torch.view_as_real(result)


@math("STFT")
def stft(
    call: Call,
    signal: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    length: Tensor | None = None,
) -> Tensor:
    """signal [batch, time, 1 or 2] -> [batch, frames, bins, 2]."""
    size = integers(length)[0] if length is not None else (0 if window is None else window.numel())
    frames = _complex(signal).unfold(1, size, integers(step)[0])
    if window is not None:
        frames = frames * window.double()
    bins = torch.fft.fft(frames)
    if call.get_int("onesided", 1):
        bins = bins[..., : size // 2 + 1]
    return torch.view_as_real(bins)


@math("MelWeightMatrix")
def mel_weight_matrix(
    call: Call, bins: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """Triangular filters as float[spectrogram bins, mel bins], as the operator's reference builds them."""
    count, size = integers(bins)[0], integers(length)[0]

    def mel(hertz: Tensor) -> Tensor:
        return 2595 * torch.log10(1 + hertz.double().reshape(()) / 700)

    first, last = mel(low), mel(high)
    points = first + torch.arange(count + 2) * ((last - first) / (count + 2))
    hertz = 700 * (10 ** (points / 2595) - 1)
    edges = ((size + 1) * hertz / integers(rate)[0]).to(torch.int64).tolist()
    matrix = torch.zeros(size // 2 + 1, count, dtype=torch.float64)
    for column in range(count):
        left, middle, right = edges[column : column + 3]
        if middle == left:
            matrix[middle, column] = 1
        for row in range(left, middle + 1):
            if middle > left:
                matrix[row, column] = (row - left) / (middle - left)
        for row in range(middle, right):
            matrix[row, column] = (right - row) / (right - middle)
    return matrix

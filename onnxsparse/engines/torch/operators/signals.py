"""Fourier transforms and windows as torch functions. A complex number is a last axis of two."""

from __future__ import annotations

import math

import torch

from onnxsparse.engines.torch.operators.values import DTYPES, Ints, Real, Tensor, integer, real


def DFT(
    input: Tensor, dft_length: Ints | None = None, axis: Ints | None = None, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    over = (-2 if axis is None else integer(axis)) % input.dim()
    length = None if dft_length is None else integer(dft_length)
    signal = torch.view_as_complex(input.contiguous()) if input.shape[-1] == 2 else input.squeeze(-1)
    if inverse and onesided:
        return torch.fft.irfft(signal, length, over).unsqueeze(-1)
    found = torch.fft.ifft(signal, length, over) if inverse else torch.fft.fft(signal, length, over)
    found = found.narrow(over, 0, found.shape[over] // 2 + 1) if onesided else found
    return torch.view_as_real(found)


def DFT_17(
    input: Tensor, dft_length: Ints | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return DFT(input, dft_length, axis, inverse=inverse, onesided=onesided)


def STFT(
    signal: Tensor,
    frame_step: Ints,
    window: Tensor | None = None,
    frame_length: Ints | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    x = torch.view_as_complex(signal.contiguous()) if signal.dim() == 3 and signal.shape[-1] == 2 else signal
    x = x.squeeze(-1) if x.dim() == 3 else x
    whole = x.shape[1] if window is None else window.shape[0]
    width = whole if frame_length is None else integer(frame_length)
    frames = x.unfold(1, width, integer(frame_step))
    found = torch.fft.fft(frames if window is None else frames * window)
    return torch.view_as_real(found[..., : width // 2 + 1] if onesided else found)


def HannWindow(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _cosines(size, output_datatype, periodic, 0.5, 0.5)


def HammingWindow(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _cosines(size, output_datatype, periodic, 25 / 46, 21 / 46)


def BlackmanWindow(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    return _cosines(size, output_datatype, periodic, 0.42, 0.5, 0.08)


def _cosines(size: Tensor, dtype: int, periodic: int, *terms: float) -> Tensor:
    count = integer(size)
    turns = torch.arange(count, device=size.device, dtype=torch.float64) * (
        2 * math.pi / max(count if periodic else count - 1, 1)
    )
    found = sum((-1) ** order * term * torch.cos(order * turns) for order, term in enumerate(terms))
    assert isinstance(found, torch.Tensor)
    return found.to(DTYPES[dtype])


def MelWeightMatrix(
    num_mel_bins: Tensor,
    dft_length: Ints,
    sample_rate: Ints,
    lower_edge_hertz: Real,
    upper_edge_hertz: Real,
    *,
    output_datatype: int = 1,
) -> Tensor:
    """Triangles between neighbouring bands, evenly spread on the mel scale."""
    bands, length = integer(num_mel_bins), integer(dft_length)
    low, high = (2595 * math.log10(1 + real(edge) / 700) for edge in (lower_edge_hertz, upper_edge_hertz))
    points = torch.arange(bands + 2, device=num_mel_bins.device, dtype=torch.float64)
    hertz = 700 * (10 ** ((points * ((high - low) / (bands + 2)) + low) / 2595) - 1)
    bins = ((length + 1) * hertz / integer(sample_rate)).floor()
    left, middle, right = bins[:-2], bins[1:-1], bins[2:]
    place = torch.arange(length // 2 + 1, device=bins.device, dtype=torch.float64)[:, None]
    rising = torch.where(middle > left, (place - left) / (middle - left).clamp(min=1), (place == middle).double())
    falling = (right - place) / (right - middle).clamp(min=1)
    found = torch.where(place <= middle, rising.clamp(min=0), falling.clamp(min=0))
    return found.to(DTYPES[output_datatype])

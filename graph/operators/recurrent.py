"""RNN, GRU and LSTM: steps in fp32, outputs rounded once (the state inside stays fp32).

Axes: T steps, B batch, D directions, H hidden size. layout 1 puts the batch first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .registry import Call, Tensor, math

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Direction:
    """Weights of one direction; bias: input and recurrent halves [2, gates * H]."""

    w: Tensor
    r: Tensor
    bias: Tensor
    functions: list[Activation]
    backwards: bool


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    if name == "Affine":
        return lambda x: (1.0 if alpha is None else alpha) * x + (beta or 0.0)
    if name == "HardSigmoid":
        a, b = 0.2 if alpha is None else alpha, 0.5 if beta is None else beta
        return lambda x: (a * x + b).clamp(0, 1)
    if name == "LeakyRelu":
        return lambda x: torch.nn.functional.leaky_relu(x, 0.01 if alpha is None else alpha)
    plain: dict[str, Activation] = {
        "Relu": torch.relu,
        "Tanh": torch.tanh,
        "Sigmoid": torch.sigmoid,
        "Softsign": torch.nn.functional.softsign,
        "Softplus": torch.nn.functional.softplus,
        "Elu": torch.nn.functional.elu,
    }
    if name not in plain:
        raise ValueError(f"activation {name!r} is not supported")
    return plain[name]


def _directions(
    call: Call, w: Tensor, r: Tensor, bias: Tensor | None, defaults: list[str]
) -> list[_Direction]:
    mode = call.get_str("direction", "forward")
    count = w.shape[0]
    names = defaults * count
    if call.has("activations"):
        names = list(call.attributes["activations"].as_strings())
    settings = {
        key: list(call.attributes[key].as_floats()) if call.has(key) else []
        for key in ("activation_alpha", "activation_beta")
    }
    functions = [
        _activation(
            name,
            *(s[i] if i < len(s) else None for s in settings.values()),
        )
        for i, name in enumerate(names)
    ]
    per = len(defaults)
    zero = torch.zeros(count, 2 * w.shape[1], dtype=w.dtype) if bias is None else bias
    return [
        _Direction(
            w[d],
            r[d],
            zero[d].reshape(2, -1),
            functions[d * per : (d + 1) * per],
            mode == "reverse" or d == 1,
        )
        for d in range(count)
    ]


def _run(
    call: Call,
    x: Tensor,
    directions: list[_Direction],
    lengths: Tensor | None,
    states: list[Tensor | None],
    step: Callable[[_Direction, Tensor, list[Tensor]], list[Tensor]],
) -> tuple[Tensor, list[Tensor]]:
    """Y [T, D, B, H] and the last states [D, B, H] (batch first with layout 1)."""
    batch_first = bool(call.get_int("layout", 0))
    x_TBI = x.transpose(0, 1) if batch_first else x
    steps, batch = x_TBI.shape[:2]
    hidden = directions[0].r.shape[-1]
    ends = torch.full((batch,), steps) if lengths is None else lengths.to(torch.int64)
    outputs, lasts = [], []
    for number, direction in enumerate(directions):
        state = [
            torch.zeros(batch, hidden, dtype=x.dtype)
            if s is None
            else (s.transpose(0, 1) if batch_first else s)[number]
            for s in states
        ]
        rows = [torch.zeros(batch, hidden, dtype=x.dtype) for _ in range(steps)]
        for t in range(steps - 1, -1, -1) if direction.backwards else range(steps):
            active = (t < ends).unsqueeze(1)
            new = step(direction, x_TBI[t], state)
            rows[t] = torch.where(active, new[0], 0.0)
            state = [torch.where(active, n, s) for n, s in zip(new, state, strict=True)]
        outputs.append(torch.stack(rows) if rows else x.new_zeros(0, batch, hidden))
        lasts.append(state)
    y = torch.stack(outputs, 1)
    last = [torch.stack(column) for column in zip(*lasts, strict=True)]
    if batch_first:
        return y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in last]
    return y, last


def _clipped(call: Call, x: Tensor) -> Tensor:
    limit = call.get_float("clip", 0.0)
    return x.clamp(-limit, limit) if limit else x


@math("RNN")
def rnn(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """h' = f(x W + h R + b)."""

    def step(d: _Direction, x_BI: Tensor, state: list[Tensor]) -> list[Tensor]:
        total = x_BI @ d.w.T + state[0] @ d.r.T + d.bias.sum(0)
        return [d.functions[0](_clipped(call, total))]

    y, (h,) = _run(call, x, _directions(call, w, r, bias, ["Tanh"]), lengths, [initial], step)
    return y, h


@math("GRU")
def gru(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gates in the order z, r, h; linear_before_reset multiplies the recurrent part after its bias."""

    def step(d: _Direction, x_BI: Tensor, state: list[Tensor]) -> list[Tensor]:
        (h,) = state
        hidden = h.shape[1]
        from_x = x_BI @ d.w.T + d.bias[0]
        gates = h @ d.r[: 2 * hidden].T + d.bias[1, : 2 * hidden]
        zr = d.functions[0](_clipped(call, from_x[:, : 2 * hidden] + gates))
        z, reset = zr.chunk(2, 1)
        r_h, b_h = d.r[2 * hidden :], d.bias[1, 2 * hidden :]
        if call.get_int("linear_before_reset", 0):
            recurrent = reset * (h @ r_h.T + b_h)
        else:
            recurrent = (reset * h) @ r_h.T + b_h
        new = d.functions[1](_clipped(call, from_x[:, 2 * hidden :] + recurrent))
        return [(1 - z) * new + z * h]

    directions = _directions(call, w, r, bias, ["Sigmoid", "Tanh"])
    y, (h,) = _run(call, x, directions, lengths, [initial], step)
    return y, h


@math("LSTM")
def lstm(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates in the order i, o, f, c; peepholes in the order i, o, f."""
    directions = _directions(call, w, r, bias, ["Sigmoid", "Tanh", "Tanh"])
    weights = [
        torch.zeros(3, r.shape[-1], dtype=x.dtype)
        if peepholes is None
        else peepholes[d].reshape(3, -1)
        for d in range(len(directions))
    ]

    def step(d: _Direction, x_BI: Tensor, state: list[Tensor]) -> list[Tensor]:
        h, c = state
        p = weights[directions.index(d)]
        i, o, f, g = (x_BI @ d.w.T + h @ d.r.T + d.bias.sum(0)).chunk(4, 1)
        gate, cell, out = d.functions
        i = gate(_clipped(call, i + p[0] * c))
        f = 1 - i if call.get_int("input_forget", 0) else gate(_clipped(call, f + p[2] * c))
        new_c = f * c + i * cell(_clipped(call, g))
        o = gate(_clipped(call, o + p[1] * new_c))
        return [o * out(new_c), new_c]

    y, (h, c) = _run(call, x, directions, lengths, [initial_h, initial_c], step)
    return y, h, c

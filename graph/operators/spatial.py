"""Sampling of images at computed places, and boxes."""

import torch
from torch.nn import functional

from ..values import integers, split_axis
from .registry import Call, Tensor, math


@math("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    """x [N, C, (D,) H, W] read at grid [N, ..., 2 or 3], coordinates in -1 .. 1."""
    modes = {"linear": "bilinear", "cubic": "bicubic"}
    mode = call.get_str("mode", "linear")
    return functional.grid_sample(
        x,
        grid.to(x.dtype),
        mode=modes.get(mode, mode),
        padding_mode=call.get_str("padding_mode", "zeros"),
        align_corners=bool(call.get_int("align_corners", 0)),
    )


@math("AffineGrid")
def affine_grid(call: Call, theta: Tensor, size: Tensor) -> Tensor:
    """The places that an affine map theta [N, 2 or 3, 3 or 4] reads: [N, ..., 2 or 3]."""
    return functional.affine_grid(
        theta, integers(size), align_corners=bool(call.get_int("align_corners", 0))
    )


@math("NonMaxSuppression")
def non_max_suppression(
    call: Call,
    boxes: Tensor,
    scores: Tensor,
    max_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
) -> Tensor:
    """boxes [batch, n, 4], scores [batch, classes, n] -> int64[chosen, 3]: batch, class, box."""
    limit = 0 if max_per_class is None else integers(max_per_class)[0]
    overlap = 0.0 if iou_threshold is None else float(iou_threshold)
    lowest = -torch.inf if score_threshold is None else float(score_threshold)
    chosen: list[list[int]] = []
    for batch in range(scores.shape[0]):
        iou = _overlaps(_corners(boxes[batch], call.get_int("center_point_box", 0)))
        for label in range(scores.shape[1]):
            kept: list[int] = []
            order = torch.sort(scores[batch, label], descending=True, stable=True).indices
            for box in order.tolist():
                if len(kept) >= limit or not float(scores[batch, label, box]) > lowest:
                    break
                if not kept or not bool((iou[box, kept] > overlap).any()):
                    kept.append(box)
            chosen += [[batch, label, box] for box in kept]
    return torch.tensor(chosen, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: Tensor, centred: int) -> Tensor:
    """Boxes as low and high corners, whichever diagonal they were given by."""
    if centred:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return torch.cat([middle - half, middle + half], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], 1)


def _overlaps(boxes: Tensor) -> Tensor:
    """Intersection over union of every pair."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return shared / (area[:, None] + area[None, :] - shared)


@math("RoiAlign")
def roi_align(call: Call, x: Tensor, rois: Tensor, batches: Tensor) -> Tensor:
    """Bilinear samples of each region's cells, averaged or maximised: [regions, C, height, width]."""
    height, width = call.get_int("output_height", 1), call.get_int("output_width", 1)
    scale, ratio = call.get_float("spatial_scale", 1.0), call.get_int("sampling_ratio", 0)
    old = call.version < 16
    half = call.get_str("coordinate_transformation_mode", "half_pixel") == "half_pixel" and not old
    regions = []
    for roi, batch in zip(
        rois.double() * scale - (0.5 if half else 0.0), batches.tolist(), strict=True
    ):
        left, top, right, bottom = (float(v) for v in roi)
        spans = [bottom - top, right - left]
        if not half:
            spans = [max(s, 1.0) for s in spans]
        steps = [spans[0] / height, spans[1] / width]
        counts = [ratio or max(1, -int(-s // 1)) for s in steps]
        ys, xs = (
            start + step * ((torch.arange(n * c, dtype=torch.float64) + 0.5) / c)
            for start, step, n, c in zip((top, left), steps, (height, width), counts, strict=True)
        )
        cells = _bilinear(x[batch], ys, xs, call.get_str("mode", "avg") == "max")
        cells = split_axis(split_axis(cells, -1, (width, counts[1])), -3, (height, counts[0]))
        regions.append(cells)
    if not regions:
        return torch.zeros(0, x.shape[1], height, width, dtype=x.dtype)
    if call.get_str("mode", "avg") == "max":
        return torch.stack([cells.amax((-1, -3)) for cells in regions])
    return torch.stack([cells.mean((-1, -3)) for cells in regions])


def _bilinear(x: Tensor, ys: Tensor, xs: Tensor, largest: bool) -> Tensor:
    """x [C, H, W] at every pair of ys and xs; zero more than one cell outside.

    largest: the largest of the four weighted neighbours instead of their sum, as ONNX defines mode "max".
    """
    height, width = x.shape[-2:]
    inside_y, inside_x = ((p >= -1) & (p <= n) for p, n in ((ys, height), (xs, width)))
    ys, xs = ys.clamp(0, height - 1), xs.clamp(0, width - 1)
    y0, x0 = ys.floor().long(), xs.floor().long()
    y1, x1 = (y0 + 1).clamp(max=height - 1), (x0 + 1).clamp(max=width - 1)
    fy, fx = (ys - y0).unsqueeze(1), (xs - x0).unsqueeze(0)
    parts = [
        x[:, y0][:, :, x0].double() * (1 - fy) * (1 - fx),
        x[:, y0][:, :, x1].double() * (1 - fy) * fx,
        x[:, y1][:, :, x0].double() * fy * (1 - fx),
        x[:, y1][:, :, x1].double() * fy * fx,
    ]
    value = torch.stack(parts).amax(0) if largest else torch.stack(parts).sum(0)
    return torch.where(inside_y.unsqueeze(1) & inside_x.unsqueeze(0), value, 0.0)

"""Loss functions that training graphs end in."""

import torch

from .registry import Call, Tensor, math


def _negative_log_likelihood(
    call: Call, log_probability: Tensor, target: Tensor, weight: Tensor | None
) -> Tensor:
    """log_probability [N, C, ...], target [N, ...]; ignore_index entries count for nothing."""
    ignored = torch.zeros_like(target, dtype=torch.bool)
    if call.has("ignore_index"):
        ignored = target == call.get_int("ignore_index", 0)
    safe = torch.where(ignored, 0, target).to(torch.int64)
    picked = -log_probability.gather(1, safe.unsqueeze(1)).squeeze(1)
    share = torch.ones_like(picked) if weight is None else weight[safe]
    share = torch.where(ignored, 0.0, share)
    loss = torch.where(ignored, 0.0, picked * share)
    reduction = call.get_str("reduction", "mean")
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / share.sum()


@math("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    call: Call, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> Tensor:
    """x: log-probabilities [N, C, ...]; target: classes [N, ...]."""
    return _negative_log_likelihood(call, x, target, weight)


@math("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    call: Call, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The loss of x's softmax, and its logarithm."""
    log_probability = torch.log_softmax(x, 1)
    return _negative_log_likelihood(call, log_probability, target, weight), log_probability

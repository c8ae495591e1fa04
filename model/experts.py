"""A mixture of experts, computed densely: every expert sees every token, and the router's weight is 0 for most.

    score = softmax or sigmoid of x Wr^T                             over the experts, in float32
    chosen = the num_active largest of score (+ correction bias, within the best groups)
    y = sum over e of weight[e] * gated_e(x) (+ shared(x))           weight[e] = score[e] if chosen else 0

(Shazeer et al. 2017, arXiv 1701.06538; groups, bias and shared expert: DeepSeek-V3, arXiv 2412.19437; two of
eight by softmax: Grok-1.) The dense form costs num_experts / num_active times the arithmetic of a sparse
one. In return each projection is one batched MatMul, with no step whose size depends on the numbers.

Shapes: B batch, S sequence, M = B * S tokens, H hidden, F intermediate, E experts, G groups, A active.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from .activations import GATES
from .config import ExpertsConfig, FeedForwardConfig

_NEVER = -1e30  # a score that is chosen last; finite, so that no type makes NaN of it


class Router(nn.Module):
    """Weights of all experts for each token, in float32: 0 for those not chosen."""

    def __init__(self, config: ExpertsConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_experts, hidden_size))
        bias_E = torch.empty(config.num_experts) if config.correction_bias else None
        self.e_score_correction_bias = None if bias_E is None else nn.Parameter(bias_E)

    def forward(self, x_MH: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, experts], float32 (float64 for float64)."""
        config, wide = self.config, torch.promote_types(x_MH.dtype, torch.float32)
        logits_ME = nn.functional.linear(x_MH.to(wide), self.weight.to(wide))
        softmax = config.score == "softmax"
        score_ME = logits_ME.softmax(dim=-1) if softmax else logits_ME.sigmoid()
        choice_ME = score_ME
        if self.e_score_correction_bias is not None:
            choice_ME = score_ME + self.e_score_correction_bias.to(wide)
        if config.num_groups > 1:
            choice_ME = _within_best_groups(choice_ME, config)
        weight_ME = score_ME * _largest(choice_ME, config.num_active)
        if config.normalise:
            weight_ME = weight_ME / (weight_ME.sum(dim=-1, keepdim=True) + 1e-20)
        return weight_ME if config.scaling == 1 else weight_ME * config.scaling


def _largest(score_ME: torch.Tensor, count: int) -> torch.Tensor:
    """1 at the `count` largest of each row, 0 elsewhere. By index: equal scores never make it more."""
    _, index_MA = score_ME.topk(count, dim=-1)
    number_E = torch.arange(score_ME.shape[-1], device=score_ME.device)
    return (index_MA.unsqueeze(-1) == number_E).to(score_ME.dtype).sum(dim=1)


def _within_best_groups(choice_ME: torch.Tensor, config: ExpertsConfig) -> torch.Tensor:
    """Keep the scores of the groups whose two best experts sum highest, _NEVER elsewhere."""
    size = config.num_experts // config.num_groups
    choice_MGE = choice_ME.view(-1, config.num_groups, size)
    best_two_MG2, _ = choice_MGE.topk(2, dim=-1)
    chosen_MG = _largest(best_two_MG2.sum(dim=-1), config.num_active_groups)
    kept_MGE = torch.where(chosen_MG.unsqueeze(-1) > 0, choice_MGE, _NEVER)
    return kept_MGE.view(-1, config.num_experts)


class ExpertLinear(nn.Module):
    """One projection of all experts: [experts, tokens, in] -> [experts, tokens, out]."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))

    def forward(self, x_EMH: torch.Tensor) -> torch.Tensor:
        """Multiply by each expert's own weight; the experts axis of x may be 1."""
        return x_EMH @ self.weight.transpose(1, 2)


class Experts(nn.Module):
    """The gated feed-forward of every expert at once."""

    def __init__(self, config: FeedForwardConfig, num_experts: int, hidden_size: int) -> None:
        super().__init__()
        self.gate = GATES[config.kind]
        self.gate_proj = ExpertLinear(num_experts, hidden_size, config.intermediate_size)
        self.up_proj = ExpertLinear(num_experts, hidden_size, config.intermediate_size)
        self.down_proj = ExpertLinear(num_experts, config.intermediate_size, hidden_size)

    def forward(self, x_1MH: torch.Tensor) -> torch.Tensor:
        """[1, tokens, hidden] -> [experts, tokens, hidden]."""
        y_EMH: torch.Tensor = self.down_proj(self.gate(self.gate_proj(x_1MH), self.up_proj(x_1MH)))
        return y_EMH


class MixtureOfExperts(nn.Module):
    """Router, experts, and the shared expert where there is one."""

    def __init__(
        self,
        config: FeedForwardConfig,
        hidden_size: int,
        build_shared: Callable[[FeedForwardConfig, int], nn.Module],
    ) -> None:
        super().__init__()
        assert config.experts is not None, "build_feed_forward asks"
        self.gate = Router(config.experts, hidden_size)
        self.experts = Experts(config, config.experts.num_experts, hidden_size)
        self.shared_experts: nn.Module | None = None
        if config.experts.shared_size is not None:
            shared = replace(config, intermediate_size=config.experts.shared_size, experts=None)
            self.shared_experts = build_shared(shared, hidden_size)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] -> the same shape and type."""
        x_MH = x_BSH.flatten(0, 1)
        weight_ME = self.gate(x_MH).to(x_BSH.dtype)
        each_EMH = self.experts(x_MH.unsqueeze(0))
        y_MH = (each_EMH * weight_ME.t().unsqueeze(-1)).sum(dim=0)
        y_BSH: torch.Tensor = y_MH.view(x_BSH.shape)
        if self.shared_experts is not None:
            y_BSH = y_BSH + self.shared_experts(x_BSH)
        return y_BSH

"""Decode a graph with a key-value cache token by token, by the typed evaluator."""

import numpy as np
import torch
from cached_decoders import KV_HEADS, LENGTH, SIZE, past_name, present_name

from blockforge.export.quantize.options import QuantizeOptions
from blockforge.graph.evaluator import TypedEvaluator

STEPS = 40
FP8 = torch.float8_e4m3fn
PARTS = ("key", "value")
CACHE_ONLY = QuantizeOptions(rounding="nearest", observer="amax", kv_cache=True, keep=("*",))


def feed(form, token, position, caches):
    fed = {"input_ids": torch.tensor([[token]]), "position": torch.tensor([position]), **caches}
    if form == "scatter":
        fed |= {"write": torch.tensor([position]), "lengths": torch.tensor([position + 1])}
    return fed


def empty(form, layers, dtype):
    length = LENGTH if form == "scatter" else 0
    return {
        past_name(n, p): torch.zeros(1, KV_HEADS, length, SIZE).to(dtype) for n in range(layers) for p in PARTS
    }  # fmt: skip


class Decoding:
    """A graph decoded token by token: logits [STEPS, VOCAB], feeds and the last caches. tokens: None for its own."""

    def __init__(self, path, form, layers, dtype=FP8, tokens=None, steps=STEPS):
        evaluator = TypedEvaluator(path, cache_weights=True)
        caches, token = empty(form, layers, dtype), 1
        self.tokens, self.logits, self.feeds, self.caches = [], [], [], []
        for position in range(steps):
            token = token if tokens is None else tokens[position]
            self.tokens.append(token)
            self.feeds.append(feed(form, token, position, caches))
            found = evaluator.run(self.feeds[-1]).outputs
            caches = {
                past_name(n, p): found[present_name(n, p)] for n in range(layers) for p in PARTS
            }
            self.logits.append(found["logits"][0, 0].double().numpy())
            self.caches.append(caches)
            token = int(found["logits"].argmax())
        self.logits = np.stack(self.logits)

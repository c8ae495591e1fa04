"""What Triton will not do with a packed model, or will need for it, in one sentence each."""

from ...core.bundle import Bundle
from .triton_config import TritonModel


def notes_on(bundle: Bundle, model: TritonModel) -> tuple[str, ...]:
    """The sentences for one model of `bundle`; none where there is nothing to say."""
    notes, batching = [], model.batching
    if batching.reason:
        notes.append(f"requests are not joined: {batching.reason}")
    elif batching.joined < batching.limit:
        more = f". --max-batch {batching.joined} joins them" if batching.joined > 1 else ""
        notes.append(
            f"requests are not joined: the profiles do not hold a batch of {batching.limit} at all of their sizes, and "
            f"Triton has one limit for all{more}"
        )
    if not model.warm_ups:
        notes.append("no warm-up: the bundle has no golden inputs that fit")
    if model.target.is_tensorrt:
        notes.append(f"needs a Triton with {model.runtime} and a GPU of {model.target.device}")
    if not model.rewritten:
        notes.append(
            "ONNX Runtime runs it without optimisations, whose rewrites of its Q/DQ pairs end in wrong types"
        )
    if bundle.manifest.failures:
        notes.append(f"the bundle missed a limit: {bundle.manifest.failures[0]}")
    return tuple(notes)

"""A recipe that judges next tokens, on the golden cases: by our command and by the rules that travel with the bundle."""

import importlib.util
import json
import shutil

import numpy as np
import onnx
import pytest
import torch

from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import UsageError
from blockforge.core.manifest import VerdictRecord
from blockforge.validate.inputs import Case
from blockforge.validate.judge import feeds_for
from blockforge.validate.language import LanguageTally
from blockforge.validate.limits import Limits
from blockforge.validate.polygraphy.results import judge_results
from blockforge.validate.polygraphy.write import write_polygraphy
from blockforge.validate.reference import compute_truth
from blockforge.validate.runners import TypedRunner
from blockforge.validate.tensor_files import RunnerOutputs

from .test_bundle_folder import shell

RNG = np.random.default_rng(7)
SEEDED_ONLY = 100_000  # bytes that the two seeded cases fit into, but not the text
# One limit each; what a right graph in fp16 keeps and noise of the logits' own size does not.
LIMITS = {
    "divergence": Limits(max_kl_divergence=1e-3),
    "tokens": Limits(min_token_agreement=0.9),
    "perplexity": Limits(max_perplexity_ratio=1.01),
    "cosine": Limits(min_cosine=0.999),
    "all": Limits(
        max_kl_divergence=1e-3,
        min_token_agreement=0.9,
        max_perplexity_ratio=1.01,
        min_cosine=0.999,
        max_error_over_floor=3.0,
        max_overflows=0,
    ),
}


@pytest.fixture(scope="module")
def read(decoder):
    """The decoder's truth on a text, which is its own language, and on two seeded cases."""
    _, truth, _ = decoder
    generator = torch.Generator().manual_seed(3)
    odd, smallest, text = (
        torch.randint(256, shape, generator=generator) for shape in ((2, 17), (1, 1), (1, 1))
    )
    module = truth.load(torch.float64)
    with torch.inference_mode():
        while text.shape[1] < 64:
            text = torch.cat([text, module(text)[:, -1:].argmax(-1)], dim=1)
    cases = (
        Case("text", {"input_ids": text}, text=True),
        Case("seeded odd", {"input_ids": odd}),
        Case("seeded smallest", {"input_ids": smallest}),
    )
    return compute_truth(truth.load, truth.outputs, cases, vocabulary="logits")


@pytest.fixture(scope="module")
def graph(decoder, read):
    """Case -> logits of the bundle's own fp16 graph, by TensorRT's rules."""
    bundle, _, _ = decoder
    variant = bundle.manifest.variant("fp16")
    runner = TypedRunner(bundle.file(variant.model))
    return {
        case.name: runner.run(feeds_for(variant.inputs, case.feeds), ()).outputs["logits"]
        for case in read.cases
    }


@pytest.fixture(scope="module")
def written(decoder, read, graph, tmp_path_factory):
    """A copy of the bundle with this truth, these limits, and the verdict of its fp16 graph on the text."""
    bundle, _, _ = decoder
    tally = LanguageTally()
    tally.add(read.results["text"]["logits"], graph["text"], read.cases[0].feeds["input_ids"])
    score = tally.score()
    own = verdict(
        kl_divergence=score.kl_divergence,
        token_agreement=score.agreement,
        perplexity=score.perplexity,
    )

    def write(limits, *, budget=1 << 20):
        folder = tmp_path_factory.mktemp("written") / "bundle"
        shutil.copytree(bundle.path, folder)
        manifest = bundle.manifest
        variants = tuple(v.model_copy(update={"verdicts": (own,)}) for v in manifest.variants)
        manifest = manifest.model_copy(update={"variants": variants})
        write_polygraphy(folder, manifest, read, {"fp32": limits, "fp16": limits}, budget=budget)
        seal(folder, manifest)
        return Bundle.open(folder)

    return write


def outputs_of(bundle, graph, change):
    """What a runner would save for the bundle's golden cases: the graph's logits, changed."""
    cases = json.loads((bundle.path / "polygraphy/limits.json").read_text())["cases"]
    outputs = tuple({"logits": change(graph[name].numpy())} for name in cases)
    return RunnerOutputs("trt", outputs, (None,) * len(outputs))


def noise(logits):
    return RNG.normal(size=logits.shape).astype(logits.dtype)


def same(logits):
    return logits


def by_checks(bundle, truth, results):
    """What the rules that travel say, case by case; checks.py reads the files beside it."""
    path = bundle.path / "polygraphy/checks.py"
    spec = importlib.util.spec_from_file_location("travelled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    body = json.loads(path.with_name("limits.json").read_text())
    limits = body["variants"]["fp16"]["outputs"]
    return [
        word
        for name, outputs in zip(body["cases"], results.outputs, strict=True)
        for word in module.faults(
            limits, {"logits": truth.results[name]["logits"].numpy()}, outputs
        )["logits"]
    ]


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("text", [True, False], ids=["text", "no text"])
def test_the_own_graph_passes_and_noise_fails_in_both_places(written, read, graph, kind, text):
    bundle = written(LIMITS[kind], budget=1 << 20 if text else SEEDED_ONLY)
    right, wrong = (outputs_of(bundle, graph, change) for change in (same, noise))
    if kind == "perplexity" and not text:
        with pytest.raises(UsageError, match="no limit that applies to golden outputs"):
            judge_results(bundle, wrong, "fp16")
        assert "nothing to judge by" in by_checks(bundle, read, right)[0]
        return
    passed, failed = judge_results(bundle, right, "fp16"), judge_results(bundle, wrong, "fp16")
    assert passed.passed and len(passed.gates) > 1
    assert by_checks(bundle, read, right) == []
    missed = [g.name for g in failed.gates if not g.passed]
    assert not failed.passed and missed
    assert by_checks(bundle, read, wrong)
    if kind == "all" and text:
        for name in ("KL divergence", "greedy token agreement", "perplexity over the truth's"):
            assert name in missed
            assert any(name in word for word in by_checks(bundle, read, wrong))
        assert "max_overflows" in passed.notes[-1]
    if kind == "divergence":
        rule = "`build` counts" if text else "not among the golden cases"
        assert rule in passed.notes[0]


def test_the_recipes_limit_holds_to_the_last_digit_where_its_text_is_golden(written, read, graph):
    """The same number as a formula of torch, and a limit on either side of it."""
    truth, found = read.results["text"]["logits"], graph["text"].double()
    expected = torch.nn.functional.kl_div(
        found.log_softmax(-1), truth.log_softmax(-1), log_target=True, reduction="none"
    )
    kl = float(expected.sum(-1).mean())
    for factor, passes in ((1.001, True), (0.999, False)):
        bundle = written(Limits(max_kl_divergence=kl * factor))
        judged = judge_results(bundle, outputs_of(bundle, graph, same), "fp16")
        (gate,) = (g for g in judged.gates if g.name == "KL divergence")
        assert gate.value == pytest.approx(kl, rel=1e-9)
        assert judged.passed == passes
        assert (by_checks(bundle, read, outputs_of(bundle, graph, same)) == []) == passes


@pytest.mark.parametrize(
    ("limits", "words"),
    [(Limits(max_overflows=0), "sets max_overflows"), (None, "sets none")],
)
def test_no_limit_that_applies_is_an_error_and_never_passes(written, read, graph, limits, words):
    bundle = written(limits)
    right = outputs_of(bundle, graph, same)
    with pytest.raises(UsageError, match=f"no limit that applies.*{words}"):
        judge_results(bundle, right, "fp16")
    assert len(by_checks(bundle, read, right)) == 3
    broken = outputs_of(bundle, graph, lambda logits: logits * np.float16(np.nan))
    assert not judge_results(bundle, broken, "fp16").passed  # a broken rule needs no limit


def verdict(**numbers):
    return VerdictRecord(runner="typed-evaluator", passed=True, outputs=(), gates=(), **numbers)


def test_polygraphy_itself_passes_the_graph_and_fails_a_fault(written, tmp_path):
    bundle = written(LIMITS["divergence"])
    words = ("sh", "polygraphy/compare.sh", "fp32")
    done = shell(*words, cwd=bundle.path)
    assert done.returncode == 0 and done.stdout.count("logits: ok") == 3, done.stdout[-2000:]
    path = bundle.path / "fp32" / "model.onnx"
    model = onnx.load(path)
    weight = next(t for t in model.graph.initializer if "layers.1.mlp.down" in t.name)
    array = onnx.numpy_helper.to_array(weight) * np.float32(-3)
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    path.unlink()  # may share its bytes with the clean one
    onnx.save(model, path)
    done = shell(*words, cwd=bundle.path)
    assert done.returncode == 1 and "KL divergence" in done.stdout

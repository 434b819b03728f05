"""Golden losses: what every objective computes in its first twenty steps, float32 on a CPU.

A change that is not meant to change the computation leaves these numbers alone. One that is meant
to rewrites them with `pytest tests/test_golden.py --write-golden`, and the diff shows what changed.
"""

import hashlib
import json
from pathlib import Path

import pytest

from electra.assignments import override
from electra.presets import PRESETS
from electra.pretraining.loop import find_learning_rate
from electra.pretraining.start import build_model, count_tokens, fit_to_shards, prepare_step
from electra.shards.examples import Examples
from electra.shards.store import open_shards
from electra.training.machine import Machine

FOLDER = Path(__file__).parent / "golden"
STEPS = 20
TOLERANCE = 1e-5
BASE = [
    *("model.hidden_size=128", "model.num_hidden_layers=2", "model.num_attention_heads=2"),
    *("model.intermediate_size=256", "model.embedding_size=32", "generator.hidden_fraction=0.5"),
    *("examples.sequence_length=32", "optimizer.warmup_steps=5", f"train.steps={STEPS}"),
    *("train.batch_size=8", "train.precision=float32"),
]
HALF = ["generator.hidden_fraction=1", "generator.layers_fraction=0.5"]
MODERN = ["model.architecture=modernbert", "model.embedding_size=128", "model.local_attention=8"]
MODERN += HALF
DEBERTA = ["model.architecture=deberta-v2", "model.embedding_size=128", "model.position_buckets=8"]
DEBERTA += ["model.max_relative_positions=16", *HALF]
MLM = ["method.objective=mlm"]
NEXT_SENTENCE = [*MLM, "examples.next_sentence=true", "examples.single_segment_prob=0"]
ALL = ["method.sharing=all", "generator.hidden_fraction=1"]
VARIANTS = {
    "rtd": [],
    "rtd-masked-only": ["method.objective=rtd_masked_only"],
    "mlm": MLM,
    "mlm-mask": [*MLM, "method.shown_at_mask=mask"],
    "replace-mlm": ["method.objective=replace_mlm"],
    "all-tokens-mlm": ["method.objective=all_tokens_mlm"],
    "electric": ["method.objective=electric"],
    "teams": ["method.objective=teams"],
    "cocolm": ["method.objective=cocolm"],
    "corrective": ["method.objective=cocolm", "method.contrast_weight=0"],
    "causal-lm": ["method.objective=causal_lm", "model.causal=true"],
    "next-sentence": NEXT_SENTENCE,
    "two-stage": ["method.scheme=two_stage", "method.sharing=none"],
    "adversarial": ["method.scheme=adversarial"],
    "warm-up": ["generator.warmup_steps=8"],
    "sharing-none": ["method.sharing=none"],
    "sharing-all": ALL,
    "sharing-gdes": ["method.sharing=gdes"],
    "apart": ["method.sharing=gdes", "train.updates=apart", "train.accumulation=2"],
    "electric-gdes": ["method.objective=electric", "method.sharing=gdes"],
    "replace-mlm-sharing-all": ["method.objective=replace_mlm", *ALL],
    "uniform": ["generator.kind=uniform"],
    "unigram": ["generator.kind=unigram"],
    "temperature": ["generator.temperature=1.5", "generator.disallow_correct=true"],
    "cooling": ["generator.temperature=2", "generator.temperature_decay=0.1"],
    "reference": ["method.mode=reference"],
    "reference-mlm": ["method.mode=reference", "method.objective=mlm"],
    "whole-words": ["method.mask_unit=whole_word"],
    "spans": ["method.mask_unit=span"],
    "documents": ["examples.attend=document"],
    "neighbours": ["train.initial_weights=neighbours"],
    "muon": ["optimizer.matrices=muon"],
    "accumulation": ["train.accumulation=3"],
    "recompute": ["train.recompute_activations=true"],
    "modern": MODERN,
    "modern-mlm": [*MODERN, *MLM, "method.shown_at_mask=mask", "examples.attend=document"],
    "modern-teams": [*MODERN, "method.objective=teams", "generator.shared_layers=1"],
    "modern-electric": [*MODERN, "method.objective=electric", "optimizer.matrices=muon"],
    "deberta": [*DEBERTA, "method.sharing=gdes", "train.updates=apart"],
    "deberta-mlm": [*DEBERTA, *MLM, "examples.attend=document"],
    "no-dropout": ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"],
}


def compute(settings, shards_folder):
    """The first steps of a run with these settings: losses, gradient norms, and its rows' hash."""
    shards = open_shards(shards_folder)
    config = fit_to_shards(override(override(PRESETS["small"], BASE), settings), shards)
    model = build_model(config, shards.tokenizer, Machine(), count_tokens(shards))
    step = prepare_step(model, config, Machine())
    examples = Examples(shards.train, shards.tokenizer, config.examples, config.train.seed)
    rows, losses, grad_norms = hashlib.sha256(), [], []
    model.train()
    for number in range(STEPS):
        if number in model.stages[1:]:
            step.begin_stage(model.stage_at(number))
        batch = examples.batch(number, config.train.batch_size)
        for tensor in (batch.input_ids_BL, batch.token_type_ids_BL, batch.is_next_B):
            rows.update(b"" if tensor is None else tensor.numpy().tobytes())
        outcome = step(number, batch, find_learning_rate(number, model, config))
        losses.append(sum(output.loss.item() for output in outcome.outputs))
        grad_norms.append(outcome.grad_norm.item())
    found = {"losses": losses, "grad_norms": grad_norms}
    return {"settings": settings, "rows": rows.hexdigest(), **found}


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_are_the_golden_ones(name, toy_shards, request):
    actual = compute(VARIANTS[name], toy_shards)
    path = FOLDER / f"{name}.json"
    if request.config.getoption("--write-golden"):
        path.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
    golden = json.loads(path.read_text(encoding="utf-8"))
    assert actual["settings"] == golden["settings"]
    assert actual["rows"] == golden["rows"]
    for measure in ("losses", "grad_norms"):
        assert actual[measure] == pytest.approx(golden[measure], rel=TOLERANCE), measure


def test_every_golden_file_belongs_to_a_variant():
    assert {path.stem for path in FOLDER.glob("*.json")} == VARIANTS.keys()

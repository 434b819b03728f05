"""Scores of texts: sums of Electric's energies, and of what other networks say."""

import dataclasses
import json
import lzma
import math
import shutil
from functools import cache

import pytest
import torch
from commands import refuse_command, succeed
from refusals import refuse
from runs import ignore

from electra.assignments import override
from electra.checkpoints.checkpoint import find_checkpoint, load_parameters, read_tensors
from electra.checkpoints.folder import read_run_config
from electra.files import write_json
from electra.inference.score import (
    Pairs,
    Score,
    compare_pairs,
    load_scorer,
    read_pairs,
    write_scores,
)
from electra.interop.export import export
from electra.method.masking import Vocabulary
from electra.model.batch import Batch
from electra.pretraining.loop import pretrain
from electra.pretraining.networks import build_objective
from electra.settings import to_dict
from electra.text.table_files import read_sentences


@pytest.fixture(scope="module")
def trained(run, toy_shards, toy_config, tmp_path_factory):
    """Return what makes a run with an objective, once; it has learnt nothing yet."""

    @cache
    def train(objective):
        if objective == "rtd":
            return run
        place = tmp_path_factory.mktemp("trained") / objective
        causal = str(objective == "causal_lm").lower()
        settings = [f"method.objective={objective}", f"model.causal={causal}"]
        pretrain(toy_shards, place, override(toy_config, settings), ignore)
        return place

    return train


@pytest.fixture(scope="module")
def electric(trained):
    return trained("electric")


def load_objective(run, tokenizer):
    _, checkpoint = find_checkpoint(run)
    vocabulary = Vocabulary(torch.from_numpy(tokenizer.starts_word))
    model = build_objective(read_run_config(run), vocabulary).eval()
    load_parameters(model, read_tensors(checkpoint / "model.safetensors"))
    return model


def test_a_loaded_scorer_reads_no_file_and_scores_alike_in_any_batch(electric, tmp_path):
    copy = shutil.copytree(electric, tmp_path / "run")
    scorer = load_scorer(copy)
    shutil.rmtree(copy)
    lines = ["the queen sold a boat .", "in 1912", "a young doctor painted the castle in 1912 ."]
    together = scorer.score(lines * 30)
    for line, expected in zip(lines, together, strict=False):
        assert scorer.score([line])[0].pll == pytest.approx(expected.pll, abs=1e-5)
    assert scorer.score([]) == []


def test_only_line_ends_end_a_line(tmp_path):
    inside = ["the\u2028queen", "a\x0bboat", "one\x85day", "the\x1csea", "the\x0cend", "a\tb\rc "]
    (tmp_path / "text.txt").write_bytes("\r\n".join([*inside, "", "last"]).encode())
    stripped = [*(line.strip() for line in inside), "", "last"]
    assert read_sentences(tmp_path / "text.txt") == stripped
    (tmp_path / "text.txt.xz").write_bytes(lzma.compress("\ufeffthe queen\n".encode()))
    assert read_sentences(tmp_path / "text.txt.xz") == ["the queen"]


def test_threads_are_those_of_the_run_and_the_precision_that_of_all_answers(electric, tmp_path):
    copy = shutil.copytree(electric, tmp_path / "run")
    config = read_run_config(electric)
    train = dataclasses.replace(config.train, precision="bfloat16", threads=2, device="cuda")
    write_json(copy / "config.json", to_dict(dataclasses.replace(config, train=train)))
    try:
        found = load_scorer(copy).score(["the queen sold a boat ."])[0].pll
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    expected = load_scorer(electric).score(["the queen sold a boat ."])[0].pll
    assert found == pytest.approx(expected, abs=1e-4)
    rounded = load_scorer(electric, precision="bfloat16").score(["the queen sold a boat ."])[0].pll
    assert rounded != expected
    assert rounded == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("objective", ["rtd", "mlm", "causal_lm", "electric"])
def test_an_export_scores_as_its_run(objective, trained, tmp_path):
    """Energies, which the class of a discriminator holds, are not taken for its logits."""
    run, lines = trained(objective), ["the queen sold a boat .", "in 1912", ""]
    export(run, tmp_path / "hf")
    export(tmp_path / "hf", tmp_path / "again")
    expected = [*load_scorer(run).score(lines)]
    assert math.isnan(expected[-1].pll)
    for folder in (tmp_path / "hf", tmp_path / "again"):
        scorer = load_scorer(folder)
        assert scorer.predicts == load_scorer(run).predicts
        found = [each.pll for each in scorer.score(lines)]
        assert found == pytest.approx([each.pll for each in expected], abs=1e-3, nan_ok=True)
    if objective == "rtd":
        one, other = (load_scorer(each, "generator") for each in (run, tmp_path / "hf"))
        assert one.score(lines[:2])[0].pll == pytest.approx(other.score(lines[:2])[0].pll, abs=1e-3)


@pytest.mark.parametrize(
    ("objective", "network"),
    [
        *(("rtd", "kept"), ("rtd", "generator"), ("mlm", "kept"), ("causal_lm", "kept")),
        *(("cocolm", "corrector"), ("electric", "kept")),
    ],
)
def test_networks_score_as_they_are_defined(objective, network, trained, toy_tokenizer):
    """Electric by sums of energies, an MLM with one token masked at a time; others in one pass."""
    run = trained(objective)
    lines = ["the queen sold a boat .", "a young doctor painted the castle in 1912 .", "the queen"]
    scores = load_scorer(run, network).score(lines)
    assert [score.text for score in scores] == lines
    model = load_objective(run, toy_tokenizer)
    for score in scores:
        ids = toy_tokenizer.encode(score.text)
        assert score.num_tokens == len(ids)
        row = torch.tensor([[toy_tokenizer.cls_id, *ids, toy_tokenizer.sep_id]])
        if objective == "electric":
            total = -model.energy(Batch(row, None, torch.zeros_like(row)))[0, 1:-1].sum().item()
        elif objective == "rtd" and network == "kept":
            judge = model.networks["discriminator"]
            logits = judge.head(judge.encoders[0](row))[0, 1:-1]
            total = torch.sigmoid(-logits).log().sum().item()
        else:
            masked_lm, total = model.networks["encoder" if network == "kept" else network], 0.0
            for place, token in enumerate(ids, 1):
                asked, at = row.clone(), place
                if objective == "causal_lm":
                    asked, at = row[:, :place], -1
                elif network != "corrector":
                    asked[0, place] = toy_tokenizer.mask_id
                features = masked_lm.head(masked_lm.encoders[0](asked)[0, at])
                table = masked_lm.encoders[0].embeddings.tokens.weight
                total += (table @ features + masked_lm.head.bias).log_softmax(0)[token].item()
        assert score.pll == pytest.approx(total, abs=1e-3 if objective != "electric" else 1e-4)


@pytest.mark.parametrize(
    ("objective", "network"),
    [("mlm", "generator"), ("all_tokens_mlm", "kept"), ("rtd", "corrector")],
)
def test_networks_without_probabilities_are_refused(objective, network, trained):
    refuse(
        f"its {network} network is missing, or gives no", load_scorer, trained(objective), network
    )


def test_pairs_are_compared_by_kind(tmp_path):
    rows = [("a", "b", "x"), ("c", "d", "x"), ("e", "e", "x"), ("f", "g", "y")]
    names = ("sentence_good", "sentence_bad", "UID")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    pairs = read_pairs(tmp_path / "pairs.jsonl")
    assert pairs == Pairs(["a", "c", "e", "f"], ["b", "d", "e", "g"], ["x", "x", "x", "y"])
    good = [Score(text, 1, pll) for text, pll in zip(pairs.good, (2, 1, 0, 1), strict=True)]
    bad = [Score(text, 1, pll) for text, pll in zip(pairs.bad, (1, 2, 0, 0), strict=True)]
    found = compare_pairs(pairs, [*good, *bad])
    assert {kind: each["accuracy"] for kind, each in found["kinds"].items()} == {"x": 1 / 3, "y": 1}
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["ties"] == 1


def test_pairs_are_scored_by_command(electric, tmp_path, capsys):
    row = {"sentence_good": "the queen sold a boat .", "sentence_bad": "a a", "UID": "x"}
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "pairs.json"
    pairs.write_text(json.dumps(row))
    succeed(capsys, "score", electric, "--pairs", pairs, "--out", out)
    found = json.loads(out.read_text())
    expected = {"run": electric.name, "predicts": "energy", "pairs": 1}
    assert expected.items() <= found.items()
    assert found["accuracy"] in (0, 1)
    table = tmp_path / "table.csv"
    table.write_text('id,text\n7,"the queen\nsold"\n')
    succeed(capsys, "score", electric, "--text", table, "--out", tmp_path / "table.tsv")
    assert (tmp_path / "table.tsv").read_text().endswith("\tthe queen sold\n")
    refuse_command("--pairs", capsys, "score", electric, "--out", tmp_path / "none.json")
    pairs.write_text(json.dumps(row | {"sentence_bad": " "}))
    refuse("pairs.jsonl line 1: a sentence is blank; a pair has two", read_pairs, pairs)


def test_scores_are_lines_of_a_table(electric, tmp_path):
    lines = ["the queen", "a\tboat\non", ""]
    write_scores(tmp_path / "scores.tsv", load_scorer(electric).score(lines))
    rows = [line.split("\t") for line in (tmp_path / "scores.tsv").read_text().splitlines()]
    assert rows[0] == ["pll", "tokens", "text"]
    assert rows[2][2] == "a boat on"
    assert rows[3] == ["", "0", ""]
    assert math.isfinite(float(rows[1][0]))
    refuse(
        "the sentence 'the the ... has 31 tokens; it must have 1 to 30",
        lambda: load_scorer(electric).score(["the", "the " * 31]),
    )
    refuse("nothing cannot be read", lambda: read_sentences(tmp_path / "nothing"))

"""Electric: noise that never sees what it predicts, the NCE loss by hand, and scores."""

import dataclasses
import json
import lzma
import math
import shutil

import pytest
import torch
import torch.nn.functional as F

from electra.checkpoints.checkpoint import find_checkpoint, load_parameters, read_tensors
from electra.checkpoints.folder import read_run_config
from electra.cli import main
from electra.errors import UserError
from electra.files import write_json
from electra.inference.score import (
    Pairs,
    Score,
    compare_pairs,
    load_scorer,
    read_pairs,
    write_scores,
)
from electra.inference.texts import read_sentences
from electra.method.masking import Vocabulary
from electra.method.objective import Parts
from electra.method.registry import build_objective, sketch_objective
from electra.model.batch import Batch
from electra.model.encoder import Encoder
from electra.model.initialisation import init_weights
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining.loop import pretrain
from electra.settings import override, to_dict

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB = 60
SIZES = encoder_sizes(
    128, 2, 32, vocab_size=VOCAB, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def rng(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model():
    config = override(
        dataclasses.replace(PRESETS["tiny"], model=SIZES),
        [
            *("method.objective=electric", "generator.hidden_fraction=0.5"),
            "train.initial_weights=bert",
        ],
    )
    model = build_objective(Parts(config, Vocabulary(torch.ones(VOCAB, dtype=torch.bool))))
    init_weights(model, 0.15, rng(0))
    return model


@pytest.fixture
def batch():
    ids = torch.randint(5, VOCAB, (3, 24), generator=rng(1))
    length = torch.tensor([24, 15, 3])
    real = torch.arange(24) < length[:, None]
    ids[:, 0] = CLS
    ids[torch.arange(3), length - 1] = SEP
    return Batch(ids * real, real, torch.zeros_like(ids))


@pytest.mark.parametrize("sees", ["before", "after"])
def test_a_tower_sees_one_side(sees, batch):
    """A changed token changes the states from it on, or up to it, and no others."""
    tower = Encoder(SIZES).eval()
    init_weights(tower, 0.15, rng(0))
    changed = batch.input_ids_BL.clone()
    changed[0, 10] = 5 + (changed[0, 10] - 4) % 50
    before = tower(*batch, sees=sees)[0]
    after = tower(changed, *batch[1:], sees=sees)[0]
    is_moved = (before - after).abs().amax(dim=-1) > 1e-6
    expected = torch.arange(24) >= 10 if sees == "before" else torch.arange(24) <= 10
    assert torch.equal(is_moved, expected)


def test_noise_never_sees_what_it_predicts(model, batch):
    changed = batch.input_ids_BL.clone()
    changed[0, 10] = 5 + (changed[0, 10] - 4) % 50
    before = model.generator(batch)
    after = model.generator(batch._replace(input_ids_BL=changed))
    moved = (before - after).abs().amax(dim=-1) > 1e-6
    assert not moved[0, 10]
    assert moved[0, [9, 11]].all()
    assert not moved[1:].any()


def test_loss_by_hand(model, batch):
    """The NCE posterior from k q and (n - k) exp(-E), not from a logit."""
    draw = model.masking.draw(batch, rng(2))
    output = model(batch, draw, model.masking.count(batch, draw))
    ids, judged = batch.input_ids_BL, output.judgement.judged_BL
    assert torch.equal(judged, ids >= 5)
    noised, is_noise = output.judgement.corrupt_ids_BL, output.judgement.is_replaced_BL
    assert is_noise.sum() == draw.chosen_BS.sum()  # also where the draw is the original
    assert torch.equal(noised[~is_noise], ids[~is_noise])

    table, bias = model.generator.softmax
    q = (model.generator(batch) @ table.T + bias).softmax(-1)
    q_of_text = q.gather(2, ids[:, :, None]).squeeze(2)
    q_of_noised = q.gather(2, noised[:, :, None]).squeeze(2).detach()
    p = (-model.energy(batch._replace(input_ids_BL=noised))).exp()
    k, n = 0.15, 1.0
    posterior = k * q_of_noised / (k * q_of_noised + (n - k) * p)
    nce = F.binary_cross_entropy(posterior[judged], is_noise[judged].float())
    mlm_loss = -q_of_text[judged].log().mean()
    expected = mlm_loss + model.loss_weights["disc_loss"] * nce
    torch.testing.assert_close(output.loss, expected, **CLOSE)
    parameters = list(model.parameters())
    ours = torch.autograd.grad(output.loss, parameters, allow_unused=True)
    theirs = torch.autograd.grad(expected, parameters, allow_unused=True)
    for a, e in zip(ours, theirs, strict=True):
        assert (a is None) == (e is None)
        assert a is None or (a - e).abs().max() <= 1e-5 * max(1.0, e.abs().max().item())


def test_nce_is_least_where_energy_is_the_true_probability():
    """Of all energies exp(-E) = c p, the expected NCE loss prefers c = 1."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    q = torch.tensor([0.25, 0.25, 0.25, 0.25], dtype=torch.float64)

    def expected_loss(guess):
        is_noise = 0.15 * q / (0.15 * q + 0.85 * guess)
        return -(0.85 * p * (1 - is_noise).log() + 0.15 * q * is_noise.log()).sum()

    best = expected_loss(p)
    for other in (0.5 * p, 2 * p, q, p.flip(0)):
        assert expected_loss(other) > best


ELECTRIC = ["method.objective=electric", "method.disc_weight=50"]


@pytest.fixture(scope="module")
def run(toy_shards, toy_config, tmp_path_factory):
    """A run of twelve steps, which has learnt nothing yet."""
    run = tmp_path_factory.mktemp("electric") / "run"
    pretrain(toy_shards, run, override(toy_config, ELECTRIC), lambda record: None)
    return run


def test_scores_are_sums_of_energies(run, toy_tokenizer):
    lines = ["the queen sold a boat .", "a young doctor painted the castle in 1912 .", "the queen"]
    scores = load_scorer(run).score(lines)
    assert [score.text for score in scores] == lines
    _, checkpoint = find_checkpoint(run)
    vocabulary = Vocabulary(torch.from_numpy(toy_tokenizer.starts_word))
    model = build_objective(Parts(read_run_config(run), vocabulary)).eval()
    load_parameters(model, read_tensors(checkpoint / "model.safetensors"))
    for score in scores:
        ids = toy_tokenizer.encode(score.text)
        assert score.num_tokens == len(ids)
        row = torch.tensor([[toy_tokenizer.cls_id, *ids, toy_tokenizer.sep_id]])
        energy = model.energy(Batch(row, None, torch.zeros_like(row)))[0, 1:-1]
        assert score.pll == pytest.approx(-energy.sum().item(), abs=1e-4)


def test_a_loaded_scorer_reads_no_file_and_scores_alike_in_any_batch(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    scorer = load_scorer(copy)
    shutil.rmtree(copy)
    lines = ["the queen sold a boat .", "in 1912", "a young doctor painted the castle in 1912 ."]
    together = scorer.score(lines * 30)
    for line, expected in zip(lines, together, strict=False):
        assert scorer.score([line])[0].pll == pytest.approx(expected.pll, abs=1e-5)
    assert scorer.score([]) == []


def test_only_line_ends_end_a_line(tmp_path):
    inside = ["the\u2028queen", "a\x0bboat", "one\x85day", "the\x1csea", "the\x0cend"]
    (tmp_path / "text.txt").write_bytes("\r\n".join([*inside, "", "last"]).encode())
    assert read_sentences(tmp_path / "text.txt") == [*inside, "last"]
    (tmp_path / "text.txt.xz").write_bytes(lzma.compress("\ufeffthe queen\n".encode()))
    assert read_sentences(tmp_path / "text.txt.xz") == ["the queen"]


def test_precision_and_threads_are_those_of_the_run(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    config = read_run_config(run)
    train = dataclasses.replace(config.train, precision="bfloat16", threads=2, device="cuda")
    write_json(copy / "config.json", to_dict(dataclasses.replace(config, train=train)))
    try:
        found = load_scorer(copy).score(["the queen sold a boat ."])[0].pll
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    expected = load_scorer(run).score(["the queen sold a boat ."])[0].pll
    assert found != expected
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("objective", "network"), [("rtd", "kept"), ("rtd", "generator"), ("mlm", "kept")]
)
def test_other_networks_score_as_they_are_defined(
    objective, network, toy_shards, toy_config, toy_tokenizer, tmp_path
):
    """A discriminator in one pass, a masked language model with one token masked at a time."""
    run = tmp_path / "run"
    config = override(toy_config, [f"method.objective={objective}"])
    pretrain(toy_shards, run, config, lambda record: None)
    lines = ["the queen sold a boat .", "the queen"]
    scores = load_scorer(run, network).score(lines)
    _, checkpoint = find_checkpoint(run)
    vocabulary = Vocabulary(torch.from_numpy(toy_tokenizer.starts_word))
    model = build_objective(Parts(read_run_config(run), vocabulary)).eval()
    load_parameters(model, read_tensors(checkpoint / "model.safetensors"))
    for line, score in zip(lines, scores, strict=True):
        ids = toy_tokenizer.encode(line)
        row = torch.tensor([[toy_tokenizer.cls_id, *ids, toy_tokenizer.sep_id]])
        total = 0.0
        for place, token in enumerate(ids, 1):
            if objective == "rtd" and network == "kept":
                judge = model.networks["discriminator"]
                logit = judge.head(judge.encoders[0](row))[0, place]
                total += torch.sigmoid(-logit).log().item()
            else:
                masked_lm = model.networks["generator" if objective == "rtd" else "encoder"]
                masked = row.clone()
                masked[0, place] = toy_tokenizer.mask_id
                features = masked_lm.head(masked_lm.encoders[0](masked)[0, place])
                table = masked_lm.encoders[0].embeddings.tokens.weight
                total += (table @ features + masked_lm.head.bias).log_softmax(0)[token].item()
        assert score.pll == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize(
    ("objective", "network"), [("mlm", "generator"), ("all_tokens_mlm", "kept")]
)
def test_networks_without_probabilities_are_refused(
    objective, network, toy_shards, toy_config, tmp_path
):
    config = override(toy_config, [f"method.objective={objective}"])
    pretrain(toy_shards, tmp_path / "run", config, lambda record: None)
    with pytest.raises(UserError, match=f"objective={objective}, whose {network} network"):
        load_scorer(tmp_path / "run", network)


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
    assert found["kinds"] == {"x": {"pairs": 3, "accuracy": 0.5}, "y": {"pairs": 1, "accuracy": 1}}
    assert found["accuracy"] == 0.75


def test_pairs_are_scored_by_command(run, tmp_path):
    row = {"sentence_good": "the queen sold a boat .", "sentence_bad": "a a", "UID": "x"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row))
    words = ["--pairs", str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "pairs.json")]
    main(["score", str(run), *words])
    found = json.loads((tmp_path / "pairs.json").read_text())
    assert found["run"] == run.name
    assert found["predicts"] == "energy"
    assert found["pairs"] == 1
    assert found["accuracy"] in (0, 1)
    with pytest.raises(SystemExit) as stopped:
        main(["score", str(run), "--out", str(tmp_path / "none.json")])
    assert stopped.value.code == 2


def test_files_and_refusals(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"the queen\n\n a\tboat\ron \n")
    lines = read_sentences(text)
    assert lines == ["the queen", "a\tboat\ron"]
    write_scores(tmp_path / "scores.tsv", load_scorer(run).score(lines))
    rows = [line.split("\t") for line in (tmp_path / "scores.tsv").read_text().splitlines()]
    assert rows[0] == ["pll", "tokens", "text"]
    assert rows[2][2] == "a boat on"
    assert math.isfinite(float(rows[1][0]))
    with pytest.raises(UserError, match=r"line 2 has 31 tokens; it must have 1 to 30"):
        load_scorer(run).score(["the", "the " * 31])
    text.write_text("\n")
    with pytest.raises(UserError, match="holds no line of text"):
        read_sentences(text)
    with pytest.raises(UserError, match="nothing cannot be read"):
        read_sentences(tmp_path / "nothing")


@pytest.mark.parametrize(
    "settings",
    [["generator.kind=uniform"], ["generator.temperature=2"], ["generator.disallow_correct=true"]],
)
def test_noise_must_have_probabilities(settings):
    with pytest.raises(UserError, match="noise distribution of its own"):
        sketch_objective(override(PRESETS["tiny"], ["method.objective=electric", *settings]))

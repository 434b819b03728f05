"""Rows of several documents, whose tokens attend to their own document only."""

import dataclasses
import tracemalloc
from bisect import bisect_right

import numpy as np
import pytest
import torch
from networks import assert_same_tensors, rng

from electra.assignments import override
from electra.method.config import OBJECTIVES
from electra.model.batch import Batch, find_real
from electra.model.electra import PostNormLayer
from electra.model.encoder import Encoder
from electra.model.fused.post_norm import FusedPostNormLayer
from electra.model.heads import GeneratorHead
from electra.model.initialisation import init_weights
from electra.objectives.electric import TwoTowers
from electra.presets import PRESETS, encoder_sizes
from electra.pretraining.memory import make_rows, measure_activations
from electra.pretraining.start import build_model
from electra.shards.config import ExamplesConfig, PrepareConfig
from electra.shards.examples import BLOCK_TOKENS, Examples, Rows
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.machine import Machine

VOCAB, B, L = 50, 8, 24
SIZES = encoder_sizes(
    64, 2, 32, vocab_size=VOCAB, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def random_rows(seed):
    """Rows of one to five documents, some padded, and their numbers from 1."""
    borders_BL = torch.rand(B, L, generator=rng(seed)) < 0.1
    borders_BL[0] = False
    borders_BL[1, L // 2] = True
    numbers_BL = borders_BL.long().cumsum(dim=1)
    numbers_BL += 1 - numbers_BL[:, :1]
    length_B1 = torch.randint(5, 2 * L, (B, 1), generator=rng(seed + 1))
    ids_BL = torch.randint(5, VOCAB, (B, L), generator=rng(seed + 2))
    return ids_BL, numbers_BL * (torch.arange(L) < length_B1)


def list_documents(seed):
    """Rows, and for each document: where it is, and the rows with other tokens elsewhere."""
    ids_BL, numbers_BL = random_rows(seed)
    others_BL = torch.randint(5, VOCAB, (B, L), generator=rng(seed))
    places = [numbers_BL == number for number in range(1, int(numbers_BL.max()) + 1)]
    return ids_BL, numbers_BL, [(each, torch.where(each, ids_BL, others_BL)) for each in places]


@pytest.fixture(scope="module")
def many_shards(toy_text, toy_tokenizer, tmp_path_factory):
    """The toy text in several shards."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    config = PrepareConfig(heldout_prob=0.1, workers=1, shard_tokens=2000)
    prepare([str(toy_text)], toy_tokenizer, folder, config, None)
    return folder


@pytest.mark.parametrize("length", [8, 64, 200])
def test_numbers_are_those_of_the_stream(many_shards, length):
    """Each row against the shard's own borders, token by token, in an order of no shard."""
    shards = open_shards(many_shards)
    assert len(shards.train) > 2
    tokenizer = shards.tokenizer
    config = ExamplesConfig(sequence_length=length, attend="document")
    examples = Rows(shards.train, tokenizer, config, 0)
    rows = np.random.default_rng(0).permutation(len(examples))
    batch = examples.rows(rows)
    most = 0
    for row, ids, numbers in zip(rows, batch.input_ids_BL, batch.document_ids_BL, strict=True):
        documents = shards.train[bisect_right(examples.ends, row)].documents.tolist()
        token, expected = int(examples.starts[row]), []
        first = bisect_right(documents, token)
        for token_id in ids.tolist():
            if token_id == tokenizer.pad_id:
                expected.append(0)
            elif token_id in (tokenizer.cls_id, tokenizer.sep_id):
                expected.append(expected[-1] if expected else 1)
            else:
                expected.append(bisect_right(documents, token) - first + 1)
                token += 1
        assert (ids == tokenizer.cls_id).nonzero().tolist() == [[0]]
        assert numbers.tolist() == expected
        assert token == examples.starts[row] + examples.counts[row]
        most = max(most, *expected)
    assert most > (1 if length == 8 else 3)


def test_what_is_read_ahead_takes_bounded_memory(many_shards):
    shards, length = open_shards(many_shards), 4096
    config = ExamplesConfig(sequence_length=length, attend="document")
    many = Examples(shards.train * 1000, shards.tokenizer, config, 0)
    assert many.block_rows == BLOCK_TOKENS // length
    tracemalloc.start()
    many._read(0, 1000, 1, range(1))
    assert tracemalloc.get_traced_memory()[1] < 8 * length * 1000
    tracemalloc.stop()


def test_rows_are_the_same_but_for_the_numbers(toy_shards):
    shards = open_shards(toy_shards)
    by_row, by_document = (
        Examples(shards.train, shards.tokenizer, ExamplesConfig(attend=attend), 0).batch(0, 16)
        for attend in ("row", "document")
    )
    assert by_row.input_ids_BL.equal(by_document.input_ids_BL)
    assert by_row.token_type_ids_BL.equal(by_document.token_type_ids_BL)
    for batch in (by_row, by_document):
        assert find_real(batch).equal(by_document.document_ids_BL > 0)
    some = by_document.rows(slice(3, 5)).to(torch.device("cpu"))
    assert some.document_ids_BL.equal(by_document.document_ids_BL[3:5])


@pytest.mark.parametrize("layer", [FusedPostNormLayer, PostNormLayer])
@pytest.mark.parametrize("sees", ["all", "before", "after"])
@torch.no_grad()
def test_states_depend_on_ones_own_document_only(layer, sees):
    """Also cut out at the same positions, behind padding of the other kind."""
    encoder = Encoder(SIZES, layer=layer).eval()
    encoder.sees, changed = sees, 0
    init_weights(encoder, 0.2, rng(0))
    for seed in range(2):
        ids_BL, numbers_BL, documents = list_documents(seed)
        states = encoder(ids_BL, document_ids_BL=numbers_BL)
        assert states.isfinite().all()
        for is_mine_BL, other_BL in documents:
            again = encoder(other_BL, document_ids_BL=numbers_BL)
            alone = encoder(ids_BL * is_mine_BL, is_mine_BL)
            for each in (again, alone):
                torch.testing.assert_close(each[is_mine_BL], states[is_mine_BL], **CLOSE)
            by_row = [encoder(ids, numbers_BL > 0) for ids in (ids_BL, other_BL)]
            changed += not torch.allclose(*(each[is_mine_BL] for each in by_row), **CLOSE)
    assert changed > 5, "attention over the row shows the difference"


@torch.no_grad()
def test_two_towers_say_nothing_of_a_token_from_another_document():
    head = GeneratorHead(dataclasses.replace(SIZES, hidden_size=128))
    towers = TwoTowers(Encoder(SIZES), Encoder(SIZES), head).eval()
    init_weights(towers, 0.2, rng(0))
    types_BL = torch.zeros(B, L, dtype=torch.int64)
    for seed in range(2):
        ids_BL, numbers_BL, documents = list_documents(seed)
        features = towers(Batch(ids_BL, None, types_BL, numbers_BL))
        for is_mine_BL, other_BL in documents:
            again = towers(Batch(other_BL, None, types_BL, numbers_BL))
            torch.testing.assert_close(again[is_mine_BL], features[is_mine_BL], **CLOSE)


EVERY = [f"method.objective={name}" for name in OBJECTIVES if name != "cocolm"]
EVERY[EVERY.index("method.objective=causal_lm")] += " model.causal=true"
EVERY += ["method.objective=cocolm method.contrast_weight=0"]
EVERY += ["method.scheme=adversarial", "method.scheme=two_stage method.sharing=none"]


def build(settings):
    config = dataclasses.replace(PRESETS["tiny"], model=dataclasses.replace(SIZES, vocab_size=300))
    settings = [*settings.split(), "examples.attend=document", "method.mask_prob=0.3"]
    model = build_model(override(config, settings), make_tokenizer(300), Machine())
    init_weights(model, 0.2, rng(0))
    return model


def rows_of_two(num_first, length):
    """A batch of [CLS] A [SEP] B [SEP]; the second document is the second segment."""
    ids = torch.randint(5, 300, (4, length), generator=rng(1))
    ids[:, 0], ids[:, num_first - 1], ids[:, -1] = 2, 3, 3
    is_second = (torch.arange(length) >= num_first).long().expand(4, length)
    return Batch(ids, None, is_second.contiguous(), is_second + 1)


@pytest.mark.parametrize("settings", EVERY)
def test_every_network_of_every_objective_reads_by_document(settings, monkeypatch):
    """What each encoder was asked in a step, asked again with another second document."""
    model = build(settings)
    if "two_stage" in settings:
        model.begin_stage(1)
    batch = rows_of_two(12, L)
    calls = []

    def note(encoder, ends, *arguments, whole=Encoder.fork, **keywords):
        found = whole(encoder, ends, *arguments, **keywords)
        calls.extend((end, arguments, keywords, x) for end, x in zip(ends, found, strict=True))
        return found

    monkeypatch.setattr(Encoder, "fork", note)
    encoders = {module for module in model.modules() if isinstance(module, Encoder)}
    assert model(batch, *model.masking.draw(batch, rng(2))).loss.isfinite()
    monkeypatch.undo()
    assert {call[0] for call in calls} == encoders
    for encoder, (ids_BL, *others), keywords, states in calls:
        changed_BL = torch.where(batch.document_ids_BL == 1, ids_BL, 5 + ids_BL.flip(0) % 290)
        again = encoder(changed_BL, *others, **keywords)
        torch.testing.assert_close(again[:, :12], states[:, :12], **CLOSE)
        assert not torch.allclose(again[:, 12:], states[:, 12:], **CLOSE)


@pytest.mark.parametrize("settings", EVERY)
def test_a_row_of_one_document_is_the_same_to_the_bit(settings):
    model, batch = build(settings), rows_of_two(12, L)
    found = []
    for documents in (None, torch.ones_like(batch.input_ids_BL)):
        each = batch._replace(document_ids_BL=documents)
        draw, counts = model.masking.draw(each, rng(2))
        model.zero_grad()
        torch.manual_seed(0)
        loss = model(each, draw, counts).loss
        loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append({"loss": loss.detach(), **grads})
    assert_same_tensors(*found)


def test_the_probe_of_memory_reads_by_document():
    config = override(PRESETS["tiny"], ["examples.attend=document", "model.vocab_size=300"])
    assert make_rows(config, 2, 0).document_ids_BL.unique().tolist() == [1, 2]
    assert make_rows(PRESETS["tiny"], 2, 0).document_ids_BL is None
    model = build_model(config, make_tokenizer(300), Machine())
    assert measure_activations(model, config, torch.device("cpu")) > 0

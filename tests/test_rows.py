"""Every row of small shards as plain Python makes it, token by token."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_pretrain import write_shard

from electra.shards.config import ExamplesConfig
from electra.shards.examples import PARTNERS, Examples, Rows, cut, row_tokens
from electra.shards.layout import COLUMNS

CLS, SEP, PAD = 2, 3, 0


def cut_plainly(number, num_tokens, config, seed):
    """Return first token, number of tokens and "has two segments" of each row."""
    rng, rows, at = np.random.Generator(np.random.Philox(key=[seed, number])), [], 0
    while at < num_tokens:
        size = max(64, (num_tokens - at) // config.sequence_length + 1)
        pairs = rng.random(size) >= config.single_segment_prob
        shorts = rng.random(size) < config.short_prob
        drawn = rng.integers(5, config.sequence_length + 1, size)
        for is_pair, is_short, length in zip(pairs, shorts, drawn, strict=True):
            count = int(length if is_short else config.sequence_length) - 2 - int(is_pair)
            rows.append((at, count, is_pair))
            at += count
    rows = [row for row in rows if row[0] < num_tokens]
    start, _, is_pair = rows.pop()
    return [*rows, (start, num_tokens - start, is_pair and num_tokens - start >= 2)]


def split_plainly(shard, start, count, starts_word, is_next_sentence):
    """Return the number of tokens of the first segment of a row that has two."""
    lines, documents = shard.lines.tolist(), shard.documents.tolist()
    middle = (count + 1) // 2
    for borders in (documents, lines):
        before = max((each - start for each in borders if each < start + middle), default=0)
        after = min((each - start for each in borders if each >= start + middle), default=0)
        found = [each for each in (before, after) if 0 < each < count]
        if is_next_sentence:  # never where a document begins
            found = [each for each in found if start + each not in documents]
        if found:
            return min(found, key=lambda size: (abs(size - middle), size))
    for place in range(middle, min(count, middle + 8)):
        if starts_word[shard.tokens[start + place]]:
            return place
    return middle


def pair_plainly(number, num_rows, seed):
    """Return the row whose second segment each row has."""
    rng = np.random.Generator(np.random.Philox(key=[seed, PARTNERS + number]))
    others = [row for row, draw in enumerate(rng.random(num_rows)) if draw < 0.5]
    partners, moved = list(range(num_rows)), len(others) // 2
    for place, row in enumerate(others):
        partners[row] = others[place - moved]
    return partners


def make_row(shard, row, begin, size, config):
    """Return tokens and segments of a row whose second segment begins at a token of the shard."""
    start, count, is_pair = row
    first = shard.tokens[start : start + (size if is_pair else count)].tolist()
    second = shard.tokens[begin : begin + count - size].tolist() if is_pair else []
    ids = [CLS, *first, SEP] + ([*second, SEP] if is_pair else [])
    types = [0] * (len(first) + 2) + [1] * (len(second) + is_pair)
    missing = config.sequence_length - len(ids)
    return ids + [PAD] * missing, types + [0] * missing


def document_of(shard, token):
    return sum(begin <= token for begin in shard.documents.tolist())


@pytest.mark.parametrize("is_next_sentence", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_of_plain_python(tmp_path, seed, is_next_sentence):
    """Two shards of random lines, documents and words; the numbers of the shards are 3 and 7."""
    rng, numbers = np.random.default_rng(seed), (3, 7)
    starts_word = rng.random(60) < rng.choice([0.05, 0.5])
    tokenizer = SimpleNamespace(cls_id=CLS, sep_id=SEP, pad_id=PAD, starts_word=starts_word)
    config = ExamplesConfig(
        sequence_length=int(rng.choice([8, 16, 24])),
        short_prob=float(rng.choice([0.0, 0.5])),
        single_segment_prob=0.0 if is_next_sentence else 0.2,
        next_sentence=is_next_sentence,
    )
    shards = []
    for number in numbers:
        folder = tmp_path / str(number)
        folder.mkdir()
        num_tokens = int(rng.choice([1, 2, 5, 70, 64 * config.sequence_length, 1700]))
        borders = rng.permutation(num_tokens)[: int(num_tokens * rng.choice([0.02, 0.1]))]
        lines = sorted({0, *borders.tolist()})
        documents = [line for line in lines if line == 0 or rng.random() < 0.3]
        tokens = rng.integers(10, 60, num_tokens)
        shards.append(write_shard(folder, tokens, lines, documents))
    ours = Rows(shards, tokenizer, config, seed, numbers)
    batch = ours.rows(np.arange(len(ours)))
    found = zip(batch.input_ids_BL.tolist(), batch.token_type_ids_BL.tolist(), strict=True)
    is_next = batch.is_next_B.tolist() if is_next_sentence else []
    expected_rows, expected_next = [], []
    for number, shard in zip(numbers, shards, strict=True):
        rows = cut_plainly(number, shard.num_tokens, config, seed)
        sizes = [
            split_plainly(shard, start, count, starts_word, is_next_sentence)
            for start, count, _ in rows
        ]
        partners = pair_plainly(number, len(rows), seed) if is_next_sentence else range(len(rows))
        for row, size, partner in zip(rows, sizes, partners, strict=True):
            start, count, _ = row
            begin = start + size
            other = min(rows[partner][0] + sizes[partner], shard.num_tokens - (count - size))
            if is_next_sentence:
                of_a, of_b = (
                    {document_of(shard, token) for token in tokens}
                    for tokens in (range(start, start + size), range(other, other + count - size))
                )
                is_other = not of_a & of_b
                goes_on = size < count and document_of(shard, begin) in of_a
                expected_next.append(goes_on and not is_other)
                begin = other if is_other else begin
            expected_rows.append(make_row(shard, row, begin, size, config))
    assert [*found] == expected_rows
    assert is_next == expected_next


def test_a_row_has_as_many_tokens_as_expected():
    config = ExamplesConfig(sequence_length=32, short_prob=0.5, single_segment_prob=0.3)
    _, counts, _ = cut(0, 1_000_000, config, seed=0)
    assert counts.mean() == pytest.approx(row_tokens(config), rel=0.005)


@pytest.mark.parametrize(
    ("groups", "part", "num_open"), [(1, (0, 1), 4), (2, (0, 1), 8), (2, (1, 2), 4)]
)
def test_a_window_bounds_what_is_open_and_read_ahead(tmp_path, monkeypatch, groups, part, num_open):
    """Files of two windows at once, and blocks of 0.45 of half a window of this process."""
    limits, read, shards = [], [], []
    monkeypatch.setattr(
        "electra.shards.examples.allow_open_files", lambda folder, number: limits.append(number)
    )
    for number in range(20):
        (folder := tmp_path / str(number)).mkdir()
        shards.append(write_shard(folder, np.full(5_000 + 100 * number, 10)))
    config = ExamplesConfig(sequence_length=32, order="window", window=4, groups=groups)
    tokenizer = SimpleNamespace(cls_id=CLS, sep_id=SEP, pad_id=PAD, starts_word=np.ones(60, bool))
    examples = Examples(shards, tokenizer, config, seed=0, part=part)
    assert limits == [len(COLUMNS) * min(2 * num_open, 20)]
    of_shard = np.mean([each.num_tokens for each in shards]) / row_tokens(config)
    assert examples.block_rows == int(0.45 * 2 * of_shard * groups / part[1])
    examples.on_read = lambda step, numbers: read.append((step, list(numbers)))
    first = examples.first_shards()
    assert read == [(-1, examples.order.first_shards())]
    assert [each.path for each in first] == [shards[number].path for number in read[0][1]]

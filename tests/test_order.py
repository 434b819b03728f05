"""The order of windows: every row once an epoch, from few shards at a time, known for any step."""

from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refuse
from runs import assert_same_end, ignore

from electra.assignments import override
from electra.pretraining.loop import pretrain
from electra.shards.config import ExamplesConfig
from electra.shards.examples import Examples, row_tokens
from electra.shards.order import MIXED_ROWS, Mixing, permute
from electra.shards.store import Corpus, open_shards
from electra.shards.windows import WindowOrder

SIZES = st.lists(st.integers(1, 20), min_size=4, max_size=30)
WINDOW = {"window": st.integers(2, 9), "groups": st.sampled_from([1, 2, 4])}


def make_order(sizes, window, groups, seed=0, mixture=()):
    config = ExamplesConfig(order="window", window=window, groups=groups)
    ends = np.cumsum([each.num_shards for each in mixture] or [len(sizes)])
    expected = np.diff(np.cumsum(sizes)[ends - 1], prepend=0)
    mixing = Mixing(mixture, expected, seed, groups)
    return WindowOrder(config, np.array(sizes), mixing, ends.tolist(), sizes.__getitem__)


def draw(order, sizes, group, first, last):
    """The shard and the row in it of each place."""
    found = [None] * (last - first)
    for shards, places, rows in order.draw(group, first, last):
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            for shard in shards:
                if row < sizes[shard]:
                    break
                row -= sizes[shard]
            assert found[place] is None
            found[place] = shard, row
    return found


def define(stream, sizes, epoch):
    """The rows of an epoch as the module's docstring has it, all at once."""
    halves = [
        [(s, r) for s in half for r in range(sizes[s])] for half in stream.epoch(epoch).halves
    ]
    starts = np.cumsum([0, *map(len, halves)]).tolist()
    middles = [(a + b) // 2 for a, b in pairwise(starts)]
    rows = [*chain(*halves)]
    for permutation, bounds in ((1, starts), (2, [0, *middles, starts[-1]])):
        before, rows = rows, []
        for part, (first, end) in enumerate(pairwise(bounds)):
            key = stream._key(epoch, permutation, part)
            images = permute(np.arange(end - first), end - first, stream.seed, key)
            rows += [before[first + image] for image in images]
    return rows


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 9), data=st.data(), **WINDOW)
def test_an_epoch_has_each_row_once_in_the_order_that_is_defined(sizes, window, groups, seed, data):
    order = make_order(sizes, window, groups, seed)
    of_groups = [stream.numbers.tolist() for stream in order.streams[0]]
    assert sorted(chain(*of_groups)) == [*range(len(sizes))]
    for group, numbers in enumerate(of_groups):
        size = sum(sizes[number] for number in numbers)
        rows = draw(order, sizes, group, 0, 3 * size)
        for epoch in range(3):
            assert rows[epoch * size :][:size] == define(order.streams[0][group], sizes, epoch)
            assert len(set(rows[epoch * size :][:size])) == size
        # At any place, by an order that has drawn nothing before.
        first = data.draw(st.integers(0, 3 * size - 1))
        last = data.draw(st.integers(first + 1, 3 * size))
        assert (
            draw(make_order(sizes, window, groups, seed), sizes, group, first, last)
            == rows[first:last]
        )
    loads = [sum(sizes[number] for number in numbers) for numbers in of_groups]
    assert max(loads) - min(loads) <= max(sizes)


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, step=st.integers(0, 200), share=st.integers(1, 20), **WINDOW)
@example(sizes=[1, 4, 6, 4, 1, 16, 1, 17, 9, 1, 1, 1], step=0, share=14, window=2, groups=1)
def test_the_shards_that_steps_need_are_told_in_the_order_of_first_use(
    sizes, window, groups, step, share
):
    order, steps, batch_size = (
        make_order(sizes, window, groups),
        range(step, step + 30),
        share * groups,
    )
    chosen = range(groups)[-2:]
    uses = []
    for use in make_order(sizes, window, groups).uses(step, batch_size, chosen):
        if use.first >= steps.stop:
            break
        uses.append(use)
    assert [use.first for use in uses] == sorted(use.first for use in uses)
    for each in steps:
        told = {number for use in uses if use.first <= each <= use.last for number in use.shards}
        of_groups = [
            draw(order, sizes, group, each * share, (each + 1) * share) for group in chosen
        ]
        assert {shard for rows in of_groups for shard, _ in rows} <= told
        # Half windows of two windows, or of the end of an epoch and the beginning of the next ones.
        rows = order.streams[0][0].size or sum(sizes)
        if share < rows // 4:
            more = share // min(sizes)  # half windows of a few rows, in one step
            assert len(told) <= len(chosen) * (5 + more) * (window // 2)


def test_the_rows_of_a_shard_are_spread_over_a_window():
    """Over the rows of as many shards, with no seam in the middle of it."""
    sizes, window = [200] * 64, 8
    rows = draw(make_order(sizes, window, 1), sizes, 0, 0, sum(sizes))
    places = {number: [] for number in range(64)}
    for place, (shard, _) in enumerate(rows):
        places[shard].append(place)
    spans = sorted(max(each) - min(each) for each in places.values())
    assert spans[8] > 0.9 * 200 * window
    assert spans[-1] < 200 * window
    assert len({shard for shard, _ in rows[:400]}) == window // 2  # a run begins with half of them


def test_a_mixture_has_its_shares_in_windows():
    sizes = [50, 60, 70, 80] * 3
    mixture = [Corpus("a", 4, 3.0, 1), Corpus("b", 8, 1.0, 1)]
    order = make_order(sizes, 4, 2, mixture=mixture)
    for group in range(2):
        rows = draw(order, sizes, group, 0, MIXED_ROWS)
        assert sum(shard < 4 for shard, _ in rows) == MIXED_ROWS * 3 // 4
        assert draw(order, sizes, group, 1000, 1100) == rows[1000:1100]
        times = Counter(Counter(rows).values())
        assert len(times) <= 4  # each corpus has read its rows equally often, to one
    assert len(order.first_shards()) == 2 + 2
    use = next(order.uses(70_000 // 8, 16, [0]))
    assert use.first == 70_000 // 8


def assert_parts(parts, whole):
    """That the parts, one after the other, are the whole batch; a part may have no padding."""
    for column, of_parts in enumerate(zip(*parts, strict=True)):
        if whole[column] is None:
            assert set(of_parts) == {None}
        else:
            rows = [
                torch.ones_like(part.input_ids_BL, dtype=torch.bool) if each is None else each
                for part, each in zip(parts, of_parts, strict=True)
            ]
            assert torch.cat(rows).equal(whole[column])


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("order", ["global", "window, 1 group", "window, 4 groups"])
def test_batches_are_those_of_every_process(many_shards, order, pairs):
    """By blocks as one by one; of a process of several, the rows that it computes."""
    shards = open_shards(many_shards)
    windows = {"order": "window", "window": 6, "groups": 4 if "4" in order else 1}
    config = ExamplesConfig(
        sequence_length=32, next_sentence=pairs, single_segment_prob=0 if pairs else 0.1,
        **(windows if "window" in order else {}),
    )  # fmt: skip
    given = shards.train, shards.tokenizer, config, 5
    examples = Examples(*given)
    parts = [Examples(*given, part=(rank, 3)) for rank in range(3)]
    asked = []
    parts[0].on_read = lambda step, numbers: asked.append({*numbers})
    blocks = [each.batches(7, 24) for each in (examples, *parts)]
    for step in range(7, 32):
        whole, *of_parts = (next(each) for each in blocks)
        for one, other in zip(whole, Examples(*given).batch(step, 24), strict=True):
            assert one is other is None or one.equal(other)
        assert_parts(of_parts, whole)
    if "4" in order:  # the first of three has rows of two groups of four
        assert asked[0] < set(range(len(shards.train)))
        assert parts[0].batch(7, 24).input_ids_BL.equal(examples.batch(7, 24).input_ids_BL[:12])
    rows = sum(map(len, (examples._cut([n]) for n in range(len(shards.train)))))
    if order == "global":
        assert len(examples) == rows
        return
    expected = sum(shard.num_tokens for shard in shards.train) / row_tokens(config)
    assert len(examples) == pytest.approx(expected, abs=1)
    assert len(examples) == pytest.approx(rows, rel=0.05)


def test_files_are_open_as_long_as_their_rows_are_read(many_shards):
    shards = open_shards(many_shards)
    config = ExamplesConfig(sequence_length=32, order="window", window=4)
    examples = Examples(shards.train, shards.tokenizer, config, 0)
    for step in range(0, 60, 10):
        examples.batch(step, 8)
        assert sum(len(rows.shards) for rows in examples.open.values()) <= 3 * 2
    assert not any("tokens" in vars(shard) for shard in shards.train)


def test_a_run_in_windows_continues_to_the_same_bits(many_shards, toy_config, tmp_path):
    words = ["examples.order=window", "examples.window=4", "examples.groups=2"]
    config = override(toy_config, words)
    pretrain(many_shards, tmp_path / "whole", config, ignore)

    def stop(record):
        if record["step"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(many_shards, tmp_path / "parts", config, stop)
    pretrain(many_shards, tmp_path / "parts", config, ignore)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_settings_that_cannot_be(many_shards, toy_config):
    refuse(
        "examples.groups must be a power of two, not 3", ExamplesConfig, order="window", groups=3
    )
    refuse("examples.window 8 needs examples.order=window", ExamplesConfig, window=8)
    words = ["examples.order=window", "examples.groups=16"]
    refuse("train.batch_size must be a multiple of examples.groups 16", override, toy_config, words)
    shards = open_shards(many_shards)
    config = ExamplesConfig(order="window", groups=128)
    refuse("examples.groups 128 needs as many", Examples, shards.train, shards.tokenizer, config, 0)

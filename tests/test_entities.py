import random

import pytest
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Entities

from electra.tasks.tagging import (
    ENTITY_TAG,
    Entity,
    EntityCounts,
    count_entities,
    find_entities,
    sum_counts,
    write_tags,
)

TYPES = ("PER", "LOC", "geo-area")
PREFIXES = {"IOB1": "IB", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}
STRICT = {"IOB1": IOB1, "IOB2": IOB2, "BIOES": IOBES, "BILOU": BILOU}


def draw_entities(rng: random.Random, num_words: int) -> list[Entity]:
    """Entities of one to four words, often with no word between them."""
    entities, place = [], rng.choice((0, 0, 1, 2))
    while place < num_words:
        stop = min(num_words, place + rng.choice((1, 1, 2, 3, 4)))
        entities.append(Entity(rng.choice(TYPES), place, stop))
        place = stop + rng.choice((0, 0, 1, 3))
    return entities


def write_in(scheme: str, entities: list[Entity], num_words: int) -> list[str]:
    tags = ["O"] * num_words
    for number, (entity_type, start, stop) in enumerate(entities):
        middle = "I" * (stop - start)
        if scheme == "IOB1":
            before = entities[number - 1] if number else None
            touches = before and (before.type, before.stop) == (entity_type, start)
            prefixes = "B" + middle[1:] if touches else middle
        elif scheme == "IOB2":
            prefixes = "B" + middle[1:]
        else:
            end, single = "ES" if scheme == "BIOES" else "LU"
            prefixes = single if stop - start == 1 else "B" + middle[2:] + end
        tags[start:stop] = [f"{prefix}-{entity_type}" for prefix in prefixes]
    return tags


def draw_tags(rng: random.Random, scheme: str) -> list[str]:
    """Tags of the scheme: in half of the cases valid, else valid with noise, or noise alone."""
    num_words = rng.randrange(1, 13)
    every_tag = ["O", *(f"{p}-{t}" for p in PREFIXES[scheme] for t in TYPES)]
    noise = rng.choice((0, 0, 0.2, 1))
    return [
        rng.choice(every_tag) if rng.random() < noise else tag
        for tag in write_in(scheme, draw_entities(rng, num_words), num_words)
    ]


def disturb(rng: random.Random, tags: list[str], scheme: str) -> list[str]:
    other = draw_tags(rng, scheme)
    return [
        other[place % len(other)] if rng.random() < 0.3 else tag for place, tag in enumerate(tags)
    ]


@pytest.mark.parametrize("scheme", PREFIXES)
def test_what_is_written_in_a_scheme_is_found(scheme):
    rng = random.Random(0)
    for _ in range(1000):
        num_words = rng.randrange(1, 13)
        entities = draw_entities(rng, num_words)
        tags = write_in(scheme, entities, num_words)
        assert find_entities(tags) == entities
        assert all(ENTITY_TAG.fullmatch(tag) for tag in tags)
        theirs = Entities([tags], STRICT[scheme]).entities[0]
        assert [each.to_tuple()[1:] for each in theirs] == [tuple(each) for each in entities]
        if scheme == "IOB2":
            assert write_tags(entities, num_words) == tags


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_entities_are_seqevals_in_valid_and_invalid_sequences(scheme):
    rng = random.Random(1)
    num_invalid = 0
    for _ in range(2000):
        tags = draw_tags(rng, scheme)
        found = find_entities(tags)
        assert [(t, start, stop - 1) for t, start, stop in found] == get_entities(tags)
        num_invalid += write_in(scheme, found, len(tags)) != tags
        assert find_entities(write_tags(found, len(tags))) == found
    assert num_invalid > 500


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_scores_are_seqevals(scheme):
    rng = random.Random(2)
    for _ in range(20):
        gold = [draw_tags(rng, scheme) for _ in range(rng.choice((1, 10, 200)))]
        guessed = [disturb(rng, tags, scheme) for tags in gold]
        counts = count_entities(gold, guessed)
        overall = sum_counts(counts.values())
        theirs = precision_recall_fscore_support(gold, guessed, average="micro", zero_division=0)
        ours = (overall.precision, overall.recall, overall.f1)
        assert ours == pytest.approx(theirs[:3])
        theirs = precision_recall_fscore_support(gold, guessed, average=None, zero_division=0)
        for each, line in zip(counts.values(), zip(*theirs, strict=True), strict=True):
            assert (each.precision, each.recall, each.f1, each.gold) == pytest.approx(line)


def test_prefixes_alone_are_entities_without_a_type():
    assert find_entities(["B", "I", "O", "I", "B"]) == [
        Entity("", 0, 2),
        Entity("", 3, 4),
        Entity("", 4, 5),
    ]
    assert write_tags([Entity("", 0, 2)], 3) == ["B", "I", "O"]
    assert get_entities(["B", "I", "O", "I", "B"]) == [("_", 0, 1), ("_", 3, 3), ("_", 4, 4)]


def test_scores_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER"]]
    guessed = [["B-PER", "I-PER", "O", "I-PER"], ["O"]]
    counts = count_entities(gold, guessed)
    assert counts == {"LOC": EntityCounts(1, 0, 0), "PER": EntityCounts(2, 2, 1)}
    assert (counts["LOC"].precision, counts["LOC"].recall, counts["LOC"].f1) == (0, 0, 0)
    overall = sum_counts(counts.values())
    assert (overall.precision, overall.recall) == (1 / 2, 1 / 3)
    assert overall.f1 == pytest.approx(2 / 5)
    nothing = sum_counts([])
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)

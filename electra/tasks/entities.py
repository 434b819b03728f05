"""Entities in sequences of tags, and the counts that their scores are made of.

A tag is O, or a prefix and a type such as B-PER, or a prefix alone. One set of rules reads the
entities of every scheme, since a prefix means the same wherever it occurs:

    IOB2    every entity begins with B
    IOB1    I begins an entity; B does so only directly after another entity of its type
    BIOES   E ends an entity, S is one of a single word; also called IOBES
    BILOU   the same with L and U for E and S

Entities are written in IOB2: it has the fewest labels of the schemes, so each is learnt from the
most examples, and transformers' token classifiers and most published files use it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ENTITY_TAG = re.compile(r"O|[BIESLU](-.+)?")


class Entity(NamedTuple):
    """Words `start` to `stop - 1` of a sentence."""

    type: str
    """Empty if tags are prefixes alone."""
    start: int
    stop: int


def type_of(tag: str) -> str:
    """Return the type of a tag that ENTITY_TAG matches; empty for O and for a prefix alone."""
    return tag.partition("-")[2]


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in order.

    Every tag but O belongs to exactly one entity. An entity begins after O, after another type, at
    B, S or U, and after E, L, S or U. No sequence is invalid: I-PER after O begins an entity.

    Args:
        tags: Tags of any of the schemes; ENTITY_TAG matches each.

    Source: conlleval.pl startOfChunk and endOfChunk; for B after E, and for S, which it does not
    know, get_entities of seqeval, which does the same elsewhere.
    """
    entities: list[Entity] = []
    before, type_before = "O", ""
    for place, tag in enumerate(tags):
        prefix, entity_type = tag[0], type_of(tag)
        if prefix in "IEL" and before in "BI" and entity_type == type_before:
            entities[-1] = entities[-1]._replace(stop=place + 1)
        elif prefix != "O":
            entities.append(Entity(entity_type, place, place + 1))
        before, type_before = prefix, entity_type
    return entities


def write_tags(entities: Iterable[Entity], num_words: int) -> list[str]:
    """Return the IOB2 tags of a sentence's entities."""
    tags = ["O"] * num_words
    for entity_type, start, stop in entities:
        ending = f"-{entity_type}" if entity_type else ""
        tags[start:stop] = [f"B{ending}"] + [f"I{ending}"] * (stop - start - 1)
    return tags


@dataclass(frozen=True)
class EntityCounts:
    """Numbers of entities; scores without entities are 0, as in conlleval."""

    gold: int
    predicted: int
    correct: int
    """Predicted entities with the type and both ends of a gold entity."""

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold entities that were found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.gold + self.predicted
        return 2 * self.correct / both if both else 0.0


def count_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> dict[str, EntityCounts]:
    """Return the counts of each type that either side has, sorted by type.

    Args:
        gold: Tags of each sentence.
        predicted: Predicted tags of the same sentences.
    """
    sides = Counter[str](), Counter[str](), Counter[str]()
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        golden, guessed = set(find_entities(gold_tags)), set(find_entities(predicted_tags))
        for counter, entities in zip(sides, (golden, guessed, golden & guessed), strict=True):
            counter.update(entity.type for entity in entities)
    return {
        entity_type: EntityCounts(*(counter[entity_type] for counter in sides))
        for entity_type in sorted(sides[0] | sides[1])
    }


def sum_counts(counts: Iterable[EntityCounts]) -> EntityCounts:
    """Return the counts of all types together, whose scores are micro-averages."""
    counts = list(counts)
    return EntityCounts(
        sum(each.gold for each in counts),
        sum(each.predicted for each in counts),
        sum(each.correct for each in counts),
    )

"""An existing vocabulary with more tokens: all old tokens keep their ids, the new ones follow.

So a model's embeddings of the old tokens stay valid. A new token's row can start as the mean of the
rows of the old pieces that spell it (`Tokenizer.spell` of the old tokenizer).
"""

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from electra.errors import UserError, require
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.formats import Definition
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.training import (
    count_words,
    read_lines,
    refuse_min_frequency,
    state_of,
    train_pieces,
    train_tokens,
)

FIRST_CODE = 0x20000
"""Code points from here on stand for old tokens while new merges are learnt."""
MAX_TOKENS = 0x110000 - FIRST_CODE


def extend(old: Tokenizer, texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Return the tokenizer with the tokens that shorten this text most.

    - WordPiece gets the pieces of a vocabulary trained on the text that it does not have, in the
      order in which they were merged.
    - BPE learns further merges of its own pieces. They come after the old ones, so that a word is
      first cut as before.
    - Unigram gets the likeliest pieces of a vocabulary trained on the text, with their scores.
    """
    wanted = config.vocab_size - old.vocab_size
    require(
        wanted > 0,
        f"vocab_size must be larger than the {old.vocab_size:,} tokens of the old vocabulary, not "
        f"{config.vocab_size:,}",
    )
    state = copy.deepcopy(old.definition.state)
    if old.is_bert:
        settings = old.definition.bert or {}
        like_old: Any = {**settings, "split_ideographs": settings["split_ideographs"] is not False}
        found = train_tokens(texts, dataclasses.replace(config, kind="wordpiece", **like_old))
        new = [token for token in found if token not in old.ids][:wanted]
        return Tokenizer([*old.tokens_by_id, *new], **like_old)
    if old.kind not in ("BPE", "Unigram"):
        raise UserError(f"only BERT's WordPiece, BPE and Unigram can be extended, not {old.kind}")
    if state["pre_tokenizer"] is None:
        raise UserError("a vocabulary without words (its pre_tokenizer is null) cannot be extended")
    if old.kind == "BPE":
        _add_merges(state, old, texts, config.min_frequency, wanted)
    else:
        refuse_min_frequency(config)
        _add_pieces(state, old, texts, wanted)
    return Tokenizer.from_definition(Definition(state, old.special_tokens))


def _add_merges(
    state: dict[str, Any], old: Tokenizer, texts: Iterable[str], min_frequency: int, wanted: int
) -> None:
    require(old.vocab_size <= MAX_TOKENS, f"the vocabulary has more than {MAX_TOKENS:,} tokens")
    trainer = trainers.BpeTrainer(
        # Some merges only give old tokens, so more merges are requested.
        vocab_size=2 * (old.vocab_size + wanted),
        min_frequency=min_frequency,
        show_progress=False,
    )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    lines = ("".join(map(chr, ids)) for ids in _pieces_of_words(old, texts))
    backend.train_from_iterator(lines, trainer)
    model, ids = state["model"], dict(old.ids)

    def spell(word: str) -> str:
        return "".join(old.tokens_by_id[ord(char) - FIRST_CODE] for char in word)

    for left, right in map(lambda pair: map(spell, pair), state_of(backend)["model"]["merges"]):
        if left + right not in ids:
            if len(ids) == old.vocab_size + wanted:
                break
            ids[left + right] = model["vocab"][left + right] = len(ids)
        is_pair = not model["merges"] or isinstance(model["merges"][0], list)
        model["merges"].append([left, right] if is_pair else f"{left} {right}")


def _pieces_of_words(old: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    """Yield the pieces of each word of the text, as code points from FIRST_CODE on."""
    memory: dict[str, list[int]] = {}
    special = set(old.special_ids)
    for words in old.pre_tokenize(read_lines(texts)):
        for word in words:
            if word not in memory:
                if len(memory) > 1 << 20:
                    memory.clear()
                ids = old.spell(word)
                memory[word] = [] if special & set(ids) else [FIRST_CODE + n for n in ids]
            if len(memory[word]) > 1:
                yield memory[word]


def _add_pieces(state: dict[str, Any], old: Tokenizer, texts: Iterable[str], wanted: int) -> None:
    vocab = state["model"]["vocab"]
    # The special tokens keep their ids, and the new pieces follow. A special token matches text
    # only where no piece does, and then becomes the unknown token.
    worst = min(score for _, score in vocab)
    vocab += [[token, worst - 1000] for token in old.tokens_by_id[len(vocab) :]]
    words = count_words(read_lines(texts), old.normalize)
    pieces = train_pieces(words, old.vocab_size + wanted)
    new = [piece for piece in pieces if piece.text not in old.ids]
    new.sort(key=lambda piece: (-piece.score, piece.text))
    vocab += [[piece.text, piece.score] for piece in itertools.islice(new, wanted)]

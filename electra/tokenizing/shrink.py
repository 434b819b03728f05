"""An existing vocabulary with fewer tokens: those that a text needs, in their old order.

The text is cut as before:

- WordPiece takes the longest token that matches; no new token is longer.
- BPE applies its merges in order. A token is kept with the merges that can produce it and with
  their parts; no other merge was applied.
- Unigram takes the likeliest path, which is the likeliest of those that are left. The least likely
  piece is kept, since an unknown character counts as less likely than it by a fixed amount.

To encode other text, all special tokens and bytes are kept, and the single characters of the text
and of printable ASCII. A token below `min_frequency` is spelt with other tokens.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from tokenizers import pre_tokenizers

from electra.errors import UserError, require
from electra.text.characters import group_texts
from electra.tokenizing.formats import BYTE_TOKEN, Definition, State, parts_of
from electra.tokenizing.tokenizer import Tokenizer

BLOCK_CHARS = 1 << 20
ROWS = 32
ASCII = frozenset(map(chr, range(0x21, 0x7F)))


class Smaller(NamedTuple):
    """A vocabulary that was cut down."""

    tokenizer: Tokenizer
    kept: list[int]
    """The old id of each token."""
    num_old: int
    """Tokens of the old vocabulary."""
    rows: list[list[int]]
    """Ids of the first lines of the text, in the new vocabulary."""
    num_tokens: int
    """Tokens of the text, before."""
    num_more: int
    """Tokens that it has more now; 0 with a min_frequency of 1."""


def shrink(old: Tokenizer, read: Callable[[], Iterable[str]], min_frequency: int = 1) -> Smaller:
    """Return the vocabulary with the tokens that the text has `min_frequency` times or more.

    Args:
        old: A tokenizer of WordPiece, BPE or Unigram.
        read: Returns the lines of the text. It is called twice: the text is cut with both
            vocabularies, and compared.
        min_frequency: 1 keeps every token of the text.

    Raises:
        UserError: The kind of tokenizer is another; there is no text; or the text is cut in another
            way although every token of it was kept.
    """
    kinds = ("WordPiece", "BPE", "Unigram")
    if old.kind not in kinds:
        raise UserError(f"only {', '.join(kinds)} can be cut down, not {old.kind}")
    counts, characters = _count(old, read())
    require(bool(counts.any()), "the text is empty; it has to show which tokens are kept")
    wanted = {old.tokens_by_id[index] for index in np.flatnonzero(counts >= min_frequency)}
    kept = sorted(old.ids[token] for token in _close(old, wanted, characters))
    new = Tokenizer.from_definition(_rebuild(old, kept))
    rows: list[list[int]] = []
    num_tokens = num_more = 0
    for block in group_texts(read(), BLOCK_CHARS):
        pairs = zip(block, old.encode_batch(block), new.encode_batch(block), strict=True)
        for line, before, after in pairs:
            is_same = [kept[index] for index in after] == before
            require(
                is_same or min_frequency > 1,
                f"{line[:60]!r} would be cut in another way than before: leave it out, or set "
                "--min-frequency 2, which accepts that",
            )
            num_tokens, num_more = num_tokens + len(before), num_more + len(after) - len(before)
            if is_same and len(rows) < ROWS:
                rows.append(after)
    require(
        num_tokens == counts.sum(),
        f"the text had {counts.sum():,} tokens at the first reading and {num_tokens:,} at the "
        "second; name files, which can be read twice",
    )
    return Smaller(new, kept, old.vocab_size, rows, num_tokens, num_more)


def _count(old: Tokenizer, lines: Iterable[str]) -> tuple[np.ndarray, set[str]]:
    """Return how often the text has each token (vocab_size,), and its characters."""
    counts = np.zeros(old.vocab_size, np.int64)
    characters: set[str] = set()
    for block in group_texts(lines, BLOCK_CHARS):
        ids = [index for row in old.encode_batch(block) for index in row]
        counts += np.bincount(np.array(ids, np.int64), minlength=old.vocab_size)
        characters.update(*block)
    return counts, {char for each in characters for char in old.normalize(each)}


def _close(old: Tokenizer, wanted: set[str], characters: set[str]) -> set[str]:
    """Return the wanted tokens, their parts, and the tokens needed to spell other words."""
    state = old.definition.state
    model = state["model"]
    letters = characters | ASCII
    stages = (*parts_of(state["normalizer"]), *parts_of(state["pre_tokenizer"]))
    if any(part["type"] == "ByteLevel" for part in stages):
        letters |= {*pre_tokenizers.ByteLevel.alphabet()}
    prefix, suffix = _marks(model)
    kept = {*wanted, *old.special_tokens, *(token["content"] for token in state["added_tokens"])}
    kept |= {
        token
        for token in old.tokens_by_id
        if token.removeprefix(prefix).removesuffix(suffix) in letters or BYTE_TOKEN.fullmatch(token)
    }
    if model["type"] == "Unigram":
        kept.add(min(model["vocab"], key=lambda piece: piece[1])[0])
    made_of: dict[str, list[tuple[str, str]]] = {}
    for left, right, joined in _merges(model):
        made_of.setdefault(joined, []).append((left, right))
    waiting = [*kept]
    while waiting:
        parts = {part for pair in made_of.get(waiting.pop(), []) for part in pair} - kept
        kept |= parts
        waiting += parts
    return kept


def _marks(model: State) -> tuple[str, str]:
    """Return the mark before a token inside a word, and that behind one at its end."""
    usual = "##" if model["type"] == "WordPiece" else ""
    return model.get("continuing_subword_prefix") or usual, model.get("end_of_word_suffix") or ""


def _merges(model: State) -> Iterator[tuple[str, str, str]]:
    """Yield the two tokens of each merge and the token that they become."""
    prefix, _ = _marks(model)
    for merge in model.get("merges", ()):
        left, right = merge if isinstance(merge, list) else merge.split(" ", 1)
        yield left, right, left + right.removeprefix(prefix)


def _rebuild(old: Tokenizer, kept: list[int]) -> Definition:
    """Return the definition with these tokens alone, whose ids are their places."""
    state = copy.deepcopy(old.definition.state)
    model = state["model"]
    ids = {old.tokens_by_id[index]: place for place, index in enumerate(kept)}
    for token in state["added_tokens"]:
        token["id"] = ids[token["content"]]
    if model["type"] == "Unigram":
        unknown = model["vocab"][model["unk_id"]][0]
        model["vocab"] = [piece for piece in model["vocab"] if piece[0] in ids]
        model["unk_id"] = ids[unknown]
    else:
        model["vocab"] = {token: ids[token] for token in model["vocab"] if token in ids}
    if "merges" in model:
        pairs = zip(model["merges"], _merges(model), strict=True)
        model["merges"] = [merge for merge, tokens in pairs if ids.keys() >= {*tokens}]
    return Definition(state, old.special_tokens)

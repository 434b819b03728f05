"""The script of a character, from its name in Unicode."""

import json
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from electra.config import TokenizerConfig
from electra.errors import UserError, import_extra, require
from electra.text.streams import replace_surrogates
from electra.tokenizing.formats import (
    DEFINING,
    Definition,
    Piece,
    define,
    read_pieces,
    special_token,
)
from electra.tokenizing.structure import METASPACE
from electra.tokenizing.vocabulary import ALPHABET_COVERAGE, SPECIAL_TOKENS, break_words

RENAMED = {"CJK": "Han", "FULLWIDTH": "", "HALFWIDTH": "", "MATHEMATICAL": "signs"}
DIGITS, SIGNS = "digits", "signs"


@cache
def script_of(char: str) -> str:
    """Return the script of a letter, such as "Latin" or "Hangul", or "digits", or "signs"."""
    category = unicodedata.category(char)
    if category == "Nd":
        return DIGITS
    if category[0] not in "LM":
        return SIGNS
    first, *others = unicodedata.name(char, "unknown").split()
    name = RENAMED.get(first, first.split("-")[0].capitalize())
    return name or (others[0].capitalize() if others else SIGNS)


def script_of_word(word: str) -> str:
    """Return the script of a word: that of its first letter, else digits or signs."""
    scripts = [script_of(char) for char in word]
    letters = (script for script in scripts if script not in (DIGITS, SIGNS, "Combining"))
    return next(letters, DIGITS if DIGITS in scripts else SIGNS)


NUM_BYTES = 256
MAX_COUNTED_WORDS = 1 << 22
"""Distinct words that Unigram counts, about 1 GB. When there are more, the rarest are forgotten."""
MAX_COUNTED_CHARS = 200
"""Characters of the longest counted word. A longer one, as Chinese sentences are, is cut."""
TRAINER_THREADS = 4
"""Threads of SentencePiece. Their number changes the order of its sums, so it is fixed."""


def train_bpe(texts: Iterable[str], config: TokenizerConfig) -> Definition:
    """Return a byte-level BPE tokenizer: any text has ids, and none is unknown.

    Each line begins as if after a space, so that a word has the same ids at its beginning. Source:
    GPT-2's byte-level BPE; ids as in BERT, the special tokens first.
    """
    least = len(SPECIAL_TOKENS) + NUM_BYTES
    require(
        config.vocab_size >= least,
        f"vocab_size must be at least {least} for bpe, not {config.vocab_size}: {NUM_BYTES} bytes "
        f"and {len(SPECIAL_TOKENS)} special tokens",
    )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = build_normalizer(config, "NFC")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(read_lines(texts), trainer)
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return define(state_of(backend), {})


def train_unigram(texts: Iterable[str], config: TokenizerConfig) -> Definition:
    """Return a Unigram tokenizer, whose pieces and scores SentencePiece finds.

    The alphabet is chosen as WordPiece's is: the most frequent characters, until they cover
    ALPHABET_COVERAGE of the text or fill half of the vocabulary. All special tokens but [UNK] have
    the last ids, outside the pieces, so that they are not found in text.
    """
    require(
        config.min_frequency == TokenizerConfig.min_frequency,
        "min_frequency is a setting of wordpiece and bpe; unigram has none",
    )
    normalizer = build_normalizer(config, "NFKC")
    words = count_words(read_lines(texts), normalizer.normalize_str)
    pieces = train_pieces(words, config.vocab_size - len(SPECIAL_TOKENS) + 1)
    metaspace = {
        "type": "Metaspace",
        "replacement": METASPACE,
        "prepend_scheme": "always",
        "split": True,
    }
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizer
    others = [name for name in SPECIAL_TOKENS if name != "[UNK]"]
    added = [special_token(name, len(pieces) + place) for place, name in enumerate(others)]
    state = {
        "added_tokens": [special_token("[UNK]", 0), *added],
        "normalizer": state_of(backend)["normalizer"],
        "pre_tokenizer": metaspace,
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [[piece.text, piece.score] for piece in pieces],
            "byte_fallback": False,
        },
    }
    return define(state, {})


def build_normalizer(config: TokenizerConfig, form: str) -> Any:
    """Return the normaliser: a Unicode form, lower-casing, removal of combining marks."""
    parts = [getattr(normalizers, form)()]
    if config.lowers_case:
        parts.append(normalizers.Lowercase())
    if config.strips_accents:
        parts += [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
    return normalizers.Sequence(parts)


def state_of(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the defining parts of a tokenizer of the library."""
    state = json.loads(backend.to_str())
    return {key: state[key] for key in DEFINING}


def read_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines of text, with long words broken: a trainer's time grows with their square.

    Raises:
        UserError: There is no text.
    """
    is_empty = True
    for text in texts:
        line = break_words(replace_surrogates(text))
        is_empty = is_empty and not line.strip()
        yield line
    require(not is_empty, "the corpus holds no text to train a vocabulary on")


def count_words(lines: Iterable[str], normalize: Callable[[str], str]) -> Counter[str]:
    """Return how often each word stands in the lines, the rarest of very many left out."""
    words: Counter[str] = Counter()
    for line in lines:
        for word in normalize(line).split():
            if len(word) <= MAX_COUNTED_CHARS:
                words[word] += 1
            else:
                size = MAX_COUNTED_CHARS
                words.update(word[start : start + size] for start in range(0, len(word), size))
        if len(words) > MAX_COUNTED_WORDS:
            words = Counter(dict(words.most_common(MAX_COUNTED_WORDS // 2)))
    return words


def _cut_to_alphabet(words: Counter[str], room: int) -> Counter[str]:
    """Return the words cut where characters stand that have no place in the alphabet."""
    frequency: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            frequency[char] += count
    # Characters that SentencePiece keeps for itself, and NUL, which ends its strings.
    for char in (METASPACE, "\u2047", "\u2585", "\0"):
        del frequency[char]
    enough = ALPHABET_COVERAGE * frequency.total()
    dropped: dict[int, str] = dict.fromkeys(map(ord, (METASPACE, "\u2047", "\u2585", "\0")), " ")
    for char, count in sorted(frequency.items(), key=lambda item: (-item[1], item[0])):
        room -= 1
        if room < 0 or enough <= 0:
            dropped[ord(char)] = " "
        enough -= count
    cut: Counter[str] = Counter()
    for word, count in words.items():
        for part in word.translate(dropped).split():
            cut[part] += count
    return cut


def train_pieces(words: Counter[str], num_pieces: int) -> list[Piece]:
    """Return pieces with their scores, of which the first is [UNK]; fewer if the text has no more.

    Raises:
        UserError: The package that trains them is not installed.
    """
    words = _cut_to_alphabet(words, num_pieces // 2)
    sentencepiece = import_extra("sentencepiece", "sentencepiece", "a unigram vocabulary")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "words.tsv"
        lines = (f"{word}\t{words[word]}\n" for word in sorted(words))
        table.write_text("".join(lines), encoding="utf-8", newline="\n")
        try:
            sentencepiece.SentencePieceTrainer.train(
                input=str(table),
                input_format="tsv",
                model_prefix=str(Path(folder) / "made"),
                vocab_size=num_pieces,
                hard_vocab_limit=False,
                character_coverage=1.0,
                normalization_rule_name="identity",
                num_threads=TRAINER_THREADS,
                unk_piece="[UNK]",
                bos_id=-1,
                eos_id=-1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            raise UserError(f"SentencePiece cannot train on this text: {error}") from None
        return read_pieces((Path(folder) / "made.model").read_bytes())

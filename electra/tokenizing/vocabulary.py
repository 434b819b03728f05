"""Deterministic training of a WordPiece vocabulary: the same corpus gives the same file."""

import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from electra.config import TokenizerConfig
from electra.errors import require
from electra.text.streams import replace_surrogates

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET_COVERAGE = 0.99999
"""Share of a corpus's characters that the alphabet must cover. The rest is noise: [UNK]."""
SPOOL_CHARS = 1 << 20
MAX_WORD_CHARS = 100
"""Characters of the longest word. WordPiece encodes a longer word as one [UNK]. Source: BERT."""
# A code point decomposes into at most four, so a run of a quarter of the limit always fits.
MAX_DECOMPOSITION = 4
LONG_RUN = re.compile(rf"[^\s!-/:-@\[-`{{-~]{{{MAX_WORD_CHARS // MAX_DECOMPOSITION + 1},}}")


def train_tokens(texts: Iterable[str], config: TokenizerConfig) -> list[str]:
    """Return the vocabulary of a corpus, in id order.

    By default `tokenizers` numbers the continuations ("##a") in the order of a hash map, and these
    numbers break ties between equally frequent pairs (huggingface/tokenizers#1794). So the alphabet
    is counted first, and the trainer receives its continuations as special tokens. `texts` is read
    once; a temporary file holds the texts for the second pass.

    Source: the order of ids is that of BERT: special tokens, characters, continuations, merges.
    """
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=config.lowers_case,
        strip_accents=config.strips_accents,
        handle_chinese_chars=config.split_ideographs is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with tempfile.TemporaryFile() as spool:
        counts = _spool_texts(texts, spool)
        alphabet, is_dropped = _choose_alphabet(counts, backend, config)
        require(bool(alphabet), "the corpus holds no text to train a vocabulary on")
        continuations = [f"##{char}" for char in alphabet if _can_continue(char, backend)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=config.vocab_size,
            min_frequency=config.min_frequency,
            special_tokens=[*SPECIAL_TOKENS, *continuations],
            show_progress=False,
        )
        backend.train_from_iterator(_read_spool(spool, is_dropped), trainer)
    vocab = backend.get_vocab()
    merges = vocab.keys() - {*SPECIAL_TOKENS, *alphabet, *continuations}
    return [*SPECIAL_TOKENS, *alphabet, *continuations, *sorted(merges, key=vocab.__getitem__)]


def group_texts(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield the texts in groups, each of which ends when it has this many characters."""
    group: list[str] = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text)
        if num_chars >= size:
            yield group
            group, num_chars = [], 0
    if group:
        yield group


def break_words(text: str) -> str:
    """Return the text with spaces inside words that WordPiece would encode as one [UNK].

    The limit of MAX_WORD_CHARS counts characters after the decomposition of accents.
    """
    is_short = max(map(len, text.split()), default=0) < MAX_WORD_CHARS // MAX_DECOMPOSITION
    return text if is_short else LONG_RUN.sub(_break_run, text)


def _break_run(match: re.Match[str]) -> str:
    run = match[0]
    if len(run) <= MAX_WORD_CHARS and len(unicodedata.normalize("NFD", run)) <= MAX_WORD_CHARS:
        return run
    size = MAX_WORD_CHARS if run.isascii() else MAX_WORD_CHARS // MAX_DECOMPOSITION
    return " ".join(run[start : start + size] for start in range(0, len(run), size))


def _spool_texts(texts: Iterable[str], spool: IO[bytes]) -> np.ndarray:
    """Write the texts to the spool and return the count of each code point (0x110000,)."""
    counts = np.zeros(0x110000, dtype=np.int64)

    def write(lines: list[str]) -> None:
        # The trainer's time grows with the square of a word's length, so long words are broken.
        text = "\n".join([break_words(replace_surrogates(line)) for line in lines]) + "\n"
        spool.write(text.encode())
        counts[:] += np.bincount(_code_points(text), minlength=len(counts))

    for lines in group_texts(texts, SPOOL_CHARS):
        write(lines)
    counts[ord("\n")] = 0
    return counts


def _read_spool(spool: IO[bytes], is_dropped: np.ndarray) -> Iterator[list[str]]:
    """Yield the spooled lines, with a space in place of each dropped character."""
    spool.seek(0)
    while lines := spool.readlines(SPOOL_CHARS):
        codes = _code_points(b"".join(lines).decode())
        kept = np.where(is_dropped[codes], ord(" "), codes).astype("<u4")
        yield kept.tobytes().decode("utf-32-le").split("\n")


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _choose_alphabet(
    counts: np.ndarray, backend: tokenizers.Tokenizer, config: TokenizerConfig
) -> tuple[list[str], np.ndarray]:
    """Return the alphabet, sorted, and the dropped code points as booleans (0x110000,).

    Characters are taken by frequency, ties by code point, until they cover ALPHABET_COVERAGE of
    the text, or until characters and continuations fill half of the vocabulary.
    """
    normalized = {
        code: backend.normalizer.normalize_str(chr(code)).split()
        for code in np.flatnonzero(counts).tolist()
        if not 0xD800 <= code < 0xE000
    }
    frequency: dict[str, int] = {}
    for code, parts in normalized.items():
        for char in "".join(parts):
            frequency[char] = frequency.get(char, 0) + int(counts[code])
    enough = ALPHABET_COVERAGE * sum(frequency.values())
    room = (config.vocab_size - len(SPECIAL_TOKENS)) // 2
    alphabet: set[str] = set()
    for char in sorted(frequency, key=lambda char: (-frequency[char], char)):
        room -= 1 + _can_continue(char, backend)
        if room < 0 or enough <= 0:
            break
        alphabet.add(char)
        enough -= frequency[char]
    is_dropped = np.zeros(len(counts), dtype=bool)
    for code, parts in normalized.items():
        is_dropped[code] = not alphabet.issuperset("".join(parts))
    return sorted(alphabet), is_dropped


def _can_continue(char: str, backend: tokenizers.Tokenizer) -> bool:
    """Return whether a character can continue a word; punctuation and ideographs cannot."""
    return (
        len(backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(f"a{char}")))
        == 1
    )

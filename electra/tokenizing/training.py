"""Training of vocabularies, deterministic: the same corpus gives the same file."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from electra.errors import UserError, import_extra, require
from electra.files import parse_json
from electra.text.characters import break_words, group_texts, replace_surrogates
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.formats import (
    DEFINING,
    METASPACE,
    SPECIAL_TOKENS,
    WORDS,
    Definition,
    State,
    absorb_space,
    define,
    number_tokens,
    special_token,
)
from electra.tokenizing.sentencepiece import Piece, build_unigram, read_model, write_spaces

ALPHABET_COVERAGE = 0.99999
"""Share of a corpus's characters that the alphabet must cover. The rest is noise: [UNK]."""
SPOOL_CHARS = 1 << 20
MAX_TRAINED_BYTES = 1 << 34
"""Text whose pairs are counted. `tokenizers` counts them in 32 bits, which overflow silently with
80 GB of English (huggingface/tokenizers#2058)."""
NO_TEXT = "the corpus holds no text to train a vocabulary on"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
"""Writes a letter for each byte."""


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
        room = (config.vocab_size - len(SPECIAL_TOKENS)) // 2
        alphabet, is_dropped = _choose_alphabet(counts, backend, room, _can_continue)
        require(bool(alphabet), NO_TEXT)
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


def _spool_texts(texts: Iterable[str], spool: IO[bytes]) -> np.ndarray:
    """Write the texts to the spool and return the count of each code point (0x110000,)."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for lines in group_texts(texts, SPOOL_CHARS):
        # The trainer's time grows with the square of a word's length, so long words are broken.
        text = "\n".join([break_words(replace_surrogates(line)) for line in lines]) + "\n"
        spool.write(text.encode())
        counts += np.bincount(_code_points(text), minlength=len(counts))
    counts[ord("\n")] = 0
    return counts


def _read_spool(spool: IO[bytes], is_dropped: np.ndarray) -> Iterator[list[str]]:
    """Yield the lines, or equally spaced parts of too many; a dropped character is a space."""
    step = spool.tell() // MAX_TRAINED_BYTES + 1
    spool.seek(0)
    for number, lines in enumerate(iter(lambda: spool.readlines(SPOOL_CHARS), [])):
        if number % step:
            continue
        codes = _code_points(b"".join(lines).decode())
        kept = np.where(is_dropped[codes], ord(" "), codes).astype("<u4")
        yield kept.tobytes().decode("utf-32-le").split("\n")


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _choose_alphabet(
    counts: np.ndarray,
    backend: tokenizers.Tokenizer,
    room: int,
    is_twice: Callable[[str, tokenizers.Tokenizer], bool] = lambda *_: False,
) -> tuple[list[str], np.ndarray]:
    """Return the alphabet, sorted, and the dropped code points as booleans (0x110000,)."""
    normalized = {
        code: backend.normalizer.normalize_str(chr(code)).split()
        for code in np.flatnonzero(counts).tolist()
        if not 0xD800 <= code < 0xE000
    }
    frequency: dict[str, int] = {}
    for code, parts in normalized.items():
        for char in "".join(parts):
            frequency[char] = frequency.get(char, 0) + int(counts[code])
    alphabet = _most_frequent(frequency, room, lambda char: is_twice(char, backend))
    is_dropped = np.zeros(len(counts), dtype=bool)
    for code, parts in normalized.items():
        is_dropped[code] = not alphabet.issuperset("".join(parts))
    return sorted(alphabet), is_dropped


def _most_frequent(
    frequency: Mapping[str, int], room: int, is_twice: Callable[[str], bool] = lambda char: False
) -> set[str]:
    """Return characters, the most frequent first, that cover ALPHABET_COVERAGE or fill the room."""
    enough = ALPHABET_COVERAGE * sum(frequency.values())
    alphabet: set[str] = set()
    for char in sorted(frequency, key=lambda char: (-frequency[char], char)):
        room -= 1 + is_twice(char)
        if room < 0 or enough <= 0:
            break
        alphabet.add(char)
        enough -= frequency[char]
    return alphabet


def _can_continue(char: str, backend: tokenizers.Tokenizer) -> bool:
    """Return whether a character can continue a word; punctuation and ideographs cannot."""
    text = backend.normalizer.normalize_str(f"a{char}")
    return len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1


MAX_COUNTED_WORDS = 1 << 22
"""Distinct words that Unigram counts, about 1 GB. When there are more, the rarest are forgotten."""
MAX_COUNTED_CHARS = 200
"""Characters of the longest counted word. A longer one, as Chinese sentences are, is cut."""
TRAINER_THREADS = 4
"""Threads of SentencePiece. Their number changes the order of its sums, so it is fixed."""


def train_bpe(texts: Iterable[str], config: TokenizerConfig) -> Definition:
    """Return a byte-level BPE tokenizer: any text has ids, and none is unknown.

    A line begins as if after a space, so that its first word has its usual ids. Source: GPT-2's
    byte-level BPE, except for WORDS; ids as in BERT, the special tokens first. The bytes of each
    character are merged first: merges that end inside a character cost Thai 13% more tokens.
    """
    least = len(SPECIAL_TOKENS) + 256
    require(
        config.vocab_size >= least,
        f"vocab_size must be at least {least} for bpe, not {config.vocab_size}: 256 bytes "
        f"and {len(SPECIAL_TOKENS)} special tokens",
    )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = build_normalizer(config, "NFC")
    words = [
        pre_tokenizers.Metaspace(" ", "first", split=False),
        pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
    ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(words)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size, min_frequency=config.min_frequency, show_progress=False
    )
    with tempfile.TemporaryFile() as spool:
        counts = _spool_texts(texts, spool)
        _, is_dropped = _choose_alphabet(counts, backend, (config.vocab_size - least) // 2)
        backend.train_from_iterator(_read_spool(spool, is_dropped), trainer)
    model = state_of(backend)["model"]
    alphabet = sorted(token for token in model["vocab"] if len(token) == 1)
    require(any(map(str.strip, alphabet)), NO_TEXT)
    pairs = [*_spell(alphabet), *((_as_bytes(a), _as_bytes(b)) for a, b in model["merges"])]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = dict.fromkeys([*SPECIAL_TOKENS, *letters, *map("".join, pairs)])
    vocab = number_tokens([*tokens][: config.vocab_size])
    merges = [pair for pair in pairs if vocab.keys() >= {*pair, "".join(pair)}]
    backend.model = models.BPE(vocab, merges)
    backend.add_special_tokens([*SPECIAL_TOKENS])
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, BYTES])
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return _define(state_of(backend))


def _as_bytes(text: str) -> str:
    """Return a text with a letter in place of each byte, as byte-level BPE writes it."""
    return "".join(letters for letters, _ in BYTES.pre_tokenize_str(text))


def _spell(alphabet: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Return the merges that make the characters of their bytes."""
    prefixes = (char[:end] for char in map(_as_bytes, alphabet) for end in range(2, len(char) + 1))
    return [(prefix[:-1], prefix[-1]) for prefix in dict.fromkeys(prefixes)]


def _define(state: State) -> Definition:
    state["added_tokens"] = absorb_space(state["added_tokens"], SPECIAL_TOKENS[-1])
    return define(state, {})


def refuse_min_frequency(config: TokenizerConfig) -> None:
    """Refuse a least frequency, which pieces with scores do not have."""
    if config.min_frequency != TokenizerConfig.min_frequency:
        raise UserError("min_frequency is a setting of wordpiece and bpe; unigram has none")


def train_unigram(texts: Iterable[str], config: TokenizerConfig) -> Definition:
    """Return a Unigram tokenizer, whose pieces and scores SentencePiece finds.

    The alphabet is chosen as WordPiece's is: the most frequent characters, until they cover
    ALPHABET_COVERAGE of the text or fill half of the vocabulary. All special tokens but [UNK] have
    the last ids, outside the pieces, so that they are not found in text.
    """
    refuse_min_frequency(config)
    normalizer = build_normalizer(config, "NFKC")
    words = count_words(read_lines(texts), normalizer.normalize_str)
    pieces = train_pieces(words, config.vocab_size - len(SPECIAL_TOKENS) + 1)
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizer
    others = [name for name in SPECIAL_TOKENS if name != "[UNK]"]
    added = [special_token(name, len(pieces) + place) for place, name in enumerate(others)]
    state = {
        "added_tokens": [special_token("[UNK]", 0), *added],
        "normalizer": state_of(backend)["normalizer"],
        "pre_tokenizer": write_spaces("first"),
        "decoder": write_spaces("always"),
        "model": build_unigram(pieces, unk_id=0),
    }
    return _define(state)


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
    state = parse_json(backend.to_str(), "the tokenizer")
    return {key: state[key] for key in DEFINING}


def read_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines of text, with long words broken: a trainer's time grows with their square."""
    is_empty = True
    for text in texts:
        line = break_words(replace_surrogates(text))
        is_empty = is_empty and not line.strip()
        yield line
    require(not is_empty, NO_TEXT)


def count_words(lines: Iterable[str], normalize: Callable[[str], str]) -> Counter[str]:
    """Return how often each word occurs in the lines, the rarest of very many left out."""
    words: Counter[str] = Counter()
    for line in lines:
        words.update(
            word[start : start + MAX_COUNTED_CHARS]
            for word in normalize(line).split()
            for start in range(0, len(word), MAX_COUNTED_CHARS)
        )
        if len(words) > MAX_COUNTED_WORDS:
            words = Counter(dict(words.most_common(MAX_COUNTED_WORDS // 2)))
    return words


def _cut_to_alphabet(words: Counter[str], room: int) -> Counter[str]:
    """Return the words cut at characters that are not in the alphabet."""
    frequency: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            frequency[char] += count
    # Characters that SentencePiece keeps for itself, and NUL, which ends its strings.
    reserved = (METASPACE, "\u2047", "\u2585", "\0")
    for char in reserved:
        del frequency[char]
    others = {*reserved, *frequency} - _most_frequent(frequency, room)
    dropped = dict.fromkeys(map(ord, others), " ")
    cut: Counter[str] = Counter()
    for word, count in words.items():
        for part in word.translate(dropped).split():
            cut[part] += count
    return cut


def _list_lines(words: Counter[str]) -> Iterator[str]:
    """Yield each word twice in a line, with half its occurrences, for SentencePiece."""
    # SentencePiece considers only strings that occur twice with different next characters. Without
    # these lines it misses whole words that are prefixes of others: up to 17% more tokens.
    for word, count in sorted(words.items()):
        if count > 1:
            yield f"{word} {word}\t{count // 2}\n"
        if count % 2:
            yield f"{word}\t1\n"


def train_pieces(words: Counter[str], num_pieces: int) -> list[Piece]:
    """Return pieces with scores, of which the first is [UNK]; fewer if the text has no more."""
    words = _cut_to_alphabet(words, num_pieces // 2)
    sentencepiece = import_extra("sentencepiece", "sentencepiece", "a unigram vocabulary")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "words.tsv"
        table.write_text("".join(_list_lines(words)), encoding="utf-8", newline="\n")
        try:
            sentencepiece.SentencePieceTrainer.train(
                input=str(table),
                input_format="tsv",
                max_sentence_length=2 * (4 * MAX_COUNTED_CHARS + 1),
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
        return read_model((Path(folder) / "made.model").read_bytes()).pieces

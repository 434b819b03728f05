# ruff: noqa: RUF001
"""Tokens of each kind of vocabulary, beside the library that trains such vocabularies.

    python -m benchmarks.vocabularies --out results/vocabularies.md [NAME=FILE ...]

Both train on the same lines and encode these lines. The text of a script is invented: words drawn
from a chain of the characters in a few sentences, frequent and rare ones as in language, with
spaces around punctuation. A FILE is read as it is, up to MAX_LINES lines.
"""

import argparse
import random
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from electra.config import TokenizerConfig
from electra.text.documents import Reader
from electra.tokenizing.tokenizer import Tokenizer

MAX_LINES = 20_000
LIBRARIES = {"wordpiece": "tokenizers", "bpe": "tokenizers", "unigram": "sentencepiece"}
SENTENCES = {
    "Latin": "The old sailor repaired the boat before breakfast and nobody believed her",
    "Cyrillic": "Старый моряк починил лодку ещё до завтрака и никто не поверил ему",
    "Greek": "Ο γέρος ναύτης επισκεύασε τη βάρκα πριν από το πρωινό και κανείς δεν",
    "Arabic": "أصلح البحار العجوز القارب قبل الفطور ولم يصدق أحد الطبيب الشاب",
    "Devanagari": "बूढ़े नाविक ने नाश्ते से पहले नाव की मरम्मत की और किसी ने युवा डॉक्टर पर",
    "Bengali": "বুড়ো নাবিক সকালের খাবারের আগে নৌকা মেরামত করেছিল এবং কেউ বিশ্বাস করেনি",
    "Tamil": "வயதான மாலுமி காலை உணவுக்கு முன் படகை சரிசெய்தார் யாரும் நம்பவில்லை",
    "Thai": "กะลาสีชรา ซ่อมเรือ ก่อนอาหารเช้า และไม่มีใครเชื่อ หมอหนุ่ม ที่อยู่ใกล้",
    "Hangul": "늙은 선원은 아침 식사 전에 배를 고쳤고 아무도 젊은 의사를 믿지 않았다",
    "Han": "老水手 在早饭前 修好了 小船 没有人 相信 住在 港口旁边的 年轻医生",
}


class Row(NamedTuple):
    """Tokens of the same lines."""

    text: str
    kind: str
    vocab_size: int
    ours: int
    theirs: int


def invent(sentence: str, num_lines: int, num_words: int = 3000) -> list[str]:
    """Return lines of words that look like those of the sentence."""
    rng = random.Random(0)
    chain: dict[str, list[str]] = defaultdict(list)
    for word in sentence.split():
        clusters: list[str] = []
        for char in word:
            is_mark = bool(clusters) and unicodedata.category(char)[0] == "M"
            clusters.append(clusters.pop() + char if is_mark else char)
        for left, right in pairwise(["", *clusters, ""]):
            chain[left].append(right)
    words = {"".join(_walk(chain, rng)): None for _ in range(num_words)}
    weights = [1 / (place + 3) for place in range(len(words))]
    drawn = iter(rng.choices([*words], weights, k=12 * num_lines))
    return [
        f"{' '.join(islice(drawn, 7))} , {' '.join(islice(drawn, 5))} ." for _ in range(num_lines)
    ]


def _walk(chain: dict[str, list[str]], rng: random.Random) -> Iterator[str]:
    cluster = rng.choice(chain[""])
    while cluster:
        yield cluster
        cluster = rng.choice(chain[cluster])


def compare(name: str, kind: str, lines: Sequence[str], vocab_size: int) -> Row:
    """Return the tokens of both vocabularies of one kind."""
    config = TokenizerConfig(kind=kind, vocab_size=vocab_size, lowercase=False)  # type: ignore[arg-type]
    ours = Tokenizer.train(lines, config)
    num_ours = sum(map(len, ours.encode_batch(lines)))
    count = _count_sentencepiece if kind == "unigram" else _count_tokenizers
    return Row(name, kind, vocab_size, num_ours, count(kind, lines, vocab_size))


def _count_tokenizers(kind: str, lines: Sequence[str], vocab_size: int) -> int:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    if kind == "wordpiece":
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, min_frequency=2, special_tokens=["[UNK]"], show_progress=False
        )
    backend.train_from_iterator(lines, trainer)
    return sum(len(each.ids) for each in backend.encode_batch(lines))


def _count_sentencepiece(_: str, lines: Sequence[str], vocab_size: int) -> int:
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        text, prefix = Path(folder) / "text.txt", Path(folder) / "made"
        text.write_text("\n".join(lines), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), vocab_size=vocab_size, minloglevel=2,
            hard_vocab_limit=False, normalization_rule_name="nfkc", max_sentence_length=1 << 20,
        )  # fmt: skip
        model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        return sum(map(len, model.encode(list(lines))))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="NAME=FILE")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--vocab-size", type=int, default=2000)
    options = parser.parse_args()
    texts = {name: invent(sentence, 3000) for name, sentence in SENTENCES.items()}
    for name, file in (each.split("=", 1) for each in options.files):
        documents = Reader().read([Path(file)])
        texts[name] = list(islice((line for text in documents for line in text), MAX_LINES))
    head = f"tokenizers {version('tokenizers')}, sentencepiece {version('sentencepiece')}"
    lines = [f"`python -m benchmarks.vocabularies`; {head}. Tokens of the same lines.", ""]
    lines += [
        "| text | kind | vocabulary | ours | library | difference |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, text in texts.items():
        for kind in LIBRARIES:
            row = compare(name, kind, text, options.vocab_size)
            change = f"{row.ours / row.theirs - 1:+.1%}"
            numbers = f"{row.vocab_size:,} | {row.ours:,} | {row.theirs:,}"
            lines.append(f"| {name} | {kind} | {numbers} | {change} |")
            print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

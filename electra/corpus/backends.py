"""Tokenizers of the library: BERT's, and that of a definition, with the rows that they make."""

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from electra.config import UserError
from electra.corpus.definitions import Definition
from electra.corpus.structure import parts_of
from electra.corpus.vocabulary import MAX_WORD_CHARS, SPECIAL_TOKENS


def build_bert(
    ids: dict[str, int], lowercase: bool, strip_accents: bool, split_ideographs: bool
) -> tokenizers.Tokenizer:
    """Return BERT's WordPiece with BERT's normalisation."""
    backend = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARS)
    )
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=split_ideographs
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.encode_special_tokens = True
    return backend


def build(content: str, definition: Definition) -> tokenizers.Tokenizer:
    """Return the backend of a definition, whose rows are [CLS] A [SEP] B [SEP] in transformers."""
    try:
        backend = tokenizers.Tokenizer.from_str(f'{{"version": "1.0", {content[1:]}')
    except Exception as error:  # the library raises no narrower one
        raise UserError(f"not a tokenizer.json: {error}") from None
    cls, sep = definition.special_tokens[2:4]
    rows: processors.PostProcessor = processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )
    parts = parts_of(definition.state["pre_tokenizer"])
    if any(part["type"] == "ByteLevel" for part in parts):
        # As ours, the offsets of transformers then leave out the spaces.
        rows = processors.Sequence([processors.ByteLevel(trim_offsets=True), rows])
    backend.post_processor = rows
    backend.encode_special_tokens = True
    return backend

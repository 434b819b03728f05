"""Definitions read from files, by the rules of the tokenizer classes of transformers.

A folder without `tokenizer.json` holds a vocabulary alone. How text is normalised and cut, which
id each piece has and which tokens are added is decided by the class that its
`tokenizer_config.json` names, with the settings there. A class without rules here is refused.

Source: the rules are those of transformers 5. It gives DeBERTa's class a normaliser of its own in
place of that of the file, also where there is a `tokenizer.json`.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra.errors import UserError, require
from electra.files import read_object, read_text
from electra.tokenizing.formats import (
    KNOWN_NAMES,
    SQUEEZED_SPACES,
    Definition,
    State,
    bert_state,
    check_state,
    define,
    ids_of,
    number_tokens,
    parts_of,
    special_token,
    text_of,
)
from electra.tokenizing.sentencepiece import (
    Piece,
    build_state,
    build_unigram,
    read_model,
    write_spaces,
)

Settings = Mapping[str, Any]

OF_MODEL = {"bert": "BertTokenizer", "electra": "BertTokenizer", "deberta-v2": "DebertaV2Tokenizer"}
"""The class of each model_type, where no file names one."""
OWN_RULES = ("PreTrainedTokenizer", "TokenizersBackend", "")
"""Classes without rules: the file says all."""
BERT_CLASSES = (
    *("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", "ConvBertTokenizer"),
    *("MobileBertTokenizer", "SqueezeBertTokenizer", "LayoutLMTokenizer", "LxmertTokenizer"),
)
BYTE_CLASSES = ("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer")
EXPECTED = (
    "expected a run, a folder with tokenizer.json, vocab.txt or a SentencePiece .model, or one of "
    "these files"
)
BERT_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Names of the settings of BERT's classes, and of those of BertNormalizer."""
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""The order in which transformers adds the special tokens that a vocabulary lacks."""
ALIASES = {"bos": "cls", "eos": "sep"}
BERT_NAMES = {role: names[0] for role, names in KNOWN_NAMES.items()}
ROBERTA_NAMES = {role: names[-1] for role, names in KNOWN_NAMES.items()}
WRITTEN_FOR_TRANSFORMERS = "electra_definition"
"""Setting with those parts of a definition that were changed when it was written."""


class PieceRules(NamedTuple):
    """What a class makes of a SentencePiece model."""

    names: Mapping[str, str]
    normalize: Callable[[Settings, list[State]], list[State]]
    """The normalisers, from the settings and the model's map of characters."""
    splits_words: bool = True
    """Whether text is cut at all white space first."""
    first: tuple[str, ...] = ()
    """Special tokens, some by their role, in place of the model's first pieces."""
    num_replaced: int = 0
    unk_id: int | None = None


def _normalize_albert(settings: Settings, maps: list[State]) -> list[State]:
    quotes = [_replace({"String": text}, '"') for text in ("``", "''")]
    accents = [] if settings.get("keep_accents") else [{"type": "NFKD"}, {"type": "StripAccents"}]
    lower = [{"type": "Lowercase"}] if settings.get("do_lower_case", True) else []
    return [*quotes, *accents, *lower, *maps]


def _normalize_deberta(settings: Settings, maps: list[State]) -> list[State]:
    if maps:
        warnings.warn(
            "like transformers 5, the tokenizer leaves out its file's map of characters: \u2026 "
            "and \uff0c are unknown; to apply the map, name the file: --tokenizer FOLDER/spm.model",
            stacklevel=2,
        )
    lower = [{"type": "Lowercase"}] if settings.get("do_lower_case") else []
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    return [*lower, _replace({"Regex": SQUEEZED_SPACES}, " "), {"type": "NFC"}, strip]


def _replace(pattern: dict[str, str], content: str) -> State:
    return {"type": "Replace", "pattern": pattern, "content": content}


PIECE_CLASSES = {
    "AlbertTokenizer": PieceRules(
        BERT_NAMES | {"pad": "<pad>", "unk": "<unk>"}, _normalize_albert, unk_id=1
    ),
    "CamembertTokenizer": PieceRules(
        ROBERTA_NAMES,
        lambda _, maps: maps,
        first=("<s>NOTUSED", "pad", "</s>NOTUSED", "unk", "<unk>NOTUSED"),
        num_replaced=1,
        unk_id=3,
    ),
    "DebertaV2Tokenizer": PieceRules(BERT_NAMES, _normalize_deberta, splits_words=False),
    "XLMRobertaTokenizer": PieceRules(
        ROBERTA_NAMES,
        lambda _, maps: maps,
        first=("bos", "pad", "eos", "unk"),
        num_replaced=3,
        unk_id=3,
    ),
}


def read_definition(path: Path, assumed: bool) -> Definition:
    """Return the definition in a folder or file; arguments as of `Tokenizer.load`."""
    settings: dict[str, Any] = {"tokenizer_class": "", "do_lower_case": assumed}
    path = path / "tokenizer" if (path / "tokenizer").is_dir() else path  # that of a run
    if path.is_dir():
        settings = _read_settings(path)
        path = _choose_file(path, settings["tokenizer_class"])
        if path.name == "vocab.txt" and settings.get("do_lower_case") is None:
            warnings.warn(
                f"{path.parent} has no tokenizer_config.json that states whether text is "
                f"lower-cased; assuming do_lower_case={str(assumed).lower()}",
                stacklevel=3,
            )
            settings["do_lower_case"] = assumed
    require(path.is_file(), f"no tokenizer at {path}; {EXPECTED}")
    build = {".json": _read_json, ".model": _read_pieces}.get(path.suffix, _read_words)
    try:
        return build(path, settings)
    except UserError as error:
        told = str(error).startswith(str(path.parent))
        raise UserError(str(error) if told else f"{path}: {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        raise UserError(
            f"{path}: not a {path.name if path.suffix == '.json' else 'tokenizer'}"
        ) from None


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the tokenizer_config.json with what the files beside it add, and with the class."""

    def read(name: str) -> dict[str, Any]:
        path = folder / name
        return read_object(path) if path.is_file() else {}

    settings = read("tokenizer_config.json")
    for name in BERT_FLAGS:
        value = settings.get(name)
        require(
            value is None or isinstance(value, bool),
            f"{folder / 'tokenizer_config.json'}: {name} must be true or false, not {value!r}",
        )
    if "added_tokens_decoder" not in settings:  # as older releases of transformers write
        settings |= read("special_tokens_map.json")
        more = settings.get("additional_special_tokens") or []
        special = {text_of(settings.get(f"{role}_token")) for role in ROLES} | set(
            map(text_of, more)
        )
        settings["added_tokens_decoder"] = {
            number: {
                "content": token,
                "special": token in special,
                "normalized": token not in special,
            }
            for token, number in read("added_tokens.json").items()
        }
    model = read("config.json")
    usual = OF_MODEL.get(str(model.get("model_type")), "")
    usual = usual if _find_files(folder, usual) else ""
    name = settings.get("tokenizer_class") or model.get("tokenizer_class") or usual
    return settings | {"tokenizer_class": str(name).removesuffix("Fast")}


def _find_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a vocabulary that a class reads."""
    models = sorted(each for each in folder.iterdir() if each.suffix == ".model")
    words, merges = folder / "vocab.txt", folder / "vocab.json"
    choices = {BERT_CLASSES: [words], BYTE_CLASSES: [merges], OWN_RULES: [words, *models]}
    found = next((files for classes, files in choices.items() if name in classes), models)
    return [path for path in found if path.is_file()]


def _choose_file(folder: Path, name: str) -> Path:
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    require(
        name in (*BERT_CLASSES, *BYTE_CLASSES, *PIECE_CLASSES, *OWN_RULES),
        f"{folder} has a tokenizer of the class {name} and no tokenizer.json; without that file "
        f"only {', '.join(sorted((*BERT_CLASSES, *BYTE_CLASSES, *PIECE_CLASSES)))} are read. In "
        "transformers, AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one",
    )
    found = _find_files(folder, name)
    wanted = "vocab.txt" if name in BERT_CLASSES else "a SentencePiece .model"
    wanted = "vocab.json with merges.txt" if name in BYTE_CLASSES else wanted
    require(
        bool(found),
        f"no tokenizer at {folder}; {EXPECTED}"
        if name in OWN_RULES
        else f"{folder} has neither tokenizer.json nor {wanted}, which its class {name} reads",
    )
    return found[0]


def _read_json(path: Path, settings: dict[str, Any]) -> Definition:
    name = settings["tokenizer_class"]
    if path.name == "vocab.json":
        return _read_merges(path, settings)
    state = check_state(read_object(path) | settings.get(WRITTEN_FOR_TRANSFORMERS, {}))
    model, normalizer = state["model"], state["normalizer"]
    if name in BERT_CLASSES and normalizer and normalizer["type"] == "BertNormalizer":
        for key in BERT_FLAGS:  # without strip_accents, the case decides over accents
            if settings.get(key) is not None or (key == "strip_accents" and key in settings):
                normalizer[BERT_FLAGS[key]] = settings[key]
    if name == "DebertaV2Tokenizer" and model["type"] == "Unigram":
        maps = [each for each in parts_of(state["normalizer"]) if each["type"] == "Precompiled"]
        state |= _cut_as(name, settings, [dict(each) for each in maps])
    return _define(state, settings, {})


def _read_words(path: Path, settings: dict[str, Any]) -> Definition:
    """Return the definition of BERT's vocab.txt."""
    tokens = read_text(path).replace("\r\n", "\n").removesuffix("\n").split("\n")
    lower, strip, split = (settings.get(key) for key in BERT_FLAGS)
    unk = _name("unk", settings, BERT_NAMES)
    state = bert_state(number_tokens(tokens), bool(lower), strip, split is not False, unk)
    added = (settings.get("added_tokens_decoder") or {}).values()
    known = {*tokens, *(token["content"] for token in added)}
    names = [_name(role, settings, BERT_NAMES) for role in KNOWN_NAMES]
    missing = [name for name in names if name not in known]
    require(not missing, f"the vocabulary lacks the special tokens {', '.join(missing)}")
    return _define(state, settings, BERT_NAMES)


def _read_merges(path: Path, settings: dict[str, Any]) -> Definition:
    """Return the definition of byte-level BPE in vocab.json and merges.txt."""
    lines = read_text(path.with_name("merges.txt")).splitlines()
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    begins = bool(settings.get("add_prefix_space"))
    bytes_of = {"type": "ByteLevel", "add_prefix_space": begins, "trim_offsets": True}
    state: State = {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**bytes_of, "use_regex": True},
        "decoder": {**bytes_of, "use_regex": True},
        "model": {"type": "BPE", "vocab": read_object(path), "merges": merges},
    }
    return _define(check_state(state), settings, ROBERTA_NAMES)


def _read_pieces(path: Path, settings: dict[str, Any]) -> Definition:
    """Return the definition of a SentencePiece model."""
    model, name = read_model(path.read_bytes()), settings["tokenizer_class"]
    if name not in PIECE_CLASSES:
        return _define(check_state(build_state(model)), settings, {})
    require(not model.is_bpe, f"the class {name} reads a model of type unigram, not bpe")
    rules = PIECE_CLASSES[name]
    names = {role: _name(role, settings, rules.names) for role in ROLES}
    pieces = [
        *(
            Piece(names.get(each, each), -100.0 if "<unk>N" in each else 0.0)
            for each in rules.first
        ),
        *model.pieces[rules.num_replaced :],
        *([Piece(names["mask"], 0.0)] if rules.first else []),
    ]
    unknown = [number for number, piece in enumerate(pieces) if piece[:2] == (names["unk"], 0.0)]
    unk_id = rules.unk_id
    if unk_id is None:
        unk_id = unknown[0] if unknown else model.unk_id
    ids = number_tokens([piece.text for piece in pieces], "piece")
    state = {
        "added_tokens": [
            token | {"id": ids[token["content"]]}
            for token in model.symbols
            if token["content"] in ids
        ],
        "model": build_unigram(pieces, unk_id),
        **_cut_as(name, settings, model.normalizer),
    }
    return _define(check_state(state), settings, rules.names)


def _cut_as(name: str, settings: Settings, maps: list[State]) -> State:
    """Return the normaliser, pre-tokenizer and decoder of a class."""
    rules = PIECE_CLASSES[name]
    otherwise = "never" if rules.splits_words else "first"
    spaces = write_spaces("always" if settings.get("add_prefix_space", True) else otherwise)
    cuts = [{"type": "WhitespaceSplit"}] if rules.splits_words else []
    if settings.get("split_by_punct") and not rules.splits_words:
        cuts = [{"type": "Punctuation", "behavior": "Isolated"}]
    return {
        "normalizer": {"type": "Sequence", "normalizers": rules.normalize(settings, maps)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, spaces]},
        "decoder": spaces,
    }


def _name(role: str, settings: Settings, defaults: Mapping[str, str]) -> str:
    """Return the special token that the settings name, or else the class."""
    return text_of(settings.get(f"{role}_token")) or defaults.get(ALIASES.get(role, role), "")


def _define(state: State, settings: dict[str, Any], defaults: Mapping[str, str]) -> Definition:
    """Return the definition with the tokens that the settings and the class add."""
    ids = ids_of(state)
    stated = (settings.get("added_tokens_decoder") or {}).items()
    for number, token in sorted((int(key), dict(token)) for key, token in stated):
        if token["content"] not in ids:
            plain = special_token(token["content"], number) | {"special": False}
            state["added_tokens"].append({**plain, **token})
    names = {role: _name(role, settings, defaults) for role in ROLES} if defaults else {}
    stated_names = {f"{role}_token": name for role, name in names.items()}
    return define(state, settings | stated_names, [name for name in names.values() if name])

"""Definitions read from folders and files; other programs' folders are read by transformers.

A folder that this package wrote, a file that is named, and a folder that names no class define
themselves how text is cut. In all other folders the class defines how text is normalised, which ids
the pieces have and which tokens are added. For these, the tokenizer of transformers is used.

Untrusted files may take forever or crash the process. So a separate process (alone.py) reads the
folder with transformers and encodes a few lines.
"""

import base64
import json
import math
import os
import reprlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from electra.errors import UserError, require, tell_place
from electra.files import HASHES, parse_object, read_object, read_text, write_json
from electra.text.characters import MAX_WORD_CHARS
from electra.tokenizing import alone
from electra.tokenizing.formats import (
    DEFINING,
    WRITTEN_FOR_TRANSFORMERS,
    Definition,
    State,
    define,
    define_bert,
    lowers_case,
    parts_of,
    text_of,
)
from electra.tokenizing.sentencepiece import build_state, read_model

Settings = Mapping[str, Any]

OWN_RULES = ("PreTrainedTokenizer", "TokenizersBackend", "")
"""Classes without rules for a vocabulary: its file says all."""
FILE_OF_MODEL = {"bert": "vocab.txt", "electra": "vocab.txt", "deberta-v2": "spm.model"}
"""The vocabulary that the class of a model_type reads, where no file names a class."""
EXPECTED = (
    "expected a run, a folder with tokenizer.json, vocab.txt or a SentencePiece .model, or one of "
    "these files"
)
SPACES = {"Replace", "Strip", "Prepend", "ByteLevel"}
"""Parts of a normaliser with which classes write spaces, each in its own way."""
BORDERS = {"Split", "Digits", "Punctuation", "UnicodeScripts", "FixedLength", "CharDelimiterSplit"}
"""Parts that cut a text elsewhere than at spaces and at what the words of BERT end with."""
BERT_FLAGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
TRIAL_SECONDS, ASK_SECONDS = 30, 600
"""After which a process is ended. A sound tokenizer takes a second; transformers takes some to
start, and minutes for a large SentencePiece model."""

MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")
MAX_GROWTH = 4096
"""How many times as long a normaliser or decoder may make a text."""
LONGEST_WORD = 1000
"""Most characters of a word that WordPiece cuts; the time to cut it grows with their cube."""


def read_definition(path: Path, assumed: bool) -> Definition:
    """Return the definition in a folder or file; arguments as of `Tokenizer.load`."""
    path = path / "tokenizer" if (path / "tokenizer").is_dir() else path  # that of a run
    definition = _read_folder(path, assumed) if path.is_dir() else _read_file(path, {}, assumed)
    decoders = [part["type"] for part in parts_of(definition.state["decoder"])]
    if not definition.bert or decoders != ["WordPiece"]:  # others may have patterns without end
        content = json.dumps({"version": "1.0", **definition.state})
        with tell_place(f"{path}: not a usable tokenizer"):
            _run_alone(["try"], TRIAL_SECONDS, content)
    return definition


def _read_folder(folder: Path, assumed: bool) -> Definition:
    def read(name: str) -> dict[str, Any]:
        return read_object(folder / name) if (folder / name).is_file() else {}

    settings, config = read("tokenizer_config.json"), read("config.json")
    whole, words = folder / "tokenizer.json", folder / "vocab.txt"
    if whole.is_file() and (folder / HASHES).is_file():
        return _read_file(whole, settings, assumed)
    name = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or "")
    usual = FILE_OF_MODEL.get(str(config.get("model_type")))
    is_usual = usual is not None and (folder / usual).is_file()
    if (
        name.removesuffix("Fast") not in OWN_RULES
        or (name and whole.is_file())
        or (not name and is_usual and (settings or usual != words.name))
    ):
        return _read_as_transformers(folder, name, settings, config)
    found = [each for each in (whole, words, *sorted(folder.glob("*.model"))) if each.is_file()]
    require(bool(found), f"no tokenizer at {folder}; {EXPECTED}")
    if found[0] == words and settings.get("do_lower_case") is None:
        warnings.warn(
            f"{folder} has no tokenizer_config.json that states whether text is lower-cased; "
            f"assuming do_lower_case={str(assumed).lower()}",
            stacklevel=4,
        )
    definition = _read_file(found[0], read("special_tokens_map.json") | settings, assumed)
    with _refuse_unlike(folder / "tokenizer_config.json"):
        added = {*map(text_of, dict(settings.get("added_tokens_decoder") or {}).values())}
    lacking = sorted(added.union(read("added_tokens.json")) - {*definition.tokens})
    require(
        not lacking,
        f"{folder} adds {reprlib.repr(lacking)} to its {found[0].name}, as a class of transformers "
        "does; name that tokenizer_class in its tokenizer_config.json",
    )
    return definition


def _read_file(path: Path, settings: Settings, assumed: bool) -> Definition:
    """Return the definition in a file; only the special tokens come from the settings."""
    require(path.is_file(), f"no tokenizer at {path}; {EXPECTED}")
    if path.name == "vocab.json":  # beside merges.txt
        name = "RobertaTokenizer"
        return _read_as_transformers(path.parent, name, {"tokenizer_class": name}, {})
    with _refuse_unlike(path):
        if path.suffix == ".json":
            whole = read_object(path) | settings.get(WRITTEN_FOR_TRANSFORMERS, {})
            return define(check_state(whole), settings)
        if path.suffix == ".model":
            return define(check_state(build_state(read_model(path.read_bytes()))), settings)
        tokens = read_text(path).replace("\r\n", "\n").removesuffix("\n").split("\n")
        lower, strip, split = (_read_flag(settings, name) for name in BERT_FLAGS)
        lower = assumed if lower is None else lower
        return define_bert(tokens, lower, strip, split is not False, settings)


@contextmanager
def _refuse_unlike(path: Path) -> Iterator[None]:
    """Name a file in what is wrong with it."""
    try:
        yield
    except UserError as error:
        told = str(error).startswith(str(path.parent))
        raise UserError(str(error) if told else f"{path}: {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        kind = path.name if path.suffix == ".json" else "tokenizer"
        raise UserError(f"{path}: not a {kind}") from None


def _read_flag(settings: Settings, name: str) -> bool | None:
    value = settings.get(name)
    is_flag = value is None or isinstance(value, bool)
    require(is_flag, f"{name} must be true or false, not {value!r}")
    return value


def _read_as_transformers(
    folder: Path, name: str, settings: Settings, config: Settings
) -> Definition:
    """Return the definition of the tokenizer that transformers makes of a folder."""
    # If transformers cannot read a tokenizer.json, it alone is used, with a warning.
    whole = folder / "tokenizer.json"
    with tell_place(folder / "tokenizer_config.json"):
        is_name = not name or (name.isascii() and name.isidentifier())
        require(is_name, f"tokenizer_class must be the name of a class, not {reprlib.repr(name)}")
        for flag in BERT_FLAGS:
            _read_flag(settings, flag)
    file = whole if whole.is_file() else next(iter(sorted(folder.glob("*.model"))), None)
    normalizer, pre_tokenizer = _read_rules(file) if file else (None, None)
    require(
        find_spec("transformers") is not None,
        f"{folder} has the tokenizer of another program, which transformers reads: pip install "
        "'electra[hf]'; a file that is named, such as tokenizer.json, is read without it",
    )
    try:
        answer = _ask(folder, name, settings, config)
    except UserError as error:
        told = f"{folder}: transformers cannot read the tokenizer: {error}"
        if file != whole:
            raise UserError(told) from None
        warnings.warn(f"{told}; its tokenizer.json alone is read", stacklevel=5)
        return _read_file(whole, settings, True)
    with _refuse_unlike(folder / "tokenizer_config.json"):
        state = check_state(parse_object(answer["tokenizer.json"], folder))
        found = define(state | settings.get(WRITTEN_FOR_TRANSFORMERS, {}), answer["special_tokens"])
    lost = _kinds(normalizer) - _kinds(found.state["normalizer"]) - SPACES
    lost |= (_kinds(pre_tokenizer) & BORDERS) - _kinds(found.state["pre_tokenizer"])
    if file == whole and lowers_case({"normalizer": normalizer}) != lowers_case(found.state):
        lost.add("case")
    if lost:
        warnings.warn(
            f"{answer['class']} of transformers, which is followed, does not change or cut text as "
            f"{file} says ({', '.join(sorted(lost))}); to follow the file, name it: --tokenizer "
            f"{file}",
            stacklevel=5,
        )
    return found


def _kinds(stage: Any) -> set[str]:
    return {part["type"] for part in parts_of(stage)}


def _read_rules(path: Path) -> tuple[Any, Any]:
    """Return a file's normaliser and pre-tokenizer, before any other program reads it."""
    with _refuse_unlike(path):
        if path.suffix == ".json":
            state = check_state(read_object(path))
            return state["normalizer"], state["pre_tokenizer"]
        return {"type": "Sequence", "normalizers": read_model(path.read_bytes()).normalizer}, None


def _ask(folder: Path, name: str, settings: Settings, config: Settings) -> dict[str, Any]:
    """Return the answer of alone.py for a folder; from its config.json only names are passed."""
    names = {key: config[key] for key in ("model_type", "tokenizer_class") if key in config}
    with tempfile.TemporaryDirectory() as place:
        for path in folder.iterdir():
            if path.suffix in (".json", ".txt", ".model") and path.name != "config.json":
                (Path(place) / path.name).write_bytes(path.read_bytes())
        told = {key: settings[key] for key in settings if key != "auto_map"}  # code of the folder
        write_json(Path(place) / "tokenizer_config.json", told)
        if names:
            write_json(Path(place) / "config.json", names)
        return parse_object(_run_alone(["ask", place, name], ASK_SECONDS), folder)


def _run_alone(words: list[str], seconds: float, content: str = "") -> str:
    """Return the output of alone.py; if it fails or takes too long, raise a UserError."""
    command = [sys.executable, "-P", alone.__file__, str(2 * seconds), *words]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, input=content, capture_output=True, encoding="utf-8", errors="replace",
            timeout=seconds, env=env, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"it takes more than {seconds:g} seconds") from None
    last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    require(done.returncode == 0, last)
    return done.stdout


def check_state(content: Mapping[str, Any]) -> State:
    """Return the defining parts of a `tokenizer.json` that another program may have written."""
    state: State = {key: content.get(key) for key in DEFINING}
    state["added_tokens"] = [dict(token) for token in state["added_tokens"] or []]
    model = state["model"]
    if model["type"] not in MODELS:
        raise UserError(f"its model is {model['type']}; it must be one of {', '.join(MODELS)}")
    require(len(model["vocab"]) > 0, "its vocabulary is empty")
    for name in ("dropout", "alpha", "nbest_size"):
        require(not model.get(name), f"its ids are drawn at random: the model has {name}")
    longest = model.get("max_input_chars_per_word", MAX_WORD_CHARS)
    require(
        longest <= LONGEST_WORD,
        f"max_input_chars_per_word is {longest:,}; words of at most {LONGEST_WORD:,} are cut",
    )
    for stage in ("normalizer", "pre_tokenizer", "decoder"):
        parts = parts_of(state[stage])
        for part in parts:
            require(isinstance(part["type"], str), f"its {stage} has the type {part['type']!r}")
        growth = math.prod(map(_growth, parts))
        require(
            growth <= MAX_GROWTH,
            f"its {stage} may make a text {growth:,} times as long; at most {MAX_GROWTH:,} is read",
        )
        for part in parts:
            for name in ("lowercase", "strip_accents", "handle_chinese_chars", "clean_text"):
                value = part.get(name)
                is_flag = value is None or isinstance(value, bool)
                require(is_flag, f"{name} must be true or false, not {value!r}")
    return state


def _growth(part: Mapping[str, Any]) -> int:
    """Return a bound on the factor by which a part of a normaliser or decoder lengthens a text."""
    if part["type"] == "Replace":  # an empty match is between any two characters
        return 1 + len(part["content"]) if part["content"] else 1
    if part["type"] == "Precompiled":
        content = base64.b64decode(part["precompiled_charsmap"])
        return max(1, *map(len, content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")))
    return {"Prepend": 1 + len(part.get("prepend", "")), "ByteLevel": 2}.get(part["type"], 1)

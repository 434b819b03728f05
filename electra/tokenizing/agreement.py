"""Whether a folder's text has the same tokens here as in transformers."""

import warnings
from pathlib import Path

from electra.errors import UserError
from electra.tokenizing.tokenizer import Tokenizer

SAMPLE = (
    "The old sailor didn't believe her; it cost 1,250.50 (in 1912)!",
    "Élève, naïve, Ångström: where are they?",
    "영화가 정말 재미있어서 두 번이나 봤습니다.",
    "Старый моряк починил лодку ещё до завтрака.",
    "今天天气很好,我们去公园散步。",
    "カメラとコーヒーが好きです。",
    "आज मौसम बहुत अच्छा है।",
    "ذهبنا اليوم إلى الحديقة.",
)


def require_agreement(folder: Path, tokenizer: Tokenizer) -> None:
    """Refuse the tokenizer of a folder if transformers is installed and cuts otherwise."""
    try:
        from transformers import AutoTokenizer

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
        rows = theirs(list(SAMPLE), add_special_tokens=False, verbose=False)["input_ids"]
    except Exception:  # not installed, or it cannot read the folder: there is nothing to compare
        return
    for text, expected, found in zip(SAMPLE, rows, tokenizer.encode_batch(SAMPLE), strict=True):
        if found != expected:
            raise UserError(
                f"{folder}: {type(theirs).__name__} of transformers makes {expected[:9]} of "
                f"{text[:20]!r}, and the rules here {found[:9]}; save its tokenizer.json with "
                "transformers, and name that file by --tokenizer"
            )

"""A program that runs untrusted tokenizers in a separate process, which can be stopped.

    alone.py SECONDS try < tokenizer.json         encode a few lines, on which damage shows itself
    alone.py SECONDS ask FOLDER CLASS             write what transformers makes of a folder, as JSON

foreign.py calls it. It imports nothing of this package, so that it starts in a tenth of a second.
"""

import contextlib
import faulthandler
import importlib.util
import json
import sys
from pathlib import Path

TRIAL = [
    *("".join(chr(16 * n) * 99 for n in range(2, 96)).split()),
    "a" * 999 + "!",
    "1" * 999 + "!",
]
"""Texts on which a damaged or endless pattern of a tokenizer shows itself."""


def try_out() -> None:
    """Encode and decode the trial with the tokenizer of standard input."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(sys.stdin.read())
    backend.decode(backend.encode_batch(TRIAL)[0].ids)


def ask(folder: Path, name: str) -> dict[str, object]:
    """Return class, special tokens and definition of a folder's tokenizer, without any network."""
    find = importlib.util.find_spec
    # Without torch, of which tokenizers need nothing, transformers starts in a third of the time.
    importlib.util.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
    import transformers

    files = {path.name for path in folder.iterdir()}
    is_whole = "tokenizer.json" in files
    if name and not is_whole and not hasattr(transformers, name):
        raise ValueError(f"it has no class {name}, and the folder no tokenizer.json")
    read = transformers.AutoTokenizer.from_pretrained
    try:
        found = read(folder, trust_remote_code=False, local_files_only=True)
    except Exception:  # for some values of model_type only the model's class is accepted
        if not name:
            raise
        (folder / "config.json").unlink(missing_ok=True)
        found = read(folder, trust_remote_code=False, local_files_only=True)
    kind = type(found).__name__
    # Without them the class would have no words but the special tokens.
    missing = sorted({*found.vocab_files_names.values()} - files - {"tokenizer.json"})
    if missing and not is_whole:
        raise ValueError(
            f"the folder has neither tokenizer.json nor {', '.join(missing)} of {kind}"
        )
    if not hasattr(found, "backend_tokenizer"):
        raise ValueError(f"its class {kind} is code of its own, without a tokenizer.json")
    roles = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    return {
        "class": kind,
        "special_tokens": {f"{role}_token": getattr(found, f"{role}_token") for role in roles},
        "tokenizer.json": found.backend_tokenizer.to_str(),
    }


if __name__ == "__main__":
    seconds, what, *arguments = sys.argv[1:]
    faulthandler.dump_traceback_later(float(seconds), exit=True)  # even if the parent is gone
    try:
        if what == "try":
            try_out()
        else:
            with contextlib.redirect_stdout(sys.stderr):
                answer = ask(Path(arguments[0]), arguments[1])
            json.dump(answer, sys.stdout)
    except BaseException as error:  # a panic of the library is no Exception
        sys.exit(" ".join(str(error).split()) or type(error).__name__)

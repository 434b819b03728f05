"""A folder of any kind, and everything that can be proved of it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from electra.checkpoints.bundled import find_model
from electra.checkpoints.checkpoint import run_of
from electra.errors import UserError, require
from electra.shards.store import open_shards
from electra.verification.answers import verify_finetuning
from electra.verification.claims import Claim, Claims
from electra.verification.corpora import verify_shards, verify_tokenizer
from electra.verification.exported import verify_export
from electra.verification.steps import verify_run

STEPS = 100
"""Most steps of a run that are computed again by default."""
KINDS = {
    "run": ("checkpoints/", "metrics.jsonl"),
    "shards": ("train-00000.tokens", "heldout-00000.tokens"),
    "suite": ("table.tex", "figure.svg"),
    "finetuning": ("results.json", "seed-0/", "manifest.json"),
    "export": ("model.safetensors", "model.gguf", "config.json"),
    "tokenizer": ("tokenizer.json", "tokenizer_config.json"),
}
"""Names that show the kind of a folder, also of a damaged one; a folder's ends in /."""


def find_kind(folder: Path) -> str:
    """Return the kind of a folder in KINDS, by its contents; empty: none."""
    for kind, names in KINDS.items():
        for name in names:
            path = folder / name
            if path.is_dir() if name.endswith("/") else path.is_file():
                return kind
    return ""


def verify(
    folder: Path,
    *,
    shards: Path | None = None,
    text: Sequence[str] = (),
    data: Path | None = None,
    steps: int = STEPS,
    show: Callable[[Claim], None] = lambda claim: None,
    end: Callable[[Path, Sequence[Claim]], None] = lambda place, claims: None,
) -> list[Claim]:
    """Return every claim of a folder, or of the folders in it, with its proof: `electra.verify`."""
    require(steps >= 1, f"steps must be >= 1, not {steps}")
    claims, folder = Claims(show), run_of(find_model(folder))
    if folder.suffix == ".toml" and folder.is_file():
        for corpus in open_shards(folder, verify=False).mixture:
            verify_shards(claims.inside(corpus.name), folder.parent / corpus.name, text)
        return claims.found
    require(folder.is_dir(), f"there is no folder {folder}")
    places = [folder]
    if not find_kind(folder):
        places = sorted(each for each in folder.iterdir() if each.is_dir() and find_kind(each))
    if not places:
        raise UserError(
            f"{folder} is not a tokenizer, shards, a run, a fine-tuning, an export or a suite"
        )
    for place in places:
        inner, before = claims, len(claims.found)
        if place != folder:
            inner = claims.inside(place.name)
        _verify_one(inner, place, shards, text, data, steps)
        if place != folder:
            end(place, claims.found[before:])
    return claims.found


def _verify_one(
    claims: Claims,
    place: Path,
    shards: Path | None,
    text: Sequence[str],
    data: Path | None,
    steps: int,
) -> None:
    """Prove the claims of a folder of one of KINDS."""
    match find_kind(place):
        case "run":
            verify_run(claims, place, shards, steps)
        case "shards":
            verify_shards(claims, place, text)
        case "suite":
            # With scipy and matplotlib, which nothing else here needs.
            from electra.verification.suites import verify_suite

            verify_suite(claims, place)
        case "finetuning":
            verify_finetuning(claims, place, data)
        case "export":
            verify_export(claims, place)
        case "tokenizer":
            verify_tokenizer(claims, place)

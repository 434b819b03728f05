"""From text to token shards: a list of pieces, ways to prepare them, and the last step.

    list_pieces   the corpus in parts (pieces.py)
    run_here      the pieces in processes of this machine, or run_on_ray, or a share of them for
                  each job of a queue: each piece writes a folder of its own
    merge_pieces  duplicates, the held-out part and the manifest (merging.py)

Everything is in `<out>.incomplete` until the last step. At a URL the pieces are where they stay,
each finished by its record, and the manifest comes last; both are written once. A preparation that
was interrupted continues with the same command: finished pieces whose hashes are right are not done
again. The shards are the same bytes for every way, number of processes and interruption.
"""

import hashlib
import json
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NotRequired, TypedDict

from electra.errors import UserError, require
from electra.files import (
    UNFINISHED,
    clear_folder,
    hold,
    make_folder,
    name_failures,
    parse_object,
    put,
    read_object,
    refuse_existing,
    require_same,
    write_json,
)
from electra.objects import is_url, place_of, read_bytes, send_new
from electra.shards.config import PrepareConfig
from electra.shards.layout import MAX_SHARD_TOKENS, Manifest
from electra.shards.merging import (
    MAX_GATHERED,
    PIECES,
    TooLittleText,
    is_merged,
    merge_pieces,
    move_shards,
    send_merged,
)
from electra.shards.pieces import (
    SETTINGS_OF_PIECES,
    Piece,
    clear_unfinished,
    list_pieces,
    read_piece,
    run_here,
)
from electra.text.sources import Sources, find_sources, look
from electra.text.streams import STDIN, open_stdin
from electra.tokenizing.tokenizer import Tokenizer

Engine = Literal["local", "ray"]
TellProgress = Callable[[int, int | None, int], None]
"""Called with source bytes read, source bytes in total (None: unknown) and tokens written."""

PLAN = "plan.json"
"""The settings of an unfinished preparation."""


class Begun(TypedDict):
    """plan.json: the tokenizer's digest, the settings and, once merged, the text's digest."""

    tokenizer: str
    text: NotRequired[str]
    num_shares: NotRequired[int | None]


def prepare(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    out: str | Path,
    config: PrepareConfig,
    progress: TellProgress | None = None,
    *,
    engine: Engine = "local",
) -> dict[str, Any]:
    """Write the shards folder `out` and return its manifest.

    After an error or an interrupt, `<out>.incomplete` holds the finished pieces, and the same call
    continues. If none is finished, nothing is left.

    Args:
        paths: Files, folders and patterns, as for `find_sources`.
        tokenizer: Its copy becomes part of the shards folder.
        out: The folder to write; must not exist. At a URL, pieces are written as they are made, and
            the manifest after all other files.
        config: Document borders, held-out share, what is dropped, sizes and number of workers.
        progress: Called with each finished piece.
        engine: "local": processes of this machine. "ray": a Ray cluster.

    Raises:
        UserError: A path is wrong or damaged, `out` exists, there is too little text, or the
            preparation was begun with other settings.
        OSError: A folder cannot be listed, or `out` cannot be written.
    """
    sources, out = find_sources(paths, config), place_of(out)
    with _begin(out, tokenizer, config, "all") as folder:
        if not _is_merged(folder, out, sources.files, config):
            files = _copy_pipes(sources.files, folder, config, progress)
            pieces = list_pieces(files, config, tokenizer.digest)
            _run(pieces, tokenizer, folder, out, config, engine, progress)
            try:
                _merge(folder, out, pieces, tokenizer, config, sources)
            except TooLittleText:  # nothing to continue with
                shutil.rmtree(folder / PIECES)
                raise
        return _complete(folder, out)


def prepare_share(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    out: str | Path,
    config: PrepareConfig,
    share: tuple[int, int],
    progress: TellProgress | None = None,
) -> int:
    """Do a share of the pieces of a preparation, and return its number of pieces.

    Any number of processes on any machines can do shares at the same time; `finish` is the last
    step. The machines must see the text, which holds no pipes, and `out` under the same names.
    `share` is the number of the share, from 0, and how many there are; for the rest see `prepare`.
    """
    files, out = find_sources(paths, config).files, place_of(out)
    _require_files(files)
    number, num_shares = share
    with _begin(out, tokenizer, config, "share", num_shares) as folder:
        pieces = list_pieces(files, config, tokenizer.digest)
        first, stop = (len(pieces) * place // num_shares for place in (number, number + 1))
        _run(pieces[first:stop], tokenizer, folder, out, config, "local", progress)
    return stop - first


def finish(
    paths: Sequence[str], tokenizer: Tokenizer, out: str | Path, config: PrepareConfig
) -> dict[str, Any]:
    """Write the shards folder from the pieces that `prepare_share` did, and return its manifest."""
    sources, out = find_sources(paths, config), place_of(out)
    _require_files(sources.files)
    with _begin(out, tokenizer, config, "finish") as folder:
        if not _is_merged(folder, out, sources.files, config):
            pieces = list_pieces(sources.files, config, tokenizer.digest)
            where = _top_of(folder, out)
            with ThreadPoolExecutor(MAX_GATHERED) as pool:
                read = list(pool.map(partial(read_piece, where / PIECES), pieces))
            missing = [place for place, record in enumerate(read) if not record]
            plan = parse_object(read_bytes(where / PLAN) or b"", where / PLAN)
            tasks = _list_tasks(missing, len(pieces), plan.get("num_shares"))
            require(
                not missing,
                f"{len(missing):,} of {len(pieces):,} pieces are missing or were done with another "
                f"text; submit {tasks} again, or leave out --finish to do them here",
            )
            _merge(folder, out, pieces, tokenizer, config, sources)
        return _complete(folder, out)


def _list_tasks(missing: Sequence[int], num_pieces: int, num_shares: int | None) -> str:
    """Return the options of the shares that hold these pieces; None: no share was ever begun."""
    if not num_shares:
        return "all shares (--task I/N)"
    # The share of a piece is the last one that begins at it or before.
    shares = sorted({((piece + 1) * num_shares - 1) // num_pieces for piece in missing})
    known = set(shares)
    firsts = [each for each in shares if each - 1 not in known]
    lasts = [each for each in shares if each + 1 not in known]
    ranges = zip(firsts, lasts, strict=True)
    named = ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in ranges)
    return f"--task I/{num_shares} with I={named}"


def _require_files(files: Sequence[Path]) -> None:
    for path in files:
        require(
            path != STDIN and not path.is_fifo(),
            f"shares of pieces need files that can be read again, not the pipe {path}",
        )


@contextmanager
def _begin(
    out: Path,
    tokenizer: Tokenizer,
    config: PrepareConfig,
    step: Literal["all", "share", "finish"],
    num_shares: int | None = None,
) -> Iterator[Path]:
    """Yield `<out>.incomplete`, new or begun with the same settings, and locked but for a share."""
    require(
        config.shard_tokens <= MAX_SHARD_TOKENS,
        f"shard_tokens must be at most {MAX_SHARD_TOKENS:,}, not {config.shard_tokens:,}",
    )
    _refuse_existing(out)
    if is_url(out):  # where plan and pieces are; the folder is for what has to be on this disk
        plan = _make_plan(tokenizer, config) | {"num_shares": num_shares}
        if not send_new(json.dumps(plan, indent=2).encode(), out / PLAN):
            begun = parse_object(read_bytes(out / PLAN) or b"", out / PLAN)
            require_same(out, begun, _make_plan(tokenizer, config))
        with TemporaryDirectory(prefix="electra-") as scratch:
            yield Path(scratch)
        return
    folder = incomplete_folder(out)
    # Shares begin at once: a plan may be there, or on its way to its place.
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    require(
        not names or any(name.startswith(PLAN) or name == UNFINISHED for name in names),
        f"{folder} already exists and was not written by this command; remove or rename it, "
        "or choose another output name",
    )
    make_folder(folder)
    lock = nullcontext() if step == "share" else hold(folder / UNFINISHED)
    with name_failures(out), lock:
        try:
            _refuse_existing(out)  # another process may have finished it in the meantime
            _plan(folder, tokenizer, config, num_shares, clears=step == "all")
            clear_unfinished(folder / PIECES)
            yield folder
        except BaseException:
            is_begun = (folder / "manifest.json").exists()  # its pieces are shards already
            if step == "all" and not is_begun and not any((folder / PIECES).glob("*")):
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _refuse_existing(out: Path) -> None:
    if not is_url(out):
        return refuse_existing(out)
    exists = read_bytes(out / "manifest.json") is not None
    require(not exists, f"{out} exists already; remove it or choose another name")


def _plan(
    folder: Path,
    tokenizer: Tokenizer,
    config: PrepareConfig,
    num_shares: int | None,
    *,
    clears: bool,
) -> None:
    """Write the plan, or compare the one that is there; `clears`: remove what has none."""
    # A plan that cannot be read is none; pieces hold their settings, and are compared with them.
    path, plan = folder / PLAN, _make_plan(tokenizer, config)
    begun: dict[str, Any] = {}
    with suppress(UserError):
        begun = read_object(path, Begun) if path.exists() else {}
    if begun:
        require_same(folder, begun, plan)
        if begun.get("num_shares") or not num_shares:
            return
    elif clears:
        clear_folder(folder)
    # Processes with shares may write the plan at the same time.
    temporary = folder / f"{PLAN}.{uuid.uuid4().hex}"
    content = json.dumps({**begun, **plan, "num_shares": num_shares}, indent=2) + "\n"
    temporary.write_text(content, encoding="utf-8")
    put(temporary, path)


def _make_plan(tokenizer: Tokenizer, config: PrepareConfig) -> dict[str, Any]:
    """Return the settings of which all pieces of a preparation are."""
    settings = asdict(config)
    names = (*SETTINGS_OF_PIECES, "task_bytes")
    return {"tokenizer": tokenizer.digest, **{name: settings[name] for name in names}}


def incomplete_folder(out: Path) -> Path:
    """Return the folder of a preparation that is not finished; of a URL, the URL."""
    return out if is_url(out) else out.parent / f"{out.name}.incomplete"


def _top_of(folder: Path, out: Path) -> Path:
    """Return where the folder of all pieces is: in the folder of a preparation, or at the URL."""
    return out if is_url(out) else folder


def _merge(
    folder: Path,
    out: Path,
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    config: PrepareConfig,
    sources: Sources,
) -> None:
    """Record the digest of the text in the plan, and merge the pieces."""
    if not is_url(out):
        write_json(folder / PLAN, read_object(folder / PLAN) | {"text": _digest(pieces)})
    merge_pieces(folder, pieces, tokenizer, config, sources, _top_of(folder, out))


def _digest(pieces: Sequence[Piece]) -> str:
    return hashlib.sha256("".join(each.digest for each in pieces).encode()).hexdigest()


def _is_merged(folder: Path, out: Path, files: Sequence[Path], config: PrepareConfig) -> bool:
    """Return whether the last step was begun and pieces may be gone; those at a URL never are."""
    # If the step has left something damaged, all that it wrote is removed.
    if is_url(out) or not (folder / "manifest.json").exists():
        return False
    plan = read_object(folder / PLAN, Begun)
    if "text" not in plan or not is_merged(folder):
        warnings.warn(f"{folder} is damaged; its shards are written again", stacklevel=2)
        for path in filter(Path.is_file, folder.iterdir()):
            if path.name not in (PLAN, UNFINISHED):
                path.unlink()
        return False
    if not any(path == STDIN or path.is_fifo() for path in files):
        require(
            plan["text"] == _digest(list_pieces(files, config, plan["tokenizer"])),
            f"{folder} holds the shards of another text; finish them with it, or remove them",
        )
    return True


def _copy_pipes(
    files: Sequence[Path], folder: Path, config: PrepareConfig, progress: TellProgress | None
) -> Sequence[Path]:
    """Return the files, with a copy on the disk of each pipe, which can be read only once."""
    found = []
    for number, path in enumerate(files):
        if path == STDIN or path.is_fifo():
            copy = folder / f"pipe-{number}{''.join(path.suffixes)}"
            source = nullcontext(open_stdin()) if path == STDIN else path.open("rb")
            with source as pipe, copy.open("wb") as target:
                while block := pipe.read(1 << 20):
                    target.write(block)
                    if progress:
                        progress(target.tell(), None, 0)
            kind = look(copy, config)[1]
            require(not kind, f"{path} is not text: {kind}")
            path = copy
        found.append(path)
    return found


def _run(
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    folder: Path,
    out: Path,
    config: PrepareConfig,
    engine: Engine,
    progress: TellProgress | None,
) -> None:
    """Do the pieces and report progress."""
    top = _top_of(folder, out) / PIECES
    total = sum(piece.source_bytes for piece in pieces)
    done = num_tokens = 0

    def tell(piece: Piece, record: dict[str, Any]) -> None:
        nonlocal done, num_tokens
        done += piece.source_bytes
        num_tokens += sum(part["num_tokens"] for part in record["parts"].values())
        if progress:
            progress(done, total, num_tokens)

    if engine != "ray":
        return run_here(pieces, tokenizer, top, config.workers, tell, folder)
    from electra.shards.cluster import run_on_ray

    run_on_ray(pieces, tokenizer, top, config.workers, tell)


def _complete(folder: Path, out: Path) -> dict[str, Any]:
    """Give shards and folder their names, or send them and at last the manifest to the URL."""
    if is_url(out):
        send_merged(folder, out)
        path = folder / "manifest.json"
        is_ours = send_new(path.read_bytes(), out / path.name)
        require(is_ours, f"{out} was written by another process meanwhile, from another text")
        return read_object(path, Manifest)
    move_shards(folder)
    for path in folder.glob("pipe-*"):
        path.unlink(missing_ok=True)
    manifest = read_object(folder / "manifest.json", Manifest)
    put(folder, out)
    for path in (out / UNFINISHED, *out.glob(f"{PLAN}*")):
        path.unlink(missing_ok=True)
    return manifest

"""Pieces of a preparation on a Ray cluster."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.objects import is_url, place_of
from electra.processes import join_ray
from electra.shards.pieces import (
    MAX_ATTEMPTS,
    Encoder,
    Piece,
    Record,
    explain_killed,
    group_pieces,
    prepare_piece,
)
from electra.tokenizing.tokenizer import Tokenizer
from electra.tokenizing.words import make_encoder

RAY_CPUS = 0.9
"""Cores that Ray reserves for a piece. A little less than one, so that the program that waits for
the pieces, or another one, finds room on a full cluster."""
RAY_PIECES = 16
"""Most pieces in one call of Ray: ranges of one compressed file are best read in turn."""

ENCODERS: dict[str, Encoder] = {}
"""Encoders of a process of the cluster, by the digest of the tokenizer."""


def run_on_ray(
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    folder: Path,
    workers: int,
    tell: Callable[[Piece, Record], None],
) -> None:
    """Prepare the pieces on a Ray cluster (`join_ray`).

    All machines must see the text and the folder under the same names. With `workers` 0, there are
    as many processes as the cluster has room for.
    """
    with join_ray() as ray:
        call = ray.remote(num_cpus=RAY_CPUS, max_retries=MAX_ATTEMPTS - 1)(_prepare_on_ray)
        shared = ray.put(tokenizer)
        groups = deque(group_pieces(pieces, RAY_PIECES))
        room = workers or max(1, int(ray.cluster_resources().get("CPU", 1) / RAY_CPUS))
        pending: dict[Any, list[Piece]] = {}
        while groups or pending:
            # A few more than there is room for, so that no process waits for the next one.
            while groups and len(pending) < (workers or 2 * room):
                group = groups.popleft()
                whole = folder if is_url(folder) else folder.absolute()
                places = str(whole), str(Path.cwd())
                pending[call.remote(group, shared, *places)] = group
            done, _ = ray.wait(list(pending), num_returns=1, timeout=10)
            for reference in done:
                group = pending.pop(reference)
                for piece, record in zip(group, _get(ray, reference, group[0]), strict=True):
                    tell(piece, record)


def _get(ray: Any, reference: Any, first: Piece) -> list[Record]:
    """Return what a call on Ray returned; its error becomes ours."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, UserError | OSError) else error) from None
    except ray.exceptions.RayError as error:
        raise explain_killed(first, str(error).splitlines()[0]) from None


def _prepare_on_ray(
    group: list[Piece], tokenizer: Tokenizer, folder: str, caller: str
) -> list[Record]:
    with suppress(OSError):  # all names may be absolute
        os.chdir(caller)
    encoder = ENCODERS.get(tokenizer.digest)
    if encoder is None:
        encoder = ENCODERS[tokenizer.digest] = make_encoder(tokenizer)
    return [prepare_piece(piece, encoder, place_of(folder)) for piece in group]

"""More tokens and longer rows for imported weights.

New rows of the embeddings and of the generator's output bias are the means of the pieces that a new
token replaces, so that a text in new tokens means at first about what it meant in old ones (Hewitt
2021, "Initializing new word embeddings", uses the mean of all tokens). New positions repeat the old
ones (as in Longformer: Beltagy et al. 2020, section 5) or lie between them; rotary ones turn more
slowly.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.config import EncoderConfig
from electra.errors import require
from electra.tokenizing.tokenizer import Tokenizer

TOKENS = "embeddings.tokens.weight"
POSITIONS = "embeddings.positions.weight"
OUTPUT_BIAS = "bias"
"""Names in `Encoder` and `GeneratorHead`."""

PositionRows = Literal["interpolate", "repeat"]
"""interpolate: a row of old length takes as many steps through the old positions as the new length
has. repeat: the old positions one after the other, again and again."""


def find_pieces(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return the old ids whose mean each new token begins with, in the order of the new ids.

    An old token has its own id. A new one has those of the pieces that stood in its place
    (`Tokenizer.spell`).

    Raises:
        UserError: The new vocabulary lacks an old token, is of another kind, or normalises text in
            another way.
    """
    for name in ("kind", "lowercase", "strip_accents"):
        ours, theirs = getattr(old, name), getattr(new, name)
        require(
            ours == theirs,
            f"the extended tokenizer has {name} {theirs}, the model's {ours}: a text would have "
            "other tokens in both",
        )
    lacking = sorted({*old.tokens_by_id} - {*new.tokens_by_id})
    require(
        not lacking,
        f"the extended tokenizer lacks {len(lacking):,} tokens of the model's, as {lacking[:1]}; "
        "`electra tokenizer --extend` keeps all of them",
    )
    ids = {token: index for index, token in enumerate(old.tokens_by_id)}
    return [[ids[token]] if token in ids else old.spell(token) for token in new.tokens_by_id]


def extend_vocabulary(tensors: Mapping[str, Tensor], pieces: list[list[int]]) -> dict[str, Tensor]:
    """Return the parameters of a network's part with a row for each token: its pieces' mean.

    Args:
        tensors: Parameters of an encoder or a head.
        pieces: From `find_pieces`.
    """
    extended = dict(tensors)
    for name in {TOKENS, OUTPUT_BIAS} & tensors.keys():
        old = tensors[name]
        rows = [old[each[0]] if len(each) == 1 else old[each].mean(dim=0) for each in pieces]
        extended[name] = torch.stack(rows)
    return extended


def extend_positions(
    tensors: Mapping[str, Tensor], number: int, how: PositionRows
) -> dict[str, Tensor]:
    """Return an encoder's parameters with learned embeddings of more positions.

    Args:
        tensors: Parameters of an encoder.
        number: Positions, at least as many as before.
        how: How the embeddings of the new positions are made.

    Raises:
        UserError: There are more positions already.
    """
    old = tensors[POSITIONS]
    _require_more(number, len(old))
    if how == "repeat":
        rows = old[torch.arange(number) % len(old)]
    else:
        rows = F.interpolate(old.T[None], number, mode="linear", align_corners=True)[0].T
    return {**tensors, POSITIONS: rows.contiguous()}


def rescale_rotary(sizes: EncoderConfig, number: int, how: PositionRows) -> EncoderConfig:
    """Return the sizes of an encoder with rotary positions that reads longer rows.

    The base of the global layers grows with the length to the power d / (d - 2), where d is the
    width of a head: the slowest pair of dimensions then turns as far over the longest row as
    before, and the fastest one as far over one token. Windows and base of local layers stay.

    Args:
        sizes: The encoder's sizes.
        number: Positions, at least as many as before.
        how: Must be interpolate.

    Raises:
        UserError: There are more positions already, or they were to be repeated.

    Source: "NTK-aware" interpolation, section 3.1 of Peng et al. 2023 (YaRN).
    """
    require(
        how == "interpolate",
        f"--position-rows {how} is for learned positions; rotary ones are rescaled: leave it away",
    )
    old = sizes.max_position_embeddings
    _require_more(number, old)
    width = sizes.hidden_size // sizes.num_attention_heads
    factor = (number / old) ** (width / (width - 2))
    return dataclasses.replace(
        sizes,
        max_position_embeddings=number,
        global_rope_theta=sizes.global_rope_theta * factor,
    )


def _require_more(number: int, old: int) -> None:
    require(
        number >= old,
        f"--positions {number} is less than the {old} of the model; more can be made, not fewer",
    )

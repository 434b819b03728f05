"""Other people's weights as Hugging Face folders of our bodies, which every verb reads.

weights.py reads the weights. BERT's pooler and next-sentence head are kept for runs that continue
with them. Embedding rows without a token, from a padded vocabulary, are kept.

Tokens can be added, and rows made longer. New rows of the embeddings and of the generator's output
bias are the means of the pieces that a new token replaces, so a text in new tokens at first means
about the same as in old ones (Hewitt 2021, "Initializing new word embeddings", uses the
mean of all tokens). New positions repeat the old ones (as in Longformer: Beltagy et al. 2020,
section 5) or are placed between them; rotary ones turn more slowly.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.checkpoints.checkpoint import Weights, load_parameters
from electra.checkpoints.folder import TOKENS
from electra.checkpoints.huggingface import find_networks, read_length
from electra.checkpoints.names import DEBERTA, ELECTRA
from electra.checkpoints.parameters import count_layers
from electra.checkpoints.saved import SavedModel, SavedNetwork
from electra.errors import require, tell_place
from electra.files import new_folder
from electra.interop.export import describe, write_plain
from electra.interop.weights import Source, read_source
from electra.model.config import EncoderConfig
from electra.model.deberta_config import DebertaConfig
from electra.model.encoder import Encoder
from electra.model.modernbert_config import ModernBertConfig
from electra.tokenizing.shrink import Smaller
from electra.tokenizing.tokenizer import Tokenizer

SPARE = 1024
"""Most rows of the embeddings that no token has. Vocabularies are padded to a multiple of 8, 64 or
128, and a few have hundreds of rows more; a greater difference is that of another vocabulary."""
POSITIONS = "embeddings.positions.weight"
OUTPUT_BIAS = "bias"
"""Names in `Encoder` and `GeneratorHead`."""

PositionRows = Literal["interpolate", "repeat"]
"""interpolate: a row of old length takes as many steps through the old positions as the new length
has. repeat: the old positions are tiled."""


class Imported(NamedTuple):
    """The findings in a source."""

    networks: dict[str, EncoderConfig]
    """Sizes of the networks that were written: "discriminator", "encoder" (one without its head)
    and "generator"."""
    num_loaded: int
    num_tensors: int
    left_over: list[str]
    """Names of tensors that were not used, as in the source."""
    num_new: int
    """Tokens that `extend` has and the source has not."""
    num_spare: int
    """Rows of the embeddings that no token has."""


def import_model(
    source: Path,
    out: Path,
    tokenizer: Path | None = None,
    generator: Path | None = None,
    extend: Path | None = None,
    keep: Smaller | None = None,
    positions: int = 0,
    position_rows: PositionRows | None = None,
) -> Imported:
    """Write the networks of a source as `electra export` writes those of a run.

    A source is a Hugging Face folder. The arguments are those of `electra import`; 0 `positions`
    are those of the source, and `keep` is the source's vocabulary, cut down.
    """
    require(positions > 0 or position_rows is None, "--position-rows is for --positions; give both")
    if not generator and (source / "generator" / "config.json").is_file():
        generator = source / "generator"
    sources = {path: read_source(path) for path in (source, generator) if path}
    total = sum(len(found.left) for found in sources.values())
    roles = {path: find_roles(path, found) for path, found in sources.items()}
    words = Tokenizer.load(tokenizer or source)
    target = keep.tokenizer if keep else Tokenizer.load(extend) if extend else words
    pieces = find_pieces(words, target) if extend else None
    pieces = [[index] for index in keep.kept] if keep else pieces
    networks: dict[str, SavedModel] = {}
    for path, found in roles.items():
        for role, network in found.items():
            if generator and (role == "generator") != (path is generator):
                continue
            _require_rows(path, network.sizes.vocab_size, words.vocab_size)
            length = positions or read_length(path, network.sizes)
            given = network
            network = _choose_rows(network, pieces, words.vocab_size) if pieces else network
            if keep:
                _require_same_states(given, network, keep, length)
            if positions:
                network = _extend_positions(network, positions, position_rows or "interpolate")
            networks[role] = SavedModel(network, target, length, str(path))
    require(
        bool(networks), f"{source} contains no ELECTRA encoder: none of its {total} tensors match"
    )
    with new_folder(out) as written:
        for role, model in networks.items():
            place = written / ("generator" if role == "generator" else "")
            place.mkdir(exist_ok=True)
            about = (model.tokenizer, model.sequence_length, model.source)
            write_plain(place, describe(model.kept, *about))
    left = [name for found in sources.values() for name in found.left]
    sizes = {role: model.encoder for role, model in networks.items()}
    num_new = max(0, target.vocab_size - words.vocab_size)
    num_spare = max(each.vocab_size for each in sizes.values()) - target.vocab_size
    return Imported(sizes, total - len(left), total, left, num_new, num_spare)


def _require_rows(path: Path, num_rows: int, num_tokens: int) -> None:
    """Refuse the tokenizer of another model; a padded vocabulary has some rows more than tokens."""
    require(
        num_tokens <= num_rows < num_tokens + SPARE and num_rows <= 2 * num_tokens,
        f"{path} has {num_rows:,} token embeddings, and its tokenizer {num_tokens:,} tokens: "
        f"{'every token needs one' if num_rows < num_tokens else 'too many are left'}; name the "
        "right tokenizer by --tokenizer",
    )


def find_roles(path: Path, found: Source) -> dict[str, SavedNetwork]:
    """Return the networks in a source by role: discriminator, encoder without a head, generator."""
    architecture, own, inner, judge, *_ = found
    # BERT's masked language model, and ModernBERT's, is an encoder as well.
    is_generator = architecture is ELECTRA
    with tell_place(path):
        sizes = architecture.read_config(found.config)
        networks = find_networks(architecture, _find_heads(sizes, own), own, judge or None)
        if architecture is DEBERTA and "replaced" in networks:
            networks.pop("tokens", None)  # a discriminator's masked language model is not trained
        if "next" in networks:
            return {"encoder": networks["next"]}
        if inner:
            number = count_layers(inner, architecture.prefix + architecture.before_layers)
            inner_sizes = dataclasses.replace(sizes, num_hidden_layers=number)
            inner_sizes = _find_heads(inner_sizes, inner)
            networks |= find_networks(architecture, inner_sizes, inner)
            networks.pop("", None)
        roles = {}
        if "replaced" in networks:
            roles["discriminator"] = networks["replaced"]
        elif inner or "tokens" not in networks or not is_generator:
            if isinstance(sizes, DebertaConfig):
                sizes = dataclasses.replace(sizes, published_heads=False, enhanced_decoder=False)
            pooler = architecture.read_head("NextSentencePrediction", own, sizes)
            encoders = (architecture.read_encoder(own, sizes),)
            roles["encoder"] = SavedNetwork("", sizes, encoders, next_sentence=pooler or {})
    if "tokens" in networks:
        roles["generator"] = networks["tokens"]
    return roles


def _find_heads(sizes: EncoderConfig, tensors: Weights) -> EncoderConfig:
    """Return the sizes, with DeBERTa's kind of heads inferred from tensor names."""
    if not isinstance(sizes, DebertaConfig):
        return sizes
    judges = "mask_predictions.LayerNorm.weight" in tensors
    has_positions = "deberta.embeddings.position_embeddings.weight" in tensors
    decodes = has_positions and "cls.predictions.bias" in tensors and not judges
    return dataclasses.replace(
        sizes,
        published_heads=judges or decodes or sizes.published_heads,
        enhanced_decoder=decodes or sizes.enhanced_decoder,
    )


def find_pieces(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return the old ids whose mean initialises each token, in the order of the new ids.

    An old token has its own id. A new one has the ids of the pieces that it replaces
    (`Tokenizer.spell`).
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


def _choose_rows(network: SavedNetwork, pieces: list[list[int]], num_old: int) -> SavedNetwork:
    """Return a network with a row for each token: the mean of its pieces, from `find_pieces`."""

    def choose(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        chosen = dict(tensors)
        for name in {TOKENS, OUTPUT_BIAS} & tensors.keys():
            old = tensors[name]
            rows = [old[each[0]] if len(each) == 1 else old[each].mean(dim=0) for each in pieces]
            spare = old[max(num_old, len(pieces)) :]
            chosen[name] = torch.cat([torch.stack(rows), spare])
        return chosen

    encoder, head = choose(network.encoders[0]), choose(network.head)
    sizes = dataclasses.replace(network.sizes, vocab_size=len(encoder[TOKENS]))
    return dataclasses.replace(network, sizes=sizes, encoders=(encoder,), head=head)


@torch.inference_mode()
def _require_same_states(
    old: SavedNetwork, new: SavedNetwork, keep: Smaller, most_tokens: int
) -> None:
    """Refuse a smaller vocabulary that changes the states of the first lines of the text."""
    encoders = []
    for network in (old, new):
        encoders.append(Encoder(network.sizes).eval())
        load_parameters(encoders[-1], network.encoders[0])
    ids_of = torch.tensor(keep.kept)
    for row in (row[:most_tokens] for row in keep.rows if row):
        ids = torch.tensor([row])
        before, after = encoders[0](ids_of[ids]), encoders[1](ids)
        require(torch.equal(before, after), "the smaller vocabulary changes the states")


def _extend_positions(network: SavedNetwork, number: int, how: PositionRows) -> SavedNetwork:
    """Return a network that reads longer rows; relative positions, in buckets, stay as they are."""
    sizes, tensors = network.sizes, dict(network.encoders[0])
    most = sizes.max_position_embeddings
    is_learned = POSITIONS in tensors
    require(
        is_learned or how == "interpolate",
        f"--position-rows {how} is for learned positions; {sizes.architecture} has none: leave it "
        "out",
    )
    require(
        number >= most,
        f"--positions {number} is less than the {most} of the model; more can be made, not fewer",
    )
    longer = dataclasses.replace(sizes, max_position_embeddings=number)
    if is_learned:
        old = tensors[POSITIONS]
        if how == "repeat":
            rows = old[torch.arange(number) % len(old)]
        else:
            rows = F.interpolate(old.T[None], number, mode="linear", align_corners=True)[0].T
        tensors[POSITIONS] = rows.contiguous()
    elif isinstance(longer, ModernBertConfig):
        # "NTK-aware" interpolation, section 3.1 of Peng et al. 2023 (YaRN): the slowest pair of
        # dimensions turns as far over the longest row as before, the fastest over one token.
        factor = (number / most) ** (sizes.head_size / (sizes.head_size - 2))
        longer = dataclasses.replace(longer, global_rope_theta=longer.global_rope_theta * factor)
    return dataclasses.replace(network, sizes=longer, encoders=(tensors,))

"""Folders for sentence-transformers: an encoder up to the layer that a dev set chose, and pooling.

The layers above that layer are left out, so that the folder is smaller and faster than the encoder.
The files have the fields that all versions of sentence-transformers and other servers read.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from electra.checkpoints.saved import SavedNetwork
from electra.errors import import_extra, require
from electra.files import write_json

TOLERANCE = 1e-4
"""Greatest difference between the embeddings of sentence-transformers and ours, of any number."""


class LayerScore(NamedTuple):
    """How well one layer's states show how similar sentences are."""

    layer: int
    pooling: Literal["mean", "cls"]
    spearman: float
    """Spearman's correlation of cosine and the dev set's scores."""


class Similarity(NamedTuple):
    """The layer and the pooling that a dev set chose, or a model for retrieval was trained with."""

    layer: int
    pooling: Literal["mean", "cls"]
    scores: Sequence[LayerScore]
    """Scores of all layers and poolings; none: it was not chosen."""
    data: str
    """Name and sha256 of the dev set."""
    num_pairs: int
    sentences: Sequence[str]
    """Some texts of the dev set."""
    embeddings: np.ndarray
    """Their embeddings by that layer and pooling, which sentence-transformers must also give."""
    is_normalised: bool = False
    """Whether an embedding has the length 1."""

    @property
    def best(self) -> LayerScore:
        """The score of the chosen layer and pooling."""
        chosen = self.layer, self.pooling
        return next(each for each in self.scores if each[:2] == chosen)

    @property
    def last(self) -> LayerScore:
        """The better score of the last layer."""
        layer = max(each.layer for each in self.scores)
        return max(
            (each for each in self.scores if each.layer == layer), key=lambda each: each.spearman
        )


def cut_layers(network: SavedNetwork, num_layers: int) -> SavedNetwork:
    """Return the encoder's first layers, without a head."""
    tensors, sizes = network.encoders[0], network.sizes
    above = tuple(f"layers.{layer}." for layer in range(num_layers, sizes.num_hidden_layers))
    kept = {name: tensors[name] for name in tensors if not name.startswith(above)}
    return SavedNetwork("", dataclasses.replace(sizes, num_hidden_layers=num_layers), (kept,))


def write_pooling(folder: Path, size: int, length: int, similarity: Similarity) -> None:
    """Make a Hugging Face folder one of sentence-transformers, and compare the embeddings."""
    library = import_extra("sentence_transformers", "sentence-transformers", f"writing {folder}")
    parts = [("Transformer", ""), ("Pooling", "1_Pooling")]
    parts += [("Normalize", "2_Normalize")] if similarity.is_normalised else []
    modules: list[dict[str, Any]] = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (name, path) in enumerate(parts)
    ]
    write_json(folder / "modules.json", modules)
    settings = {"max_seq_length": length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", settings)
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    names = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    modes = {name: mode == similarity.pooling for mode, name in names.items()}
    write_json(pooling / "config.json", {"word_embedding_dimension": size, **modes})
    model = library.SentenceTransformer(str(folder), device="cpu")
    theirs = model.encode(list(similarity.sentences), show_progress_bar=False)
    difference = float(np.abs(theirs - similarity.embeddings).max())
    require(
        difference <= TOLERANCE,
        f"sentence-transformers' embeddings differ by up to {difference:.1e} from ours; they must "
        f"by {TOLERANCE:.0e} at most",
    )

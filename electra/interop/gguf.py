"""GGUF: an encoder and its vocabulary in one file, for llama.cpp and what is built on it.

llama.cpp has the graphs of ModernBERT and of BERT, which is ELECTRA's where embeddings are as wide
as hidden states. Its own converter refuses every unknown vocabulary. This module writes what its
loader reads: WordPiece with BERT's normalisation, whatever the tokens are.

llama.cpp has no second segment, and computes GELU by the tanh approximation.

Source: llama.cpp, src/llama-vocab.cpp, src/models/bert.cpp and modern-bert.cpp, conversion/bert.py.
"""

import unicodedata
import warnings
from pathlib import Path

from electra.checkpoints.names import ARCHITECTURES
from electra.checkpoints.saved import SavedNetwork
from electra.errors import import_extra, require
from electra.model.config import EncoderConfig
from electra.model.modernbert_config import ModernBertConfig
from electra.tokenizing.tokenizer import Tokenizer

GGUF_FILE = "model.gguf"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands before tokens that begin a word, where the other tokens have ## in BERT's vocabulary."""


def write_gguf(path: Path, network: SavedNetwork, tokenizer: Tokenizer, length: int) -> str:
    """Write an encoder in float32, pooled by the mean; return the name of its graph.

    `length` is that of the longest row: positions beyond it were not trained, and are left out.
    What llama.cpp does not support, and what it would cut into other tokens, is refused.
    """
    sizes = network.sizes
    _require_graph(sizes)
    tokens = _list_tokens(tokenizer)
    gguf = import_extra("gguf", "gguf", f"writing {path}")
    is_modern = isinstance(sizes, ModernBertConfig)
    name = "modern-bert" if is_modern else "bert"
    writer = gguf.GGUFWriter(path, name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(sizes.vocab_size)
    writer.add_context_length(length)
    writer.add_embedding_length(sizes.hidden_size)
    writer.add_feed_forward_length(sizes.intermediate_size)
    writer.add_block_count(sizes.num_hidden_layers)
    writer.add_head_count(sizes.num_attention_heads)
    writer.add_layer_norm_eps(sizes.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    if isinstance(sizes, ModernBertConfig):
        writer.add_sliding_window(sizes.local_attention)
        writer.add_sliding_window_pattern(sizes.global_attn_every_n_layers)
        writer.add_rope_freq_base(sizes.global_rope_theta)
        writer.add_rope_freq_base_swa(sizes.local_rope_theta)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(sizes.num_segments)
    num_more = sizes.vocab_size - len(tokens)  # rows without a token
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.UNUSED] * num_more
    roles = ("pad", "unk", "bos", "sep", "mask")
    for role, index in zip(roles, tokenizer.special_ids, strict=True):
        types[index] = gguf.TokenType.CONTROL
        getattr(writer, f"add_{role}_token_id")(index)
    writer.add_token_list([*tokens, *(f"[unused{number}]" for number in range(num_more))])
    writer.add_token_types(types)
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", tokenizer.lowercase)
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", tokenizer.strip_accents)
    graph = gguf.MODEL_ARCH.MODERN_BERT if is_modern else gguf.MODEL_ARCH.BERT
    names = gguf.get_tensor_name_map(graph, sizes.num_hidden_layers)
    body = ARCHITECTURES["modernbert" if is_modern else "bert"]
    for theirs, tensor in body.to_theirs(network.encoders[0]).items():
        trained = tensor[:length] if "position_embeddings" in theirs else tensor
        own = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(own, trained.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return name


def _require_graph(sizes: EncoderConfig) -> None:
    """Refuse an encoder that llama.cpp does not support."""
    instead = "; export without --as gguf"
    require(
        sizes.architecture in ("electra", "modernbert") and not sizes.causal,
        f"llama.cpp does not support {'a causal ' * sizes.causal}{sizes.architecture}{instead}",
    )
    require(
        sizes.embedding_size == sizes.hidden_size,
        f"llama.cpp has BERT's graph, without a projection of embeddings: embedding_size "
        f"{sizes.embedding_size} must be hidden_size {sizes.hidden_size}{instead}",
    )
    names = ("norm_bias", "attention_bias", "mlp_bias")
    biases = [name for name in names if getattr(sizes, name, False)]
    require(not biases, f"llama.cpp's ModernBERT has no {' and '.join(biases)}{instead}")


def _list_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens as llama.cpp stores them; refuse what it would cut otherwise."""
    instead = "; export without --as gguf"
    bert = tokenizer.definition.bert
    require(
        bert is not None and bool(bert["split_ideographs"]),
        f"llama.cpp reads WordPiece as BERT's alone, with each ideograph a word{instead}",
    )
    lost = [token for token in tokenizer.tokens_by_id if any(map(_is_lost, token))]
    if lost and tokenizer.strip_accents:
        warnings.warn(
            f"llama.cpp never finds {len(lost):,} of the tokens, as {lost[0]}: where it strips "
            "accents, it strips vowels of Hindi, and takes Korean syllables for their first letter",
            stacklevel=2,
        )
    special = set(tokenizer.special_tokens)
    tokens = [
        each if each in special else each[2:] if each.startswith("##") else _SPACE + each
        for each in tokenizer.tokens_by_id
    ]
    is_clear = len(tokens) == len(set(tokens))
    require(is_clear, f"llama.cpp cannot distinguish tokens with {_SPACE} from others{instead}")
    return tokens


def _is_lost(char: str) -> bool:
    """Whether llama.cpp drops it: of a decomposition only the first character is kept."""
    return unicodedata.category(char) in ("Mc", "Me") or "\u1100" <= char <= "\u11ff"

"""A TensorFlow checkpoint of ELECTRA or BERT as a folder that `electra import` reads.

    python -m tools.tensorflow CHECKPOINT FOLDER

CHECKPOINT is NAME.index or its folder, as google-research/electra and google-research/bert write
them; TensorFlow is not needed, but google-crc32c is. FOLDER gets config.json and model.safetensors
with the names of transformers, the vocab.txt beside the checkpoint, and in `generator`
the generator of the same checkpoint. google-research/electra saves no settings: a head has a width
of 64, as in all of its models.

A bundle NAME has an index, NAME.index, and data files NAME.data-00000-of-00001, .... The index is a
sorted table in blocks, as in LevelDB: keys share prefixes with the key before them, and every block
ends with its compression and a checksum. Its values are protocol buffers: a header under the empty
key, and for each tensor dtype, shape, data file, place, size and checksum. Every checksum is
compared before a byte is used.

Source: TensorFlow's core/util/tensor_bundle, core/lib/io/format and
core/protobuf/tensor_bundle.proto.
"""

import math
import re
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from electra.errors import UserError, require
from electra.files import new_folder, write_json
from electra.tokenizing.sentencepiece import read_fields, read_varint

FOOTER = 48
"""Bytes of the footer: two handles, filled up to 40 bytes, and the magic number."""
MAGIC = 0xDB4775248B80FB57
TRAILER = 5
"""Bytes after a block: its compression and its checksum."""
FLOATS: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 19: np.dtype("<f2")}
"""NumPy's dtype of TensorFlow's floating-point types, by number."""

HEAD_SIZE = 64
RENAMED = {
    r"^discriminator_predictions/dense_1/": "discriminator_predictions/dense_prediction/",
    r"^generator_predictions/output_bias$": "generator_lm_head/bias",
    r"^cls/predictions/output_bias$": "cls/predictions/bias",
    r"^cls/seq_relationship/output_weights$": "cls/seq_relationship/weight",
    r"^cls/seq_relationship/output_bias$": "cls/seq_relationship/bias",
    r"/layer_(\d+)/": r"/layer/\1/",
    r"/(kernel|gamma)$": "/weight",
    r"/beta$": "/bias",
    r"_embeddings$": "_embeddings/weight",
}
"""Parts of TensorFlow's names, and what takes their place in transformers."""
OF_DISCRIMINATOR = ("electra/encoder/", "discriminator_predictions/")
"""What a generator in the same checkpoint does not share."""


class Entry(NamedTuple):
    """Number of a tensor's dtype, its shape, and where its bytes are in the data files."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def find_bundle(path: Path) -> Path | None:
    """Return the path of a bundle, without ".index", in a folder or named by one of its files.

    None: there is none. Of several in a folder, the one that the file `checkpoint` names, or the
    only one.
    """
    if not path.is_dir():
        base = path.with_name(path.name.removesuffix(".index").partition(".data-")[0])
        return base if Path(f"{base}.index").is_file() else None
    bases = sorted(each.with_name(each.stem) for each in path.glob("*.index"))
    named = path / "checkpoint"
    if len(bases) > 1 and named.is_file():
        first = named.read_text(encoding="utf-8", errors="replace").partition('"')[2]
        bases = [base for base in bases if base.name == Path(first.partition('"')[0]).name]
    require(
        len(bases) <= 1,
        f"{path} holds several checkpoints; name one of them, such as "
        f"{bases[-1] if bases else path}",
    )
    return bases[0] if bases else None


def read_bundle(base: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Return the floating-point tensors of a bundle, float32, and the names of all others.

    Optimizer slots (Adam's moments) and partial tensors are among the others.
    """
    index = Path(f"{base}.index")
    try:
        entries, num_shards = _read_index(index.read_bytes())
        return _read_tensors(base, entries, num_shards)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or index}: {error.strerror}") from None
    except (ValueError, IndexError, TypeError, OverflowError, struct.error) as error:
        raise UserError(f"{index} is damaged, or is no checkpoint: {error}") from None


def _read_tensors(
    base: Path, entries: Mapping[str, Entry], num_shards: int
) -> tuple[dict[str, Tensor], list[str]]:
    tensors, others = {}, []
    shards: dict[int, np.memmap[Any, Any]] = {}
    for name, entry in entries.items():
        if entry.dtype not in FLOATS or name.rpartition("/")[2] in ("adam_m", "adam_v"):
            others.append(name)
            continue
        path = Path(f"{base}.data-{entry.shard:05}-of-{num_shards:05}")
        if entry.shard not in shards:
            require(path.is_file(), f"{path} is missing: it holds tensors of {base.name}")
            shards[entry.shard] = np.memmap(path, mode="r")
        raw = shards[entry.shard][entry.offset : entry.offset + entry.size].tobytes()
        dtype = FLOATS[entry.dtype]
        require(
            len(raw) == entry.size == dtype.itemsize * math.prod(entry.shape)
            and _checksum(raw) == entry.checksum,
            f"{path}: {name} is damaged",
        )
        values = np.frombuffer(raw, dtype).reshape(entry.shape).astype(np.float32)
        tensors[name] = torch.from_numpy(values)
    return tensors, others


def _checksum(content: bytes) -> int:
    """Return the CRC-32C of some bytes as files hold it: rotated, and a constant added."""
    value = int(google_crc32c.value(content))
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read_index(content: bytes) -> tuple[dict[str, Entry], int]:
    """Return the entry of each tensor, and the number of data files."""
    footer = content[-FOOTER:]
    require(len(footer) == FOOTER, "the file is too short")
    require(struct.unpack("<Q", footer[40:])[0] == MAGIC, "the magic number is wrong")
    handles = BytesIO(footer)
    read_varint(handles), read_varint(handles)  # where a block of TensorFlow's own is
    entries: dict[str, Entry] = {}
    num_shards = 0
    for _, handle in _read_block(content, handles):
        for key, value in _read_block(content, BytesIO(handle)):
            if key:
                entries[key.decode("utf-8")] = _read_entry(value)
                continue
            header = dict(read_fields(value))
            require(header.get(2, 0) == 0, "the numbers are big-endian")
            num_shards = header.get(1, 0)
    require(num_shards > 0, "the header is missing")
    return entries, num_shards


def _read_block(content: bytes, handle: BytesIO) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each entry of the block to which a handle points."""
    offset, size = read_varint(handle), read_varint(handle)
    block = content[offset : offset + size]
    trailer = content[offset + size : offset + size + TRAILER]
    require(len(trailer) == TRAILER, "a block ends outside the file")
    compression, checksum = struct.unpack("<BI", trailer)
    require(_checksum(block + trailer[:1]) == checksum, "a block has another checksum")
    require(compression == 0, "a block is compressed, which TensorFlow does not do here")
    require(len(block) >= 4, "a block is too short")
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (num_restarts + 1)
    stream, key = BytesIO(block), b""
    while stream.tell() < end:
        shared, own, length = (read_varint(stream) for _ in range(3))
        key = key[:shared] + stream.read(own)
        yield key, stream.read(length)


def _read_entry(content: bytes) -> Entry:
    fields = dict(read_fields(content))
    require(7 not in fields, "a tensor is saved in slices")
    dims = [dim for number, dim in read_fields(fields.get(2, b"")) if number == 2]
    shape = tuple(dict(read_fields(dim)).get(1, 0) for dim in dims)
    dtype, shard, offset, size = (fields.get(n, 0) for n in (1, 3, 4, 5))
    return Entry(dtype, shape, shard, offset, size, int.from_bytes(fields.get(6, b""), "little"))


def convert(checkpoint: Path, out: Path) -> list[str]:
    """Write the folder of a checkpoint; return the names of what is no weight of the model."""
    base = find_bundle(checkpoint)
    if base is None:
        raise UserError(f"{checkpoint} is no TensorFlow checkpoint: it has no NAME.index")
    tensors, others = read_bundle(base)
    own = {name: each for name, each in tensors.items() if not name.startswith("generator/")}
    inner = {
        name.replace("generator/", "electra/", 1): each
        for name, each in tensors.items()
        if name.startswith("generator/")
    }
    with new_folder(out) as folder:
        if inner:  # `own` also has the generator's head and shared embeddings
            shared = {n: each for n, each in own.items() if not n.startswith(OF_DISCRIMINATOR)}
            own = {n: each for n, each in own.items() if not n.startswith("generator_")}
            (folder / "generator").mkdir()
            write_model(folder / "generator", shared | inner)
        write_model(folder, own)
        if (vocabulary := base.with_name("vocab.txt")).is_file():
            shutil.copy(vocabulary, folder)
    return others


def write_model(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and weights of variables under the names of google-research."""
    kind = "bert" if any(name.startswith("bert/") for name in tensors) else "electra"
    theirs = {}
    for name, tensor in tensors.items():
        found = name
        for pattern, replacement in RENAMED.items():
            found = re.sub(pattern, replacement, found)
        values = tensor.T if name.endswith("/kernel") else tensor
        theirs[found.replace("/", ".")] = values.contiguous()

    def shape(name: str) -> torch.Size:
        require(f"{kind}.{name}" in theirs, f"the checkpoint lacks {kind}.{name}: it is no encoder")
        return theirs[f"{kind}.{name}"].shape

    inner_size, hidden_size = shape("encoder.layer.0.intermediate.dense.weight")
    require(
        hidden_size % HEAD_SIZE == 0,
        f"hidden states of {hidden_size} are no whole number of heads of {HEAD_SIZE}",
    )
    vocab_size, embedding_size = shape("embeddings.word_embeddings.weight")
    layers = {re.match(rf"{kind}\.encoder\.layer\.\d+\.", name) for name in theirs}
    config = {
        "model_type": kind,
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": len({each[0] for each in layers if each}),
        "num_attention_heads": hidden_size // HEAD_SIZE,
        "intermediate_size": inner_size,
        "max_position_embeddings": shape("embeddings.position_embeddings.weight")[0],
        "type_vocab_size": shape("embeddings.token_type_embeddings.weight")[0],
    }
    write_json(folder / "config.json", config)
    save_file(theirs, folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    try:
        others = convert(*map(Path, sys.argv[1:3]))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"wrote {sys.argv[2]}; no weights of the model: {', '.join(others[:5])}, ...")

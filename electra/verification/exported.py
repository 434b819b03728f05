"""Claims of an export: the weights and the answers of the model that it came from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from electra.checkpoints.checkpoint import read_tensors
from electra.checkpoints.finetuned import Finetuned, read_finetuned
from electra.checkpoints.folder import read_model, read_pretrained
from electra.checkpoints.names import DISCRIMINATOR_FILE, HEAD_FILE
from electra.checkpoints.saved import WEIGHTS_FILE, SavedModel, SavedNetwork, read_config_file
from electra.errors import count_of, require
from electra.files import HASHES, read_object
from electra.inference.network import load_kept, load_network
from electra.interop.export import Form, Outgoing, convert, describe_finetuned, describe_pretrained
from electra.pretraining.replay import Absent, find_beside
from electra.training.machine import Machine
from electra.verification.claims import Claims

ANSWER_TOLERANCE = 1e-5
"""Largest difference of a state or a logit."""
ROWS, LENGTH = 4, 24
"""Rows of fixed tokens, and the tokens of each between [CLS] and [SEP]."""


def verify_export(claims: Claims, folder: Path) -> None:
    """Prove the claims of a folder of `electra export`."""
    claims.compare_hashes(folder)
    gguf = [*folder.glob("*.gguf")]
    with claims.prove("config.json and weights: they are one model") as tell:
        if gguf:
            raise Absent("llama.cpp reads model.gguf; electra does not")
        if read_config_file(folder).get("model_type") == "bert":
            raise Absent("electra import reads classes of BERT")
        found = read_pretrained(folder)
        tell(count_of(len({**found.tensors}), "tensor"))
    source: SavedModel | None = None
    with claims.prove("electra.json: the model that it came from is at hand") as tell:
        source = find_source(folder)
        tell(source.source)
    if source is None:
        return
    with claims.prove("model.safetensors: the weights are those of that model") as tell:
        if gguf:
            raise Absent("llama.cpp reads model.gguf; electra does not")
        tell(_compare_weights(folder, source))
    with claims.prove("the answers to fixed tokens are those of that model") as tell:
        if gguf or read_config_file(folder).get("model_type") == "bert":
            raise Absent("electra does not read this form")
        if (dtype := _dtype_of(folder)) != torch.float32:
            raise Absent(f"the weights are rounded to {dtype}, and so are the answers")
        tell(_compare_answers(folder, source))


def find_source(folder: Path) -> SavedModel:
    """Return the run, at its step, or the fine-tuning, at its seed, that a folder came from."""
    path = folder / HASHES
    told = str(read_object(path).get("source", "")) if path.is_file() else ""
    if not told:
        raise Absent("it does not say where it came from")
    run, at_step, step = told.rpartition(" at step ")
    if at_step:
        checkpoint = find_beside(folder, run) / "checkpoints" / f"step-{int(step):08d}"
        if not checkpoint.is_dir():
            raise Absent(f"{checkpoint} is not kept")
        return read_pretrained(checkpoint)
    run, at_seed, seed = told.rpartition(" at seed ")
    if at_seed:
        return read_finetuned(find_beside(folder, run), int(seed))
    raise Absent(f"it came from {told}, which is neither a run nor a fine-tuning")


def _outgoing(source: SavedModel) -> dict[str, Outgoing]:
    """Return what is written of a model, by folder."""
    if isinstance(source, Finetuned):
        return {"": describe_finetuned(source)}
    kept, generator = describe_pretrained(source)
    return {"": kept} | ({"generator": generator} if generator else {})


def _compare_weights(folder: Path, source: SavedModel) -> str:
    """Return how many tensors are those of the source; refuse others."""
    form: Form = "bert" if read_config_file(folder).get("model_type") == "bert" else "huggingface"
    number = 0
    for place, whole in _outgoing(source).items():
        if place and not (folder / place).is_dir():
            continue  # of a form that has no generator
        layers = read_config_file(folder / place).get("num_hidden_layers")
        cuts = (folder / "modules.json").is_file()
        outgoing = whole.cut(int(layers)) if cuts and layers else whole
        _, tensors, beside = convert(outgoing, form)
        dtype = _dtype_of(folder / place)
        number += _require_equal(folder / place / WEIGHTS_FILE, tensors, dtype)
        if beside:
            name = DISCRIMINATOR_FILE if outgoing.kind == "PreTraining" else HEAD_FILE
            number += _require_equal(folder / place / name, beside, dtype)
    return count_of(number, "tensor")


def _dtype_of(folder: Path) -> torch.dtype:
    """Return what the weights of a folder are stored in."""
    dtype: torch.dtype = getattr(torch, str(read_config_file(folder).get("dtype", "float32")))
    return dtype


def _require_equal(path: Path, expected: Mapping[str, Tensor], dtype: torch.dtype) -> int:
    found = read_tensors(path)
    require({*found} == {*expected}, f"{path} holds tensors of other names")
    for name in expected:
        right = expected[name].to(dtype).float().contiguous()
        same = torch.equal(found[name].float(), right)
        require(same, f"{path}: {name} is another tensor than that of the model")
    return len(found)


@torch.inference_mode()
def _compare_answers(folder: Path, source: SavedModel) -> str:
    """Return how closely the answers agree; refuse others."""
    model, vocab_size = read_model(folder), source.tokenizer.vocab_size
    places = range(min(LENGTH, model.sequence_length - 2))
    rows = [[(7 * t * t + 13 * row) % vocab_size for t in places] for row in range(ROWS)]
    pairs = [(model.kept, source.kept), (model.masked_lm, source.masked_lm)]
    heads = [(one, other) for one, other in pairs if one and other and one.head and other.head]
    if heads and not isinstance(source, Finetuned):
        answers = [(_ask(model, a, rows), _ask(source, b, rows)) for a, b in heads]
    else:
        own, theirs = load_kept(model, Machine()), load_kept(source, Machine())
        answers = [(own.encode(rows), theirs.encode(rows, own.num_layers))]
    largest = max(float((one - other).abs().max()) for one, other in answers)
    require(largest <= ANSWER_TOLERANCE, f"{folder}: its answers differ by up to {largest:.1e}")
    return f"{ROWS} rows of {len(places)} tokens, to {largest:.0e}"


def _ask(model: SavedModel, network: SavedNetwork, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return the logits of each position, or the log-probabilities of all tokens there."""
    loaded = load_network(model, network, Machine())
    if network.predicts in ("tokens", "next"):
        return loaded.log_probs(loaded.encode(rows).flatten(0, 1))
    return loaded.judge(rows)

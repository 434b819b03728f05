"""ONNX: a network, encoder and head, as one function of its inputs; written, and compared.

Shape suffixes: B rows of the batch, C choices of a row, L positions, H hidden size.
"""

import logging
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.checkpoints.checkpoint import load_parameters
from electra.errors import import_extra, require
from electra.model.batch import pad_rows
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead, Kind
from electra.model.task_heads import ClassifierHead, PairHead, SpanHead
from electra.tokenizing.tokenizer import Tokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def list_inputs(sizes: EncoderConfig, head: nn.Module | None) -> tuple[str, ...]:
    """Return the names of a network's inputs."""
    has_segments = sizes.has_segments or isinstance(head, PairHead)
    return INPUTS if has_segments else INPUTS[:2]


class Graph(nn.Module):
    """A network with the outputs that transformers' class of its kind has, if there is one."""

    def __init__(
        self,
        sizes: EncoderConfig,
        encoder: Mapping[str, Tensor],
        kind: Kind = "",
        head: nn.Module | None = None,
        *,
        is_number: bool = False,
        borders: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)  # of plain layers, which torch can trace
        load_parameters(self.encoder, encoder)
        self.kind, self.head, self.is_number, self.borders = kind, head, is_number, [*borders]
        self.is_pair = isinstance(head, PairHead)
        self.inputs = list_inputs(sizes, head)
        self.eval().requires_grad_(False)

    @property
    def is_per_token(self) -> bool:
        """Whether there is an output at every token."""
        return self.kind not in ("SequenceClassification", "MultipleChoice")

    @property
    def longest(self) -> int:
        """Longest row of a comparison, tokens."""
        return min(self.encoder.config.max_position_embeddings, MAX_LENGTH)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        if self.kind == "QuestionAnswering":
            return "start_logits", "end_logits"
        if self.has_states:  # first, since clients that embed texts take the first output
            return "last_hidden_state", "logits"
        return ("logits",) if self.kind else ("last_hidden_state",)

    @property
    def has_states(self) -> bool:
        """Whether hidden states are outputs beside the logits, as for pre-trained networks."""
        return self.kind in ("PreTraining", "MaskedLM", "CausalLM")

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the outputs, float32."""
        head = self.head
        if self.kind == "MultipleChoice":
            assert isinstance(head, ClassifierHead)
            types = None if token_type_ids is None else token_type_ids.flatten(0, 1)
            mask = attention_mask.flatten(0, 1)
            logit_B1 = head(self.encoder(input_ids.flatten(0, 1), mask, types), mask)
            return logit_B1.view(input_ids.shape[0], input_ids.shape[1])
        hidden_BLH = self.encoder(input_ids, attention_mask, token_type_ids)
        if head is None:
            return hidden_BLH
        if isinstance(head, PairHead):
            embeddings = self.encoder.embeddings(input_ids, token_type_ids)
            states = torch.cat([hidden_BLH, embeddings], dim=-1)
            return head(states, attention_mask, token_type_ids)
        if isinstance(head, ClassifierHead):
            return head(hidden_BLH, attention_mask)
        if isinstance(head, GeneratorHead):
            table_VE = self.encoder.embeddings.tokens.weight
            return hidden_BLH, F.linear(head(hidden_BLH), table_VE, head.bias)
        if isinstance(head, SpanHead):  # transformers' class does not forbid positions
            start_BL, end_BL = head.dense(head.inner(hidden_BLH)).unbind(dim=-1)
            return start_BL, end_BL
        logits = head(hidden_BLH)
        return (hidden_BLH, logits) if self.has_states else logits


TOLERANCE = 1e-4
"""Greatest difference between ONNX in float32 and torch, of any output at any token."""
LEAST_AGREEMENT = 0.99
"""Least share of decisions in which int8 agrees with float32."""
SUSPECTED, LEAST_RANKED = 0.15, 0.95
"""Share of tokens that a discriminator is made to suspect by the second, harder comparison, and the
least agreement there. The first one alone would be met by the constant answer "original"."""
COSINE, NEAR = 0.99, 0.02
"""Agreement where there is no decision: cosine of hidden states; difference of a
number as a share of the numbers' range."""
NUM_SHAPES = 20
MAX_LENGTH = 1024
"""Longest row of the comparison, tokens, if the network reads longer ones."""
MAX_TOKENS = 20_000
"""Most tokens, and most lines, of a text that int8 is compared on."""
TEXT_ROWS = 16
TEXT_LENGTH = 128
LOW = -1e30
"""Used for minus infinity, whose difference from itself is NaN."""
Rows = tuple[Tensor, Tensor, Tensor]
"""Inputs of a graph: ids, mask and segments, int64."""
Agreements = dict[str, dict[str, Any]]
"""How well each file agrees with its network in torch, by the file's name; for the card."""


def write_onnx(
    folder: Path,
    graph: Graph,
    tokenizer: Tokenizer,
    text: Sequence[str] = (),
    *,
    is_beside: bool = False,
) -> Agreements:
    """Write onnx/model.onnx, and if a text is given onnx/model_int8.onnx, into a folder.

    For a network beside another one, a file in int8 that does not agree is left out.
    """
    path = folder / "onnx" / "model.onnx"
    for module in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(module, "onnx", f"writing {path}")
    path.parent.mkdir()
    trace(path, graph, tokenizer)
    difference = compare_shapes(path, graph)
    require(  # not met by NaN either
        difference <= TOLERANCE,
        f"{path.name} differs by up to {difference:.1e} from the network in torch; it must be "
        f"{TOLERANCE:.0e} at most",
    )
    facts: dict[str, Any] = {"difference": difference, "longest": graph.longest}
    facts |= {"inputs": graph.inputs, "outputs": graph.outputs}
    found = {path.name: facts}
    if not text:
        return found
    path = path.with_name("model_int8.onnx")
    quantise(path.with_name("model.onnx"), path)
    agreement = compare_text(path, graph, tokenizer, text)
    found[path.name] = agreement
    for name, least in (("agreement", LEAST_AGREEMENT), ("agreement_ranked", LEAST_RANKED)):
        share = agreement.get(name, 1.0)
        if is_beside and not share >= least:
            path.unlink()
            agreement["least"] = least
            return found
        require(
            share >= least,
            f"int8 agrees with float32 in {share:.2%} of {agreement['decisions']:,} decisions; "
            f"it must be {least:.0%} at least; export without --int8",
        )
    shutil.copyfile(path, path.with_name("model_quantized.onnx"))  # what browsers ask for
    return found


def compare_shapes(path: Path, graph: Graph) -> float:
    """Return the greatest difference from the network, over NUM_SHAPES shapes with padding.

    For a regression it is relative, since any unit is possible.
    """
    worst = np.float32(0)
    for ours, theirs in _run_both(path, graph, _draw_rows(graph)):
        unit = np.abs(theirs).max() if graph.is_number else 1
        worst = np.maximum(worst, np.abs(ours - theirs).max() / unit)
    return float(worst)


def compare_text(
    path: Path, graph: Graph, tokenizer: Tokenizer, text: Sequence[str]
) -> dict[str, Any]:
    """Return how often a file decides as the network does, on real text.

    A decision is whether a token is replaced, the likeliest token at every seventh position, which
    is masked, the likeliest tag of a token or label of a row, whether each of several labels
    applies, or the start and the end of an answer.
    A discriminator suspects few tokens of real text, so it is also compared at the threshold at
    which it suspects SUSPECTED of them.

    Returns:
        "decisions": their number; "agreement": the share of equal ones; with hidden states beside
        the logits, their mean "cosine"; for a discriminator, "agreement_ranked" (at that threshold)
        and "suspected", the share that the network suspects.
    """
    is_choice = graph.kind not in ("", "PreTraining") and not graph.is_number
    only = tokenizer.mask_id if graph.kind == "MaskedLM" else None
    decided, states = [], []
    for number, pair in enumerate(_run_both(path, graph, _make_rows(graph, tokenizer, text), only)):
        if graph.has_states and number % 2 == 0:
            states.append(pair)
        else:
            ours, theirs = pair
            if graph.borders:
                pair = (ours >= graph.borders).ravel(), (theirs >= graph.borders).ravel()
            elif is_choice:
                pair = ours.argmax(-1), theirs.argmax(-1)
            decided.append(pair)
    is_long = any(len(ours) for ours, _ in decided)
    require(is_long, "the text of --int8 has no line that is long enough to compare")
    a, b = _join(decided)
    facts: dict[str, Any] = {"decisions": len(a)}
    if states:
        facts["cosine"] = float(_cosines(*_join(states)).mean())
    same = a == b
    if graph.kind == "PreTraining":
        threshold = np.quantile(a, 1 - SUSPECTED)
        same = (a > 0) == (b > 0)
        facts["agreement_ranked"] = float(((a > threshold) == (b > threshold)).mean())
        facts["suspected"] = float((a > 0).mean())
    elif not graph.kind:
        same = _cosines(a, b) >= COSINE
    elif graph.is_number:
        same = np.abs(a - b) <= NEAR * np.ptp(a)
    return facts | {"agreement": float(same.mean())}


def _join(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = zip(*pairs, strict=True)
    return np.concatenate(ours), np.concatenate(theirs)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.asarray((a * b).sum(axis=-1) / norms)


def open_session(path: Path, threads: int = 0) -> Any:
    """Return an onnxruntime session on the CPU; 0 threads: as many as torch has."""
    onnxruntime = import_extra("onnxruntime", "onnx", path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@torch.inference_mode()
def _run_both(
    path: Path, graph: Graph, batches: Iterable[Rows], only: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each output of network and file for each batch, without padding, or at id `only`."""
    session = open_session(path)
    read = {each.name for each in session.get_inputs()}
    for rows in batches:
        named = zip(INPUTS, rows, strict=True)
        theirs = session.run(None, {name: each.numpy() for name, each in named if name in read})
        outputs = graph(*rows)
        ours = outputs if isinstance(outputs, tuple) else (outputs,)
        counted = rows[1].numpy().astype(bool)
        if only is not None:
            counted &= rows[0].numpy() == only
        for pair in zip((each.numpy() for each in ours), theirs, strict=True):
            if graph.kind == "QuestionAnswering":
                pair = np.where(counted, pair[0], LOW), np.where(counted, pair[1], LOW)
            elif graph.is_per_token:
                pair = pair[0][counted], pair[1][counted]
            yield pair


def _draw_rows(graph: Graph) -> Iterator[Rows]:
    """Yield random rows, from the shortest to the longest; every other batch has padding."""
    rng, sizes = torch.Generator().manual_seed(0), graph.encoder.config
    shortest = 2 if graph.is_pair else 1
    for number in range(NUM_SHAPES):
        length = round(shortest * (graph.longest / shortest) ** (number / (NUM_SHAPES - 1)))
        # One row of a masked language model: its logits are of a whole vocabulary.
        shape: tuple[int, ...] = (1 if graph.kind == "MaskedLM" else 1 + number % 5, length)
        if graph.kind == "MultipleChoice":
            shape = (1 + number % 3, 1 + number % 4, length)
        ids = torch.randint(sizes.vocab_size, shape, generator=rng)
        ends = torch.full(shape[:-1], length)
        if number % 2:  # rows that end early
            ends = torch.randint(shortest, length + 1, shape[:-1], generator=rng)
        place = torch.arange(length)
        mask = (place < ends[..., None]).long()
        types = torch.randint(sizes.num_segments, shape, generator=rng)
        if graph.is_pair:  # both texts have tokens
            starts = 1 + (torch.rand(shape[:-1], generator=rng) * (ends - 1)).long()
            types = (place >= starts[..., None]) * mask
        yield ids, mask, types


def _make_rows(graph: Graph, tokenizer: Tokenizer, text: Sequence[str]) -> Iterator[Rows]:
    """Yield batches of lines; a row of a pair, question or choice is two lines in succession."""
    longest = min(TEXT_LENGTH, graph.encoder.config.max_position_embeddings) - 3
    is_pair = graph.is_pair or graph.kind in ("QuestionAnswering", "MultipleChoice")
    most = longest // 2 if is_pair else longest
    lines = [ids[:most] for ids in tokenizer.encode_batch(text[:MAX_TOKENS])]
    rows, types = [], []
    for number, own in enumerate(lines):
        row = [tokenizer.cls_id, *own, tokenizer.sep_id]
        if graph.kind == "MaskedLM":
            row[3:-1:7] = [tokenizer.mask_id] * len(row[3:-1:7])
        other = [*lines[(number + 1) % len(lines)], tokenizer.sep_id] if is_pair else []
        rows.append(row + other)
        types.append([0] * len(row) + [1] * len(other))
    num_tokens = 0
    for first in range(0, len(rows), TEXT_ROWS):
        size = min(TEXT_ROWS, len(rows) - first)
        if graph.kind == "MultipleChoice":
            size = size // 4 * 4
        if not size or num_tokens >= MAX_TOKENS:
            return
        part = slice(first, first + size)
        num_tokens += sum(map(len, rows[part]))
        ids, mask, segments, _ = pad_rows(rows[part], tokenizer.pad_id, types[part]).inputs
        assert mask is not None
        shape = (-1, 4, ids.shape[1]) if graph.kind == "MultipleChoice" else ids.shape
        yield ids.view(shape), mask.long().view(shape), segments.view(shape)


def trace(path: Path, graph: Graph, tokenizer: Tokenizer) -> None:
    """Write a graph with dynamic batch, choices and length."""
    names = {0: "batch", 1: "length"}
    shape: tuple[int, ...] = (2, min(16, graph.encoder.config.max_position_embeddings - 1))
    if graph.kind == "MultipleChoice":
        names, shape = {0: "batch", 1: "choices", 2: "length"}, (2, 3, shape[1])
    longest = graph.encoder.config.max_position_embeddings
    dynamic = {
        axis: torch.export.Dim(name, max=longest) if name == "length" else torch.export.Dim(name)
        for axis, name in names.items()
    }
    ids = torch.full(shape, tokenizer.mask_id)
    rows = ids, torch.ones_like(ids), torch.zeros_like(ids)
    with _quiet():
        torch.onnx.export(
            graph,
            rows[: len(graph.inputs)],
            path,
            input_names=graph.inputs,
            output_names=graph.outputs,
            dynamic_shapes=dict.fromkeys(graph.inputs, dynamic),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def quantise(source: Path, path: Path) -> None:
    """Write the products with weights in int8, with a scale for each column of a weight.

    Weights have 7 bits: CPUs without VNNI instructions add two 8-bit products in 16 bits, which
    overflows and changes more decisions than the lost bit. The table of embeddings is not changed.
    """
    with _quiet():
        quantization = import_extra("onnxruntime.quantization", "onnx", f"writing {path}")
        model = import_extra("onnx", "onnx", f"writing {path}").load(source)
        # The quantiser transposes weights and keeps their names, so the shapes that the exporter
        # noted become wrong; they are inferred again.
        del model.graph.value_info[:]
        quantization.quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=True,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the messages of torch's exporter and onnxruntime."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

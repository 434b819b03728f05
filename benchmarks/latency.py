"""Latency of a classifier of texts in torch, ONNX and int8, beside transformers.

    python -m benchmarks.latency vocabulary --text texts.txt --out results/latency.json

The networks have the presets' sizes and random weights, which do not affect the time. The time
runs from texts to logits, with the tokenizer's work. All variants pad to the longest text of a
batch, have the same threads, and must give the same logits before they are timed. They take turns
in one process, each turn with other texts, so that other load on the machine affects all of them.

- torch: our encoder as `electra` answers with it, float32.
- ONNX, int8: the files that `electra export` writes, in onnxruntime.
- transformers: its model in evaluation mode without gradients, called with the batch.
- pipeline: transformers' pipeline, which many programs use.
"""

import argparse
import dataclasses
import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra.checkpoints.manifest import find_commit
from electra.checkpoints.saved import SavedNetwork
from electra.files import write_json, write_text
from electra.inference.network import LoadedEncoder
from electra.interop.export import Outgoing, write_plain
from electra.interop.onnx import INPUTS, Graph, open_session, quantise, trace
from electra.model.config import EncoderConfig
from electra.model.encoder import Encoder
from electra.model.forms import choose_layers
from electra.model.initialisation import init_weights
from electra.model.task_heads import ClassifierHead
from electra.presets import PRESETS
from electra.reports.rendering import Table, to_markdown
from electra.tasks.family import name_outputs
from electra.text.table_files import read_texts
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine

LENGTH = 128
"""Tokens at which texts are cut, [CLS] and [SEP] included."""
CLASSES = ("no", "yes")
TOLERANCES = {"int8": 0.2}
"""Greatest difference from transformers' logits, as a share of their standard deviation; 1e-4 of
the others."""
Ask = Callable[[Sequence[str]], np.ndarray]
"""Texts in, logits (texts, classes) out."""


def build(folder: Path, sizes: EncoderConfig, tokenizer: Tokenizer, threads: int) -> dict[str, Ask]:
    """Write a classifier with random weights, and return the ways to ask it.

    Args:
        folder: An empty folder.
        sizes: Sizes of the encoder.
        tokenizer: The tokenizer.
        threads: Threads of each.
    """
    import transformers

    rng = torch.Generator().manual_seed(0)
    fused = choose_layers("auto", sizes.architecture, torch.device("cpu"), is_plain=False)
    encoder = Encoder(sizes, layer=fused).eval()
    init_weights(encoder, 0.05, rng)
    weight = torch.randn(len(CLASSES), sizes.hidden_size, generator=rng)
    classifier = ClassifierHead(sizes, len(CLASSES), 0.0, "cls")
    with torch.no_grad():
        classifier.dense.weight.copy_(weight)
        classifier.dense.bias.zero_()
    parameters = {name: each.detach() for name, each in encoder.named_parameters()}
    head = {name: each.detach() for name, each in classifier.named_parameters()}
    network = SavedNetwork("", sizes, (parameters,), head)
    outgoing = Outgoing(
        *(network, "SequenceClassification", classifier, tokenizer, LENGTH, "random weights"),
        settings={"problem_type": "single_label_classification", **name_outputs(CLASSES)},
    )
    write_plain(folder, outgoing)
    graph = Graph(sizes, parameters, "SequenceClassification", classifier)
    trace(folder / "model.onnx", graph, tokenizer)
    quantise(folder / "model.onnx", folder / "model_int8.onnx")
    loaded = LoadedEncoder(
        encoder=encoder, tokenizer=tokenizer, max_tokens=LENGTH - 2, machine=Machine()
    )
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    encode = transformers.AutoTokenizer.from_pretrained(folder)
    pipeline = transformers.pipeline(
        "text-classification", model=theirs, tokenizer=encode, function_to_apply="none", top_k=None
    )

    def cut(texts: Sequence[str]) -> list[list[int]]:
        return [ids[: LENGTH - 2] for ids in tokenizer.encode_batch(list(texts))]

    @torch.inference_mode()
    def ask_torch(texts: Sequence[str]) -> np.ndarray:
        return (loaded.encode(cut(texts))[:, 0] @ weight.T).numpy()

    def ask_onnx(path: Path) -> Ask:
        session = open_session(path, threads)

        def ask(texts: Sequence[str]) -> np.ndarray:
            input_ids_BL, mask_BL = loaded.pad(cut(texts))
            rows = input_ids_BL, mask_BL.long(), torch.zeros_like(input_ids_BL)
            inputs = {name: each.numpy() for name, each in zip(INPUTS, rows, strict=True)}
            return session.run(None, inputs)[0]

        return ask

    @torch.inference_mode()
    def ask_transformers(texts: Sequence[str]) -> np.ndarray:
        rows = encode(list(texts), truncation=True, padding=True, return_tensors="pt")
        return theirs(**rows).logits.numpy()

    def ask_pipeline(texts: Sequence[str]) -> np.ndarray:
        found: Any = pipeline(list(texts), truncation=True, batch_size=len(texts))
        by_name = [{each["label"]: each["score"] for each in answer} for answer in found]
        return np.array([[answer[name] for name in CLASSES] for answer in by_name])

    return {
        "torch": ask_torch,
        "ONNX": ask_onnx(folder / "model.onnx"),
        "int8": ask_onnx(folder / "model_int8.onnx"),
        "transformers": ask_transformers,
        "pipeline": ask_pipeline,
    }


def check_answers(ways: dict[str, Ask], texts: Sequence[str]) -> dict[str, float]:
    """Return the greatest difference of each way from transformers, in standard deviations.

    Raises:
        SystemExit: One of them computes something else.
    """
    expected = ways["transformers"](texts)
    scale = float(expected.std())
    found = {}
    for name, ask in ways.items():
        found[name] = float(np.abs(ask(texts) - expected).max()) / scale
        if not found[name] <= TOLERANCES.get(name, 1e-4):
            raise SystemExit(f"{name} differs from transformers by {found[name]:.1e}")
    return found


def measure(
    ways: dict[str, Ask], texts: Sequence[str], batch: int, repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each way for every repeat; three warm-up repeats are left out."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for repeat in range(repeats + 3):
        asked = [texts[(repeat * batch + n) % len(texts)] for n in range(batch)]
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            ways[name](asked)
            if repeat >= 3:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--presets", nargs="+", default=["small"], choices=[*PRESETS])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    tokenizer, texts = Tokenizer.load(arguments.tokenizer), read_texts(arguments.text)
    lengths = [min(len(ids) + 2, LENGTH) for ids in tokenizer.encode_batch(texts)]
    results: list[dict[str, Any]] = []
    for preset in arguments.presets:
        sizes = dataclasses.replace(PRESETS[preset].model, vocab_size=tokenizer.vocab_size)
        with tempfile.TemporaryDirectory() as folder:
            ways = build(Path(folder), sizes, tokenizer, arguments.threads)
            differences = check_answers(ways, texts[:64])
            for batch in arguments.batches:
                seconds = measure(ways, texts, batch, arguments.repeats)
                for name, each in seconds.items():
                    quartiles = statistics.quantiles(each, n=4)
                    results.append(
                        {
                            "preset": preset,
                            "batch": batch,
                            "way": name,
                            "seconds": {"median": quartiles[1], "quartiles": quartiles[::2]},
                            "difference": differences[name],
                        }
                    )
    packages = ("torch", "transformers", "onnxruntime", "onnxscript", "tokenizers")
    record = {
        "device": Machine(threads=arguments.threads).name,
        "machine": platform.platform(),
        "commit": find_commit(),
        "versions": {name: version(name) for name in packages},
        "repeats": arguments.repeats,
        "texts": len(texts),
        "mean_tokens": statistics.mean(lengths),
        "results": results,
    }
    rows = [
        [
            each["preset"],
            str(each["batch"]),
            each["way"],
            f"{1e3 * each['seconds']['median']:.1f} "
            f"({' to '.join(f'{1e3 * value:.1f}' for value in each['seconds']['quartiles'])})",
            f"{each['batch'] / each['seconds']['median']:,.0f}",
            f"{each['difference']:.1e}",
        ]
        for each in results
    ]
    headers = ["preset", "batch", "in", "ms a call, median (quartiles)", "texts/s", "difference"]
    text = (
        f"{record['device']}, float32 but for int8, commit {record['commit']}. "
        f"{len(texts):,} texts of {record['mean_tokens']:.0f} tokens on average, "
        f"{arguments.repeats} calls each. Difference: the greatest of 64 texts from transformers' "
        f"logits, in standard deviations.\n\n{to_markdown(Table(headers, rows))}"
    )
    if arguments.out:
        write_json(arguments.out, record)
        write_text(arguments.out.with_suffix(".md"), text + "\n")
    print(text)


if __name__ == "__main__":
    main()

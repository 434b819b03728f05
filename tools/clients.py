"""docs/CLIENTS.md, written from the list of clients that tests run: `python -m tools.clients`.

tests/test_clients.py runs the lines of each client as the page shows them, on folders that the
commands wrote, and compares the answers with ours.
"""

import re
from pathlib import Path
from typing import NamedTuple

from electra.errors import UserError
from electra.files import write_text
from electra.reports.rendering import Table, to_markdown

PAGE = Path(__file__).parent.parent / "docs" / "CLIENTS.md"
BODIES = {"electra": "ELECTRA", "modernbert": "ModernBERT", "deberta-v2": "DeBERTa"}
"""Our name of each body, and the field's."""
HEADS = {
    "encoder": "embedding (mean of the states)",
    "classifier": "classifier of texts",
    "generator": "masked tokens (generator)",
}
"""Folder, and what is asked of it."""
EXACT, INT8 = 1e-5, 0.05
"""Greatest difference from ours, of any number of an embedding or of any probability."""


class Environment(NamedTuple):
    """What clients need beside this project's own packages: pinned, and without dependencies."""

    packages: tuple[str, ...] = ()
    is_node: bool = False


OWN = Environment()
OLDER = Environment(
    (
        *("transformers==4.57.6", "huggingface-hub==0.36.0", "tokenizers==0.22.1"),
        *("sentence-transformers==5.6.1", "optimum==2.0.0", "optimum-onnx==0.1.0"),
        *("datasets==4.4.1", "httpx==0.28.1", "httpcore==1.0.9"),
    )
)
LIGHT = Environment(("fastembed==0.9.1", "py-rust-stemmers==0.1.8", "mmh3==5.3.1", "loguru==0.7.3"))
NODE = Environment(("@huggingface/transformers@4.3.1",), is_node=True)


class Client(NamedTuple):
    """A program that loads a folder, and the lines that do."""

    name: str
    version: str
    """As pinned; of the project's own environment, the major version."""
    environment: Environment
    folder: str
    """encoder, classifier or generator."""
    code: str
    """Lines that load the folder `exported` and answer `texts`."""
    bodies: tuple[str, ...] = tuple(BODIES)
    tolerance: float = EXACT


EXTRACT = """from transformers import pipeline
extract = pipeline("feature-extraction", model="exported")
answer = [states[0] for states in extract(texts)]  # of each token"""
CLASSIFY = """from transformers import pipeline
classify = pipeline("text-classification", model="exported", top_k=None)
answer = classify(texts)"""
FILL = """from transformers import pipeline
fill = pipeline("fill-mask", model="exported/generator")
answer = fill(texts)"""
SENTENCES = """from sentence_transformers import SentenceTransformer
model = SentenceTransformer("exported")
answer = model.encode(texts).tolist()"""
FASTEMBED = """from pathlib import Path
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
name = str(Path("exported").resolve())  # any name that is not taken
TextEmbedding.add_custom_model(
    name, PoolingType.MEAN, normalization=False, sources=ModelSource(hf=name), dim=64
)  # dim: hidden_size of config.json
model = TextEmbedding(name, specific_model_path="exported")
answer = [each.tolist() for each in model.embed(texts)]"""
RUNTIME = """from onnxruntime import InferenceSession
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file("exported/tokenizer.json")
session = InferenceSession("exported/onnx/model.onnx")
fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
read = {each.name: fields[each.name] for each in session.get_inputs()}
rows = [
    {name: [getattr(row, field)] for name, field in read.items()}
    for row in tokenizer.encode_batch(texts)
]
answer = [session.run(["last_hidden_state"], row)[0][0].tolist() for row in rows]"""
SCRIPT = """import { env, pipeline } from "@huggingface/transformers";
env.allowRemoteModels = false, env.localModelPath = ".";
"""
JS_EMBED = """const embed = await pipeline("feature-extraction", "exported", { dtype: "fp32" });
const answer = (await embed(texts, { pooling: "mean" })).tolist();"""
JS_CLASSIFY = """const options = { dtype: "fp32" };
const classify = await pipeline("text-classification", "exported", options);
const answer = await classify(texts, { top_k: null });"""
JS_FILL = """const fill = await pipeline("fill-mask", "exported/generator", { dtype: "fp32" });
const answer = await fill(texts);"""

CLIENTS = (
    Client("transformers", "5", OWN, "encoder", EXTRACT),
    Client("transformers", "5", OWN, "classifier", CLASSIFY),
    Client("transformers", "5", OWN, "generator", FILL, ("electra",)),
    Client("transformers", "4.57.6", OLDER, "encoder", EXTRACT),
    Client("transformers", "4.57.6", OLDER, "classifier", CLASSIFY),
    Client("sentence-transformers", "6", OWN, "encoder", SENTENCES),
    Client(
        *("sentence-transformers, ONNX", "5.6.1", OLDER, "encoder"),
        SENTENCES.replace('"exported"', '"exported", backend="onnx"'),
    ),
    Client("fastembed", "0.9.1", LIGHT, "encoder", FASTEMBED),
    Client("onnxruntime", "1", OWN, "encoder", RUNTIME),
    Client("transformers.js", "4.3.1", NODE, "encoder", SCRIPT + JS_EMBED),
    Client(
        *("transformers.js, int8", "4.3.1", NODE, "encoder"),
        (SCRIPT + JS_EMBED).replace("fp32", "q8"),
        tolerance=INT8,
    ),
    Client("transformers.js", "4.3.1", NODE, "classifier", SCRIPT + JS_CLASSIFY),
    Client("transformers.js", "4.3.1", NODE, "generator", SCRIPT + JS_FILL, ("electra",)),
)
LIMITS = (
    (
        "sentence-transformers 6",
        "ONNX",
        "its backend needs optimum-onnx, whose 0.1.0 needs a transformers before 4.58",
    ),
    (
        "curated-transformers 2.0.1",
        "all three bodies",
        "its `AutoEncoder` knows ALBERT, BERT, CamemBERT, RoBERTa and XLM-R",
    ),
    (
        "transformers, transformers.js",
        "the discriminator of ModernBERT and DeBERTa",
        "no class has this head: it lies beside the encoder, and in the ONNX file",
    ),
    (
        "llama.cpp",
        "all three bodies",
        "its converter refuses each vocabulary that it does not know, and knows neither ELECTRA "
        "nor DeBERTa (read in its source, not run); GGUF is not written",
    ),
    (
        "candle",
        "encoders of ModernBERT",
        "it looks for weights whose names begin with `model.`, which transformers writes with a "
        "head alone (read in its source, not run)",
    ),
)
"""Client, what does not work with it, and why."""


def write_page() -> str:
    """Return docs/CLIENTS.md."""
    headers = ("client", "version", "asked for", *BODIES.values(), "differs by at most")
    rows = [
        (
            *(each.name, each.version, HEADS[each.folder]),
            *("yes" if body in each.bodies else "not tested" for body in BODIES),
            f"{each.tolerance:g}",
        )
        for each in CLIENTS
    ]
    limits = Table(("client", "what does not work", "why"), LIMITS)
    lines = [
        "<!-- written by `python -m tools.clients` -->",
        "# Clients",
        "",
        "Programs that load an export. The slow tests run each client on folders that the commands",
        "wrote, and compare every number of an embedding, and every probability, with the answers",
        "of `electra embed`, `electra predict` and `electra fill`.",
        "",
        "```sh",
        "electra export run --onnx --int8 texts.txt --out exported",
        "```",
        "",
        to_markdown(Table(headers, rows)),
        "",
        "A version without a point is the major version in this project's own environment. The",
        "classifiers are those that transformers has a class for: ELECTRA and DeBERTa with",
        "`pooling=cls`, ModernBERT with `pooling=mean` ([ARTEFACTS.md](ARTEFACTS.md)).",
        "",
        "## What does not work",
        "",
        to_markdown(limits),
        "",
        "## The lines that load an export",
    ]
    for client in CLIENTS:
        language = "js" if client.environment.is_node else "python"
        lines += ["", f"### {client.name} {client.version}: {HEADS[client.folder]}", ""]
        if client.environment.packages:
            lines += ["With " + ", ".join(f"`{each}`" for each in client.environment.packages), ""]
        # As ruff formats it: an empty line after the imports.
        code = re.sub(r"(?m)^((?:from|import) .*\n)(?!from|import|\n)", r"\1\n", client.code)
        lines += [f"```{language}", code if language == "python" else client.code, "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    write_text(PAGE, write_page())
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None

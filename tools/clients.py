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
    "pairs": "classifier of pairs of texts",
    "numbers": "number for a pair of texts (regression)",
    "generator": "masked tokens (generator)",
    "gguf": "embedding (of `--as gguf`)",
    "vectors": "vector (of `--task retrieval`, `--as sentence-transformers`)",
    "merged": "adapter (LoRA) of a classifier, trained and merged",
}
"""Folder, and what is asked of it."""
EXACT, ROUNDED, TANH, INT8 = 1e-5, 1e-4, 1e-3, 0.05
"""Greatest difference from ours, of any number of an embedding or a regression, or of any
probability. `electra predict` rounds the number of a regression to the fourth place."""


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
SETFIT = Environment(("setfit==1.2.0", "evaluate==0.4.6"))
SPACY = Environment(
    (
        *("spacy==3.8.18", "spacy-transformers==1.4.0", "spacy-alignments==0.9.3"),
        *("transformers==4.53.2", "huggingface-hub==0.36.0", "tokenizers==0.21.4"),
        *("spacy-legacy==3.0.12", "spacy-loggers==1.0.5", "murmurhash==1.0.15", "cymem==2.0.13"),
        *("preshed==3.0.12", "thinc==8.3.13", "wasabi==1.1.3", "srsly==2.5.3", "blis==1.3.3"),
        *("catalogue==2.0.10", "weasel==1.0.1", "confection==1.3.4", "typer==0.29.2"),
        *("smart-open==9.0.2", "cloudpathlib==0.26.0", "wrapt==2.5.2", "httpx==0.28.1"),
        *("httpcore==1.0.9", "sniffio==1.3.1"),
    )
)
PEFT = Environment(("peft==0.21.2",))
NODE = Environment(("@huggingface/transformers@4.3.1",), is_node=True)
LLAMA = Environment(
    ("--omit=optional", "node-llama-cpp@3.22.1", "@node-llama-cpp/linux-x64@3.22.1"), is_node=True
)


class Client(NamedTuple):
    """A program that loads a folder, and the lines that do."""

    name: str
    version: str
    """As pinned; of the project's own environment, the major version."""
    environment: Environment
    folder: str
    """encoder, classifier, pairs, numbers, generator, gguf, vectors or merged."""
    code: str
    """Lines that load the folder `exported` and answer `texts`, of pairs a list of them."""
    bodies: tuple[str, ...] = tuple(BODIES)
    tolerance: float = EXACT


EXTRACT = """from transformers import pipeline
extract = pipeline("feature-extraction", model="exported", truncation=True)
answer = [states[0] for states in extract(texts)]  # of each token"""
CLASSIFY = """from transformers import pipeline
classify = pipeline("text-classification", model="exported", top_k=None, truncation=True)
answer = classify(texts)"""
CROSS = """from sentence_transformers import CrossEncoder
model = CrossEncoder("exported")
names = model.config.id2label.values()
rows = model.predict(texts, apply_softmax=True).tolist()
answer = [[{"label": name, "score": each} for name, each in zip(names, row)] for row in rows]"""
REGRESS = """from transformers import pipeline
judge = pipeline("text-classification", model="exported", truncation=True)
found = judge([{"text": one, "text_pair": other} for one, other in texts])
answer = [each["score"] for each in found]"""
CROSS_REGRESS = """from sentence_transformers import CrossEncoder
answer = CrossEncoder("exported").predict(texts).tolist()"""
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
JS_MODELS = """import {
  AutoModelForSequenceClassification, AutoTokenizer, env
} from "@huggingface/transformers";
env.allowRemoteModels = false, env.localModelPath = ".";
"""
JS_REGRESS = """const tokenizer = await AutoTokenizer.from_pretrained("exported");
const options = { dtype: "fp32" };
const model = await AutoModelForSequenceClassification.from_pretrained("exported", options);
const [one, other] = [0, 1].map((side) => texts.map((pair) => pair[side]));
const inputs = tokenizer(one, { text_pair: other, padding: true, truncation: true });
const answer = (await model(inputs)).logits.tolist().flat();"""
SETFIT_EMBED = """from setfit import SetFitModel
model = SetFitModel.from_pretrained("exported")  # with a new head, to be trained
answer = model.encode(texts).tolist()"""
SPACY_STATES = """import spacy
nlp = spacy.blank("en")
reader = {
    "@architectures": "spacy-transformers.TransformerModel.v3",
    "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
    "name": "exported",
}
nlp.add_pipe("transformer", config={"model": reader})
nlp.initialize()
found = [nlp(text)._.trf_data.model_output.last_hidden_state for text in texts]
answer = [states[0].tolist() for states in found]  # of each token"""
LLAMA_EMBED = """import { getLlama } from "node-llama-cpp";
const llama = await getLlama({ gpu: false });
const model = await llama.loadModel({ modelPath: "exported/model.gguf" });
const context = await model.createEmbeddingContext();
const answer = [];
for (const text of texts) answer.push([...(await context.getEmbeddingFor(text)).vector]);"""
ADAPT = """import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("exported")
model = AutoModelForSequenceClassification.from_pretrained("exported", num_labels=2)
model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules="all-linear"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = tokenizer(texts, padding=True, return_tensors="pt")
labels = torch.arange(len(texts)) % 2  # yours, from 0
for step in range(10):
    model(**rows, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
answer = model.eval()(**rows).logits.softmax(dim=1).tolist()
model.merge_and_unload().save_pretrained("merged")
tokenizer.save_pretrained("merged")"""

CLIENTS = (
    Client("transformers", "5", OWN, "encoder", EXTRACT),
    Client("transformers", "5", OWN, "classifier", CLASSIFY),
    Client("transformers", "5", OWN, "numbers", REGRESS, tolerance=ROUNDED),
    Client("transformers", "5", OWN, "generator", FILL, ("electra",)),
    Client("transformers", "4.57.6", OLDER, "encoder", EXTRACT),
    Client("transformers", "4.57.6", OLDER, "classifier", CLASSIFY),
    Client("transformers", "4.57.6", OLDER, "numbers", REGRESS, tolerance=ROUNDED),
    Client("sentence-transformers", "6", OWN, "encoder", SENTENCES),
    Client("sentence-transformers", "6", OWN, "vectors", SENTENCES),
    Client("sentence-transformers", "5.6.1", OLDER, "vectors", SENTENCES),
    Client("sentence-transformers, CrossEncoder", "6", OWN, "pairs", CROSS),
    Client(
        *("sentence-transformers, CrossEncoder", "6", OWN, "numbers", CROSS_REGRESS),
        tolerance=ROUNDED,
    ),
    Client(
        *("sentence-transformers, CrossEncoder", "5.6.1", OLDER, "numbers", CROSS_REGRESS),
        tolerance=ROUNDED,
    ),
    Client(
        *("sentence-transformers, ONNX", "5.6.1", OLDER, "encoder"),
        SENTENCES.replace('"exported"', '"exported", backend="onnx"'),
    ),
    Client("setfit", "1.2.0", SETFIT, "encoder", SETFIT_EMBED),
    Client("spacy-transformers", "1.4.0", SPACY, "encoder", SPACY_STATES),
    Client("fastembed", "0.9.1", LIGHT, "encoder", FASTEMBED),
    Client("peft", "0.21.2", PEFT, "merged", ADAPT),
    Client("onnxruntime", "1", OWN, "encoder", RUNTIME),
    Client("transformers.js", "4.3.1", NODE, "encoder", SCRIPT + JS_EMBED),
    Client(
        *("transformers.js, int8", "4.3.1", NODE, "encoder"),
        (SCRIPT + JS_EMBED).replace("fp32", "q8"),
        tolerance=INT8,
    ),
    Client("transformers.js", "4.3.1", NODE, "classifier", SCRIPT + JS_CLASSIFY),
    Client(
        *("transformers.js", "4.3.1", NODE, "numbers", JS_MODELS + JS_REGRESS), tolerance=ROUNDED
    ),
    Client("transformers.js", "4.3.1", NODE, "generator", SCRIPT + JS_FILL, ("electra",)),
    Client(
        *("node-llama-cpp", "3.22.1", LLAMA, "gguf", LLAMA_EMBED, ("electra", "modernbert")),
        tolerance=TANH,
    ),
)
WALK = """electra finetune run --task tagging --data names --out tagger
electra export tagger --onnx --out models/tagger
npm install @huggingface/transformers@4.3.1
python -m http.server --bind 127.0.0.1 8000
"""
"""From a run, and names/train.txt and dev.txt with a word and its tag a line, to a page."""
TAGGER = """<!doctype html>
<meta charset="utf-8">
<title>Tagger</title>
<textarea id="text" rows="3" cols="60">Angela Merkel met Barack Obama in Berlin .</textarea>
<p id="tags">loading the model</p>
<script type="module">
  import { env, pipeline } from "./node_modules/@huggingface/transformers/dist/transformers.min.js";

  env.allowRemoteModels = false; // nothing leaves the page
  env.allowLocalModels = true;
  env.localModelPath = "./models/";
  env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", location).href;
  const tag = await pipeline("token-classification", "tagger", { dtype: "fp32" });
  const text = document.querySelector("#text"), tags = document.querySelector("#tags");
  async function show() {
    const found = await tag(text.value, { ignore_labels: [] });
    const entities = new Map(found.map((each) => [each.index, each.entity]));
    let place = 1; // of a word's first token, whose tag is the word's; [CLS] has place 0
    tags.replaceChildren(...text.value.trim().split(/\\s+/).flatMap((word) => {
      const entity = entities.get(place) ?? "O";
      place += tag.tokenizer.encode(word, { add_special_tokens: false }).length;
      const mark = document.createElement(entity === "O" ? "span" : "mark");
      mark.textContent = entity === "O" ? word : `${word} ${entity}`;
      return [mark, " "];
    }));
  }
  text.addEventListener("input", show);
  await show();
</script>
"""
"""The page, index.html."""
LIMITS = (
    (
        "sentence-transformers 6, CrossEncoder",
        "classifiers of single texts",
        "its `predict` takes pairs alone",
    ),
    (
        "transformers.js",
        "regressions in its pipeline",
        "it applies softmax to the one output, which gives 1: read the logits, as below",
    ),
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
        "no class has this head: it is beside the encoder, and in the ONNX file",
    ),
    (
        "llama.cpp",
        "DeBERTa; ELECTRA of other than BERT's shape; BPE and Unigram; heads",
        "its converter refuses each vocabulary that it does not know, so that `--as gguf` writes "
        "the file; its graphs are BERT's, without a projection of embeddings, and ModernBERT's; "
        "it computes GELU by tanh, and knows no second segment",
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
        "wrote, and compare every number of an embedding or a regression, and every probability,",
        "with the answers of `electra embed`, `electra predict` and `electra fill`, and with the",
        "vectors that `electra search` compares.",
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
        "`hf upload NAME exported`, a command of huggingface_hub, publishes the folder. The tests",
        "do not run it: it has no server of its own to try.",
        "",
        "## What does not work",
        "",
        to_markdown(limits),
        "",
        "## Adapters",
        "",
        "PEFT trains LoRA on an export: a few numbers in place of all weights",
        "([the lines](#peft-0212-adapter-lora-of-a-classifier-trained-and-merged)). `merged`",
        "answers in transformers as the adapter does. `electra import merged --out start` takes",
        "its encoder for `electra finetune` and `electra embed`, and leaves the head out.",
        "",
        "## From a run to a tagger in a page",
        "",
        "`names/` holds `train.txt` and `dev.txt`, a word and its tag a line. The page is",
        "`index.html`, beside `models/` and `node_modules/`, at http://127.0.0.1:8000.",
        "",
        f"```sh\n{WALK}```",
        "",
        f"```html\n{TAGGER}```",
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

"""The model card, README.md of an export, written from the records of the run or fine-tuning.

What no record says is not in the card. The licence is left to whoever publishes the model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra.checkpoints.finetuned import Finetuned
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import read_metrics
from electra.checkpoints.names import DISCRIMINATOR_FILE, HEAD_FILE
from electra.config import EncoderConfig
from electra.files import read_object
from electra.interop.onnx import NUM_SHAPES, SUSPECTED, Agreement, Kind
from electra.interop.sentence_transformers import Similarity
from electra.reports.glossary import summarise

Facts = list[tuple[str, str]]
"""Names and values of a table."""


class Card(NamedTuple):
    """What a card says of a model whatever the form of the export."""

    name: str
    kind: Kind
    """What the network answers, whether the class in transformers has its head or not."""
    sizes: EncoderConfig
    facts: Facts
    """The record of the training."""
    scores: str
    """A table of scores, Markdown; empty: none are known."""
    is_pair: bool = False
    """Whether the head reads the states of two texts."""


_TASKS = {
    "MaskedLM": "fill-mask",
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MultipleChoice": "multiple-choice",
}
_KINDS = {
    "PreTraining": "A text encoder that was pre-trained by replaced token detection (ELECTRA): for "
    "each token, the logit says whether a small generator put it there.",
    "MaskedLM": "A text encoder that was pre-trained to predict masked tokens.",
    "SequenceClassification": "A text encoder that was fine-tuned to judge texts.",
    "TokenClassification": "A text encoder that was fine-tuned to tag the words of a text.",
    "QuestionAnswering": "A text encoder that was fine-tuned to find answers in a text.",
    "MultipleChoice": "A text encoder that was fine-tuned to choose between endings.",
    "": "A text encoder.",
}
_USES = {
    "PreTraining": "To be fine-tuned on a labelled task, or to show which tokens of a text look "
    "out of place.",
    "MaskedLM": "To be fine-tuned on a labelled task, or to fill gaps in a text.",
    "": "To be fine-tuned on a labelled task, or for embeddings.",
    "similarity": "To compare texts by the cosine of their embeddings: search, clustering, "
    "deduplication.",
}
_SNIPPETS = {
    "PreTraining": """inputs = tokenizer("the chef ate the meal", return_tensors="pt")
with torch.no_grad():
    probs = model(**inputs).logits[0].sigmoid()  # of each token: is it replaced?""",
    "MaskedLM": """text = f"the chef ate the {tokenizer.mask_token}"
inputs = tokenizer(text, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
place = inputs.input_ids[0].tolist().index(tokenizer.mask_token_id)
print(tokenizer.convert_ids_to_tokens(logits[place].topk(5).indices))""",
    "SequenceClassification": """inputs = tokenizer("a text", truncation=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
print(dict(zip(model.config.id2label.values(), logits.tolist(), strict=True)))""",
    "TokenClassification": """inputs = tokenizer("a text", truncation=True, return_tensors="pt")
with torch.no_grad():
    tags = model(**inputs).logits[0].argmax(dim=-1)  # the tag of a word is that of its first token
print([model.config.id2label[int(tag)] for tag in tags])""",
    "QuestionAnswering": """inputs = tokenizer("who?", "a text", return_tensors="pt")
with torch.no_grad():
    outputs = model(**inputs)
start, end = outputs.start_logits[0].argmax(), outputs.end_logits[0].argmax()  # [CLS]: no answer
print(tokenizer.decode(inputs.input_ids[0][start : end + 1]))""",
    "MultipleChoice": """choices = ["an ending", "another one"]
inputs = tokenizer(["a text"] * len(choices), choices, padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**{name: each[None] for name, each in inputs.items()}).logits[0]
print(choices[logits.argmax()])""",
    "": """inputs = tokenizer("a text", return_tensors="pt")
with torch.no_grad():
    states = model(**inputs).last_hidden_state  # (1, tokens, {size})""",
}
_JUDGE = """inner = F.linear(states, head["dense.weight"], head["dense.bias"])
inner = F.gelu(inner)
logits = F.linear(inner, head["dense_prediction.weight"], head["dense_prediction.bias"])
probs = logits.squeeze(-1).sigmoid()  # of each token: is it replaced?"""
_JUDGE_ROW = """inputs = tokenizer("a text", truncation=True, return_tensors="pt")
with torch.no_grad():
    state = model(**inputs).last_hidden_state[0].mean(dim=0)
logits = F.linear(state, head["dense.weight"], head["dense.bias"])
print(dict(zip(model.config.id2label.values(), logits.tolist(), strict=True)))"""
_JUDGE_PAIR = """inputs = tokenizer("a text", "another one", truncation=True, return_tensors="pt")
types = inputs.pop("token_type_ids")
with torch.no_grad():
    states = model(**inputs{types}).last_hidden_state[0]
    embeddings = model.embeddings(inputs.input_ids{types})[0]
states, is_second = torch.cat([states, embeddings], dim=-1), types[0].bool()
u, v = states[~is_second].mean(dim=0), states[is_second].mean(dim=0)
pair = torch.cat([u, v, (u - v).abs(), u * v])
logits = F.linear(pair, head["dense.weight"], head["dense.bias"])
print(dict(zip(model.config.id2label.values(), logits.tolist(), strict=True)))"""
_JUDGE_CHOICES = """choices = ["an ending", "another one"]
inputs = tokenizer(["a text"] * len(choices), choices, padding=True, return_tensors="pt")
with torch.no_grad():
    states = model(**inputs).last_hidden_state
mask = inputs.attention_mask[:, :, None]
state = (states * mask).sum(dim=1) / mask.sum(dim=1)
logits = F.linear(state, head["dense.weight"], head["dense.bias"]).squeeze(-1)
print(choices[logits.argmax()])"""
"""Lines that use a head in a file of its own."""


def describe_run(run: Path, step: int) -> Facts:
    """Return the record of a pre-training up to a step."""
    config, manifest = read_object(run / "config.json"), read_manifest(run)
    sessions = [each for each in manifest["sessions"] if each.get("first_step", 0) < step]
    records = [each for each in read_metrics(run / "metrics.jsonl") if each["step"] <= step]
    train = [each for each in records if each["part"] == "train"][-1:]
    heldout = [each for each in records if each["part"] == "heldout"][-1:]
    shards = manifest.get("shards", {})
    optimizer, examples = config["optimizer"], config["examples"]
    facts = [
        ("objective", f"{config['method']['objective']}, mode {config['method']['mode']}"),
        ("data", f"`{Path(shards.get('folder', '?')).name}`, sha256 {shards.get('sha256', '?')}"),
        ("steps", f"{step:,} of {config['train']['steps']:,}"),
        (
            "batch",
            f"{config['train']['batch_size']} rows of {examples['sequence_length']} tokens",
        ),
        (
            "optimizer",
            f"{optimizer['matrices']}, learning rate {optimizer['learning_rate']:g}, "
            f"{optimizer['warmup_steps']:,} steps of warm-up",
        ),
    ]
    for last in train:
        facts.append(("tokens", f"{last['tokens']:,}"))
        if "flops" in last:
            facts.append(("floating-point operations", f"{last['flops']:.3e}"))
        facts.append(("training time", f"{last['seconds'] / 3600:.2f} h"))
    for last in heldout:
        facts += [(f"held-out {name}", f"{value:.4f}") for name, value in summarise(last).items()]
    return [*facts, ("seed", str(manifest.get("seed", "?"))), *_describe_machines(sessions)]


def describe_finetuning(finetuned: Finetuned) -> tuple[Facts, str]:
    """Return the record of a fine-tuning, and the table of its scores."""
    results = read_object(finetuned.run / "results.json")
    settings = read_object(finetuned.run / "config.json")
    config, seeds = finetuned.config, results["seeds"] | results.get("replacements", {})
    files = [f"`{Path(name).name}` {sha}" for name, sha in settings.get("files", {}).items()]
    facts = [
        ("task", str(results["task"])),
        ("start", str(results.get("source", settings.get("start", "?")))),
        ("data, sha256", ", ".join(files) or "not recorded"),
        ("examples", ", ".join(f"{n:,} {s}" for s, n in results.get("num_examples", {}).items())),
        ("epochs", str(config.epochs)),
        ("batch", f"{config.batch_size} rows of at most {config.sequence_length} tokens"),
        ("learning rate", f"{config.learning_rate:g}, decay by layer {config.layer_lr_decay:g}"),
        ("seed", str(finetuned.seed)),
        *_describe_machines(read_manifest(finetuned.run)["sessions"]),
    ]
    std = results.get("std")
    median = f"{results['median']:.3f}" + ("" if std is None else f" ± {std:.3f}")
    metric = results["metric"]
    own = seeds[str(finetuned.seed)]["scores"][metric]
    majority = results.get("majority", {}).get(metric)
    constant = "-" if majority is None else f"{majority:.3f}"
    scores = (
        "| task | metric | this model | median ± std of the seeds | seeds | majority guess |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |\n"
        f"| {results['task']} | {metric} | {own:.3f} | {median} | {len(results['seeds'])} | "
        f"{constant} |\n\n"
        "On the dev set. The seed with the best score there was exported, unless another one was "
        "asked for: the median over the seeds is what a new fine-tuning may expect."
    )
    return facts, scores


def write_card(
    card: Card,
    architecture: str,
    length: int,
    similarity: Similarity | None,
    agreements: Sequence[Agreement],
) -> str:
    """Return the text of README.md.

    Args:
        card: What is known of the model.
        architecture: The class in transformers.
        length: Longest row of the training, tokens.
        similarity: Layer and pooling of a folder for sentence-transformers.
        agreements: How well the ONNX files agree.
    """
    is_bare, kind = architecture.endswith("Model"), card.kind
    about = _KINDS[kind].partition(":")[0].rstrip(".") + "." if is_bare else _KINDS[kind]
    parts = [
        _write_header(card, architecture, similarity=similarity, onnx=bool(agreements)),
        f"# {card.name}\n\n{about}",
        f"## Use\n\n{_describe_class(card, architecture, similarity)}\n\n"
        f"```python\n{_write_code(card, architecture, similarity)}\n```",
    ]
    if agreements:
        parts.append(_describe_onnx(agreements))
    if similarity:
        parts.append(_describe_similarity(similarity))
    sizes = card.sizes
    encoder = (
        f"{sizes.num_hidden_layers} layers of {sizes.hidden_size}, "
        f"{sizes.num_attention_heads} heads, embeddings of {sizes.embedding_size}, "
        f"{sizes.vocab_size:,} tokens"
    )
    if sizes.architecture == "modernbert":
        encoder += (
            f"; of {sizes.global_attn_every_n_layers} layers one attends to the whole row, the "
            f"others to a window of {sizes.local_attention} tokens"
        )
    title = "Fine-tuning" if any(name == "task" for name, _ in card.facts) else "Pre-training"
    parts.append(f"## {title}\n\n{_write_table([('encoder', encoder), *card.facts])}")
    scores = card.scores or "No fine-tuning of these weights was found or named."
    parts.append(f"## Scores\n\n{scores}")
    use = _USES.get("similarity" if similarity else kind, "")
    limits = (
        f"Rows of up to {length} tokens were trained; longer ones are not to be trusted. The model "
        "knows the language and the views of its texts, mistakes and prejudices included, which "
        "nobody has measured."
    )
    parts.append(f"## Intended use and limits\n\n{f'{use} {limits}'.strip()}")
    parts.append(
        "## Licence\n\nNone is stated yet: whoever publishes this model chooses it, in the light "
        "of the licences of the texts, and writes it into the first lines of this file."
    )
    return "\n\n".join(parts) + "\n"


def _write_header(
    card: Card, architecture: str, *, similarity: Similarity | None, onnx: bool
) -> str:
    kind = "" if architecture.endswith("Model") else card.kind
    library = "sentence-transformers" if similarity else "transformers"
    task = "sentence-similarity" if similarity else _TASKS.get(kind, "feature-extraction")
    tags = ["electra", "replaced-token-detection"]
    tags += [each for each in ("bert", "modernbert") if architecture.lower().startswith(each)]
    tags += [*(["sentence-transformers"] if similarity else []), *(["onnx"] if onnx else [])]
    lines = [f"library_name: {library}", f"pipeline_tag: {task}", "tags:"]
    return "\n".join(["---", *lines, *(f"- {tag}" for tag in tags), "# license:", "---"])


def _describe_class(card: Card, architecture: str, similarity: Similarity | None) -> str:
    """Return which class loads the folder, and what it does not load."""
    graph = " (ModernBERT's graph)" if architecture.startswith("ModernBert") else ""
    text = f"The folder is a `{architecture}` of transformers{graph}"
    if similarity:
        return f"{text}, as sentence-transformers loads it."
    if architecture.endswith("Model") and card.kind:
        return f"{text}. It holds the encoder; the head is in `{_head_file(card)}`, used as here:"
    return f"{text}."


def _head_file(card: Card) -> str:
    return DISCRIMINATOR_FILE if card.kind == "PreTraining" else HEAD_FILE


def _write_code(card: Card, architecture: str, similarity: Similarity | None) -> str:
    if similarity:
        return f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{card.name}")
embeddings = model.encode(["the chef ate the meal", "the cook finished his lunch"])
print(model.similarity(embeddings[:1], embeddings[1:]))"""
    is_bare = architecture.endswith("Model")
    states = _SNIPPETS[""].replace("{size}", str(card.sizes.hidden_size))
    options = ", add_pooling_layer=False" if architecture == "BertModel" else ""
    lines = [
        "import torch",
        f"from transformers import AutoTokenizer, {architecture}",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{card.name}")',
        f'model = {architecture}.from_pretrained("{card.name}"{options}).eval()',
    ]
    if not is_bare or not card.kind:
        return "\n".join([*lines, _SNIPPETS[card.kind] if card.kind else states])
    lines[1:1] = ["import torch.nn.functional as F", "from safetensors.torch import load_file"]
    lines.append(f'head = load_file("{card.name}/{_head_file(card)}")')
    if card.kind == "PreTraining":
        lines += [states, _JUDGE]
    elif card.kind == "MultipleChoice":
        lines.append(_JUDGE_CHOICES)
    elif card.is_pair:
        types = "" if architecture == "ModernBertModel" else ", token_type_ids=types"
        lines.append(_JUDGE_PAIR.replace("{types}", types))
    else:
        lines.append(_JUDGE_ROW)
    return "\n".join(lines)


def _describe_onnx(agreements: Sequence[Agreement]) -> str:
    rows = []
    for file, facts in agreements:
        if "difference" in facts:
            text = (
                f"differs from torch by at most {facts['difference']:.1e}, over {NUM_SHAPES} "
                f"shapes with padding, of up to {facts['longest']:,} tokens"
            )
        else:
            text = f"agrees with float32 in {facts['agreement']:.2%} of {facts['decisions']:,} "
            text += "decisions on real text"
            if "suspected" in facts:
                text += (
                    f", of which {facts['suspected']:.2%} are suspicions; in "
                    f"{facts['agreement_ranked']:.2%} at the threshold that suspects "
                    f"{SUSPECTED:.0%} of the tokens"
                )
        rows.append((f"`{file}`", text))
    facts = agreements[0].facts
    inputs, outputs = (
        " and ".join(f"`{name}`" for name in facts[each]) for each in ("inputs", "outputs")
    )
    text = f"The files hold the network with its head: {inputs} in, int64; {outputs} out."
    return f"## ONNX\n\n{text}\n\n{_write_table(rows)}"


def _describe_similarity(similarity: Similarity) -> str:
    best, last = similarity.best, similarity.last
    means = {each.layer: each.spearman for each in similarity.scores if each.pooling == "mean"}
    firsts = {each.layer: each.spearman for each in similarity.scores if each.pooling == "cls"}
    lines = [
        "| layer | mean of the tokens | [CLS] |",
        "| ---: | ---: | ---: |",
        *(f"| {layer} | {means[layer]:.4f} | {firsts[layer]:.4f} |" for layer in means),
    ]
    return (
        "## Layer and pooling\n\n"
        f"Chosen on {similarity.num_pairs:,} pairs ({similarity.data}), by Spearman's correlation "
        f"of cosine and score: layer {best.layer} of {last.layer}, {best.pooling}, "
        f"{best.spearman:.4f}; the last layer has {last.spearman:.4f} ({last.pooling}). The layers "
        "above the chosen one are left out.\n\n" + "\n".join(lines)
    )


def _describe_machines(sessions: Sequence[Mapping[str, Any]]) -> Facts:
    def tell(key: str) -> str:
        return ", ".join(dict.fromkeys(str(each[key]) for each in sessions if each.get(key)))

    names = (("device", "device"), ("dtype", "dtype"), ("electra", "electra"), ("commit", "commit"))
    return [(name, tell(key)) for name, key in names if tell(key)]


def _write_table(rows: Sequence[tuple[str, str]]) -> str:
    lines = ["| | |", "| --- | --- |"]
    return "\n".join(
        [*lines, *(f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows)]
    )

"""The model card, README.md of an export, written from the records of the run or fine-tuning.

The text is in card.md.jinja. What no record says is not in the card. The licence is left to
whoever publishes the model.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from torch import nn

from electra.checkpoints.finetuned import Finetuned
from electra.checkpoints.folder import read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import read_curves
from electra.checkpoints.results_files import Begun, read_results
from electra.files import read_object
from electra.interop.onnx import NUM_SHAPES, SUSPECTED, Agreements
from electra.interop.sentence_transformers import Similarity
from electra.model.config import EncoderConfig
from electra.model.heads import Kind
from electra.model.task_heads import PairHead
from electra.reports.glossary import summarise
from electra.reports.rendering import to_markdown
from electra.reports.runs import Run, finetuning_table, list_facts, read_finetuning
from electra.tasks.rows import overlap_of

Facts = list[tuple[str, str]]
"""Names and values of a table."""


def _code(text: str) -> str:
    """Return a Markdown code span; its fence is longer than any backquotes in the text."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


FILTERS: dict[str, Callable[[str], str]] = {
    "literal": lambda text: json.dumps(text, ensure_ascii=False),
    "shell": shlex.quote,
    "code": _code,
    "cell": lambda text: " ".join(text.splitlines()).replace("|", "\\|"),
    "plain": lambda text: " ".join(text.splitlines()).replace("<", "&lt;"),
}
"""How a text is written in each language of the card: Python's and JavaScript's strings, a word of
a shell, and Markdown's code, cells of tables and lines. HTML's escapes would break the first."""


def describe_run(run: Path, step: int) -> Facts:
    """Return the record of a pre-training up to a step: the facts of a report, and measures."""
    manifest = read_manifest(run)
    manifest["sessions"] = [
        each for each in manifest["sessions"] if each.get("first_step", 0) < step
    ]
    records = [each for each in read_curves(run) if each["step"] <= step]
    parts = {
        part: [each for each in records if each["part"] == part] for part in ("train", "heldout")
    }
    until = Run(run.name, read_run_config(run), manifest, **parts)
    shards = manifest.get("shards", {})
    facts = list_facts(until) | {
        "steps": f"{step:,} of {until.config.train.steps:,}",
        "data": f"`{Path(shards.get('folder', '?')).name}`, sha256 {shards.get('sha256', '?')}",
    }
    del facts["encoder"]  # the card has a line of its own
    reached = summarise(until.last_heldout).items()
    return [*facts.items(), *((f"held-out {name}", f"{value:.4f}") for name, value in reached)]


def describe_finetuning(finetuned: Finetuned) -> tuple[Facts, str]:
    """Return the record of a fine-tuning, and the table of its scores."""
    results = read_results(finetuned.folder)
    settings = read_object(finetuned.folder / "config.json", Begun)
    config, seeds = finetuned.config, results["seeds"] | results.get("replacements", {})
    files = [f"`{Path(name).name}` {sha}" for name, sha in settings["files"].items()]
    facts = [
        ("task", str(results["task"])),
        ("start", str(results.get("source", settings["start"]))),
        ("data, sha256", ", ".join(files) or "not recorded"),
        ("examples", ", ".join(_count_examples(results, config.train_examples))),
        ("epochs", str(config.epochs)),
        ("batch", f"{config.batch_size} rows of at most {config.sequence_length} tokens"),
        ("learning rate", f"{config.learning_rate:g}, decay by layer {config.layer_lr_decay:g}"),
        ("seed", str(finetuned.seed)),
        *_describe_machines(read_manifest(finetuned.folder)["sessions"]),
    ]
    scores = read_finetuning(finetuned.folder / "results.json")
    own = seeds[str(finetuned.seed)]["scores"][scores.metric]
    facts.append(("this model on dev", f"{scores.metric} {own:.3f}"))
    table = to_markdown(finetuning_table([scores]))
    return facts, (
        f"{table}\n\nOn the dev set. The seed with the best score there was exported, unless "
        "another one was asked for: the median over the seeds is what a new fine-tuning may expect."
    )


def _count_examples(results: Mapping[str, Any], train_examples: int) -> Iterator[str]:
    """Yield the number of examples of each split; of train, how many of them were used."""
    for split, number in results.get("num_examples", {}).items():
        is_part = split == "train" and 0 < train_examples < number
        yield (f"{train_examples:,} of " if is_part else "") + f"{number:,} {split}"


def _describe_machines(sessions: Sequence[Mapping[str, Any]]) -> Facts:
    def tell(key: str) -> str:
        return ", ".join(dict.fromkeys(str(each[key]) for each in sessions if each.get(key)))

    return [(key, tell(key)) for key in ("device", "dtype", "electra", "commit") if tell(key)]


@cache
def _read_template() -> Template:
    """Return the template, which takes longer to read than to fill in."""
    path = Path(__file__).with_name("card.md.jinja")
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters |= FILTERS
    return environment.from_string(path.read_text(encoding="utf-8"))


def write_card(
    name: str,
    architecture: str,
    network: tuple[Kind, EncoderConfig, nn.Module | None],
    length: int,
    facts: Facts,
    scores: str,
    *,
    settings: Mapping[str, Any],
    similarity: Similarity | None,
    agreements: Agreements,
    has_generator: bool,
) -> str:
    """Return the text of README.md; `settings` are the fields of config.json of the head."""
    kind, sizes, head = network
    layers: dict[int, list[float]] = {}  # first all means, then all states of [CLS]
    for each in similarity.scores if similarity else ():
        layers.setdefault(each.layer, []).append(each.spearman)
    return _read_template().render(
        name=name,
        architecture=architecture,
        kind=kind,
        sizes=sizes,
        is_bare=architecture.endswith("Model"),
        is_pair=isinstance(head, PairHead),
        state="[0, 0]" if getattr(head, "pooling", "") == "cls" else "[0].mean(dim=0)",
        is_finetuned=any(fact == "task" for fact, _ in facts),
        length=length,
        facts=facts,
        scores=scores,
        labels=[*settings.get("id2label", {}).values()],
        thresholds=settings.get("thresholds", {}),
        windows=settings.get("windows", {}),
        overlap=overlap_of(length),
        similarity=similarity,
        layers=list(layers.items()),
        agreements=agreements,
        has_generator=has_generator,
        num_shapes=NUM_SHAPES,
        suspected=SUSPECTED,
        names=lambda names: " and ".join(f"`{each}`" for each in names),
    )

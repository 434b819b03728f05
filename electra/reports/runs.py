"""Runs and fine-tunings, read from their files (docs/ARTEFACTS.md), and the tables of them.

Only the GLUE averages are computed; all other numbers are those in the files.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from electra.assignments import differences, flatten, from_dict, to_dict
from electra.checkpoints.bundled import find_model
from electra.checkpoints.manifest import find_best, read_manifest
from electra.checkpoints.metrics import read_curves
from electra.checkpoints.results_files import read_results
from electra.errors import UserError, count_of, refuse_unlike, require
from electra.files import HASHES, check_hashes, read_object
from electra.method.config import MethodConfig
from electra.reports.glossary import GLOSSARY, format_count, format_metric, format_seconds
from electra.reports.rendering import Table, to_markdown
from electra.reports.tokens import SavedRows, SavedToken, Sentence, TokenView, suspect_as_many
from electra.shapes import check_shape, require_fields
from electra.training.config import PretrainConfig

UNKNOWN = "not recorded"
MetricsRecord = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A pre-training run: configuration, manifest and metrics."""

    name: str
    config: PretrainConfig
    manifest: Mapping[str, Any]
    train: Sequence[MetricsRecord]
    heldout: Sequence[MetricsRecord]

    def tell(self, key: str) -> list[Any]:
        """Return the distinct values of a key in the manifest's sessions."""
        answers: list[Any] = []
        for session in self.manifest["sessions"]:
            if key in session and session[key] not in answers:
                answers.append(session[key])
        return answers

    @property
    def last_train(self) -> MetricsRecord:
        """Return the last training record; empty if there is none."""
        return self.train[-1] if self.train else {}

    @property
    def last_heldout(self) -> MetricsRecord:
        """Return the last held-out record; empty if nothing was held out."""
        return self.heldout[-1] if self.heldout else {}

    @property
    def cost(self) -> tuple[str, str, str]:
        """Return steps, tokens and time so far, formatted; "-" for what is not recorded."""
        last = self.last_train
        return (
            format_metric("step", last.get("step")),
            format_count(last["tokens"]) if "tokens" in last else "-",
            format_seconds(last["seconds"]) if "seconds" in last else "-",
        )


@dataclass(frozen=True)
class Finetuning:
    """The scores of one encoder on one task, over all seeds."""

    encoder: str
    """Name of the run or folder of the pre-trained weights; from scratch, of the encoder's sizes.
    It is `start` where two have one name."""
    task: str
    metric: str
    from_scratch: bool
    """Whether the encoder started without its pre-trained weights, for comparison."""
    seeds: tuple[str, ...]
    median: float
    """Median over the seeds as drawn."""
    std: float | None
    """None for a single seed."""
    majority: float | None
    """The metric of the constant answer that fits train best, or of what `guess` names."""
    num_replaced: int
    """Collapsed seeds that were replaced by other seeds."""
    replaced_median: float | None
    """Median with the replacements of collapsed seeds; None if no seed was replaced."""
    num_degenerate: int
    """Seeds that collapsed: they are no better than a constant answer."""
    commit: str | None
    device: str | None
    scores: Mapping[str, tuple[float, ...]]
    """One score per seed, by metric on dev. The key for another split is "SPLIT METRIC"."""
    start: str = ""
    """The folder of the weights, as it was named."""
    after: str = ""
    """The task that the pre-trained weights were fine-tuned on before; empty: none."""
    guess: str = "constant answer"
    """The score that a model has to beat."""

    @property
    def label(self) -> str:
        """Name of the task in tables."""
        return f"{self.task} after {self.after}" if self.after else self.task

    @property
    def score(self) -> str:
        """Return the median over the seeds, and the standard deviation for several seeds.

        If collapsed seeds were replaced, their number follows in brackets, with the median that
        includes the replacements.
        """
        spread = "" if self.std is None else f" ± {self.std:.3f}"
        score = f"{self.median:.3f}{spread}"
        if not self.num_replaced:
            return score
        replaced = f"{self.num_replaced} of {len(self.seeds)} replaced"
        return f"{score} ({self.replaced_median:.3f} with {replaced})"

    def differs(self, other: "Finetuning") -> bool:
        """Return whether two medians differ by more than the sum of their standard deviations."""
        return abs(self.median - other.median) > (self.std or 0.0) + (other.std or 0.0)


class NetworkConfig(TypedDict):
    """config.json of a network; the fields that a report shows."""

    model_type: str
    architectures: NotRequired[list[str] | None]


class Model(NamedTuple):
    """A folder that `electra export` or `electra import` wrote, or another Hugging Face folder."""

    name: str
    networks: Mapping[str, Mapping[str, Any]]
    """The config.json of each network: "encoder", and perhaps "generator"."""
    origin: Mapping[str, Any]
    """The folder's electra.json; empty without one."""


class Found(NamedTuple):
    """The contents of some folders, by kind and in their order."""

    runs: list[Run]
    finetunings: list[Finetuning]
    models: list[Model]


def read_folders(folders: Sequence[Path]) -> Found:
    """Return the runs, fine-tunings and models in these folders; refuse what is none of them."""
    runs, finetunings, models = [], [], []
    for folder in map(find_model, folders):
        require(folder.is_dir(), f"there is no folder {folder}")
        if is_run(folder):
            runs.append(folder)
        elif (folder / "results.json").exists():
            finetunings.append(read_finetuning(folder / "results.json"))
        else:
            models.append(_read_model(folder))
    places = [Path(each.start).absolute() for each in finetunings]  # spelled in several ways
    first = dict(reversed([*zip(places, finetunings, strict=True)]))
    shared = Counter(each.encoder for each in first.values())
    named = [
        replace(each, encoder=first[place].start) if shared[each.encoder] > 1 else each
        for place, each in zip(places, finetunings, strict=True)
    ]
    return Found(read_runs(runs), named, models)


def is_run(folder: Path) -> bool:
    """Return whether a folder is of a pre-training that has begun."""
    return (folder / "metrics.jsonl").exists() or (folder / "checkpoints").is_dir()


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs in these folders, named by folder, or by path if folder names repeat.

    Metrics are sorted by step, and each step occurs once. Damaged records of metrics.jsonl are
    left out with a warning; a run without any record is refused.
    """
    names = [folder.absolute().name for folder in folders]
    named = zip(folders, names, strict=True)
    return [_read_run(f, n if names.count(n) == 1 else str(f)) for f, n in named]


def _read_run(folder: Path, name: str) -> Run:
    require(is_run(folder), f"{folder} is not a run folder: it has no metrics.jsonl")
    records = read_curves(folder)
    told = f"{folder / 'metrics.jsonl'} holds no record"
    require(bool(records), f"{told}: the run has not logged anything yet, or has lost all of it")
    parts: dict[str, list[MetricsRecord]] = {"train": [], "heldout": []}
    for record in records:
        parts[record["part"]].append(record)
    path = folder / "config.json"
    values = read_object(path)
    with refuse_unlike(f"{path} is not the config of a run"):
        config = from_dict(PretrainConfig, values)
    return Run(name, config, read_manifest(folder), **parts)


def _read_model(folder: Path) -> Model:
    check_hashes(folder)
    places = {"encoder": folder, "generator": folder / "generator"}
    paths = {role: place / "config.json" for role, place in places.items()}
    networks = {role: read_object(path) for role, path in paths.items() if path.is_file()}
    require(
        "encoder" in networks and all("model_type" in each for each in networks.values()),
        f"{folder} is neither a run, nor a fine-tuning, nor a folder of `electra export` or "
        "`electra import`",
    )
    for role, values in networks.items():
        check_shape(values, NetworkConfig, paths[role])
    path = folder / HASHES
    return Model(folder.absolute().name, networks, read_object(path) if path.is_file() else {})


SCORED = (
    *("start", "task", "metric", "from_scratch", "seeds", "median", "std", "majority"),
    "num_degenerate",
)
"""Fields of a fine-tuning's results that tables show."""


def read_finetuning(path: Path) -> Finetuning:
    """Return the scores in a fine-tuning's results.json; of a grid, those of its best."""
    path = find_best(path.parent) / path.name
    check_hashes(path.parent)
    values = read_results(path.parent)
    require_fields(values, SCORED, path)
    replaced = values.get("with_replacements")
    return Finetuning(
        encoder=_name_start(Path(values["start"])),
        start=values["start"],
        task=values["task"],
        metric=values["metric"],
        from_scratch=values["from_scratch"],
        seeds=tuple(values["seeds"]),
        median=values["median"],
        std=values["std"],
        majority=values["majority"].get(values["metric"]),
        num_replaced=sum(s != str(n) for s, n in replaced["seeds"].items()) if replaced else 0,
        replaced_median=replaced["median"] if replaced else None,
        num_degenerate=values["num_degenerate"],
        commit=values.get("commit"),
        device=values.get("device"),
        scores=_collect_scores(values["seeds"].values()),
        after=values.get("after", ""),
        guess=values.get("guess", "constant answer"),
    )


def _name_start(start: Path) -> str:
    """Return the name of a run or another folder, and the step of a run's checkpoint."""
    if start.parent.name != "checkpoints":
        return start.name
    return f"{start.parent.parent.name}@{start.name.removeprefix('step-').lstrip('0') or 0}"


def _collect_scores(seeds: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    collected: dict[str, list[float]] = {}
    for record in seeds:
        scores = dict(record.get("scores", {}))
        for split, others in record.get("other_scores", {}).items():
            scores |= {f"{split} {metric}": value for metric, value in others.items()}
        for name, value in scores.items():
            collected.setdefault(name, []).append(value)
    return {name: tuple(values) for name, values in collected.items()}


def find_finetunings(run: Path, step: int) -> list[Path]:
    """Return the fine-tuning folders beside a run that started from its weights at a step.

    Grids are included, and so are fine-tunings from scratch, which took only the run's sizes.
    """
    source = re.compile(rf"{re.escape(run.resolve().name)} at step (\d+)")
    found = []
    for path in sorted(run.resolve().parent.glob("*/results.json")):
        try:
            results = read_object(path)
        except UserError:
            continue
        begun_with = Path(str(results.get("source")))
        started = source.fullmatch(begun_with.name)
        if not started:
            continue
        other = begun_with.with_name(run.resolve().name)
        if other.exists() and not other.samefile(run):  # another run of the name
            continue
        if results.get("from_scratch") or int(started[1]) == step:
            found.append(path.parent)
    return found


def read_samples(run: Path) -> list[Sentence]:
    """Return the sentences of a run's samples.json; empty before the run has finished.

    As many tokens are suspected as were replaced.
    """
    path = run / "samples.json"
    if not path.exists():
        return []
    rows = read_object(path, SavedRows)["rows"]
    names = SavedToken.__annotations__
    return suspect_as_many([[TokenView(*(each[n] for n in names)) for each in row] for row in rows])


def write_tables(found: Found) -> str:
    """Return the tables of `list_tables` as Markdown."""
    return "\n\n".join(map(to_markdown, list_tables(found))) + "\n"


def list_tables(found: Found) -> list[Table]:
    """Return runs, their held-out measures and where they come from; scores; models."""
    runs = found.runs
    tables = [pretraining_table(runs), domains_table(runs), facts_table(runs)]
    tables += [finetuning_table(found.finetunings), origins_table(found.finetunings)]
    tables.append(models_table(found.models))
    return [table for table in tables if table.rows]


def heldout_table(runs: Sequence[Run]) -> Table:
    """Return the last held-out metrics, one column per run."""
    names = _find_measured(run.last_heldout for run in runs)
    rows = [
        [name, *(format_metric(name, run.last_heldout.get(name)) for run in runs)] for name in names
    ]
    return Table(["on the held-out part", *(run.name for run in runs)], rows)


def _find_measured(records: Iterable[MetricsRecord]) -> list[str]:
    """Return the metrics that any of the records has, in the glossary's order."""
    known = set[str]().union(*records) - {"step", "tokens"}
    return [name for name in GLOSSARY if name in known]


def pretraining_table(runs: Sequence[Run]) -> Table:
    """Return the cost and the few most important held-out metrics of each run, a row for each."""
    metrics = [
        name for name in _find_measured(run.last_heldout for run in runs) if GLOSSARY[name].summary
    ]
    rows = [
        [run.name, *run.cost]
        + [format_metric(name, run.last_heldout.get(name)) for name in metrics]
        for run in runs
    ]
    return Table(["run", "steps", "tokens", "time", *metrics], rows)


def domains_table(runs: Sequence[Run]) -> Table:
    """Return the measures of continued runs on old and new text, one row per evaluation."""
    records = [(run, record) for run in runs for record in run.heldout]
    metrics = [
        name
        for name in _find_measured(record for _, record in records)
        if name.startswith(("old_", "new_"))
    ]
    rows = [
        [run.name, format_metric("step", record["step"])]
        + [format_metric(name, record.get(name)) for name in metrics]
        for run, record in records
        if record.keys() & set(metrics)
    ]
    return Table(["continued run", "step", *metrics], rows)


def finetuning_table(finetunings: Sequence[Finetuning]) -> Table:
    """Return the scores of each task: pre-trained, from scratch and the constant answer.

    The last rows are the GLUE averages whose tasks are complete.
    """
    rows = []
    for (encoder, task, metric), pair in pair_finetunings(finetunings).items():
        both = [each for each in pair if each]
        majority, guess = both[0].majority, both[0].guess
        named = "" if guess == "constant answer" else f" ({guess})"
        rows.append(
            [
                encoder,
                task,
                metric,
                *(each.score if each else "-" for each in pair),
                "-" if majority is None else f"{majority:.3f}{named}",
                count_seeds(both),
            ]
        )
    headers = ["encoder", "task", "metric", "pre-trained", "from scratch", "constant answer"]
    return Table([*headers, "seeds"], rows + average_rows(finetunings))


def count_seeds(pair: Sequence[Finetuning]) -> str:
    """Return the number of seeds of two fine-tunings; both numbers if they differ."""
    return " and ".join(dict.fromkeys(str(len(each.seeds)) for each in pair))


def pair_finetunings(
    finetunings: Sequence[Finetuning],
) -> dict[tuple[str, str, str], tuple[Finetuning | None, Finetuning | None]]:
    """Return the pairs (pre-trained, from scratch) by (encoder, label of the task, metric)."""
    found: dict[tuple[str, str, str], dict[bool, Finetuning]] = {}
    for finetuning in finetunings:
        key = finetuning.encoder, finetuning.label, finetuning.metric
        starts = found.setdefault(key, {})
        require(
            finetuning.from_scratch not in starts,
            f"two fine-tunings of {finetuning.encoder} on {finetuning.label} are of the same kind "
            f"(from_scratch {finetuning.from_scratch}); report one of them",
        )
        starts[finetuning.from_scratch] = finetuning
    return {key: (starts.get(False), starts.get(True)) for key, starts in found.items()}


Protocol = Mapping[str, tuple[str, ...]]
"""The metrics of each task. A task's score is their mean.

A metric is one of dev, or one of another split after the name of the split."""

SITE: Protocol = {
    "cola": ("mcc",),
    "sst-2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "sts-b": ("pearson", "spearman"),
    "qqp": ("f1", "accuracy"),
    "mnli": ("accuracy", "dev_mismatched accuracy"),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
}
HEADLINES: Protocol = {task: ("accuracy",) for task in SITE} | {
    "cola": ("mcc",),
    "sts-b": ("spearman",),
}
PROTOCOLS: dict[str, Protocol] = {
    "GLUE site's metrics, 9 tasks": {**SITE, "wnli": ("accuracy",)},
    "GLUE site's metrics, 8 tasks, no WNLI": SITE,
    "ELECTRA paper's metrics, 8 tasks, no WNLI": HEADLINES,
}
"""The protocols, under their names in tables.

Sources: the leaderboard of gluebenchmark.com, where a task with two metrics counts as their mean
and MNLI as the mean of matched and mismatched; section 3.1 of the paper, with one metric per task.
"""


def average_glue(finetunings: Iterable[Finetuning], protocol: Protocol) -> float | None:
    """Return the mean over tasks of the median over seeds; None if a task or a metric is missing.

    Tasks outside GLUE, and those that began with the weights of another task, do not count.
    """
    scores = {each.task: each.scores for each in finetunings if not each.after}
    medians = []
    for task, metrics in protocol.items():
        values = [scores.get(task, {}).get(metric, ()) for metric in metrics]
        if not all(values):
            return None
        medians.append(
            statistics.median(statistics.mean(seed) for seed in zip(*values, strict=True))
        )
    return statistics.mean(medians)


def average_rows(finetunings: Sequence[Finetuning]) -> list[list[str]]:
    """Return a row of `finetuning_table` for each GLUE average whose tasks are complete."""
    rows = []
    for encoder in dict.fromkeys(each.encoder for each in finetunings):
        own = [each for each in finetunings if each.encoder == encoder]
        for name, protocol in PROTOCOLS.items():
            starts = [
                average_glue((each for each in own if each.from_scratch == scratch), protocol)
                for scratch in (False, True)
            ]
            if starts != [None, None]:
                cells = ("-" if value is None else f"{value:.3f}" for value in starts)
                rows.append([encoder, "GLUE average", name, *cells, "-", "-"])
    return rows


def origins_table(finetunings: Sequence[Finetuning]) -> Table:
    """Return the seeds, machine and commit of each fine-tuning, one row per fine-tuning."""
    rows = [
        [
            each.encoder,
            each.label,
            "scratch" if each.from_scratch else "pre-trained",
            ", ".join(each.seeds),
            str(each.device or UNKNOWN),
            format_commit(each.commit),
        ]
        for each in finetunings
    ]
    return Table(["encoder", "task", "from", "seeds", "device", "commit"], rows)


def models_table(models: Sequence[Model]) -> Table:
    """Return the sizes and the origin of each network of models, one row per network."""
    sizes = {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
    }
    rows = [
        [
            model.name,
            role,
            " ".join(map(str, config.get("architectures") or [config["model_type"]])),
            *(str(config.get(size, "-")) for size in sizes.values()),
            str(model.origin.get("source", UNKNOWN)),
        ]
        for model in models
        for role, config in model.networks.items()
    ]
    return Table(["model", "network", "class", *sizes, "made from"], rows)


def facts_table(runs: Sequence[Run]) -> Table:
    """Return the settings and the environment of each run, and all settings that differ."""
    facts = []
    differ = {name for run in runs for name in differences(runs[0].config, run.config)}
    for run in runs:
        settings = flatten(to_dict(run.config))
        facts.append(list_facts(run) | {k: str(v) for k, v in settings if k in differ})
    names = facts[0] if facts else ()
    rows = [[name, *(column[name] for column in facts)] for name in names]
    return Table(["", *(run.name for run in runs)], rows)


def list_facts(run: Run) -> dict[str, str]:
    """Return settings, environment and progress of a run, by name."""
    config, last = run.config, run.last_train
    model, train = config.model, config.train
    versions = (
        {"electra": session.get("electra", UNKNOWN), **session.get("packages", {})}
        for session in run.manifest["sessions"]
    )
    packages = (", ".join(f"{name} {each}" for name, each in one.items()) for one in versions)
    start, optimizer = run.manifest.get("init_from"), config.optimizer
    initial = train.initial_weights
    drawn = "random, as in the paper" if initial == "bert" else f"random, with {initial}"
    method, usual = config.method, MethodConfig()
    ways = [way for way in (method.scheme, method.mode) if way not in (usual.scheme, usual.mode)]
    return {
        "objective": ", ".join([method.objective, *ways]),
        "encoder": f"{count_of(model.num_hidden_layers, 'layer')}, width {model.hidden_size:,}, "
        f"{count_of(model.num_attention_heads, 'head')}",
        "generator": _describe_generator(run),
        "first weights": str(start.get("source", UNKNOWN)) if start else drawn,
        "vocabulary": f"{model.vocab_size:,} tokens",
        "batch": f"{train.batch_size:,} rows of {config.examples.sequence_length:,} tokens",
        "optimizer": f"{optimizer.matrices}, learning rate {optimizer.learning_rate:g}, "
        f"{optimizer.warmup_steps:,} steps of warm-up",
        "masked": f"{method.mask_prob} of the tokens",
        "steps": f"{format_metric('step', last.get('step'))} of {train.steps:,}",
        "text read": f"{last['tokens']:,} tokens" if last else UNKNOWN,
        "operations": f"{last['flops']:.2e} FLOPs" if last.get("flops") else UNKNOWN,
        "compared with the paper": _find_place(run),
        "time": format_seconds(last["seconds"]) if last else UNKNOWN,
        "device": " and ".join(map(str, run.tell("device"))) or UNKNOWN,
        "dtype": " and ".join(map(str, run.tell("dtype"))).replace("torch.", "") or UNKNOWN,
        "seed": str(run.manifest.get("seed", UNKNOWN)),
        "commit": " and ".join(map(format_commit, run.tell("commit"))) or UNKNOWN,
        "packages": " and ".join(dict.fromkeys(packages)),
    }


def _describe_generator(run: Run) -> str:
    config, generator = run.config, run.config.generator
    if not config.method.has_generator or (run.train and "mlm_loss" not in run.last_train):
        return "none"
    if generator.kind != "network":
        return generator.kind
    width, layers = generator.hidden_size, generator.num_hidden_layers
    wide = f"width {width:,}" if width else f"{generator.hidden_fraction} of the width"
    deep = count_of(layers, "layer") if layers else f"{generator.layers_fraction} of the layers"
    return f"{wide}, {deep}"


def format_commit(commit: object) -> str:
    """Return the first ten characters of a commit, and the mark of uncommitted changes, if any."""
    if not commit:
        return UNKNOWN
    name, plus, changes = str(commit).partition("+")
    return f"{name[:10]}{plus}{changes}"


def _find_place(run: Run) -> str:
    """Return where the run stands now among the paper's points of FLOPs and scores."""
    planned, done = run.tell("flops"), run.last_train.get("step")
    if not planned or not done:
        return UNKNOWN
    return place_on_the_papers_curve(planned[-1]["paper"] * done / run.config.train.steps)


PAPER = (
    (8.9e16, 74.1, "ELECTRA-Small after 6.25% of its training"),
    (1.8e17, 76.0, "ELECTRA-Small after 12.5%"),
    (3.6e17, 77.7, "ELECTRA-Small after 25%"),
    (7.1e17, 79.0, "ELECTRA-Small after 50%"),
    (1.4e18, 79.9, "ELECTRA-Small"),
    (6.4e19, 85.1, "ELECTRA-Base"),
    (7.1e20, 89.0, "ELECTRA-Large after 400k steps"),
    (3.1e21, 89.5, "ELECTRA-Large"),
)
"""FLOPs by the paper's count, GLUE dev in points, and the model. Source: tables 1 and 2."""
WORTH_TELLING = 0.01
"""Share of the next point below which a run of minutes learns nothing from it."""


def place_on_the_papers_curve(flops: float) -> str:
    """Return in words which of the paper's points a run has passed, and which is the next.

    The operations so far are counted as the paper does (`count_as_the_paper`). Below a hundredth of
    the first point, no point is named.
    """
    passed = [point for point in PAPER if point[0] <= flops]
    following = [point for point in PAPER if point[0] > flops]
    text = f"{flops:.1e} FLOPs by the paper's count"
    if passed:
        text += f": past {passed[-1][2]}, which had GLUE {passed[-1][1]}"
    for needed, score, name in following[:1]:
        if flops / needed >= WORTH_TELLING:
            text += f"{';' if passed else ':'} {flops / needed:.0%} of {name} (GLUE {score})"
    return text

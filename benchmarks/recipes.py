"""Recipes of replaced token detection at equal true FLOPs, on one yardstick.

    python -m benchmarks.recipes SHARDS --runs FOLDER --out results/recipes.json
    python -m benchmarks.recipes SHARDS --study architectures --preset tiny --runs FOLDER
        --glue GLUE --conll CONLL --out results/architectures.json

Each variant is pre-trained with each seed until the budget of FLOPs is spent. Eight checkpoints of
each run judge the same held-out rows, corrupted by the generator of the present recipe's first
seed. Their loss is that of the logits after a scale and a bias are fitted, so that recipes which
mask another share of the tokens can be compared. The tables show after which share of the present
recipe's FLOPs, and of its seconds, a recipe reaches the present recipe's final loss. Seconds are
those of steps timed in turn, in one process. "Averaged" is the mean of the last two checkpoints'
weights, which an exponential average of weights would be near to. The scores are those of
fine-tunings on the tasks in --glue and --conll; without these, on the punctuation of held-out
texts.

The study of architectures compares ELECTRA's body with ModernBERT's (the preset and modern-preset)
under RTD and MLM, all with the best recipe. Of ELECTRA, cooccurrence also lets the first layer look
at adjacent tokens. MLM has no discriminator, so it is compared on the tasks only. With
--equal seconds each run gets the processor seconds that the first variant takes for the FLOPs,
timed when the study begins; the times are in FOLDER, so that the same command continues with them.

All runs are in FOLDER. After an interruption, the same command continues there. The results hold
all finished runs in FOLDER, so that a second command can add seeds for some variants; with the
results and their .rows.safetensors alone, a command on another machine can. `--part 0/2`
and `--part 1/2` divide the work between two processes; the command without --part does the
remaining work and writes the results.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks.objectives import format_spread, trace
from electra.assignments import override
from electra.checkpoints.checkpoint import (
    list_checkpoints,
    load_parameters,
    read_tensors,
    write_tensors,
)
from electra.checkpoints.folder import read_run_config
from electra.checkpoints.manifest import find_commit
from electra.errors import UserError, require
from electra.files import write_json, write_text
from electra.finetuning.grid import combine, search
from electra.method.flops import count_true
from electra.method.objective import Objective
from electra.model.batch import Batch, find_real
from electra.presets import FINETUNE_PRESETS, PRESETS
from electra.pretraining.evaluation import heldout_rows, split_heldout
from electra.pretraining.loop import pretrain, resume
from electra.pretraining.memory import make_rows
from electra.pretraining.networks import sketch_objective
from electra.pretraining.start import build_model, fit_to_shards, prepare_step
from electra.quickstart.config import QUICKSTART
from electra.quickstart.questions import punctuation_question, write_passages
from electra.reports.rendering import Table, to_markdown
from electra.settings import to_dict
from electra.shards.store import open_shards
from electra.training.config import PretrainConfig
from electra.training.machine import prepare_machine

PRESENT = "present"
BEST = "cooccurrence, muon, rate 2e-3, batch 16"
_BEST: dict[str, Any] = {
    "train.initial_weights": "cooccurrence",
    "optimizer.matrices": "muon",
    "optimizer.learning_rate": 2e-3,
    "train.batch_size": 16,
}
_ONE_CHANGE: dict[str, dict[str, Any]] = {
    "decay 0.1": {"optimizer.weight_decay": 0.1},
    "generator rate 0.5": {"optimizer.generator_rate": 0.5},
    "generator rate 2": {"optimizer.generator_rate": 2},
    "rate 4e-3": {"optimizer.learning_rate": 4e-3},
    "beta2 0.999": {"optimizer.adam_beta2": 0.999},
    "weight 20": {"method.disc_weight": 20},
    "mask 25%": {"method.mask_prob": 0.25},
    "temperature 0.7": {"generator.temperature": 0.7},
    "generator as deep": {"generator.layers_fraction": 1},
    "dropout 0.1": {"model.hidden_dropout_prob": 0.1, "model.attention_probs_dropout_prob": 0.1},
}
_SHIPPED: dict[str, Any] = {**_BEST, "train.batch_size": 32, "optimizer.weight_decay": 0.1}
_CHANGES: dict[str, dict[str, Any]] = {
    PRESENT: {},
    "rate 2e-3": {"optimizer.learning_rate": 2e-3},
    "cooccurrence": {"train.initial_weights": "cooccurrence"},
    "muon": {"optimizer.matrices": "muon"},
    "cooccurrence, muon, rate 2e-3": {
        setting: value for setting, value in _BEST.items() if setting != "train.batch_size"
    },
    "cooccurrence, muon, rate 2e-3, decay 0.1": _SHIPPED,
    BEST: _BEST,
    **{f"best, {name}": {**_BEST, **change} for name, change in _ONE_CHANGE.items()},
}
_MLM = {**_SHIPPED, "method.objective": "mlm"}
MODERN = "ModernBERT"
STUDIES: dict[str, dict[str, dict[str, Any]]] = {
    "recipes": _CHANGES,
    "architectures": {
        "ELECTRA, RTD": _SHIPPED,
        f"{MODERN}, RTD": _SHIPPED,
        "ELECTRA, MLM": _MLM,
        f"{MODERN}, MLM": _MLM,
        f"{MODERN}, RTD, global attention": {**_SHIPPED, "model.global_attn_every_n_layers": 1},
    },
}
"""Variants of each study, and the settings in which they differ from BASE. The first variant is the
one that the others are compared with."""
VARIANTS = {name: change for study in STUDIES.values() for name, change in study.items()}
BASE: dict[str, Any] = {
    "train.initial_weights": "neighbours",
    "optimizer.matrices": "adamw",
    "optimizer.learning_rate": 1e-3,
    "optimizer.weight_decay": 0.01,
    "train.batch_size": 32,
    "train.threads": 1,
    "train.evaluate_rows": 256,
    "train.keep_checkpoints": 8,
    "train.save_every": 1,
}
"""The present recipe, beside the sizes of the preset."""
NUM_POINTS = 8
"""Checkpoints of a run that are scored."""
YARDSTICK_ROWS = 256
TIMING_ROUNDS = 7
Scores = dict[str, dict[str, float]]
"""By variant and task."""
TASKS = {
    "punctuation": ["epochs=8", "batch_size=16"],
    "conll2003": ["epochs=3", "train_examples=4000"],
    "sst-2": ["epochs=1", "train_examples=10000"],
    "sts-b": ["epochs=4"],
    "cola": ["epochs=3"],
    "mrpc": ["epochs=3"],
    "rte": ["epochs=3"],
    "qnli": ["epochs=1", "train_examples=20000"],
    "mnli": ["epochs=1"],
}
"""Fine-tuning settings of each task."""
RATES = "0.0005,0.001"
"""Learning rates of fine-tuning; dev chooses for each run."""


def configure(
    preset: str, variant: str, seed: int, flops: float, shards_folder: Path
) -> PretrainConfig:
    """Return the settings of a run, with steps for the budget of true FLOPs."""
    name = f"modern-{preset}" if variant.startswith(MODERN) else preset
    known = {"quickstart": QUICKSTART.pretrain, **PRESETS}
    require(name in known, f"there is no preset {name}: choose --preset tiny or small")
    sizes = known[name]
    settings = {**BASE, **VARIANTS[variant], "train.seed": seed}
    config = fit_to_shards(
        override(sizes, [f"{setting}={value}" for setting, value in settings.items()]),
        open_shards(shards_folder, verify=False),
    )
    length = config.examples.sequence_length
    per_step = count_true(sketch_objective(config), length) * config.train.batch_size * length
    points = max(1, round(flops / per_step / NUM_POINTS))
    return override(
        config,
        [
            f"train.steps={points * NUM_POINTS}",
            f"train.save_every={points}",
            f"train.evaluate_every={points * NUM_POINTS}",
            f"optimizer.warmup_steps={points * NUM_POINTS // 10}",
        ],
    )


def load(run: Path, checkpoint: Path, shards_folder: Path) -> Objective:
    """Return the objective of a run with the weights of a checkpoint."""
    config = read_run_config(run)
    machine = prepare_machine("cpu", "float32", 1)
    model = build_model(config, open_shards(shards_folder, verify=False).tokenizer, machine)
    load_parameters(model, read_tensors(checkpoint / "model.safetensors"))
    return model.eval()


def find_rows(
    path: Path, first: Path, config: PretrainConfig, shards_folder: Path
) -> list[tuple[Batch, Tensor]]:
    """Return held-out rows, and the rows as the generator of a run corrupts them.

    Args:
        path: The file of the corrupted rows, which is written if it is not there.
        first: The finished run whose generator corrupts them.
        config: Settings of that run.
        shards_folder: Where the held-out rows are.
    """
    shards = open_shards(shards_folder, verify=False)
    heldout = heldout_rows(shards, override(config, [f"train.evaluate_rows={YARDSTICK_ROWS}"]))
    assert heldout
    original = heldout.input_ids_BL
    if not path.exists():
        require(
            (first / "results.json").exists(),
            f"{path} is needed, or {first}, finished: run this variant alone first",
        )
        corrupted = corrupt(load(first, list_checkpoints(first)[-1], shards_folder), heldout)
        ids = {"original": original, "corrupted": torch.cat(corrupted)}
        incomplete = path.with_name(f"{path.name}.{os.getpid()}")
        write_tensors(incomplete, {name: tensor.int() for name, tensor in ids.items()})
        incomplete.replace(path)
    ids = dict(read_tensors(path))
    require(
        torch.equal(ids["original"], original.int()),
        f"{path} has rows of other shards than {shards_folder}",
    )
    corrupted = ids["corrupted"].long().split(32)
    return [
        (heldout.rows(slice(32 * number, 32 * (number + 1))), part)
        for number, part in enumerate(corrupted)
    ]


@torch.no_grad()
def corrupt(model: Objective, heldout: Batch) -> list[Tensor]:
    """Return the ids of rows with the tokens that a model's generator replaces."""
    rows = []
    for parts in split_heldout(model, heldout, 32):
        judgement = model(*parts).judgement
        assert judgement
        rows.append(judgement.corrupt_ids_BL)
    return rows


@torch.no_grad()
def judge(model: Objective, rows: Sequence[tuple[Batch, Tensor]]) -> dict[str, float]:
    """Return loss (fitted), AUC and the constant's loss of a discriminator on corrupted rows."""
    network = model.networks["discriminator"]
    logits, labels = [], []
    for batch, corrupt_ids_BL in rows:
        hidden_BLH = network.encoders[0](*batch._replace(input_ids_BL=corrupt_ids_BL).inputs)
        real_BL = find_real(batch)
        logits.append(network.head(hidden_BLH)[real_BL].double().numpy())
        labels.append((corrupt_ids_BL != batch.input_ids_BL)[real_BL].numpy())
    logit, label = np.concatenate(logits), np.concatenate(labels)

    def loss(fit: np.ndarray) -> float:
        fitted = fit[0] * logit + fit[1]
        return float(np.mean(np.logaddexp(0, fitted) - label * fitted))

    share = label.mean()
    return {
        "loss": float(minimize(loss, np.array([1.0, 0.0]), method="Nelder-Mead").fun),
        "auc": float(roc_auc_score(label, logit)),
        "constant_loss": float(-share * math.log(share) - (1 - share) * math.log(1 - share)),
    }


def name_run(runs: Path, variant: str, seed: int) -> Path:
    """Return the run folder of a variant and seed."""
    return runs / f"{variant.replace(', ', '-').replace(' ', '-')}-{seed}"


def find_first(variant: str) -> str:
    """Return the variant that a variant is compared with."""
    return next(next(iter(study)) for study in STUDIES.values() if variant in study)


def run_one(
    preset: str,
    variant: str,
    seed: int,
    flops: float,
    shards: Path,
    runs: Path,
    rows_path: Path,
    tasks: dict[str, Path],
) -> dict[str, Any]:
    """Return the record of one variant and seed, after any remaining work."""
    config = configure(preset, variant, seed, flops, shards)
    run = name_run(runs, variant, seed)
    done = run / "recipe.json"
    if done.exists():
        record = dict(json.loads(done.read_text(encoding="utf-8")))
        if record["config"] != to_dict(config):
            raise SystemExit(f"error: {done} is of other settings; choose another --runs")
        return record
    if not (run / "results.json").exists():
        if (run / "config.json").exists():
            resume(run, _say)
        else:
            pretrain(shards, run, config, _say)
    curve, averaged = [], None
    if config.method.objective != "mlm":
        first = find_first(variant)
        first_config = configure(preset, first, 0, flops, shards)
        rows = find_rows(rows_path, name_run(runs, first, 0), first_config, shards)
        checkpoints = list_checkpoints(run)
        curve = [
            {"step": int(each.name.removeprefix("step-")), **judge(load(run, each, shards), rows)}
            for each in checkpoints
        ]
        last = [read_tensors(each / "model.safetensors") for each in checkpoints[-2:]]
        average = load(run, checkpoints[-1], shards)
        load_parameters(average, {name: (last[0][name] + last[1][name]) / 2 for name in last[0]})
        averaged = judge(average, rows)
    scores = {
        task: score(run, task, data, runs, f"{run.name}-{task}") for task, data in tasks.items()
    }
    record = {
        "variant": variant,
        "settings": [f"{setting}={value}" for setting, value in VARIANTS[variant].items()],
        "seed": seed,
        "steps": config.train.steps,
        "curve": curve,
        "averaged": averaged,
        "scores": scores,
        "heldout": json.loads((run / "results.json").read_text(encoding="utf-8"))["heldout"],
        "config": to_dict(config),
        "manifest": trace(json.loads((run / "manifest.json").read_text(encoding="utf-8"))),
    }
    write_json(done, record)
    print(f"{run.name}: {curve[-1:]} {scores}", flush=True)
    return record


def score(
    start: Path, task: str, data: Path, runs: Path, name: str, scratch: bool = False
) -> float:
    """Return the score of a fine-tuning, the best on dev of RATES."""
    out = runs / name
    if not out.exists():
        kind = "tagging" if task in ("punctuation", "conll2003") else task
        settings = [*TASKS[task], "threads=1", "reseeds=0"]
        combinations = combine(FINETUNE_PRESETS["tiny"], settings, [f"learning_rate={RATES}"])
        search(
            *(start, kind, data, out, combinations),
            seeds=1,
            from_scratch=scratch,
            progress=lambda record: None,
        )
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return float(results["combinations"][0]["median"])


def time_steps(configs: dict[str, PretrainConfig], shards_folder: Path) -> dict[str, list[float]]:
    """Return the processor seconds per million tokens of each variant, timed in turn."""
    shards = open_shards(shards_folder, verify=False)
    steps = {}
    for name, config in configs.items():
        machine = prepare_machine("cpu", config.train.precision, 1)
        model = build_model(config, shards.tokenizer, machine).train()
        steps[name] = prepare_step(model, config, machine)
    taken: dict[str, list[float]] = {name: [] for name in configs}
    for round_ in range(-2, TIMING_ROUNDS):
        for name, config in configs.items():
            tokens, began = 0, time.process_time()
            while tokens < 32 * 128:
                batch = make_rows(config, config.train.batch_size, seed=0)
                tokens += batch.input_ids_BL.numel()
                steps[name](0, batch, config.optimizer.learning_rate)
            if round_ >= 0:
                taken[name].append(1e6 * (time.process_time() - began) / tokens)
    return taken


def share_seconds(
    preset: str, flops: float, variants: Sequence[str], shards: Path, runs: Path
) -> dict[str, float]:
    """Return the FLOPs of each variant in the seconds that the first takes for `flops`.

    The variants are timed once; a later call reads the times from `runs`.
    """
    path = runs / "seconds.json"
    configs = {name: configure(preset, name, 0, flops, shards) for name in variants}
    if not path.exists():
        write_json(path, time_steps(configs, shards))
    taken = json.loads(path.read_text(encoding="utf-8"))
    speeds = {}
    for name, config in configs.items():
        a_token = count_true(sketch_objective(config), config.examples.sequence_length)
        speeds[name] = a_token / statistics.median(taken[name])
    return {name: flops * speed / speeds[variants[0]] for name, speed in speeds.items()}


def restore(
    out: Path, runs: Path, preset: str, equal: str, tasks: Collection[str], shards: str
) -> tuple[dict[str, float], Scores]:
    """Take the finished runs of a results file into `runs`.

    Returns:
        The FLOPs of each variant, and the scores from scratch of the networks of some; both are
        empty without a file.

    Raises:
        UserError: The file has another preset, other tasks, or runs on other shards.
    """
    if not out.exists():
        return {}, {}
    known = json.loads(out.read_text(encoding="utf-8"))
    digests = {record["manifest"]["shards"] for record in known["records"]}
    same = {
        "preset": known["preset"] == preset,
        "--equal": known.get("equal") == equal,
        "tasks": all(scores.keys() == set(tasks) for scores in known["scratch"].values()),
        "shards": digests <= {shards},
    }
    other = [name for name, is_same in same.items() if not is_same]
    require(not other, f"{out} has other {' and '.join(other)}: choose another --out")
    for record in known["records"]:
        path = name_run(runs, record["variant"], record["seed"]) / "recipe.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, record)
    return dict(known["flops"]), dict(known["scratch"])


def find_share(curve: Sequence[dict[str, float]], loss: float) -> float | None:
    """Return the share of a run after which its loss falls to `loss`; None if it never does."""
    points = [(0.0, curve[0]["constant_loss"])]
    points += [(each["step"] / curve[-1]["step"], each["loss"]) for each in curve]
    for (before, high), (after, low) in itertools.pairwise(points):
        if low <= loss:
            return before + (after - before) * (high - loss) / (high - low)
    return None


def count_tokens(record: dict[str, Any]) -> int:
    """Return the positions of a run."""
    train, examples = record["config"]["train"], record["config"]["examples"]
    return int(record["steps"] * train["batch_size"] * examples["sequence_length"])


def name_scratch(variant: str, scratch: Scores) -> str:
    """Return the label of a variant's network from scratch; its body is named if there are more."""
    return "from scratch" if len(scratch) == 1 else f"{variant.partition(', ')[0]}, from scratch"


def tabulate(
    records: Sequence[dict[str, Any]],
    taken: dict[str, list[float]],
    flops: dict[str, float],
    scratch: Scores,
) -> Table:
    """Return a row for each variant, mean ± deviation over its seeds, and for each from scratch.

    Shares are those of the first variant's FLOPs and seconds.
    """
    tasks = list(next(iter(scratch.values())))
    compared_with = find_first(records[0]["variant"])
    present = [r for r in records if r["variant"] == compared_with]
    target = statistics.mean(r["curve"][-1]["loss"] for r in present)
    seconds = {
        r["variant"]: statistics.median(taken[r["variant"]]) * count_tokens(r) for r in records
    }
    means = [tasks] if len(tasks) > 1 else []
    rows = []
    for variant in dict.fromkeys(r["variant"] for r in records):
        own = [r for r in records if r["variant"] == variant]
        judged = [r for r in own if r["curve"]]
        shares = [find_share(r["curve"], target) for r in judged]
        if variant == compared_with:  # its seeds end around their mean
            shares = [1.0 for _ in own]
        known = [share for share in shares if share is not None]
        reached, in_time = (
            f"{statistics.mean(known) * costs[variant] / costs[compared_with]:.2f}"
            if known and len(known) == len(shares)
            else "never"
            for costs in (flops, seconds)
        )
        rows.append(
            [
                variant,
                str(len(own)),
                *(
                    (
                        format_spread([r["curve"][-1]["loss"] for r in judged]),
                        format_spread([r["curve"][-1]["auc"] for r in judged]),
                        format_spread([r["averaged"]["auc"] for r in judged]),
                        reached,
                        in_time,
                    )
                    if judged
                    else "-----"
                ),
                *(
                    format_spread(
                        [statistics.mean(r["scores"][task] for task in each) for r in own]
                    )
                    for each in means
                ),
                *(format_spread([r["scores"][task] for r in own]) for task in tasks),
            ]
        )
    for variant, scores in scratch.items():
        alone = [statistics.mean(scores.values()) for _ in means] + [scores[t] for t in tasks]
        rows.append(
            [name_scratch(variant, scratch), "1", *"-----", *(f"{score:.3f}" for score in alone)]
        )
    headers = ["recipe", "seeds", "loss", "AUC", "AUC, averaged", "share of FLOPs"]
    headers += ["share of seconds", *("mean of tasks" for _ in means), *tasks]
    return Table(headers, rows)


def draw(records: Sequence[dict[str, Any]], scratch: Scores, path: Path) -> None:
    """Write a picture: losses on the yardstick against the share of the budget, and the tasks."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 9), layout="constrained")
    names = list(dict.fromkeys(r["variant"] for r in records))
    tasks = list(next(iter(scratch.values())))
    for number, name in enumerate(names):
        own = [record for record in records if record["variant"] == name]
        color = f"C{number}"
        for record in own:
            above.plot(
                [point["step"] / record["steps"] for point in record["curve"]],
                [point["loss"] for point in record["curve"]],
                color=color,
                linewidth=2 if name == PRESENT else 1,
            )
        beside = (number - (len(names) - 1) / 2) * 0.6 / len(names)
        reached = [[record["scores"][task] for record in own] for task in tasks]
        below.errorbar(
            [place + beside for place in range(len(tasks))],
            [statistics.mean(each) for each in reached],
            [statistics.stdev(each) if len(each) > 1 else 0 for each in reached],
            color=color,
            marker="o",
            linestyle="none",
            capsize=3,
            label=name,
        )
    for (name, scores), style in zip(scratch.items(), ("-", ":"), strict=False):
        below.hlines(
            [scores[task] for task in tasks],
            [place - 0.4 for place in range(len(tasks))],
            [place + 0.4 for place in range(len(tasks))],
            color="gray",
            linestyle=style,
            label=name_scratch(name, scratch),
        )
    above.set_title("discriminator's loss on the same corrupted held-out rows, nats", fontsize=10)
    above.set_xlabel("share of the budget of true FLOPs")
    below.set_title("scores on dev, mean ± standard deviation over seeds", fontsize=10)
    below.set_xticks(range(len(tasks)), tasks)
    for panel in (above, below):
        panel.grid(alpha=0.3)
    below.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _say(record: dict[str, Any]) -> None:
    if record["part"] == "heldout":
        losses = {name: record[name] for name in ("mlm_loss", "disc_auc") if name in record}
        print(f"step {record['step']}: {losses}", flush=True)


def main() -> None:
    """Run the variants of the command line, and write the results if all parts are done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--conll", type=Path)
    parser.add_argument("--preset", default="quickstart", choices=["quickstart", *PRESETS])
    parser.add_argument("--study", default="recipes", choices=list(STUDIES))
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), help="default: the study's"
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--equal", default="flops", choices=["flops", "seconds"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--flops", type=float, default=1e13)
    parser.add_argument("--part", default="0/1")
    arguments = parser.parse_args()
    number, parts = map(int, arguments.part.split("/"))
    torch.set_num_threads(1)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    tasks = {"conll2003": arguments.conll} if arguments.conll else {}
    if arguments.glue:
        tasks |= {
            name: arguments.glue
            for name in arguments.tasks
            if name not in ("punctuation", "conll2003")
        }
    if not tasks:
        tasks = {"punctuation": arguments.runs / "punctuation"}
        if not tasks["punctuation"].exists():
            question = punctuation_question(open_shards(arguments.shards), 300, 400, seed=0)
            require(question is not None, f"{arguments.shards}: too little held-out text")
            assert question
            tasks["punctuation"].mkdir()
            write_passages(question.train, tasks["punctuation"] / "train.txt")
            write_passages(question.test, tasks["punctuation"] / "dev.txt")
    preset, shards, runs = arguments.preset, arguments.shards, arguments.runs
    study = list(STUDIES[arguments.study])
    rows = arguments.out.with_suffix(".rows.safetensors")
    digest = open_shards(shards, verify=False).digest
    known, scratch = restore(arguments.out, runs, preset, arguments.equal, tasks, digest)
    flops = dict.fromkeys(study, arguments.flops)
    if arguments.equal == "seconds" and not known:
        flops = share_seconds(preset, arguments.flops, study, shards, runs)
    require(
        arguments.equal == "seconds" or set(known.values()) <= {arguments.flops},
        f"{arguments.out} has other FLOPs than {arguments.flops:g}: choose another --out",
    )
    flops |= known
    jobs = [
        (variant, seed)
        for seed in range(arguments.seeds)
        for variant in arguments.variants or study
    ]
    for variant, seed in jobs[number::parts]:
        run_one(preset, variant, seed, flops[variant], shards, runs, rows, tasks)
    if parts > 1:
        return
    records = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in arguments.runs.glob("*/recipe.json")
    ]
    names = list(VARIANTS)
    records.sort(key=lambda record: (names.index(record["variant"]), record["seed"]))
    configs = {
        record["variant"]: configure(preset, record["variant"], 0, flops[record["variant"]], shards)
        for record in records
    }
    bodies = {config.model.architecture: name for name, config in reversed(configs.items())}
    for variant in sorted(bodies.values(), key=names.index):
        if variant not in scratch:
            start = name_run(runs, variant, 0)
            scratch[variant] = {
                task: score(start, task, data, runs, f"{start.name}-{task}-scratch", scratch=True)
                for task, data in tasks.items()
            }
    taken = time_steps(configs, arguments.shards)
    table = to_markdown(tabulate(records, taken, flops, scratch))
    result = {
        "commit": find_commit(),
        "preset": arguments.preset,
        "equal": arguments.equal,
        "flops": flops,
        "device": prepare_machine("cpu", "float32", 1).name,
        "seconds_per_million_tokens": taken,
        "scratch": scratch,
        "records": records,
    }
    write_json(arguments.out, result)
    write_text(arguments.out.with_suffix(".md"), table + "\n")
    draw(records, scratch, arguments.out.with_suffix(".png"))
    print(table)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None

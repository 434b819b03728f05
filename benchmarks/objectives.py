"""All objectives and schemes at equal compute: same rows, same initial weights, same true FLOPs.

    python -m benchmarks.objectives SHARDS GLUE --runs FOLDER --out results/objectives.json

Each variant is pre-trained with each seed until the budget of FLOPs is spent, and fine-tuned on
each task. All runs are in FOLDER. After an interruption, the same command continues there.
`--part 0/2` and `--part 1/2` divide the work between two processes. The command without --part does
the remaining work, writes the results and prints a table.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from electra.assignments import override
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.metrics import read_metrics
from electra.errors import UserError
from electra.files import write_json, write_text
from electra.finetuning.loop import finetune
from electra.method.flops import count_run, count_true
from electra.presets import FINETUNE_PRESETS, PRESETS
from electra.pretraining.loop import pretrain, resume
from electra.pretraining.networks import sketch_objective
from electra.pretraining.start import fit_to_shards
from electra.reports.rendering import Table, to_markdown
from electra.settings import to_dict
from electra.shards.store import open_shards
from electra.training.config import PretrainConfig

VARIANTS = {
    "rtd": [],
    "mlm": ["method.objective=mlm"],
    "rtd_masked_only": ["method.objective=rtd_masked_only"],
    "replace_mlm": ["method.objective=replace_mlm"],
    "all_tokens_mlm": ["method.objective=all_tokens_mlm"],
    "electric": ["method.objective=electric", "method.disc_weight=50"],
    "two_stage": ["method.scheme=two_stage", "method.sharing=none", "generator.layers_fraction=1"],
    "adversarial": ["method.scheme=adversarial"],
}
TASKS = {
    "cola": ["epochs=3"],
    "sst-2": ["epochs=1", "train_examples=20000"],
    "sts-b": ["epochs=5"],
    "qnli": ["epochs=1", "train_examples=10000"],
}
"""Settings per task, for minutes of training. The train part of QNLI may be a rebuilt one."""
FINETUNING = ["threads=1", "reseeds=0"]
"""Settings of all tasks. Collapsed seeds are not replaced, so all variants have the same seeds."""
MEASURES = ("mlm_loss", "mlm_accuracy", "disc_loss", "constant_disc_loss", "disc_auc")


def configure(variant: str, seed: int, rtd_steps: int, shards_folder: Path) -> PretrainConfig:
    """Return the settings of a run: `tiny` with two layers and steps for the budget of FLOPs.

    Args:
        variant: A key of VARIANTS.
        seed: Seed of the run.
        rtd_steps: The budget, as a number of steps of the variant rtd.
        shards_folder: The shards.
    """

    def build(name: str) -> PretrainConfig:
        model = dataclasses.replace(PRESETS["tiny"].model, num_hidden_layers=2)
        tiny = dataclasses.replace(PRESETS["tiny"], model=model)
        settings = [f"train.seed={seed}", "train.batch_size=32", "train.threads=1"]
        return fit_to_shards(
            override(tiny, [*VARIANTS[name], *settings]), open_shards(shards_folder)
        )

    config = build(variant)
    rtd, own = (
        count_true(sketch_objective(each), each.examples.sequence_length)
        for each in (build("rtd"), config)
    )
    steps = round(rtd_steps * rtd / own)
    return override(
        config,
        [
            f"train.steps={steps}",
            f"train.evaluate_every={max(1, steps // 8)}",
            f"train.save_every={steps}",
            f"optimizer.warmup_steps={steps // 20}",
        ],
    )


def run_one(
    variant: str, seed: int, rtd_steps: int, shards: Path, glue: Path, runs: Path
) -> dict[str, Any]:
    """Return the results of one variant and seed, after any remaining training."""
    config = configure(variant, seed, rtd_steps, shards)
    run = runs / f"{variant}-{seed}"
    if not (run / "results.json").exists():
        if (run / "config.json").exists():
            resume(run, _say)
        else:
            pretrain(shards, run, config, _say)
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    if results["steps"] != config.train.steps:
        raise SystemExit(f"error: {run} has {results['steps']} steps, not {config.train.steps}")
    scores = {}
    for task, settings in TASKS.items():
        out = runs / f"{variant}-{seed}-{task}"
        if not out.exists():
            finetuning = override(FINETUNE_PRESETS["tiny"], [*settings, *FINETUNING])
            finetune(run, task, glue, out, finetuning, seeds=1, progress=lambda record: None)
        scores[task] = json.loads((out / "results.json").read_text(encoding="utf-8"))["median"]
        print(f"{run.name} {task} {scores[task]:.3f}", flush=True)
    return {
        "variant": variant,
        "seed": seed,
        "steps": results["steps"],
        "tokens": results["tokens"],
        "seconds": results["seconds"],
        "flops": count_run(sketch_objective(config), *config.amount),
        "heldout": results["heldout"],
        "curve": [r for r in read_metrics(run / "metrics.jsonl") if r["part"] == "heldout"],
        "scores": scores,
        "config": to_dict(config),
        "manifest": trace(json.loads((run / "manifest.json").read_text(encoding="utf-8"))),
    }


def trace(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what a manifest says of data, code and machine, without folders and command lines."""
    facts = ("started", "commit", "electra", "packages", "device", "dtype", "step")
    sessions = [{key: each[key] for key in facts if key in each} for each in manifest["sessions"]]
    return {"shards": manifest["shards"]["sha256"], "seed": manifest["seed"], "sessions": sessions}


def score_scratch(start: Path, seeds: int, glue: Path, runs: Path) -> list[dict[str, Any]]:
    """Return the scores of the encoder without pre-training, one record per seed."""
    by_task = {}
    for task, settings in TASKS.items():
        out = runs / f"scratch-{task}"
        if not out.exists():
            finetuning = override(FINETUNE_PRESETS["tiny"], [*settings, *FINETUNING])
            finetune(
                start,
                task,
                glue,
                out,
                finetuning,
                seeds=seeds,
                from_scratch=True,
                progress=lambda record: None,
            )
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        by_task[task] = {
            seed: record["scores"][results["metric"]] for seed, record in results["seeds"].items()
        }
    return [
        {
            "variant": "scratch",
            "seed": int(seed),
            "scores": {task: scores[seed] for task, scores in by_task.items()},
        }
        for seed in by_task["cola"]
    ]


def tabulate(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table of variants: held-out metrics and scores, mean ± deviation over seeds."""
    rows = []
    for variant in dict.fromkeys(record["variant"] for record in records):
        of_variant = [record for record in records if record["variant"] == variant]
        row = [variant]
        for name in ("mlm_loss", "mlm_accuracy", "disc_auc"):
            row.append(format_spread([r.get("heldout", {}).get(name) for r in of_variant]))
        row += [format_spread([record["scores"][task] for record in of_variant]) for task in TASKS]
        rows.append(row)
    return Table(["variant", "mlm_loss", "mlm_accuracy", "disc_auc", *TASKS], rows)


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a picture of the held-out curves against true FLOPs, one line per seed."""
    figure, panels = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    names = list(dict.fromkeys(r["variant"] for r in records if "curve" in r))
    for record in (record for record in records if "curve" in record):
        colour = f"C{names.index(record['variant'])}"
        curve, total = record["curve"], record["flops"]["true"]
        flops = [total * point["step"] / record["steps"] for point in curve]
        gaps = [
            1 - point["disc_loss"] / point["constant_disc_loss"] if "disc_loss" in point else None
            for point in curve
        ]
        label = record["variant"] if record["seed"] == 0 else None
        for panel, values in zip(
            panels,
            (
                [point["mlm_loss"] for point in curve],
                gaps,
                [point.get("restore_loss") for point in curve],
            ),
            strict=True,
        ):
            known = [(x, y) for x, y in zip(flops, values, strict=True) if y is not None]
            if known:
                panel.plot(*zip(*known, strict=True), color=colour, label=label, linewidth=1)
    titles = (
        "masked language model's loss, nats",
        "discriminator's relative gain over the constant prediction",
        "restoring loss, nats",
    )
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("true FLOPs")
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    figure.savefig(path, dpi=110)


def format_spread(values: Sequence[float | None]) -> str:
    """Return mean ± standard deviation of the known values; "-" if there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    deviation = f" ± {statistics.stdev(known):.3f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.3f}{deviation}"


def _say(record: dict[str, Any]) -> None:
    if record["part"] == "heldout":
        known = {name: round(record[name], 3) for name in MEASURES if name in record}
        print(f"step {record['step']}: {known}", flush=True)


def main() -> None:
    """Run the variants of the command line, and write the results if all parts are done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rtd-steps", type=int, default=2000)
    parser.add_argument("--part", default="0/1")
    arguments = parser.parse_args()
    number, parts = map(int, arguments.part.split("/"))
    arguments.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(variant, seed) for variant in arguments.variants for seed in range(arguments.seeds)]
    records = []
    for variant, seed in jobs[number::parts]:
        print(f"--- {variant}, seed {seed}", flush=True)
        records.append(
            run_one(
                variant, seed, arguments.rtd_steps, arguments.shards, arguments.glue, arguments.runs
            )
        )
    if parts == 1:
        start = arguments.runs / f"{arguments.variants[0]}-0"
        records += score_scratch(start, arguments.seeds, arguments.glue, arguments.runs)
        result = {"commit": find_commit(), "tasks": TASKS, "records": records}
        table = to_markdown(tabulate(records))
        write_json(arguments.out, result)
        write_text(arguments.out.with_suffix(".md"), table + "\n")
        draw(records, arguments.out.with_suffix(".png"))
        print(table)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None

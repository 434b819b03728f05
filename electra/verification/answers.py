"""Claims of a fine-tuning: its start, its task, its answers, and the scores that follow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from electra.assignments import from_dict
from electra.checkpoints.finetuned import find_seed, read_finetuned
from electra.checkpoints.folder import read_model
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.results_files import Begun, read_results
from electra.errors import UserError, count_of, require
from electra.files import read_object, sha256_file
from electra.finetuning.grid import compare
from electra.finetuning.results import summarise
from electra.inference.predict import load_model
from electra.pretraining.replay import Absent, find_beside
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Family, Task
from electra.tasks.registry import OWN, TAGGING, TASK_FILE, TASKS, read_task, restore_family
from electra.tokenizing.tokenizer import Tokenizer
from electra.verification.claims import Claims

SCORE_TOLERANCE = 1e-3
"""Largest difference of a score, which for numbers as labels follows from rounded answers."""
ANSWER_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest difference of a number in an answer, by what the fine-tuning computed in; the numbers of
a regression may differ by as large a share."""


def verify_finetuning(claims: Claims, folder: Path, data: Path | None = None) -> None:
    """Prove the claims of a fine-tuning or a grid; `data` are the task's files, if moved."""
    claims.compare_hashes(folder)
    begun: dict[str, Any] = {}
    with claims.prove("config.json: settings are read") as tell:
        begun = read_object(folder / "config.json", Begun)
        for each in begun.get("grid", {"": begun.get("config", {})}).values():
            from_dict(FinetuneConfig, each)
        tell(f"{begun['task']} from {begun['start']}")
    if not begun:
        return
    _prove_start(claims, folder, begun)
    if "grid" in begun:
        for name in begun["grid"]:
            _verify_one(claims.inside(name), folder / name, data)
        with claims.prove("results.json: it follows from the combinations"):
            _require_same(folder, compare(folder, list(begun["grid"])))
    else:
        _verify_one(claims, folder, data)


def _verify_one(claims: Claims, folder: Path, data: Path | None) -> None:
    """Add the claims of a fine-tuning about its own answers."""
    results: dict[str, Any] = {}
    with claims.prove("results.json: its settings are those of config.json"):
        results = read_results(folder, "task", "median")
        if "seeds" in results:  # but of minimal pairs, which train nothing
            require(
                results["config"] == read_object(folder / "config.json", Begun)["config"],
                f"{folder / 'results.json'}: config differs from that in config.json",
            )
    if not results:
        return
    if "seeds" not in results:
        with claims.prove("results.json: the score follows from the answers"):
            raise Absent("a score of minimal pairs keeps no answers: electra score gives it again")
    task: Task | None = None
    with claims.prove("config.json: the task's files are those that were read") as tell:
        task = _read_task(folder, results, data)
        tell(count_of(len(task.files), "file"))
    seeds = [*results.get("seeds", {}), *results.get("replacements", {})]
    for seed in seeds:
        _prove_seed(claims, folder, int(seed), results["metric"], task)
    if seeds:
        with claims.prove("results.json: it follows from the seeds"):
            family = _restore(folder, int(seeds[0]), results["metric"])
            known = Task(results["task"], family, {})
            found = summarise(folder, known, len(results["seeds"]))
            _require_same(folder, {n: found[n] for n in found if n != "notes"})


def _prove_start(claims: Claims, folder: Path, begun: Mapping[str, Any]) -> None:
    """Compare the weights and the vocabulary that a fine-tuning began with."""
    with claims.prove("config.json: the weights are those of the start") as tell:
        told = str(begun["start"])
        place = told.rpartition(" at step ")[0] or told.partition(" at seed ")[0] or told
        start = find_beside(folder, place)
        step = told.rpartition(" at step ")[2] if " at step " in told else ""
        if step:
            start = start / "checkpoints" / f"step-{int(step):08d}"
            if not start.is_dir():
                raise Absent(f"{start} is not kept")
        seed = told.partition(" at seed ")[2].partition(",")[0]
        model = read_model(start, int(seed) if seed else None)
        require(
            {*model.sha256.values()} == {*begun.get("weights", {}).values()},
            f"{start} does not hold the weights that {folder} began with",
        )
        for path in sorted(folder.rglob("seed-*/model/tokenizer")):
            same = Tokenizer.load(path).digest == model.tokenizer.digest
            require(same, f"{path} is another vocabulary than that of {start}")
        tell(told)


def _read_task(folder: Path, results: Mapping[str, Any], data: Path | None) -> Task:
    """Return the task of a fine-tuning, from files with the recorded sha256."""
    begun = read_object(folder / "config.json", Begun)
    config = from_dict(FinetuneConfig, begun["config"])
    files = {Path(p): sha for p, sha in begun["files"].items() if Path(p).suffix != TASK_FILE}
    first = next(iter(files))
    place = data or (first if len(files) == 1 else first.parent)
    if not place.exists():
        raise Absent(f"{place} is not here: --data names the folder of the task's files")
    name = results["task"] if results["task"].lower() in TASKS else OWN
    name = TAGGING if results.get("family") == "tagging" else name
    task = read_task(name, place, config)
    require(
        sorted(map(sha256_file, task.files)) == sorted(files.values()),
        f"{place} holds other files than those that {folder} was trained on",
    )
    return task


def _restore(folder: Path, seed: int, metric: str) -> Family:
    """Return the family of a saved model, with the metrics that it was scored by."""
    found = find_seed(folder, seed)
    scores = read_object(folder / f"seed-{seed}" / "results.json")["scores"]
    family: Any = restore_family(found.facts)
    metrics = tuple(dict.fromkeys([metric, *scores]))
    return replace(family, metrics=metrics) if family.metrics != metrics else family


def _prove_seed(claims: Claims, folder: Path, seed: int, metric: str, task: Task | None) -> None:
    """Compare the scores of a seed with its answers, and some answers with the model's."""
    place = folder / f"seed-{seed}"
    with claims.prove(f"seed-{seed}/results.json: the scores follow from the answers") as tell:
        family, record = _restore(folder, seed, metric), read_object(place / "results.json")
        splits = {"dev": record["scores"], **record.get("other_scores", {})}
        tell(", ".join(_score(family, place, each, said, task) for each, said in splits.items()))
    with claims.prove(f"seed-{seed}/model: it gives these answers again") as tell:
        tell(_answer(folder, seed))


def _score(
    family: Family, place: Path, split: str, said: Mapping[str, float], task: Task | None
) -> str:
    """Return the headline score of a split; refuse scores that its kept answers do not have."""
    found = family.score_answers(place, split, task.examples[split] if task else [])
    if not found:
        raise Absent("the right answers are in the task's files: --data names their folder")
    wrong = [name for name in said if abs(found[name] - said[name]) > SCORE_TOLERANCE]
    if wrong and _has_ties(family.read_answers(place, split)):
        raise Absent("the kept numbers are rounded, and some are equal: their ranks are lost")
    for name in wrong:
        raise UserError(f"{place}: {name} of {split} is {found[name]:.6f}, not {said[name]}")
    name = next(iter(said))
    return f"{split} {name} {said[name]:.3f}"


def _has_ties(answers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether answers are numbers, some of which are equal."""
    columns = list(zip(*(each.values() for each in answers), strict=True))
    is_number = all(isinstance(column[0], float) for column in columns)
    return is_number and any(len({*column}) < len(column) for column in columns)


def _answer(folder: Path, seed: int) -> str:
    """Return how many of the kept records the model answers as its file says; refuse others."""
    finetuned = read_finetuned(folder, seed)
    records = finetuned.facts.get("examples", [])
    kept = restore_family(finetuned.facts).read_answers(folder / f"seed-{seed}", "dev")
    if not (records and kept):
        raise Absent("the folder keeps no records of dev, or no answers to compare")
    dtype = str(read_manifest(folder)["sessions"][-1].get("dtype", "")).removeprefix("torch.")
    tolerance = ANSWER_TOLERANCE.get(dtype, ANSWER_TOLERANCE["bfloat16"])
    answers = iter(kept)  # the records are in the order of dev
    for number, answer in enumerate(load_model(finetuned).answer(records).records, 1):
        is_there = any(map(partial(_is_like, answer, tolerance), answers))
        require(is_there, f"{folder}: the answer to record {number} is not the model's: {answer}")
    return count_of(len(records), "answer")


def _is_like(answer: Mapping[str, Any], tolerance: float, kept: Mapping[str, Any]) -> bool:
    """Return whether a kept answer is that of the model, to rounding."""
    for name, value in kept.items():
        said = answer[name]
        if isinstance(value, float):
            if abs(said - value) > tolerance * max(1.0, abs(value)):
                return False
        elif name == "tokens":
            if ["_".join(word.split()) or "_" for word in said] != value:
                return False
        elif name == "tags" and tolerance > ANSWER_TOLERANCE["float32"]:
            others = sum(one != other for one, other in zip(said, value, strict=True))
            if others > 1 + len(said) // 20:  # nearly equal logits of bfloat16
                return False
        elif name == "prediction":
            continue  # it follows from the probabilities, which may be equal to rounding
        elif said != value:
            return False
    return True


def _require_same(folder: Path, found: Mapping[str, Any]) -> None:
    """Refuse results.json if a field is not what follows from the other files."""
    path = folder / "results.json"
    said = read_object(path)
    for name, value in found.items():
        require(said.get(name) == value, f"{path}: {name} is {said.get(name)}, not {value}")

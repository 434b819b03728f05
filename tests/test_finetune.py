import dataclasses
import json
import math
import os
import shutil

import pytest
import torch
from networks import assert_same_tensors
from refusals import refuse
from runs import flip_bit
from safetensors.torch import load_file, save_file
from tasks import PowerCut, cut_at, ignore, small_finetune

from electra.assignments import from_dict
from electra.checkpoints.finetuned import read_finetuned
from electra.errors import UserError
from electra.files import write_json
from electra.finetuning.loop import finetune, train_seed
from electra.finetuning.network import TaskNetwork, build_network, keep_tokens, run_network
from electra.finetuning.results import begin_shared_folder, summarise
from electra.finetuning.start import Job, encode_task, fit_to_start
from electra.model.task_heads import PairHead
from electra.presets import FINETUNE_PRESETS, PRESETS, encoder_sizes, finetune_preset
from electra.reports.runs import read_folders
from electra.tasks.config import FinetuneConfig
from electra.tasks.family import Task
from electra.tasks.registry import read_task
from electra.tasks.squad import SpanExtraction
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine
from electra.training.optimizer import ReferenceAdamW, build_optimizer, step_seed

CPU = torch.device("cpu")
CONFIG = small_finetune()


@pytest.fixture(scope="module")
def data(toy_text, tmp_path_factory):
    """Who is it about: the label is the subject of the sentence, so it can be learnt."""
    folder = tmp_path_factory.mktemp("data")
    lines = [line for line in toy_text.read_text().splitlines() if line]
    for split, part in (("train", lines[:400]), ("dev", lines[400:500]), ("test", lines[500:520])):
        rows = [f"{line}\t{'woman' if 'queen' in line else 'other'}" for line in part]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    return folder


@pytest.fixture(scope="module")
def task(data):
    return read_task("own", data, CONFIG)


@pytest.fixture(scope="module")
def rows(task, pretrained):
    return encode_task(task, pretrained, dataclasses.replace(CONFIG, sequence_length=32))


def build(pretrained, task, *, seed=0, from_scratch=False, **changes) -> TaskNetwork:
    config, how = dataclasses.replace(CONFIG, **changes), {"seed": seed, "machine": Machine()}
    return build_network(pretrained, task.family, config, from_scratch=from_scratch, **how)


def train(pretrained, task, rows, *, seed=0, epochs=1, **changes):
    """One seed of a fine-tuning, without a folder."""
    job = Job(pretrained, task, dataclasses.replace(CONFIG, epochs=epochs, **changes))
    return train_seed(job, rows, Machine(), seed=seed, progress=ignore)


@pytest.fixture
def tune(start, data, tmp_path):
    """Return what fine-tunes for an epoch into a folder of this name."""

    def tune(name="out", *, start=start, data=data, **changes):
        how = {"seeds": 1, "progress": ignore, "from_scratch": False}
        how = {key: changes.pop(key, value) for key, value in how.items()}
        config = dataclasses.replace(CONFIG, **{"epochs": 1, **changes})
        return finetune(start, "own", data, tmp_path / name, config, **how)

    return tune


def test_a_pair_is_compared_by_the_means_of_its_texts():
    head = PairHead(2, 3, 0.1).eval()
    hidden = torch.tensor([[[1.0, 2], [3, 6], [5, 0], [9, 9]]])
    first, second = torch.tensor([2.0, 4]), torch.tensor([5.0, 0])
    state = torch.cat([first, second, (first - second).abs(), first * second])
    mask, types = torch.tensor([[True, True, True, False]]), torch.tensor([[0, 0, 1, 0]])
    torch.testing.assert_close(head(hidden, mask, types)[0], head.dense(state))
    unpadded = head(hidden[:, :3], None, types[:, :3])
    torch.testing.assert_close(unpadded[0], head.dense(state))


def test_dropout_is_fine_tunings_own(pretrained, task):
    sizes = build(pretrained, task, dropout_prob=0.25).encoder.config
    assert sizes.hidden_dropout_prob == sizes.attention_probs_dropout_prob == 0.25


def test_from_scratch_takes_no_weights_and_the_seed_decides_the_head(pretrained, task):
    tuned, scratch = build(pretrained, task), build(pretrained, task, from_scratch=True)
    table = pretrained.tensors["embeddings.tokens.weight"]
    assert torch.equal(tuned.encoder.embeddings.tokens.weight, table)
    assert not torch.equal(scratch.encoder.embeddings.tokens.weight, table)
    for seed, is_same in ((0, True), (1, False)):
        other = build(pretrained, task, seed=seed).head.dense.weight
        assert torch.equal(tuned.head.dense.weight, other) is is_same


def test_training_the_tokens_in_use_is_training_them_all(pretrained, task, rows):
    whole = pretrained.tensors["embeddings.tokens.weight"]
    splits = {
        split: dataclasses.replace(each, input_ids=rows.token_ids[each.input_ids.long()].int())
        for split, each in rows.splits.items()
    }
    all_rows = rows._replace(token_ids=torch.arange(len(whole)), splits=splits)
    few, many = (train(pretrained, task, each) for each in (rows, all_rows))
    learnt, expected = (each.model.encoder.embeddings.tokens.weight for each in (few, many))
    near = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(few.outputs["dev"]["logits"], many.outputs["dev"]["logits"], **near)
    torch.testing.assert_close(learnt, expected, **near)
    unused = torch.ones(len(whole), dtype=torch.bool)
    unused[rows.token_ids] = False
    assert unused.any()
    assert torch.equal(learnt[unused], whole[unused])
    assert not torch.equal(learnt[~unused], whole[~unused])


@pytest.mark.parametrize(("mode", "top"), [("paper", 0.5), ("reference", 0.25)])
def test_each_layer_learns_at_a_multiple_of_the_one_above(pretrained, task, mode, top):
    """In reference mode all are one multiple lower, and Adam is the released code's."""
    model = build(pretrained, task)
    keep_tokens(model, torch.arange(10))
    optimizer = build_optimizer(model, PRESETS["tiny"].optimizer, 0.5, mode)
    assert isinstance(optimizer, ReferenceAdamW) is (mode == "reference")
    scales = {id(each): g["lr_scale"] for g in optimizer.param_groups for each in g["params"]}
    parts = {"head": 1.0, "encoder.layers.1": top, "encoder.layers.0": top / 2}
    for name, parameter in model.named_parameters():
        scale = next((each for part, each in parts.items() if name.startswith(part)), top / 4)
        assert scales[id(parameter)] == scale, name


def test_in_reference_mode_the_loss_is_the_batchs_sum(pretrained, task, rows, monkeypatch):
    """The norms that clipping sees are those of the mean times the examples of the batch."""
    norms, clip = [], torch.nn.utils.clip_grad_norm_

    def note(parameters, most, **settings):
        norms.append(clip(parameters, most, **settings).item())

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", note)
    for mode in ("paper", "reference"):
        train(pretrained, task, rows, mode=mode)
    assert norms[len(norms) // 2] == pytest.approx(CONFIG.batch_size * norms[0], rel=1e-4)


def test_presets_are_table_7_and_follow_the_encoders_width():
    rates = {name: (c.learning_rate, c.layer_lr_decay) for name, c in FINETUNE_PRESETS.items()}
    assert rates["small"] == (3e-4, 0.8)
    assert rates["base"] == (1e-4, 0.8)
    assert rates["large"] == (5e-5, 0.9)
    for name, preset in FINETUNE_PRESETS.items():
        assert finetune_preset(PRESETS[name].model) is preset
    assert finetune_preset(PRESETS["modern-mini"].model) is FINETUNE_PRESETS["small"]
    assert finetune_preset(encoder_sizes(2048, 1, 64)) is FINETUNE_PRESETS["large"]
    causal = dataclasses.replace(PRESETS["base"].model, causal=True)
    assert finetune_preset(causal) == FinetuneConfig(learning_rate=1e-4, pooling="mean")
    config = FINETUNE_PRESETS["small"]
    assert (config.batch_size, config.warmup_fraction, config.weight_decay) == (32, 0.1, 0.0)
    assert config.dropout_prob == 0.1


def test_a_seed_is_repeatable_whatever_was_drawn_before_and_another_differs(pretrained, task, rows):
    runs = []
    for earlier, seed in ((1, 0), (step_seed(5, "anything", 2), 0), (1, 1)):
        torch.manual_seed(earlier)
        runs.append(train(pretrained, task, rows, seed=seed))
    one, same, other = (run.outputs["dev"]["logits"] for run in runs)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert_same_tensors(*(run.model.state_dict() for run in runs[:2]))
    assert runs[0].record["epochs"] == runs[1].record["epochs"]


def test_the_epoch_that_counts_is_the_last_unless_best_is_asked_for(pretrained, task, rows):
    # Wrong labels in train: the longer it learns them, the worse it answers dev.
    labels = rows.splits["train"].targets["labels"]
    wrong = dataclasses.replace(rows.splits["train"], targets={"labels": 1 - labels})
    rows = rows._replace(splits=rows.splits | {"train": wrong})
    usual = {"seed": 1, "epochs": 3, "learning_rate": 1e-3}
    last, best, once = (
        train(pretrained, task, rows, **usual, **changes)
        for changes in ({}, {"keep_epoch": "best"}, {"score_epochs": "last"})
    )
    both = {"keep_epoch": "best", "score_epochs": "last"}
    refuse("keep_epoch best", dataclasses.replace, CONFIG, **both)
    assert once.record["epochs"] == last.record["epochs"][-1:]
    assert once.record["scores"] == last.record["scores"]
    assert last.record["epochs"] == best.record["epochs"]
    curve = [epoch["scores"]["accuracy"] for epoch in last.record["epochs"]]
    assert last.record["kept_epoch"] == 3
    assert last.record["scores"]["accuracy"] == curve[-1] < max(curve)
    assert best.record["kept_epoch"] == curve.index(max(curve)) + 1
    assert best.record["scores"]["accuracy"] == max(curve)
    keep_tokens(best.model, rows.token_ids)
    again = run_network(best.model, rows.splits["dev"], CPU)["logits"]
    assert torch.equal(again, best.outputs["dev"]["logits"])


def test_the_folder_holds_scores_predictions_and_what_gave_them(start, tune, tmp_path):
    """That its model gives the predictions, see test_finetuned.py."""
    seen, out = [], tmp_path / "out"
    results = tune(seeds=2, progress=seen.append)
    assert json.loads((out / "results.json").read_text()) == results
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    values = [results["seeds"][seed]["scores"]["accuracy"] for seed in "01"]
    assert results["median"] == results["mean"] == pytest.approx(sum(values) / 2)
    assert results["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert results["labels"] == ["other", "woman"]
    assert results["num_examples"] == {"train": 400, "dev": 100, "test": 20}
    assert (results["columns"], results["label_columns"]) == (["text"], ["label"])
    assert 0.6 < results["majority"]["accuracy"] < 0.9
    parts = " ".join(record["part"] for record in seen)
    assert parts == "task train dev seed train dev seed"
    assert (results["start"], results["source"]) == (str(start), str(start))
    (manifest,) = json.loads((out / "manifest.json").read_text())["sessions"]
    assert (results["commit"], results["device"]) == (str(manifest["commit"]), manifest["device"])
    shared = "73 of 100 dev examples have a text that is also in train"
    assert (manifest["dtype"], manifest["notes"]) == ("torch.float32", [shared])
    saved = from_dict(FinetuneConfig, json.loads((out / "config.json").read_text())["config"])
    assert saved == dataclasses.replace(CONFIG, epochs=1, sequence_length=32)
    assert len((out / "seed-1" / "test_predictions.tsv").read_text().splitlines()) == 21


def test_a_damaged_fine_tuning_is_named(tune, tmp_path):
    with pytest.raises(PowerCut):
        tune("a", seeds=2, progress=cut_at(part="seed"))
    for content in (b"\xff", b"{", b"[]", b"{}"):
        (tmp_path / "a.incomplete/config.json").write_bytes(content)
        says = "a.incomplete/config.json.*; remove the folder|was started with different"
        with pytest.raises(UserError, match=says):
            tune("a", seeds=2)


@pytest.mark.parametrize(
    "name", ["results.json", "predictions.tsv", "electra.json", "model/model.safetensors"]
)
def test_a_damaged_seed_is_trained_again(tune, tmp_path, name):
    with pytest.raises(PowerCut):
        tune("a", seeds=2, progress=cut_at(part="dev", seed=1))
    os.truncate(tmp_path / "a.incomplete/seed-0" / name, 0)
    os.truncate(tmp_path / "a.incomplete/manifest.json", 0)
    with pytest.warns(UserWarning, match="/seed-0/.* seed-0 is trained again"):
        found = tune("a", seeds=2)
    whole = tune("b", seeds=2)
    scores = [{n: each["scores"] for n, each in all["seeds"].items()} for all in (found, whole)]
    assert scores[0] == scores[1]
    path = "seed-0/predictions.tsv"
    assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()


@pytest.mark.parametrize("name", ["config.json", "results.json", "manifest.json"])
def test_a_flipped_bit_of_a_finished_fine_tuning_is_seen(tune, tmp_path, name):
    tune("a")
    flip_bit(tmp_path / "a" / name)
    refuse(f"a/{name} is damaged: it does not match its sha256", read_finetuned, tmp_path / "a")
    refuse(f"a/{name} is damaged", read_folders, [tmp_path / "a"])


def test_a_refusal_leaves_nothing(start, tune, tmp_path):
    """Weights are read when the folder has been begun; or another process was faster."""
    model = shutil.copytree(start, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["electra.embeddings.LayerNorm.weight"][0] = math.nan
    save_file(weights, model / "model.safetensors")
    refuse("LayerNorm.weight holds 1 values that are NaN", tune, start=model)
    shutil.rmtree(model)
    (tmp_path / "a").mkdir()
    with (
        pytest.raises(UserError, match=r"/a exists already"),
        begin_shared_folder(tmp_path / "a", {}, Machine(), []),
    ):
        pytest.fail("an hour of work for nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_finished_seeds_are_not_repeated(start, data, tune, tmp_path):
    with pytest.raises(PowerCut):
        tune("a", seeds=2, progress=cut_at(part="dev", seed=1))
    assert not (tmp_path / "a").exists()
    begun = "a.incomplete was started with different"
    refuse(f"{begun} learning_rate; remove it", tune, "a", seeds=2, learning_rate=1e-4)
    refuse(f"{begun} from_scratch;", tune, "a", seeds=2, from_scratch=True)
    refuse(
        "a.incomplete already exists and was not written by",
        lambda: Tokenizer.load(start).save(tmp_path / "a"),
    )
    assert (tmp_path / "a.incomplete/seed-0/results.json").is_file()
    path, seen = tmp_path / "a.incomplete/config.json", []
    settings = json.loads(path.read_text())
    settings["config"]["threads"] = 3  # on another machine
    path.write_text(json.dumps(settings))
    moved = {
        name: shutil.copytree(each, tmp_path / name)
        for name, each in (("start", start), ("data", data))
    }
    continued = tune("a", seeds=2, **moved, progress=seen.append)
    assert [record["seed"] for record in seen if record["part"] == "dev"] == [1]
    whole = tune("b", seeds=2)
    for seed in "01":
        for key in ("scores", "epochs", "other_scores"):
            assert continued["seeds"][seed][key] == whole["seeds"][seed][key]
        weights = f"seed-{seed}/model/model.safetensors"
        one, two = ((tmp_path / run / weights).read_bytes() for run in "ab")
        assert one == two


@pytest.mark.parametrize(
    ("learning_rate", "note"),
    [(3.0, "every dev prediction is 'other'"), (1e30, "the loss is no longer finite")],
)
def test_a_collapsed_run_is_flagged_and_counted(tune, tmp_path, learning_rate, note):
    results = tune(learning_rate=learning_rate)
    assert results["seeds"]["0"]["degenerate"]
    assert (results["num_degenerate"], results["std"]) == (1, None)
    _, cut, collapsed = results["notes"]
    assert cut == (
        "longer than rows of 32 tokens, and cut: 17 of 400 in train, 4 of 100 in dev, "
        "1 of 20 in test (sequence_length)"
    )
    assert collapsed.startswith("seed 0 collapsed: ")
    assert note in collapsed
    assert "NaN" not in (tmp_path / "out" / "results.json").read_text()


def test_a_collapsed_run_is_repeated_as_another_seed_and_all_of_it_is_told(tune):
    """At a hundred times the rate every attempt fails; the stated number of them is made."""
    seen = []
    results = tune(learning_rate=0.2, reseeds=2, progress=seen.append)
    assert [each["seed"] for each in seen if each["part"] == "dev"] == [0, 0, 0]
    assert [each["seed"] for each in seen if each["part"] == "seed"] == [0, 1000, 2000]
    assert list(results["seeds"]) == ["0"]
    replacements = results["replacements"].items()
    assert [(seed, each["replaces"]) for seed, each in replacements] == [("1000", 0), ("2000", 0)]
    notes = [note.partition(":")[0] for note in results["notes"][2:-1]]
    others = [f"seed {seed}, in place of seed 0, collapsed" for seed in (1000, 2000)]
    assert notes == ["seed 0 collapsed", *others]
    first = tune("alone", learning_rate=0.2)
    assert first["seeds"]["0"]["epochs"] == results["seeds"]["0"]["epochs"]
    assert (first["replacements"], first["with_replacements"]) == ({}, None)


def write_seed(folder, seed, score, **changes):
    record = {"seed": seed, "scores": {"accuracy": score}, "degenerate": False, "notes": []}
    record |= {"train_seconds": 1.0, "examples_per_second": 2.0, "commit": "x"} | changes
    (folder / f"seed-{seed}").mkdir()
    (folder / f"seed-{seed}" / "results.json").write_text(json.dumps(record))


def test_the_headline_is_the_median_of_the_seeds_as_drawn(tmp_path):
    collapsed = {"degenerate": True, "notes": ["collapsed"]}
    for seed in (0, 1):
        write_seed(tmp_path, seed, 0.5, **collapsed)
    write_seed(tmp_path, 2, 0.75)
    write_seed(tmp_path, 1000, 0.5, replaces=0, **collapsed)
    write_seed(tmp_path, 2000, 0.875, replaces=0)
    write_seed(tmp_path, 1001, 1.0, replaces=1)
    task = Task("toy", SpanExtraction(metrics=("accuracy",)), {})
    fewer = summarise(tmp_path, task, 2)
    assert list(fewer["seeds"] | fewer["replacements"]) == ["0", "1", "1000", "1001", "2000"]
    refuse("lacks seeds [3]; run", summarise, tmp_path, task, 4)
    results = summarise(tmp_path, task, 3)
    assert (results["median"], results["num_degenerate"]) == (0.5, 2)
    assert list(results["seeds"]) == ["0", "1", "2"]
    assert list(results["replacements"]) == ["1000", "1001", "2000"]
    seeds = {"0": 2000, "1": 1001, "2": 2}
    expected = {"median": 0.875, "mean": 0.875, "std": 0.125, "seeds": seeds}
    assert results["with_replacements"] == expected
    assert results["notes"][-1] == (
        "the median is that of the seeds as drawn; with seed 2000 in place of 0, seed 1001 in "
        "place of 1 it is 0.875"
    )


def test_what_does_not_fit_is_refused_and_nothing_written(start, data, tune, tmp_path):
    for words, changes in [
        ("seeds must be 1 to 1000, not 0", {"seeds": 0}),
        ("seeds must be 1 to 1000, not 1001", {"seeds": 1001}),
        ("sequence_length 64 is more than the 32 tokens", {"sequence_length": 64}),
        ("is neither a run of `electra pretrain` nor a Hugging Face folder", {"start": data}),
        ("has no train file", {"data": start}),
        ("train_examples 5000 is more than the", {"train_examples": 5000}),
        *([] if torch.cuda.is_available() else [("sees no CUDA device", {"device": "cuda"})]),
    ]:
        refuse(words, tune, **changes)
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    refuse("out exists already", tune)


def test_what_is_unset_comes_from_the_encoder_and_the_task(pretrained, task):
    longer = dataclasses.replace(pretrained, sequence_length=512)
    for encoder, given, expected in (
        (pretrained, {}, (32, 3)),
        (longer, {}, (128, 3)),
        (pretrained, {"sequence_length": 16, "epochs": 5}, (16, 5)),
    ):
        config = fit_to_start(FinetuneConfig(**given), encoder, task, False)
        assert (config.sequence_length, config.epochs) == expected


def test_a_causal_encoder_is_not_read_at_its_blind_end(pretrained, task):
    sizes = dataclasses.replace(pretrained.encoder, causal=True)
    causal = dataclasses.replace(pretrained, kept=dataclasses.replace(pretrained.kept, sizes=sizes))
    refuse("sees no text", lambda: fit_to_start(FinetuneConfig(), causal, task, False))
    for fits in ({"pooling": "mean"}, {"bilstm": True}):
        fit_to_start(FinetuneConfig(**fits), causal, task, False)


@pytest.mark.parametrize("settings", [{"pooling": "mean"}, {"pooling": "cls", "bilstm": True}])
def test_a_causal_encoder_learns(start, tune, tmp_path, settings):
    """By the mean of its states; by its blind [CLS] with a BiLSTM on top."""
    causal = shutil.copytree(start, tmp_path / "causal")
    values = json.loads((causal / "config.json").read_text())
    write_json(causal / "config.json", values | {"is_decoder": True})
    results = tune(start=causal, epochs=4, score_epochs="last", **settings)
    assert results["median"] > results["majority"]["accuracy"] + 0.1
    assert read_finetuned(tmp_path / "out").encoder.causal


def test_part_of_train_and_one_process_at_a_time(tune, tmp_path):
    def try_another(record):
        if record["part"] == "task":
            says = f"{tmp_path}/out.incomplete is in use by process {os.getpid()} on "
            refuse(says, tune, train_examples=40)

    results = tune(seeds=2, train_examples=40, progress=try_another)
    assert not list(tmp_path.rglob("lock"))
    assert results["num_items"]["train"] == 40
    assert results["seeds"]["0"]["steps"] == 3


def test_other_weights_of_the_same_name_are_refused(start, tune, tmp_path):
    """The seeds of one median are of one encoder."""
    encoder = shutil.copytree(start, tmp_path / "encoder")

    def stop(record):
        if record["part"] == "seed":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(start=encoder, seeds=2, train_examples=40, progress=stop)
    (encoder / "electra.json").unlink(missing_ok=True)
    tensors = load_file(encoder / "model.safetensors")
    save_file({name: each + 1 for name, each in tensors.items()}, encoder / "model.safetensors")
    refuse("started with different weights", tune, start=encoder, seeds=2, train_examples=40)


def test_a_share_of_train_is_dev_and_noted(data, tune, tmp_path):
    (tmp_path / "alone").mkdir()
    alone = shutil.copy(data / "train.tsv", tmp_path / "alone" / "all.tsv")
    results = tune(data=alone, train_examples=40, dev_fraction=0.25)
    (manifest,) = json.loads((tmp_path / "out/manifest.json").read_text())["sessions"]
    assert sum(results["num_examples"].values()) == 400
    assert results["notes"][0] == manifest["notes"][0]
    assert results["notes"][0].startswith("dev is 1")
    assert results["config"]["dev_fraction"] == 0.25

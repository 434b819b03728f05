import dataclasses
import json
import math
import os
import shutil

import pytest
import torch
from refusals import refuse
from safetensors.torch import load_file, save_file
from tasks import PowerCut, cut_at, ignore, small_finetune

from electra.checkpoints.folder import read_finetuned
from electra.config import EncoderConfig, FinetuneConfig
from electra.errors import UserError
from electra.files import write_json
from electra.finetuning.loop import finetune, train_seed
from electra.finetuning.network import TaskNetwork, build_network, keep_tokens, run_network
from electra.finetuning.results import begin_shared_folder, summarise
from electra.finetuning.start import Job, encode_task, fit_to_start
from electra.model.encoder import Encoder
from electra.model.heads import PairHead
from electra.presets import FINETUNE_PRESETS, PRESETS, encoder_sizes, finetune_preset
from electra.settings import from_dict
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
    return build_network(
        pretrained,
        task.family,
        dataclasses.replace(CONFIG, **changes),
        machine=Machine(),
        seed=seed,
        from_scratch=from_scratch,
    )


# --- the network ---


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
    assert torch.equal(tuned.head.dense.weight, build(pretrained, task).head.dense.weight)
    assert not torch.equal(
        tuned.head.dense.weight, build(pretrained, task, seed=1).head.dense.weight
    )


def test_training_the_tokens_in_use_is_training_them_all(pretrained, task, rows):
    whole = pretrained.tensors["embeddings.tokens.weight"]
    every_token = torch.arange(len(whole))
    all_rows = rows._replace(
        token_ids=every_token,
        splits={
            split: dataclasses.replace(each, input_ids=rows.token_ids[each.input_ids.long()].int())
            for split, each in rows.splits.items()
        },
    )
    config = dataclasses.replace(CONFIG, epochs=1)
    few, many = (
        train_seed(Job(pretrained, task, config), each, Machine(), seed=0, progress=ignore)
        for each in (rows, all_rows)
    )
    assert len(rows.token_ids) < len(whole)
    torch.testing.assert_close(
        few.outputs["dev"]["logits"], many.outputs["dev"]["logits"], atol=1e-4, rtol=1e-4
    )
    learnt = few.model.encoder.embeddings.tokens.weight
    torch.testing.assert_close(
        learnt, many.model.encoder.embeddings.tokens.weight, atol=1e-4, rtol=1e-4
    )
    unused = torch.ones(len(whole), dtype=torch.bool)
    unused[rows.token_ids] = False
    assert torch.equal(learnt[unused], whole[unused])
    assert not torch.equal(learnt[~unused], whole[~unused])


# --- rates ---


def check_scales(model, optimizer, head, top, bottom, embeddings):
    """Check the multiples of the learning rate."""
    scales = {id(each): g["lr_scale"] for g in optimizer.param_groups for each in g["params"]}
    parts = {"head": head, "encoder.layers.1": top, "encoder.layers.0": bottom}
    for name, parameter in model.named_parameters():
        scale = next((each for part, each in parts.items() if name.startswith(part)), embeddings)
        assert scales[id(parameter)] == scale, name


def test_each_layer_learns_at_a_multiple_of_the_one_above(pretrained, task):
    model = build(pretrained, task)
    keep_tokens(model, torch.arange(10))
    optimizer = build_optimizer(model, dataclasses.replace(PRESETS["tiny"].optimizer), 0.5)
    check_scales(model, optimizer, 1.0, 0.5, 0.25, 0.125)


def test_in_reference_mode_every_layer_is_one_multiple_lower_and_adam_is_the_released_codes(
    pretrained, task
):
    model = build(pretrained, task)
    optimizer = build_optimizer(model, PRESETS["tiny"].optimizer, 0.5, "reference")
    assert isinstance(optimizer, ReferenceAdamW)
    check_scales(model, optimizer, 1.0, 0.25, 0.125, 0.0625)


def test_in_reference_mode_the_loss_is_the_batchs_sum(pretrained, task, rows, monkeypatch):
    """The norms that clipping sees are those of the mean times the examples of the batch."""
    norms = {"paper": [], "reference": []}
    clip = torch.nn.utils.clip_grad_norm_
    for mode, seen in norms.items():

        def note(parameters, most, seen=seen, **settings):
            seen.append(clip(parameters, most, **settings).item())

        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", note)
        config = dataclasses.replace(CONFIG, epochs=1, mode=mode)
        train_seed(Job(pretrained, task, config), rows, Machine(), seed=0, progress=ignore)
    assert norms["reference"][0] == pytest.approx(CONFIG.batch_size * norms["paper"][0], rel=1e-4)


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


# --- a seed ---


def test_a_seed_is_repeatable_whatever_was_drawn_before_and_another_differs(pretrained, task, rows):
    job = Job(pretrained, task, dataclasses.replace(CONFIG, epochs=1))
    runs = []
    for earlier, seed in ((1, 0), (step_seed(5, "anything", 2), 0), (1, 1)):
        torch.manual_seed(earlier)
        runs.append(train_seed(job, rows, Machine(), seed=seed, progress=ignore))
    one, same, other = runs
    assert torch.equal(one.outputs["dev"]["logits"], same.outputs["dev"]["logits"])
    for first, second in zip(one.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(first, second)
    assert one.record["epochs"] == same.record["epochs"]
    assert not torch.equal(one.outputs["dev"]["logits"], other.outputs["dev"]["logits"])


def test_the_epoch_that_counts_is_the_last_unless_best_is_asked_for(pretrained, task, rows):
    # Wrong labels in train: the longer it learns them, the worse it answers dev.
    train = rows.splits["train"]
    wrong = dataclasses.replace(train, targets={"labels": 1 - train.targets["labels"]})
    rows = rows._replace(splits=rows.splits | {"train": wrong})
    config = dataclasses.replace(CONFIG, epochs=3, learning_rate=1e-3)
    last = train_seed(Job(pretrained, task, config), rows, Machine(), seed=1, progress=ignore)
    keeps_best = Job(pretrained, task, dataclasses.replace(config, keep_epoch="best"))
    best = train_seed(keeps_best, rows, Machine(), seed=1, progress=ignore)
    config = dataclasses.replace(config, score_epochs="last")
    once = train_seed(Job(pretrained, task, config), rows, Machine(), seed=1, progress=ignore)
    assert once.record["epochs"] == last.record["epochs"][-1:]
    assert once.record["scores"] == last.record["scores"]
    refuse("keep_epoch best", lambda: dataclasses.replace(config, keep_epoch="best"))
    assert last.record["epochs"] == best.record["epochs"]
    curve = [epoch["scores"]["accuracy"] for epoch in last.record["epochs"]]
    assert last.record["kept_epoch"] == 3
    assert last.record["scores"]["accuracy"] == curve[-1] < max(curve)
    assert best.record["kept_epoch"] == curve.index(max(curve)) + 1
    assert best.record["scores"]["accuracy"] == max(curve)
    keep_tokens(best.model, rows.token_ids)
    assert torch.equal(
        run_network(best.model, rows.splits["dev"], CPU)["logits"], best.outputs["dev"]["logits"]
    )


# --- a folder ---


def test_the_folder_holds_scores_predictions_and_a_model_that_gives_them(start, data, tmp_path):
    seen = []
    config = dataclasses.replace(CONFIG, epochs=1)
    out = tmp_path / "out"
    results = finetune(start, "own", data, out, config, seeds=2, progress=seen.append)
    assert json.loads((out / "results.json").read_text()) == results
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    values = [results["seeds"][seed]["scores"]["accuracy"] for seed in "01"]
    assert results["median"] == results["mean"] == pytest.approx(sum(values) / 2)
    assert results["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert results["labels"] == ["other", "woman"]
    assert results["num_examples"] == {"train": 400, "dev": 100, "test": 20}
    assert results["columns"] == ["text", "label"]
    assert 0.6 < results["majority"]["accuracy"] < 0.9
    parts = " ".join(record["part"] for record in seen)
    assert parts == "task train dev seed train dev seed"
    assert (results["start"], results["source"]) == (str(start), str(start))
    (manifest,) = json.loads((out / "manifest.json").read_text())["sessions"]
    assert (results["commit"], results["device"]) == (str(manifest["commit"]), manifest["device"])
    assert manifest["dtype"] == "torch.float32"
    assert manifest["notes"] == []
    saved = json.loads((out / "config.json").read_text())
    assert from_dict(FinetuneConfig, saved["config"]) == dataclasses.replace(
        config, sequence_length=32
    )

    seed = out / "seed-1"
    facts = json.loads((seed / "model/config.json").read_text())
    task = read_task("own", data, config)
    sizes = from_dict(EncoderConfig, facts["encoder"])
    head = task.family.build_head(sizes, dataclasses.replace(config, pooling=facts["pooling"]))
    model = TaskNetwork(Encoder(sizes), head, task.family)
    model.load_state_dict(load_file(seed / "model/model.safetensors"))
    rows = task.encode(Tokenizer.load(seed / "model/tokenizer"), facts["sequence_length"])
    probs = run_network(model, rows["dev"], CPU)["logits"].softmax(dim=1)
    lines = (seed / "predictions.tsv").read_text().splitlines()
    assert lines[0] == "index\tlabel\tprediction\tprob_other\tprob_woman"
    assert len((seed / "test_predictions.tsv").read_text().splitlines()) == 21
    for number, line in enumerate(lines[1:]):
        index, label, guess, *written = line.split("\t")
        assert int(index) == number
        assert label == task.family.labels[task.examples["dev"][number].label]
        assert guess == task.family.labels[int(probs[number].argmax())]
        assert [float(each) for each in written] == pytest.approx(probs[number].tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["config.json", "seed-0/results.json"])
def test_a_damaged_fine_tuning_is_named(start, data, tmp_path, name):
    arguments = (start, "own", data, tmp_path / "a", dataclasses.replace(CONFIG, epochs=1))
    with pytest.raises(PowerCut):
        finetune(*arguments, seeds=2, progress=cut_at(part="seed"))
    for content in (b"\xff", b"{", b"[]", b"{}"):
        (tmp_path / "a.incomplete" / name).write_bytes(content)
        with pytest.raises(UserError, match=f"a.incomplete(/{name}| was begun with another)"):
            finetune(*arguments, seeds=2, progress=ignore)


def test_a_refusal_leaves_nothing(start, data, tmp_path):
    """Weights are read when the folder has been begun; or another process was faster."""
    model = shutil.copytree(start, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["electra.embeddings.LayerNorm.weight"][0] = math.nan
    save_file(weights, model / "model.safetensors")
    with pytest.raises(UserError, match=r"LayerNorm.weight holds 1 values that are NaN"):
        finetune(model, "own", data, tmp_path / "a", CONFIG, seeds=1, progress=ignore)
    shutil.rmtree(model)
    (tmp_path / "a").mkdir()
    with (
        pytest.raises(UserError, match=r"/a exists already"),
        begin_shared_folder(tmp_path / "a", {}, Machine(), []),
    ):
        pytest.fail("an hour of work for nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_finished_seeds_are_not_repeated(start, data, tmp_path):
    config = dataclasses.replace(CONFIG, epochs=1)
    arguments = (start, "own", data)
    with pytest.raises(PowerCut):
        finetune(*arguments, tmp_path / "a", config, seeds=2, progress=cut_at(part="dev", seed=1))
    assert not (tmp_path / "a").exists()

    other = dataclasses.replace(config, learning_rate=1e-4)
    with pytest.raises(UserError, match=r"a.incomplete was begun with another config; remove it"):
        finetune(*arguments, tmp_path / "a", other, seeds=2, progress=ignore)
    with pytest.raises(UserError, match="was begun with another from_scratch;"):
        finetune(*arguments, tmp_path / "a", config, seeds=2, from_scratch=True, progress=ignore)
    refuse("a.incomplete is in the way; finish", lambda: Tokenizer.load(start).save(tmp_path / "a"))
    assert (tmp_path / "a.incomplete/seed-0/results.json").is_file()

    seen = []
    continued = finetune(*arguments, tmp_path / "a", config, seeds=2, progress=seen.append)
    assert [record["seed"] for record in seen if record["part"] == "dev"] == [1]
    whole = finetune(*arguments, tmp_path / "b", config, seeds=2, progress=ignore)
    for seed in "01":
        for key in ("scores", "epochs", "other_scores"):
            assert continued["seeds"][seed][key] == whole["seeds"][seed][key]
        one, two = (
            (tmp_path / run / f"seed-{seed}/model/model.safetensors").read_bytes() for run in "ab"
        )
        assert one == two


@pytest.mark.parametrize(
    ("learning_rate", "note"),
    [(3.0, "every dev prediction is 'other'"), (1e30, "the loss is no longer finite")],
)
def test_a_collapsed_run_is_flagged_and_counted(start, data, tmp_path, learning_rate, note):
    config = dataclasses.replace(CONFIG, epochs=1, learning_rate=learning_rate)
    out = tmp_path / "out"
    results = finetune(start, "own", data, out, config, seeds=1, progress=ignore)
    assert results["seeds"]["0"]["degenerate"]
    assert results["num_degenerate"] == 1
    assert results["notes"][0].startswith("seed 0 collapsed: ")
    assert note in results["notes"][0]
    assert results["std"] is None
    assert "NaN" not in (out / "results.json").read_text()


def test_a_collapsed_run_is_repeated_as_another_seed_and_all_of_it_is_told(start, data, tmp_path):
    """At a hundred times the rate every attempt fails; the stated number of them is made."""
    config = dataclasses.replace(CONFIG, epochs=1, learning_rate=0.2, reseeds=2)
    seen = []
    out = tmp_path / "out"
    results = finetune(start, "own", data, out, config, seeds=1, progress=seen.append)
    assert [each["seed"] for each in seen if each["part"] == "dev"] == [0, 0, 0]
    assert [each["seed"] for each in seen if each["part"] == "seed"] == [0, 1000, 2000]
    assert list(results["seeds"]) == ["0"]
    assert [each["replaces"] for each in results["replacements"].values()] == [0, 0]
    assert list(results["replacements"]) == ["1000", "2000"]
    assert [note.partition(":")[0] for note in results["notes"][:-1]] == [
        "seed 0 collapsed",
        "seed 1000, in place of seed 0, collapsed",
        "seed 2000, in place of seed 0, collapsed",
    ]
    alone = dataclasses.replace(CONFIG, epochs=1, learning_rate=0.2)
    first = finetune(start, "own", data, tmp_path / "alone", alone, seeds=1, progress=ignore)
    assert first["seeds"]["0"]["epochs"] == results["seeds"]["0"]["epochs"]
    assert (first["replacements"], first["with_replacements"]) == ({}, None)


def write_seed(folder, seed, score, **changes):
    record = {"seed": seed, "scores": {"accuracy": score}, "degenerate": False, "notes": []}
    record |= {"train_seconds": 1.0, "examples_per_second": 2.0, "commit": "x"} | changes
    (folder / f"seed-{seed}").mkdir()
    (folder / f"seed-{seed}" / "results.json").write_text(json.dumps(record))


def test_the_headline_is_the_median_of_the_seeds_as_drawn(tmp_path):
    write_seed(tmp_path, 0, 0.5, degenerate=True, notes=["collapsed"])
    write_seed(tmp_path, 1, 0.5, degenerate=True, notes=["collapsed"])
    write_seed(tmp_path, 2, 0.75)
    write_seed(tmp_path, 1000, 0.5, degenerate=True, notes=["collapsed"], replaces=0)
    write_seed(tmp_path, 2000, 0.875, replaces=0)
    write_seed(tmp_path, 1001, 1.0, replaces=1)
    results = summarise(tmp_path, Task("toy", SpanExtraction(metrics=("accuracy",)), {}))
    assert (results["median"], results["num_degenerate"]) == (0.5, 2)
    assert list(results["seeds"]) == ["0", "1", "2"]
    assert list(results["replacements"]) == ["1000", "1001", "2000"]
    assert results["with_replacements"] == {
        "median": 0.875,
        "mean": 0.875,
        "std": 0.125,
        "seeds": {"0": 2000, "1": 1001, "2": 2},
    }
    assert results["notes"][-1] == (
        "the median is that of the seeds as drawn; with seed 2000 in place of 0, seed 1001 in "
        "place of 1 it is 0.875"
    )


def test_what_does_not_fit_is_refused_and_nothing_written(start, data, tmp_path):
    out = tmp_path / "out"

    def begin(start=start, data=data, seeds=1, **changes):
        config = dataclasses.replace(CONFIG, **changes)
        finetune(start, "own", data, out, config, seeds=seeds, progress=ignore)

    for words, changes in [
        ("seeds must lie in 1 to 1000, not 0", {"seeds": 0}),
        ("seeds must lie in 1 to 1000, not 1001", {"seeds": 1001}),
        ("sequence_length 64 is more than the 32 tokens", {"sequence_length": 64}),
        ("is neither a run of `electra pretrain` nor a Hugging Face folder", {"start": data}),
        ("has no train file", {"data": start}),
        *([] if torch.cuda.is_available() else [("sees no CUDA device", {"device": "cuda"})]),
    ]:
        refuse(words, lambda changes=changes: begin(**changes))
        assert list(tmp_path.iterdir()) == []
    out.mkdir()
    refuse("out exists already", begin)


def test_what_is_unset_comes_from_the_encoder_and_the_task(pretrained, task):
    config = fit_to_start(FinetuneConfig(), pretrained, task, False)
    assert (config.sequence_length, config.epochs) == (32, 3)
    longer = dataclasses.replace(pretrained, sequence_length=512)
    assert fit_to_start(FinetuneConfig(), longer, task, False).sequence_length == 128
    chosen = fit_to_start(FinetuneConfig(sequence_length=16, epochs=5), pretrained, task, False)
    assert (chosen.sequence_length, chosen.epochs) == (16, 5)


def test_a_causal_encoder_is_not_read_at_its_blind_end(pretrained, task):
    sizes = dataclasses.replace(pretrained.encoder, causal=True)
    causal = dataclasses.replace(pretrained, kept=dataclasses.replace(pretrained.kept, sizes=sizes))
    refuse("sees no text", lambda: fit_to_start(FinetuneConfig(), causal, task, False))
    for fits in ({"pooling": "mean"}, {"bilstm": True}):
        fit_to_start(FinetuneConfig(**fits), causal, task, False)


@pytest.mark.parametrize("settings", [{"pooling": "mean"}, {"pooling": "cls", "bilstm": True}])
def test_a_causal_encoder_learns(start, data, tmp_path, settings):
    """By the mean of its states; by its blind [CLS] with a BiLSTM on top."""
    causal = shutil.copytree(start, tmp_path / "causal")
    values = json.loads((causal / "config.json").read_text())
    write_json(causal / "config.json", values | {"is_decoder": True})
    config = dataclasses.replace(CONFIG, epochs=4, score_epochs="last", **settings)
    finetune(causal, "own", data, tmp_path / "out", config, seeds=1, progress=ignore)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["median"] > results["majority"]["accuracy"] + 0.1
    assert read_finetuned(tmp_path / "out").encoder.causal


def test_part_of_train_and_one_process_at_a_time(start, data, tmp_path):
    config = dataclasses.replace(CONFIG, train_examples=40, epochs=1)
    arguments = (start, "own", data, tmp_path / "part", config)

    def try_another(record):
        if record["part"] == "task":
            says = f"{tmp_path}/part.incomplete is in use by process {os.getpid()} on "
            refuse(says, lambda: finetune(*arguments, seeds=1, progress=ignore))

    results = finetune(*arguments, seeds=2, progress=try_another)
    assert not list(tmp_path.rglob("lock"))
    assert results["num_items"]["train"] == 40
    assert results["seeds"]["0"]["steps"] == 3
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "all.tsv").write_bytes((data / "train.tsv").read_bytes())
    config = dataclasses.replace(config, dev_fraction=0.25)
    of_one = (start, "own", alone / "all.tsv", tmp_path / "split", config)
    results = finetune(*of_one, seeds=1, progress=ignore)
    (manifest,) = json.loads((tmp_path / "split/manifest.json").read_text())["sessions"]
    assert sum(results["num_examples"].values()) == 400
    assert results["notes"][0] == manifest["notes"][0]
    assert results["notes"][0].startswith("dev is 1")
    assert results["config"]["dev_fraction"] == 0.25
    more = dataclasses.replace(CONFIG, train_examples=5000)
    refuse(
        "train_examples 5000 is more than the",
        lambda: finetune(start, "own", data, tmp_path / "more", more, seeds=1, progress=ignore),
    )

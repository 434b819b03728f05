"""Continued pre-training: what is taken, a generator that warms up alone, and losses by domain."""

import dataclasses
import shutil
from contextlib import nullcontext

import pytest
import torch
import transformers
from commands import refuse_command, run_python_of, succeed
from networks import assert_same_tensors
from refusals import refuse
from runs import assert_same_end, begin, flip_bit, ignore, read_records, send_at
from safetensors.torch import load_file, save_file
from test_golden import NEXT_SENTENCE

from electra.assignments import override
from electra.checkpoints.checkpoint import find_checkpoint, list_checkpoints
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.checkpoints.manifest import read_manifest
from electra.checkpoints.metrics import read_metrics
from electra.checkpoints.names import NEXT_SENTENCE_FILE
from electra.checkpoints.saved import SavedModel, SavedNetwork
from electra.cli import main
from electra.errors import UserError
from electra.files import write_json
from electra.interop.export import export
from electra.interop.importing import import_model
from electra.method.config import OBJECTIVES
from electra.method.flops import count_parts
from electra.presets import PRESETS, modern_sizes
from electra.pretraining.continuation import write_branch
from electra.pretraining.evaluation import evaluate, heldout_rows
from electra.pretraining.init_from import describe_parts, fit_to_start, tell_parts
from electra.pretraining.journal import Alarms
from electra.pretraining.loop import pretrain, resume
from electra.pretraining.memory import make_rows, measure_activations
from electra.pretraining.networks import sketch_objective
from electra.pretraining.plan import time_run
from electra.pretraining.resolution import resolve
from electra.pretraining.start import build_model, count_tokens, prepare_step
from electra.processes import Interrupted
from electra.reports.curves import find_panels
from electra.reports.glossary import describe_heldout
from electra.reports.page import write_page
from electra.reports.runs import read_runs
from electra.settings import to_dict
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.shards.store import open_shards
from electra.terminal.live import domains_line
from electra.tokenizing.tokenizer import Tokenizer, make_tokenizer
from electra.training.machine import Machine

SHORT = ["train.steps=8", "train.save_every=4", "train.evaluate_every=4", "train.log_every=2"]
CORRECTS = "method.objective=cocolm method.contrast_weight=0"
READS = "method.objective=causal_lm model.causal=true"


@pytest.fixture(scope="module")
def folders(toy_shards, toy_config, tmp_path_factory):
    """A run, its export, and the export without its generator."""
    folder = tmp_path_factory.mktemp("starts")
    settings = ["generator.hidden_fraction=1", "generator.layers_fraction=0.5"]
    pretrain(toy_shards, folder / "run", override(toy_config, settings), ignore)
    export(folder / "run", folder / "export")
    shutil.copytree(folder / "export", folder / "alone")
    shutil.rmtree(folder / "alone" / "generator")
    return folder


def continued(toy_config, start, *settings):
    """The settings of a run that begins with a folder, as a command makes them."""
    settings = " ".join(settings).split()
    more = [*SHORT, "optimizer.warmup_steps=1", f"train.init_from={start}", *settings]
    given = {word.partition("=")[0] for word in settings}
    return fit_to_start(override(toy_config, more), read_pretrained(start), given)


# Sizes


def test_sizes_are_those_of_the_start(folders):
    small, theirs = PRESETS["small"], read_run_config(folders / "run")
    probs = {name: getattr(small.model, name) for name in vars(small.model) if "dropout" in name}
    alone, whole = (
        fit_to_start(
            override(small, ["train.steps=100", f"train.init_from={folders / name}"]),
            read_pretrained(folders / name),
        )
        for name in ("alone", "run")
    )
    assert alone.model == dataclasses.replace(theirs.model, **probs)
    # Small's narrow generator cannot have the discriminator's layers.
    made = alone.generator.encoder(alone.model)
    assert (made.hidden_size, made.num_hidden_layers) == (alone.model.hidden_size, 1)
    assert alone.generator.warmup_steps == 10
    expected = theirs.generator.encoder(theirs.model)
    assert whole.generator.encoder(whole.model) == dataclasses.replace(expected, **probs)
    assert whole.generator.warmup_steps == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("model.num_hidden_layers=3", "model.num_hidden_layers 3 contradicts train.init_from"),
        ("train.initial_weights=neighbours", "is for a run from scratch"),
        ("generator.start=layers generator.hidden_fraction=0.5", "takes the lower of 2"),
        ("generator.hidden_fraction=0.5", "not those of the settings"),
        ("generator.start=folder generator.start_folder=nowhere", "neither a run"),
    ],
)
def test_contradictions_are_refused(folders, toy_config, settings, says):
    refuse(says, continued, toy_config, folders / "run", settings)


def test_folders_that_do_not_fit_are_refused(folders, toy_shards, toy_config, tmp_path):
    config, shards = continued(toy_config, folders / "alone"), tmp_path / "shards"
    other = Tokenizer([*open_shards(toy_shards).tokenizer.tokens_by_id[:-1], "another"])
    (tmp_path / "text.txt").write_text("the queen sold a boat .\n\n" * 100)
    prepare([str(tmp_path / "text.txt")], other, shards, PrepareConfig(heldout_prob=0.2), None)
    with pytest.raises(UserError, match=r"another vocabulary than .*prepare the text with its"):
        pretrain(shards, tmp_path / "out", config, ignore)
    also = override(config, [f"train.also_evaluate={shards}"])
    refuse("has another vocabulary", pretrain, toy_shards, tmp_path / "out", also, ignore)
    # A generator with embeddings of its own cannot share them.
    untied = shutil.copytree(folders / "export", tmp_path / "untied")
    (untied / "generator/electra.json").unlink()
    path = untied / "generator/model.safetensors"
    tensors = load_file(path)
    tensors["electra.embeddings.word_embeddings.weight"] += 1
    save_file(tensors, path)
    refuse("set method.sharing=gdes or none", continued, toy_config, untied)
    assert continued(toy_config, untied, "method.sharing=none")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("preset", ["base", "small"])
def test_the_generator_of_another_preset_is_not_built_first(preset):
    """A third of the heads of a small ModernBERT are heads of an odd size."""
    sizes = override(modern_sizes(64, 2), ["num_attention_heads=2", "vocab_size=120"])
    start = SavedModel(SavedNetwork("", sizes, ({},)), make_tokenizer(120), 64, "encoder")
    config = override(PRESETS[preset], ["train.init_from=encoder", "examples.sequence_length=32"])
    assert fit_to_start(config, start).generator.hidden_fraction == 1


# Weights


@pytest.mark.parametrize("start", ["run", "export"])
def test_a_run_goes_on_with_both_networks(folders, toy_shards, toy_config, start):
    saved = read_pretrained(folders / "run")
    model, config, found = begin(continued(toy_config, folders / start), toy_shards)
    assert set(describe_parts(model, config, found).values()) == {"init_from"}
    for name, theirs in (("discriminator", saved.kept), ("generator", saved.generator)):
        network = model.networks[name]
        assert_same_tensors(dict(network.encoders[0].named_parameters()), theirs.encoders[0])
        assert_same_tensors(dict(network.head.named_parameters()), theirs.head)


@pytest.mark.parametrize("objective", ["rtd", "replace_mlm"])
def test_one_encoder_goes_on_with_both_heads(train, toy_shards, toy_config, objective):
    one = "method.sharing=all generator.hidden_fraction=1 generator.layers_fraction=1"
    run = train("run", one, "train.steps=6")
    config = continued(toy_config, run, one, f"method.objective={objective}")
    model, config, start = begin(config, toy_shards)
    head = dict(model.networks["generator"].head.named_parameters())
    assert describe_parts(model, config, start)["generator head"] == "init_from"
    assert_same_tensors(head, start.generator.head)
    assert_same_tensors(dict(model.kept.named_parameters()), start.kept.encoders[0])


OWN = ["method.objective=mlm", "method.objective=replace_mlm", "method.objective=all_tokens_mlm"]
OWN += ["method.objective=electric", CORRECTS, READS, "method.scheme=adversarial"]
OWN += ["method.objective=teams", "method.objective=teams method.kept_layer=selection"]
OWN += [" ".join(NEXT_SENTENCE), "method.objective=all_tokens_mlm method.sharing=gdes"]


@pytest.mark.parametrize("settings", OWN)
def test_the_same_objective_goes_on_with_all_that_it_has_learnt(
    train, toy_shards, toy_config, settings
):
    """Its first loss is the last of the run before."""
    run = train("run", settings, "train.steps=6")
    model, config, start = begin(continued(toy_config, run, settings), toy_shards)
    assert set(describe_parts(model, config, start).values()) == {"init_from"}
    heldout = heldout_rows(open_shards(toy_shards), config)
    last, found = read_records(run, "heldout")[-1], evaluate(model, heldout, 8)
    assert {name: last[name] for name in found} == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("objective", ["mlm", "replace_mlm", "all_tokens_mlm", "cocolm"])
def test_an_imported_bert_goes_on_with_its_head(train, toy_shards, toy_config, tmp_path, objective):
    """The folder has its encoder without a head, and beside it the masked language model."""
    run, bert = train("run", "method.objective=mlm model.embedding_size=128"), tmp_path / "bert"
    export(run, bert, form="bert")
    import_model(bert, tmp_path / "start")
    config = continued(toy_config, tmp_path / "start", f"method.objective={objective}")
    model, config, start = begin(config, toy_shards)
    role = "corrector" if objective == "cocolm" else "encoder"
    head = dict(model.networks[role].head.named_parameters())
    assert_same_tensors(head, read_pretrained(run).kept.head)
    told = tell_parts(model, config, start)
    assert f"{role} head" in told.partition("(from")[0]
    assert "not used" not in told
    if objective == "mlm":
        heldout = heldout_rows(open_shards(toy_shards), config)
        last = read_records(run, "heldout")[-1]["mlm_loss"]
        assert evaluate(model, heldout, 8)["mlm_loss"] == pytest.approx(last, rel=1e-5)


@pytest.mark.parametrize("start", ["run", "export"])
def test_a_head_of_another_encoder_is_not_taken(folders, toy_shards, toy_config, start):
    """The generator's head has the shapes of one on the discriminator's states."""
    config = continued(toy_config, folders / start, "method.objective=mlm")
    model, config, found = begin(config, toy_shards)
    assert describe_parts(model, config, found) == {"encoder": "init_from", "encoder head": "new"}
    assert tell_parts(model, config, found) == (
        f"first weights: encoder (from {folders / start}); encoder head (new); "
        "not used: head that predicts replaced, generator"
    )


@pytest.mark.parametrize(
    ("settings", "head"),
    [("method.objective=all_tokens_mlm", "copy"), ("method.scheme=adversarial", "baseline")],
)
def test_the_manifest_names_a_head_that_is_new(folders, toy_shards, toy_config, settings, head):
    found = begin(continued(toy_config, folders / "run", settings), toy_shards)
    assert describe_parts(*found)[f"{head} head"] == "new"


@pytest.mark.parametrize("sharing", ["embeddings", "none"])
def test_a_generator_is_made_of_the_lower_layers(folders, toy_shards, toy_config, sharing):
    config = continued(toy_config, folders / "alone", f"method.sharing={sharing}")
    model, config, found = begin(config, toy_shards)
    parts = describe_parts(model, config, found)
    assert (parts.pop("generator"), parts.pop("generator head")) == ("layers", "new")
    assert parts == {"discriminator": "init_from", "discriminator head": "init_from"}
    ours = dict(model.discriminator.named_parameters())
    theirs = dict(model.generator.encoder.named_parameters())
    assert theirs.keys() < ours.keys()
    assert all(torch.equal(parameter, ours[name]) for name, parameter in theirs.items())
    is_shared = model.generator.encoder.embeddings is model.discriminator.embeddings
    assert is_shared == (sharing == "embeddings")
    counts = count_tokens(open_shards(toy_shards))
    assert torch.allclose(model.generator.head.bias.exp(), (counts / counts.sum()).float())


@pytest.mark.parametrize(
    ("start", "settings", "rate"),
    [
        ("alone", [], 6),
        ("alone", ["optimizer.learning_rate=1e-4"], pytest.approx(20)),
        ("alone", ["optimizer.generator_rate=2"], 2),
        ("alone", ["method.sharing=all", "generator.layers_fraction=1"], 1),
        ("run", [], 1),
    ],
)
def test_a_made_generator_learns_at_the_full_rate(folders, start, settings, rate):
    notes = []
    settings = [f"train.init_from={folders / start}", *settings]
    config = resolve("tiny", assignments=settings, note=notes.append)
    assert config.optimizer.generator_rate == rate
    told = [text for text in notes if "generator_rate" in text]
    assert len(told) == (config.optimizer.generator_rate not in (1, 2))


def test_a_generator_is_that_of_another_folder_or_new(folders, toy_shards, toy_config):
    other = f"generator.start_folder={folders / 'export' / 'generator'}"
    config = continued(toy_config, folders / "alone", "generator.start=folder", other)
    assert config.generator.warmup_steps == 0
    model, config, found = begin(config, toy_shards)
    saved = read_pretrained(folders / "run").generator
    assert torch.equal(model.generator.head.dense.weight, saved.head["dense.weight"])
    assert describe_parts(model, config, found)["generator head"] == "folder"
    config = continued(toy_config, folders / "run", "generator.start=new")
    model, config, found = begin(config, toy_shards)
    assert not torch.equal(model.generator.head.dense.weight, saved.head["dense.weight"])
    assert describe_parts(model, config, found)["generator"] == "new"


def test_the_same_command_continues_with_what_was_fitted(folders, tmp_path):
    """The start was trained on rows of 32 tokens, and the preset has more."""
    words = [f"train.init_from={folders / 'run'}", "train.steps=100"]
    config = resolve("tiny", assignments=words, run=tmp_path)
    assert config.examples.sequence_length == 32
    write_json(tmp_path / "config.json", to_dict(config))
    assert resolve("tiny", assignments=words, run=tmp_path) == config
    with pytest.warns(UserWarning, match="vocab_size has no effect: the shards set it"):
        resolve("tiny", assignments=["model.vocab_size=99"], run=tmp_path / "new")


@pytest.mark.parametrize(
    "settings",
    [
        *(f"method.objective={name}" for name in OBJECTIVES if name not in ("rtd", "causal_lm")),
        *("method.scheme=adversarial", "method.scheme=two_stage method.sharing=none"),
        *("generator.kind=unigram", "method.mode=reference"),
    ],
)
def test_every_objective_continues(folders, toy_shards, toy_config, tmp_path, settings):
    """Their encoder begins with the discriminator's weights, and what is written can be read."""
    config = continued(toy_config, folders / "run", f"train.also_evaluate={toy_shards}", settings)
    model, _, start = begin(config, toy_shards)
    assert_same_tensors(dict(model.kept.named_parameters()), start.kept.encoders[0])
    pretrain(toy_shards, tmp_path / "run", config, ignore)
    assert read_pretrained(tmp_path / "run").step == 8
    heldout = read_records(tmp_path / "run", "heldout")
    assert heldout[0]["step"] == 0
    assert {"old_loss", "old_disc_loss"} & heldout[-1].keys()


def test_a_corrector_goes_on_and_a_causal_encoder_may_read_both_sides(
    train, toy_shards, toy_config, tmp_path
):
    corrects, reads = train("corrects", CORRECTS), train("reads", READS)
    model, config, start = begin(continued(toy_config, corrects, CORRECTS), toy_shards)
    assert describe_parts(model, config, start)["corrector head"] == "init_from"
    assert_same_tensors(
        dict(model.corrective_head.named_parameters()), start.networks["corrector"].head
    )
    selects = "method.objective=teams method.kept_layer=selection"
    found = begin(continued(toy_config, corrects, selects), toy_shards)
    assert describe_parts(*found)["selector head"] == "new"
    refuse("model.causal", continued, toy_config, reads)
    assert not continued(toy_config, reads, "model.causal=false").model.causal
    assert continued(toy_config, reads, READS).model.causal
    for start, settings in ((reads, "model.causal=false"), (corrects, READS)):
        config = continued(toy_config, start, settings)
        pretrain(toy_shards, tmp_path / f"{start.name}-2", config, ignore)


def test_a_generator_that_shares_layers_does_not_rest_them(folders, toy_config):
    shared = "method.objective=teams", "generator.shared_layers=1"
    assert continued(toy_config, folders / "alone", *shared).generator.warmup_steps == 0


def test_berts_two_heads_go_out_and_come_back(train, toy_shards, toy_config, tmp_path, monkeypatch):
    """A run becomes BertForPreTraining; run, exports and what is imported again are continued."""
    settings = [*NEXT_SENTENCE, "model.embedding_size=128"]
    run, bert = train("run", *settings), tmp_path / "bert"
    assert export(run, bert, form="bert") == "BertForPreTraining"
    assert export(run, tmp_path / "electra") == "ElectraForMaskedLM"
    import_model(bert, tmp_path / "imported")
    theirs, info = transformers.BertForPreTraining.from_pretrained(bert, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = dict(read_pretrained(run).kept.next_sentence)
    for name in ("electra", "imported", "run"):
        config = continued(toy_config, tmp_path / name, *settings)
        model, config, start = begin(config, toy_shards)
        assert describe_parts(model, config, start)["next_sentence head"] == "init_from"
        assert_same_tensors(dict(model.next_sentence_head.named_parameters()), expected)
    batch = make_rows(config, 4, seed=0)
    with torch.no_grad():
        states = model.eval().kept(*batch.inputs)
        table, bias = model.mlm.softmax
        found = theirs.eval()(batch.input_ids_BL, token_type_ids=batch.token_type_ids_BL)
        for logits, of_theirs in (
            (model.mlm.head(states) @ table.T + bias, found.prediction_logits),
            (model.next_sentence_head(states[:, 0]), found.seq_relationship_logits),
        ):
            torch.testing.assert_close(logits, of_theirs, atol=1e-5, rtol=0)
    run_python_of(bert / "README.md", tmp_path, monkeypatch)
    assert export(tmp_path / "imported", tmp_path / "again", form="bert") == "BertModel"
    assert_same_tensors(load_file(tmp_path / "again" / NEXT_SENTENCE_FILE), expected)


def test_two_stages_keep_the_discriminator(folders, toy_shards, toy_config):
    """Without train.init_from the second stage begins with the generator's weights."""
    settings = "method.scheme=two_stage method.sharing=none"
    model, _, _ = begin(continued(toy_config, folders / "run", settings), toy_shards)
    before = {name: each.clone() for name, each in model.discriminator.named_parameters()}
    torch.nn.init.zeros_(model.generator.encoder.embeddings.tokens.weight)
    model.begin_stage(1)
    assert_same_tensors(dict(model.discriminator.named_parameters()), before)


# The generator's warm-up

OF_200 = ["model.vocab_size=200", "train.initial_weights=bert"]
WARM = ["method.sharing=embeddings", "method.sharing=none", "method.scheme=adversarial"]
WARM += ["method.mode=reference", "optimizer.matrices=muon", "train.accumulation=2"]
WARM += [
    f"method.objective={name}"
    for name in ("rtd_masked_only", "replace_mlm", "electric", "teams", "cocolm")
]


@pytest.mark.parametrize("setting", WARM)
def test_the_discriminator_rests(toy_config, setting):
    """So do embeddings that it shares, and all weights learn afterwards."""
    warm = ["optimizer.warmup_steps=1", "generator.warmup_steps=3", "train.steps=10"]
    config = override(toy_config, [*OF_200, *warm, setting])
    model = build_model(config, make_tokenizer(200), Machine()).train()
    step = prepare_step(model, config, Machine())
    generator = model.networks["generator"]
    resting = set(model.kept.parameters())
    for network in model.networks.values():
        if model.kept in network.encoders:
            resting |= set(network.head.parameters())
    before = {each: each.detach().clone() for each in model.parameters()}
    for number in range(3):
        step(number, make_rows(config, 8, number), 1e-2)
    assert all(torch.equal(each, before[each]) for each in resting)
    learning = {*generator.encoders[0].parameters(), *generator.head.parameters()} - resting
    assert all(not torch.equal(each, before[each]) for each in learning)
    assert not any(step.optimizer.state.get(each) for each in resting)
    step.begin_stage(1)
    for number in range(3, 5):
        outcome = step(number, make_rows(config, 8, number), 1e-2)
    assert outcome.outputs[0].means.keys() & {"disc_loss", "restore_loss"}
    assert all(not torch.equal(each, before[each]) for each in resting)


def test_costs_of_the_warm_up(toy_config):
    """Operations of what runs, memory of the stage that takes most, time of both stages."""
    plain = override(toy_config, [*OF_200, "train.steps=100"])
    warm = override(plain, ["generator.warmup_steps=25"])
    whole, parts = (
        {part.name: part.train for part in count_parts(sketch_objective(config), 32)}
        for config in (plain, warm)
    )
    for name, flops in parts.items():
        share = 1.0 if name.startswith("generator") else 0.75
        assert flops == pytest.approx(share * whole[name])
    models = [build_model(config, make_tokenizer(200), Machine()) for config in (plain, warm)]
    activations = [measure_activations(model, plain, torch.device("cpu")) for model in models]
    assert activations[0] == activations[1]
    assert models[1].is_resting, "the estimate begins no stage of the model itself"
    # Here steps take a tenth of a second in the warm-up, and a second after it.
    model, seconds, progress = models[1], [], []
    model.generator.register_forward_pre_hook(lambda *_: seconds.append(0.1))
    model.discriminator.register_forward_pre_hook(lambda *_: seconds.append(0.9))
    found = time_run(model, warm, Machine(), 30, progress.append, lambda: sum(seconds))
    assert found == pytest.approx(25 * 0.1 + 75)
    assert progress == sorted(progress)


@pytest.mark.parametrize(
    "stop_at", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(6, marks=pytest.mark.slow)]
)
def test_a_continued_run_is_resumed_bit_for_bit(folders, toy_shards, toy_config, tmp_path, stop_at):
    """Stopped in the warm-up, at its end, and after it; the folder is not needed any more."""
    start = shutil.copytree(folders / "alone", tmp_path / "start")
    settings = f"generator.warmup_steps=4 train.also_evaluate={toy_shards}"
    config = continued(toy_config, start, settings)
    pretrain(toy_shards, tmp_path / "whole", config, ignore)
    with pytest.raises(Interrupted):
        pretrain(toy_shards, tmp_path / "parts", config, send_at(stop_at))
    shutil.rmtree(start)
    resume(tmp_path / "parts", ignore)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_run_without_a_checkpoint_needs_the_same_start(folders, toy_shards, toy_config, tmp_path):
    start = shutil.copytree(folders / "alone", tmp_path / "start")
    config = continued(toy_config, start, "generator.warmup_steps=2")
    for name in ("whole", "parts"):
        pretrain(toy_shards, tmp_path / name, config, ignore)

    def resume_without_checkpoint():
        shutil.rmtree(tmp_path / "parts" / "checkpoints")
        (tmp_path / "parts" / "results.json").unlink()
        resume(tmp_path / "parts", ignore)

    resume_without_checkpoint()
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    (start / "electra.json").unlink()
    tensors = load_file(start / "model.safetensors")
    save_file({name: each + 1 for name, each in tensors.items()}, start / "model.safetensors")
    refuse("does not hold the weights that", resume_without_checkpoint)


# Losses on old and new text


def test_a_softmax_that_is_not_the_embeddings_is_left_out(exported, tmp_path):
    folder = shutil.copytree(exported / "generator", tmp_path / "untied")
    (folder / "electra.json").unlink()
    tensors = load_file(folder / "model.safetensors")
    table = tensors["electra.embeddings.word_embeddings.weight"]
    for other, is_there in ((table.clone(), True), (table + 1, False)):
        both = tensors | {"generator_lm_head.weight": other}
        save_file(both, folder / "model.safetensors")
        with (
            nullcontext()
            if is_there
            else pytest.warns(UserWarning, match="output matrix is not tied")
        ):
            assert (read_pretrained(folder).masked_lm is not None) == is_there


@pytest.fixture(scope="module")
def measured(folders, toy_shards, toy_config, tmp_path_factory):
    """A run continued on its own text, which is also its old text."""
    run = tmp_path_factory.mktemp("measured") / "run"
    config = continued(toy_config, folders / "run", f"train.also_evaluate={toy_shards}")
    pretrain(toy_shards, run, config, ignore)
    return run


def test_the_first_loss_is_the_last_of_the_run_before(folders, measured):
    """Its generator replaces the same tokens of the same rows."""
    last = read_metrics(folders / "run" / "metrics.jsonl")[-1]
    first, *others = read_records(measured, "heldout")
    assert first["step"] == 0
    for measure in ("disc_loss", "constant_disc_loss", "disc_auc"):
        assert first[f"old_{measure}"] == pytest.approx(last[measure], rel=1e-5)
        assert first[f"new_{measure}"] == first[f"old_{measure}"]
    # The rows stay the same, and the discriminator does not.
    assert all(r["old_constant_disc_loss"] == first["old_constant_disc_loss"] for r in others)
    assert others[-1]["old_disc_loss"] != first["old_disc_loss"]


def test_one_generator_replaces_the_rows_of_two_runs(folders, toy_shards, toy_config, tmp_path):
    """So their curves begin at one place, with and without a warm-up."""
    records = {}
    for steps in (0, 4):
        run = tmp_path / str(steps)
        settings = f"train.evaluate_with={folders / 'run'} generator.warmup_steps={steps}"
        pretrain(toy_shards, run, continued(toy_config, folders / "alone", settings), ignore)
        records[steps] = {record["step"]: record for record in read_records(run, "heldout")}
    last = read_metrics(folders / "run" / "metrics.jsonl")[-1]["disc_loss"]
    for step, found in ((0, records[0]), (0, records[4]), (4, records[4])):
        assert found[step]["new_disc_loss"] == pytest.approx(last, rel=1e-5)
    assert records[0][4]["new_disc_loss"] != records[0][0]["new_disc_loss"]
    assert "old_disc_loss" not in records[0][0]


def test_the_rows_of_the_losses_stay_in_a_cooldown_and_so_does_the_old_text_wherever_it_lies(
    measured, toy_shards, tmp_path
):
    ended, moved = tmp_path / "ended", shutil.copytree(toy_shards, tmp_path / "moved")
    checkpoint = list_checkpoints(measured)[0]
    write_branch(measured, checkpoint, ended, read_run_config(measured))
    name = "heldout.safetensors"
    assert (ended / name).read_bytes() == (measured / name).read_bytes()
    manifest = read_manifest(ended)
    digest, manifest["also_evaluate"]["sha256"] = manifest["also_evaluate"]["sha256"], "another"
    write_json(ended / "manifest.json", manifest)
    config = override(read_run_config(measured), [f"train.also_evaluate={moved}"])
    refuse("does not hold the shards that", pretrain, toy_shards, ended, config, ignore)
    manifest["also_evaluate"]["sha256"] = digest
    write_json(ended / "manifest.json", manifest)
    changed = pytest.warns(UserWarning, match=f"train.also_evaluate {toy_shards} -> {moved}")
    flip_bit(ended / name)
    with changed:
        refuse(f"{name} is damaged: its sha256", pretrain, toy_shards, ended, config, ignore)
    shutil.copyfile(measured / name, ended / name)
    pretrain(toy_shards, ended, config, ignore)
    assert read_manifest(ended)["also_evaluate"] == {"folder": str(moved), "sha256": digest}


def test_the_manifest_says_what_was_taken(folders, toy_shards, measured):
    manifest = read_manifest(measured)
    _, checkpoint = find_checkpoint(folders / "run")
    name = f"checkpoints/{checkpoint.name}/model.safetensors"
    begun = manifest["init_from"]
    assert begun["source"] == f"{folders / 'run'} at step 12"
    assert begun["sha256"].keys() == {name}
    assert begun["parts"]["generator"] == "init_from"
    assert manifest["also_evaluate"]["sha256"] == open_shards(toy_shards).digest


def test_the_report_has_both_curves(measured, run, tmp_path):
    runs = read_runs([measured])
    assert "Discriminator on old and new text" in [panel.title for panel in find_panels(runs)]
    write_page(tmp_path / "page.html", runs)
    page = (tmp_path / "page.html").read_text()
    assert "discriminator&#39;s loss, old text" in page
    assert "at step 12</td>" in page, "first weights"
    write_page(tmp_path / "own.html", read_runs([run]))
    assert "random, with neighbours</td>" in (tmp_path / "own.html").read_text()
    main(["report", str(measured), "--out", str(tmp_path / "tables.md")])
    tables = (tmp_path / "tables.md").read_text()
    assert "| continued run | step | old_disc_loss | new_disc_loss |" in tables
    assert f"| run | 8 | {runs[0].heldout[-1]['old_disc_loss']:.4f} |" in tables
    line = domains_line(runs[0].heldout[-1])
    assert line.startswith("# disc loss on rows that stay the same: old text 0.")
    assert domains_line({"part": "heldout", "step": 1}) == ""


def test_a_run_that_makes_a_model_worse_says_so(toy_config):
    alarms = Alarms(toy_config)

    def read(loss):
        record = {"part": "heldout", "step": 1, "old_disc_loss": loss}
        return alarms.read_heldout({**record, "old_constant_disc_loss": 0.4})

    assert alarms.read_end() == []

    assert [read(loss) for loss in (0.3, 0.29, 0.309)] == [[], [], []]
    (text,) = read(0.32)
    assert "on the old text the discriminator's loss is 0.3200, and was 0.3000" in text
    assert "20% of what it had learnt there is lost" in text
    assert alarms.read_end() == [], "said just now"
    assert read(0.33) == []
    assert "30% of what it had learnt there is lost" in alarms.read_end()[0]
    assert read(0.30) == alarms.read_end() == []
    assert len(read(0.33)) == 1


def test_an_objective_without_a_discriminator_says_so_by_its_loss(toy_config):
    alarms = Alarms(override(toy_config, ["method.objective=mlm"]))

    def read(**record):
        return alarms.read_heldout({"part": "heldout", "step": 1, "loss": 9.0, **record})

    assert [read(), read(old_loss=3.0), read(old_loss=None), read(old_loss=3.29)] == [[]] * 4
    (text,) = read(old_loss=3.6)
    assert "on the old text the loss is 3.6000, and was 3.0000 before its first step" in text
    assert "it has risen by 20%; a lower optimizer.learning_rate, or old text" in text
    assert read(old_loss=3.9) == []
    assert "it has risen by 30%" in alarms.read_end()[0]
    assert read(old_loss=3.0) == alarms.read_end() == []


def test_the_end_of_a_continued_run_shows_what_it_gained_and_lost(
    folders, toy_shards, toy_config, tmp_path
):
    seen, run = [], tmp_path / "run"
    spoils = f"optimizer.learning_rate=0.3 train.also_evaluate={toy_shards}"
    config = continued(toy_config, folders / "run", spoils)
    results = pretrain(toy_shards, run, config, seen.append)
    first, *_, last = read_records(run, "heldout")
    assert results["before"]["new_disc_loss"] == first["new_disc_loss"] < last["new_disc_loss"]
    told = describe_heldout(results["heldout"], results["before"])
    before = {name: f"{first[name]:.4f}" for name in ("new_disc_loss", "old_disc_loss")}
    for name in before:
        assert told[name] == f"{last[name]:.4f} ({before[name]} before)"
    assert "before" not in told["disc_loss"], "of other samples"
    alarms = [(each["step"], each["text"]) for each in seen if each["part"] == "alarm"]
    for domain in ("old", "new"):
        steps = [step for step, text in alarms if f"on the {domain} text" in text]
        assert steps == [4, 8], "when it is seen, and at the end"
    write_page(tmp_path / "page.html", read_runs([run]))
    page = " ".join((tmp_path / "page.html").read_text().split())
    for words in (f"loss was {before['new_disc_loss']} at first", ">new_constant_disc_loss<"):
        assert words in page
    # Another objective's own loss on the new text, and on the old.
    config = continued(toy_config, folders / "run", "method.objective=mlm", spoils)
    results = pretrain(toy_shards, tmp_path / "mlm", config, ignore)
    told = describe_heldout(results["heldout"], results["before"])
    assert {name for name in told if "before" in told[name]} == {
        "mlm_loss", "mlm_accuracy", "old_loss"
    }  # fmt: skip


# The command


@pytest.mark.filterwarnings("default:resuming .* with changed settings")
def test_the_command_continues_a_continued_run(folders, toy_shards, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders / "alone", tmp_path / "start")
    words = ["pretrain", str(toy_shards), "--out", "run", "--init-from", "start"]
    words += ["--also-evaluate", str(toy_shards), "--set", "examples.sequence_length=32"]
    words += ["train.batch_size=4", "train.evaluate_rows=8", "train.threads=1"]
    printed = succeed(capsys, *words, "train.steps=20")
    assert "continued from the weights of start: 20 steps" in printed.err
    told = "generator (from the encoder's lower layers); generator head (new); discriminator, "
    assert f"{told}discriminator head (from start)" in printed.err
    assert "old text" in printed.err
    config = read_run_config(tmp_path / "run")
    assert (config.model.hidden_size, config.generator.warmup_steps) == (128, 2)
    assert config.train.initial_weights == "bert"
    assert config.optimizer.learning_rate == pytest.approx(2e-3 / 6, rel=1e-4)
    assert config.optimizer.generator_rate == 6
    assert "one sixth of the preset's" in " ".join(printed.err.split())
    shutil.rmtree(tmp_path / "start")
    printed = succeed(capsys, *words, "train.steps=24").err
    assert "with changed settings: train.steps 20 -> 24" in printed
    assert read_run_config(tmp_path / "run").generator.warmup_steps == 2
    more = "train.steps=26", "generator.warmup_steps=3"
    refuse_command("was started with generator.warmup_steps=2, not 3", capsys, *words, *more)
    with pytest.raises(SystemExit):
        main(["pretrain", "--resume", "run", "--init-from", "start"])
    for verb in ("plan", "flops"):
        main([verb, *(["--probe-seconds", "0.1"] if verb == "plan" else []), "--preset", "tiny",
              "--set", f"train.init_from={folders / 'run'}", "train.threads=1"])  # fmt: skip
    assert "kept encoder" in capsys.readouterr().out

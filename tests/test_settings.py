"""Settings: what is refused, in one line that names the setting, and how values are read."""

import dataclasses
import json
import math
import os
import warnings
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from refusals import refuse

import electra
from electra.assignments import differences, from_dict, override, override_from_toml
from electra.errors import UserError
from electra.files import read_object, write_json
from electra.objectives.config import TeamsConfig
from electra.presets import PRESETS
from electra.pretraining.resolution import resolve
from electra.quickstart.config import QUICKSTART
from electra.service.config import ServeConfig
from electra.settings import AtLeast, to_dict
from electra.shards.config import PrepareConfig
from electra.tasks.config import FinetuneConfig
from electra.tokenizing.config import TokenizerConfig
from electra.training.config import PretrainConfig, require_schedule

PACKAGE = Path(electra.__file__).parent
TINY, MODERN = PRESETS["tiny"], PRESETS["modern-mini"]
FINETUNE = FinetuneConfig()
WARM = "generator.warmup_steps=2"
TWO_STAGE = "method.scheme=two_stage method.sharing=none"
RATE = "optimizer.generator_rate=2"
REFERENCE = "method.mode=reference optimizer.matrices=adamw"
NO_NETWORK = "generator.kind=uniform"
APART = "method.sharing=gdes train.updates=apart"
ALL = "method.sharing=all generator.layers_fraction=1 generator.hidden_fraction=1"

REFUSED = [
    # How a value is read.
    (TINY, "train.stpes=3", "unknown field 'stpes' in 'train.stpes'; did you mean 'steps'?"),
    (TINY, "trian.steps=3", "unknown section 'trian' in 'trian.steps'; did you mean 'train'?"),
    (TINY, "train.steps.more=3", "'steps' in 'train.steps.more' is a field"),
    (TINY, "train=3", "'train' is a section"),
    (TINY, "train.section=x", "unknown field 'section'"),
    (TINY, "train.steps", "--set takes section.field=value"),
    (TINY, "train.steps=3 train.steps=4", "train.steps is set twice"),
    (TINY, "train.steps=many", "train.steps must be a whole number, not 'many'"),
    (TINY, "train.seed=0.5", "train.seed must be a whole number"),
    (TINY, "train.seed=nan", "train.seed must be a whole number"),
    (TINY, "train.seed=1e400", "train.seed must be a whole number"),
    (TINY, "train.seed=1e99999999999999999999", "train.seed must be a whole number"),
    (TINY, "optimizer.learning_rate=high", "optimizer.learning_rate must be a number"),
    (TINY, "train.cuda_graph=perhaps", "train.cuda_graph must be true or false"),
    (TINY, "train.device=cdua", "train.device cannot be 'cdua'; did you mean 'cuda'?"),
    (TINY, "method.objective=rdt", "unknown method.objective 'rdt'; did you mean 'rtd'?"),
    # Bounds that one field cannot show.
    (TINY, "train.seed=1e20", "train.seed"),
    (TINY, "model.type_vocab_size=1", "model.type_vocab_size"),
    (TINY, "model.num_attention_heads=3", "hidden_size"),
    (TINY, "model.norm_bias=true", "needs model.architecture=modernbert, not electra"),
    (TINY, "generator.hidden_size=129", "hidden_size 129"),
    (FINETUNE, "sequence_length=7", "sequence_length"),
    (FINETUNE, "own.name=", "own.name"),
    (FINETUNE, "own.name=a\nb", "own.name"),
    (TINY, "train.accumulation=65", "train.accumulation must be at most train.batch_size 64"),
    (TINY, "examples.sequence_length=600", "examples.sequence_length"),
    (TINY, f"{TWO_STAGE} method.generator_steps=6500", "method.generator_steps"),
    (TINY, f"{TWO_STAGE} train.steps=1", "train.steps must be at least 2"),
    (TINY, "generator.warmup_steps=6500", "generator.warmup_steps"),
    (QUICKSTART, "max_seconds=1", "max_seconds"),
    (QUICKSTART, "num_labelled=3", "num_labelled"),
    (QUICKSTART, "tokenizer.encoding=euc_kr", "left out: set prepare.encoding"),
    (QUICKSTART, "num_asked=3", "num_asked"),
    (ServeConfig(), "max_chars=3000000", "max_waiting_chars"),
    # What goes together: the generator.
    (TINY, "generator.kind=frozen method.sharing=none", "generator.frozen_run"),
    (TINY, "generator.frozen_run=x", "generator.frozen_run"),
    (TINY, "generator.kind=frozen generator.frozen_run=x", "method.sharing=none"),
    (
        TINY,
        "generator.kind=frozen generator.frozen_run=x method.sharing=none method.objective=mlm",
        "needs an objective with a generator, not mlm",
    ),
    (TINY, "generator.start=folder train.init_from=x", "generator.start_folder"),
    (TINY, "generator.start_folder=x", "generator.start=folder"),
    (TINY, "generator.start=layers", "train.init_from"),
    (
        TINY,
        "generator.start=new train.init_from=x method.objective=mlm",
        "needs an objective with a generator, not mlm",
    ),
    (TINY, f"{NO_NETWORK} generator.start=new", "generator.start"),
    (TINY, f"{NO_NETWORK} {WARM}", "generator.warmup_steps"),
    (TINY, f"{NO_NETWORK} generator.temperature=2", "generator.temperature"),
    (TINY, f"{NO_NETWORK} {TWO_STAGE}", "generator.kind"),
    (TINY, f"{NO_NETWORK} {ALL}", "generator.kind"),
    (TINY, f"method.objective=mlm {WARM}", "generator.warmup_steps"),
    (TINY, f"{ALL} {WARM}", "generator.warmup_steps"),
    (TINY, f"{TWO_STAGE} {WARM}", "generator.warmup_steps"),
    (TINY, f"{NO_NETWORK} {RATE}", "optimizer.generator_rate"),
    (TINY, f"method.objective=mlm {RATE}", "optimizer.generator_rate"),
    (TINY, f"{TWO_STAGE} {RATE}", "optimizer.generator_rate"),
    (TINY, f"{ALL} {RATE}", "optimizer.generator_rate"),
    # The objective, and the released code.
    (TINY, "method.objective=mlm method.scheme=adversarial", "method.scheme"),
    (TINY, "method.scheme=two_stage", "method.sharing=none"),
    (TINY, f"{ALL} method.scheme=adversarial", "method.sharing"),
    (TINY, "method.sharing=all", "generator.layers_fraction must be 1"),
    (TINY, "method.generator_steps=5", "method.scheme=two_stage"),
    (TINY, "method.mode=reference", "optimizer.matrices=adamw"),
    (TINY, f"{REFERENCE} method.mask_unit=span", "method.mask_unit=token"),
    (TINY, f"{REFERENCE} optimizer.decay_fraction=0.5", "optimizer.decay_fraction=1"),
    (TINY, f"{REFERENCE} {RATE}", "optimizer.generator_rate=1"),
    (MODERN, REFERENCE, "model.architecture=electra"),
    (TINY, "train.sharding=full", "optimizer.matrices=adamw"),
    (TINY, "method.sharing=gdes generator.kind=unigram", "generator.kind"),
    (TINY, "train.updates=apart", "method.sharing"),
    (TINY, f"{APART} method.objective=electric", "method.objective"),
    (TINY, f"{APART} {REFERENCE}", "method.mode"),
    (TINY, "train.updates=apart method.scheme=adversarial", "method.scheme"),
    # A run, and its weights.
    (TINY, "train.also_evaluate=x", "train.init_from"),
    (TINY, "train.evaluate_with=x", "train.init_from"),
    (TINY, "generator.hidden_fraction=0.25", "model.embedding_size"),
    (TINY, "model.embedding_size=63", "model.embedding_size must be even"),
    (TINY, "method.objective=mlm model.embedding_size=256", "model.embedding_size must be at most"),
    (MODERN, "train.initial_weights=neighbours", "train.initial_weights"),
    (MODERN, "generator.hidden_fraction=0.25", "generator.hidden_fraction"),
    (MODERN, "model.embedding_size=128", "embedding_size"),
    (MODERN, "model.type_vocab_size=3", "needs model.architecture=electra, not modernbert"),
    (PRESETS["deberta-v3-xsmall"], "examples.attend=document", "examples.attend=row"),
    (MODERN, "model.local_attention=33", "local_attention"),
    (MODERN, "model.num_attention_heads=256", "num_attention_heads"),
    # Tokenizers and tasks.
    (TokenizerConfig(), "kind=bpe split_ideographs=true", "split_ideographs"),
    (FINETUNE, "own.kind=choice", "own.choices"),
    (FINETUNE, "own.choices=a,b", "own.kind=choice"),
    (FINETUNE, "own.kind=choice own.choices=a,b own.text_b=b", "own.text_b"),
    (FINETUNE, "own.kind=regression own.metric=f1", "own.metric"),
    (FINETUNE, "keep_epoch=best score_epochs=last", "score_epochs=all"),
    *((FINETUNE, f"features.{each}", "features.layers") for each in ("combine=sum", "lstm_size=3")),
    (FINETUNE, "features.lstm_layers=1", "features.layers"),
]


@pytest.mark.parametrize(("settings", "changes", "words"), REFUSED)
def test_what_does_not_hold_is_refused_in_one_line(settings, changes, words):
    refuse(words, lambda: override(settings, changes.split(" ")))


@pytest.mark.parametrize(
    ("settings", "unread"),
    [
        ("method.objective=mlm generator.hidden_fraction=0.25", ["generator.hidden_fraction"]),
        ("method.objective=mlm method.disc_weight=50", ["method.disc_weight"]),
        (f"method.objective=replace_mlm method.disc_weight=50 {ALL}", ["method.disc_weight"]),
        ("method.objective=causal_lm model.causal=true method.mask_prob=0.3", ["method.mask_prob"]),
        (f"{NO_NETWORK} generator.hidden_size=64", ["generator.hidden_size"]),
        (f"{NO_NETWORK} method.shown_at_mask=mask", ["method.shown_at_mask"]),
        (
            "generator.num_hidden_layers=1 generator.layers_fraction=1",
            ["generator.layers_fraction"],
        ),
        ("train.evaluate_rows=0 train.evaluate_every=5", ["train.evaluate_every"]),
        ("model.global_attn_every_n_layers=1 model.local_attention=64", ["model.local_attention"]),
        ("train.steps=300 train.profile_step=300", ["train.profile_step"]),
        ("method.objective=mlm model.hidden_size=896 model.num_attention_heads=14", []),
        ("method.disc_weight=50 method.mask_prob=0.3 generator.hidden_fraction=1", []),
    ],
)
def test_what_a_run_does_not_read_is_told(settings, unread):
    preset = "modern-tiny" if "local" in settings else "tiny"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resolve(preset, assignments=settings.split(" "))
    assert [str(each.message).split(" ")[0] for each in told] == unread


def _bounded():
    """Every number of every setting with bounds, and the config of a command that has it."""

    def walk(config, prefix):
        for field in dataclasses.fields(config):
            if dataclasses.is_dataclass(field.type):
                yield from walk(getattr(config, field.name), f"{prefix}{field.name}.")
            for bounds in getattr(field.type, "__metadata__", ()):
                yield prefix + field.name, int in get_args(field.type), bounds

    features = override(FINETUNE, ["features.layers=4"])
    for config in (MODERN, features, TokenizerConfig(), PrepareConfig(), QUICKSTART, ServeConfig()):
        for each in walk(config, ""):
            yield config, *each


@pytest.mark.parametrize(
    ("config", "name", "is_whole", "bounds"), [pytest.param(*e, id=e[1]) for e in _bounded()]
)
def test_numbers_beyond_their_bounds_are_refused(config, name, is_whole, bounds):
    if isinstance(bounds, AtLeast):
        beyond = [bounds.least - 1]
    else:
        least, most = map(float, bounds.interval[1:-1].split(","))
        beyond = [math.nan, math.nextafter(least, -1), math.nextafter(most, math.inf)]
        beyond = [int(least) - 1, int(most) + 1] if is_whole else beyond
        beyond += [least] if bounds.interval[0] == "(" else []
        beyond += [most] if bounds.interval[-1] == ")" else []
        beyond = [number for number in beyond if not (number == most and bounds.holds(most))]
    for number in beyond:
        with pytest.raises(UserError) as refusal:
            override(config, [f"{name}={number}"])
        assert f"{name.rpartition('.')[2]} must be {bounds}, not {number}" in str(refusal.value)


def test_every_number_has_bounds():
    """But a seed of `prepare`, which is hashed."""
    free = {
        (name, field.name)
        for path in PACKAGE.glob("*/config.py")
        for name, kind in vars(import_module(f"electra.{path.parent.name}.config")).items()
        if name.endswith("Config") and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
        if field.type in (int, float)
    }
    assert free == {("PrepareConfig", "seed")}


def test_a_warm_up_as_long_as_the_run_is_refused():
    two_stage = [*TWO_STAGE.split(), "method.generator_steps=20", "train.steps=50"]
    for changes, says in (
        (["train.steps=50", "optimizer.warmup_steps=50"], "50 train.steps"),
        ([*two_stage, "optimizer.warmup_steps=20"], "20 steps of the shorter stage"),
        (["train.steps=50", "optimizer.warmup_steps=48", WARM], "48 steps after"),
    ):
        with pytest.raises(UserError, match=rf"^optimizer\.warmup_steps .*{says}"):
            require_schedule(override(TINY, changes))


def test_assignments_come_after_a_file_and_may_mend_it(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('epochs = 4\nown = {kind = "choice"}\n')
    found = override_from_toml(FINETUNE, path, ["own.choices=a,b"])
    assert (found.epochs, found.own.kind, found.own.choices) == (4, "choice", "a,b")
    assert override_from_toml(FINETUNE, path, ["own.kind=regression"]).own.kind == "regression"
    refuse("own.toml: own.kind choice needs own.choices", override_from_toml, FINETUNE, path)
    path.write_text("epoch = 4\n")
    refuse("own.toml: unknown field 'epoch'", override_from_toml, FINETUNE, path, ["epochs=3"])


@pytest.mark.parametrize("value", [" ", "\t", ";"])
def test_white_space_alone_is_a_value(value):
    assert override(FINETUNE, [f"own.separator={value}"]).own.separator == value


@pytest.mark.parametrize(
    ("config", "name"), [(TINY, "optimizer.max_grad_norm"), (FINETUNE, "max_grad_norm")]
)
def test_an_infinite_number_comes_back_from_json(tmp_path, config, name):
    config = override(config, [f"{name}=inf"])
    write_json(tmp_path / "config.json", to_dict(config))
    assert from_dict(type(config), read_object(tmp_path / "config.json")) == config


def test_a_rate_below_zero_is_refused():
    """A run that is longer than the one it was planned for has to end by a cooldown."""
    config = override(TINY, ["train.steps=5000", "optimizer.planned_steps=3000"])
    require_schedule(override(config, ["optimizer.cooldown_steps=2000"]))
    with pytest.raises(UserError, match="planned_steps 3000 must be at least 3001"):
        require_schedule(override(config, ["optimizer.cooldown_steps=1999"]))


@pytest.mark.parametrize(
    ("word", "number"),
    [("1e6", 10**6), ("2.0", 2), (str(2**53 + 1), 2**53 + 1), (str(2**63 - 1), 2**63 - 1)],
)
def test_whole_numbers_are_read_exactly(tmp_path, word, number):
    toml = tmp_path / "recipe.toml"
    toml.write_text(f"[train]\nseed = {word}\n")
    assert override(TINY, [f"train.seed={word}"]).train.seed == number
    assert override_from_toml(TINY, toml).train.seed == number


def test_settings_differ_and_come_back_by_name():
    other = override(TINY, ["train.seed=3", WARM])
    assert differences(TINY, other) == {"train.seed": (0, 3), "generator.warmup_steps": (None, 2)}
    assert from_dict(type(other), to_dict(other)) == other
    assert override(other, ["generator.warmup_steps=none"]).generator.warmup_steps is None


def test_settings_are_read_from_a_pipe():
    source, target = os.pipe()
    os.write(target, b"train.steps = 200\noptimizer.warmup_steps = 50\n")
    os.close(target)
    config = resolve("tiny", toml=Path(f"/dev/fd/{source}"))
    assert (config.train.steps, config.optimizer.warmup_steps) == (200, 50)


def test_a_tag_chooses_the_class_of_settings():
    teams = override(TINY, ["method.objective=teams", "method.selection_weight=3"])
    assert type(teams.method) is TeamsConfig
    assert teams.method.disc_weight == TINY.method.disc_weight
    assert from_dict(PretrainConfig, json.loads(json.dumps(to_dict(teams)))) == teams
    back = override(teams, ["method.objective=rtd"])
    assert back == TINY
    changes = differences(TINY, teams)
    assert changes["method.selection_weight"] == (None, 3.0)
    needs = "method.selection_weight needs method.objective=teams, not cocolm"
    refuse(needs, override, TINY, ["method.objective=cocolm", "method.selection_weight=3"])
    refuse("unknown field 'selection'", override, TINY, ["method.selection=3"])

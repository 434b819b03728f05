"""Objectives, bodies and families of another package, which is installed as packages are."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import transformers
from commands import succeed
from refusals import refuse
from runs import SMALL, read_records, words_of
from services import load_alone

import electra
from electra.assignments import override
from electra.checkpoints.folder import read_pretrained, read_run_config
from electra.cli import main
from electra.outside import list_outside
from electra.pretraining.networks import needs_frequencies, sketch_objective
from electra.pretraining.start import build_model, count_tokens
from electra.shards.store import open_shards
from electra.training.machine import Machine

DOCS = Path(electra.__file__).parent.parent / "docs"
OTHERS = """
from electra.model.modernbert_config import ModernBertConfig
from electra.model.parts import Body
from electra.model.modernbert import PreNormLayer, RotaryPlaces, TokenEmbeddings
from electra.tasks.classification import Classification
from electra.tasks.own import read_own_task
import dataclasses

class Halved(PreNormLayer):
    def __init__(self, config, number):
        super().__init__(config, number)
        self.divisor = config.divisor

    def forward(self, x_BLH, *others):
        return (x_BLH + super().forward(x_BLH, *others)) / self.divisor

@dataclasses.dataclass(frozen=True, kw_only=True)
class HalvedConfig(ModernBertConfig):
    divisor: float = 2.0

BODY = Body(HalvedConfig, TokenEmbeddings, RotaryPlaces, Halved, ends_with_norm=True)

class Shouting(Classification):
    @classmethod
    def read_task(cls, name, data, config):
        task = read_own_task(name, data, config)
        return dataclasses.replace(task, name=name, family=cls(**vars(task.family)))

    def facts(self):
        return super().facts() | {"family": "shouting"}

NO_CLASS = 3
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what installs modules and their entry points by group, for the test."""

    def install(modules, groups, package="outside"):
        place = tmp_path / f"site-{package}"
        info = place / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = []
        for group, points in groups.items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for name, code in modules.items():
            (place / f"{name}.py").write_text(code)
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(place)
        importlib.invalidate_caches()
        list_outside.cache_clear()

    yield install
    list_outside.cache_clear()


def test_the_objective_of_the_documents_is_trained_where_it_is_installed(
    install, train, toy_shards, toy_config, capsys, tmp_path
):
    page = (DOCS / "EXTENDING.md").read_text().partition("## A package of your own")[2]
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (table,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    setting = "method.objective=rare_tokens"
    refuse("unknown method.objective 'rare_tokens'", override, toy_config, [setting])
    install({"rare_tokens": code}, tomllib.loads(table)["project"]["entry-points"])
    settings = words_of(SMALL | {"train.steps": 4, "train.initial_weights": "bert"})
    words = ["pretrain", str(toy_shards), "--out", str(tmp_path / "run"), "--set", setting]
    words += ["method.power=0.5"]
    succeed(capsys, *words, *settings)
    assert read_run_config(tmp_path / "run").method.objective == "rare_tokens"
    last = read_records(tmp_path / "run", "heldout")[-1]
    disc_weight = read_run_config(tmp_path / "run").method.disc_weight
    assert last["loss"] == pytest.approx(last["mlm_loss"] + disc_weight * last["disc_loss"])
    # Its weights are those of the counts of the corpus, with mean 1.
    config, shards = read_run_config(tmp_path / "run"), open_shards(toy_shards)
    assert needs_frequencies(config)
    counts = count_tokens(shards)
    weights = build_model(config, shards.tokenizer, Machine(), counts).weights_V
    assert (weights * counts).sum() / counts.sum() == pytest.approx(1)
    expected = (counts.max() / counts.min()) ** 0.5
    assert weights.max() / weights.min() == pytest.approx(float(expected))
    assert read_pretrained(tmp_path / "run").kept.predicts == "replaced"
    succeed(capsys, "export", str(tmp_path / "run"), "--out", str(tmp_path / "exported"))


def test_the_body_of_the_documents_normalises_queries_and_keys(install, train, capsys, tmp_path):
    code = (DOCS / "examples" / "query_key_norm.py").read_text()
    install({"query_key_norm": code}, {"electra.bodies": {"normed": "query_key_norm:BODY"}})
    settings = (
        "model.architecture=normed model.embedding_size=128 train.initial_weights=bert",
        "model.query_key_eps=1e-5 generator.hidden_fraction=1 train.steps=6",
    )
    run = train("run", *settings)
    encoder = load_alone(run, "replaced").encoder
    seen = []
    attention = encoder.layers[1].attention
    attention.qkv.register_forward_hook(lambda part, inputs, output: seen.append(output))
    vectors = electra.embed(electra.load(run), ["the queen sold a boat ."])
    assert vectors.shape == (1, 128)
    encoder(torch.tensor([[2, 7, 8, 3]]))
    q, k, v = seen[0].unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
    norm = attention.qkv.query_norm.weight.norm()  # about 1 for each of its components
    for each in (q, k):
        torch.testing.assert_close(each.norm(dim=-1), norm.expand(1, 4, 2), rtol=0.01, atol=0.01)
    assert v.norm(dim=-1).std() > 0.01
    refuse("layers fused: normed has none", train, "fused", *settings, "train.layers=fused")
    assert not (tmp_path / "fused").exists()
    with pytest.raises(SystemExit):
        main(["export", str(run), "--out", str(tmp_path / "exported")])
    assert "transformers has no class of the body normed" in capsys.readouterr().err


def test_a_body_of_another_package_trains_and_embeds_and_has_no_export(
    install, train, capsys, tmp_path
):
    install({"others": OTHERS}, {"electra.bodies": {"halved": "others:BODY"}})
    run = train("run", "model.architecture=halved model.embedding_size=128 train.steps=6",
                "model.local_attention=8 model.divisor=1.5",
                "generator.hidden_fraction=1 generator.layers_fraction=0.5",
                "train.initial_weights=bert")  # fmt: skip
    assert read_records(run, "heldout")[-1]["disc_loss"] > 0
    assert read_run_config(run).model.divisor == 1.5
    refuse(
        "'divisor'",
        override,
        read_run_config(run),
        ["model.architecture=electra", "model.divisor=2"],
    )
    vectors = electra.embed(electra.load(run), ["the queen sold a boat ."])
    assert vectors.shape == (1, 128)
    with pytest.raises(SystemExit):
        main(["export", str(run), "--out", str(tmp_path / "exported")])
    assert "transformers has no class of the body halved" in capsys.readouterr().err
    assert not (tmp_path / "exported").exists()


def test_a_family_of_another_package_is_a_task(install, run, toy_question, capsys, tmp_path):
    install({"others": OTHERS}, {"electra.families": {"shouting": "others:Shouting"}})
    out = tmp_path / "tuned"
    words = ["finetune", str(run), "--task", "shouting", "--data", str(toy_question)]
    succeed(capsys, *words, "--seeds", "1", "--out", str(out), "--set", "epochs=1", "threads=1")
    answers = electra.predict(electra.load(out), [{"text": "the queen sold a boat ."}])
    assert {"woman", "other"} & set(answers[0].values())


def test_the_family_of_the_documents_predicts_as_its_export(
    install, run, toy_text, capsys, tmp_path
):
    code = (DOCS / "examples" / "two_numbers.py").read_text()
    install({"two_numbers": code}, {"electra.families": {"two_numbers": "two_numbers:TwoNumbers"}})
    lines = [line for line in toy_text.read_text().splitlines() if line]
    for split, part in (("train", lines[:160]), ("dev", lines[160:200])):
        rows = [f"{each}\t{100 * ('queen' in each) - 7}\t{len(each)}" for each in part]
        table = "\n".join(["text\tvalence\tarousal", *rows])
        (tmp_path / f"{split}.tsv").write_text(table)
    out, exported = tmp_path / "tuned", tmp_path / "exported"
    words = ["finetune", run, "--task", "two_numbers", "--data", tmp_path, "--out", out]
    succeed(
        capsys, *map(str, words), "--seeds", "1", "--set", "epochs=6", "threads=1", "pooling=cls"
    )
    texts = ["the queen sold a boat .", lines[0], lines[170]]
    answers = electra.predict(electra.load(out), [{"text": text} for text in texts])
    assert [each.keys() for each in answers] == [{"valence", "arousal"}] * 3
    succeed(capsys, "export", str(out), "--out", str(exported))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    with torch.inference_mode():
        logits = theirs(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    assert [theirs.config.id2label[number] for number in (0, 1)] == ["valence", "arousal"]
    expected = torch.tensor([[each["valence"], each["arousal"]] for each in answers])
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-2)


def test_what_does_not_fit_is_one_line(install, toy_config):
    points = {
        "nowhere": "no_such_module:Class", "lost": "others:Lost", "three": "others:NO_CLASS",
        "family": "others:Shouting",
    }  # fmt: skip
    install({"others": OTHERS}, {"electra.objectives": points})
    for name, says in (
        ("nowhere", "'nowhere' cannot be loaded: No module named"),
        ("lost", "'lost' cannot be loaded ... Lost"),
        ("three", "'three': others:NO_CLASS must be a Objective"),
        ("family", "'family': others:Shouting must be a Objective"),
    ):
        named = [f"method.objective={name}"]
        refuse(says, lambda named=named: sketch_objective(override(toy_config, named)))
    refuse("did you mean 'nowhere'", override, toy_config, ["method.objective=nowher"])
    again = {"electra.objectives": {"lost": "others:Other"}}
    install({}, again, package="another")
    refuse("two packages have electra.objectives 'lost'", override, toy_config,
           ["method.objective=los"])  # fmt: skip

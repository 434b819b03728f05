"""Exports for other programs: cards that run, BERT's classes, sentence-transformers, ONNX."""

import ast
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import refuse_command, run_python_of, succeed
from networks import draw
from refusals import refuse
from scipy.stats import spearmanr
from tasks import write_files

import electra
from electra.checkpoints.checkpoint import list_checkpoints, read_tensors
from electra.checkpoints.folder import read_model, read_pretrained
from electra.checkpoints.saved import SavedNetwork
from electra.cli import main
from electra.files import check_hashes, read_object, write_json
from electra.inference.embed import embed
from electra.inference.network import load_encoder
from electra.inference.similarity import choose_layer, read_pairs
from electra.interop import onnx
from electra.interop.export import describe, export, write_plain
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.presets import encoder_sizes
from electra.reports.runs import find_finetunings

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def pairs(toy_text, tmp_path_factory):
    """Sentences are as similar as the number of words that they share."""
    lines = [line for line in toy_text.read_text().splitlines() if line][:60]
    rows = ["sentence1\tsentence2\tscore"]
    for one, two in zip(lines[::2], lines[1::2], strict=True):
        rows.append(f"{one}\t{two}\t{len(set(one.split()) & set(two.split()))}")
    return write_files(tmp_path_factory.mktemp("pairs"), {"dev.tsv": "\n".join(rows)})


def run_card(folder, monkeypatch):
    return run_python_of(folder / "README.md", folder.parent, monkeypatch)


def test_the_card_tells_what_the_records_say_and_its_code_runs(run, tmp_path, monkeypatch):
    out = tmp_path / "exported"
    export(run, out, scores="| a table |")
    card = (out / "README.md").read_text()
    assert "README.md" not in read_object(out / "electra.json")["sha256"]  # publishers change it
    manifest, results = (read_object(run / f"{name}.json") for name in ("manifest", "results"))
    for told in (
        manifest["shards"]["sha256"],
        manifest["sessions"][0]["device"],
        "| steps | 12 of 12 |",
        f"| text read | {results['tokens']:,} tokens |",
        f"| operations | {results['flops']['true']:.2e} FLOPs |",
        f"| held-out disc_loss | {results['heldout']['disc_loss']:.4f} |",
        "| a table |",
        "`generator/` holds the generator (`ElectraForMaskedLM`)",
        '| sentence-transformers | `SentenceTransformer("exported")`: the mean of the tokens |',
        "## Intended use and limits",
        "None is stated yet: whoever publishes this model chooses it",
    ):
        assert told in card, told
    assert card.startswith("---\nlibrary_name: transformers\n")
    probs = run_card(out, monkeypatch)["probs"]
    assert ((probs > 0) & (probs < 1)).all()
    check_hashes(out)  # also the card's
    modes = {path.stat().st_mode for path in out.rglob("*") if path.is_file()}
    assert len(modes) == 1, "weights that others cannot read"


def test_an_imported_folder_is_exported_again_bit_for_bit(exported, tmp_path):
    export(exported, tmp_path / "two")
    for name in ("model.safetensors", "config.json", "generator/model.safetensors"):
        assert (exported / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    export(exported / "generator", tmp_path / "three")
    config = read_object(tmp_path / "three/config.json")
    assert config["architectures"] == ["ElectraForMaskedLM"]
    assert "No fine-tuning of these weights was found" in (tmp_path / "two/README.md").read_text()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_half_the_size_are_those_rounded(run, exported, dtype, tmp_path, capsys):
    out = tmp_path / "half"
    succeed(capsys, "export", run, "--dtype", dtype, "--out", out)
    for part in ("", "generator"):
        whole, half = (read_tensors(each / part / "model.safetensors") for each in (exported, out))
        for name, header in half.headers.items():
            assert header.dtype == dtype
            assert whole[name].to(getattr(torch, dtype)).equal(half[name])
    model = transformers.AutoModelForPreTraining.from_pretrained(out)
    assert model.dtype == getattr(torch, dtype)
    ours, theirs = (electra.embed(each, ["the king saw the queen"]) for each in (out, exported))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=0.05)
    assert (ours != theirs).any()
    for form in (["--onnx"], ["--as", "gguf"]):
        how = ["--dtype", dtype, *form, "--out", tmp_path / "refused"]
        refuse_command("gguf and ONNX are written in float32", capsys, "export", run, *how)


def test_a_checkpoint_of_a_run_is_a_start_like_the_run(run, exported, tmp_path):
    """What became of an encoder on its way is also asked of older checkpoints."""
    name = "layers.0.attention.output.weight"
    weights = [(exported / "model.safetensors").read_bytes()]
    for checkpoint in list_checkpoints(run):
        out = tmp_path / checkpoint.name
        main(["export", str(checkpoint), "--out", str(out)])
        start, begin = read_model(checkpoint), read_pretrained(checkpoint)
        step = int(checkpoint.name.removeprefix("step-"))
        assert start.source == begin.source == f"{run} at step {step}"
        saved = read_tensors(checkpoint / "model.safetensors")[f"discriminator.{name}"]
        for tensors in (start.tensors, begin.kept.encoders[0], read_model(out).tensors):
            assert torch.equal(tensors[name], saved)
        weights.append((out / "model.safetensors").read_bytes())
    newest, first, last = weights
    assert newest == last != first


def test_fine_tunings_beside_the_run_are_found(tmp_path):
    for name, source, from_scratch in (
        ("a", "run at step 12", False),
        ("b", "elsewhere/run at step 12", False),
        ("older", "run at step 6", False),
        ("scratch", "run at step 6", True),
        ("other", "run2 at step 12", False),
        ("grid", None, False),
    ):
        (tmp_path / name).mkdir()
        results = {"source": source, "from_scratch": from_scratch}
        write_json(tmp_path / name / "results.json", results)
    found = [path.name for path in find_finetunings(tmp_path / "run", 12)]
    assert found == ["a", "b", "scratch"]


def test_a_folder_called_by_a_dot_keeps_its_name(run, monkeypatch):
    monkeypatch.chdir(run / "checkpoints")
    assert read_pretrained(Path("..")).source == f"{run} at step 12"


def test_a_folder_becomes_bert_whose_head_lies_beside(toy_tokenizer, tmp_path, monkeypatch):
    sizes = encoder_sizes(64, 2, 64, vocab_size=120, max_position_embeddings=32)
    encoder, head = (draw(part(sizes)).state_dict() for part in (Encoder, DiscriminatorHead))
    network = SavedNetwork("replaced", sizes, (encoder,), head)
    (tmp_path / "start").mkdir()
    write_plain(tmp_path / "start", describe(network, toy_tokenizer, 32, "random weights"))
    export(tmp_path / "start", tmp_path / "bert", form="bert")
    theirs = run_card(tmp_path / "bert", monkeypatch)
    judge = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "start").eval()
    with torch.no_grad():
        probs = judge(**theirs["inputs"]).logits.sigmoid()
    torch.testing.assert_close(theirs["probs"], probs, atol=1e-6, rtol=0)


def test_the_layer_is_chosen_and_sentence_transformers_embeds_alike(
    run, pairs, tmp_path, monkeypatch, capsys
):
    library = pytest.importorskip("sentence_transformers")
    out = tmp_path / "sentences"
    words = ["--as", "sentence-transformers", "--dev", pairs, "--out", out]
    printed = succeed(capsys, "export", run, *words).out
    similarity = choose_layer(load_encoder(run), read_pairs(pairs))
    assert len(similarity.scores) == 4
    assert similarity.best == max(similarity.scores, key=lambda each: each.spearman)
    assert f"layer {similarity.layer}, {similarity.pooling}, with Spearman" in printed
    assert f"{similarity.last.spearman:.3f}" in printed
    card = (out / "README.md").read_text()
    for each in (similarity.best, similarity.last):
        assert f"{each.spearman:.4f}" in card
    assert read_object(out / "config.json")["num_hidden_layers"] == similarity.layer
    model = library.SentenceTransformer(str(out), device="cpu")
    texts = ["the queen sold a boat .", "my neighbour"]
    theirs = model.encode([*texts, "the castle " * 40], show_progress_bar=False)
    assert theirs.shape == (3, 128)
    how = {"layer": similarity.layer, "pooling": similarity.pooling}
    assert theirs[:2] == pytest.approx(embed(load_encoder(run), texts, **how), abs=1e-5)
    assert model.max_seq_length == 32
    assert run_card(out, monkeypatch)["embeddings"].shape == (2, 128)


def test_a_layer_is_chosen_by_its_cosines(run, pairs):
    """Spearman's correlation, computed again; the states of [CLS] are too much alike to compare."""
    network, dev = load_encoder(run), read_pairs(pairs / "dev.tsv")
    scores = choose_layer(network, dev).scores
    assert [each[:2] for each in scores] == [(1, "mean"), (2, "mean"), (1, "cls"), (2, "cls")]
    for layer, pooling, value in scores[:2]:
        a, b = (embed(network, each, layer=layer, pooling=pooling) for each in dev[:2])
        cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        assert value == pytest.approx(spearmanr(dev.scores, cosines).statistic, abs=0.05)


def test_the_blind_state_of_a_causal_encoder_is_not_asked(start, pairs, tmp_path, capsys):
    causal = shutil.copytree(start, tmp_path / "causal")
    write_json(causal / "config.json", read_object(causal / "config.json") | {"is_decoder": True})
    network = load_encoder(causal)
    refuse("sees no text; use mean", embed, network, ["the queen"], pooling="cls")
    found = choose_layer(network, read_pairs(pairs))
    assert {each.pooling for each in found.scores} == {"mean"}
    given = ["--as", "sentence-transformers", "--dev", pairs, "--out", tmp_path / "out"]
    succeed(capsys, "export", causal, *given)
    assert re.search(r"^\| 2 \| 0\.\d+ \| - \|$", (tmp_path / "out/README.md").read_text(), re.M)
    refuse("does not support a causal electra", export, causal, tmp_path / "x", form="gguf")


def test_dev_sets_that_choose_nothing_are_refused(run, pairs, tmp_path, capsys):
    header = "sentence1\tsentence2\tscore\n"
    tables = {"same.tsv": "a\tb\t1\nc\td\t1\n", "words.tsv": "a\tb\thigh\n"}
    write_files(tmp_path, {name: header + rows for name, rows in tables.items()})
    sentences = ["--as", "sentence-transformers"]
    for words, message in (
        (sentences, "and a dev set go together"),
        (["--dev", pairs], "and a dev set go together"),
        ([*sentences, "--dev", tmp_path], "has no dev.tsv; name the file"),
        ([*sentences, "--dev", tmp_path / "same.tsv"], "all scores are 1.0"),
        ([*sentences, "--dev", tmp_path / "words.tsv"], "'high'"),
        (["--columns", "a", "b"], "the columns are those of a dev set"),
    ):
        refuse_command(message, capsys, "export", run, *words, "--out", tmp_path / "out")
    parts = {f"dev-0000{n}-of-00002.tsv": f"{header}a\tb\t{n}\n" for n in range(2)}
    read = read_pairs(write_files(tmp_path / "parts", parts))
    assert read[:3] == (["a", "a"], ["b", "b"], [0, 1])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@torch.no_grad()
def test_the_verb_writes_onnx_that_agrees(run, toy_text, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out = tmp_path / "exported"
    main(["export", str(run), "--out", str(out), "--onnx", "--int8", str(toy_text)])
    card = (out / "README.md").read_text()
    assert re.search(r"differs from torch by at most \d\.\de-0\d, over 20 shapes", card)
    assert re.search(r"agrees with float32 in (99|100)\.\d\d% of [\d,]+ decisions", card)
    assert re.search(r"hidden states have a cosine of (0\.999\d|1\.0000) on average", card)
    ids = torch.randint(5, 100, (3, 9), generator=torch.Generator().manual_seed(1))
    inputs = dict(zip(onnx.INPUTS, (ids, torch.ones_like(ids), ids % 2), strict=True))
    arrays = {name: each.numpy() for name, each in inputs.items()}
    theirs = transformers.ElectraForPreTraining.from_pretrained(out).eval()
    generator = transformers.ElectraForMaskedLM.from_pretrained(out / "generator").eval()
    states = theirs.electra(**inputs).last_hidden_state.numpy()
    session = onnx.open_session(out / "onnx" / "model.onnx", threads=1)
    assert [each.name for each in session.get_outputs()] == ["last_hidden_state", "logits"]
    assert session.run(["last_hidden_state"], arrays)[0] == pytest.approx(states, abs=1e-4)
    for part, model in ((out, theirs), (out / "generator", generator)):
        session = onnx.open_session(part / "onnx" / "model.onnx", threads=1)
        expected = model(**inputs).logits.numpy()
        assert session.run(["logits"], arrays)[0] == pytest.approx(expected, abs=1e-4)
        check_hashes(part / "onnx")
        int8, quantized = (part / "onnx" / f"model_{name}.onnx" for name in ("int8", "quantized"))
        assert int8.read_bytes() == quantized.read_bytes()
    # A file that does not agree is refused, and nothing is left.
    monkeypatch.setattr(onnx, "LEAST_AGREEMENT", 1.01)
    says = "int8 agrees with float32 in  ...  decisions; it must"
    refuse(says, export, run, tmp_path / "refused", int8_text=["the queen sold a boat ."])
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    "name", ['a"); import os; ("', "it's", "b`c``d|e", "$(exit)", "two\nlines", "back\\slash\\"]
)
def test_a_folders_name_is_quoted_for_each_language(run, tmp_path, capsys, name):
    """Python of the card and of the next command parses, and holds the name as one string."""
    out = tmp_path / name
    export(run, out)
    card = (out / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    nodes = [*ast.walk(ast.parse(code))]
    assert [each.value for each in nodes if getattr(each, "value", None) == name] == [name, name]
    assert [n.name for each in nodes if isinstance(each, ast.Import) for n in each.names] == [
        "torch"
    ]
    (row,) = (line for line in card.splitlines() if line.startswith("| transformers |"))
    assert re.search(r"^\| transformers \| (`+) ?pipeline\(.*\) ?\1 \|$", row)
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    main(["report", str(out), "--out", str(tmp_path / "page.html")])
    following = capsys.readouterr().out.split("next: ")[1]
    if "\n" not in name:  # which the terminal does not show as it is
        assert str(out) in shlex.split(following)

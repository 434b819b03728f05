"""Models that are damaged or do not fit: refused in one line, before anything is written."""

import io
import json
import shutil
import zipfile

import pytest
import torch
from commands import refuse_command, run_command
from refusals import refuse
from runs import flip_bit, ignore
from safetensors.torch import load_file, save_file

from electra.assignments import override
from electra.checkpoints.folder import read_model, read_pretrained
from electra.inference.ask import fill, load_asked
from electra.inference.embed import embed
from electra.inference.network import load_encoder
from electra.interop.export import export
from electra.interop.importing import import_model
from electra.pretraining.init_from import fit_to_start
from electra.pretraining.loop import pretrain
from electra.tokenizing.tokenizer import make_tokenizer

WEIGHT = "electra.encoder.layer.1.output.dense.weight"
NAN = float("nan")


def tensor(change):
    """Change one matrix of the weights."""

    def apply(folder):
        weights = load_file(folder / "model.safetensors")
        weights[WEIGHT] = change(weights[WEIGHT]).contiguous()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return apply


def config(**values):
    """Change config.json."""

    def apply(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return apply


def pickled(change, **options):
    """Save the weights with torch.save, changed."""

    def apply(folder):
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(change(weights), folder / "pytorch_model.bin", **options)

    return apply


def raw(content):
    def apply(folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return apply


def packed(folder):
    pickled(lambda weights: weights | {"more": torch.zeros(300_000)})(folder)
    path = folder / "pytorch_model.bin"
    stored = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in stored.namelist():
            archive.writestr(each, stored.read(each))


def without_pickle():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/version", "3")
    return content.getvalue()


def more_tokens(folder):
    for path in [*folder.glob("tokenizer*"), folder / "vocab.txt", folder / "electra.json"]:
        path.unlink()
    make_tokenizer(200).write(folder)


def refuse_verbs(verbs, folder, tmp_path, capsys, words):
    """Check that each verb says this, and that none writes anything."""
    out, text = tmp_path / "out.npy", tmp_path / "text.txt"
    text.write_text("the queen\n")
    for verb in verbs:
        given = ["--input", text] if verb == "embed" else []
        status, _, err = run_command(capsys, verb, folder, *given, "--out", out)
        said = [each for each in err.splitlines() if each[:5] != "note:"]
        assert (status, len(said), out.exists()) == (2, 1, False), said
        assert words in said[0]


SHAPE = f"{WEIGHT} has the shape"
READ_BY_ALL = [
    (tensor(lambda x: x.index_fill(0, torch.tensor([3]), NAN)), f"{WEIGHT} holds 256 values that"),
    (tensor(lambda x: x.double() * 1e300), f"{WEIGHT} holds 16,384 values that are NaN or inf"),
    (tensor(lambda x: x.T), f"{SHAPE} (256, 64); by the sizes of the model it must be (64, 256)"),
    (tensor(lambda x: x[0, 0]), f"{SHAPE} ()"),
    (tensor(lambda x: x[:-1]), f"{SHAPE} (63, 256)"),
    (tensor(lambda x: x[:0]), f"{SHAPE} (0, 256)"),
    (tensor(lambda x: x.flatten()), f"{SHAPE} (16384,)"),
    (tensor(lambda x: x.long()), f"{WEIGHT} is I64; weights must be float32, float16, bfloat16"),
    (tensor(lambda x: x.to(torch.complex64)), f"{WEIGHT} is C64"),
    (config(num_hidden_layers=10**9), "num_hidden_layers must be in [1, 1000], not 1000000000"),
    (config(num_hidden_layers=1), "num_hidden_layers is 1, but the weights have 2 layers"),
    (config(hidden_size=1 << 30), "the sizes are too large for any machine"),
    (config(vocab_size=10**30), "vocab_size must be less than 2,147,483,648"),
    (config(vocab_size=121), "word_embeddings.weight has the shape (120, 32); by the sizes"),
    (config(sequence_length=2), "a row of 2 tokens is too short"),
    (config(layer_norm_eps=10**400), "layer_norm_eps must be a number from 0, less than 2,147,4"),
    (config(model_type=["electra"]), "model_type must be electra"),
    (config(model_type="gpt2"), "modernbert-decoder or deberta-v2, not 'gpt2'"),
    (more_tokens, "200 tokens"),
]


@pytest.mark.parametrize(("damage", "words"), READ_BY_ALL)
def test_what_fits_no_network_is_refused(start, tmp_path, capsys, damage, words):
    folder = shutil.copytree(start, tmp_path / "model")
    damage(folder)
    refuse_verbs(("import", "export", "embed"), folder, tmp_path, capsys, words)


IS_NO_FILE = "does not hold tensors alone, or is damaged"
READ_BY_IMPORT = [
    (raw(without_pickle()), IS_NO_FILE),
    (raw(b""), IS_NO_FILE),
    (raw(b"\x80\x02N."), IS_NO_FILE),
    (pickled(lambda weights: weights), None),
    (pickled(lambda weights: weights, pickle_protocol=5), IS_NO_FILE),
    (pickled(lambda weights: [1, 2]), "does not hold tensors by name"),
    (pickled(lambda weights: {"model": weights}), "does not hold tensors by name"),
    (pickled(lambda weights: {5: weights[WEIGHT]}), "does not hold tensors by name"),
    (packed, "bytes in a file of"),
    *(
        (pickled(lambda x, change=change, **_: x | {WEIGHT: change(x[WEIGHT])}, **options), words)
        for options in ({}, {"_use_new_zipfile_serialization": False})
        for change, words in (
            (lambda x: x.to_sparse(), f"{WEIGHT} is sparse_coo float32 on cpu"),
            (lambda x: x.to("meta"), f"{WEIGHT} is strided float32 on meta"),
            (lambda x: torch.zeros(1).expand(x.shape), "is float32 that repeats fewer values"),
            (lambda x: torch.zeros(1).expand(10**12, 64), "is float32 that repeats fewer values"),
            (lambda x: x.to(torch.uint8), f"{WEIGHT} is uint8"),
            (lambda x: x * NAN, f"{WEIGHT} holds 16,384 values that are NaN"),
        )
    ),
]


@pytest.mark.parametrize(("damage", "words"), READ_BY_IMPORT)
def test_a_pickle_is_refused_by_what_is_wrong(start, tmp_path, capsys, damage, words):
    """Every other verb names the command that reads such a file."""
    folder = shutil.copytree(start, tmp_path / "model")
    damage(folder)
    says = f"has no model.safetensors; `electra import {folder} --out start` turns"
    refuse_verbs(["embed"], folder, tmp_path, capsys, says)
    if words:
        refuse_verbs(["import"], folder, tmp_path, capsys, words)
    else:
        import_model(folder, tmp_path / "whole")
        assert read_model(tmp_path / "whole").tensors.keys() == read_model(start).tensors.keys()


MODERN = {
    "model_type": "modernbert", "vocab_size": 120, "hidden_size": 64, "num_attention_heads": 2,
    "intermediate_size": 96, "num_hidden_layers": 2,
}  # fmt: skip
FULL = "full_attention"
OTHER_BODIES = [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers must be in [1, 1000], not 1000000000"),
    ({"num_hidden_layers": 10**9, "layer_types": [FULL]}, "must be a list of 1,000,000,000 layers"),
    ({"rope_parameters": [1]}, "rope_parameters must be objects by kind of attention, not [1]"),
    ({"rope_parameters": {FULL: 5}}, "rope_parameters must be objects by kind of attention"),
    ({"global_rope_theta": 10**400}, "global_rope_theta must be a number above 0, less than 1e+30"),
    ({"model_type": "deberta-v2", "pos_att_type": 5}, "must be True, not False"),
    ({"model_type": "bert", "num_hidden_layers": 10**9}, "num_hidden_layers must be in [1, 1000]"),
]


@pytest.mark.parametrize(("values", "words"), OTHER_BODIES)
def test_sizes_are_checked_before_anything_is_built(start, tmp_path, values, words):
    """A list of a thousand million layers would take minutes, and gigabytes of memory."""
    folder = shutil.copytree(start, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(MODERN | values))
    refuse(words, import_model, folder, tmp_path / "out")


INDEX = [
    ({"a": "b\ud800"}, "weight_map.a must be whole characters"),
    ({"a": "b\0"}, r"names 1 file that it lacks, as ['b\x00']"),
    ({"a": ".", "b": 5}, "names 2 files that it lacks"),
    ({"a\ud800": "vocab.txt"}, "must be whole characters"),
    ({str(number): str(number) for number in range(10**5)}, "names 100,000 files that it lacks"),
    ({}, "num_hidden_layers is 2, but the weights have 0 layers"),
    ([], "has no weight_map"),
]


@pytest.mark.parametrize(("places", "words"), INDEX)
def test_an_index_of_weights_names_files_beside_it(start, tmp_path, places, words):
    folder = shutil.copytree(start, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    refuse(words, import_model, folder, tmp_path / "out")


def test_spare_rows_of_a_padded_vocabulary_are_kept(
    exported, toy_shards, toy_tokenizer, toy_config, tmp_path
):
    """By import, pre-training, export; and no spare token is predicted."""
    padded, start = shutil.copytree(exported, tmp_path / "padded"), tmp_path / "start"
    for place in (padded, padded / "generator"):
        (place / "electra.json").unlink()
        weights = load_file(place / "model.safetensors")
        for name in ("electra.embeddings.word_embeddings.weight", "generator_lm_head.bias"):
            if name in weights:
                spare = torch.full((8, *weights[name].shape[1:]), 5.0)
                weights[name] = torch.cat([weights[name], spare])
        save_file(weights, place / "model.safetensors", {"format": "pt"})
        config(vocab_size=128)(place)
    assert import_model(padded, start, None, padded / "generator").num_spare == 8
    assert toy_tokenizer.vocab_size == 120
    judge = load_file(start / "model.safetensors")
    assert (judge["electra.embeddings.word_embeddings.weight"][120:] == 5).all()
    ((words,),) = fill(load_asked(start, "tokens"), ["the [MASK]"], 128)
    assert len(words) == 120
    settings = [f"train.init_from={start}", "train.steps=2", "optimizer.warmup_steps=1"]
    more = fit_to_start(override(toy_config, settings), read_pretrained(start))
    pretrain(toy_shards, tmp_path / "more", more, ignore)
    assert read_model(tmp_path / "more").encoder.vocab_size == 128
    few = tmp_path / "few.txt"
    few.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    says = "128 token embeddings, and its tokenizer 5 tokens: too"
    refuse(says, import_model, padded, tmp_path / "out", few)


def test_the_trained_row_length_goes_with_the_weights(
    run, exported, toy_question, tmp_path, capsys
):
    """Rows of 32 of 512 positions: in every file, and obeyed by every reader."""
    transformers = pytest.importorskip("transformers")
    import_model(exported, tmp_path / "two")
    export(tmp_path / "two", tmp_path / "three")
    long = ["the queen sold a boat . " * 30]
    expected = embed(load_encoder(run), long)
    for folder in (exported, exported / "generator", tmp_path / "two", tmp_path / "three"):
        assert json.loads((folder / "config.json").read_text())["sequence_length"] == 32
        assert read_pretrained(folder).sequence_length == 32
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert tokenizer.model_max_length == 32
        assert len(tokenizer(long[0], truncation=True)["input_ids"]) == 32
        if folder.name != "generator":
            assert embed(load_encoder(folder), long) == pytest.approx(expected, abs=1e-6)
    assert read_pretrained(run).encoder.max_position_embeddings == 512
    words = ["finetune", exported, "--task", "own", "--data", toy_question, "--out", tmp_path / "x"]
    says = "sequence_length 64 is more than the 32 tokens"
    refuse_command(says, capsys, *words, "--set", "sequence_length=64")


@pytest.mark.parametrize(
    ("told", "length"), [(512, 32), (10**30, 32), (16, 16), (None, 32), ("x", 32)]
)
def test_rows_are_bounded_by_the_positions(start, tmp_path, told, length):
    """What tokenizer_config.json of other people says, with 32 positions."""
    folder = shutil.copytree(start, tmp_path / "model")
    (folder / "electra.json").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": told}))
    import_model(folder, tmp_path / "start")
    for each in (folder, tmp_path / "start"):
        assert read_model(each).sequence_length == length
    settings = json.loads((tmp_path / "start/tokenizer_config.json").read_text())
    assert settings["model_max_length"] == length


@pytest.mark.parametrize("part", [".", "generator"])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "vocab.txt"]
)
def test_a_flipped_bit_in_an_exported_folder_is_refused(exported, tmp_path, name, part):
    folder = shutil.copytree(exported / part, tmp_path / "hf")
    path, hashes = folder / name, folder / "electra.json"
    says = f"{path} is damaged: it does not match its sha256 in {hashes} ... "
    # Some of these places are syntax of JSON, whatever the lengths of names in the file.
    for place in range(8):
        flip_bit(path, place / 8)
        refuse(f"{says}changed on purpose, remove {hashes}", read_model, folder)
        shutil.copy(exported / part / name, path)
    assert read_model(folder).tokenizer.digest == read_model(exported).tokenizer.digest


def test_a_folder_that_transformers_saved_over_is_read_without_hashes(exported, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(exported, tmp_path / "hf")
    model = transformers.AutoModelForPreTraining.from_pretrained(folder)
    with torch.no_grad():
        model.electra.embeddings.LayerNorm.bias += 1
    model.save_pretrained(folder)
    (folder / "electra.json").unlink()
    found = read_model(folder).tensors["embeddings.norm.bias"]
    assert torch.equal(found, model.electra.embeddings.LayerNorm.bias)


def test_a_flipped_bit_in_a_runs_tokenizer_is_refused(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    flip_bit(folder / "tokenizer" / "tokenizer.json")
    refuse("tokenizer/tokenizer.json is damaged", read_model, folder)
    refuse("tokenizer/tokenizer.json is damaged", export, folder, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "electra.json"])
def test_json_that_is_damaged_is_refused_in_one_line(exported, tmp_path, name):
    folder = shutil.copytree(exported, tmp_path / "hf")
    if name != "electra.json":  # as in a folder of others
        (folder / "electra.json").unlink()
    whole = (folder / name).read_bytes()
    for damage in (whole[:-9], b"[]", b'"\xff"', b"", b"{}"):
        (folder / name).write_bytes(damage)
        refuse(name, read_model, folder)

"""tools/tensorflow.py: what TensorFlow wrote is read to the bit, and imported."""

import random
import re
import shutil
import struct
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from commands import refuse_command, succeed
from networks import assert_same_tensors
from refusals import refuse
from runs import flip_bit
from safetensors.torch import load_file

from electra.errors import UserError
from electra.files import read_object
from electra.inference.ask import detect, fill, load_asked
from electra.interop.importing import import_model

CHECKPOINT = Path(__file__).parent / "tf_checkpoint"
sys.path.insert(0, str(CHECKPOINT))
from google_names import list_shapes, values_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer_config.json")
pytest.importorskip("google_crc32c")
transformers = pytest.importorskip("transformers")
from tools.tensorflow import convert, find_bundle, read_bundle, write_model  # noqa: E402


def test_tensors_that_tensorflow_wrote_are_read_to_the_bit():
    tensors, others = read_bundle(find_bundle(CHECKPOINT))
    shapes = list_shapes()
    assert {*tensors, *others} == {*shapes, "global_step"}
    slots = {name for name in shapes if name.endswith(("adam_m", "adam_v"))}
    assert {*others} == {"global_step", *slots}
    for name, tensor in tensors.items():
        assert torch.equal(tensor, torch.from_numpy(values_of(name, shapes[name]))), name


def test_google_s_checkpoint_becomes_a_folder_for_every_verb(tmp_path, capsys):
    others = convert(CHECKPOINT, tmp_path / "folder")
    assert {*others} == {
        "global_step", *(f"electra/embeddings/LayerNorm/beta/adam_{each}" for each in "mv")
    }  # fmt: skip
    printed = succeed(capsys, "import", tmp_path / "folder", "--out", tmp_path / "start")
    assert re.search(r"loaded (\d+) of \1 tensors", printed.out)
    says = "is not a Hugging Face folder: it has no config.json; `python"
    refuse_command(says, capsys, "import", CHECKPOINT, "--out", tmp_path / "again")
    judge = load_file(tmp_path / "start/model.safetensors")
    masked_lm = load_file(tmp_path / "start/generator/model.safetensors")
    shapes = list_shapes()
    for theirs, ours, tensors in (
        ("electra/embeddings/word_embeddings", "embeddings.word_embeddings.weight", judge),
        ("electra/embeddings/word_embeddings", "embeddings.word_embeddings.weight", masked_lm),
        ("generator/encoder/layer_0/output/dense/kernel", "0.output.dense.weight", masked_lm),
        ("electra/encoder/layer_1/output/LayerNorm/gamma", "1.output.LayerNorm.weight", judge),
        ("discriminator_predictions/dense_1/kernel", "dense_prediction.weight", judge),
        ("generator_predictions/output_bias", "generator_lm_head.bias", masked_lm),
    ):
        values = torch.from_numpy(values_of(theirs, shapes[theirs]))
        (name,) = (each for each in tensors if each.endswith(ours) and "attention" not in each)
        expected = values.T if theirs.endswith("kernel") else values
        assert torch.equal(tensors[name], expected), theirs
    (words,) = detect(load_asked(tmp_path / "start", "replaced"), ["the cat sat"])
    assert len(words) == 3
    assert len(fill(load_asked(tmp_path / "start", "tokens"), ["the [MASK]"])[0]) == 1


def test_a_generator_in_the_same_checkpoint_has_sizes_of_its_own(tmp_path):
    """As in Google's small model: a narrower encoder, on the discriminator's embeddings."""
    theirs, _ = read_bundle(CHECKPOINT / "model.ckpt-7")
    narrow = {
        name: torch.zeros([2 * each if each == 64 else each for each in tensor.shape])
        for name, tensor in theirs.items()
        if not name.startswith("generator")
    }
    for folder, tensors in ((tmp_path / "wide", narrow), (tmp_path / "own", theirs)):
        folder.mkdir()
        write_model(folder, tensors)
    found = [read_object(tmp_path / name / "config.json") for name in ("wide", "own")]
    assert [each["hidden_size"] for each in found] == [128, 64]
    assert [each["num_attention_heads"] for each in found] == [2, 1]


def test_a_bert_of_google_has_all_its_heads(tmp_path):
    """The names of google-research/bert; those of its next-sentence head are not a layer's."""
    theirs, _ = read_bundle(CHECKPOINT / "model.ckpt-7")
    draw = torch.Generator().manual_seed(0)
    tensors = {
        name.replace("electra/", "bert/"): tensor
        for name, tensor in theirs.items()
        if name.startswith("electra/") and "project" not in name
    }
    for name in ("word", "position", "token_type"):
        name = f"bert/embeddings/{name}_embeddings"
        tensors[name] = torch.randn(len(tensors[name]), 64, generator=draw)
    heads = {
        "bert/embeddings/LayerNorm/beta": (64,), "bert/embeddings/LayerNorm/gamma": (64,),
        "bert/pooler/dense/kernel": (64, 64), "bert/pooler/dense/bias": (64,),
        "cls/predictions/transform/dense/kernel": (64, 64),
        "cls/predictions/transform/dense/bias": (64,),
        "cls/predictions/transform/LayerNorm/beta": (64,),
        "cls/predictions/transform/LayerNorm/gamma": (64,), "cls/predictions/output_bias": (40,),
        "cls/seq_relationship/output_weights": (2, 64), "cls/seq_relationship/output_bias": (2,),
    }  # fmt: skip
    tensors |= {name: torch.randn(shape, generator=draw) for name, shape in heads.items()}
    folder = tmp_path / "bert"
    folder.mkdir()
    write_model(folder, tensors)
    shutil.copy(CHECKPOINT / "vocab.txt", folder)
    model, info = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    kernel = tensors["bert/encoder/layer_1/output/dense/kernel"]
    assert torch.equal(model.bert.encoder.layer[1].output.dense.weight, kernel.T)
    assert torch.equal(
        model.cls.seq_relationship.weight, tensors["cls/seq_relationship/output_weights"]
    )
    assert {*import_model(folder, tmp_path / "start").networks} == {"encoder", "generator"}


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    """100 flipped bits, 20 truncations, another file: refused with the reason, or not used."""
    rng = random.Random(0)
    whole, _ = read_bundle(CHECKPOINT / "model.ckpt-7")
    num_harmless = 0
    folder = shutil.copytree(CHECKPOINT, tmp_path / "copy")
    base = folder / "model.ckpt-7"
    index, data = (base.with_name(base.name + end) for end in (".index", ".data-00000-of-00001"))
    for number in range(120):
        path = (index, data)[number % 2]
        content = path.read_bytes()
        if number < 100:
            flip_bit(path, rng.random())
        else:
            path.write_bytes(content[: rng.randrange(len(content))])
        with suppress(UserError):
            tensors, _ = read_bundle(base)
            # The bit was that of a slot, of the step, or of the empty part of the footer.
            num_harmless += 1
            assert_same_tensors(tensors, whole)
        path.write_bytes(content)
    assert num_harmless < 10
    data.unlink()
    refuse("data-00000-of-00001 is missing", read_bundle, base)
    index.write_bytes(b"an index" * 100)
    refuse("index is damaged, or is no checkpoint:", read_bundle, base)
    # A number that never ends
    index.write_bytes(b"\xff" * 40 + struct.pack("<Q", 0xDB4775248B80FB57))
    refuse("a number is too long", read_bundle, base)


def test_of_several_checkpoints_one_is_named(tmp_path):
    folder = shutil.copytree(CHECKPOINT, tmp_path / "two")
    shutil.copy(folder / "model.ckpt-7.index", folder / "other.index")
    assert find_bundle(folder).name == "model.ckpt-7"  # as the file `checkpoint` says
    (folder / "checkpoint").unlink()
    refuse("holds several checkpoints; name one of them", find_bundle, folder)
    assert find_bundle(folder / "model.ckpt-7.index").name == "model.ckpt-7"

"""Programs of others load what the commands wrote, and answer as we do: docs/CLIENTS.md."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import electra
from electra.checkpoints.folder import SavedNetwork
from electra.cli import main
from electra.files import new_folder
from electra.interop.export import describe, write_plain
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.initialisation import init_weights
from electra.presets import deberta_sizes, encoder_sizes, modern_sizes
from tools.clients import BODIES, CLIENTS, LIGHT, NODE, OLDER, OWN, PAGE, write_page

TEXTS = ("the queen sold a boat .", "my neighbour", "the old sailor painted the castle today .")
MASKED = ("the [MASK] sold a boat .", "my neighbour [MASK] the castle .")
PIP = ["-m", "pip", "install", "--no-deps", "--retries", "1", "--target"]
NPM = ["npm", "install", "--ignore-scripts", "--no-audit", "--fetch-retries", "1", "--prefix"]
RUN_PYTHON = """
import json, os, sys, traceback
answers = []
for folder, code, texts in json.loads(sys.stdin.read()):
    os.chdir(folder)
    names = {"texts": texts}
    try:
        exec(code, names)
        answers.append(names["answer"])
    except Exception:
        answers.append(traceback.format_exc())
print()
print(json.dumps(answers))
"""
RUN_NODE = """
const answers = [];
for (const folder of process.argv.slice(2)) {
  process.chdir(folder);
  await import(`${folder}/lines.mjs`).then(
    (lines) => answers.push(lines.default), (error) => answers.push(`${error.stack}`));
}
console.log(JSON.stringify(answers));
"""


def test_the_page_is_written_from_the_list():
    assert PAGE.read_text() == write_page(), "run python -m tools.clients"


def test_versions_are_those_that_are_tested():
    for client in CLIENTS:
        name = client.name.partition(",")[0]
        if client.environment == OWN:
            assert metadata.version(name).split(".")[0] == client.version
        else:
            pins = [each.replace("==", "@") for each in client.environment.packages]
            name = name.replace("transformers.js", "@huggingface/transformers")
            assert f"{name}@{client.version}" in pins


def write_start(folder, body, tokenizer):
    """Discriminator and generator with weights large enough for differences to show."""
    options = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 64}
    sizes = {
        "electra": encoder_sizes(64, 2, 32, **options),
        "modernbert": dataclasses.replace(modern_sizes(64, 3), local_attention=8, **options),
        "deberta-v2": deberta_sizes(64, 2, position_buckets=8, **options),
    }[body]

    def draw(module):
        init_weights(module, 0.1, torch.Generator().manual_seed(1))
        return module.state_dict()

    encoder = (draw(Encoder(sizes)),)
    for place, predicts, head in (
        (folder, "replaced", DiscriminatorHead(sizes)),
        (folder / "generator", "tokens", GeneratorHead(sizes)),
    )[: 2 if body == "electra" else 1]:
        place.mkdir(parents=True)
        network = SavedNetwork(predicts, sizes, encoder, draw(head))
        write_plain(place, describe(network, tokenizer, 32, "random weights"))


@pytest.fixture(scope="module")
def folders(toy_text, toy_question, toy_tokenizer, tmp_path_factory):
    """Of each body a start, tuned, and what was exported of both."""
    top = tmp_path_factory.mktemp("folders")
    for body in BODIES:
        names = ("start", "tuned", "encoder/exported", "classifier/exported")
        start, tuned, encoder, classifier = (top / body / name for name in names)
        write_start(start, body, toy_tokenizer)
        settings = ["epochs=1", "reseeds=0", "threads=1", "precision=float32", "learning_rate=1e-3"]
        settings += [f"pooling={'mean' if body == 'modernbert' else 'cls'}", "sequence_length=24"]
        words = ["finetune", start, "--task", "own", "--data", toy_question, "--seeds", "1"]
        for command in (
            [*words, "--out", tuned, "--set", *settings],
            ["export", start, "--onnx", "--int8", toy_text, "--out", encoder],
            ["export", tuned, "--onnx", "--out", classifier],
        ):
            main([*map(str, command)])
    return top


def install(environment):
    """Return the folder of an environment; kept between runs, outside the repository."""
    if environment == OWN:
        return None
    digest = hashlib.sha256(repr(environment).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "electra-clients" / digest
    if folder.exists():
        return folder
    with new_folder(folder) as made:
        words = [sys.executable, *PIP]
        if environment.is_node:
            words = NPM
            if not shutil.which("npm"):
                pytest.skip("there is no npm")
        done = subprocess.run(
            [*words, made, *environment.packages], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no {', '.join(environment.packages)}: {done.stderr.strip()[-300:]}")
    return folder


def ask(environment, cases, folders, top):
    """Return the answers of the clients of an environment, from one process; of a fault, its text.

    Args:
        cases: Clients and bodies.
        top: A folder for the lines.
    """
    place = install(environment)
    jobs = []
    for client, body in cases:
        folder = "classifier" if client.folder == "classifier" else "encoder"
        texts = MASKED if client.folder == "generator" else TEXTS
        jobs.append((str(folders / body / folder), client.code, texts))
    settings = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    settings["PYTHONPATH"] = str(place or "")
    words, given = [sys.executable, "-W", "ignore", "-c", RUN_PYTHON], json.dumps(jobs)
    if environment.is_node:
        (top / "node_modules").symlink_to(place / "node_modules")
        (top / "run.mjs").write_text(RUN_NODE)
        words = ["node", top / "run.mjs"]
        for number, (folder, code, texts) in enumerate(jobs):
            words.append(top / str(number))
            words[-1].mkdir()
            (words[-1] / "exported").symlink_to(f"{folder}/exported")
            lines = f"const texts = {json.dumps(texts)};\n{code}\nexport default answer;\n"
            (words[-1] / "lines.mjs").write_text(lines)
    done = subprocess.run(words, input=given, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("environment", [OWN, OLDER, LIGHT, NODE], ids=["5", "4", "light", "js"])
def test_clients_answer_as_we_do(environment, folders, tmp_path):
    cases = [
        (each, body) for each in CLIENTS if each.environment == environment for body in each.bodies
    ]
    answers = ask(environment, cases, folders, tmp_path)
    for (client, body), found in zip(cases, answers, strict=True):
        where = f"{client.name} {client.version}, {client.folder} of {body}"
        assert not isinstance(found, str), f"{where}: {found}"
        exact = {"abs": client.tolerance, "rel": 0}
        model = electra.load(folders / body / "encoder" / "exported")
        if client.folder == "encoder":  # a vector of each text, or states, whose mean is taken
            means = [np.mean(np.array(each, ndmin=2), axis=0) for each in found]
            ours = electra.embed(model, TEXTS)
            assert np.abs(ours).mean() > 0.1
            assert np.array(means) == pytest.approx(ours, **exact), where
        elif client.folder == "classifier":
            records = [{"text": text} for text in TEXTS]
            expected = electra.predict(electra.load(folders / body / "tuned"), records)
            for row, ours in zip(found, expected, strict=True):
                theirs = {f"prob_{each['label']}": each["score"] for each in row}
                assert len(theirs) == 2
                assert theirs == pytest.approx({name: ours[name] for name in theirs}, **exact), (
                    where
                )
        else:
            for row, gaps in zip(found, electra.fill(model, MASKED, top=3), strict=True):
                for each, ours in zip(row[:3], gaps[0], strict=True):
                    assert each["token_str"].removeprefix("##") == ours.token.removeprefix("##")
                    assert each["score"] == pytest.approx(ours.prob, **exact), where

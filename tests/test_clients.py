"""Programs of others load what the commands wrote, and answer as we do: docs/CLIENTS.md."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from networks import draw, make_sizes
from refusals import refuse

import electra
from electra.checkpoints.saved import SavedNetwork
from electra.cli import main
from electra.files import new_folder
from electra.interop.export import describe, write_plain
from electra.interop.gguf import write_gguf
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.presets import deberta_sizes, encoder_sizes, modern_sizes
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from tools import clients
from tools.clients import BODIES, CLIENTS, NODE, OWN, Environment

TEXTS = ("the queen sold a boat .", "my neighbour", "the old sailor painted the castle today .")
PAIRS = ((TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[0]))
MASKED = ("the [MASK] sold a boat .", "my neighbour [MASK] the castle .")
WRITER = Environment(("gguf==0.19.0",))
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
    assert clients.PAGE.read_text() == clients.write_page(), "run python -m tools.clients"


def test_versions_are_those_that_are_tested():
    for client in CLIENTS:
        name = client.name.partition(",")[0]
        if client.environment == OWN:
            assert metadata.version(name).split(".")[0] == client.version
        else:
            name = name.replace("transformers.js", "@huggingface/transformers")
            pins = {each.replace("==", "@") for each in client.environment.packages}
            assert f"{name}@{client.version}" in pins


def write_start(folder, body, tokenizer, embedding_size=32):
    """Discriminator and generator with weights large enough for differences to show."""
    sizes = make_sizes(body, embedding_size, positions=64, vocab_size=tokenizer.vocab_size)
    encoder = (draw(Encoder(sizes), 0.1).state_dict(),)
    for place, predicts, head in (
        (folder, "replaced", DiscriminatorHead(sizes)),
        (folder / "generator", "tokens", GeneratorHead(sizes)),
    )[: 2 if body == "electra" else 1]:
        place.mkdir(parents=True)
        network = SavedNetwork(predicts, sizes, encoder, draw(head, 0.1).state_dict())
        write_plain(place, describe(network, tokenizer, 32, "random weights"))


@pytest.fixture(scope="module")
def folders(toy_text, toy_question, toy_tokenizer, tmp_path_factory):
    """Of each body a start, tuned, and what was exported of both."""
    top = tmp_path_factory.mktemp("folders")
    for name in ("pairs", "numbers", "vectors"):
        (top / name).mkdir()
        for split in ("train", "dev"):
            rows = (toy_question / f"{split}.tsv").read_text().splitlines()[1:]
            if name == "vectors":
                lines = ["positive\tquery", *(f"{row} {n}" for n, row in enumerate(rows))]
                (top / name / f"{split}.tsv").write_text("\n".join(lines))
                continue
            if name == "numbers":  # a range of 0 to 5
                rows = [row.replace("woman", "5").replace("other", "0") for row in rows]
            lines = ["text_a\ttext_b\tlabel", *(f"a boat .\t{row}" for row in rows)]
            (top / name / f"{split}.tsv").write_text("\n".join(lines))
    for body in BODIES:
        start, encoder = top / body / "start", top / body / "encoder/exported"
        write_start(start, body, toy_tokenizer)
        settings = ["epochs=1", "reseeds=0", "threads=1", "precision=float32", "learning_rate=1e-3"]
        settings += [f"pooling={'mean' if body == 'modernbert' else 'cls'}", "sequence_length=24"]
        train = ["finetune", start, "--seeds", "1", "--set", *settings, "--task"]
        words = [*train, "own", "--data"]
        commands = [["export", start, "--onnx", "--int8", toy_text, "--out", encoder]]
        tables = {"classifier": toy_question, "pairs": top / "pairs", "numbers": top / "numbers"}
        for name, data in tables.items():
            tuned = top / body / name / "tuned"
            kind = ["--set", "own.kind=regression"] if name == "numbers" else []
            commands.append([*words, data, *kind, "--out", tuned])
            commands.append(["export", tuned, "--onnx", "--out", tuned.with_name("exported")])
        tuned = top / body / "vectors" / "tuned"
        commands.append([*train, "retrieval", "--data", top / "vectors", "--out", tuned])
        form = ["--as", "sentence-transformers", "--out", tuned.with_name("exported")]
        commands.append(["export", tuned, *form])
        for command in commands:
            main([*map(str, command)])
        if body != "deberta-v2":
            gguf = top / body / "gguf"
            write_start(gguf / "start", body, toy_tokenizer, embedding_size=64)
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(install(WRITER))
                main(["export", str(gguf / "start"), "--as", "gguf", "--out", f"{gguf}/exported"])
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
        folder = "encoder" if client.folder in ("generator", "merged") else client.folder
        asked = {"generator": MASKED, "pairs": PAIRS, "numbers": PAIRS}
        texts = asked.get(client.folder, TEXTS)
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
@pytest.mark.parametrize("environment", dict.fromkeys(each.environment for each in CLIENTS))
def test_clients_answer_as_we_do(environment, folders, tmp_path):
    cases = [
        (each, body) for each in CLIENTS if each.environment == environment for body in each.bodies
    ]
    answers = ask(environment, cases, folders, tmp_path)
    pipeline = pytest.importorskip("transformers").pipeline
    for (client, body), found in zip(cases, answers, strict=True):
        where = f"{client.name} {client.version}, {client.folder} of {body}"
        assert not isinstance(found, str), f"{where}: {found}"
        exact = {"abs": client.tolerance, "rel": 0}
        start = "gguf/start" if client.folder == "gguf" else "encoder/exported"
        model = electra.load(folders / body / start)
        if client.folder in ("encoder", "gguf"):  # a vector of each text, or states: their mean
            means = [np.mean(np.array(each, ndmin=2), axis=0) for each in found]
            ours = electra.embed(model, TEXTS)
            assert np.abs(ours).mean() > 0.1
            assert np.array(means) == pytest.approx(ours, **exact), where
        elif client.folder == "merged":
            merged = folders / body / "encoder/merged"
            theirs = pipeline("text-classification", str(merged), top_k=None)(list(TEXTS))
            for row, scores in zip(theirs, found, strict=True):
                given = {f"LABEL_{number}": score for number, score in enumerate(scores)}
                assert {e["label"]: e["score"] for e in row} == pytest.approx(given, **exact), where
            main(["import", str(merged), "--out", str(tmp_path / body)])
            ours = electra.embed(tmp_path / body, TEXTS)
            states = pipeline("feature-extraction", str(merged))(list(TEXTS))
            means = np.array([np.mean(each[0], axis=0) for each in states])
            assert means == pytest.approx(ours, **exact), where
            assert np.abs(ours - electra.embed(model, TEXTS)).max() > 1e-3  # it has learnt
        elif client.folder == "vectors":
            tuned = electra.load(folders / body / client.folder / "tuned")
            ours = electra.embed(tuned, TEXTS)
            assert np.array(found) == pytest.approx(ours, **exact), where
        elif client.folder == "numbers":
            records = [{"text_a": one, "text_b": other} for one, other in PAIRS]
            tuned = electra.load(folders / body / client.folder / "tuned")
            ours = [each["prediction"] for each in electra.predict(tuned, records)]
            assert found == pytest.approx(ours, **exact), where
        elif client.folder in ("classifier", "pairs"):
            records = [{"text": text} for text in TEXTS]
            if client.folder == "pairs":
                records = [{"text_a": one, "text_b": other} for one, other in PAIRS]
            tuned = electra.load(folders / body / client.folder / "tuned")
            expected = electra.predict(tuned, records)
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


@pytest.mark.parametrize(
    ("sizes", "config", "words"),
    [
        (encoder_sizes(64, 2, 32), {}, "embedding_size 32 must be hidden_size 64"),
        (deberta_sizes(64, 2), {}, "llama.cpp does not support deberta-v2"),
        (dataclasses.replace(modern_sizes(64, 2), mlp_bias=True), {}, "has no mlp_bias"),
        (encoder_sizes(64, 2, 64), {"kind": "bpe", "vocab_size": 300}, "WordPiece as BERT's alone"),
        (encoder_sizes(64, 2, 64), {"split_ideographs": False}, "each ideograph a word"),
    ],
)
def test_what_llama_cpp_cannot_hold_is_refused(sizes, config, words, tmp_path):
    tokenizer = Tokenizer.train(["a boat"] * 9, TokenizerConfig(**{"vocab_size": 64} | config))
    network = SavedNetwork("", sizes, ({},))
    refuse(words, lambda: write_gguf(tmp_path / "model.gguf", network, tokenizer, 16))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium: apt-get install chromium")
def test_a_run_becomes_a_tagger_in_a_page(start, toy_text, tmp_path, monkeypatch):
    browsers = pytest.importorskip("playwright.sync_api")
    monkeypatch.chdir(tmp_path)
    Path("run").symlink_to(start)
    Path("node_modules").symlink_to(install(NODE) / "node_modules")
    Path("index.html").write_text(clients.TAGGER)
    Path("names").mkdir()
    words = toy_text.read_text().replace("\n", " \n ").split(" ")[:2000]
    tags = {"queen": "queen\tB-PER\n", "\n": "\n"}
    for split in ("train", "dev"):
        Path(f"names/{split}.txt").write_text("".join(tags.get(w, f"{w}\tO\n") for w in words if w))
    text, asked = "the queen sold unhesitatingly a boat to my neighbour %", set()
    tune, export, *_ = (line.split()[1:] for line in clients.WALK.splitlines())
    tiny = ["epochs=8", "batch_size=8", "learning_rate=2e-3", "threads=1"]
    main([*tune, "--seeds", "1", "--set", *tiny])
    main(export)
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        with browsers.sync_playwright() as playwright:
            chromium, path = playwright.chromium, shutil.which("chromium")
            page = chromium.launch(executable_path=path, args=["--no-sandbox"]).new_page()
            page.on("request", lambda request: asked.add(request.url[: len(address)]))
            page.goto(address)
            page.fill("#text", text)
            page.get_by_text("unhesitatingly").wait_for()
            found = [each.strip() for each in page.locator("mark").all_inner_texts()]
        server.shutdown()
    (ours,) = electra.predict(electra.load("tagger"), [{"tokens": text.split()}])
    tags = zip(text.split(), ours["tags"], strict=True)
    assert found == [f"{word} {tag}" for word, tag in tags if tag != "O"] != []
    assert asked == {address}  # nobody else

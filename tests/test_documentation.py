"""What README and docs/ say works: every command, link, setting and line of Python in them."""

import argparse
import dataclasses
import importlib
import json
import lzma
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from runs import SMALL, ignore, words_of, write_as_published

import electra
from electra.assignments import flatten, from_dict, override
from electra.checkpoints.folder import read_pretrained
from electra.cli import app, main
from electra.method.config import MethodConfig
from electra.model.config import EncoderConfig
from electra.presets import PRESETS
from electra.pretraining.loop import pretrain
from electra.reproduce.suite import Ordering, Published, Row, Suite
from electra.settings import to_dict
from electra.tasks.config import FinetuneConfig
from electra.tasks.glue import DIAGNOSTIC, GLUE
from electra.training.config import PretrainConfig
from tools.readme import GUIDES, PAGE, PICTURE, update_readme
from tools.tensorflow import convert

ROOT = Path(electra.__file__).parent.parent
DOCS = """OBJECTIVES ARTEFACTS DEVIATIONS PERFORMANCE ARCHITECTURE RELIABILITY DOMAIN LIBRARY
REPRODUCE CORPUS TOKENIZERS CONCEPTS SERVING TROUBLE KOREAN ARCHITECTURES TASK GPUS MIGRATING
EXTENDING CLIENTS DEBERTA BABYLM SPEEDRUN CLAIMS RETRIEVAL
TRILLION"""
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")]
PAGES += [ROOT / "docs" / f"{name}.md" for name in DOCS.split()]
"""In the order in which their commands are run."""
TOY = {
    "tokenizer": ["vocab_size=120", "min_frequency=1"],
    "prepare": ["heldout_prob=0.1", "workers=1"],
    "pretrain": words_of(SMALL | {"model.embedding_size": 64, "train.steps": 4}),
    "finetune": ["epochs=1", "threads=1"],
}
"""Settings that make a documented command small."""
TOY_BENCHMARKS = {"load": ["--rows", "4", "--length", "32", "--repeats", "3"]}
TOY_BENCHMARKS["prepare"] = ["--repeats", "1", "--workers", "1"]
"""Words that make a benchmark small; of the others, arguments are parsed and nothing is run."""
SECTIONS = {
    field.name: {each.name for each in dataclasses.fields(field.type)}
    for config in (PretrainConfig, FinetuneConfig)
    for field in dataclasses.fields(config)
    if dataclasses.is_dataclass(field.type)
}
for section, config in {"method": MethodConfig, "model": EncoderConfig}.items():
    for kind in config.kinds:  # of one objective, or body, alone
        SECTIONS[section] |= {each.name for each in dataclasses.fields(config.class_for(kind))}


def read_blocks(page, language=""):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def read_commands(page):
    """The commands in the fenced blocks of a page, in their order, without comments."""
    lines = [line.partition(" #")[0].strip() for b in read_blocks(page) for line in b.splitlines()]
    return [line for line in lines if line.startswith(("electra ", "python "))]


def read_inline(page):
    """Text between backquotes outside blocks, on one line."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def expand(word, folder):
    """Return what a shell makes of a word in a folder."""
    found = sorted(str(path.relative_to(folder)) for path in folder.glob(word) if "*" in word)
    return found or [word]


def write_table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


def write_glue(folder, lines):
    """Every task of GLUE with test sets: 12 examples of train, 6 of the others."""
    for task in GLUE.values():
        labels = task.labels or ("0.0", "2.5", "5.0")
        for split, stem in task.files:
            stem = stem.replace("(dev|validation)", "dev").replace("dev|validation", "dev")
            is_labelled = split.startswith(("train", "dev"))
            place = DIAGNOSTIC[0] if split == "diagnostic" else task.folders[0]
            columns = task.columns if is_labelled else ()
            header = columns or ("index", *task.texts, *([task.label] if is_labelled else []))
            rows = [] if columns else [header]
            for number in range(12 if split == "train" else 6):
                values = dict.fromkeys(header, str(number))
                values |= {text: lines[number + n] for n, text in enumerate(task.texts)}
                values[task.label] = labels[number % len(labels)]
                rows.append([values[name] for name in header])
            write_table(folder / place / f"{stem}.tsv", rows)


@pytest.fixture
def place(toy_text, toy_shards, tmp_path):
    """A folder with everything that the documented commands expect to find."""
    folder = tmp_path
    lines = [line for line in toy_text.read_text().splitlines() if line]
    for name in ("corpus", "results", "reviews"):
        (folder / name).mkdir()
    # Of the Korean reviews the words do not matter here.
    for name, text in (("toy", toy_text.read_text()), ("nsmc-reviews", "\n".join(lines))):
        (folder / "corpus" / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode()))
    pair = {"sentence_good": "the queen sold a boat .", "sentence_bad": "the a .", "UID": "order"}
    (folder / "blimp.jsonl").write_text(json.dumps(pair))
    for name in ("texts.txt", "sentences.txt"):
        (folder / name).write_text("\n".join(lines[:5]))
    write_glue(folder / "glue", lines)
    labelled = [(line, str(len(line) % 2)) for line in lines[:20]]
    pairs = [(text, lines[number], label) for number, (text, label) in enumerate(labelled)]
    words = [
        [(word, "B-PER" if word == "queen" else "O") for word in x.split()] for x in lines[:20]
    ]
    for split in ("train", "dev"):
        for task in ("nsmc", "tickets"):
            write_table(folder / task / f"{split}.tsv", [("text", "label"), *labelled])
        header = ("text_a", "text_b", "label")
        write_table(folder / "duplicates" / f"{split}.tsv", [header, *pairs])
        topics = [{"text": text, "label": ["boat"] * int(label)} for text, label in labelled]
        numbers = [
            {"text": text, "style": n, "content": -n} for n, (text, _) in enumerate(labelled)
        ]
        for name, rows in (("topics", topics), ("essays", numbers)):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        searched = [{"query": text[:20], "positive": text} for text in lines[:20]]
        (folder / "pairs").mkdir(exist_ok=True)
        (folder / "pairs" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, searched)))
        tagged = [row for each in words for row in (*each, "")]
        write_table(folder / "names" / f"{split}.txt", tagged)
    abstracts = (json.dumps({"id": n, "text": text}) for n, text in enumerate(lines[:9]))
    (folder / "abstracts.jsonl").write_text("\n".join(abstracts))
    convert(ROOT / "tests" / "tf_checkpoint", folder / "electra_small")
    (folder / "electra_small" / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    config = override(PRESETS["deberta-v3-small"], [*TOY["pretrain"], "optimizer.warmup_steps=0"])
    pretrain(toy_shards, folder / "hub", config, ignore)
    write_as_published(read_pretrained(folder / "hub"), folder / "deberta-v3-small")
    (description,) = read_blocks(ROOT / "docs" / "ARTEFACTS.md", "toml")
    (folder / "reviews.toml").write_text(description)
    own = tomllib.loads(description)
    table = "".join(f"{text},{label}\n" for text, label in [(own["text"], own["label"]), *labelled])
    (folder / "reviews" / own["train"]).write_bytes(lzma.compress(table.encode()))
    (folder / "reviews" / "dev.csv").write_text(table)
    return folder


def run_electra(words):
    verb = words[0]
    if verb == "submit":  # first the tasks that no command of the pages fine-tunes
        for task in words[1 : words.index("--out")]:
            if not Path(task).exists():
                run_electra(f"finetune run --task {task} --data glue --out {task}".split())
    toy = TOY.get(verb, [])
    names = {setting.partition("=")[0] for setting in toy} | {"train_examples"}
    words = [word for word in words if word.partition("=")[0] not in names]
    main([*words, *(["--set", *toy] if toy else [])])


def run_benchmark(words, monkeypatch):
    """Run a module of benchmarks/, or parse its arguments if it has no toy size."""
    name = words[0].removeprefix("benchmarks.")
    module = importlib.import_module(words[0])
    monkeypatch.setattr(sys, "argv", words + TOY_BENCHMARKS.get(name, []))
    if name in TOY_BENCHMARKS:
        return module.main()
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser, args=None, namespace=None):
        parse(parser, args, namespace)
        raise EOFError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    with pytest.raises(EOFError):
        module.main()


@pytest.mark.filterwarnings("default:.* is a grid; its best:UserWarning")
@pytest.mark.filterwarnings("default:.* has no effect when:UserWarning")  # of the toy's settings
@pytest.mark.parametrize(
    "pages", [PAGES[:1], pytest.param(PAGES, marks=pytest.mark.slow)], ids=["README", "all"]
)
def test_commands_and_python_of_the_pages_run(place, pages, monkeypatch, capsys):
    commands = list(dict.fromkeys(each for page in pages for each in read_commands(page)))
    verbs = {command.split()[1] for command in commands}
    assert verbs >= {"tokenizer", "prepare", "pretrain", "finetune", "report", "export"}
    for command in commands:
        words = [word for pattern in shlex.split(command) for word in expand(pattern, place)]
        with monkeypatch.context() as patch:
            patch.chdir(place)
            if words[0] == "python":
                run_benchmark(words[2:], patch)
            else:
                run_electra(words[1:])
    (snippet,) = read_blocks(ROOT / "README.md", "python")
    monkeypatch.chdir(place)
    capsys.readouterr()
    exec(compile(snippet, "README.md", "exec"), {})
    assert "replaced with probability 0." in capsys.readouterr().out
    if pages != PAGES:
        return
    toy = SMALL | {"model.embedding_size": 64, "train.steps": 4}
    for number, snippet in enumerate(read_blocks(ROOT / "docs" / "LIBRARY.md", "python")):
        snippet = snippet.replace('{"train.steps": 1000}', repr(toy))
        exec(compile(snippet, f"LIBRARY.md, block {number}", "exec"), {})
        assert capsys.readouterr().out


def test_every_page_is_tested():
    assert set((ROOT / "docs").glob("*.md")) <= set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_between_backquotes_and_in_scripts_parse(page):
    """Between backquotes those with options; of torchrun, what it starts."""
    lines = [code for code in read_inline(page) if code.startswith("electra ") and " --" in code]
    for block in (*read_blocks(page, "sh"), "\n".join(read_commands(page))):
        lines += block.replace("\\\n", " ").splitlines()
    for line in lines:
        words = shlex.split(line, comments=True)
        if "torchrun" in words:
            words = words[words.index("-m") + 1 :]
        if words[:1] == ["electra"]:
            app.parse_args(words[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    for target in targets:
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_exist(page):
    """Here, or in a block of Python of the page, which shows how to add some."""
    own = set(re.findall(r"^ {4}(\w+): ", "".join(read_blocks(page, "python")), re.MULTILINE))
    for code in read_inline(page):
        for section, name in re.findall(r"(?<![\w./])(\w+)\.(\w+)(?![\w./])", code):
            if section in SECTIONS and name not in ("py", "safetensors", "tsv", "txt"):
                assert name in SECTIONS[section] | own, code


def test_every_key_of_a_suite_is_described():
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", (ROOT / "docs/REPRODUCE.md").read_text(), re.M)
    (start,) = [number for number, (keys, _) in enumerate(rows) if keys.startswith("`title`")]
    told = {name: rest for keys, rest in rows[start:] for name in re.findall(r"`(\w+)`", keys)}
    assert {each.name for each in dataclasses.fields(Suite)} == told.keys()
    for name, kind in (("rows", Row), ("orderings", Ordering), ("published", Published)):
        keys = {each.name for each in dataclasses.fields(kind)}
        assert keys <= {*re.findall(r"`(\w+)`", told[name])}, name


@pytest.mark.parametrize("page", [PAGES[0], PAGES[2]], ids=lambda page: page.parent.name)
def test_statements_about_tasks_are_about_rows_of_the_table(page):
    (block,) = re.findall(r"<!-- results:begin -->(.*?)<!-- results:end", page.read_text(), re.S)
    tasks = {*re.findall(r"^\| ([\w.-]+(?: after [\w-]+)?) \|", block, re.MULTILINE)}
    told = re.findall(r"([\w.-]+(?: after [\w-]+)?) \([+-]\d", block)
    for listed in re.findall(r"(?:above both|between|below both) for (.*?)[;.](?: |$)", block):
        told += listed.split(", ")
    assert len(told) > 9
    assert {*told} <= tasks


def test_results_are_what_the_command_writes(tmp_path):
    read = [Path("README.md"), PAGE, *GUIDES.values()]
    for name in read:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    update_readme(tmp_path / "README.md", ROOT / "results")
    for name in (*read, PICTURE):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), name


def test_mini_has_the_settings_of_its_run_in_results():
    saved = json.loads((ROOT / "results/wikipedia-novels-4x256/config.json").read_text())
    configs = (from_dict(PretrainConfig, saved), PRESETS["mini"])
    shown, preset = (dict(flatten(to_dict(config))) for config in configs)
    different = {name for name in preset if shown[name] != preset[name]}
    # The weight decay has changed since, because of what that run's states were like.
    assert different == {"model.vocab_size", "train.keep_every", "optimizer.weight_decay"}

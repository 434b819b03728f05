"""The verbs as a user types them: real runs of the whole chain, refusals in one line, dry runs."""

import contextlib
import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import pytest
import runs
import torch
from commands import refuse_command, succeed
from commands import run_command as run
from runs import limit_files, words_of
from tasks import write_files

from electra.assignments import list_names
from electra.cli import entry, main
from electra.presets import PRESETS
from electra.pretraining.plan import DAY, list_shorter
from electra.shards.config import PrepareConfig
from electra.tasks.config import FinetuneConfig
from electra.training.machine import prepare_machine
from electra.version import __version__

SMALL = words_of(runs.SMALL | {"train.steps": 6, "train.log_every": 2})


@pytest.fixture(scope="module")
def chain(toy_text, tmp_path_factory):
    """Every verb on the toy text, as the README has them; the folder they wrote into."""
    folder = tmp_path_factory.mktemp("chain")
    rows = [f"the queen {word}\t{word}\n" for word in ("sold", "painted")]
    table = {f"{name}.tsv": "text\tlabel\n" + "".join(rows * count)
             for name, count in (("train", 12), ("dev", 6))}  # fmt: skip
    write_files(folder / "task", table)
    own = "--task own --data task --set epochs=1 threads=1"
    commands = f"""tokenizer {toy_text} --out vocabulary --set vocab_size=120
        prepare {toy_text} --tokenizer vocabulary --out shards --set heldout_prob=0.1 workers=1
        pretrain shards --out run --set {" ".join(SMALL)}
        finetune run {own} --out scores --seeds 2
        finetune run {own} --out scratch --from-scratch
        report run scores scratch --out report.html
        export run --out exported"""
    outputs = {}
    for words in map(str.split, commands.splitlines()):
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            main(words)
        outputs[words[0]] = printed.getvalue()
    return folder, outputs


@pytest.fixture
def folder(chain):
    return chain[0]


def test_each_verb_ends_with_what_was_written_and_what_comes_next(chain):
    folder, outputs = chain
    for verb, out in outputs.items():
        wrote, following = out.strip().splitlines()[-2:]
        assert wrote.startswith("wrote "), verb
        assert following.startswith("next: "), verb
    assert not list(folder.glob("*.incomplete"))
    page = (folder / "report.html").read_text()
    assert "from scratch" in page
    assert (folder / "exported" / "generator" / "model.safetensors").exists()
    scores = json.loads((folder / "scores" / "results.json").read_text())
    assert len(scores["seeds"]) == 2


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_run_goes_on_by_its_own_command(capsys, folder, tmp_path):
    """Stopped by a time limit, which is an orderly end, and made longer, which is said."""
    words = ["pretrain", folder / "shards", "--out", tmp_path / "a run"]
    in_time = [*words, "--max-time", "0.001s", "--set", *SMALL]
    out = succeed(capsys, *in_time).out
    assert "stopped at step 1;" in out
    assert f"next: electra pretrain --resume '{tmp_path}/a run'" in out
    says = f"by `electra pretrain --resume '{tmp_path}/a run'`"
    refuse_command(says, capsys, *words, "--set", *SMALL, "train.seed=1")
    assert f"would continue {tmp_path}/a run" in succeed(capsys, *in_time, "--dry-run").out
    longer = [word.replace("steps=6", "steps=30") for word in SMALL]
    err = succeed(capsys, *words, "--set", *longer).err
    assert "note: " in err
    assert "with changed settings: train.steps 6 -> 30" in " ".join(err.split())
    assert json.loads((tmp_path / "a run/results.json").read_text())["steps"] == 30


def test_a_held_out_part_too_small_to_measure_is_told(capsys, folder, toy_text, tmp_path):
    words = ["prepare", toy_text, "--tokenizer", folder / "vocabulary", "--out"]
    said = " ".join(succeed(capsys, *words, tmp_path / "a").err.split())
    assert "too few to compare losses by (20,000 or more are enough)" in said
    assert "--set heldout_prob=0.1 holds out about" in said
    said = succeed(capsys, *words, tmp_path / "d", "--set", "heldout_prob=0.1").err
    assert "a larger heldout_prob" in said  # and not that of the command
    said = succeed(capsys, *words, tmp_path / "b", "--set", "heldout_prob=0").err
    assert "too few" not in said
    lines = tmp_path / "long.txt"
    lines.write_text("".join(f"the queen sold {number}\n\n" for number in range(9000)))
    words = ["prepare", lines, "--tokenizer", folder / "vocabulary", "--out", tmp_path / "c"]
    assert "too few" not in succeed(capsys, *words, "--set", "heldout_prob=0.9", "workers=1").err


def test_links_out_of_a_folder_are_noted(capsys, toy_text, tmp_path):
    corpus = write_files(tmp_path / "corpus", {"a.txt": toy_text.read_text()})
    (corpus / "b.txt").symlink_to(toy_text)
    words = ["tokenizer", corpus, "--out", tmp_path / "v", "--set", "vocab_size=120"]
    said = " ".join(succeed(capsys, *words).err.split())
    assert f"through links: {corpus}/b.txt (a link to {toy_text.resolve()})" in said


def run_child(*words, **options):
    command = [sys.executable, "-m", "electra", *map(str, words)]
    return subprocess.run(command, **{"stderr": subprocess.PIPE, "text": True, **options})


def test_standard_input(capsys, toy_text, tmp_path, monkeypatch):
    words = ["tokenizer", "-", "--out", tmp_path / "vocabulary", "--set", "vocab_size=120"]
    with toy_text.open(encoding="utf-8") as text:
        monkeypatch.setattr(sys, "stdin", text)
        succeed(capsys, *words)
    assert (tmp_path / "vocabulary" / "vocab.txt").exists()


MISSING = """tokenizer nowhere --out OUT
prepare nowhere --tokenizer vocabulary --out OUT
prepare task --tokenizer nowhere --out OUT
pretrain nowhere --out OUT
pretrain shards --out OUT --config nowhere
pretrain --resume nowhere
plan --config nowhere
flops --config nowhere
finetune nowhere --task own --data task --out OUT
finetune run --task own --data nowhere --out OUT
finetune run --task nowhere.toml --data task --out OUT
submit nowhere --out OUT.zip
report nowhere --out OUT.html
report run nowhere --out OUT.html
predict nowhere --input task/dev.tsv
predict scores --input nowhere
score run --text nowhere --out OUT.tsv
score nowhere --text task/dev.tsv --out OUT.tsv
embed nowhere --input task/dev.tsv --out OUT.npy
embed run --input nowhere --out OUT.npy
export nowhere --out OUT
quickstart --text nowhere --out OUT""".splitlines()
THERE = ("notes.md", "page.html", "exported/README.md")
URL_OF = (
    "quickstart --out",
    "import run --out",
    "reproduce table-5 --runs",
    "pretrain shards --out",
)


LONG = "n" * 300
NO_TABLE = "must be a .html or .htm or .md file, not "
TUNE = "finetune run --task own --data task --out OUT"
MISTAKES = [
    *((words, "nowhere") for words in MISSING),
    (f"tokenizer {LONG} --out OUT", f"{LONG}: File name too long"),
    (f"tokenizer TEXT --out {LONG}", f"{LONG}: File name too long"),
    (f"export run --out {LONG}", f"{LONG}: File name too long"),
    (f"report run --out {LONG}.html", f"{LONG}.html: File name too long"),
    ("export run --out TEXT/out", "Not a directory"),
    ("report run --out .", ". is a folder; name a file, as report.html"),
    ("quickstart --out .", ". exists already; name a folder in it, as quickstart"),
    ("submit scores --out OUT.tar", "out.tar must be a .zip file"),
    ("score run --text TEXT --out OUT.json", "out.json must be a .tsv file"),
    ("tokenizer TEXT --out a\0b", r"'a\x00b' is not UTF-8, or has a NUL in it"),
    ("tokenizer TEXT --out caf\udce9", r"'caf\udce9' is not UTF-8, or has a NUL"),
    ("inspect run hello", "inspect has no use for 'hello'; electra inspect --help says"),
    ("pretran shards", 'Did you mean "pretrain"?'),
    ("pretrain shards --uot OUT", "Did you mean --out?"),
    ("pretrain shards --out OUT --learning_rate 3e-5", "--set optimizer.learning_rate=VALUE"),
    ("pretrain shards --out OUT --per-device-train-batch-size=8", "--set train.batch_size=VALUE"),
    (f"{TUNE} --learning_rate=3e-5", "it is a setting: --set learning_rate=VALUE"),
    (f"{TUNE} --num_train_epochs 3", "it is a setting: --set epochs=VALUE"),
    ("prepare TEXT --line_by_line --tokenizer v --out OUT", "--set border=VALUE"),
    ("tokenizer http://ann:SECRET@localhost:1/x --out OUT", "http://ann:***@localhost:1/x cannot"),
    ("pretrain shards --out OUT --preset smal", "did you mean 'small'?"),
    ("pretrain shards --out OUT --preset ''", "unknown preset ''"),
    ("pretrain shards --set train.stpes=3", "'train.stpes'; did you mean 'steps'?"),
    ("pretrain shards --set train.steps=50 optimizer.warmup_steps=50", "warmup_steps=5\n"),
    ("pretrain shards", "needs SHARDS and --out RUN"),
    ("pretrain run --out OUT", "is not the manifest of a shards folder"),
    ("pretrain --resume run", "is complete; there is nothing to resume"),
    ("pretrain --resume run --dry-run", "is complete"),
    ("pretrain --resume run --set train.steps=9", "leave out --set"),
    ("pretrain --resume run --preset tiny", "--preset"),
    ("pretrain --resume run --recipe best", "--recipe"),
    ("pretrain --resume scores", "is not the config of a run, but of a fine-tun"),
    ("pretrain shards --out run --preset small --dry-run", "started with model.embedding_size="),
    ("pretrain shards --out OUT --max-time", "--max-time needs a value\n"),
    ("pretrain shards --out OUT --max-time 90", "such as 90m or 3h, not '90'\n"),
    ("pretrain shards --out OUT --max-time 0s", "--max-time must be > 0"),
    ("prepare TEXT --tokenizer vocabulary --out OUT --set border=lines", "did you mean 'line'?"),
    ("prepare '' --tokenizer vocabulary --out OUT", "an empty name"),
    ("prepare TEXT --tokenizer v --out OUT --task ''", "takes I/N"),
    ("prepare TEXT", "error: prepare needs --tokenizer\n"),
    (f"{TUNE} --seeds 0 --dry-run", "1 to 1000, not 0"),
    (f"{TUNE} --grid sequence_length=16,999 --dry-run", "sequence_length 999 is more than the"),
    ("export shards --out OUT", "no config.json"),
    ("export run --out scores", "exists already"),
    ("tokenizer TEXT --out s3://a/b", "s3:/a/b is a URL, and only shards"),
    ("report run --out gs://a/b.html", "gs:/a/b.html is a URL"),
    *((f"{verb} s3://a/b", "is a URL") for verb in URL_OF),
    *((f"plan --probe-seconds {each}", f"finite, not {each}") for each in ("nan", "inf", "-1.0")),
    ("plan --steps 0", "steps must be >= 1, not 0"),
    ("report --out OUT", "error: report needs FOLDERS\n"),
    *((f"report run --out {name}", f"{name} exists and is not a report") for name in THERE),
    ("report run --out run/metrics.jsonl", f"{NO_TABLE}'.jsonl'"),
    ("report run --out OUT.pdf", f"{NO_TABLE}'.pdf'"),
    ("report shards --out OUT.html", "shards is neither a run, nor a fine-tuning, nor a folder of"),
    ("report vocabulary run --out OUT.html", "vocabulary is neither a run"),
    ("detect run '-5 degrees'", "; put -- before a text that begins with -\n"),
    ("pretrain shards --out -run", "; a name that begins with - is written ./-run\n"),
    ("report -run --out OUT.html", "; a name that begins with - is written ./-run\n"),
    ("tokenizer --ids 9 --kind bpe --out OUT", "no text and no settings"),
    ("tokenizer --ids 999999999999 --out OUT", "--ids must be <= 10,000,000"),
    ("detect run text --json --threshold 0.9", "leave --threshold out"),
    ("reproduce --shards shards --budget 1e14", "give the NAME of a suite"),
    ("inspect shards --set encoding=utf-8", "--set is for reading a --text"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES)
def test_a_mistake_is_one_line_with_status_2(
    capsys, folder, toy_text, tmp_path, monkeypatch, words, line
):
    monkeypatch.chdir(folder)
    write_files(folder, {"notes.md": "# Notes\n", "page.html": "<title>Mine</title>\n"})
    words = words.replace("OUT", str(tmp_path / "out")).replace("TEXT", str(toy_text))
    status, printed, err = run(capsys, *shlex.split(words))
    assert (status, printed) == (2, ""), err
    assert re.fullmatch("(vocabulary .*\n)?error: .*\n", err), err  # progress may come first
    assert line in err
    assert not list(tmp_path.iterdir())


def list_flags():
    """Return (command, flag, setting) of the tables of MIGRATING.md whose flags are settings."""
    page = Path(__file__).parents[1].joinpath("docs/MIGRATING.md").read_text().split("\n## ")
    commands = {"pretrain x": (1, PRESETS["tiny"]), "prepare x --tokenizer x": (1, PrepareConfig())}
    commands["finetune x --task cola --data x"] = (2, FinetuneConfig())
    found = []
    for command, (section, config) in commands.items():
        for left, right in re.findall(r"^\| (.*) \| (.*) \|$", page[section], re.MULTILINE):
            named = [each.partition("=")[0] for each in re.findall("`(.*?)`", right)]
            settings = [each for each in named if each in list_names(config)]
            if settings[:1] == named[:1]:
                flags = re.findall(r"`--(\w+)", left)
                found += [(command, *pair) for pair in zip(flags, settings, strict=False)]
    assert len(found) > 25
    return found


@pytest.mark.parametrize(("words", "flag", "setting"), list_flags())
def test_a_flag_of_another_program_names_the_setting_of_the_page(capsys, words, flag, setting):
    says = f"unknown option --{flag}; it is a setting: --set {setting}=VALUE"
    refuse_command(says, capsys, *words.split(), "--out", "out", f"--{flag}", "3")


def test_the_next_command_has_what_this_one_had(capsys, folder, toy_text, tmp_path, monkeypatch):
    """A name that begins with a dash is also one there."""
    monkeypatch.chdir(tmp_path)

    def follow(*words):
        following = succeed(capsys, *words).out.splitlines()[-1].removeprefix("next: electra ")
        return following, shlex.split(following)

    words = ["prepare", toy_text, "--tokenizer", folder / "vocabulary", "--out", "my shards"]
    settings = ["--set", "heldout_prob=0.4", "duplicates=exact"]
    _, following = follow(*words, *settings, "--task", "0/1")
    assert follow(*following)[0].startswith("pretrain 'my shards' --out run")
    for name in ("exported", "run"):
        following, _ = follow(*words[:3], folder / name, "--out", name)
        assert f"pretrain {name} --init-from {folder}/{name}" in following
    text, following = follow("tokenizer", toy_text, "--out=-words", "--set", "vocab_size=120")
    assert "--tokenizer ./-words " in text
    succeed(capsys, *following, "--dry-run")
    words = ["tokenizer", toy_text, "--extend", folder / "exported", "--set", "vocab_size=130"]
    _, following = follow(*words, "--out", "more")
    assert follow(*following)[0].startswith("prepare ")


@pytest.mark.parametrize(
    ("verb", "interrupted", "kept"),
    [
        ("finetune", "electra.finetuning.loop.write_seed", "no half-written result was left"),
        ("finetune", "electra.finetuning.loop.summarise", "OUT keeps 2 finished seeds; the same"),
        ("prepare", "electra.shards.pieces._write_piece", "no half-written result was left"),
        ("prepare", "electra.shards.prepare.merge_pieces", "OUT keeps 1 finished piece; the same"),
    ],
)
def test_an_interrupt_is_no_error_and_says_what_is_kept(
    capsys, folder, toy_text, tmp_path, monkeypatch, verb, interrupted, kept
):
    words = {
        "prepare": [toy_text, "--tokenizer", folder / "vocabulary", "--set", "workers=1"],
        "finetune": [folder / "run", "--task", "own", "--data", folder / "task", "--seeds", "2",
                     "--set", "epochs=1", "threads=1", "reseeds=0"],
    }[verb]  # fmt: skip
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(interrupted, lambda *given: signal.raise_signal(signal.SIGINT))
        status, _, err = run(capsys, verb, *words, "--out", out)
    said = " ".join(err.split()).replace(f"{out}.incomplete", "OUT")
    assert status == 130
    assert f"note: interrupted; {kept}" in said
    assert "error" not in said
    assert succeed(capsys, verb, *words, "--out", out).out.splitlines()[-2].startswith("wrote ")


@pytest.mark.parametrize("columns", ["0", "1", "-80", "wide", "²", "9" * 5000])
def test_help_has_an_end_whatever_the_width(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    assert "--max" in succeed(capsys, "pretrain", "--help").out


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("pretrain --preset", "modern-tiny"),
        ("reproduce --preset", "tiny"),
        ("finetune run --task", "cola"),
        ("reproduce", "table-5"),
        ("pretrain --set", "train.steps="),
        ("pretrain --set", "model.local_attention="),
        ("tokenizer --set", "vocab_size="),
        ("prepare --set", "duplicates="),
        ("quickstart --set", "pretrain.train.steps="),
        ("serve --set", "batch_items="),
    ],
)
def test_the_shell_completes_values(capsys, words, value):
    assert value in run(capsys, "__complete", *words.split(), "")[1].splitlines()


def test_settings_are_listed_without_shards(capsys):
    words = ["--preset", "small", "--set", "train.device=cuda"]  # for which nothing is estimated
    printed = succeed(capsys, "pretrain", *words, "--dry-run").out
    lines = {"train.steps=1000000", "model.hidden_size=256", "optimizer.learning_rate=0.0005"}
    assert lines <= {*printed.splitlines()}


@pytest.mark.parametrize("preset", ["small", "modern-small", "tiny"])
def test_a_run_of_days_is_announced(capsys, preset):
    """Not where a GPU computes it, or it is short."""
    words = ["pretrain", "--dry-run", "--preset", preset, "--set", "train.threads=1"]
    _, _, err = run(capsys, *words, "train.device=cpu", "train.steps=1000000000")
    body = preset.replace("small", "tiny")
    fits = rf"--preset {body} about \d+ (hours|minutes)|--set train.steps=\d+ about a day"
    assert re.search(f"would take about [0-9,]+ (days|years) on this machine; ({fits})", err)
    for setting in ("train.device=cuda", "train.steps=20"):
        assert "would take" not in run(capsys, *words, setting)[2]


def test_a_preset_is_no_shorter_than_itself():
    machine = prepare_machine("cpu", "float32", 1)
    assert list_shorter(PRESETS["deberta-tiny"], machine, 2 * DAY) == {}


@pytest.mark.filterwarnings("default:the run reads the text")
def test_a_run_of_days_is_announced_before_it_starts(capsys, folder, tmp_path):
    long = [word.replace("steps=6", "steps=2000000000") for word in SMALL]
    words = ["pretrain", folder / "shards", "--out", tmp_path / "run", "--set", *long]
    for is_new in (True, False):
        err = succeed(capsys, *words, "--max-time", "0.001s").err
        assert ("would take about" in err.partition("# Pre-training")[0]) == is_new
    _, _, err = run(capsys, "pretrain", "nowhere", "--out", tmp_path / "no", *words[4:])
    assert len(err.splitlines()) == 1


def test_output_that_takes_nothing_or_only_ascii(tmp_path):
    command = f"exec {sys.executable} -m electra flops >&-"
    assert subprocess.run(["sh", "-c", command], capture_output=True).stderr == b""
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 200)
    text, made = (shlex.quote(str(tmp_path / name)) for name in ("a.txt", "made"))
    command = f"exec {sys.executable} -m electra tokenizer {text} --out {made} <&- >&- 2>&-"
    subprocess.run(["sh", "-c", command], check=True)
    assert (tmp_path / "made/tokenizer.json").is_file()
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = ["tokenizer", "--ids", "5", "--out", tmp_path / "한국"]
    done = run_child(*words, env=ascii_only, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert r"\ud55c\uad6d: 5 ids" in done.stdout


@pytest.mark.parametrize("words", ["--help", "predict scores --input task/dev.tsv"])
def test_a_closed_pipe_ends_without_a_word(folder, words):
    """Nobody reads, and the status is that of a program that SIGPIPE ended."""
    reader, writer = os.pipe()
    os.close(reader)
    done = run_child(*words.split(), cwd=folder, stdout=writer)
    os.close(writer)
    assert done.returncode == 141
    assert re.fullmatch(r"(\w+ .*\n)?", done.stderr), done.stderr  # the progress


def test_progress_and_notes_that_nobody_reads_end_nothing():
    """As by Ctrl-C in a pipe into tee, which ends first: a run has to write its checkpoint."""
    reader, writer = os.pipe()
    os.close(reader)
    words = "pretrain --dry-run --set method.objective=mlm method.disc_weight=7"
    done = run_child(*words.split(), stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert done.returncode == 0
    assert "would pre-train" in done.stdout


@pytest.mark.parametrize(
    ("words", "suffix"),
    [
        ("submit scores --partial", "zip"),
        ("report run", "html"),
        ("predict scores --input task/dev.tsv", "jsonl"),
        ("score run --text task/dev.tsv", "tsv"),
        ("embed run --input task/dev.tsv", "npy"),
    ],
)
def test_a_folder_in_the_way_of_a_file_is_one_line(
    capsys, folder, tmp_path, monkeypatch, words, suffix
):
    """Told before the work, which would be lost."""
    monkeypatch.chdir(folder)
    out = tmp_path / f"out.{suffix}"
    in_the_way = tmp_path / f"{out.name}.incomplete"
    in_the_way.mkdir()
    status, printed, err = run(capsys, *words.split(), "--out", out)
    assert (status, printed) == (2, "")
    says = f"{in_the_way} is a folder in the way of {out}; move it or choose another --out"
    assert err == f"error: {says}\n"
    assert list(tmp_path.iterdir()) == [in_the_way]


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("tokenizer TEXT --set vocab_size=120", 1000),
        ("prepare TEXT --tokenizer vocabulary --set workers=1", 10_000),
        ("export run", 50_000),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    capsys, folder, toy_text, tmp_path, monkeypatch, words, size
):
    """A limit on the size of files stands for the disk; the write fails in the same place."""
    monkeypatch.chdir(folder)
    words = words.replace("TEXT", str(toy_text)).split()
    try:
        limit_files(size)
        status, _, err = run(capsys, *words, "--out", tmp_path / "out")
    finally:
        limit_files(resource.RLIM_INFINITY)
    assert status == 2, err
    assert re.search(r"^error: (writing failed|.*/out.*): File too large\Z", err.strip(), re.M)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("default")
def test_warnings_are_notes_and_those_of_others_are_few(capsys, monkeypatch):
    """All of ours count; of another package's, the first from each place."""

    def work(*words, **options):
        for number in range(3):
            for file, line in ((entry.__file__, 1), ("torch/nn.py", 1), ("torch/nn.py", 2)):
                message = f"line {line},\nnumber {number}"
                warnings.warn_explicit(message, UserWarning, file, line)

    monkeypatch.setattr(entry, "app", work)
    main([])
    told = [(1, 0), (1, 0), (2, 0), (1, 1), (1, 2)]
    expected = [f"note: line {line}, number {number}" for line, number in told]
    assert capsys.readouterr().err.splitlines() == expected


def test_a_pipe_is_waited_for_aloud(toy_text, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ["tokenizer", pipe, "--out", tmp_path / "out", "--set", "vocab_size=120"]
    command = [sys.executable, "-m", "electra", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        line = process.stderr.readline().decode()
        pipe.write_bytes(toy_text.read_bytes())
        process.stderr.read()
    assert line == f"note: {pipe} is a pipe; waiting until something is written to it\n"
    assert process.returncode == 0
    assert (tmp_path / "out" / "vocab.txt").exists()


@pytest.mark.parametrize(
    "bug", [OSError("by hand"), OSError(9, "Bad file descriptor"), ValueError("a bug")]
)
def test_a_bug_stays_a_traceback(monkeypatch, bug):
    def fail(*words, **options):
        raise bug

    monkeypatch.setattr(entry, "app", fail)
    with pytest.raises(type(bug), match=re.escape(str(bug))):
        main([])


def test_dry_runs_write_nothing(capsys, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    out, printed = tmp_path / "out", ""
    commands = "pretrain shards --preset small,tokenizer task/dev.tsv,export run,quickstart"
    commands += ",prepare task --tokenizer vocabulary,finetune run --task own --data task"
    for words in commands.split(","):
        found = succeed(capsys, *words.split(), "--out", out, "--dry-run").out
        assert "nothing was written" in found
        printed += found
    assert "\nmodel.vocab_size=120\n" in printed  # that of the shards
    assert not out.exists()


def test_what_is_unset_is_none_and_none_unsets(capsys, folder, tmp_path):
    """In each verb, of text and of numbers."""
    verbs = ["finetune run --task own --data task", "pretrain shards", "tokenizer task/dev.tsv"]
    for words in [*verbs, "prepare task --tokenizer vocabulary"]:
        given = [*words.split(), "--out", tmp_path / "out", "--dry-run"]
        with contextlib.chdir(folder):
            lines = succeed(capsys, *given).out.splitlines()
            unset = [line for line in lines if line.endswith("=none")]
            again = succeed(capsys, *given, "--set", *unset).out.splitlines()
        assert not [line for line in lines if line.endswith("=")]
        assert unset
        assert again == lines


def test_dry_runs_import_no_torch(folder):
    commands = ["tokenizer task --out out", "prepare task --tokenizer vocabulary --out out"]
    commands += ["pretrain", "report run --out out.md", "quickstart --out out"]
    code = (
        "import sys; from electra.cli import main\n"
        f"for words in {commands}: main([*words.split(), '--dry-run'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, stdout=subprocess.DEVNULL, check=True)


def test_settings_from_toml_then_from_set(capsys, folder, tmp_path):
    toml = tmp_path / "recipe.toml"
    toml.write_text("[train]\nsteps = 77\nseed = 5\n[optimizer]\nlearning_rate = 1e-4\n")
    words = ["pretrain", folder / "shards", "--out", tmp_path / "out", "--config", toml]
    lines = succeed(capsys, *words, "--set", "train.seed=6", "--dry-run").out.splitlines()
    assert {"train.steps=77", "train.seed=6", "optimizer.learning_rate=0.0001"} <= set(lines)
    toml.write_text("[train]\nstpes = 77\n")
    says = "recipe.toml: unknown field 'stpes' in 'train.stpes'; did you mean 'steps'?"
    refuse_command(says, capsys, *words, "--dry-run")
    toml.write_text("[train\n")
    refuse_command("is not valid TOML", capsys, *words, "--dry-run")


STAGES = {"method.generator_steps": 500, "method.scheme": "two_stage", "method.sharing": "none"}


@pytest.mark.parametrize(
    ("preset", "settings", "warmup_steps"),
    [
        ("small", {"train.steps": 2000}, 200),
        ("small", {"train.steps": 5}, 0),
        ("small", {"train.steps": 200_000}, 10_000),
        ("small", {"train.steps": 2000, "optimizer.warmup_steps": 1000}, 1000),
        ("small", {"train.steps": 2000, **STAGES}, 50),
        ("tiny", {}, 300),
    ],
)
def test_a_short_run_warms_up_for_a_tenth(capsys, tmp_path, preset, settings, warmup_steps):
    """Unless the user says otherwise; what was changed is said."""
    settings = {**settings, "train.device": "cuda"}  # for which nothing is estimated
    words = ["pretrain", "--dry-run", "--preset", preset]
    toml = tmp_path / "recipe.toml"
    toml.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    for more in (["--set", *words_of(settings)], ["--config", toml]):
        printed, err = succeed(capsys, *words, *more)
        assert f"optimizer.warmup_steps={warmup_steps}" in printed.splitlines()
        is_changed = warmup_steps not in (300, 1000, 10_000)
        shortened = f" to {warmup_steps}, a tenth of this run's schedule"
        assert (shortened in " ".join(err.split())) == is_changed


WRITE = ["tokenizer", "prepare", "pretrain", "import", "finetune", "report", "predict", "export"]


@pytest.mark.parametrize("verb", [*WRITE, "embed", "quickstart", "score"])
def test_help_of_every_verb(capsys, verb):
    assert {"--out", "--dry-run"} <= {*succeed(capsys, verb, "--help").out.split()}


def test_flops_of_a_preset(capsys):
    """The table's parts add up to what the last line is made of."""
    printed = succeed(capsys, "flops", "--preset", "small", "--set", "train.steps=1000").out
    assert re.search(r"discriminator: feed-forward +12\.583 +37\.749 +53\.8%", printed)
    assert "true 1.150e+15, paper 1.294e+15" in " ".join(printed.split())


def test_plan_ends_with_the_command_that_comes_next(capsys):
    words = ["--preset", "tiny", "--steps", "10", "--probe-seconds", "0.2"]
    sizes = ["model.vocab_size=200", "model.num_hidden_layers=1", "train.batch_size=2"]
    printed = succeed(capsys, "plan", *words, "--set", *sizes, "train.threads=1").out
    assert re.search(r"steps +10 of 2 x 128", printed)
    assert "electra pretrain SHARDS --preset tiny --out run --set model.vocab_size=200" in printed


@pytest.mark.parametrize("preset", PRESETS)
def test_a_recipe_is_one_word(preset, capsys):
    words = ["pretrain", "--dry-run", "--preset", preset]
    words += ["--set", "train.device=cuda"]  # for which nothing is estimated
    printed = {}
    for recipe in ("paper", "best", None):
        printed[recipe] = succeed(capsys, *words, *(["--recipe", recipe] if recipe else [])).out
    assert "optimizer.matrices=adamw" in printed["paper"]
    assert "optimizer.matrices=muon" in printed["best"]
    is_measured = preset.endswith("tiny") or preset == "mini"
    assert printed[None] == printed["best" if is_measured else "paper"]


def test_version_with_verbose_reports_the_environment(capsys):
    main(["--version", "--verbose"])
    facts = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert facts["electra"].startswith(f"{__version__}, commit ")
    assert facts["torch"].startswith(torch.__version__)
    assert facts["numpy"] == metadata.version("numpy")
    assert {"python", "system", "cores", "transformers"} <= facts.keys()

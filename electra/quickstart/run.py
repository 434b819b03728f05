"""Every command once: corpus, vocabulary, shards, pre-training, fine-tuning, export, report."""

import dataclasses
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from electra.assignments import differences, flatten, to_dict
from electra.checkpoints.folder import read_run_config
from electra.checkpoints.results_files import read_results
from electra.errors import command, require
from electra.files import LOCK, hold, make_folder, new_folder, read_object, write_json
from electra.finetuning.grid import combine, search
from electra.finetuning.loop import ignore
from electra.interop.export import export
from electra.presets import PRESETS, finetune_preset
from electra.pretraining.loop import pretrain
from electra.pretraining.plan import time_step
from electra.pretraining.start import build_model, count_tokens, fit_to_shards
from electra.processes import follow_parent, usable_cores
from electra.quickstart.config import BEGUN, REPORT, QuickstartConfig
from electra.quickstart.harvest import Docstring, harvest, write_jsonl
from electra.quickstart.questions import (
    MIN_PASSAGES,
    MIN_WORDS,
    WINDOW_WORDS,
    PackageQuestion,
    package_question,
    punctuation_question,
    write_passages,
)
from electra.reports.page import write_page
from electra.reports.rendering import to_markdown
from electra.reports.runs import (
    Finetuning,
    finetuning_table,
    heldout_table,
    read_finetuning,
    read_runs,
    read_samples,
)
from electra.reports.tokens import Sentence, count_least_trusted
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare
from electra.shards.store import Shards, open_shards
from electra.terminal.live import Display, Progress
from electra.terminal.printing import (
    print_done,
    print_lines,
    print_note,
    print_step,
    print_table,
    print_tokens,
)
from electra.text.config import TextConfig
from electra.text.documents import Reader
from electra.text.sources import find_sources, name_passed_over
from electra.text.table_files import read_table
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.config import PretrainConfig, longest_warmup
from electra.training.machine import prepare_machine

REFRESH_SECONDS = 0.2
NUM_SUSPECTS = 10
CORPUS = "corpus.jsonl"
PROBE_SECONDS = 2.0
MIN_STEPS = 100
SHOWN_TOKENS = 40
"""Tokens of the sample on the terminal."""
MAX_PASSAGES = 20_000
"""Most lines per file in the question."""
MAX_GROUP, MIN_GROUPS = 20, 20
"""Most neighbouring lines in a group, and fewest groups per file.

A group belongs to train or to test as a whole."""


def quickstart(text: Sequence[str], out: Path, config: QuickstartConfig) -> None:
    """Run all steps, print them, and write their results into the folder `out`.

    Work of an interrupted quickstart with the same text and settings is not done
    again. `text` are the user's files; if empty, the documentation of the installed packages.
    """
    asked = {"text": list(text), **to_dict(config)}
    if out.exists():
        begun = dict(flatten(read_object(out / BEGUN)))
        for name, value in flatten(asked):
            require(
                begun.get(name) == value,
                f"{out} was started with {name}={begun.get(name)}, not {value}: remove it, or "
                "choose another --out",
            )
    corpus, question = _find_corpus(text, out, config, asked)
    began = time.perf_counter()
    with hold(out / LOCK):
        tokenizer = _train_tokenizer(corpus, out, config)
        shards = _prepare(corpus, tokenizer, out, config)
        tasks = _write_questions(question, shards, out, config)
        is_begun = (out / "run" / "config.json").exists()
        settings = read_run_config(out / "run") if is_begun else fit_to_time(config, shards)
        samples = _pretrain(settings, shards, out)
        finetunings = compare(*_plan_comparisons(out, tasks, settings, config)) if tasks else []
        if not (out / "exported").exists():
            scores = to_markdown(finetuning_table(finetunings)) if finetunings else ""
            export(out / "run", out / "exported", scores=scores)
        longer = "--out", "longer-run", "--set", "train.steps=20000"
        next_command = command("pretrain", out / "shards", *longer)
        _report(out, shards, samples, finetunings, next_command)
    minutes = (time.perf_counter() - began) / 60
    print_done(f"wrote {out} in {minutes:.1f} minutes", next_command)


def _find_corpus(
    text: Sequence[str], out: Path, config: QuickstartConfig, asked: Mapping[str, Any]
) -> tuple[list[str], PackageQuestion | None]:
    """Make the folder; return the files of the corpus, and a question where a text is from."""
    docstrings: list[Docstring] = []
    if text:
        sources = find_sources(text, config.prepare)
        if sources.passed_over:
            print_note(name_passed_over(sources.passed_over))
        corpus, what, question = list(text), "files", _ask_about_files(sources.files, config)
    else:
        print_step("corpus: the documentation of Python and its packages (parsed, never run)")
        docstrings = (
            [Docstring(**record) for record in read_table(out / CORPUS).rows]
            if out.exists()
            else _harvest(config)
        )
        require(bool(docstrings), "this Python has no documentation to read; name text with --text")
        corpus, what = [str(out / CORPUS)], "packages"
        question = package_question(docstrings, config.num_packages, config.prepare.seed)
    if not out.exists():
        with new_folder(out) as folder:
            write_json(folder / BEGUN, asked)
            if docstrings:
                write_jsonl(docstrings, folder / CORPUS)
    print_step(
        f"question: which of {len(question.packages)} {what} does a text come from?"
        if question
        else f"no fine-tuning on {what}: it needs two {what} with a few lines of at least "
        f"{MIN_WORDS} words"
    )
    return corpus, question


def _harvest(config: QuickstartConfig) -> list[Docstring]:
    docstrings, num_chars = [], 0
    with Progress("reading", unit="characters") as progress:
        for docstring in harvest(config.max_chars):
            docstrings.append(docstring)
            num_chars += len(docstring.text)
            progress.update(num_chars, config.max_chars)
    return docstrings


def _ask_about_files(files: Sequence[Path], config: QuickstartConfig) -> PackageQuestion | None:
    """Return the question which of the largest files a line is from, or None with too few lines."""
    for file in files:
        require(
            file.is_file(), f"quickstart reads the text several times; save {file} as a file first"
        )
    largest = sorted(files, key=lambda file: file.stat().st_size, reverse=True)
    above = Path(os.path.commonpath([file.absolute().parent for file in files]))
    passages = []
    for file in largest[: config.num_packages]:
        # Labels must be printable. The split depends on them, so they name no folder above.
        label = str(file.absolute().relative_to(above))
        name = "".join(char if char.isprintable() else "\ufffd" for char in label)
        lines = list(itertools.islice(_stream_lines([file], config.prepare), MAX_PASSAGES))
        # Groups keep neighbouring lines together in train or test; small files have small groups.
        group = min(MAX_GROUP, max(1, len(lines) // MIN_GROUPS))
        passages += [
            Docstring(package=name, module=str(number // group), name="", text=line)
            for number, line in enumerate(lines)
        ]
    return package_question(passages, config.num_packages, config.prepare.seed)


def _stream_lines(files: Sequence[Path], config: PrepareConfig) -> Iterator[str]:
    for document in Reader(settings=config, border=config.border).read(files):
        yield from document


def _show_count(items: Iterable[Any], progress: Progress) -> Iterator[Any]:
    number = 0
    for number, item in enumerate(items, start=1):
        progress.update(number, None)
        yield item
    progress.update(number, number, "read; finding the tokens")


def _train_tokenizer(corpus: Sequence[str], out: Path, config: QuickstartConfig) -> Tokenizer:
    read = {name: getattr(config.prepare, name) for name in vars(TextConfig())}
    changed = set_words(TokenizerConfig(), dataclasses.replace(config.tokenizer, **read))
    print_step(command("tokenizer", *corpus, "--out", out / "tokenizer", *changed))
    if (out / "tokenizer").exists():
        return Tokenizer.load(out / "tokenizer")
    with Progress("vocabulary", unit="lines") as progress:
        lines = _stream_lines(find_sources(corpus, config.prepare).files, config.prepare)
        tokenizer = Tokenizer.train(_show_count(lines, progress), config.tokenizer)
    tokenizer.save(out / "tokenizer")
    return tokenizer


def _prepare(
    corpus: Sequence[str], tokenizer: Tokenizer, out: Path, config: QuickstartConfig
) -> Shards:
    folders = "--tokenizer", out / "tokenizer", "--out", out / "shards"
    print_step(command("prepare", *corpus, *folders, *set_words(PrepareConfig(), config.prepare)))
    if (out / "shards").exists():
        return open_shards(out / "shards")
    with Progress("preparing", unit="bytes") as progress:
        manifest = prepare(
            corpus,
            tokenizer,
            out / "shards",
            config.prepare,
            lambda done, total, tokens: progress.update(done, total, f"{tokens:,} tokens"),
        )
    if number := manifest["text"]["files_of_lines"]:
        print_note(f"files with few blank lines or none, each line a document: {number}")
    return open_shards(out / "shards")


def _write_questions(
    question: PackageQuestion | None, shards: Shards, out: Path, config: QuickstartConfig
) -> dict[str, str]:
    """Write the folder of each question; return the name of its task, by folder."""
    tasks = {}
    if question:
        tasks["package"] = "own"
        folder = out / "package"
        make_folder(folder)
        train, dev = question.train[: config.num_labelled], question.test[: config.num_asked]
        for name, part in (("train", train), ("dev", dev)):
            write_jsonl(part, folder / f"{name}.jsonl")
    marks = punctuation_question(shards, config.num_passages, config.num_asked, config.prepare.seed)
    if marks:
        tasks["punctuation"] = "tagging"
        folder = out / "punctuation"
        make_folder(folder)
        write_passages(marks.train, folder / "train.txt")
        write_passages(marks.test, folder / "dev.txt")
        print_step(
            "question: which punctuation mark follows a word? "
            f"({len(marks.train)} labelled passages of the held-out text)"
        )
    else:
        print_step(
            f"no fine-tuning on punctuation: the held-out text has fewer than {MIN_PASSAGES} "
            f"passages of {WINDOW_WORDS} words with a mark"
        )
    return tasks


def fit_to_time(config: QuickstartConfig, shards: Shards) -> PretrainConfig:
    """Return the pre-training settings with the number of steps for this machine.

    A few steps are timed, with several numbers of threads unless the settings have one. Threads
    wait for each other, so that one thread too many on a busy machine takes many times as long. A
    machine that reads less than `min_tokens` in `pretrain_seconds` takes longer, up to
    `max_seconds`. Warm-up and evaluation scale with the number of steps.
    """
    settings = fit_to_shards(config.pretrain, shards)
    train = settings.train
    cores = usable_cores()
    choices = {train.threads} if train.threads else {cores, max(1, cores - 1), -(-cores // 2), 1}
    machine = prepare_machine(train.device, train.precision, train.threads)
    model = build_model(settings, shards.tokenizer, machine, count_tokens(shards))
    taken = {}
    with Progress("timing steps", unit="seconds") as progress:
        for number, threads in enumerate(sorted(choices, reverse=True)):

            def tell(seconds: float, before: float = number * PROBE_SECONDS) -> None:
                progress.update(before + seconds, PROBE_SECONDS * len(choices))

            machine = prepare_machine(train.device, train.precision, threads)
            taken[threads] = time_step(model, settings, machine, PROBE_SECONDS, tell)
    threads, seconds = min(taken.items(), key=lambda pair: pair[1])
    enough = config.min_tokens / (train.batch_size * settings.examples.sequence_length)
    allowed = min(max(config.pretrain_seconds / seconds, enough), config.max_seconds / seconds)
    steps = min(train.steps, max(MIN_STEPS, round(allowed)))
    optimizer = dataclasses.replace(settings.optimizer, warmup_steps=longest_warmup(steps))
    train = dataclasses.replace(
        train,
        steps=steps,
        log_every=50,
        evaluate_every=-(-steps // 4),  # rounded up: no evaluation just before the last
        save_every=-(-steps // 4),
        threads=threads,
    )
    return dataclasses.replace(settings, optimizer=optimizer, train=train)


def _pretrain(settings: PretrainConfig, shards: Shards, out: Path) -> list[Sentence]:
    """Pre-train, and print and return samples of held-out text."""
    changed = set_words(fit_to_shards(PRESETS["tiny"], shards), settings)
    print_step(command("pretrain", out / "shards", "--out", out / "run", *changed))
    if not (out / "run" / "results.json").exists():
        with Display(steps=settings.train.steps) as display:
            pretrain(out / "shards", out / "run", settings, display.show)
    samples = read_samples(out / "run")
    if samples:
        print_step(
            "a held-out text, with the generator's samples and the discriminator's probabilities"
        )
        print_tokens(samples[0][:SHOWN_TOKENS])
    return samples


class Comparison(NamedTuple):
    """One question, asked from one start.

    An encoder of the quickstart's size computes faster in several processes of one thread than in
    one process of several threads.
    """

    search: Callable[..., object]
    """Writes the folder `out`; takes `progress`."""
    out: Path
    runs: int
    """Fine-tunings, of all seeds and learning rates."""

    def count_done(self) -> int:
        """Return the number of fine-tunings that are finished, which have folders."""
        if self.out.exists():
            return self.runs
        done = self.out.with_name(f"{self.out.name}.incomplete").glob("*/seed-*[0-9]")
        return min(len(list(done)), self.runs)


def _plan_comparisons(
    out: Path, tasks: dict[str, str], settings: PretrainConfig, config: QuickstartConfig
) -> tuple[list[Comparison], int]:
    """Print the command of each comparison; return them and how many run at a time."""
    grid = f"learning_rate={config.learning_rates}"  # each start has its own best of them
    threads = config.finetune.threads or settings.train.threads
    num_workers = max(1, min(threads, 2 * len(tasks)))
    comparisons = []
    for (name, task), from_scratch in itertools.product(tasks.items(), (False, True)):
        place, data = out / f"{name}-{'scratch' if from_scratch else 'pretrained'}", out / name
        own = config.finetune.own
        if task == "own":  # the name of another task is that of its folder
            own = dataclasses.replace(own, name=name)
        finetune = dataclasses.replace(config.finetune, threads=threads // num_workers, own=own)
        combinations = combine(finetune, (), [grid])
        comparisons.append(
            Comparison(
                partial(
                    search,
                    *(out / "run", task, data, place, combinations),
                    seeds=config.seeds,
                    from_scratch=from_scratch,
                ),
                place,
                config.seeds * len(combinations),
            )
        )
        words = ["--task", task, "--data", data, "--out", place, "--seeds", config.seeds]
        words += ["--grid", grid, *(["--from-scratch"] if from_scratch else [])]
        preset = dataclasses.replace(finetune_preset(settings.model), reseeds=0)  # that of a grid
        changed = set_words(preset, finetune)
        print_step(command("finetune", out / "run", *words, *changed))
    return comparisons, num_workers


def compare(comparisons: Sequence[Comparison], num_workers: int) -> list[Finetuning]:
    """Run all comparisons, some at a time, and return the best fine-tuning of each."""
    total = sum(each.runs for each in comparisons)
    # A forked process can hang if its parent had threads, as torch has.
    spawn = multiprocessing.get_context("spawn")
    with (
        Progress("fine-tuning", unit="runs") as progress,
        ProcessPoolExecutor(num_workers, spawn, follow_parent) as pool,
    ):
        begun = [each for each in comparisons if not each.out.exists()]
        left = {pool.submit(each.search, progress=ignore) for each in begun}
        try:
            while left:
                finished, left = wait(left, REFRESH_SECONDS, FIRST_EXCEPTION)
                progress.update(sum(each.count_done() for each in comparisons), total)
                for future in finished:
                    future.result()
        except BaseException:  # the pool would wait for the comparisons to finish
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    found = []
    for each in comparisons:
        best = read_results(each.out, "best")["best"]
        found.append(read_finetuning(each.out / best / "results.json"))
    return found


def _report(
    out: Path,
    shards: Shards,
    samples: Sequence[Sentence],
    finetunings: Sequence[Finetuning],
    next_command: str,
) -> None:
    """Write the report, and print its tables and what they say in words."""
    runs = read_runs([out / "run"])
    files = {
        str(out / REPORT): "the report: curves, scores and samples in one file",
        str(out / "run"): "the run: checkpoints, metrics.jsonl, settings",
        str(out / "exported"): "the encoder for transformers (the generator in generator/)",
        str(out / "shards"): "the prepared corpus, for any sequence length",
    }
    write_page(
        out / REPORT,
        runs,
        finetunings=finetunings,
        sentences=samples,
        files=files,
        next_command=next_command,
    )
    print_step("results")
    for table in (heldout_table(runs), finetuning_table(finetunings)):
        if table.rows:
            print_table(table.rows, table.headers)
    print_table(list(files.items()), ["path", "content"])
    verdicts = []
    if samples:
        counts = count_tokens(shards).tolist()
        tokens = shards.tokenizer.tokens(range(len(counts)))
        frequency_of = {
            token: count
            for index, (token, count) in enumerate(zip(tokens, counts, strict=True))
            if index not in shards.tokenizer.special_ids
        }
        verdicts.append(describe_learnt(samples, frequency_of))
    pairs = zip(finetunings[::2], finetunings[1::2], strict=True)
    print_lines([*verdicts, *(describe_gain(*pair) for pair in pairs)])


def describe_learnt(samples: Sequence[Sentence], frequency_of: Mapping[str, float]) -> str:
    """Return a sentence on the tokens that the discriminator trusts least, beside the rarest.

    Tokens without a frequency, the special ones, are left out: they are in every row.
    """
    samples = [[view for view in row if view.token in frequency_of] for row in samples]
    rarity = [
        [view._replace(prob_replaced=-frequency_of[view.token]) for view in row] for row in samples
    ]
    views = [view for row in samples for view in row]
    share = sum(view.is_replaced for view in views) / len(views)
    return (
        f"The generator had replaced {count_least_trusted(samples, NUM_SUSPECTS)} of the "
        f"{NUM_SUSPECTS} held-out tokens that the discriminator trusts least, "
        f"{count_least_trusted(rarity, NUM_SUSPECTS)} of the {NUM_SUSPECTS} rarest tokens, and "
        f"{share:.0%} of all tokens."
    )


def describe_gain(pretrained: Finetuning, scratch: Finetuning) -> str:
    """Return a sentence that compares two fine-tunings on one task.

    A difference counts if it exceeds the two standard deviations together; one seed has none.
    """
    gain = pretrained.median - scratch.median
    told = f"spread {(pretrained.std or 0.0) + (scratch.std or 0.0):.3f}"
    if pretrained.std is None or scratch.std is None:
        verdict, told = "cannot be judged by one seed", "no spread"
    elif not pretrained.differs(scratch):
        verdict = "makes no difference beyond the spread of the seeds"
    else:
        verdict = "pays" if gain > 0 else "hurts"
    return (
        f"On {pretrained.task}, pre-training {verdict}: {pretrained.metric} "
        f"{pretrained.median:.3f} against {scratch.median:.3f} from scratch "
        f"({gain:+.3f}, {told})."
    )


def set_words(default: Any, settings: Any) -> list[str]:
    """Return "--set", "name=value", ... with the settings that differ from the default, or none."""
    changes = [
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, (_, value) in differences(default, settings).items()
    ]
    return ["--set", *changes] if changes else []

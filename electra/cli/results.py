"""What is made of runs and fine-tunings: report, predict, detect, fill and score."""

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from electra.cli.options import DryRun, print_dry_run, refuse_existing, refuse_folder_in_the_way
from electra.errors import require

STDIN = "./-"
"""A lone -, as the entry of the command line hands it on."""


def report(
    folders: tuple[Path, ...],
    *,
    out: Path,
    dry_run: DryRun = False,
) -> None:
    """Write a self-contained HTML page about runs and their fine-tunings, or tables in Markdown.

    Example: electra report run cola --out report.html

    Parameters
    ----------
    folders
        Run folders and fine-tuning folders, in any order.
    out
        The file to write: an HTML page, or tables alone if its name ends with .md.
    """
    from electra.reports.page import write_page
    from electra.reports.runs import read_finetuning, read_runs, read_samples
    from electra.terminal.printing import command, print_done

    require(not out.is_dir(), f"{out} is a folder; name a file, as {out / 'report.html'}")
    refuse_folder_in_the_way(out)
    if dry_run:
        return print_dry_run(None, f"read {', '.join(map(str, folders))} and write {out}")
    runs = [folder for folder in folders if (folder / "metrics.jsonl").exists()]
    finetunings = [
        read_finetuning(folder / "results.json") for folder in folders if folder not in runs
    ]
    require(bool(runs), "report needs at least one run folder of `electra pretrain`")
    if out.suffix == ".md":
        from electra.files import write_text
        from electra.reports.runs import write_tables

        require(
            not out.exists() or out.read_text("utf-8", "replace").startswith("| "),
            f"{out} is there and does not begin with a table; choose another --out",
        )
        write_text(out, write_tables(read_runs(runs), finetunings))
        return print_done(f"wrote {out}")
    export_it = command("export", runs[0], "--out", "exported")
    write_page(
        out,
        read_runs(runs),
        finetunings=finetunings,
        sentences=read_samples(runs[0]),
        files={str(folder): "read" for folder in folders},
        next_command=export_it,
    )
    print_done(f"wrote {out}", export_it)


def predict(
    run: Path,
    *,
    input_: Annotated[Path, Parameter(name="--input")],
    out: Path | None = None,
    seed: int | None = None,
    columns: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    dry_run: DryRun = False,
) -> None:
    """Answer the inputs of a file with a fine-tuned model: one line per input, in their order.

    No labels are needed. Texts and pairs of texts are read from a table with the columns that
    training had; single texts also from a .txt file, one per line. Sentences to tag are read from
    CoNLL's columns, from JSON lines with `tokens`, or from a .txt file, one per line with spaces
    between the words. Questions are read from files of SQuAD or MRQA, or from a table with
    `question` and `context`. Blank lines are skipped.

    Example: electra predict cola --input texts.tsv --out answers.tsv

    Parameters
    ----------
    run
        A folder that `electra finetune` wrote.
    input_
        The file of inputs; - is standard input, one text per line.
    out
        The .jsonl or .tsv file to write. Without it, JSON lines go to standard output.
    seed
        The seed whose model answers; if not given, the one with the best score on dev.
    columns
        The columns to read, if they are not named as in training: that of the text, of both texts,
        or of question and context. Of CoNLL's columns, the number of the word's, from 1.
    """
    from electra.checkpoints.folder import read_finetuned
    from electra.inference.predict import ANSWER_FORMATS, list_json, load_model, write_answers
    from electra.inference.texts import check_answer_file
    from electra.tasks.registry import read_records
    from electra.terminal.live import Progress
    from electra.terminal.printing import print_done, print_lines, print_note

    finetuned = read_finetuned(run, seed)
    if out is not None:
        check_answer_file(out, ANSWER_FORMATS)
        refuse_folder_in_the_way(out)
    records = read_records(finetuned.facts, input_, columns)
    count = len(records)
    if dry_run:
        where = out or "standard output"
        return print_dry_run(
            None, f"answer {count:,} inputs of {input_} with seed {finetuned.seed} to {where}"
        )
    model = load_model(finetuned)
    with Progress("predicting", unit="rows") as progress:
        answers = model.answer(records, progress.update)
    if answers.num_cut:
        print_note(
            f"{answers.num_cut:,} of {count:,} inputs were longer than the run's rows of "
            f"{model.sequence_length} tokens and were cut"
        )
    if out is None:
        return print_lines(list_json(answers))
    write_answers(out, answers)
    print_done(f"wrote {out}: {count:,} answers of seed {finetuned.seed} of {run}")


def detect(
    model: Path,
    text: str | None = None,
    *,
    input_: Annotated[Path | None, Parameter(name="--input")] = None,
    threshold: float = 0.5,
    json: bool = False,
) -> None:
    """Show which words of a text look replaced to a discriminator, with their probabilities.

    A word is as suspicious as the most suspicious of its pieces. Of ordinary text a discriminator
    suspects little; its order says more than the threshold, so the least trusted words are listed,
    too.

    Example: electra detect run "the chef ate the meal that the guests had spoken"

    Parameters
    ----------
    model
        A run folder that `electra pretrain` wrote, or a Hugging Face folder of ELECTRA.
    text
        The text; - is standard input. Without it, --input.
    input_
        A file with one text per line; - is standard input.
    threshold
        Probability from which a word is marked.
    json
        Whether to print one JSON object per text, with the place and probability of each word.
    """
    from electra.inference.ask import detect as run_detect
    from electra.inference.ask import load_asked
    from electra.terminal.live import Progress
    from electra.terminal.printing import print_lines, print_words

    require(0 <= threshold <= 1, f"threshold must lie in 0 to 1, not {threshold}")
    texts = _read_texts(text, input_)
    network = load_asked(model, "replaced")
    if input_ is None:
        found = run_detect(network, texts)
    else:
        with Progress("judging", unit="rows") as progress:
            found = run_detect(network, texts, progress.update)
    for each, words in zip(texts, found, strict=True):
        if json:
            print_lines([_dump({"text": each, "words": list(map(asdict, words))})])
        else:
            print_words(each, words, threshold)


def fill(
    model: Path,
    text: str | None = None,
    *,
    input_: Annotated[Path | None, Parameter(name="--input")] = None,
    top: int = 5,
    json: bool = False,
) -> None:
    """Show the most probable tokens for each [MASK] of a text, by the generator.

    Example: electra fill run "the chef [MASK] the meal"

    Parameters
    ----------
    model
        A run folder that `electra pretrain` wrote, or a Hugging Face folder of ELECTRA's generator
        or of an export, which has it inside.
    text
        The text, with at least one [MASK]; - is standard input. Without it, --input.
    input_
        A file with one text per line; - is standard input.
    top
        Number of tokens for each [MASK].
    json
        Whether to print one JSON object per text, with the tokens and probabilities of each gap.
    """
    from electra.inference.ask import fill as run_fill
    from electra.inference.ask import load_asked
    from electra.terminal.printing import print_lines, print_table

    texts = _read_texts(text, input_)
    answers = run_fill(load_asked(model, "tokens"), texts, top)
    for each, gaps in zip(texts, answers, strict=True):
        if json:
            print_lines([_dump({"text": each, "gaps": [list(map(asdict, gap)) for gap in gaps]})])
            continue
        rows = [
            (number, candidate.token, f"{candidate.prob:.1%}")
            for number, gap in enumerate(gaps, start=1)
            for candidate in gap
        ]
        print_table(rows, ("gap", "token", "probability"))


def _dump(value: object) -> str:
    return dumps(value, ensure_ascii=False)


def _read_texts(text: str | None, path: Path | None) -> list[str]:
    from electra.inference.texts import read_sentences

    if text == STDIN:
        text, path = None, Path(STDIN)
    require((text is None) != (path is None), "give either a text or --input FILE")
    return read_sentences(path) if path else [text or ""]


def score(
    run: Path,
    *,
    text: Path | None = None,
    pairs: Path | None = None,
    network: Literal["kept", "generator"] = "kept",
    out: Path,
    dry_run: DryRun = False,
) -> None:
    """Write the pseudo-log-likelihoods of sentences, or how often the better of two is preferred.

    A pseudo-log-likelihood is the sum of log p(token | the other tokens) over the tokens of a
    sentence: the higher, the more likely the sentence. Electric estimates it in one pass, up to a
    constant per token; a masked language model needs a pass for each token; a discriminator sums
    log p(token is original). With --text the columns of the file are pll, tokens (their number) and
    text. With --pairs the file has the share of pairs whose good sentence has the higher sum, for
    each kind of pairs and on average.

    Example: electra score run --text sentences.txt --out scores.tsv

    Example: electra score run --pairs blimp.jsonl --out blimp.json

    Parameters
    ----------
    run
        A run folder of `electra pretrain`.
    text
        A text file with one sentence per line.
    pairs
        A .jsonl, .tsv or .csv file with the columns sentence_good, sentence_bad and UID (the kind
        of pair), as BLiMP's.
    network
        kept: the network that pre-training returns. generator: the run's generator.
    out
        The file to write: .tsv for --text, .json for --pairs.
    """
    from electra.files import write_json
    from electra.inference.score import (
        compare_pairs,
        load_scorer,
        read_pairs,
        write_scores,
    )
    from electra.inference.texts import read_sentences
    from electra.terminal.live import Progress
    from electra.terminal.printing import print_done

    require((text is None) != (pairs is None), "score needs either --text FILE or --pairs FILE")
    found = read_pairs(pairs) if pairs else None
    sentences = [*found.good, *found.bad] if found else read_sentences(text or Path())
    refuse_existing(out)
    refuse_folder_in_the_way(out)
    if dry_run:
        return print_dry_run(
            None, f"score {len(sentences):,} lines of {text or pairs} with {run} and write {out}"
        )
    scorer = load_scorer(run, network)
    with Progress("scoring", unit="tokens") as progress:
        scores = scorer.score(sentences, progress.update)
    if found:
        half = len(found.good)
        result = compare_pairs(found, scores[:half], scores[half:])
        write_json(out, {**scorer.origin, "pairs": half, **result})
        return print_done(
            f"wrote {out}: the good sentence of {half:,} pairs is preferred in "
            f"{result['accuracy']:.1%}, mean of {len(result['kinds'])} kinds"
        )
    write_scores(out, scores)
    mean = sum(each.pll for each in scores) / sum(each.num_tokens for each in scores)
    print_done(f"wrote {out}: {len(scores):,} lines, {mean:.3f} a token on average")

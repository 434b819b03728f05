"""A model asked: detect and fill; predict, score and embed, of texts in memory or of a file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from electra.errors import UserError, count_of, import_extra, require, require_choice
from electra.files import make_folder, write_json
from electra.terminal.live import Progress
from electra.terminal.printing import (
    print_done,
    print_json,
    print_lines,
    print_note,
    print_table,
    print_words,
)
from electra.verbs.arguments import as_list, as_path, refuse_file
from electra.verbs.models import Asked, Model, load, open_model
from electra.verbs.options import DryRun, Place, Planned, Precision, Words, verb

if TYPE_CHECKING:
    import numpy as np

    from electra.inference.ask import Candidate
    from electra.inference.embed import Units
    from electra.inference.predict import FinetunedModel
    from electra.inference.score import Score
    from electra.reports.tokens import Word

Pooling = Literal["mean", "cls"]
Network = Literal["kept", "generator", "corrector"]
STDIN = "./-"
"""A lone -, as the entry of the command line hands it on."""


def predict(model: Asked, records: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the answer to each record, as `predict_file` writes it; long texts are cut.

    The values of an answer to a record without any text are None.

    Args:
        model: A fine-tuned model, or its folder.
        records: Dictionaries with the fields of the task, as `{"text": "..."}`; see
            `FinetunedModel.answer`.
    """
    return open_model(model).finetuned.answer(as_list(records)).records


@verb
def predict_file(
    run: Place,
    *,
    input: Place,
    out: Place | None = None,
    seed: int | None = None,
    columns: Words = (),
    keep: bool = False,
    precision: Precision = None,
    dry_run: DryRun = False,
) -> list[dict[str, Any]]:
    """Answer the inputs of a file with a fine-tuned model: one line per input, in their order.

    An input without any text, such as a blank line, has a line with empty fields, and a note counts
    these lines.

    No labels are needed. Texts and pairs of texts are read from a table with the same columns as in
    training; single texts also from a .txt file, one per line. Sentences to tag are read from
    CoNLL's columns, from JSON lines with `tokens`, or from a .txt file, one sentence per line, with
    spaces between the words. Questions are read from files in the format of SQuAD or MRQA, or from
    a table with `question` and `context`.

    Example: electra predict cola --input texts.tsv --keep --out answers.tsv

    Args:
        run: A folder that `electra finetune` wrote.
        input: The file of inputs; - is standard input, one text per line.
        out: The .jsonl or .tsv file to write. Without it, JSON lines go to standard output.
        seed: The seed whose model answers; if not given, the one with the best score on dev.
        columns: Names of the columns to read, if they differ from training: the text, both texts,
            or question and context. For CoNLL's columns, the number of the word's column, from 1.
        keep: Whether each answer also has all columns of its input, before its own.

    Returns:
        The answers, as records.
    """
    from electra.checkpoints.finetuned import read_finetuned
    from electra.inference import predict as predicting
    from electra.tasks.registry import read_inputs

    finetuned, out = read_finetuned(Path(run), seed), as_path(out)
    if out is not None:
        refuse_file(out, predicting.ANSWER_FORMATS)
    inputs = read_inputs(finetuned.facts, Path(input), as_list(columns))
    count = len(inputs.records)
    who = f"seed {finetuned.seed} of {finetuned.folder}"
    if dry_run:
        what = f"{count_of(count, 'input')} of {input}"
        raise Planned(None, f"answer {what} with {who} to {out or 'standard output'}")
    model = predicting.load_model(finetuned, precision=precision or "float32")
    with Progress("predicting", unit="rows") as progress:
        answers = model.answer(inputs.records, progress.update)
    _note_blank(answers.blank, "has no answer: its fields are empty")
    if keep:
        answers = predicting.keep_columns(inputs.rows, answers)
    _note_cut(answers.num_cut, count, model)
    if out is None:
        print_lines(predicting.list_json(answers))
    else:
        predicting.write_answers(out, answers)
        print_done(f"wrote {out}: {count_of(count, 'answer')} of {who}")
    return answers.records


def _note_cut(num_cut: int, count: int, model: "FinetunedModel") -> None:
    if num_cut:
        was, length = "was" if num_cut == 1 else "were", model.sequence_length
        most = model.network.family.max_tokens(length)
        room = f"windows ({most:,} tokens)" if most > length - 2 else f"rows of {length} tokens"
        print_note(
            f"{num_cut:,} of {count:,} inputs {was} longer than the run's {room} and {was} cut"
        )


def _note_blank(numbers: Iterable[int], what: str) -> None:
    """Print which inputs, by their number from 1, hold no text, and what follows."""
    if listed := list(map(str, numbers)):
        first = ", ".join(listed[:5]) + (", ..." if len(listed) > 5 else "")
        print_note(f"{count_of(len(listed), 'input')} without text ({first}): each {what}")


@verb
def detect(
    model: Asked,
    text: str | Sequence[str] | None = None,
    *,
    input: Place | None = None,
    threshold: float | None = None,
    json: bool = False,
    precision: Precision = None,
) -> "list[list[Word]]":
    """Show which words of a text look replaced to a discriminator, with their probabilities.

    A word's probability is the highest among its pieces. In ordinary text few words reach the
    threshold, and their order is more informative, so the most suspicious words are also listed. In
    scripts without spaces between words, such as Thai, Khmer or Japanese, each token is a word.

    Example: electra detect english-tiny "the chef ate the meal that the guests had spoken"

    Args:
        model: A run folder that `electra pretrain` wrote, a Hugging Face folder, or english-tiny,
            which comes with the package.
        text: The text (in a script, a list of texts); - is standard input. If not given, --input is
            read.
        input: A file with one text per line, or a table with the column text; - is standard input.
        threshold: Probability from which a word is marked; 0.5 if not given.
        json: Whether to print one JSON object per text, with the place and probability of each
            word; a blank line has none.

    Returns:
        The words of each text, with their places and probabilities.
    """
    from electra.inference.ask import detect as run_detect

    require(threshold is None or not json, "--json marks no words; leave --threshold out")
    threshold = 0.5 if threshold is None else threshold
    require(0 <= threshold <= 1, f"threshold must be 0 to 1, not {threshold}")
    texts = read_asked(text, input)
    network = open_model(model, precision).discriminator
    if input is None:
        found = run_detect(network, texts)
    else:
        with Progress("judging", unit="rows") as progress:
            found = run_detect(network, texts, progress.update)
    for each, words in zip(texts, found, strict=True):
        if json:
            print_json({"text": each, "words": list(map(asdict, words))})
        else:
            print_words(each, words, threshold)
    return found


@verb
def fill(
    model: Asked,
    text: str | Sequence[str] | None = None,
    *,
    input: Place | None = None,
    top: int = 5,
    json: bool = False,
    precision: Precision = None,
) -> "list[list[list[Candidate]]]":
    """Show the generator's most probable tokens for each [MASK] in a text.

    Example: electra fill english-tiny "the chef [MASK] the meal"

    Args:
        model: A run folder that `electra pretrain` wrote, a Hugging Face folder of a generator, an
            export with a generator inside, or english-tiny.
        text: The text (in a script, a list of texts), with at least one [MASK]; - is standard
            input. If not given, --input is read.
        input: A file with one text per line, or a table with the column text; - is standard input.
        top: Number of tokens for each [MASK].
        json: Whether to print one JSON object per text, with the tokens and probabilities of each
            gap; a blank line has none.

    Returns:
        The tokens for each [MASK] of each text, the most probable first.
    """
    from electra.inference.ask import fill as run_fill

    texts = read_asked(text, input)
    answers = run_fill(open_model(model, precision).generator, texts, top)
    for each, gaps in zip(texts, answers, strict=True):
        if json:
            print_json({"text": each, "gaps": [list(map(asdict, gap)) for gap in gaps]})
            continue
        rows = [
            (number, candidate.token, f"{candidate.prob:.1%}")
            for number, gap in enumerate(gaps, start=1)
            for candidate in gap
        ]
        print_table(rows, ("gap", "token", "probability"))
    return answers


def read_asked(text: str | Sequence[str] | None, path: Place | None) -> Sequence[str]:
    """Return the texts that are given, or those of a file; refuse both and neither."""
    from electra.text.table_files import read_texts

    if text == STDIN:
        text, path = None, STDIN
    require((text is None) != (path is None), "give either a text or --input FILE")
    if path is not None:
        return read_texts(Path(path))
    return _list_texts([text] if isinstance(text, str) else text or ())


def _list_texts(texts: Sequence[str]) -> list[str]:
    listed = as_list(texts)
    wrong = [each for each in listed if not isinstance(each, str)]
    require(not wrong, f"a text is a str, not {wrong[:1]}")
    return listed


def _find_blank(texts: Sequence[str]) -> list[int]:
    """Return the numbers, from 1, of the texts that hold nothing but white space."""
    return [number for number, text in enumerate(texts, 1) if not text.strip()]


def score(model: Asked, sentences: Sequence[str], *, network: Network = "kept") -> "list[Score]":
    """Return the pseudo-log-likelihood of each sentence, with its tokens; as `score_file`.

    Args:
        model: A run, an export or another Hugging Face folder.
        sentences: The sentences; a blank one has a sum of NaN.
        network: As for `score_file`.
    """
    from electra.inference.score import load_scorer

    require_choice("network", network, get_args(Network))
    opened = open_model(model)
    is_kept = network == "kept"
    scorer = opened.scorer if is_kept else load_scorer(opened.folder, network, opened.precision)
    return scorer.score(_list_texts(sentences))


@verb
def score_file(
    run: Place,
    *,
    text: Place | None = None,
    pairs: Place | None = None,
    network: Network = "kept",
    out: Place,
    precision: Precision = None,
    dry_run: DryRun = False,
) -> "list[Score]":
    """Write the pseudo-log-likelihoods of sentences, or how often the better of two is preferred.

    A pseudo-log-likelihood is the sum of log p(token | the other tokens) over the tokens of a
    sentence: the higher, the more likely the sentence. Electric estimates this sum in one pass, up
    to a constant per token. A masked language model needs a pass for each token. A causal model
    sums log p(token | the tokens before), and a discriminator log p(token is original). With
    --text, the columns of OUT are pll, tokens (number of tokens) and text. With --pairs, OUT holds
    the share of pairs whose good sentence has the higher sum, for each kind of pair and on average.

    Example: electra score run --text sentences.txt --out scores.tsv

    Example: electra score run --pairs blimp.jsonl --out blimp.json

    Args:
        run: A run folder of `electra pretrain`, one of its checkpoints, a Hugging Face folder, such
            as an export, or english-tiny.
        text: A file with one sentence per line, or a table with the column text; a blank one has no
            sum.
        pairs: A .jsonl, .tsv or .csv file with the columns sentence_good, sentence_bad and UID (the
            kind of pair), as BLiMP's.
        network: kept: the network that pre-training returns. generator: the run's generator.
            corrector: the softmax that cocolm trains along with its discriminator, in one pass.
        out: The file to write: .tsv for --text, .json for --pairs.

    Returns:
        The score of each sentence; of pairs those of the good ones, then those of the bad ones.
    """
    from electra.checkpoints.folder import read_sizes
    from electra.inference import score as scoring
    from electra.text.table_files import read_texts

    require((text is None) != (pairs is None), "score needs either --text FILE or --pairs FILE")
    run, out = Path(run), Path(out)
    found = scoring.read_pairs(Path(pairs)) if pairs else None
    sentences = [*found.good, *found.bad] if found else read_texts(Path(text or ""))
    refuse_file(out, (".json",) if pairs else (".tsv",))
    if dry_run:
        read_sizes(run)
        what = f"{count_of(len(sentences), 'line')} of {text or pairs}"
        raise Planned(None, f"score {what} with {run} and write {out}")
    scorer = scoring.load_scorer(run, network, precision or "float32")
    make_folder(out.parent)
    with Progress("scoring", unit="rows") as progress:
        scores = scorer.score(sentences, progress.update)
    if found:
        result = scoring.compare_pairs(found, scores)
        write_json(out, {**scorer.origin, **result})
        _print_preferred(out, result)
        return scores
    scoring.write_scores(out, scores)
    _note_blank(_find_blank(sentences), "has no sum")
    scored = [each for each in scores if each.num_tokens]
    mean = sum(each.pll for each in scored) / sum(each.num_tokens for each in scored)
    print_done(f"wrote {out}: {count_of(len(scores), 'line')}, {mean:.3f} a token on average")
    return scores


def _print_preferred(out: Path, result: dict[str, Any]) -> None:
    """Print how often the good sentence of a pair is preferred, by kind and on average."""
    kinds = result["kinds"].items()
    rows = [(kind, each["pairs"], f"{each['accuracy']:.1%}") for kind, each in kinds]
    print_table(rows, ("kind", "pairs", "preferred"))
    print_done(
        f"wrote {out}: the good sentence of {count_of(result['pairs'], 'pair')} is preferred in "
        f"{result['accuracy']:.1%}, mean of {count_of(len(kinds), 'kind')}"
    )


def embed(
    model: Asked, texts: Sequence[str], *, layer: int | None = None, pooling: Pooling | None = None
) -> "np.ndarray":
    """Return an embedding of each text (texts, H), float32; as `embed_file`.

    Args:
        model: Any model, or its folder.
        texts: The texts; a blank one has an embedding of NaN.
        layer: Layer whose states are pooled; 0: the embeddings of tokens; None: the last layer.
        pooling: mean: the mean over all positions. cls: the state of [CLS]. None: mean. If neither
            layer nor pooling is given, a retrieval model returns the vectors that `search`
            compares.
    """
    from electra.inference.embed import embed as run_embed

    opened, texts = open_model(model), _list_texts(texts)
    if layer is None and pooling is None and opened.is_retrieval:
        return opened.searcher.embed(texts)[0]
    pooling = pooling or "mean"
    require_choice("pooling", pooling, get_args(Pooling))
    return run_embed(opened.encoder, texts, layer=layer, pooling=pooling)


def encode(
    model: Asked,
    texts: Sequence[str],
    *,
    unit: Literal["word", "token"] = "token",
    layer: int | None = None,
) -> "list[Units]":
    """Return the hidden states of each text's tokens or words, with their places in the text.

    Args:
        model: Any model, or its folder.
        texts: The texts.
        unit: token: the state of each token. word: the mean over the tokens of each word.
        layer: Layer whose states are taken; 0: the embeddings of tokens; None: the last layer.
    """
    from electra.inference.embed import embed_units

    require_choice("unit", unit, ("word", "token"))
    return embed_units(open_model(model).encoder, _list_texts(texts), unit=unit, layer=layer)


@verb
def embed_file(
    model: Place,
    *,
    input: Place,
    out: Place,
    unit: Literal["text", "word", "token"] = "text",
    layer: int | None = None,
    pooling: Pooling | None = None,
    column: str | None = None,
    precision: Precision = None,
    dry_run: DryRun = False,
) -> int:
    """Write an embedding of each text of a file, or of its words or tokens.

    The last layer of a discriminator is the worst for similarity; `electra export --as
    sentence-transformers` chooses a better one on a dev set. Texts that are longer than the model's
    rows are embedded in pieces. A blank line has an embedding of NaN, and no words or tokens. For
    texts, a retrieval model writes the vectors that `electra search` compares, unless --layer or
    --pooling is given; these cover only the beginning of a longer text.

    Example: electra embed run --input texts.txt --out embeddings.npy

    Example: electra embed run --input texts.txt --unit word --layer 1 --out words.parquet

    Args:
        model: A run folder or one of its checkpoints, a Hugging Face folder, a folder of `electra
            finetune`, or english-tiny.
        input: A text file with one text per line, or a .tsv, .csv, .jsonl or .parquet table; - is
            standard input.
        out: The file to write. A .npy file of texts has a row for each; of words and tokens, an
            element with row, start, end and embedding. A .parquet file has these as columns, and
            the text.
        unit: The unit that is embedded; the embedding of a word is the mean over its tokens.
        layer: Layer whose states are taken; 0: the embeddings; if not given, the last layer.
        pooling: mean: a text is the mean over its positions, the default. cls: the state
            of [CLS].
        column: The column of a table that holds the texts; if not given, text.

    Returns:
        The number of embeddings.
    """
    from electra.checkpoints.folder import read_sizes
    from electra.inference.embed import FORMATS, write_embeddings
    from electra.text.table_files import read_texts

    if unit != "text" and pooling == "cls":
        raise UserError(f"--pooling {pooling} is for --unit text: a {unit} has no [CLS]")
    model, out = Path(model), Path(out)
    refuse_file(out, FORMATS)
    if out.suffix.lower() == ".parquet":
        import_extra("pyarrow", "parquet", f"writing {out}")
    texts = read_texts(Path(input), column)
    size = read_sizes(model).hidden_size
    if dry_run:
        raise Planned(None, f"embed {count_of(len(texts), 'text')} of {input} and write {out}")
    opened, cuts = load(model, precision=precision or "float32"), [0]
    encode, facts = _choose_encoding(opened, unit, layer, pooling, cuts.append)
    with Progress("embedding", unit="texts") as progress:
        how: Any = {"size": size, "facts": facts, "progress": progress.update}
        count = write_embeddings(out, encode, texts, **how)
    _note_blank(_find_blank(texts), "has NaN" if unit == "text" else f"has no {unit}")
    if sum(cuts):
        _note_cut(sum(cuts), len(texts), opened.searcher.model)
    told = f"{count_of(count, 'embedding')} of {count_of(size, 'number')}"
    print_done(f"wrote {out}: {told}, one for each {unit}")
    return count


def _choose_encoding(
    opened: Model,
    unit: Literal["text", "word", "token"],
    layer: int | None,
    pooling: Pooling | None,
    tell_cut: Callable[[int], None],
) -> "tuple[Callable[[Sequence[str]], np.ndarray | list[Units]], dict[str, Any]]":
    """Return what embeds texts or their units and counts those that it cut, and how it does so."""
    from electra.inference.embed import embed as run_embed
    from electra.inference.embed import embed_units

    if unit == "text" and layer is None and pooling is None and opened.is_retrieval:
        network = opened.searcher.model.network
        how = {"layer": len(network.encoder.layers), "pooling": network.head.pooling}

        def encode(texts: Sequence[str]) -> "np.ndarray":
            vectors, num_cut = opened.searcher.embed(texts)
            tell_cut(num_cut)
            return vectors

        return encode, {"unit": unit, **how, "is_normalised": True}
    layer, pooling = opened.encoder.num_layers if layer is None else layer, pooling or "mean"
    facts = {"unit": unit, "layer": layer, "pooling": pooling}
    if unit == "text":
        return partial(run_embed, opened.encoder, layer=layer, pooling=pooling), facts
    return partial(embed_units, opened.encoder, unit=unit, layer=layer), facts

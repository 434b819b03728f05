"""What leaves for other programs: embed and export."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from electra.cli.options import DryRun, print_dry_run, refuse_existing, refuse_folder_in_the_way
from electra.errors import require


def embed(
    model: Path,
    *,
    input_: Annotated[Path, Parameter(name="--input")],
    out: Path,
    unit: Literal["text", "word", "token"] = "text",
    layer: int | None = None,
    pooling: Literal["mean", "cls"] = "mean",
    column: str | None = None,
    dry_run: DryRun = False,
) -> None:
    """Write an embedding of each text of a file, or of its words or tokens.

    The last layer of a discriminator is the worst for similarity; `electra export --as
    sentence-transformers` chooses a better one on a dev set. Texts that are longer than the model's
    rows are embedded in pieces.

    Example: electra embed run --input texts.txt --out embeddings.npy

    Example: electra embed run --input texts.txt --unit word --layer 1 --out words.parquet

    Parameters
    ----------
    model
        A run folder or one of its checkpoints, a Hugging Face folder of ELECTRA, or a folder of
        `electra finetune`.
    input_
        A text file with one text per line, or a .tsv, .csv, .jsonl or .parquet table; - is standard
        input. Blank lines are skipped.
    out
        The file to write. A .npy file of texts has a row for each; of words and tokens, an element
        with row, start, end and embedding. A .parquet file has these as columns, and the text.
    unit
        What is embedded; the embedding of a word is the mean over its tokens.
    layer
        Layer, from 1, whose states are taken; if not given, the last.
    pooling
        mean: a text is the mean over its positions. cls: the state of [CLS].
    column
        The column of a table that holds the texts; if not given, text.
    """
    from electra.inference.embed import check_format, write_embeddings
    from electra.inference.network import load_encoder
    from electra.inference.texts import read_texts
    from electra.terminal.live import Progress
    from electra.terminal.printing import print_done

    require(
        unit == "text" or pooling == "mean",
        f"--pooling {pooling} is for --unit text: a {unit} has no [CLS]",
    )
    check_format(out)
    refuse_folder_in_the_way(out)
    texts = read_texts(input_, column)
    if dry_run:
        return print_dry_run(None, f"embed {len(texts):,} texts of {input_} and write {out}")
    network = load_encoder(model)
    with Progress("embedding", unit="texts") as progress:
        count = write_embeddings(
            *(out, network, texts),
            unit=unit,
            layer=layer,
            pooling=pooling,
            progress=progress.update,
        )
    size = network.encoder.config.hidden_size
    print_done(f"wrote {out}: {count:,} embeddings of {size} numbers, one for each {unit}")


def export(
    run: Path,
    *,
    out: Path,
    as_: Annotated[
        Literal["huggingface", "bert", "sentence-transformers"], Parameter(name="--as")
    ] = "huggingface",
    onnx: bool = False,
    int8: Path | None = None,
    dev: Path | None = None,
    columns: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    scores: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    seed: int | None = None,
    dry_run: DryRun = False,
) -> None:
    """Write a pre-trained or fine-tuned model for other programs, with a model card.

    For a pre-training run, transformers loads OUT as AutoModelForPreTraining, AutoModel and
    AutoTokenizer, and OUT/generator as AutoModelForMaskedLM. For a fine-tuning it loads OUT as
    AutoModelForSequenceClassification, AutoModelForTokenClassification,
    AutoModelForQuestionAnswering or AutoModelForMultipleChoice, which gives the answers of `electra
    predict`. Where transformers has no class with the model's head, OUT is the encoder, with the
    head in a file beside it and lines in the card that use both; ONNX holds the whole network.
    The folders work without electra. What --as and --onnx write is compared with the original, and
    refused if it does not agree.

    Example: electra export run --out exported

    Example: electra export run --as sentence-transformers --dev glue/STS-B --out sentences

    Example: electra export run --onnx --int8 texts.txt --out exported

    Parameters
    ----------
    run
        A run folder that `electra pretrain` wrote, one of its checkpoints, a folder of `electra
        finetune`, or a Hugging Face folder of ELECTRA or ModernBERT, such as `electra import`
        writes.
    out
        The folder to write.
    as_
        huggingface: the classes of ELECTRA, or of ModernBERT. bert: those of BERT, of the same
        graph as ELECTRA with embeddings as wide as hidden states. sentence-transformers: the layer
        and the pooling whose cosines agree best with --dev.
    onnx
        Write onnx/model.onnx, too, with batch and length of any size.
    int8
        Write onnx/model_int8.onnx, too; a file of real text, one per line, on which the decisions
        are compared.
    dev
        Pairs of sentences with scores, as the dev set of STS-B: a table, or a folder with dev.tsv.
    columns
        The columns of --dev: two sentences and their score; if not given, sentence1, sentence2 and
        score.
    scores
        Folders of fine-tunings for the card of a run. Those beside the run are found.
    seed
        Of a fine-tuning, the seed whose model is written; if not given, the one with the best score
        on dev.
    """
    from electra.checkpoints.checkpoint import run_of
    from electra.checkpoints.folder import (
        is_finetuned,
        is_huggingface,
        read_finetuned,
        read_run_config,
    )

    is_similarity = as_ == "sentence-transformers"
    require(
        is_similarity == (dev is not None),
        "--as sentence-transformers and --dev go together: a dev set chooses the layer",
    )
    require(dev is not None or not columns, "--columns are those of --dev")
    settings: object = None
    if is_finetuned(run):
        model = read_finetuned(run, seed)
        settings, source = model.config, f"seed {model.seed} of {run}"
    else:
        require(seed is None, f"--seed is for a folder of `electra finetune`, which {run} is not")
        source = str(run)
        settings = None if is_huggingface(run) else read_run_config(run_of(run))
    refuse_existing(out)
    if dry_run:
        return print_dry_run(settings, f"read {source} and write {out}")
    from electra.checkpoints.names import DISCRIMINATOR_FILE, HEAD_FILE
    from electra.inference.similarity import COLUMNS
    from electra.library import export as run_export
    from electra.terminal.live import Progress
    from electra.terminal.printing import print_done

    progress = Progress("choosing the layer", unit="sentences")
    with progress if is_similarity else nullcontext():
        architecture, similarity = run_export(
            *(run, out),
            form=as_,
            onnx=onnx,
            int8=int8,
            dev=dev,
            columns=columns or COLUMNS,
            scores=scores,
            seed=seed,
            progress=progress.update,
        )
    if similarity:
        best, last = similarity.best, similarity.last
        return print_done(
            f"wrote {out}: layer {best.layer}, {best.pooling}, with Spearman {best.spearman:.3f}; "
            f"the last of {last.layer} layers has {last.spearman:.3f}",
            f'python -c "from sentence_transformers import SentenceTransformer as Model; '
            f"Model('{out}')\"",
        )
    generator = f" and {out / 'generator'}" if (out / "generator").is_dir() else ""
    heads = [name for name in (HEAD_FILE, DISCRIMINATOR_FILE) if (out / name).is_file()]
    beside = "".join(f", with its head in {name}" for name in heads)
    print_done(
        f"wrote {out}{generator}: {source} as {architecture}{beside}",
        f'python -c "from transformers import {architecture} as Model; '
        f"Model.from_pretrained('{out}')\"",
    )

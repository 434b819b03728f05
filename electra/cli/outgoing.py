"""What leaves for other programs: embed and export."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from electra.cli.options import DryRun, print_dry_run, refuse_existing, refuse_folder_in_the_way
from electra.config import require


def embed(
    model: Path,
    *,
    input_: Annotated[Path, Parameter(name="--input")],
    out: Path,
    unit: Literal["text", "word", "token"] = "text",
    layer: int | None = None,
    pooling: Literal["mean", "cls"] = "mean",
    column: str = "text",
    dry_run: DryRun = False,
) -> None:
    """Write an embedding of each text of a file, or of its words or tokens.

    The last layer of a discriminator is the worst for similarity; try one in the middle. Texts that
    are longer than the model's rows are embedded in pieces.

    Example: electra embed run --input texts.txt --out embeddings.npy

    Example: electra embed run --input texts.txt --unit word --layer 1 --out words.parquet

    Parameters
    ----------
    model
        A run folder, a Hugging Face folder of ELECTRA, or a folder of `electra finetune`.
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
        The column of a table that holds the texts.
    """
    from electra.serving.embedding_files import check_format, read_texts, write_embeddings
    from electra.serving.network import load_encoder
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


def export(run: Path, *, out: Path, seed: int | None = None, dry_run: DryRun = False) -> None:
    """Write a pre-trained or fine-tuned model as Hugging Face folders.

    For a pre-training run, transformers loads OUT as AutoModelForPreTraining, AutoModel and
    AutoTokenizer, and OUT/generator as AutoModelForMaskedLM. For a fine-tuning it loads OUT as
    AutoModelForSequenceClassification, AutoModelForTokenClassification,
    AutoModelForQuestionAnswering or AutoModelForMultipleChoice, which gives the answers of `electra
    predict`. The folders work without electra.

    Example: electra export run --out exported

    Parameters
    ----------
    run
        A run folder that `electra pretrain` wrote, or a folder that `electra finetune` wrote.
    out
        The folder to write.
    seed
        Of a fine-tuning, the seed whose model is written; if not given, the one with the best score
        on dev.
    """
    from electra.runs.export import export as run_export
    from electra.runs.export import export_finetuned
    from electra.runs.finetuned import is_finetuned, read_finetuned
    from electra.runs.pretrained import read_run_config
    from electra.terminal.printing import print_done

    if is_finetuned(run):
        model = read_finetuned(run, seed)
        refuse_existing(out)
        if dry_run:
            return print_dry_run(model.config, f"read seed {model.seed} of {run} and write {out}")
        architecture = export_finetuned(model, out)
        return print_done(
            f"wrote {out}: seed {model.seed} of {run} as {architecture}",
            f'python -c "from transformers import {architecture} as Model; '
            f"Model.from_pretrained('{out}')\"",
        )
    require(seed is None, f"--seed is for a folder of `electra finetune`, which {run} is not")
    settings = read_run_config(run)
    refuse_existing(out)
    if dry_run:
        return print_dry_run(settings, f"read {run} and write {out} and {out / 'generator'}")
    run_export(run, out)
    print_done(
        f"wrote {out} and {out / 'generator'}",
        f"python -c \"from transformers import AutoModel; AutoModel.from_pretrained('{out}')\"",
    )

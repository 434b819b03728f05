"""What leaves for others: a report, and the model for other programs."""

import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from electra.cli.options import DryRun, Paths, Words, print_dry_run, refuse_existing, refuse_file
from electra.errors import require
from electra.files import make_folder
from electra.terminal.live import Progress
from electra.terminal.printing import print_done

if TYPE_CHECKING:
    from electra.interop.sentence_transformers import Similarity


def report(folders: tuple[Path, ...], *, out: Path, dry_run: DryRun = False) -> None:
    """Write a self-contained HTML page about runs, fine-tunings and models, or Markdown tables.

    Example: electra report run cola --out report.html

    Args:
        folders: Run folders, fine-tuning folders, and folders of `electra export` or `electra
            import`, in any order.
        out: The file to write: an HTML page, or tables alone if its name ends with .md. A report
            that is there is replaced.
    """
    from electra.reports.page import write_report
    from electra.reports.runs import read_folders

    _refuse_others(out)
    if dry_run:
        read_folders(folders)
        return print_dry_run(None, f"read {', '.join(map(str, folders))} and write {out}")
    make_folder(out.parent)
    print_done(f"wrote {out}", write_report(folders, out))


def _refuse_others(out: Path) -> None:
    """Refuse to replace anything but an earlier report, before any work is done."""
    require(not out.is_dir(), f"{out} is a folder; name a file, as {out / 'report.html'}")
    refuse_file(out, (".html", ".htm", ".md"), replace=True)
    if not out.exists():
        return
    begin = out.read_text("utf-8", "replace") if out.is_file() else ""
    is_report = " - ELECTRA</title>" in begin.partition("<style>")[0]
    if out.suffix.lower() == ".md":
        is_report = begin.startswith(("| run | steps |", "| encoder | task |", "| model | network"))
    require(is_report, f"{out} is there and is no report; choose another --out")


def export(
    run: Path,
    *,
    out: Path,
    as_: Annotated[
        Literal["huggingface", "bert", "sentence-transformers", "gguf"], Parameter(name="--as")
    ] = "huggingface",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    onnx: bool = False,
    int8: Path | None = None,
    dev: Path | None = None,
    columns: Words = (),
    scores: Paths = (),
    seed: int | None = None,
    dry_run: DryRun = False,
) -> None:
    """Write a pre-trained or fine-tuned model for other programs, with a model card.

    For a pre-training run, transformers loads OUT as AutoModelForPreTraining, AutoModel and
    AutoTokenizer, and OUT/generator as AutoModelForMaskedLM; without a discriminator
    OUT as AutoModelForMaskedLM, or AutoModelForCausalLM. For a fine-tuning it loads OUT as
    AutoModelForSequenceClassification, AutoModelForTokenClassification,
    AutoModelForQuestionAnswering or AutoModelForMultipleChoice, which gives the answers of `electra
    predict`. Where transformers has no class with the model's head, OUT is the encoder, with the
    head in a file beside it and lines in the card that use both; ONNX holds the whole network.
    Of pairs longer than a row, transformers' tokenizers may keep a token more of the second text.
    The folders work without electra. What --as sentence-transformers and --onnx write is compared
    with the original, and refused if it does not agree.

    Example: electra export run --out exported

    Example: electra export run --as sentence-transformers --dev glue/STS-B --out sentences

    Example: electra export run --onnx --int8 texts.txt --out exported

    Args:
        run: A run folder that `electra pretrain` wrote, one of its checkpoints, a folder of
            `electra finetune`, a Hugging Face folder, such as `electra import` writes, or
            english-tiny.
        out: The folder to write.
        as_: huggingface: the classes of the architecture. bert: those of BERT, of the same graph as
            ELECTRA with embeddings as wide as hidden states. sentence-transformers: the layer and
            the pooling whose cosines agree best with --dev. gguf: model.gguf for llama.cpp, which
            gives the mean of the states.
        dtype: What the weights are stored in. Half the size changes an answer by its rounding.
        onnx: Also write onnx/model.onnx, with dynamic batch size and length.
        int8: Also write onnx/model_int8.onnx; a file of real text, one per line, on which the
            decisions are compared.
        dev: Pairs of sentences with scores, as the dev set of STS-B: a table, or a folder with
            dev.tsv.
        columns: The columns of --dev: two sentences and their score; if not given, sentence1,
            sentence2 and score.
        scores: Folders of fine-tunings for the card of a run. Those beside the run are found.
        seed: Of a fine-tuning, the seed whose model is written; if not given, the one with the best
            score on dev.
    """
    from electra.checkpoints.bundled import find_model
    from electra.checkpoints.checkpoint import run_of
    from electra.checkpoints.finetuned import find_seed
    from electra.checkpoints.folder import read_run_config
    from electra.checkpoints.saved import is_finetuned, is_huggingface
    from electra.library import check_export
    from electra.library import export as run_export

    run, is_onnx = find_model(run), onnx or int8 is not None
    check_export(run, as_, dev, columns, scores, seed, dtype=dtype, is_onnx=is_onnx)
    settings: object = None
    source = str(run)
    if is_finetuned(run):
        found = find_seed(run, seed)
        settings, source = found.config, f"seed {found.seed} of {found.run}"
    elif not is_huggingface(run):
        settings = read_run_config(run_of(run))
    refuse_existing(out)
    if dry_run:
        return print_dry_run(settings, f"read {source} and write {out}")
    progress = Progress("choosing the layer", unit="sentences")
    with progress if dev is not None else nullcontext():
        architecture, similarity = run_export(
            *(run, out),
            form=as_,
            dtype=dtype,
            onnx=onnx,
            int8=int8,
            dev=dev,
            columns=columns,
            scores=scores,
            seed=seed,
            progress=progress.update,
        )
    _print_export(out, source, architecture, similarity)


def _print_export(
    out: Path, source: str, architecture: str, similarity: "Similarity | None"
) -> None:
    """Print what was written, and the line of Python that loads it."""
    from electra.checkpoints.names import DISCRIMINATOR_FILE, HEAD_FILE
    from electra.interop.gguf import GGUF_FILE

    wrote, loads = f"{source} as {architecture}", f"transformers import {architecture} as Model; "
    name = json.dumps(str(out), ensure_ascii=False)  # a word of the shell has the other quotes
    loads += f"Model.from_pretrained({name})"
    if similarity:
        best, last = similarity.best, similarity.last
        wrote = f"layer {best.layer}, {best.pooling}, with Spearman {best.spearman:.3f}; "
        wrote += f"the last of {last.layer} layers has {last.spearman:.3f}"
        loads = f"sentence_transformers import SentenceTransformer as Model; Model({name})"
    following = shlex.join(("python", "-c", f"from {loads}"))
    generator = f" and {out / 'generator'}" if (out / "generator").is_dir() else ""
    heads = [name for name in (HEAD_FILE, DISCRIMINATOR_FILE) if (out / name).is_file()]
    beside = "".join(f", with its head in {name}" for name in heads)
    if HEAD_FILE in heads:
        file = out / "onnx" / "model.onnx"
        whole = f"load {file}" if file.is_file() else "export with --onnx"
        following = f"{whole}, which holds the head; {out / 'README.md'} has lines that use both"
    if (file := out / GGUF_FILE).is_file():
        wrote = f"{source} as the graph {architecture} of llama.cpp"
        following = f"llama-embedding -m {shlex.quote(str(file))} --embd-normalize -1 -p 'a text'"
    print_done(f"wrote {out}{generator}: {wrote}{beside}", following)

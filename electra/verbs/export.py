"""report, export and import: pages, and models for and from other programs."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from cyclopts import Parameter

from electra.errors import UserError, require, require_choice
from electra.files import make_folder
from electra.terminal.live import Progress
from electra.terminal.printing import print_done
from electra.verbs.arguments import as_paths, refuse_existing, refuse_file
from electra.verbs.options import DryRun, Place, Places, Planned, Words, verb

if TYPE_CHECKING:
    from electra.interop.sentence_transformers import Similarity
    from electra.reports.runs import Finetuning

Form = Literal["huggingface", "bert", "sentence-transformers", "gguf"]
Dtype = Literal["float32", "bfloat16", "float16"]


@verb
def report(folders: Sequence[Place], *, out: Place, dry_run: DryRun = False) -> None:
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

    listed, out = as_paths(folders), Path(out)
    _refuse_others(out)
    if dry_run:
        read_folders(listed)
        raise Planned(None, f"read {', '.join(map(str, listed))} and write {out}")
    make_folder(out.parent)
    print_done(f"wrote {out}", write_report(listed, out))


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
    require(is_report, f"{out} exists and is not a report; choose another --out")


class Exported(NamedTuple):
    """The files that `export` has written."""

    architecture: str
    """The class in transformers."""
    similarity: "Similarity | None"
    """For a folder for sentence-transformers: the layer, the pooling and all scores."""


@verb
def export(
    model: Place,
    *,
    out: Place,
    form: Annotated[Form, Parameter(name="--as")] = "huggingface",
    dtype: Dtype = "float32",
    onnx: bool = False,
    int8: Place | None = None,
    dev: Place | None = None,
    columns: Words = (),
    scores: Places = (),
    seed: int | None = None,
    dry_run: DryRun = False,
) -> Exported:
    """Write a pre-trained or fine-tuned model for other programs, with a model card.

    For a pre-training run, transformers loads OUT as AutoModelForPreTraining, AutoModel and
    AutoTokenizer, and OUT/generator as AutoModelForMaskedLM; without a discriminator, it loads OUT
    as AutoModelForMaskedLM or AutoModelForCausalLM. For a fine-tuning, it loads OUT as
    AutoModelForSequenceClassification, AutoModelForTokenClassification,
    AutoModelForQuestionAnswering or AutoModelForMultipleChoice, which gives the answers of `electra
    predict`. If transformers has no class with the model's head, OUT holds the encoder, a file with
    the head, and a card with code that uses both; ONNX holds the whole network. When a pair is
    longer than a row, transformers' tokenizers may keep one more token of the second text. The
    folders work without electra. The models that --as sentence-transformers and --onnx write are
    compared with the original, and refused if they disagree.

    Example: electra export run --out exported

    Example: electra export run --as sentence-transformers --dev glue/STS-B --out sentences

    Example: electra export run --onnx --int8 texts.txt --out exported

    Args:
        model: A run folder that `electra pretrain` wrote, one of its checkpoints, a folder of
            `electra finetune`, a Hugging Face folder, such as `electra import` writes, or
            english-tiny.
        out: The folder to write.
        form: huggingface: the classes of the architecture. bert: BERT's classes, which compute the
            same if embeddings are as wide as hidden states. sentence-transformers: the layer and
            the pooling whose cosines agree best with --dev, or the vectors of a fine-tuning for
            retrieval. gguf: model.gguf for llama.cpp, which returns the mean of the hidden states.
        dtype: The dtype of the stored weights. The half-size dtypes change answers by rounding.
        onnx: Also write onnx/model.onnx, with dynamic batch size and length.
        int8: Also write onnx/model_int8.onnx; a file of real text, one per line, on which the
            decisions are compared.
        dev: Pairs of sentences with scores, as the dev set of STS-B: a table, or a folder with
            dev.tsv.
        columns: The columns of --dev: two sentences and their score; if not given, sentence1,
            sentence2 and score.
        scores: Folders of fine-tunings for the card of a run. Those beside the run are found.
        seed: For a fine-tuning, the seed whose model is written; if not given, the one with the
            best score on dev.
    """
    from electra.checkpoints.bundled import find_model
    from electra.checkpoints.finetuned import read_finetuned
    from electra.checkpoints.saved import is_finetuned
    from electra.inference.network import load_encoder
    from electra.inference.search import describe_vectors
    from electra.inference.similarity import choose_layer, read_pairs
    from electra.interop.export import export as run_export
    from electra.reports.rendering import to_markdown
    from electra.reports.runs import finetuning_table
    from electra.text.table_files import read_texts

    run, folder, is_onnx = find_model(Path(model)), Path(out), onnx or int8 is not None
    is_tuned = is_finetuned(run)
    _check(run, form, dev, columns, scores, seed, dtype, is_tuned=is_tuned, is_onnx=is_onnx)
    source, settings = _describe_source(run, seed)
    refuse_existing(folder)
    if dry_run:
        raise Planned(settings, f"read {source} and write {folder}")
    is_retrieval = form == "sentence-transformers" and dev is None
    similarity = describe_vectors(read_finetuned(run, seed)) if is_retrieval else None
    if dev is not None:
        with Progress("choosing the layer", unit="sentences") as progress:
            pairs = read_pairs(Path(dev), columns)
            similarity = choose_layer(load_encoder(run), pairs, progress.update)
    rows = [] if is_tuned else _find_scores(run, scores)
    written = run_export(
        *(run, folder),
        seed=seed,
        form="huggingface" if form == "sentence-transformers" else form,
        dtype=dtype,
        similarity=similarity,
        onnx=onnx,
        int8_text=[text for text in read_texts(Path(int8)) if text.strip()] if int8 else [],
        scores=to_markdown(finetuning_table(rows)) if rows else "",
    )
    _print_export(folder, source, written, similarity)
    return Exported(written, similarity)


def _describe_source(run: Path, seed: int | None) -> tuple[str, object]:
    """Return what a model is called, and the settings of its training if they are known."""
    from electra.checkpoints.checkpoint import run_of
    from electra.checkpoints.finetuned import find_seed
    from electra.checkpoints.folder import read_run_config
    from electra.checkpoints.saved import is_finetuned, is_huggingface

    if is_finetuned(run):
        found = find_seed(run, seed)
        return f"seed {found.seed} of {found.run}", found.config
    return str(run), None if is_huggingface(run) else read_run_config(run_of(run))


def _find_scores(run: Path, scores: Sequence[Place]) -> "list[Finetuning]":
    """Return the fine-tunings for a card: those named, and of those beside a run the others."""
    from electra.checkpoints.checkpoint import find_checkpoint, run_of
    from electra.checkpoints.saved import is_huggingface
    from electra.reports.runs import find_finetunings, read_finetuning

    rows = [read_finetuning(Path(path) / "results.json") for path in scores]
    if not is_huggingface(run):
        for path in find_finetunings(run_of(run), find_checkpoint(run)[0]):
            row = read_finetuning(path / "results.json")
            if not any((row.label, row.from_scratch) == (r.label, r.from_scratch) for r in rows):
                rows.append(row)
    return rows


def _check(
    run: Path,
    form: str,
    dev: Place | None,
    columns: Sequence[str],
    scores: Sequence[Place],
    seed: int | None,
    dtype: str,
    *,
    is_tuned: bool,
    is_onnx: bool,
) -> None:
    """Refuse arguments of `export` that do not fit together, or not to the model."""
    from electra.checkpoints.finetuned import find_seed

    require_choice("form", form, get_args(Form))
    is_similarity = form == "sentence-transformers"
    is_retrieval = is_tuned and find_seed(run, seed).facts["family"] == "retrieval"
    require(
        is_similarity or not is_retrieval,
        f"{run} gives vectors, which are pooled states: export it as sentence-transformers",
    )
    require(
        is_similarity == (dev is not None) or (is_retrieval and dev is None),
        "sentence-transformers and a dev set go together: the dev set chooses the layer",
    )
    require(dev is not None or not columns, "the columns are those of a dev set; name it")
    require(
        not (is_tuned and (dev is not None or scores)),
        f"sentence-transformers and scores are for a run, and {run} is a fine-tuning",
    )
    require_choice("dtype", dtype, get_args(Dtype))
    require(
        dtype == "float32" or not (form == "gguf" or is_onnx),
        f"gguf and ONNX are written in float32, and not in {dtype}",
    )
    require(
        form != "gguf" or not (is_tuned or is_onnx),
        "gguf is one file with the encoder of a run: no head of a fine-tuning, and no ONNX",
    )
    if seed is not None and not is_tuned:
        raise UserError(f"a seed is for a folder of `electra finetune`, which {run} is not")


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
        loads = f"sentence_transformers import SentenceTransformer as Model; Model({name})"
    if similarity and similarity.scores:
        best, last = similarity.best, similarity.last
        wrote = f"layer {best.layer}, {best.pooling}, with Spearman {best.spearman:.3f}; "
        wrote += f"the last of {last.layer} layers has {last.spearman:.3f}"
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

"""What a script uses: `import electra` gives these names, and imports torch when one is used.

Each function is a command of the command line, with the command's names and errors (`UserError`).
docs/LIBRARY.md has an example of each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from electra.assignments import override
from electra.checkpoints.bundled import find_model
from electra.checkpoints.checkpoint import find_checkpoint, run_of
from electra.checkpoints.finetuned import read_finetuned
from electra.checkpoints.folder import read_model, read_sizes
from electra.checkpoints.manifest import find_best
from electra.checkpoints.saved import is_finetuned, is_huggingface
from electra.errors import UserError, require, require_choice
from electra.files import refuse_existing
from electra.finetuning.loop import finetune as run_finetune
from electra.finetuning.loop import ignore
from electra.finetuning.results import read_finished
from electra.finetuning.start import read_job
from electra.inference.ask import Candidate, load_asked
from electra.inference.ask import detect as run_detect
from electra.inference.ask import fill as run_fill
from electra.inference.embed import Pooling, Units, embed_units
from electra.inference.embed import embed as run_embed
from electra.inference.network import PRECISION, LoadedEncoder, LoadedNetwork, load_encoder
from electra.inference.predict import FinetunedModel, load_model
from electra.inference.score import Score, Scorer, load_scorer
from electra.inference.similarity import choose_layer, read_pairs
from electra.interop.export import Dtype
from electra.interop.export import export as run_export
from electra.interop.sentence_transformers import Similarity
from electra.presets import finetune_preset
from electra.pretraining.continuation import find_finished
from electra.pretraining.loop import pretrain as run_pretrain
from electra.pretraining.resolution import resolve
from electra.pretraining.step_rows import Part, StepRows, show_step
from electra.processes import Tell, silent
from electra.reports.rendering import to_markdown
from electra.reports.runs import find_finetunings, finetuning_table, read_finetuning
from electra.reports.tokens import Word
from electra.shards.config import PrepareConfig
from electra.shards.prepare import prepare as prepare_shards
from electra.text.table_files import read_texts
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Precision
from electra.verification.claims import Claim
from electra.verification.verify import STEPS
from electra.verification.verify import verify as run_verify

Settings = Mapping[str, Any]
"""Settings by name, as `{"train.steps": 1000}`."""


@dataclass(frozen=True)
class Model:
    """The networks in a folder; each is read when it is first used, and kept."""

    folder: Path
    seed: int | None = None
    """Of a fine-tuning, the seed; None: that with the best score on dev."""
    precision: Precision = PRECISION
    """What its answers are computed in."""

    @cached_property
    def encoder(self) -> LoadedEncoder:
        """The encoder, without a head."""
        return load_encoder(self.folder, self.seed, self.precision)

    @cached_property
    def discriminator(self) -> LoadedNetwork:
        """The discriminator of a run, or of a Hugging Face folder."""
        return load_asked(self.folder, "replaced", self.precision)

    @cached_property
    def generator(self) -> LoadedNetwork:
        """The generator, or a masked language model."""
        return load_asked(self.folder, "tokens", self.precision)

    @cached_property
    def scorer(self) -> Scorer:
        """The network that pre-training returned, asked how likely sentences are."""
        return load_scorer(self.folder, precision=self.precision)

    @cached_property
    def finetuned(self) -> FinetunedModel:
        """The fine-tuned model."""
        return load_model(read_finetuned(self.folder, self.seed), precision=self.precision)


Asked = Model | str | Path
"""What is asked: a model that `load` returned, or its folder, which is then read anew."""


def load(folder: str | Path, *, seed: int | None = None, precision: Precision = PRECISION) -> Model:
    """Return the networks in a folder, to be asked more than once.

    Args:
        folder: A run, an export or another Hugging Face folder, "english-tiny", which comes with
            the package, or a fine-tuning; of a grid the best one is taken.
        seed: Of a fine-tuning, the seed whose model answers; None: the best on dev.
        precision: What answers are computed in: float32, bfloat16, or auto, which is bfloat16 on
            hardware that multiplies it.

    Raises:
        UserError: There is no such folder.
    """
    require_choice("precision", precision, get_args(Precision))
    path = find_model(Path(folder))
    require(
        (run_of(path) / "config.json").is_file(),
        f"{path} is neither a run nor an export nor a fine-tuning: it has no config.json",
    )
    require(
        seed is None or is_finetuned(path), f"seed {seed} is for a fine-tuning, which {path} is not"
    )
    return Model(find_best(path) if is_finetuned(path) else path, seed, precision)


def _open(model: Asked) -> Model:
    return model if isinstance(model, Model) else load(model)


def embed(
    model: Asked, texts: Sequence[str], *, layer: int | None = None, pooling: Pooling = "mean"
) -> np.ndarray:
    """Return an embedding of each text (texts, H), float32; as `electra embed`.

    Args:
        model: Any model, or its folder.
        texts: The texts; a blank one has an embedding of NaN.
        layer: Layer whose states are pooled; 0: the embeddings of tokens; None: the last layer.
        pooling: mean: over all positions. cls: the state of [CLS].

    Raises:
        UserError: There is no such layer, or the folder has no encoder.
    """
    require_choice("pooling", pooling, get_args(Pooling))
    return run_embed(_open(model).encoder, _list_texts(texts), layer=layer, pooling=pooling)


def encode(
    model: Asked,
    texts: Sequence[str],
    *,
    unit: Literal["word", "token"] = "token",
    layer: int | None = None,
) -> list[Units]:
    """Return the hidden states of each text's tokens or words, with their places in the text.

    Args:
        model: Any model, or its folder.
        texts: The texts.
        unit: token: the state of each token. word: the mean over the tokens of each word.
        layer: Layer whose states are taken; 0: the embeddings of tokens; None: the last layer.

    Raises:
        UserError: There is no such layer, or the folder has no encoder.
    """
    require_choice("unit", unit, ("word", "token"))
    return embed_units(_open(model).encoder, _list_texts(texts), unit=unit, layer=layer)


def detect(model: Asked, texts: Sequence[str]) -> list[list[Word]]:
    """Return the words of each text with their probabilities of being replaced.

    Args:
        model: A model with a discriminator, or its folder.
        texts: The texts.

    Raises:
        UserError: The folder has no discriminator.
    """
    return run_detect(_open(model).discriminator, _list_texts(texts))


def fill(model: Asked, texts: Sequence[str], *, top: int = 5) -> list[list[list[Candidate]]]:
    """Return, of each text, the most probable tokens for each [MASK], the best first.

    Args:
        model: A model with a generator, or its folder.
        texts: Texts with at least one [MASK] each; a blank one has no gaps.
        top: Number of tokens for each.

    Raises:
        UserError: The folder has no generator, or a text has no [MASK] or is too long.
    """
    return run_fill(_open(model).generator, _list_texts(texts), top)


def score(
    model: Asked,
    sentences: Sequence[str],
    *,
    network: Literal["kept", "generator", "corrector"] = "kept",
) -> list[Score]:
    """Return the pseudo-log-likelihood of each sentence, with its tokens; as `electra score`.

    Args:
        model: A run, an export or another Hugging Face folder.
        sentences: The sentences; a blank one has a sum of NaN.
        network: kept: the network that pre-training returns; or another one of a run.

    Raises:
        UserError: The network gives no such probabilities, or a sentence is too long.
    """
    require_choice("network", network, ("kept", "generator", "corrector"))
    opened = _open(model)
    is_kept = network == "kept"
    scorer = opened.scorer if is_kept else load_scorer(opened.folder, network, opened.precision)
    return scorer.score(_list_texts(sentences))


def predict(model: Asked, records: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the answer to each record, as `electra predict` writes it; long texts are cut.

    The values of an answer to a record without any text are None.

    Args:
        model: A fine-tuned model, or its folder.
        records: Dictionaries with the fields of the task, as `{"text": "..."}`; see
            `FinetunedModel.answer`.

    Raises:
        UserError: The folder is no fine-tuning, or a field is missing or wrong.
    """
    return _open(model).finetuned.answer(_list(records)).records


def prepare(
    text: Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: str | Path,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Turn text into a folder of token shards, and return the contents of its manifest.json.

    The same call continues what was interrupted.

    Args:
        text: Files, folders or globs.
        out: The folder to write; must not exist.
        tokenizer: A folder of a vocabulary or a model, or a tokenizer's file.
        settings: Settings to change, as `{"border": "line"}`.

    Raises:
        UserError: There is no such text, `out` exists, or settings are not valid.
    """
    names, loaded = [str(each) for each in _list(text)], Tokenizer.load(Path(tokenizer))
    config = override(PrepareConfig(), _assign(settings or {}))
    return prepare_shards(names, loaded, out, config)


def verify(
    folder: str | Path,
    *,
    shards: str | Path | None = None,
    text: Sequence[str | Path] = (),
    data: str | Path | None = None,
    steps: int = STEPS,
) -> list[Claim]:
    """Return every claim of a folder and whether it holds; as `electra verify`.

    Args:
        folder: A tokenizer, shards, a run, a fine-tuning, an export, the results of a suite, or a
            folder of such folders.
        shards: Of a run: its shards, if they have moved.
        text: Of shards: the text that they were prepared from.
        data: Of a fine-tuning: the folder of the task's files, if they have moved.
        steps: Of a run: most steps that are computed again.

    Raises:
        UserError: The folder is none of these.
    """
    places = [None if each is None else Path(each) for each in (shards, data)]
    names = [str(each) for each in _list(text)]
    return run_verify(Path(folder), shards=places[0], text=names, data=places[1], steps=steps)


def show(
    run: str | Path,
    step: int,
    *,
    rows: int = 4,
    part: Part = "train",
    shards: str | Path | None = None,
) -> StepRows:
    """Return the first rows of a step, what was masked and what replaced; as `electra show`.

    Args:
        run: A run folder.
        step: Number of the step, from 0.
        rows: Number of rows.
        part: train: the rows of the step. heldout: those of each evaluation.
        shards: The run's shards, if they have moved.

    Raises:
        UserError: The run has no such step, or its shards are not at hand.
    """
    place = None if shards is None else Path(shards)
    return show_step(Path(run), step, rows=rows, part=part, shards=place)


def report(folders: Sequence[str | Path], out: str | Path) -> None:
    """Write a page about runs, fine-tunings and models, or tables if the name ends with .md.

    Args:
        folders: The folders, in any order.
        out: The file to write, .html or .md; one that is there is replaced.

    Raises:
        UserError: A folder is none of these.
    """
    from electra.reports.page import write_report  # with matplotlib, which nothing else here needs

    write_report([Path(each) for each in _list(folders)], Path(out))


def pretrain(
    shards: str | Path,
    out: str | Path,
    *,
    preset: str = "tiny",
    recipe: Literal["paper", "best"] | None = None,
    settings: Settings | None = None,
    show: Callable[[dict[str, Any]], None] = ignore,
) -> dict[str, Any]:
    """Pre-train into a run folder, and return the contents of results.json.

    The same call continues a run that was interrupted, or returns the results of one that is
    finished; one with more train.steps makes a run longer. A preset's warm-up is cut to a tenth of
    a short schedule, unless it is set. With train.init_from, sizes are those of that model, and the
    rate is a sixth of the preset's. A warning names the settings that the run does not read.

    Args:
        shards: Folder that `electra prepare` wrote.
        out: The run folder.
        preset: Sizes and settings to begin with.
        recipe: As published, or as found by experiment; None: best for tiny, mini,
            modern-tiny and deberta-tiny, paper for the others.
        settings: Settings to change.
        show: Called with each record of metrics.jsonl.

    Raises:
        UserError: Folders or settings are not valid, or memory is too small.
        Interrupted: A signal stopped the run; the checkpoint is written.
    """
    config = resolve(preset, recipe, _assign(settings or {}), run=Path(out))
    finished = find_finished(Path(shards), Path(out), config)
    return finished or run_pretrain(Path(shards), Path(out), config, show)


def finetune(
    start: str | Path,
    out: str | Path,
    *,
    task: str,
    data: str | Path,
    seeds: int = 1,
    from_scratch: bool = False,
    settings: Settings | None = None,
    show: Callable[[dict[str, Any]], None] = ignore,
) -> dict[str, Any]:
    """Fine-tune with seeds 0, 1, ..., write a folder, and return the contents of results.json.

    The same call continues what was interrupted, or returns the results of what is finished.

    Args:
        start: A run, a Hugging Face folder, "english-tiny", or another fine-tuning.
        out: The folder to write: new, or of the same fine-tuning.
        task: Name of the task, or a .toml file that describes one.
        data: Folder of the task's files.
        seeds: Number of seeds; their median is the score.
        from_scratch: Take the encoder's sizes and not its weights.
        settings: Settings to change.
        show: Called with records of the progress.

    Raises:
        UserError: Folders, files or settings do not fit together.
    """
    config = override(finetune_preset(read_sizes(Path(start))), _assign(settings or {}))
    if (Path(out) / "results.json").exists():
        model = read_model(Path(start))
        job = read_job(model, task, Path(data), config, from_scratch=from_scratch)
        return read_finished(Path(out), job.settings(), seeds)
    return run_finetune(
        *(Path(start), task, Path(data), Path(out), config),
        seeds=seeds,
        from_scratch=from_scratch,
        progress=show,
    )


class Exported(NamedTuple):
    """What `export` has written."""

    architecture: str
    """The class in transformers."""
    similarity: Similarity | None
    """Of a folder for sentence-transformers: the layer, the pooling and the scores of all."""


def export(
    model: str | Path,
    out: str | Path,
    *,
    form: Literal["huggingface", "bert", "sentence-transformers", "gguf"] = "huggingface",
    dtype: Dtype = "float32",
    onnx: bool = False,
    int8: str | Path | None = None,
    dev: str | Path | None = None,
    columns: Sequence[str] = (),
    scores: Sequence[str | Path] = (),
    seed: int | None = None,
    progress: Tell = silent,
) -> Exported:
    """Write a model for other programs, with a model card; as `electra export`.

    Args:
        model: A run, a Hugging Face folder, or a fine-tuning.
        out: The folder to write; must not exist.
        form: Classes of ELECTRA or of BERT, or a folder for sentence-transformers or llama.cpp.
        dtype: What the weights are stored in.
        onnx: Also write onnx/model.onnx.
        int8: A file of texts: also write onnx/model_int8.onnx, compared on them.
        dev: Pairs of sentences with scores, which choose the layer for sentence-transformers.
        columns: Columns of `dev`: two sentences and their score; if empty, as in STS-B.
        scores: Folders of fine-tunings for the card of a run; those beside the run are found, one
            for each task and start.
        seed: Of a fine-tuning, the seed; None: the best on dev.
        progress: Called with the sentences of `dev` that are done, and all of them.

    Raises:
        UserError: `out` exists, the form has no class for the model, or what was written does not
            agree with the model.
    """
    run, folder = find_model(Path(model)), Path(out)
    refuse_existing(folder)
    is_onnx = onnx or int8 is not None
    check_export(run, form, dev, columns, scores, seed, dtype=dtype, is_onnx=is_onnx)
    rows = [read_finetuning(Path(path) / "results.json") for path in scores]
    if not is_finetuned(run) and not is_huggingface(run):
        for path in find_finetunings(run_of(run), find_checkpoint(run)[0]):
            row = read_finetuning(path / "results.json")
            if not any((row.label, row.from_scratch) == (r.label, r.from_scratch) for r in rows):
                rows.append(row)
    similarity = None
    if dev is not None:
        pairs = read_pairs(Path(dev), columns)
        similarity = choose_layer(load_encoder(run), pairs, progress)
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
    return Exported(written, similarity)


def check_export(
    run: Path,
    form: str,
    dev: str | Path | None,
    columns: Sequence[str],
    scores: Sequence[str | Path],
    seed: int | None,
    *,
    dtype: str = "float32",
    is_onnx: bool = False,
) -> None:
    """Refuse arguments of `export` that do not fit together, or not to the model."""
    require_choice("form", form, ("huggingface", "bert", "sentence-transformers", "gguf"))
    is_similarity, is_tuned = form == "sentence-transformers", is_finetuned(run)
    require(
        is_similarity == (dev is not None),
        "sentence-transformers and a dev set go together: the dev set chooses the layer",
    )
    require(dev is not None or not columns, "the columns are those of a dev set; name it")
    require(
        not (is_tuned and (is_similarity or scores)),
        f"sentence-transformers and scores are for a run, and {run} is a fine-tuning",
    )
    require_choice("dtype", dtype, get_args(Dtype))
    require(
        dtype == "float32" or not (form == "gguf" or is_onnx),
        f"gguf and ONNX are written in float32, and not in {dtype}",
    )
    require(
        form != "gguf" or not (is_tuned or is_onnx),
        "gguf is one file with an encoder: of a run, without the head of a fine-tuning or ONNX",
    )
    if seed is not None and not is_tuned:
        raise UserError(f"a seed is for a folder of `electra finetune`, which {run} is not")


def _list(texts: Sequence[Any]) -> list[Any]:
    require(not isinstance(texts, str), f"give a list of texts, as [{str(texts)[:40]!r}]")
    return list(texts)


def _list_texts(texts: Sequence[str]) -> list[str]:
    listed = _list(texts)
    wrong = [each for each in listed if not isinstance(each, str)]
    require(not wrong, f"a text is a str, not {wrong[:1]}")
    return listed


def _assign(settings: Settings) -> list[str]:
    """Return settings as the words of --set."""
    return [
        f"{name}={str(value).lower() if value is None or isinstance(value, bool) else value}"
        for name, value in settings.items()
    ]

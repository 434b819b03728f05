"""The command `electra`: its verbs in the order of its help, and how an error becomes a line.

Exit status: 0 done, or stopped by --max-time; 1 a bug, with a traceback, or a claim that `electra
verify` refutes; 2 a user's mistake, or what the system refuses (a full disk, no permission, a name
that is too long), in one line; 130 interrupted; 141 the reader of the output has left (`electra ...
| head`), without a message, as after SIGPIPE.
"""

import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from datetime import timedelta
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from electra import verbs
from electra.cli.command import make_command
from electra.errors import UserError, command, require
from electra.processes import Interrupted, find_place, is_launched, stop_signals
from electra.terminal.printing import PipeConsole, print_done, print_error, print_lines, print_note
from electra.verbs.reproduce import quickstart, reproduce
from electra.verbs.serving import page, serve
from electra.version import __version__

VERBS = {
    "All steps at once": (quickstart,),
    "Corpus": (verbs.tokenizer, verbs.prepare, verbs.inspect),
    "Pre-training": (verbs.pretrain, verbs.show, verbs.import_, verbs.plan, verbs.flops),
    "Fine-tuning": (verbs.finetune, verbs.pair, verbs.mine, verbs.submit),
    "The paper's tables and figures": (reproduce,),
    "Results": (verbs.report, verbs.verify, verbs.predict_file, verbs.search)
    + (verbs.detect, verbs.fill, verbs.score_file, verbs.embed_file, verbs.export),
    "Service": (serve, page),
}

app = App(
    name="electra",
    help="""Pre-train text encoders by replaced token detection, and measure how good they are.

The way from text to a scored, exported encoder is one command per step, each of which reads what
the one before it wrote: tokenizer, prepare, pretrain, finetune, report, predict, export.
`electra quickstart` runs most of them in some minutes. docs/ARTEFACTS.md describes the files and
folders.""",
    version=__version__,
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # else the process ends silently
    # No --no-dry-run, and no help text that a flag is off by default.
    default_parameter=Parameter(negative=(), show_default=lambda value: value or None),
)
for _title, _verbs in VERBS.items():
    _group = Group.create_ordered(_title)
    for _place, _verb in enumerate(_verbs):
        app.command(make_command(_verb), group=_group, sort_key=_place)
app.register_install_completion_command(
    help="Install completion for this shell.", group=Group.create_ordered("Other")
)

DASHED = (["detect"], ["fill"])
"""Verbs whose argument is a text."""
SPELLINGS = {
    "num_train_epochs": "epochs",
    "max_seq_length": "sequence_length",
    "max_length": "sequence_length",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "max_steps": "steps",
    "num_train_steps": "steps",
    "mlm_probability": "mask_prob",
    "max_train_samples": "train_examples",
    "max_eval_samples": "evaluate_rows",
    "num_eval_steps": "evaluate_rows",
    "eval_steps": "evaluate_every",
    "save_steps": "save_every",
    "save_checkpoints_steps": "save_every",
    "save_total_limit": "keep_checkpoints",
    "keep_checkpoint_max": "keep_checkpoints",
    "load_best_model_at_end": "keep_epoch",
    "logging_steps": "log_every",
    "bf16": "precision",
    "fp16": "precision",
    "torch_compile": "compile",
    "gradient_checkpointing": "recompute_activations",
    "warmup_ratio": "warmup_fraction",
    "warmup_steps": "optimizer.warmup_steps",
    "num_warmup_steps": "optimizer.warmup_steps",
    "weight_decay_rate": "weight_decay",
    "layerwise_lr_decay": "layer_lr_decay",
    "lr_scheduler_type": "decay_fraction",
    "line_by_line": "border",
    "validation_split_percentage": "heldout_prob",
}
"""Options of run_mlm.py, run_glue.py and run_pretraining.py, and what settings they are here."""
BROKEN_PIPE = 141
"""128 + SIGPIPE, as shells report it."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ADVICE = {
    errno.EIO: "; see the system's log for the disk, then give the same command again",
    errno.ENOSPC: "; make room, then give the same command again",
    errno.EDQUOT: "; make room, then give the same command again",
    errno.EINVAL: "; the file system cannot do this, choose a folder on another one",
    errno.ESTALE: "; the folder's server was restarted, give the same command again",
    errno.EFBIG: "",
}
"""What to do where the system refuses something. It may say so of an open file, without a path."""
RUST_ERROR = re.compile(r"\(os error (\d+)\)")
"""How safetensors and tokenizers, which have exceptions of their own, report a system error."""
OURS = Path(__file__).parents[1]


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line; every way out is an exit status."""
    if tokens is None:  # this process is the command
        for number in stop_signals():  # SIGINT too, which a job that a script starts ignores
            signal.signal(number, signal.default_int_handler)
        if hasattr(signal, "SIGUSR1"):  # a request to save; a starting run ignores it
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if "OMP_WAIT_POLICY" not in os.environ:
            # torch's threads wait for each other by spinning, for milliseconds. Where another
            # program has one of their cores, the others spin in vain until it gives the core back.
            os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        _open_streams()
    try:
        status = _run(sys.argv[1:] if tokens is None else tokens)
    except BrokenPipeError:
        # Whatever is still buffered would be one more error when Python flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE
    if status:
        sys.exit(status)


class _Audience(FileIO):
    """A terminal or log that may disappear (a lost ssh) while the command saves or continues."""

    def write(self, data: Any) -> int:
        """Write; drop the output if the terminal or pipe is closed, or the disk is full."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE, errno.ENOSPC):
                raise
            return memoryview(data).nbytes


def _open_streams() -> None:
    """Make a closed stream accept all output, and one that is not UTF-8 any character."""
    # A closed stream's number is free; the next file would get it, and with it the output.
    while (nothing := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(nothing, True)
    os.close(nothing)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            # A result on the standard output has to arrive; progress and notes need not.
            if stream.isatty() or name == "stderr":
                raw = BufferedWriter(_Audience(stream.fileno(), "w", closefd=False))
                wrapped = TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)
                setattr(sys, name, wrapped)


def _run(given: Sequence[str]) -> int:
    """Run the command and return its status; print an error that is not a bug."""
    rank = find_place().rank
    if rank > 0:  # process 0 prints the results and notes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # The parser would take a lone - for an option.
    words = ["./-" if word == "-" else word for word in given]
    try:
        for word in words:
            # Such a name could be read, but not written into a manifest.
            is_text = word == word.encode("utf-8", "replace").decode() and "\0" not in word
            require(is_text, f"{word!r} is not UTF-8, or has a NUL in it; choose another name")
        require(
            not is_launched() or words[:1] in (["pretrain"], ["finetune"]),
            f"torchrun is for pretrain and finetune, not for {' '.join(words[:1])}",
        )
        if sorted(words) == ["--verbose", "--version"]:
            from electra.cli.version import describe_environment

            print_lines([f"{name}: {value}" for name, value in describe_environment().items()])
            return 0
        with warnings.catch_warnings():
            _print_warnings_as_notes()
            if rank > 0:
                warnings.simplefilter("ignore")
            app(
                words,
                console=PipeConsole(),
                exit_on_error=False,
                print_error=False,
                result_action="return_none",
            )
    except CycloptsError as error:
        print_error(_explain(error, words))
        return 2
    except UserError as error:
        print_error(str(error))
        return 2
    except Interrupted as stop:
        # A quickstart prints its own command to continue.
        goes_on = words[0] == "pretrain" and not (stop.run / "results.json").exists()
        print_done(str(stop), command("pretrain", "--resume", stop.run) if goes_on else "")
        return 0 if stop.in_time or (words[0] == "pretrain" and not goes_on) else 130
    except KeyboardInterrupt as stop:
        print_note(f"interrupted; {str(stop) or 'no half-written result was left'}")
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        if not (refusal := _describe_refusal(error)):
            raise
        print_error(refusal)
        return 2
    return 0


def _explain(error: CycloptsError, words: Sequence[str]) -> str:
    """Return in one line what the parser refused."""
    said, verb = " ".join(str(error).split()), " ".join(error.command_chain or ())
    if isinstance(error, MissingArgumentError):
        return _name_missing(error) + _hint_at_dash(words)
    if isinstance(error, UnusedCliTokensError):
        left = " ".join(error.unused_tokens or ())
        return f"{verb} has no use for {left!r}; electra {verb} --help says what it takes"
    if isinstance(error, CoercionError) and error.target_type is timedelta and error.token:
        return f"{error.token.keyword} takes a time such as 90m or 3h, not {error.token.value!r}"
    if not isinstance(error, UnknownOptionError):
        return said
    if setting := _find_setting(error):
        option = error.token.keyword or error.token.value
        return f"unknown option {option}; it is a setting: --set {setting}=VALUE"
    hint = _hint_at_dash(words)
    return said.rstrip(".") + hint if hint else said


def _name_missing(error: MissingArgumentError) -> str:
    """Return what a command lacks: an argument, or the value of an option."""
    assert error.argument is not None
    name, verb = error.argument.name, " ".join(error.command_chain or ())
    given = error.keyword or next((each.keyword for each in error.argument.tokens), None)
    if given:
        return f"{given} needs a value"
    is_positional = error.argument.field_info.is_positional
    return f"{verb} needs {name.removeprefix('--').upper() if is_positional else name}"


def _hint_at_dash(words: Sequence[str]) -> str:
    """Return how a name or a text that begins with - is written, if there is one."""
    dashed = next((word for word in words if re.match("-[^-]", word)), "")
    if dashed and words[:1] in DASHED:
        return "; put -- before a text that begins with -"
    return f"; a name that begins with - is written ./{dashed}" if dashed else ""


def _find_setting(error: UnknownOptionError) -> str:
    """Return the verb's setting that corresponds to another program's option, or ""."""
    option = str(error.token.keyword or error.token.value).lstrip("-").partition("=")[0]
    option = option.replace("-", "_").lower()
    for argument in error.argument_collection:
        if argument.name == "--set" and (complete := argument.parameter.completer):
            listed = complete(None)  # type: ignore[arg-type]  # ours read no context
            settings = [str(name).rstrip("=") for name in listed]
            names = {name.rpartition(".")[2]: name for name in reversed(settings)}
            names |= {name: name for name in settings}
            return names.get(SPELLINGS.get(option, option), "")
    return ""


def _print_warnings_as_notes() -> None:
    """Print our own warnings, each text once, and of others the first from each place in a file."""
    places = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        place = (filename, lineno)
        if Path(filename).is_relative_to(OURS) or place not in places:
            print_note(" ".join(str(message).split()))
        places.add(place)

    warnings.showwarning = show


def _describe_refusal(error: Exception) -> str:
    """Return what the system refused, with the path if known; for a bug, ""."""
    if isinstance(error, OSError) and error.filename is not None:
        advice = ADVICE.get(error.errno or 0, "")
        return f"{os.fsdecode(error.filename)}: {error.strerror}{advice}"
    number = error.errno if isinstance(error, OSError) else None
    if not isinstance(error, OSError) and (said := RUST_ERROR.search(str(error))):
        number = int(said[1])
    if number not in ADVICE:
        return ""
    what = "writing" if number in NO_ROOM else "reading or writing"
    return f"{what} failed: {os.strerror(number)}{ADVICE[number]}"

"""The verbs, each declared once: what `import electra` gives a script, and what a command runs.

A command has the signature of its function; `Args` in the docstring is the help of its options. A
verb returns what a script needs, raises `UserError` for a mistake and `Planned` for a dry run, and
imports torch when it is called. It also prints its progress, what it wrote, and the next command.
The decorator `verb` suppresses this output in scripts; the command line (cli/) calls the
undecorated function.
"""

from electra.errors import UserError
from electra.processes import Interrupted
from electra.verbs.ask import (
    detect,
    embed,
    embed_file,
    encode,
    fill,
    predict,
    predict_file,
    score,
    score_file,
)
from electra.verbs.corpus import inspect, prepare, tokenizer
from electra.verbs.export import Exported, export, report
from electra.verbs.finetuning import finetune, submit
from electra.verbs.models import Model, history, load
from electra.verbs.options import Planned
from electra.verbs.pretraining import flops, import_, plan, pretrain
from electra.verbs.retrieval import mine, pair, search
from electra.verbs.verification import show, verify

__all__ = ["Exported", "Interrupted", "Model", "Planned", "UserError"]
__all__ += ["detect", "embed", "embed_file", "encode", "export", "fill", "finetune", "flops"]
__all__ += ["history", "import_", "inspect", "load", "plan", "predict", "predict_file", "prepare"]
__all__ += ["mine", "pair", "pretrain", "report", "score", "score_file", "search", "show", "submit"]
__all__ += ["tokenizer", "verify"]

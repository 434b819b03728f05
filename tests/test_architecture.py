"""Imports point one way, the core imports four packages, and only the right files print."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import electra
from electra.cli.entry import VERBS
from electra.model.batch import Batch
from electra.pretraining.start import build_model, count_tokens, fit_to_shards, prepare_step
from electra.shards.examples import Examples
from electra.shards.store import open_shards
from electra.training.machine import Machine

ROOT = Path(electra.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# What imports what, from the ground up; imports point downwards, within a level only inside one
# folder. A file not named here fails the test: it has to be given its place.
LEVELS = """version errors __init__ | outside shapes | settings | assignments | files processes
| objects | model text | tokenizing | shards | method | objectives | training | tasks | presets
| checkpoints | reports | interop | pretraining finetuning terminal | inference | service reproduce
| quickstart verification | verbs | cli | __main__"""
LEVEL = {room: n for n, rooms in enumerate(LEVELS.split("|")) for room in rooms.split()}


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def nodes_of(path, *kinds):
    return [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, kinds)]


def imports_of(path):
    """Every module of ours that a file imports, at its top or inside a function."""
    for node in nodes_of(path, ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{name}" for name in names]
        yield from (name for name in names if name.split(".")[0] == "electra")


def rooms_of(path):
    return {(*name.split("."), "__init__")[1] for name in imports_of(path)}


def files_of(path):
    """The files of ours that a file imports from."""
    for name in imports_of(path):
        parts = name.split(".")
        places = (ROOT.parent.joinpath(*parts[:end]).with_suffix(".py") for end in (-1, None))
        yield from (place for place in places if place.is_file())


def test_imports_point_one_way():
    """`electra/__init__.py` names the verbs, and imports them when it is asked for a name."""
    for path in SOURCES:
        room = room_of(path)
        if path == ROOT / "__init__.py":
            continue
        assert room in LEVEL, f"{path.name} has no place in LEVELS"
        for target in rooms_of(path):
            is_inside = target == room and (ROOT / room).is_dir()
            assert is_inside or LEVEL[target] < LEVEL[room], f"{path}: {room} imports {target}"


def test_no_circles_inside_a_room():
    """A file whose imports all are sorted is sorted; what is never sorted is in a circle."""
    rest = {path: {*files_of(path)} - {path} for path in SOURCES}
    while ready := {path for path, targets in rest.items() if not targets & rest.keys()}:
        rest = {path: targets for path, targets in rest.items() if path not in ready}
    assert not rest, f"in circles, or above them: {[*map(str, rest)]}"


def test_the_method_knows_nothing_of_files_devices_or_loops():
    below = {"errors", "model", "method", "outside", "settings"}
    for room in ("method", "objectives"):
        for path in (ROOT / room).glob("*.py"):
            assert rooms_of(path) <= below | {room}, path
    paper = ROOT / "method" / "replaced_token_detection.py"
    assert len(paper.read_text().splitlines()) <= 200


REACH = """
import sys, {module}
ours = {{m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "electra"}}
print(sum(len(open(path).read().splitlines()) for path in ours))
"""


@pytest.mark.parametrize(
    ("module", "limit"),
    [
        ("electra.method.replaced_token_detection", 2_500),
        ("electra.pretraining.loop", 9_900),
        ("electra.shards.prepare", 5_900),
    ],
)
def test_a_reader_reaches_few_lines(module, limit):
    """What importing a module executes is what its reader may have to read, in lines."""
    code = [sys.executable, "-c", REACH.format(module=module)]
    found = int(subprocess.run(code, capture_output=True, text=True, check=True).stdout)
    sys.stdout.write(f"{module}: {found:,} of {limit:,} lines\n")
    assert found <= limit


CORE_ONLY = """
import importlib.abc, sys
others = "cyclopts rich sklearn scipy matplotlib transformers pyarrow".split()

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in others:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import electra.pretraining.loop, electra.finetuning.loop, electra.inference.predict
import electra.interop.export, electra.shards.prepare, electra.presets
sizes = electra.presets.PRESETS["tiny"].model
electra.checkpoints.names.list_parameters(lambda: electra.model.encoder.Encoder(sizes))
"""
SKETCH = """
from electra.pretraining.networks import sketch_objective
from electra.presets import PRESETS
[sketch_objective(each) for each in PRESETS.values()]
"""
MODULES = "cli, electra.verbs, electra.reports.page, electra.terminal.live"
HELP = "from electra.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
HEAVY = """torch numpy tokenizers safetensors fastapi uvicorn pyarrow multiprocessing.context scipy
sklearn matplotlib jinja2 asyncio"""


@pytest.mark.parametrize(
    ("code", "never"),
    [
        (CORE_ONLY, "torch.distributed.tensor torch._dynamo"),  # which take seconds to import
        (SKETCH, "torch._dynamo"),  # which draws numbers on the meta device that nobody reads
        (f"import electra.{MODULES}, electra.terminal.printing, tools.readme", "torch"),
        ("import electra", f"{HEAVY} electra.verbs"),
        (HELP, HEAVY),
    ],
    ids=["core", "sketch", "no weights", "electra", "help"],
)
def test_nothing_is_imported_that_is_not_needed(code, never):
    code += f"\nimport sys\nassert not (found := {{*{never.split()}}} & {{*sys.modules}}), found"
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


def test_a_script_has_the_names_that_are_listed():
    assert all(getattr(electra, name) for name in electra.__all__)


def test_only_the_terminal_prints():
    for path in SOURCES:
        names = {getattr(call.func, "id", "") for call in nodes_of(path, ast.Call)}
        assert "print" not in names or room_of(path) == "terminal", path


def test_a_command_in_a_message_is_quoted_as_the_shell_needs_it():
    """`errors.command` writes every command that holds a name; no f-string does."""
    verbs = "|".join(
        verb.__name__.strip("_").removesuffix("_file") for group in VERBS.values() for verb in group
    )
    for path in SOURCES:
        for node in nodes_of(path, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            assert not re.search(rf"electra ({verbs}) [^`]*{{}}", "".join(parts)), path


def test_nothing_unpickles_and_json_is_read_in_one_place():
    """But pytorch_model.bin of other people, of which only tensors are read."""
    for path in SOURCES:
        text = path.read_text()
        assert text.count("torch.load(") == text.count("weights_only=True"), path
        assert "torch.load" not in text or path.name == "weights.py", path
        assert "pickle.load" not in text, path
        assert not re.search(r"json\.loads?\(", text) or path.name == "files.py", path


def test_the_way_of_a_batch_is_short(toy_shards, toy_config):
    """The files whose functions are handed the rows of a step, from the shards to the loss.

    With the loop there are six, and the class of the batch itself.
    """
    shards = open_shards(toy_shards)
    config = fit_to_shards(toy_config, shards)
    model = build_model(config, shards.tokenizer, Machine(), count_tokens(shards))
    step = prepare_step(model, config, Machine())
    batch = Examples(shards.train, shards.tokenizer, config.examples, 0).batch(0, 8)
    files = {"shards/examples.py", "pretraining/loop.py"}

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        is_ours = event == "call" and path.is_relative_to(ROOT)
        if is_ours and any(isinstance(value, Batch) for value in frame.f_locals.values()):
            files.add(path.relative_to(ROOT).as_posix())

    sys.setprofile(note)
    step(0, batch, 1e-3)
    sys.setprofile(None)
    method = ("method/masking.py", "method/replaced_token_detection.py")
    model = ("model/batch.py", "model/masked_lm.py")
    assert files == {
        "pretraining/loop.py",
        "pretraining/step.py",
        "shards/examples.py",
        *method,
        *model,
    }

"""Imports point one way, the core stands on four packages, and only the right files print."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import electra
from electra.cli.entry import VERBS
from electra.model.batch import Batch
from electra.pretraining.acceleration import prepare_step
from electra.pretraining.start import build_model, count_tokens, fit_to_shards
from electra.shards.examples import Examples
from electra.shards.store import open_shards
from electra.training.machine import Machine

ROOT = Path(electra.__file__).parent

# What stands on what, from the ground up; imports point downwards, within a level only inside one
# folder. A file not named here fails the test: it has to be given its place.
LEVELS = [
    {"version", "errors", "__init__"},
    {"settings"},
    {"config"},
    {"files", "presets", "processes", "model"},
    {"text"},
    {"tokenizing"},
    {"shards"},
    {"method"},
    {"training"},
    {"checkpoints", "tasks"},
    {"reports"},
    {"interop"},
    {"pretraining", "finetuning", "terminal"},
    {"inference"},
    {"service", "reproduce"},
    {"quickstart", "library"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}


def sources():
    return sorted(ROOT.rglob("*.py"))


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path):
    """Every module of ours that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            assert node.level == 0, f"{path}: relative import"
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "electra":
                yield parts[1] if len(parts) > 1 else "__init__"


def test_imports_point_one_way():
    """`electra/__init__.py` names the library, and imports it when it is asked for a name."""
    for path in sources():
        room = room_of(path)
        if path == ROOT / "__init__.py":
            continue
        assert room in LEVEL, f"{path.name} has no place in LEVELS"
        for target in imports_of(path):
            is_inside = target == room and (ROOT / room).is_dir()
            assert is_inside or LEVEL[target] < LEVEL[room], f"{path}: {room} imports {target}"


def reach_of(path):
    """The files of ours that a file imports, and those that they import; and itself."""
    found, rest = set(), [path]
    while rest:
        path = rest.pop()
        if path not in found:
            found.add(path)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("electra."):
                    for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names)):
                        file = ROOT.parent / f"{name.replace('.', '/')}.py"
                        rest += [file] if file.is_file() else []
    return found


def test_no_circles_inside_a_room():
    edges = {}
    for path in sources():
        name = ".".join(("electra", *path.relative_to(ROOT).with_suffix("").parts))
        edges[name] = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("electra.")
        }
    done = set()

    def visit(name, path):
        assert name not in path, f"circle: {' > '.join([*path, name])}"
        if name not in done:
            for target in edges.get(name, ()):
                visit(target, [*path, name])
            done.add(name)

    for name in edges:
        visit(name, [])


def test_the_method_knows_nothing_of_files_devices_or_loops():
    for path in (ROOT / "method").glob("*.py"):
        assert set(imports_of(path)) <= {"config", "errors", "model", "method"}, path
    paper = ROOT / "method" / "replaced_token_detection.py"
    assert len(paper.read_text().splitlines()) <= 200
    assert len(reach_of(paper)) <= 16  # a file for each body among them


CORE_ONLY = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import electra.pretraining.loop, electra.finetuning.loop, electra.inference.predict
import electra.interop.export, electra.shards.prepare, electra.library, electra.presets
sizes = electra.presets.PRESETS["tiny"].model
electra.checkpoints.names.list_parameters(lambda: electra.model.encoder.Encoder(sizes))
slow = {{"torch.distributed.tensor", "torch._dynamo"}} & {{*sys.modules}}
assert not slow, "each command would wait for seconds"
"""


def test_core_needs_only_torch_numpy_tokenizers_safetensors():
    refused = "('cyclopts', 'rich', 'sklearn', 'scipy', 'matplotlib', 'transformers', 'pyarrow')"
    subprocess.run([sys.executable, "-c", CORE_ONLY.format(refused=refused)], check=True)


def test_the_library_is_imported_with_its_first_name():
    code = (
        "import sys, electra; assert not {'torch', 'numpy', 'electra.library'} & {*sys.modules};"
        "[getattr(electra, name) for name in electra.__all__]; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_reads_no_weights_imports_no_torch():
    modules = ("config", "cli", "terminal.live", "terminal.printing", "reports.page")
    code = f"import {', '.join(f'electra.{each}' for each in modules)}, tools.readme, sys;"
    subprocess.run([sys.executable, "-c", f"{code} assert 'torch' not in sys.modules"], check=True)


def test_a_sketch_takes_no_compiler():
    """On the meta device torch would import it to draw numbers that nobody reads, for seconds."""
    what = "[sketch(each) for each in PRESETS.values()]; assert 'torch._dynamo' not in sys.modules"
    code = "from electra.method.registry import sketch_objective as sketch; import sys; "
    code += f"from electra.presets import PRESETS; {what}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_terminal_prints():
    for path in sources():
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
        ]
        assert not calls or room_of(path) == "terminal", path


def test_a_command_in_a_message_is_quoted_as_the_shell_needs_it():
    """`errors.command` writes every command that holds a name; no f-string does."""
    verbs = "|".join(verb.__name__.strip("_") for group in VERBS.values() for verb in group)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            text = "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts)
            assert not re.search(rf"electra ({verbs}) [^`]*{{}}", text), f"{path}: {text}"


def test_nothing_unpickles():
    """But pytorch_model.bin of other people, of which only tensors are read."""
    for path in sources():
        text = path.read_text()
        assert text.count("torch.load(") == text.count("weights_only=True"), path
        assert "torch.load" not in text or path.name == "weights.py", path
        assert "pickle.load" not in text, path


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
    assert files == {
        "shards/examples.py",
        "pretraining/loop.py",
        "pretraining/step.py",
        "method/masking.py",
        "method/replaced_token_detection.py",
        "model/masked_lm.py",
        "model/batch.py",
    }


def test_help_imports_what_it_needs():
    """`electra` with nothing, and the command's help: neither numbers nor networks nor a server."""
    heavy = {"torch", "numpy", "tokenizers", "safetensors", "fastapi", "uvicorn", "pyarrow"}
    heavy |= {"multiprocessing.context", "scipy", "sklearn", "matplotlib", "jinja2", "asyncio"}
    for line in ("import electra", "from electra.cli import main; main(['--help'])"):
        code = (
            f"import sys\ntry:\n    {line}\nexcept SystemExit:\n    pass\n"
            f"assert not (found := {heavy} & {{*sys.modules}}), found"
        )
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


def test_json_is_read_in_one_place():
    for path in sources():
        text = path.read_text()
        is_reader = path.name == "files.py"
        assert is_reader or not any(call in text for call in ("json.load(", "json.loads(")), path

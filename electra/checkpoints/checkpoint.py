"""Checkpoints: safetensors and JSON files, written atomically and verified before they are read.

    checkpoints/step-00001000/model.safetensors      each parameter once, by its name in the
                                                     objective
                              optimizer.safetensors  Adam's moments, "<moment>/<parameter>", and
                                                     the last gradient norms, "guard/..."
                              state.json             step, the totals of the run, the names of each
                                                     network's parameters, and the sha256 of the two
                                                     files and of these facts

A damaged checkpoint is skipped. When the run is resumed, the checkpoint is renamed
`step-00001000.damaged`. It is removed when a checkpoint of the same or a later step is saved.
`Saver` writes in a thread, while the next steps are computed.

Row order, masked positions, sampled tokens and dropout are functions of (seed, step). A checkpoint
therefore needs no state besides weights, moments, the last gradient norms and the step.
"""

import math
import os
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra.errors import UserError, require
from electra.files import make_folder, parse_object, put, sha256_facts, sha256_file, write_facts
from electra.method.objective import Objective
from electra.settings import to_dict
from electra.training.distributed import from_rank_0, spread, whole

FILES = ("model.safetensors", "optimizer.safetensors")
STATE = "state.json"
State = dict[str, dict[str, Tensor]]
"""Tensors in host memory, by the name of the checkpoint's file and their name in the file."""
FLOATS = ("float32", "float16", "bfloat16", "float64")
"""Dtypes of weights."""
_DTYPES = dict(zip(("F32", "F16", "BF16", "F64"), FLOATS, strict=True))


class Header(NamedTuple):
    """Facts about a tensor before it is read."""

    dtype: str
    """As torch calls it, if it is one of FLOATS."""
    shape: tuple[int, ...]


class Weights(Mapping[str, Tensor]):
    """Tensors by name, each read when it is asked for; dtypes and shapes are known before."""

    def __init__(self, headers: Mapping[str, Header], read: Callable[[str], Tensor]):
        self.headers = dict(headers)
        self.read = read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.headers:
            raise KeyError(name)
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.headers  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def rename(self, names: Mapping[str, str]) -> "Weights":
        """Return the tensors that are the values of `names`, under the names that are its keys."""
        headers = {ours: self.headers[theirs] for ours, theirs in names.items()}
        return Weights(headers, lambda name: self.read(names[name]))

    def below(self, prefix: str) -> "Weights":
        """Return the tensors whose names begin with `prefix`, with the prefix removed."""
        return self.rename(
            {name.removeprefix(prefix): name for name in self if name.startswith(prefix)}
        )


def read_tensors(path: Path) -> Weights:
    """Return the tensors of a safetensors file, of which only the header is read now."""
    try:
        file = safe_open(path, framework="pt")
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        headers = {
            name: Header(_DTYPES.get(each.get_dtype(), each.get_dtype()), tuple(each.get_shape()))
            for name, each in slices.items()
        }
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return Weights(headers, lambda name: require_finite(file.get_tensor(name), f"{path}: {name}"))


def require_finite(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor; raise UserError if a value is not finite in float32."""
    num_wrong = int((~torch.isfinite(tensor.float())).sum())
    require(
        not num_wrong,
        f"{name} holds {num_wrong:,} values that are NaN or infinite, of {tensor.numel():,}: "
        "weights must be finite",
    )
    return tensor


def read_header(tensors: Mapping[str, Tensor], name: str) -> Header:
    """Return dtype and shape of a tensor."""
    if isinstance(tensors, Weights):
        return tensors.headers[name]
    return Header(str(tensors[name].dtype).removeprefix("torch."), tuple(tensors[name].shape))


def require_weight(found: Header, name: str, shape: Sequence[int]) -> None:
    """Raise UserError unless a tensor is a parameter of this shape."""
    require(
        found.dtype in FLOATS,
        f"{name} is {found.dtype}; weights must be {', '.join(FLOATS[:-1])} or {FLOATS[-1]}",
    )
    require(
        tuple(found.shape) == tuple(shape),
        f"{name} has the shape {tuple(found.shape)}; by the sizes of the model it must be "
        f"{tuple(shape)}",
    )


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, readable for whom the user's umask says."""
    path.touch()
    mode = path.stat().st_mode  # save_file leaves a file that only its owner can read
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    try:
        save_file(contiguous, path, metadata={"format": "pt"})
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if not code:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None
    path.chmod(mode)


@torch.no_grad()
def load_parameters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the model's parameters of the same names."""
    parameters = dict(model.named_parameters())
    _require_parameters(tensors, parameters)
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def _require_parameters(tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        require(name in tensors, f"the weights lack {name}")
        require_weight(read_header(tensors, name), name, parameter.shape)


def copy_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    guard: Mapping[str, Tensor],
    *,
    is_first: bool = True,
) -> State:
    """Return a copy of weights, Adam's moments and the guard's memory; `load_state` is the inverse.

    Parameter names are those of the objective, without prefixes of a wrapper such as torch.compile.
    If the model is divided among processes, all call this together, and only process 0
    (`is_first`) keeps the copies.
    """
    parameters = dict(model.named_parameters())
    moments = {
        f"{moment}/{name}": value
        for name, parameter in parameters.items()
        for moment, value in optimizer.state[parameter].items()
    }
    moments |= {f"guard/{name}": value for name, value in guard.items()}
    state: State = {}
    for file, tensors in zip(FILES, (parameters, moments), strict=True):
        state[file] = {}
        for name, tensor in tensors.items():
            found = whole(tensor.detach())
            if is_first:
                state[file][name] = found.to("cpu", copy=True)
    return state


def read_state(folder: Path) -> State:
    """Return the tensors of a verified checkpoint."""
    return {name: load_file(folder / name) for name in FILES}


def load_state(
    state: State | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    guard: Mapping[str, Tensor],
) -> None:
    """Copy weights into the model, moments into the optimizer, and the guard's memory.

    The processes of a step call this together. The state is from `read_state` on process 0 and
    None on the others.
    """
    weights, others = (state[name] for name in FILES) if state else ({}, {})
    parameters = dict(model.named_parameters())
    if state:
        _require_parameters(weights, parameters)
    for name, parameter in parameters.items():
        spread(weights.get(name), parameter)
    keys = from_rank_0([(key, value.shape, value.dtype) for key, value in others.items()])
    for key, shape, dtype in keys:
        moment, name = key.split("/", 1)
        if moment == "guard":
            target = guard[name]
        else:
            parameter, moments = parameters[name], optimizer.state[parameters[name]]
            if moment not in moments:
                moments[moment] = (
                    torch.empty_like(parameter, requires_grad=False)
                    if parameter.shape == shape
                    else torch.empty(shape, dtype=dtype, device=parameter.device)
                )
            target = moments[moment]
        spread(others.get(key), target)


def describe_networks(objective: Objective) -> dict[str, Any]:
    """Return the description of an objective's networks for state.json.

    Returns:
        "kept": role of the network that pre-training returns. "networks": for each role the output
        of the head ("predicts"), the encoders' "sizes", and the places of the parameters of
        "encoders" and "head". A place maps a module of the network to the module's name in the
        objective. For example {"": "generator.encoder", "embeddings": "discriminator.embeddings"}
        is an encoder at generator.encoder, with the shared embeddings at discriminator.embeddings.
        "added", with method.sharing=gdes: name of the parameter that belongs on top of the first
        encoder's token embeddings.
    """
    names = {module: name for name, module in objective.named_modules()}

    def locate(module: nn.Module) -> dict[str, str]:
        places = {"": names[module]}
        for place, part in module.named_modules():
            parent, _, leaf = place.rpartition(".")
            if place and names[part] != f"{names[module.get_submodule(parent)]}.{leaf}":
                places[place] = names[part]
        return places

    kept: str = ""
    networks: dict[str, Any] = {}
    for role, network in objective.networks.items():
        if objective.kept in network.encoders and network.first_layer < len(objective.kept.layers):
            kept = role  # and not a head beside it
        networks[role] = {
            "predicts": network.predicts,
            "sizes": to_dict(network.encoders[0].config),
            "encoders": [locate(encoder) for encoder in network.encoders],
            "head": locate(network.head),
        }
        for base in network.encoders[0].embeddings.tokens.base:
            networks[role]["added"] = f"{names[base]}.weight"
    return {"kept": kept, "networks": networks}


def write_checkpoint(
    run: Path, step: int, state: State, facts: Mapping[str, Any], keep: int, keep_every: int = 0
) -> Path:
    """Write a checkpoint, remove old ones, and return the checkpoint's folder.

    Beside the step, state.json has the `facts`: `describe_networks`, and the totals of the run.
    The `keep` newest checkpoints stay, and those of steps that are multiples of `keep_every`. After
    an OSError earlier checkpoints are unchanged.
    """
    folder = run / "checkpoints" / f"step-{step:08d}"
    for left in folder.parent.glob("step-*.incomplete"):  # left behind by a killed process
        shutil.rmtree(left)
    incomplete = folder.with_name(folder.name + ".incomplete")
    make_folder(incomplete)
    try:
        for name, tensors in state.items():
            write_tensors(incomplete / name, tensors)
        facts = {"step": step, **facts}
        hashes = {name: sha256_file(incomplete / name) for name in FILES}
        write_facts(incomplete / STATE, facts, hashes)
        if folder.exists():
            _set_aside(folder)
        put(incomplete, folder)
    except OSError:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
    for old in list_checkpoints(run)[:-keep]:
        if not keep_every or step_of(old) % keep_every:
            shutil.rmtree(old, ignore_errors=True)  # such as one that somebody reads
    for damaged in folder.parent.glob("step-*.damaged"):
        if damaged.stem <= folder.name:
            shutil.rmtree(damaged, ignore_errors=True)
    return folder


def step_of(folder: Path) -> int:
    """Return the number of steps after which a checkpoint was written."""
    return int(folder.name.removeprefix("step-"))


def list_checkpoints(run: Path, last: float = math.inf) -> list[Path]:
    """Return the folders of the run's complete checkpoints up to step `last`, oldest first."""
    found = sorted((run / "checkpoints").glob("step-" + "[0-9]" * 8))
    return [folder for folder in found if step_of(folder) <= last]


def run_of(folder: Path) -> Path:
    """Return the run of a checkpoint's folder; any other folder is returned as it is."""
    is_checkpoint = folder.parent.name == "checkpoints" and (folder / STATE).is_file()
    return folder.parent.parent if is_checkpoint else folder


def find_checkpoint(run: Path, last: float = math.inf) -> tuple[int, Path]:
    """Return step and folder of the newest intact checkpoint, or of the one that is named.

    A run's checkpoints after step `last` are left out. A warning names newer checkpoints that are
    damaged; if none is intact, the UserError names them.
    """
    damaged: list[str] = []
    named = [] if run_of(run) == run else [run]
    found = named or list_checkpoints(run, last)
    for folder in reversed(found):
        try:
            step = verify_checkpoint(folder)
        except PermissionError as error:
            raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
        except (OSError, ValueError, TypeError) as error:
            damaged.append(f"{folder.name} is damaged ({error})")
            continue
        if damaged:
            warnings.warn(
                f"{run}: {'; '.join(damaged)}; taking {folder.name} instead", stacklevel=2
            )
        return step, folder
    # The run, which continues, has pruned them.
    if not named and found != list_checkpoints(run, last):
        return find_checkpoint(run, last)
    raise UserError(f"{run} has no usable checkpoint: {'; '.join(damaged) or 'none was written'}")


def verify_checkpoint(folder: Path) -> int:
    """Return the step of an intact checkpoint; raise OSError, ValueError or TypeError otherwise."""
    facts = parse_object((folder / STATE).read_bytes(), STATE)
    try:
        step, hashes = facts["step"], dict(facts.pop("sha256"))
        digests = {name: hashes.pop(name) for name in FILES}
    except (KeyError, TypeError):
        raise ValueError(f"{STATE} has no step, or not every sha256") from None
    if hashes != {STATE: sha256_facts(facts)}:
        raise ValueError(f"{STATE} does not match its sha256")
    if folder.name != f"step-{step:08d}":
        raise ValueError(f"{STATE} is of step {step}")
    for name, digest in digests.items():
        if sha256_file(folder / name) != digest:
            raise ValueError(f"{name} does not match its sha256")
    return int(step)


def set_damaged_aside(run: Path, intact: Path) -> None:
    """Rename the damaged checkpoints, newer than the intact one, so that none counts as kept.

    This process must hold the lock of the run.
    """
    for folder in list_checkpoints(run):
        if folder.name > intact.name:
            _set_aside(folder)


def _set_aside(folder: Path) -> None:
    aside = folder.with_name(folder.name + ".damaged")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


class Saver:
    """Writes one checkpoint at a time in a thread: a context manager.

    A step waits until the state is copied to host memory, and until the previous checkpoint is
    written. If a checkpoint cannot be written, a warning reports it and the run continues; only the
    last one of a session must succeed (`finish`).
    """

    def __init__(self, run: Path):
        self.run = run
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """Wait for the thread, except at a second Ctrl-C, which ends the process at once."""
        if self.thread and not (kind and issubclass(kind, KeyboardInterrupt)):
            self.thread.join()

    def save(self, write: Callable[[], object]) -> None:
        """Start `write`, which writes a checkpoint from copied tensors, after the one before it."""
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:  # raised again in the thread of the run
                self.failure = error

        # A daemon does not keep a process alive that is to end at once.
        self.thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Wait until no checkpoint is being written; warn if the disk has refused it."""
        try:
            self.finish()
        except OSError as error:
            what = f"{error.filename or self.run}: {error.strerror or error}"
            warnings.warn(
                f"a checkpoint could not be written: {what}; the ones before it are whole, and "
                "the run continues",
                stacklevel=2,
            )

    def finish(self) -> None:
        """Wait until no checkpoint is being written, or raise the OSError that prevented it."""
        if self.thread:
            self.thread.join()
        failure, self.failure = self.failure, None
        if failure:
            raise failure

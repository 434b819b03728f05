"""Kernels and bytes of a compiled step on a GPU, counted without a GPU.

    python -m benchmarks.lowered --out results/lowered.json [--assemble]

torch.compile's back end writes the kernels of each objective for a pretended GPU of compute
capability 9.0, over tensors without data. No kernel is run. Needs a CUDA build of torch, which
brings Triton, and no CUDA device. Counts change with the version of torch.

Counts the kernels that a step compiles (objective forward and backward, draws, measures), and
the bytes that they read and write, each buffer once per kernel, without caches. Operations
outside (casts of weights, sums of gradients) are counted without their bytes; clipping and AdamW
are not. With --assemble, every Triton kernel is also compiled to machine code for that GPU: its
registers, spills and instructions, and by kinds of kernels the least time of bytes, operations and
instructions (assembled.py).
"""

import argparse
import collections
import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchmarks.assembled import (
    COPY_BYTES,
    PRODUCT_FLOPS,
    Assembly,
    Launch,
    assemble_generated,
    assemble_own,
)
from electra.assignments import override
from electra.checkpoints.manifest import find_commit
from electra.files import read_object, write_json, write_text
from electra.method.config import OBJECTIVES, SCHEMES
from electra.method.measures import tally
from electra.model.batch import find_real
from electra.presets import PRESETS
from electra.pretraining.acceleration import WorkingCopies, compile_options
from electra.pretraining.guard import Guard
from electra.pretraining.memory import make_rows
from electra.pretraining.start import build_model
from electra.pretraining.step import Step
from electra.reports.rendering import Table, to_markdown
from electra.tokenizing.tokenizer import make_tokenizer
from electra.training.config import PretrainConfig
from electra.training.flat import FlatBuffers
from electra.training.machine import Machine
from electra.training.optimizer import build_optimizer

META, GPU = torch.device("meta"), torch.device("cuda", 0)
H100 = SimpleNamespace(
    name="pretended H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=1 << 16,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=80 * 2**30,
    L2_cache_size=50 * 2**20,
    shared_memory_per_block=48 * 2**10,
    shared_memory_per_block_optin=227 * 2**10,
    shared_memory_per_multiprocessor=228 * 2**10,
)
"""What the compiler asks of a GPU."""
ROWS = {
    **{"tiny": 64, "mini": 64, "small": 128, "base": 32, "large": 32},
    **{"modern-tiny": 64, "modern-mini": 64, "modern-small": 128},
    **{"deberta-tiny": 64, "deberta-v3-xsmall": 64, "deberta-v3-small": 64},
    **{"deberta-v3-base": 32, "deberta-v3-large": 32},
}
"""Rows of a micro-batch by preset."""
VARIANTS = {
    **{preset: (preset, []) for preset in ROWS},
    "small, Triton layers": ("small", ["train.layers=triton"]),
    "deberta-v3-base, Triton layers": ("deberta-v3-base", ["train.layers=triton"]),
    "modern-small, Triton layers": ("modern-small", ["train.layers=triton"]),
    "small, overlap": ("small", ["train.overlap=true"]),
    "small, no short rows": ("small", ["examples.short_prob=0"]),
    "small, no dropout": (
        "small",
        ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"],
    ),
    "small, generator 256 x 3": (
        "small",
        ["generator.hidden_fraction=1", "generator.layers_fraction=0.25"],
    ),
    "small, apart": ("small", ["method.sharing=gdes", "train.updates=apart"]),
    **{
        f"small, {objective}": ("small", [f"method.objective={objective}"])
        for objective in OBJECTIVES
        if objective != "rtd"
    },
    **{
        f"small, {scheme}": (
            "small",
            [f"method.objective={objective}", f"method.scheme={scheme}", "method.sharing=none"],
        )
        for objective, scheme in SCHEMES
    },
    "small, causal_lm": ("small", ["method.objective=causal_lm", "model.causal=true"]),
    "small, next sentence": (
        "small",
        [
            *("method.objective=mlm", "examples.next_sentence=true"),
            "examples.single_segment_prob=0",
        ],
    ),
}
"""Preset and settings of each variant."""
OWN_KINDS = {"activation": "gelu", "norms": "add_norm"}
VOCABULARY = range(30_000, 300_000)
"""Sizes that mark a kernel over the vocabulary."""
NUM_LISTED, NUM_SHOWN = 25, 12
"""Triton's kernels of a variant in the record, and in its table."""
LEAST_TIMES = """
Assembled variants, least times of a step's kernels: bytes at 4.1 TB/s, products at 620 TFLOP/s,
instructions at 4 a cycle of 132 processors at 1.755 GHz; us: the larger of them, kernel by kernel.
Optimizer, casts and gaps are not among them.
""".strip()
KIND_SUMS = ("launches", "gb", "tflop", "bytes_us", "flops_us", "issue_us", "floor_us")
KERNEL = re.compile(r"async_compile\.triton\('(\w+)', \'\'\'(.*?)\'\'\', device_str='cuda'\)", re.S)
"""Name and source of a kernel in generated code."""


class _Lowered(BaseException):
    """Raised when a graph is lowered, instead of compiling its kernels."""


class Count:
    """Kernels and bytes of the lowered graphs, and operations outside them."""

    def __init__(self) -> None:
        self.record = dict.fromkeys(
            (
                *("triton", "products", "attention", "sums", "memsets", "others", "outside"),
                *("triton_bytes", "bytes"),
            ),
            0,
        )
        self.code: list[str] = []
        self.libraries: list[Launch] = []
        self.generated: list[tuple[Launch, list[dict[str, int]], str]] = []
        """Each with its sizes by axis, of each part, and its source."""
        self.own: list[tuple[Launch, list[Any]]] = []
        """Operations of ours, with their arguments."""
        self._defined: list[tuple[Any, Launch, list[dict[str, int]]]] = []

    def define(self, name: str, kernel: Any) -> None:
        """Add a launch of a generated kernel."""
        from torch._inductor.virtualized import V

        parts = getattr(kernel, "sub_kernels", [kernel])
        numels = [{axis: int(size) for axis, size in each.numels.items()} for each in parts]
        node = V.graph.scheduler.current_node
        launch = Launch(name, _find_kind(node), _count_bytes(node))
        self._defined.append((node, launch, numels))

    def add(self, graph: Any, code: str) -> None:
        """Add a lowered graph, whose kernels `code` calls."""
        from torch._inductor.scheduler import ExternKernelSchedulerNode

        self.code.append(code)
        calls = re.findall(r"extern_kernels\.(\w+)\(|= torch\.ops\.\w+\.(\w+)", code)
        names = [one or other for one, other in calls]
        self.record["triton"] += len(re.findall(r"\btriton_\w+\.run\(", code))
        # The last stage of a mix-order reduction is no kernel of Triton's but an eager sum.
        self.record["sums"] += len(re.findall(r"\.sum\(dim=0\)", code))
        self.record["memsets"] += len(re.findall(r"\.zero_\(\)", code))
        for name in names:
            kind = _name_kind(name)
            self.record["triton" if kind in OWN_KINDS else kind] += 1
        sources = {name: source for name, source in KERNEL.findall(code)}
        for node, launch, numels in self._defined:
            # A combo of unlike sizes is several kernels, which share its bytes by their elements.
            every = [sizes for other, _, sizes in self._defined if other is node]
            share = _count_elements(numels) / sum(map(_count_elements, every))
            launch = launch._replace(num_bytes=round(share * launch.num_bytes))
            self.generated.append((launch, numels, sources[launch.name]))
        self._defined.clear()
        for node in graph.scheduler.nodes:
            num_bytes = _count_bytes(node)
            self.record["bytes"] += num_bytes
            if not isinstance(node, ExternKernelSchedulerNode):
                self.record["triton_bytes"] += num_bytes
                continue
            operation: Any = node.node
            name = operation.python_kernel_name or type(operation).__name__
            kind = _name_kind(name)
            calls = [each for each in operation.origins if _is_own(each)]
            if calls and "electra" in name:
                name = calls[0].target._schema.name
                arguments = [_without_data(each) for each in _find_values(list(calls[0].args))]
                self.own.append((Launch(name, _name_kind(name), num_bytes), arguments))
            elif type(operation).__name__ != "MultiOutput":
                flops = _count_flops(operation) if kind == "products" else 0
                self.libraries.append(Launch(name, kind, num_bytes, flops))


def _count_elements(numels: Sequence[dict[str, int]]) -> int:
    return sum(math.prod(sizes.values()) for sizes in numels)


def _is_own(node: Any) -> bool:
    return getattr(node.target, "namespace", "") == "electra"


def _name_kind(name: str) -> str:
    words = {"attention": "atten", "products": "mm|linear", **OWN_KINDS}
    return next((kind for kind, word in words.items() if re.search(word, name)), "others")


def _find_values(arguments: Any) -> Any:
    return tree_map(
        lambda each: each.meta["val"] if isinstance(each, torch.fx.Node) else each, arguments
    )


def _count_flops(node: Any) -> int:
    """Return the operations of a matrix product, of which the last two inputs are the factors."""
    inner = int(node.inputs[-2].get_size()[-1])
    return 2 * inner * math.prod(map(int, node.get_size()))


def _find_kind(node: Any) -> str:
    """Return of which kind a generated kernel is, by the operations that it came from."""
    origins = {each for part in node.get_nodes() if part.node for each in part.node.origins}
    sizes = {size for each in origins for size in getattr(each.meta.get("val"), "shape", ())}
    names = " ".join(each.name + str(each.meta.get("original_aten", "")) for each in origins)
    if any(size in VOCABULARY for size in sizes):
        return "vocabulary"
    words = {"activation": "erf|gelu", "norms": "rsqrt|layer_norm|dropout|random", "sums": "sum"}
    return next((kind for kind, word in words.items() if re.search(word, names)), "others")


def _count_bytes(node: Any) -> int:
    """Return the bytes that a node of the scheduler reads and writes.

    Torch counts whole buffers for fused operations, even if one only gathers from a buffer.
    """
    from torch._inductor.scheduler import ForeachKernelSchedulerNode, FusedSchedulerNode

    if isinstance(node, ForeachKernelSchedulerNode):
        return sum(_count_bytes(each) for each in node.snodes)
    counts: dict[str, int] = node.get_read_write_buffer_accesses(True, True)
    if isinstance(node, FusedSchedulerNode):
        parts = [each.get_read_write_buffer_accesses(True, True) for each in node.snodes]
        counts = {
            buffer: min(whole, sum(part.get(buffer, 0) for part in parts))
            for buffer, whole in counts.items()
        }
    return sum(counts.values())


def count_step(config: PretrainConfig) -> Count:
    """Return the count of a step in bfloat16; its rows are one micro-batch."""
    tokenizer = make_tokenizer(config.model.vocab_size)
    machine = Machine(META, torch.bfloat16)
    model = build_model(config, tokenizer, machine, torch.ones(config.model.vocab_size)).train()
    with mock.patch("electra.pretraining.step.build_optimizer", return_value=mock.MagicMock()):
        step = Step(model, config, Machine())  # its random numbers have no place on META
    step.machine, step.guard = machine, Guard(META)
    step.first_guard = step.first_guard and Guard(META)
    flat = FlatBuffers(build_optimizer(model, config.optimizer))
    step.weights, step.find_gradients = (  # type: ignore[method-assign]
        WorkingCopies(model, flat, machine.dtype).at_work,
        flat.gather,
    )
    batch = make_rows(config, config.train.batch_size, 0)
    if config.examples.short_prob:
        batch = batch._replace(attention_mask_BL=find_real(batch))
    count = Count()
    outside = _Outside()
    norm = torch.zeros((), device=META)  # clipping takes no tensors on META
    clipping = mock.patch.object(nn.utils, "get_total_norm", return_value=norm)
    attention = mock.patch.object(F, "scaled_dot_product_attention", _attend)
    options = compile_options(config.train)
    torch.compiler.reset()
    with attention, clipping, outside:
        step.forward = lower(model, options, count)
        step.choose = lower(model.masking.choose, options, count)
        step.measures.tally = lower(tally, options, count)
        step.judge = lower(Guard.judge, options, count)
        step.compute(batch.to(META))
    count.record["outside"] = outside.num_done
    return count


def assemble(count: Count) -> list[Launch]:
    """Return all kernels of a step; Triton's are compiled for the pretended GPU.

    Raises:
        Exception: A kernel does not compile.
    """
    from torch._inductor.runtime import triton_helpers

    assembled: dict[str, Any] = {}
    launches = list(count.libraries)
    with (
        pretended_gpu(),
        mock.patch.object(triton_helpers, "set_driver_to_gpu"),
        inductor.patch(use_static_cuda_launcher=False),  # it keeps no machine code
    ):
        for launch, numels, source in count.generated:
            if source not in assembled:
                assembled[source] = assemble_generated(source, launch.name, numels)
            assembly, num_programs = assembled[source]
            launches.append(launch._replace(assembly=assembly, num_programs=num_programs))
        for launch, arguments in count.own:
            key = f"{launch.name} {arguments}"
            if key not in assembled:
                assembled[key] = list(assemble_own(launch.name, arguments))
            for assembly, num_programs in assembled[key]:
                launches.append(launch._replace(assembly=assembly, num_programs=num_programs))
    return launches


def describe_kinds(launches: Sequence[Launch]) -> dict[str, dict[str, float]]:
    """Return by kind of kernel: launches, GB, TFLOP, and least microseconds of each cause."""
    kinds: dict[str, dict[str, float]] = {}
    for launch in launches:
        sums = kinds.setdefault(launch.kind, dict.fromkeys(KIND_SUMS, 0.0))
        values = (
            *(1, launch.num_bytes / 1e9, launch.flops / 1e12),
            *(launch.num_bytes / COPY_BYTES * 1e6, launch.flops / PRODUCT_FLOPS * 1e6),
            *(launch.issue_seconds * 1e6, launch.floor_seconds * 1e6),
        )
        for name, value in zip(KIND_SUMS, values, strict=True):
            sums[name] += value
    return dict(sorted(kinds.items(), key=lambda item: -item[1]["floor_us"]))


def list_kernels(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return Triton's kernels, alike ones once, those of the highest bounds first."""
    runs = collections.Counter(launch for launch in launches if launch.assembly)
    return [
        {"name": launch.name, "kind": launch.kind, "runs": number}
        | {"num_bytes": launch.num_bytes, "num_programs": launch.num_programs}
        | {"bytes_us": launch.num_bytes / COPY_BYTES * 1e6, "issue_us": launch.issue_seconds * 1e6}
        | cast(Assembly, launch.assembly)._asdict()
        for launch, number in sorted(
            runs.items(), key=lambda item: -item[1] * item[0].floor_seconds
        )
    ]


class _Outside(TorchDispatchMode):
    """Counts operations that launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.num_done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.num_done += not (func.is_view or name.startswith("empty"))
        return func(*args, **(kwargs or {}))


def lower(
    function: Callable[..., Any], options: dict[str, Any], count: Count
) -> Callable[..., Any]:
    """Return a function compiled for the pretended GPU; it runs on META.

    Autograd knows no pretended device. Graphs are traced on META, where a model takes the paths of
    a GPU, and moved to the GPU before they are lowered.

    Args:
        function: The objective, or another part of a step.
        options: Options of torch.compile.
        count: Receives the graphs.
    """
    from torch._inductor import compile_fx as compile_module
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.graph import GraphLowering

    improve_on_gpu = compile_module._recursive_joint_graph_passes

    define_kernel = TritonScheduling.define_kernel

    def define(self: Any, code: str, nodes: Any, kernel: Any) -> str:
        name: str = define_kernel(self, code, nodes, kernel)
        count.define(name, kernel)
        return name

    def finish(graph: GraphLowering) -> NoReturn:
        code, _ = graph.codegen()
        count.add(graph, code.value)
        raise _Lowered

    def improve(traced: Any, *words: Any, **arguments: Any) -> Any:
        for node in traced.graph.nodes:
            node.args, node.kwargs = tree_map(_to_gpu, (node.args, node.kwargs))
            node.meta = {name: tree_map(_to_gpu, value) for name, value in node.meta.items()}
        traced.recompile()
        with pretended_gpu():
            return improve_on_gpu(traced, *words, **tree_map(_to_gpu, arguments))

    def compile_inner(traced: Any, inputs: Sequence[Any], **arguments: Any) -> Any:
        (results,) = traced.graph.find_nodes(op="output")
        values = [each if each is None else each.meta["val"] for each in results.args[0]]
        try:
            with (
                pretended_gpu(),
                mock.patch.object(GraphLowering, "compile_to_module", finish),
                mock.patch.object(TritonScheduling, "define_kernel", define),
            ):
                compile_fx_inner(traced, tree_map(_to_gpu, list(inputs)), **arguments)
        except _Lowered:
            pass

        def run(arguments: list[Any]) -> list[Any]:
            arguments.clear()
            with torch.utils._python_dispatch._disable_current_modes():
                return [_without_data(value) for value in values]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    # Padding of odd shapes would be timed on the GPU.
    patches = {**options, "force_disable_caches": True, "shape_padding": False}
    backend = functools.partial(compile_fx, inner_compile=compile_inner, config_patches=patches)
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)

    def forward(*arguments: Any) -> Any:
        with (
            torch.utils._python_dispatch._disable_current_modes(),  # one would end compiling
            mock.patch.object(compile_module, "_recursive_joint_graph_passes", improve),
        ):
            return compiled(*arguments)

    return forward


class _OnCpu(TorchDispatchMode):
    """Computes constants, which have data, on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def move(value: Any) -> Any:
            return torch.device("cpu") if value == GPU else value

        kwargs = {
            name: move(value) if isinstance(value, torch.device) else value
            for name, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


def _to_gpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value == META:
        return GPU
    if isinstance(value, FakeTensor) and value.device == META:
        with torch.utils._python_dispatch._disable_current_modes():
            return FakeTensor(value.fake_mode, _without_data(value), GPU)
    return value


def _without_data(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float, scale: float
) -> Tensor:
    """Attention by the kernel that a GPU would take: Flash without, Efficient with a mask."""
    ops = torch.ops.aten
    if attn_mask is None:
        found = ops._scaled_dot_product_flash_attention(q, k, v, dropout_p, scale=scale)
    else:
        bias = attn_mask.expand(*q.shape[:3], k.shape[2])
        found = ops._scaled_dot_product_efficient_attention(
            q, k, v, bias, True, dropout_p, scale=scale
        )
    attended: Tensor = found[0]
    return attended


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let torch's compiler find a GPU of compute capability 9.0."""
    from torch._dynamo.device_interface import CudaInterface, caching_worker_device_properties
    from torch._inductor.fx_passes import fuse_attention, joint_graph
    from torch.utils._triton import has_triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: H100,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: H100.name,
        "synchronize": lambda device=None: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "_lazy_init": lambda: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
    }
    interface: dict[str, Any] = {
        name: staticmethod(answers[name])
        for name in ("is_available", "device_count", "current_device", "get_device_properties")
    }
    folder = joint_graph.UniformValueConstantFolder
    fold_on_gpu = folder.run

    def fold(graph: Any) -> Any:
        with _OnCpu():
            return fold_on_gpu(graph)

    triton_gpu = mock.Mock(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
    )
    with (
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch.multiple(CudaInterface, **interface),
        mock.patch.dict(caching_worker_device_properties, {"cuda": [H100]}),
        mock.patch.object(driver, "_active", triton_gpu),
        mock.patch.object(fake_tensor, "init_gpu_context"),
        mock.patch.object(folder, "run", fold),
        # Patterns of attention would ask for a device; ours is one operation from the start.
        mock.patch.object(fuse_attention, "_sfdp_init"),
    ):
        has_triton.cache_clear()
        yield
    has_triton.cache_clear()


def count_variant(
    name: str, settings: Sequence[str] = (), *, assembles: bool = False
) -> dict[str, Any]:
    """Return the record of a variant: its counts, rows, length and settings."""
    preset, own = VARIANTS[name]
    words = [f"train.batch_size={ROWS[preset]}", *own, *settings]
    config = override(PRESETS[preset], words)
    began = time.perf_counter()
    count = count_step(config)
    launches = assemble(count) if assembles else []
    kernels = list_kernels(launches)
    return {
        "commit": find_commit(),
        "preset": preset,
        "settings": words,
        "rows": config.train.batch_size,
        "length": config.examples.sequence_length,
        **count.record,
        "assembled": len({each["name"] for each in kernels}),
        "kinds": describe_kinds(launches),
        "kernels": kernels[:NUM_LISTED],
        "seconds": time.perf_counter() - began,
    }


def tabulate(records: dict[str, dict[str, Any]]) -> Table:
    """Return the table of the counts, one row per variant."""
    return Table(
        [
            "variant",
            "rows",
            "Triton",
            "products",
            "attention",
            "eager sums",
            "memsets",
            "others",
            "outside",
            "assembled",
            "GB",
            "KB/token",
        ],
        [
            [
                name,
                f"{record['rows']} x {record['length']}",
                *(
                    f"{record[kind]:,}"
                    for kind in (
                        *("triton", "products", "attention", "sums", "memsets", "others"),
                        "outside",
                    )
                ),
                str(record["assembled"] or "-"),
                f"{record['bytes'] / 1e9:.2f}",
                f"{record['bytes'] / record['rows'] / record['length'] / 1e3:,.0f}",
            ]
            for name, record in records.items()
        ],
    )


def tabulate_kinds(records: dict[str, dict[str, Any]]) -> Table:
    """Return the table of least microseconds by kind of kernel, of assembled variants."""
    return Table(
        [
            "variant",
            "kind",
            "launches",
            "GB",
            "us of bytes",
            "of products",
            "of instructions",
            "us",
        ],
        [
            [
                name,
                kind,
                f"{sums['launches']:.0f}",
                f"{sums['gb']:.2f}",
                *(f"{sums[cause]:,.0f}" for cause in KIND_SUMS[3:]),
            ]
            for name, record in records.items()
            for kind, sums in record.get("kinds", {}).items()
        ],
    )


def tabulate_kernels(records: dict[str, dict[str, Any]]) -> Table:
    """Return the table of Triton's kernels with the highest bounds, of assembled variants."""
    heads = ["variant", "kernel", "kind", "runs", "registers", "spills", "warps", "instructions"]
    return Table(
        [*heads, "us of bytes", "us of instructions"],
        [
            [
                *(name, each["name"][:60], each["kind"]),
                *(str(each[field]) for field in ("runs", "registers", "spills", "num_warps")),
                f"{each['instructions']:,}",
                *(f"{each[field]:.1f}" for field in ("bytes_us", "issue_us")),
            ]
            for name, record in records.items()
            for each in record.get("kernels", [])[:NUM_SHOWN]
        ],
    )


def describe(facts: dict[str, Any], records: dict[str, dict[str, Any]]) -> str:
    """Return the records as Markdown: counts, kinds of kernels, and kernels."""
    commits = dict.fromkeys(str(record["commit"])[:10] for record in records.values())
    title = f"torch {facts['torch']}, commits {', '.join(commits)}, bfloat16"
    tables = (tabulate(records), tabulate_kinds(records), tabulate_kernels(records))
    texts = [title, *(to_markdown(table) for table in tables if table.rows)]
    if len(texts) > 2:
        texts.insert(2, LEAST_TIMES)
    return "\n\n".join(texts) + "\n"


def main() -> None:
    """Count, print tables, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--assemble", action="store_true")
    arguments = parser.parse_args()
    facts = {"torch": torch.__version__, "settings": arguments.set}
    records: dict[str, dict[str, Any]] = {}
    if arguments.out and arguments.out.exists():  # a command that was interrupted continues
        written = read_object(arguments.out)
        if facts == {name: written[name] for name in facts}:
            records = written["variants"]
    for name in arguments.variants:
        if name in records:
            continue
        records[name] = count_variant(name, arguments.set, assembles=arguments.assemble)
        print(f"{name}: {records[name]}", flush=True)
        if arguments.out:
            write_json(arguments.out, {**facts, "variants": records})
            write_text(arguments.out.with_suffix(".md"), describe(facts, records))
    print(describe(facts, records))


if __name__ == "__main__":
    main()

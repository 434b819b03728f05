"""Registers, instructions and least times of kernels, compiled for an absent GPU.

Triton's kernels are compiled to machine code for compute capability 9.0. From its disassembly come
registers, spills, and the instructions of a warp, loops as often as they run. A kernel takes at
least the time of its bytes, of its operations, and of its instructions, of which a processor issues
four in a cycle. A combo kernel's parts count as equally long.
"""

import math
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

COPY_BYTES, PRODUCT_FLOPS = 4.1e12, 620e12
"""Bytes a second of a copy on an H200, and three quarters of its fastest product in bfloat16: as
measured, results/gpu/small.json."""
NUM_PROCESSORS, ISSUED, CLOCK = 132, 4, 1.755e9
"""Streaming multiprocessors, warp instructions a cycle of each, and cycles a second under load."""
TYPES = {
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.uint8: "u8",
}


class Assembly(NamedTuple):
    """A compiled kernel."""

    registers: int
    spills: int
    """Loads and stores of registers that did not fit."""
    shared: int
    """Shared memory of a program, bytes."""
    instructions: int
    """Instructions that a warp executes, or a warp of one part of a combo kernel."""
    num_warps: int


class Launch(NamedTuple):
    """A kernel of a step."""

    name: str
    kind: str
    num_bytes: int
    flops: int = 0
    assembly: Assembly | None = None
    num_programs: int = 0

    @property
    def issue_seconds(self) -> float:
        """Least time in which its instructions are issued; 0 if they are not known."""
        if self.assembly is None:
            return 0.0
        num_instructions = self.num_programs * self.assembly.num_warps * self.assembly.instructions
        return num_instructions / (NUM_PROCESSORS * ISSUED * CLOCK)

    @property
    def floor_seconds(self) -> float:
        """Least time of its bytes, operations and instructions."""
        return max(self.num_bytes / COPY_BYTES, self.flops / PRODUCT_FLOPS, self.issue_seconds)


def read_cubin(cubin: bytes, shared: int, num_warps: int, trips: int, parts: int = 1) -> Assembly:
    """Return what the tools of CUDA, which Triton brings, report on machine code.

    Args:
        cubin: The machine code of one kernel.
        shared: Its shared memory, bytes.
        num_warps: Warps of a program.
        trips: How often each loop runs.
        parts: Parts of a combo kernel, of which a program executes one.
    """
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run(
                [tools / tool, option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for tool, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    counts = count_instructions(code, trips)
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None, usage
    spills = sum(count for name, count in counts.items() if name in ("LDL", "STL"))
    return Assembly(int(registers[1]), spills, shared, counts.total() // parts, num_warps)


def count_instructions(code: str, trips: int) -> Counter[str]:
    """Return how often a warp executes each instruction of a disassembly, by name."""
    instructions: list[tuple[int, str, str]] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in code.splitlines():
        if label := re.match(r"(\.L\w+):", line):
            waiting.append(label[1])
        elif found := re.match(r"\s+/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)(.*)", line):
            place = int(found[1], 16)
            labels |= dict.fromkeys(waiting, place)
            waiting.clear()
            instructions.append((place, found[2], found[3]))
    loops = [
        (labels[target[1]], place)
        for place, name, rest in instructions
        if name == "BRA" and (target := re.search(r"(\.L\w+)", rest))
        if labels.get(target[1], place) < place
    ]
    counts: Counter[str] = Counter()
    for place, name, _ in instructions:
        if name != "NOP":
            counts[name] += trips ** sum(first <= place <= last for first, last in loops)
    return counts


def assemble_generated(source: str, name: str, numels: Sequence[dict[str, int]]) -> tuple[Any, ...]:
    """Return assembly and number of programs of a kernel that torch's compiler wrote.

    Of several configurations, takes the one with the fewest instructions.

    Args:
        source: The kernel's file.
        name: The kernel's name.
        numels: Sizes by axis of the kernel, or of each part of a combo kernel.

    Raises:
        Exception: The kernel does not compile.
    """
    from torch._inductor.codecache import PyCodeCache

    kernel = getattr(PyCodeCache.load(source), name)
    kernel.precompile(warm_cache_only=True)
    found = []
    for result in kernel.compile_results:
        blocks, num_programs, trips = result.config.kwargs, 0, 1
        for part, sizes in enumerate(numels):
            num_blocks = 1
            for axis, size in sizes.items():
                one = f"{axis.upper()}BLOCK"
                block = blocks.get(f"{one}_{part}", blocks.get(one, size if "r" in axis else 1))
                if "r" in axis:
                    trips = max(trips, math.ceil(size / block))
                else:
                    num_blocks *= math.ceil(size / block)
            num_programs += num_blocks
        compiled = result.kernel
        shared, num_warps = compiled.metadata.shared, result.config.num_warps
        cubin = compiled.asm["cubin"]
        assembly = read_cubin(cubin, shared, num_warps, trips, len(numels))
        found.append((assembly, num_programs))
    return min(found, key=lambda each: each[0].instructions * each[0].num_warps * each[1])


def assemble_own(name: str, arguments: Sequence[Any]) -> Iterator[tuple[Assembly, int]]:
    """Yield assembly and number of programs of each kernel that an operation of ours launches.

    Args:
        name: Name of the operation, such as "electra::attend".
        arguments: Its arguments, with tensors on META.
    """
    from torch._library.custom_ops import OPDEFS
    from triton.runtime.jit import JITFunction

    launches: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def record(self: Any, *words: Any, **settings: Any) -> None:
        launches.append((self, words, settings))

    with mock.patch.object(JITFunction, "run", record):
        OPDEFS[name]._init_fn(*arguments)
    for kernel, words, settings in launches:
        num_programs = math.prod(settings["grid"])
        yield compile_launch(kernel, words, settings, num_programs), num_programs


def compile_launch(
    kernel: Any, words: Sequence[Any], settings: dict[str, Any], num_programs: int
) -> Assembly:
    """Return the assembly of a kernel of Triton for the arguments of a launch."""
    import triton
    from triton.backends.compiler import GPUTarget

    given = dict(zip(kernel.arg_names, words, strict=False)) | settings
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: dict[tuple[int], list[list[str | int]]] = {}
    for number, name in enumerate(kernel.arg_names):
        value = given[name]
        is_tensor = isinstance(value, Tensor)
        if kernel.params[number].is_constexpr or (type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif is_tensor:
            signature[name] = f"*{TYPES[value.dtype]}"
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if is_tensor or (signature[name] == "i32" and value % 16 == 0):
            aligned[(number,)] = [["tt.divisibility", 16]]
    options = {name: given[name] for name in ("num_warps", "num_stages") if name in given}
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    # A program whose rows do not fit at once takes every `num_programs`-th block of them.
    trips = math.ceil(given["M"] / given["ROWS"] / num_programs) if "M" in given else 1
    if "PADDED" in given:  # loops over tiles of scores: a row of them, or those of some rows
        blocks = given["PADDED"] // given["BLOCK"]
        num_tiles = given.get("B", 1) * given["N"] * blocks**2
        trips = math.ceil(num_tiles / num_programs) if "B" in given else blocks
    metadata = compiled.metadata
    return read_cubin(compiled.asm["cubin"], metadata.shared, metadata.num_warps, trips)

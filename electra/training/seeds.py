"""Seeds of all random numbers, as functions of (seed, stream, step)."""

import hashlib


def step_seed(seed: int, stream: str, step: int) -> int:
    """Return a 63-bit seed: a hash of (seed, stream, step).

    Args:
        seed: Seed of the run.
        stream: Name of the use, such as "dropout", "corruption" or "order". Different streams have
            uncorrelated random numbers.
        step: Number of the step, from 0.
    """
    digest = hashlib.blake2b(f"{seed}/{stream}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

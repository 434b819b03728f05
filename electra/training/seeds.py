"""Seeds: every random number is a function of (seed, stream, step)."""

import hashlib


def step_seed(seed: int, stream: str, step: int) -> int:
    """Return a 63-bit seed that is a pure function of (seed, stream, step), unlike its neighbours'.

    Streams keep apart what must not be correlated: "dropout", "corruption", "order" ...
    """
    digest = hashlib.blake2b(f"{seed}/{stream}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

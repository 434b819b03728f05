"""A service as a process of its own, and the networks that it should answer like."""

import sys
from contextlib import contextmanager

from benchmarks.serve import start_server
from electra.checkpoints.folder import read_pretrained
from electra.inference.network import load_network
from electra.training.machine import Machine


@contextmanager
def served(*words, verb="serve", limits=()):
    """A process that serves, and its port; it must end as a stopped service does."""
    words = [sys.executable, "-m", "electra", verb, *map(str, words)]
    if "--port" not in words:
        words += ["--port", "0"]
    process, port = start_server([*words, "--set", "threads=1", *limits])
    try:
        yield process, port
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def load_alone(folder, predicts):
    """The network of a folder that predicts "tokens" or "replaced", on one thread in float32."""
    model = read_pretrained(folder)
    return load_network(model, model.network(predicts), Machine())

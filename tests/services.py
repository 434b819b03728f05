"""A service as a process of its own, and the networks that it should answer like."""

import os
import re
import sys
import warnings
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.context import ForkProcess

from electra.checkpoints.folder import read_pretrained
from electra.cli import main
from electra.inference.network import load_network
from electra.training.machine import Machine


class Command(ForkProcess):
    """A command in a copy of this process, which has imported all; with the methods of Popen."""

    def __init__(self, words):
        super().__init__()
        import_module("electra.service.service")  # once, and not in each process
        self.words = words
        end, self.out = os.pipe()
        self.stdout = os.fdopen(end)
        self.start()
        os.close(self.out)

    def run(self):
        os.dup2(self.out, 1)
        os.close(self.out)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # or it warns about the copy
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        main(self.words)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=None):
        self.join(seconds)
        return self.exitcode


@contextmanager
def served(*words, verb="serve", limits=()):
    """A process that serves, and its port; it must end as a stopped service does."""
    words = [verb, *map(str, words)]
    if "--port" not in words:
        words += ["--port", "0"]
    process = Command([*words, "--set", "threads=1", *limits])
    try:
        port = int(re.search(r"http://\S+:(\d+)", process.stdout.readline())[1])
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

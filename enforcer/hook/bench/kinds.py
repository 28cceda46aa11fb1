"""The kinds of programs that the measurements on a real GPU run, by name.

A kind's module is imported when a worker prepares it: a worker that runs JAX
never loads PyTorch.
"""

import importlib

KINDS = {
    # Programs that queue ahead.
    "queue": "queues.queue",
    "graph": "queues.graph2",
    "graph10": "queues.graph10",
    "compiled": "queues.compiled",
    "small": "queues.small",
    "bursty": "queues.bursty",
    "train": "queues.train",
    # Programs that wait for each step.
    "steps": "programs.steps",
    "streams": "programs.streams",
    "jax": "programs.jitted",
    "cupy": "programs.library",
    "triton": "programs.axpys",
    "gpt2": "programs.gpt2",
    "decode": "programs.decode",
    "loader": "programs.loader",
    "alloc64k": "programs.alloc64k",
    "alloc1m": "programs.alloc1m",
    "alloc20m": "programs.alloc20m",
    "alloc512m": "programs.alloc512m",
    "tick": "programs.tick",
    "silent": "programs.silent",
    "launches": "launches.empty",
    # Programs with a process on each of several GPUs.
    "ddp": "programs.ddp",
    "bcast": "programs.bcast",
}

# What the tests of queues alone call them.
KINDS.update(eager=KINDS["queue"], graph2=KINDS["graph"], compile=KINDS["compiled"])


def prepare(kind, gang):
    """Builds a kind's program, and runs it until nothing is left to compile, to
    load or to allocate."""
    module, function = KINDS[kind].split(".")
    program = getattr(importlib.import_module(module), function)(gang)
    program.warm(gang)
    return program

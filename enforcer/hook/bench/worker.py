"""A worker of the measurements on a real GPU: runs a program on command, and
says how many steps the GPU has completed, and when.

    worker.py [RANKS]   with a process on each of so many GPUs

Commands on stdin, one a line:
    prepare KIND        answered by `ready KIND SECONDS`, the least that a step
                        took, or `skip KIND why`
    run KIND SECONDS    lines `step NS COUNT` about every 20 ms, for a bursty
                        kind also `burst NS LATENCY_US`, and at the end
                        `times P50_US P99_US MAX_US` of a step, and
                        `total NS COUNT SECONDS`
    quit

NS is CLOCK_MONOTONIC. A step's moment is the one at which the GPU reached the
event after it, where the program queues ahead, so it does not matter how late
the loop looks; a program that waits for its steps says when it knew.
"""

import os
import sys

import gang
import kinds

for name, value in {
    "HF_HUB_OFFLINE": "1",
    # A program that uses NVLink's multicast can put a shared host's GPUs out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    # JAX shares the card with the other workers.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": ".10",
}.items():
    os.environ.setdefault(name, value)


def answer(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    ranks = gang.Gang(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    prepared = {}
    for line in sys.stdin:
        ranks.tell(line)
        command, *words = line.split()
        if command == "quit":
            break
        kind = words[0]
        if command == "run":
            prepared[kind].run(float(words[1]), ranks)
            continue
        try:
            if kind not in prepared:
                prepared[kind] = kinds.prepare(kind, ranks)
            answer(f"ready {kind} {prepared[kind].seconds:.9f}")
        except Exception as e:  # A compiler may be missing: the harness says so aloud.
            answer(f"skip {kind} {type(e).__name__}: {e}".replace("\n", " ")[:400])
    if ranks.size > 1:
        os._exit(0)  # NCCL would wait for the other ranks


main()

"""Takes GPU memory in steps of 20 MiB until PyTorch says that there is no more.

Prints `ready FREE TOTAL BACKEND` (bytes of torch.cuda.mem_get_info, and the
allocator that was chosen) once there is a context, waits for a line on stdin,
takes memory, and prints `memory HELD RESERVED ERROR` (bytes in tensors, bytes
that the allocator took of the driver, and the exception's name). It holds all
until the next line. PYTORCH_ALLOC_CONF chooses the allocator.
"""

import sys

import torch

STEP = 20 << 20


def take():
    held = []
    try:
        while True:
            held.append(torch.empty(STEP, dtype=torch.uint8, device="cuda"))
    except Exception as e:
        return held, type(e).__name__


torch.cuda.init()
first = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")  # what the driver makes for itself once
torch.cuda.synchronize()
del first
torch.cuda.empty_cache()
print("ready", *torch.cuda.mem_get_info(), torch.cuda.get_allocator_backend(), flush=True)
sys.stdin.readline()
held, error = take()
print("memory", len(held) * STEP, torch.cuda.memory_reserved(), error, flush=True)
sys.stdin.readline()

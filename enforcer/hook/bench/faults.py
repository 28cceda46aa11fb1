"""A program that works, and then breaks a rule for memory or kernels.

    faults.py HOW SEED

HOW is beyond, before, freed or wild (an address that a kernel writes to, from the driver's allocator), assert, trap or
misaligned, or the framework whose own work goes before a wild address: torch, compile, graph, triton, jax or cupy. The
line "fault ADDRESS BYTES KERNEL" tells what it is about to do: the address, the size of the allocation of which it
counts (0: none), and the kernel that does it. After a framework's work, the kernels that torch.profiler has seen
follow, in a line of JSON each. The last line is "failed" and the error, or "unharmed".
"""

import json
import os
import random
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".05")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import cupy  # noqa: E402

MIB = 1 << 20
SOURCE = r"""
extern "C" __global__ void work(float *p) { for (int i = 0; i < 2000; i++) p[threadIdx.x] += 1; }
extern "C" __global__ void touch(unsigned long long at) { *(volatile int *)at = 1; }
extern "C" __global__ void crooked(char *p) { *(volatile int *)(p + 1) = 1; }
extern "C" __global__ void trapped(char *p) { asm("trap;"); }
"""


def torch_step(compiled=False, graph=False):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024)).cuda()
    x = torch.randn(512, 1024, device="cuda")
    forward = torch.compile(model) if compiled else model
    def step():
        loss = forward(x).square().mean()
        loss.backward()
        return loss
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    for one in sorted({e.name for e in seen.events()}):
        print(json.dumps(one), flush=True)
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        return captured.replay
    return step


def triton_step():
    import axpy
    import torch

    x, y = (torch.randn(1 << 20, device="cuda") for _ in range(2))
    print(json.dumps("axpy"), flush=True)
    return lambda: axpy.launch(x, y)


def jax_step():
    import jax

    x = jax.numpy.ones((512, 512))
    step = jax.jit(lambda x: jax.numpy.tanh(x @ x).sum(axis=0)[None] + x)
    return lambda: step(x).block_until_ready()


def cupy_step():
    x = cupy.random.rand(512, 512)
    return lambda: cupy.tanh(x @ x).sum()


FRAMEWORKS = {"torch": torch_step, "compile": lambda: torch_step(compiled=True), "graph": lambda: torch_step(graph=True),
              "triton": triton_step, "jax": jax_step, "cupy": cupy_step}


def main():
    how, seed = sys.argv[1], int(sys.argv[2])
    random.seed(seed)
    module = cupy.RawModule(code=SOURCE)
    kernel = {"assert": "", "trap": "trapped", "misaligned": "crooked"}.get(how, "touch")
    run, work = module.get_function(kernel or "work"), module.get_function("work")
    malloc, free = cupy.cuda.runtime.malloc, cupy.cuda.runtime.free
    sizes = [random.randrange(1, 17) * 2 * MIB for _ in range(12)]
    held = [(malloc(size), size) for size in sizes]
    step = FRAMEWORKS.get(how, lambda: lambda: work((1,), (32,), (cupy.uint64(held[0][0]),)))()
    for _ in range(250):
        step()
    cupy.cuda.runtime.deviceSynchronize()
    for _ in range(0 if how not in FRAMEWORKS else 60):
        step()
    address, size = 0x10_0000_0000 + random.randrange(1 << 30) * 512, 0
    inside = random.randrange(2 * MIB // 512) * 512
    if how == "beyond":
        base, size = max(held)
        address = base + size + inside
    elif how == "before":
        base, size = min(held)
        address = base - 512 - inside
    elif how == "freed":
        base, size = held.pop(random.randrange(1, 12))
        free(base)
        address = base + inside
    elif how in ("misaligned", "trap"):
        address = held[0][0]
    if how == "assert":
        import torch

        values, index = torch.zeros(10, device="cuda"), torch.full((32,), 10 + seed, device="cuda")
        torch.cuda.synchronize()
        print("fault 0 0 index", flush=True)
    else:
        print(f"fault {address} {size} {kernel}", flush=True)
    try:
        if how == "assert":
            values[index]
            torch.cuda.synchronize()
        else:
            run((1,), (1,), (cupy.uint64(address),))
            cupy.cuda.runtime.deviceSynchronize()
        print("unharmed", flush=True)
    except Exception as err:
        print("failed", str(err).splitlines()[0], flush=True)
    os._exit(0)


main()

"""Takes GPU memory in steps of 20 MiB until the framework says that there is no
more: memory.py torch|jax|cupy, or first or rounds without a framework.

Prints `ready FREE TOTAL ALLOCATOR` (bytes that the framework sees, and the
allocator that was chosen) once there is a context, waits for a line on stdin,
takes memory, and prints `memory HELD RESERVED ERROR` (bytes in arrays, bytes
that the allocator took of the driver, or -1 where it does not say, and the
exception's name). It holds all until the next line. PYTORCH_ALLOC_CONF and
XLA_PYTHON_CLIENT_ALLOCATOR choose the allocator.
"""

import os
import sys

STEP = 20 << 20


class Torch:
    def __init__(self):
        import torch

        self.torch = torch
        torch.cuda.init()
        self.take()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def take(self):
        return self.torch.empty(STEP, dtype=self.torch.uint8, device="cuda")

    def seen(self):
        return *self.torch.cuda.mem_get_info(), self.torch.cuda.get_allocator_backend()

    def reserved(self):
        return self.torch.cuda.memory_reserved()


class Jax:
    def __init__(self):
        import jax.numpy

        self.jax = jax
        self.zeros = jax.jit(lambda: jax.numpy.zeros(STEP, jax.numpy.uint8))
        self.take()

    def take(self):
        return self.zeros().block_until_ready()

    def seen(self):
        # JAX says what its allocator may use: its part of what the card has.
        limit = (self.jax.devices()[0].memory_stats() or {}).get("bytes_limit", -1)
        return -1, limit, os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default")

    def reserved(self):
        return (self.jax.devices()[0].memory_stats() or {}).get("pool_bytes", -1)


class CuPy:
    def __init__(self):
        import cupy

        self.cupy = cupy
        self.take()
        cupy.cuda.Device().synchronize()
        cupy.get_default_memory_pool().free_all_blocks()

    def take(self):
        return self.cupy.empty(STEP, dtype=self.cupy.uint8)

    def seen(self):
        return *self.cupy.cuda.runtime.memGetInfo(), "pool"

    def reserved(self):
        return self.cupy.get_default_memory_pool().total_bytes()


class First:
    """The driver's interface before CUDA 3.2: each context holds less than 4 GiB."""

    def __init__(self):
        import ctypes

        self.ctypes, self.cu, self.taken = ctypes, ctypes.CDLL("libcuda.so.1"), 0
        self.check(self.cu.cuInit(0))
        self.context()

    def check(self, code):
        if code:
            print("error", code, "after", self.taken, "bytes", file=sys.stderr)
            raise MemoryError(code)

    def context(self):
        self.check(self.cu.cuCtxCreate(self.ctypes.byref(self.ctypes.c_void_p()), 0, 0))

    def take(self):
        at = self.ctypes.c_uint()
        if self.taken and self.taken % (100 * STEP) == 0:
            self.context()
        self.check(self.cu.cuMemAlloc(self.ctypes.byref(at), STEP))
        self.taken += STEP

    def seen(self):
        return -1, -1, "contexts"

    def reserved(self):
        return self.taken


class Rounds:
    """A program that ends its context each 500 MiB and frees nothing of its
    pool: the driver keeps it."""

    def __init__(self):
        import ctypes

        self.ctypes, self.cu, self.taken = ctypes, ctypes.CDLL("libcuda.so.1"), 0
        self.check(self.cu.cuInit(0))
        self.context()

    def check(self, code):
        if code:
            raise MemoryError(code)

    def context(self):
        context = self.ctypes.c_void_p()
        self.check(self.cu.cuDevicePrimaryCtxRetain(self.ctypes.byref(context), 0))
        self.check(self.cu.cuCtxSetCurrent(context))

    def take(self):
        if self.taken and self.taken % (25 * STEP) == 0:
            self.check(self.cu.cuCtxSynchronize())
            self.check(self.cu.cuCtxSetCurrent(None))
            self.check(self.cu.cuDevicePrimaryCtxRelease_v2(0))
            self.context()
        at = self.ctypes.c_uint64()
        self.check(self.cu.cuMemAllocAsync(self.ctypes.byref(at), self.ctypes.c_size_t(STEP), None))
        self.taken += STEP

    def seen(self):
        return -1, -1, "pool"

    def reserved(self):
        return self.taken


def take(framework):
    held = []
    try:
        while True:
            held.append(framework.take())
    except Exception as e:
        return held, type(e).__name__


framework = {"torch": Torch, "jax": Jax, "cupy": CuPy, "first": First, "rounds": Rounds}[sys.argv[1]]()
print("ready", *framework.seen(), flush=True)
sys.stdin.readline()
held, error = take(framework)
print("memory", len(held) * STEP, framework.reserved(), error, flush=True)
sys.stdin.readline()

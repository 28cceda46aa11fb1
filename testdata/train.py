"""A rank of a job that trains on the simulated driver and NCCL, which it loads as frameworks do.

    train.py GANG RANKS RANK GPU FAULT

GANG is a number that no other job on these GPUs has. At step AT a rank with a FAULT writes "fault NS"
(CLOCK_MONOTONIC), and the job hangs. It stands at the line with the comment "stands: FAULT" then. Each rank writes "ready" when the job
steps regularly.
"""

import sys
import time
from ctypes import CDLL, RTLD_GLOBAL, Structure, byref, c_char, c_float, c_size_t, c_uint64, c_void_p, cast, pointer

AT = 80
GRADIENTS = 25 << 20
MILLISECOND = 1_000_000
FOREVER = 2**62
FLOAT, SUM, NON_BLOCKING = 7, 0, 1

gang, ranks, rank, gpu = (int(n) for n in sys.argv[1:5])
fault = sys.argv[5] if len(sys.argv) > 5 else ""
cuda = CDLL("libcuda.so.1", RTLD_GLOBAL)
nccl = CDLL("libnccl.so.2")


class UniqueId(Structure):
    _fields_ = [("bytes", c_char * 128)]


def check(result):
    if result:
        raise RuntimeError(f"error {result}")


def made(call, *args):
    """The handle that a call writes to its first argument."""
    handle = c_void_p()
    check(call(byref(handle), *args))
    return handle


def launch(nanoseconds):
    time_of_kernel = c_uint64(nanoseconds)
    arguments = (c_void_p * 1)(cast(pointer(time_of_kernel), c_void_p))
    check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None))


def reduce(elements):
    check(nccl.ncclAllReduce(None, None, c_size_t(elements), FLOAT, SUM, communicator, stream))


def load(faulty):
    while faulty:
        time.sleep(1)  # stands: loader
    time.sleep(0.005)


def read_loss():
    value = c_float()
    check(cuda.cuMemcpyDtoHAsync_v2(byref(value), loss, c_size_t(4), stream))
    check(cuda.cuStreamSynchronize(stream))  # stands: skip, unlike, endless


def train(step):
    now = fault if step == AT else ""
    if now:
        print("fault", time.monotonic_ns(), flush=True)
    load(now == "loader")
    launch(FOREVER if now == "endless" else 10 * MILLISECOND)
    if now != "skip":
        reduce(GRADIENTS)
    launch(10 * MILLISECOND)
    reduce(GRADIENTS // (2 if now == "unlike" else 4))
    read_loss()


check(cuda.cuInit(0))
check(cuda.cuCtxSetCurrent(made(cuda.cuDevicePrimaryCtxRetain, gpu)))
kernel = made(cuda.cuModuleGetFunction, made(cuda.cuModuleLoadData, b""), b"spin")
stream = made(cuda.cuStreamCreate, NON_BLOCKING)
loss = made(cuda.cuMemAlloc_v2, c_size_t(4))
communicator = made(nccl.ncclCommInitRank, ranks, UniqueId(b"gang %d" % gang), rank)
step = 0
while True:
    step += 1
    train(step)
    if step == AT:
        print("ready", flush=True)

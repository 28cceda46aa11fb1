"""A process with one thread that makes one kind of call again and again.

Usage: calls.py CALL. Without CALL it prints their names. It holds 64 MiB of GPU memory, and obeys
lines on stdin:
  begin   the thread makes its calls, one each millisecond
  count   prints "count N RESULT": how many calls have ended, and the last one's result
"""
import ctypes
import mmap
import socket
import sys
import threading
import time

cuda = ctypes.CDLL("libcuda.so.1")
context, memory, stream, event, pool = (ctypes.c_void_p() for _ in range(5))
number, other, ms = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_float()
host = ctypes.create_string_buffer(1 << 20)


def check(result):
    if result:
        raise RuntimeError(f"the driver says {result}")


def begin():
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20)))
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    check(cuda.cuEventCreate(ctypes.byref(event), 0))
    check(cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0))
    check(cuda.cuMemsetD8Async(memory, 1, ctypes.c_size_t(64 << 20), stream))
    check(cuda.cuEventRecord(event, stream))
    check(cuda.cuStreamSynchronize(stream))


def pushed():
    popped = ctypes.c_void_p()
    return cuda.cuCtxPushCurrent_v2(context) or cuda.cuCtxPopCurrent_v2(ctypes.byref(popped))


def opened():
    with socket.socket(socket.AF_UNIX) as s:
        s.fileno()
    return 0


def mapped():
    with mmap.mmap(-1, 1 << 16) as m:
        m[0] = 1
    return 0


def allocated():
    p = ctypes.c_void_p()
    return cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 21)) or cuda.cuMemFree_v2(p)


def pinned():
    p = ctypes.c_void_p()
    return cuda.cuMemAllocHost_v2(ctypes.byref(p), ctypes.c_size_t(1 << 16)) or cuda.cuMemFreeHost(p)


def loaded():
    module = ctypes.c_void_p()
    code = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry f() { ret; }\n"
    return cuda.cuModuleLoadData(ctypes.byref(module), code) or cuda.cuModuleUnload(module)


def of_nvml():
    nvml, device, info = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    return (nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
            or nvml.nvmlDeviceGetMemoryInfo(device, info))


calls = {
    "none": lambda: 0,
    "a socket": opened,
    "a mapping": mapped,
    "cuDriverGetVersion": lambda: cuda.cuDriverGetVersion(ctypes.byref(number)),
    "cuCtxPushCurrent": pushed,
    "cuThreadExchangeStreamCaptureMode": lambda: cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(2))),
    "cuStreamIsCapturing": lambda: cuda.cuStreamIsCapturing(stream, ctypes.byref(number)),
    "cuStreamQuery": lambda: cuda.cuStreamQuery(stream),
    "cuEventQuery": lambda: cuda.cuEventQuery(event),
    "cuEventRecord": lambda: cuda.cuEventRecord(event, stream),
    "cuEventCreate": lambda: cuda.cuEventCreate(ctypes.byref(ctypes.c_void_p()), 1),
    "cuMemGetInfo": lambda: cuda.cuMemGetInfo_v2(ctypes.byref(other), ctypes.byref(other)),
    "cuMemsetD8Async": lambda: cuda.cuMemsetD8Async(memory, 2, ctypes.c_size_t(1 << 20), stream),
    "cuEventElapsedTime": lambda: cuda.cuEventElapsedTime(ctypes.byref(ms), event, event),
    "cuEventSynchronize": lambda: cuda.cuEventSynchronize(event),
    "cuStreamSynchronize": lambda: cuda.cuStreamSynchronize(stream),
    "cuCtxSynchronize": lambda: cuda.cuCtxSynchronize(),
    "cuStreamWaitEvent": lambda: cuda.cuStreamWaitEvent(stream, event, 0),
    "cuStreamGetFlags": lambda: cuda.cuStreamGetFlags(stream, ctypes.byref(number)),
    "cuCtxGetCurrent": lambda: cuda.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())),
    "cuPointerGetAttribute": lambda: cuda.cuPointerGetAttribute(ctypes.byref(number), 2, memory),
    "cuMemGetAddressRange": lambda: cuda.cuMemGetAddressRange_v2(None, ctypes.byref(other), memory),
    "cuMemPoolGetAttribute": lambda: cuda.cuMemPoolGetAttribute(pool, 5, ctypes.byref(ctypes.c_uint64())),
    "cuDeviceGetAttribute": lambda: cuda.cuDeviceGetAttribute(ctypes.byref(number), 16, 0),
    "cuDeviceTotalMem": lambda: cuda.cuDeviceTotalMem_v2(ctypes.byref(other), 0),
    "cuMemAlloc": allocated,
    "cuMemAllocHost": pinned,
    "cuModuleLoadData": loaded,
    "nvmlDeviceGetMemoryInfo": of_nvml,
    "cuMemcpyDtoH": lambda: cuda.cuMemcpyDtoH_v2(host, memory, ctypes.c_size_t(1 << 20)),
}
started, done, last = threading.Event(), 0, 0


def run():
    global done, last
    cuda.cuCtxSetCurrent(context)
    started.wait()
    while True:
        last = calls[sys.argv[1]]()
        done += 1
        time.sleep(0.001)


if len(sys.argv) < 2:
    print(*calls, sep="\n")
    sys.exit()
begin()
threading.Thread(target=run, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "begin":
        started.set()
    print("count", done, last, flush=True)

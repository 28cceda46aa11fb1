"""A training program whose result is the same bit for bit in every run.

Usage: exact.py GIB. It holds so many GiB of GPU memory, and obeys lines on stdin:
  go N    trains for N steps, each of which changes all of the memory, and prints "did TOTAL"
  loop S  trains for ever, resting S seconds after each step, and prints "step NS TOTAL", the
          time on CLOCK_MONOTONIC
  hash    prints "hash SHA256" of the parameters and the optimizer's state
  copy    prints "copy DOWN UP": the rates of copies between the GPU and pinned host memory, GiB/s
  ahead   has the kernel give all memory that the process maps from now on before its first use, and
          prints "ahead"
"""
import ctypes
import hashlib
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch  # noqa: E402

torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
width = 2048
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
ballast = torch.arange(int(float(sys.argv[1]) * 2**30) // 4, dtype=torch.int32, device="cuda")
total = 0


def train(steps):
    global total
    for _ in range(steps):
        x = torch.randn(256, width, device="cuda")
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ballast.add_(total)
        loss.item()
        total += 1


def digest():
    sha = hashlib.sha256()
    tensors = list(model.parameters()) + [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    for t in tensors:
        sha.update(t.detach().cpu().numpy().tobytes())
    for part in ballast.split(2**26):
        sha.update(part.cpu().numpy().tobytes())
    sha.update(torch.cuda.get_rng_state().numpy().tobytes())
    return sha.hexdigest()


def copies():
    host = torch.empty(2**28, dtype=torch.int32, pin_memory=True)
    part = ballast[: host.numel()]
    rates = []
    for to, source in ((host[: part.numel()], part), (part, host[: part.numel()])):
        torch.cuda.synchronize()
        began = time.perf_counter()
        to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(part.numel() * 4 / 2**30 / (time.perf_counter() - began))
    return rates


print("ready", flush=True)
for line in sys.stdin:
    order, *rest = line.split()
    if order == "go":
        train(int(rest[0]))
        print("did", total, flush=True)
    elif order == "loop":
        while True:
            train(1)
            print("step", time.clock_gettime_ns(time.CLOCK_MONOTONIC), total, flush=True)
            time.sleep(float(rest[0]))
    elif order == "hash":
        print("hash", digest(), flush=True)
    elif order == "copy":
        print("copy %.2f %.2f" % tuple(copies()), flush=True)
    elif order == "ahead":
        if ctypes.CDLL(None, use_errno=True).mlockall(2) != 0:  # MCL_FUTURE
            raise OSError(ctypes.get_errno(), "mlockall")
        print("ahead", flush=True)

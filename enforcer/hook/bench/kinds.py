"""The kinds of work that the measurements on a real GPU run: what a step is."""

import os
import time

# Compiling in this process keeps the compiler's helpers from becoming
# sessions of their own.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch  # noqa: E402

MATRIX = 4096


class Work:
    """step launches one step; sleep_s > 0 makes it a burst, waited for and
    followed by a sleep; seconds is a step's GPU time; every is how many steps
    one event marks; ahead is how many marks may be outstanding, about 100 ms
    of work."""

    def __init__(self, step, sleep_s=0.0):
        self.step, self.sleep_s = step, sleep_s
        self.seconds = fastest(step)
        self.every = max(1, round(0.001 / self.seconds))
        self.ahead = max(2, round(0.1 / (self.seconds * self.every)))


def fastest(step, trials=10):
    """Seconds of GPU time of a step: the least of several trials, since other
    processes may be at work at the same time."""
    best = float("inf")
    step()
    for _ in range(trials):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        step()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return max(best, 1e-6)


def multiply(times):
    """A step of so many bf16 products of 4096 by 4096."""
    a = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(a)

    def step():
        for _ in range(times):
            torch.mm(a, b, out=c)

    return step


def graph(products):
    body = multiply(products)
    body()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        body()
    return captured.replay


def compiled():
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.LayerNorm(4096), torch.nn.Linear(4096, 1024)
    ).to("cuda", torch.bfloat16)
    fast = torch.compile(model)
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)

    def step():
        with torch.no_grad():
            for _ in range(5):
                fast(x)

    return step


def small(kernels=100):
    a, b, c = (torch.zeros(1024, device="cuda") for _ in range(3))

    def step():
        for _ in range(kernels):
            torch.add(a, b, out=c)

    return step


def train():
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    x = torch.randn(16, 512, 1024, device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


KINDS = {
    "eager": lambda: Work(multiply(5)),
    # Fixed numbers, so that each worker's step is the same: on an H100 these
    # are 2, 10 and 5 ms.
    "graph2": lambda: Work(graph(11)),
    "graph10": lambda: Work(graph(55)),
    "compile": lambda: Work(compiled()),
    "small": lambda: Work(small()),
    "bursty": lambda: Work(multiply(28), sleep_s=0.020),
    "train": lambda: Work(train()),
}


def prepare(kind):
    """Builds a kind's work and runs it for a while, so that nothing is left to
    compile, to load or to allocate."""
    work = KINDS[kind]()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        work.step()
        torch.cuda.synchronize()
    return work

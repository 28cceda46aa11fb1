"""Programs that queue ahead: what a step is, and the events that tell when the GPU has done it."""

import collections
import os
import time

# Compiling in this process keeps the compiler's helpers from becoming
# sessions of their own.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch  # noqa: E402
from report import Report  # noqa: E402

MATRIX = 4096


class Queue:
    """step launches one step; sleep_s > 0 makes it a burst, waited for and
    followed by a sleep; seconds is a step's GPU time; every is how many steps
    one event marks; ahead is how many marks may be outstanding, about 100 ms
    of work."""

    def __init__(self, step, sleep_s=0.0):
        self.step, self.sleep_s = step, sleep_s
        self.seconds = fastest(step)
        self.every = 1 if sleep_s else max(1, round(0.001 / self.seconds))
        self.ahead = max(2, round(0.1 / (self.seconds * self.every)))

    def warm(self, _):
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            self.step()
            torch.cuda.synchronize()

    def run(self, seconds, _):
        counter = Counter(self.ahead)
        end = counter.report.began + int(seconds * 1e9)
        while (now := time.monotonic_ns()) < end:
            for _ in range(self.every):
                self.step()
            counter.mark(self.every)
            if self.sleep_s:
                torch.cuda.synchronize()
                done = time.monotonic_ns()
                counter.report.burst(done, done - now)
                time.sleep(self.sleep_s)
        counter.finish()


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


class Counter:
    """Counts what the GPU has completed, by an event after every few steps."""

    def __init__(self, ahead):
        self.ahead = ahead
        self.pending, self.spare = collections.deque(), []
        self.base = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self.base.record()
        self.base.synchronize()
        self.report = Report()

    def mark(self, steps):
        event = self.spare.pop() if self.spare else torch.cuda.Event(enable_timing=True)
        event.record()
        self.pending.append((event, steps))
        if len(self.pending) > self.ahead:
            self.pending[0][0].synchronize()
            self.collect(1)
        if time.monotonic_ns() >= self.report.look:
            self.collect(len(self.pending))
            self.report.flush()

    def collect(self, most):
        """Takes the completed events, at most so many."""
        while most > 0 and self.pending and self.pending[0][0].query():
            event, steps = self.pending.popleft()
            at = self.report.began + int(self.base.elapsed_time(event) * 1e6)
            self.spare.append(event)
            most -= 1
            self.report.completed(at, steps, (at - self.report.at) / steps)

    def finish(self):
        torch.cuda.synchronize()
        self.collect(len(self.pending))
        self.report.finish()


def multiply(times):
    """A step of so many bf16 products of 4096 by 4096."""
    a = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(a)

    def step():
        for _ in range(times):
            torch.mm(a, b, out=c)

    return step


def queue(_):
    return Queue(multiply(5))


def bursty(_):
    return Queue(multiply(28), sleep_s=0.020)


def graph(products):
    body = multiply(products)
    body()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        body()
    return captured.replay


# Fixed numbers, so that each worker's step is the same: on an H100 these are 2,
# 10 and, of the burst above, 5 ms.
def graph2(_):
    return Queue(graph(11))


def graph10(_):
    return Queue(graph(55))


def compiled(_):
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.LayerNorm(4096), torch.nn.Linear(4096, 1024)
    ).to("cuda", torch.bfloat16)
    fast = torch.compile(model)
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)

    def step():
        with torch.no_grad():
            for _ in range(5):
                fast(x)

    return Queue(step)


def small(_, kernels=100):
    a, b, c = (torch.zeros(1024, device="cuda") for _ in range(3))

    def step():
        for _ in range(kernels):
            torch.add(a, b, out=c)

    return Queue(step)


def train(_):
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

    return Queue(step)

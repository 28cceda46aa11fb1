"""A worker of the measurements on a real GPU: runs work on command, and says
how many steps the GPU has completed, and when.

Commands on stdin, one a line:
    prepare KIND        answered by `ready KIND SECONDS`, a step's GPU time, or
                        `skip KIND why`
    run KIND SECONDS    lines `step NS COUNT` about every 20 ms, for a bursty
                        kind also `burst NS LATENCY_US`, and at the end
                        `total NS COUNT SECONDS`, on the GPU's clock
    quit

NS is CLOCK_MONOTONIC. A step's moment is the one at which the GPU reached the
event after it, so it does not matter how late the loop looks.
"""

import collections
import sys
import time

import kinds
import torch

REPORT_NS = 20_000_000  # between two lines, and between two looks at the events
PAUSE_NS = 3_000_000  # a longer gap between two steps gets lines at both ends: a turn ended and began there


class Counter:
    """Counts what the GPU has completed, by an event after every few steps."""

    def __init__(self, ahead):
        self.ahead = ahead
        self.pending, self.spare = collections.deque(), []
        self.steps = self.said = 0
        self.base = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self.base.record()
        self.base.synchronize()
        self.began = self.at = self.said_at = time.monotonic_ns()
        self.look = self.began + REPORT_NS
        self.lines = [f"step {self.began} 0\n"]

    def mark(self, steps):
        event = self.spare.pop() if self.spare else torch.cuda.Event(enable_timing=True)
        event.record()
        self.pending.append((event, steps))
        if len(self.pending) > self.ahead:
            self.pending[0][0].synchronize()
            self.collect(1)
        if time.monotonic_ns() >= self.look:
            self.collect(len(self.pending))
            self.flush()

    def collect(self, most):
        """Takes the completed events, at most so many."""
        while most > 0 and self.pending and self.pending[0][0].query():
            event, steps = self.pending.popleft()
            at = self.began + int(self.base.elapsed_time(event) * 1e6)
            self.spare.append(event)
            most -= 1
            paused = at - self.at > PAUSE_NS
            if paused and self.said != self.steps:
                self.say()
            self.at, self.steps = at, self.steps + steps
            if paused or at - self.said_at >= REPORT_NS:
                self.say()

    def say(self):
        self.lines.append(f"step {self.at} {self.steps}\n")
        self.said, self.said_at = self.steps, self.at

    def flush(self):
        sys.stdout.write("".join(self.lines))
        sys.stdout.flush()
        self.lines.clear()
        self.look = time.monotonic_ns() + REPORT_NS

    def finish(self):
        torch.cuda.synchronize()
        self.collect(len(self.pending))
        self.say()
        self.lines.append(f"total {self.at} {self.steps} {(self.at - self.began) / 1e9:.9f}\n")
        self.flush()


def run(work, seconds):
    counter = Counter(work.ahead)
    end = counter.began + int(seconds * 1e9)
    while (now := time.monotonic_ns()) < end:
        for _ in range(1 if work.sleep_s else work.every):
            work.step()
        counter.mark(1 if work.sleep_s else work.every)
        if work.sleep_s:
            torch.cuda.synchronize()
            done = time.monotonic_ns()
            counter.lines.append(f"burst {done} {(done - now) / 1e3:.1f}\n")
            time.sleep(work.sleep_s)
    counter.finish()


def answer(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    prepared = {}
    for line in sys.stdin:
        command, *words = line.split()
        if command == "quit":
            return
        kind = words[0]
        if command == "run":
            run(prepared[kind], float(words[1]))
            continue
        try:
            if kind not in prepared:
                prepared[kind] = kinds.prepare(kind)
            answer(f"ready {kind} {prepared[kind].seconds:.9f}")
        except Exception as e:  # A compiler may be missing: the harness says so aloud.
            answer(f"skip {kind} {type(e).__name__}: {e}".replace("\n", " ")[:400])


main()

"""What a worker says of its steps while it runs: see worker.py."""

import math
import sys
import time

REPORT_NS = 20_000_000  # between two lines, and between two writes
PAUSE_NS = 3_000_000  # a longer gap between two steps gets lines at both ends: a turn ended and began there
SETTLE_NS = 500_000_000  # from the start, before the time of a step counts


class Report:
    """Counts completed steps, and keeps the time that each took."""

    def __init__(self):
        self.steps = self.said = 0
        self.times = []  # ns
        self.began = self.at = self.said_at = time.monotonic_ns()
        self.look = self.began + REPORT_NS  # when the next write is due
        self.lines = [f"step {self.began} 0\n"]

    def completed(self, at, steps, step_ns):
        """So many more steps were complete at that moment; each took so long."""
        paused = at - self.at > PAUSE_NS
        if paused and self.said != self.steps:
            self.say()
        self.at, self.steps = at, self.steps + steps
        if paused or at - self.said_at >= REPORT_NS:
            self.say()
        if at - self.began > SETTLE_NS:
            self.times.append(step_ns)

    def burst(self, at, latency_ns):
        self.lines.append(f"burst {at} {latency_ns / 1e3:.1f}\n")

    def say(self):
        self.lines.append(f"step {self.at} {self.steps}\n")
        self.said, self.said_at = self.steps, self.at

    def flush(self):
        sys.stdout.write("".join(self.lines))
        sys.stdout.flush()
        self.lines.clear()
        self.look = time.monotonic_ns() + REPORT_NS

    def finish(self):
        self.say()
        self.lines.append("times {:.1f} {:.1f} {:.1f}\n".format(*(self.percentile(p) / 1e3 for p in (0.5, 0.99, 1))))
        self.lines.append(f"total {self.at} {self.steps} {(self.at - self.began) / 1e9:.9f}\n")
        self.flush()

    def percentile(self, part):
        """The nearest rank, so that it is a time that was measured; 0 of none."""
        self.times.sort()
        return self.times[max(0, math.ceil(part * len(self.times)) - 1)] if self.times else 0

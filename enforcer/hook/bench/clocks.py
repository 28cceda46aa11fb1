"""The clock and the power of a GPU while programs run alone, and in pairs without the hook.

    clocks.py [SECONDS]      in the folder of worker.py

A GPU at its power limit lowers its clock, for whoever runs then. So a program that needs little
power is slower beside one that needs much, also in its own time, and the other one is faster.
"""

import subprocess
import sys
import threading
import time

KINDS = ["jax", "cupy", "steps", "queue", "compiled", "triton"]
PAIRS = [("steps", "jax"), ("queue", "cupy"), ("compiled", "jax"), ("triton", "steps")]
QUERY = "clocks.sm,power.draw.instant,clocks_event_reasons.sw_power_cap"


class Clocks:
    """What nvidia-smi says each 20 ms."""

    def __init__(self):
        self.samples = []
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-lms", "20"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            clock, power, cap = (word.strip() for word in line.split(","))
            self.samples.append((time.monotonic(), float(clock), float(power), cap == "Active"))

    def since(self, began):
        seen = [s for s in self.samples if s[0] >= began]
        clock, power, capped = (sum(s[i] for s in seen) / len(seen) for i in (1, 2, 3))
        return f"{clock:5.0f} MHz {power:4.0f} W, at the power limit {100 * capped:3.0f} % of the time"


class Worker:
    def __init__(self, kind, core):
        command = ["taskset", "-c", f"{core}-{core + 1}", sys.executable, "worker.py"]
        self.kind = kind
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("prepare")
        print(self.process.stdout.readline().strip(), flush=True)

    def ask(self, command, *words):
        print(command, self.kind, *words, file=self.process.stdin, flush=True)

    def pace(self):
        for line in self.process.stdout:
            if line.startswith("total"):
                _, _, count, seconds = line.split()
                return int(count) / float(seconds)
        raise SystemExit(f"{self.kind} has ended")


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.5
    clocks, workers, alone = Clocks(), {k: Worker(k, 2 * i) for i, k in enumerate(KINDS)}, {}

    def together(*kinds):
        began = time.monotonic() + seconds / 2  # the clock has settled
        for kind in kinds:
            workers[kind].ask("run", seconds)
        paces = [workers[kind].pace() for kind in kinds]
        return paces, clocks.since(began)

    for kind in KINDS:
        [alone[kind]], state = together(kind)
        print(f"{kind:18} {alone[kind]:7.1f} steps/s {state}", flush=True)
    for pair in PAIRS:
        paces, state = together(*pair)
        parts = " + ".join(f"{pace / alone[kind]:.3f}" for kind, pace in zip(pair, paces))
        print(f"{' + '.join(pair):18} {parts} {state}", flush=True)
    for worker in workers.values():
        worker.process.kill()
    clocks.process.kill()


main()

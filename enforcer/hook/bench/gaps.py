"""Waits for one small matrix product after the other, and prints pauses of more than 10 ms.

Usage: gaps.py. It works until its input ends, and then prints "gaps N" and the pauses in ms.
"""
import sys
import threading
import time

import torch

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
a = torch.randn(512, 512, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
gaps, last = [], time.monotonic()
while not ended.is_set():
    a @ a
    torch.cuda.synchronize()
    now = time.monotonic()
    if now - last > 0.01:
        gaps.append(round(1e3 * (now - last)))
    last = now
print("gaps", len(gaps), *gaps, flush=True)

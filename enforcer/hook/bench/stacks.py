#!/usr/bin/env python3
"""Where the threads of a process stand, without a debugger: stacks.py PID

Each thread has a line: its name, the system call that it sleeps in, and the code addresses that the top of its stack
holds, as FILE+OFFSET. Some of those are left from calls that have returned. The offsets of the hook are lines of
`nm -n libgpusteward.so`. Needs the right to trace the process.
"""

import os
import re
import sys

TOP = 6144  # bytes of a stack


def main():
    pid = int(sys.argv[1])
    code = []
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            m = re.match(r"(\w+)-(\w+) ..x. (\w+) \S+ \S+ +(/\S+)", line)
            if m:
                code.append((int(m[1], 16), int(m[2], 16), int(m[3], 16), os.path.basename(m[4])))
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as f:
            name = f.read().strip()
        with open(f"/proc/{pid}/task/{thread}/syscall") as f:
            call = f.read().split()
        if len(call) < 3:
            print(thread, name, *call)
            continue
        words = [int(call[-1], 16)]
        try:
            stack = os.pread(memory, TOP, int(call[-2], 16))
            words += [int.from_bytes(stack[i : i + 8], "little") for i in range(0, len(stack) - 7, 8)]
        except OSError:
            pass
        at = [f"{file}+{w - start + offset:x}" for w in words for start, end, offset, file in code if start <= w < end]
        print(thread, name, "call", *call[:3], *at)


main()

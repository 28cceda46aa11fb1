"""The processes of one program: one, or one on each of several GPUs."""

import ctypes
import mmap
import os
import signal
import socket

SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def end_with_parent(*_):
    """Has the kernel kill this process when its parent ends, even where it spins in a collective."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


class Gang:
    """Forks the other ranks, before any framework is loaded.

    All ranks do the same commands, and the same number of steps: rank 0 decides
    before a step that it is the last one. No rank can be beyond that step then,
    since none completes a step's collective before rank 0 has begun it.
    """

    def __init__(self, size):
        self.rank, self.size, self.step = 0, size, 0
        self.last = ctypes.c_longlong.from_buffer(mmap.mmap(-1, 8))  # shared by all ranks
        self.pipes = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]  # for the ranks to find each other
        for rank in range(1, size):
            if self.rank == 0:
                self.fork(rank)

    def fork(self, rank):
        read, write = os.pipe()
        if os.fork():
            os.close(read)
            self.pipes.append(write)
            return
        end_with_parent()
        for other in [*self.pipes, write]:
            os.close(other)
        self.rank, self.pipes = rank, []
        os.dup2(read, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # rank 0 speaks for all

    def tell(self, line):
        for pipe in self.pipes:
            os.write(pipe, line.encode())

    def begin(self, over):
        """Before a step: over says that there is no time for another one."""
        self.step += 1
        if over and self.rank == 0:
            self.last.value = self.step

    def ended(self):
        return self.last.value == self.step

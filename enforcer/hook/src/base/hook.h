/* What every part of libgpusteward.so needs. A part is one .c file. If other
 * parts use something of it, a header of the same name declares that.
 *
 * The parts lie on floors, a folder each, here from the lowest to the highest. A
 * part asks only parts of its own floor and of those below, and no parts ask each
 * other in a circle: TestFloors holds that. A floor's name stands before what those
 * above may ask of it.
 *
 * base: the driver's own functions, the process's GPUs, its settings, the time
 *   driver      the driver's own functions, and libc's dlsym; calls.h: their names
 *   devices     the GPUs that the process sees, and which of them a thread works on
 *   entries     every entry of the driver, and what becomes of it
 *   settings    the environment, and the log
 *   clock       the time; futex: waits of a thread for another, and for the broker
 *   bucket      bytes that fill at a rate
 *   table       from the driver's pointers and handles to what is known of them
 *   sys.h       system calls without the C library; glibc.h: its functions, by age
 *   cuda.h      the few types of the driver's interface (no CUDA headers)
 *   wire.h      the protocol; hook.h: what every part includes
 *
 * trace: to note an event, an allocation, a fault
 *   threads     the places of the threads that launch
 *   trace       the events that the broker reads
 *   crash       what explains a crash: allocations, names of kernels, the first fault
 *
 * session: the page that counts, a session's start and care, requests
 *   link        one connection: the socket, its frames, the page
 *   sums        bytes that this process holds or is about to take
 *   local       the process's own page, for the time without a broker
 *   session     what is known of the session: its state, its lock, its loss
 *   request     what is sent, and which thread gets the answer
 *   connect     HELLO, RESUME, WELCOME
 *   client      the start, and the helper's part
 *   look        a look at what a tenant has, without a session
 *
 * ledger: memory before it is taken, and after
 *   admit       whether this process may take it, by the broker or without one
 *   claims      what was taken, for which pointer or handle
 *   growers     what the driver keeps for pools and graphs
 *
 * streams: the books of the work on each GPU, and how much of it may be queued
 *   work        what all of these and the gate share
 *   bound       how much may be queued, and how long a launch waits; limits.h: numbers
 *   markers     the work under way on a stream
 *   streams     the threads, contexts and streams of launches
 *
 * gate: to enter and leave a launch, to wait for a copy's rate, to start the helper
 *   bandwidth   the rates of copies
 *   slices      the time slices of contexts, and the wrapper of ioctl
 *   turns       drains, idleness, usage: what the broker is told of each GPU
 *   nccl        communicators, collectives, and the wrappers of their calls
 *   helper      the thread that looks at the last three, and cares for the session
 *   gate        the launch path: modes, and the bound of work in flight
 *
 * wrappers: nothing, for only the program calls them
 *   entry       the call by which a program begins
 *   launch, waits, copies, memory, arrays, pools, mappings, graphs, contexts
 *   nvml        what NVML tells of a GPU's memory
 *   forks       what a child process does with the state of every part
 *   intercept   dlsym, cuGetProcAddress: which calls are ours; wrapped.h: their names
 *
 * How it works. A program asks for the driver's functions by dlsym and
 * cuGetProcAddress, and gets our wrappers of those that launch and allocate. A
 * launch reads one word of the quota page, which the broker writes. The helper sends
 * ACQUIRE when there is work, YIELD when there is none or when paused work has
 * drained, and USAGE every 10 ms beside others, or every second in OPEN. A launch
 * that is counted has a marker for each 0.4 ms of work, and the queue of its stream is
 * bounded by 0.75 ms. If a program runs dry after it waited for that bound, the
 * bound grows, up to a turn, unless others must not wait.
 *
 * Every wait in the path of a launch ends. If work in flight makes no progress, a
 * launch passes after 5 ms, because that work may wait for it. If that was in vain,
 * the next one waits twice as long, up to 2 s: the work is only long. A refused event
 * leaves a stream without a bound until an event succeeds, which is tried after 1 s,
 * and after twice as long each time, up to 256 s. In a context that a fault has ended
 * launches pass at once. In OPEN the helper samples for how long there is work, every 20 ms, or
 * every 5 ms beside others.
 *
 * An allocation is RESERVE, the driver's call, COMMIT; small ones are taken from a
 * lease that the broker shares with the process. Copies wait until a token bucket has
 * room for them: one for the link, one for the GPU's own memory.
 *
 * The trace is a ring of 65,536 events of 16 bytes in the broker's memory, so it
 * outlives a killed process. For each communicator it has the rank, how many
 * collectives were called, and which the GPU has begun and ended. Two events around a
 * collective measure its time on the GPU, for at most about 200 collectives a second;
 * ranks choose the same ones. An event where another stream waits for the last
 * collective shows which rank's kernel does not end.
 *
 * Behind the trace lie the program's allocations, the names of its kernels and, in the
 * trace, its first fault: they explain a crash.
 *
 * Nothing here aborts, exits, or prints on the launch path. If something inside
 * fails, it is counted, and the call goes to the driver as if there were no hook. */
#ifndef GPUSTEWARD_HOOK_H
#define GPUSTEWARD_HOOK_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cuda.h"
#include "base/wire.h"

#define GS_VERSION "0.1"
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* At the end of the block errno is as it was: a program may look at it. */
#define GS_ERRNO int gs_errno __attribute__((cleanup(gs_errno_back), unused)) = errno

static inline void gs_errno_back(const int *was) { errno = *was; }

/* The same, and this thread is not cancelled until then. It is for code that
 * calls the driver with a lock held, or before it changes the books. */
#define GS_UNCANCELLED \
	GS_ERRNO;      \
	int gs_was __attribute__((cleanup(gs_cancel_back), unused)) = gs_cancel_off()

static inline int gs_cancel_off(void)
{
	int was;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
	return was;
}

static inline void gs_cancel_back(const int *was) { pthread_setcancelstate(*was, NULL); }

#endif

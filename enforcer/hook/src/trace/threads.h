/* The threads that launch. */
#ifndef GPUSTEWARD_THREADS_H
#define GPUSTEWARD_THREADS_H

#include "base/hook.h"

struct gs_stream;

#define GS_THREADS 4096

/* A graph that a thread launched of late. It may go by so many times before it is looked up again. */
#define GS_KNOWN 4
struct gs_known {
	void *exec;
	uint32_t left;
	uint32_t cost; /* ns */
};

/* A thread that launches has one of a fixed number of places. Threads beyond it
 * are counted together. Only its thread writes to a place. In the mode OPEN a
 * launch costs two stores to it and a few loads. There is no fence: the helper
 * makes the kernel issue one (membarrier). */
struct gs_thread {
	_Atomic uint64_t seq;       /* odd from enter to leave; half of it is the number of launches made */
	_Atomic uint64_t elsewhere; /* those of them that were made on other GPUs than the present one */
	uint64_t counted;           /* those that are in the books of their streams; guarded by the GPU's lock */
	_Atomic int gpu;            /* that launches go to */
	CUstream stream;            /* the last one, and */
	_Atomic(struct gs_stream *) entry; /* its entry, which is known */
	uint64_t generation;        /* as long as this is gs_generation */
	uint32_t spare;             /* so many launches may go by without a look, */
	uint32_t bell;              /* as long as this is the bell, */
	uint64_t credits;           /* this gs_credits, */
	struct gs_page *page;       /* and this the page */
	struct gs_known known[GS_KNOWN]; /* these graphs may go by without a look in OPEN, */
	uint32_t graphs_ns;         /* as long as this credit lasts; */
	uint32_t graphs_spent;      /* so much of it went by, ns */
	unsigned known_next;        /* place of the next one */
	_Atomic int copies_gpu;     /* that copies go to; -1: none yet */
	uint64_t copies_generation; /* it is known as long as this is gs_generation */
	_Atomic uint64_t copied;    /* bytes copied there */
	_Atomic bool taken;
} __attribute__((aligned(64)));
extern struct gs_thread gs_threads[GS_THREADS];
extern _Atomic unsigned gs_threads_used; /* no thread's place lies beyond */
extern _Thread_local struct gs_thread *gs_self __attribute__((tls_model("initial-exec")));

#endif

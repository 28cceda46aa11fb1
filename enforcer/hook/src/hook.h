/* What the parts of libgpusteward.so know of each other.
 *
 *   intercept.c  dlsym, cuGetProcAddress, the exported names: which calls are ours
 *   entries.h    every entry of the driver, and what becomes of it; entries.c those
 *                that are missing there
 *   cuda.h       our own few types of the driver's interface (no CUDA headers)
 *   client.c     the broker: connect, HELLO, RESUME, requests, the failure policy;
 *                its own parts are in client.h
 *   gate.c       the launch path: modes, the cap on work in flight
 *   streams.c    the streams that were launched on; markers.c what is under way on them
 *   turns.c      the helper thread: drains, idleness, usage
 *   bandwidth.c  copies: their bytes, and the rates that hold for them
 *   bucket.c     bytes that fill at a rate
 *   copies.c     the copies themselves: how many bytes, and which way
 *   memory.c     admission: what was taken, for which pointer or handle
 *   nvml.c       what NVML says of the GPU's memory
 *   pools.c      the same for stream-ordered pools and graphs' memory
 *
 * Nothing here aborts, exits, or prints on the launch path. What fails inside
 * is counted and the call goes to the driver as if the hook were not there. */
#ifndef GPUSTEWARD_HOOK_H
#define GPUSTEWARD_HOOK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda.h"
#include "wire.h"

#define GS_VERSION "0.1"
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

uint64_t gs_now(void); /* CLOCK_MONOTONIC, ns */

/* Until the end of the block this thread is not cancelled: where the hook calls the
 * driver with a lock held, or with books that are to follow it. */
#define GS_UNCANCELLED int gs_was __attribute__((cleanup(gs_cancel_back), unused)) = gs_cancel_off()

static inline int gs_cancel_off(void)
{
	int was;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
	return was;
}

static inline void gs_cancel_back(const int *was) { pthread_setcancelstate(*was, NULL); }

/* ---- client.c ---- */

/* The page that counts: the broker's, or the process's own while there is no
 * broker (all OPEN, cap from GPUSTEWARD_MEMORY_LIMIT). Never NULL; it may
 * change at any time, and the old one stays mapped. */
extern _Atomic(struct gs_page *) gs_page;

/* Connects within 250 ms, once, after a successful cuInit, from the thread that
 * called it; later again in the background, by the helper. In a forked child
 * it forgets the parent's session first. Never fails: see gs_page. */
void gs_client_start(void);
bool gs_client_connected(void);
uint64_t gs_client_epoch(void); /* changes with each session (connect, resume, loss, fork) */

/* Asks for bytes on the session's GPU. GS_GRANT (reservation set, to be
 * committed or aborted), or GS_DENY. Blocks for the broker's answer, 1 s at most;
 * with no broker it decides by the local cap. Safe from any thread. */
enum gs_type gs_client_reserve(unsigned gpu, enum gs_kind kind, uint64_t bytes, uint64_t *reservation);
void gs_client_commit(unsigned gpu, enum gs_kind kind, uint64_t reservation, uint64_t bytes);
void gs_client_abort(unsigned gpu, uint64_t reservation);
void gs_client_free(unsigned gpu, enum gs_kind kind, uint64_t bytes);
uint64_t gs_client_committed(unsigned gpu); /* by this process, for RESUME and cuMemGetInfo without a broker */
void gs_client_acquire(unsigned gpu);
void gs_client_usage(enum gs_type type, const struct gs_usage *u); /* GS_YIELD or GS_USAGE */
/* Reads what the broker sent and did not answer anybody (NOTICE,
 * LIMITS_CHANGED, ERR, end of file), sends PINGs, reconnects. For the helper,
 * and safe from any thread; never waits. Returns when it wants to be called again, gs_now() time. */
uint64_t gs_client_poll(void);

/* What the tenant may have of a GPU and has, in a process that need not have a
 * session there: by the broker's word of a second ago at most, or by the limit
 * that holds without a broker. Waits for a broker that does not answer 250 ms at
 * most, once in five seconds. False: there is no cap. */
bool gs_client_look(const CUuuid *uuid, uint64_t *cap, uint64_t *used);

/* The session's GPU of the calling thread's current context, or -1. */
int gs_gpu_current(void);
int gs_gpu_of_device(CUdevice device);
int gs_gpu_of_uuid(const CUuuid *uuid);
unsigned gs_gpu_count(void);

/* ---- gate.c ---- */

/* Around every launch:
 *
 *	struct gs_launch l;
 *	gs_gate_enter(&l, stream, per_thread, graph);
 *	CUresult r = gs_real.cuLaunchKernel(...);
 *	gs_gate_leave(&l, r);
 *
 * stream is as the program gave it, per_thread says that NULL means the
 * thread's own stream (the _ptsz names), graph is the executable graph, NULL
 * for a kernel. enter may wait for a turn; leave marks.
 *
 * A thread may never come to leave: it is cancelled, ends or jumps away in the
 * driver. Then its end or its next launch settles that one, as made; so does a
 * launch within a launch, whose outer one finds at its leave that seq went on. */
struct gs_stream; /* streams.h */
struct gs_launch {
	struct gs_stream *entry; /* to be marked; NULL where nothing is to be done */
	struct gs_gpu *crowd;    /* that counts it, for a thread without a place of its own; else NULL */
	CUstream stream;
	void *graph;
	uint64_t cost; /* estimated, ns of the GPU */
	uint64_t seq;  /* what the thread's was made, odd; 0 it was not */
};

/* One of a fixed number of places for the threads that launch; those beyond it
 * are counted together. Only its thread writes it. With the mode OPEN a launch costs two stores to it and a few loads:
 * there is no fence, for the helper has the kernel make one (membarrier). */
struct gs_thread {
	_Atomic uint64_t seq;      /* odd from enter to leave; half of it is the launches made, */
	_Atomic uint64_t elsewhere; /* of which so many were made on other GPUs than the present one, */
	uint64_t counted;          /* and so many are in the books of their streams; guarded by the GPU's lock */
	_Atomic int gpu;           /* that the launch goes to */
	CUstream stream;           /* the last one, whose entry is known, */
	_Atomic(struct gs_stream *) entry; /* as long as generation is gs_generation */
	uint64_t generation;
	uint32_t spare;            /* so many launches may go by without a look, */
	uint32_t bell;             /* as long as this is the bell */
	uint64_t credits;          /* and this gs_credits */
	struct gs_page *page;      /* of this page */
	_Atomic int copies_gpu;    /* that copies go to, -1 none yet, */
	uint64_t copies_generation; /* as long as this is gs_generation, */
	_Atomic uint64_t copied;   /* and the bytes of them */
	_Atomic bool taken;
} __attribute__((aligned(64)));
extern _Thread_local struct gs_thread *gs_self __attribute__((tls_model("initial-exec")));
extern _Atomic uint64_t gs_generation; /* of streams and contexts: see streams.c */
extern _Atomic unsigned gs_captures;   /* that may be under way, on any stream */
extern _Atomic unsigned gs_deep;       /* GPUs that have so much queued in OPEN that launches have to look */
extern _Atomic uint64_t gs_credits;    /* what changes when threads have to look again though the page did not */

void gs_gate_slow(struct gs_launch *l); /* for gs_gate_enter */
void gs_gate_left(struct gs_launch *l, CUresult r); /* for gs_gate_leave */

static inline void gs_gate_enter(struct gs_launch *l, CUstream stream, bool per_thread, void *graph)
{
	struct gs_thread *t = gs_self;

	if (stream == NULL && per_thread)
		stream = CU_STREAM_PER_THREAD;
	else if (stream == CU_STREAM_LEGACY)
		stream = NULL;
	if (likely(t)) {
		uint64_t seq = atomic_load_explicit(&t->seq, memory_order_relaxed);
		atomic_store_explicit(&t->seq, seq + 1, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		struct gs_page *page = atomic_load_explicit(&gs_page, memory_order_acquire);
		bool free = !(__atomic_load_n(&page->gated, __ATOMIC_RELAXED) | atomic_load_explicit(&gs_deep, memory_order_relaxed)) && !graph;
		if (unlikely(!free) && !graph && t->spare && t->page == page && t->bell == __atomic_load_n(&page->bell, __ATOMIC_RELAXED) &&
		    t->credits == atomic_load_explicit(&gs_credits, memory_order_relaxed)) {
			t->spare--;
			free = true;
		}
		if (likely(free && !(seq & 1) && t->stream == stream &&
			   t->generation == atomic_load_explicit(&gs_generation, memory_order_relaxed))) {
			l->entry = NULL;
			l->crowd = NULL;
			l->seq = seq + 1;
			return;
		}
		atomic_store_explicit(&t->seq, seq, memory_order_relaxed);
	}
	l->stream = stream;
	l->graph = graph;
	gs_gate_slow(l);
}

static inline void gs_gate_leave(struct gs_launch *l, CUresult r)
{
	if (unlikely(l->entry || l->crowd))
		gs_gate_left(l, r);
	struct gs_thread *t = gs_self;
	if (likely(l->seq && t && atomic_load_explicit(&t->seq, memory_order_relaxed) == l->seq)) {
		atomic_signal_fence(memory_order_seq_cst);
		atomic_store_explicit(&t->seq, l->seq + 1, memory_order_relaxed);
	}
}

/* After gs_gate_leave: that was no launch that counts. */
static inline void gs_gate_uncount(const struct gs_launch *l)
{
	if (l->seq && gs_self)
		atomic_fetch_add_explicit(&gs_self->elsewhere, 1, memory_order_relaxed);
}

void gs_gate_stream_destroyed(CUstream s); /* before the driver's call */
/* Begins: before the driver's call, and false after it where that failed.
 * Ends: after cuStreamEndCapture, whatever it answered. */
void gs_gate_capture(CUstream s, bool begins);
void gs_gate_graph_forget(void *exec);         /* destroyed or updated */
void gs_gate_context_created(CUcontext c, int gpu); /* after the driver's call (create, primary retain): launches may come from it; gpu is the session's, -1 none */
void gs_gate_context_destroyed(CUcontext c);   /* before the driver's call: no marker of it is touched again */
uint64_t gs_gate_errors(void);                 /* launches that the gate could not govern and let pass, since the start */

/* ---- bandwidth.c ---- */

/* Around every copy that the driver is asked for:
 *
 *	struct gs_copy c;
 *	if (gs_copy_enter(&c, stream, bytes))
 *		gs_copy_wait(&c, way);
 *	CUresult r = gs_real.cuMemcpyAsync(...);
 *	gs_copy_leave(&c, r);
 *
 * stream is the one whose capture the copy could become a part of: NULL for a
 * call that has none, CU_STREAM_PER_THREAD for the thread's own. enter answers
 * whether a rate holds on the GPU, so that only then it is asked which way the
 * bytes go; wait waits for them. */
enum gs_way {
	GS_LINK,   /* between host and GPU, or between GPUs */
	GS_WITHIN, /* within the GPU's memory */
	GS_WAYS,
};

struct gs_bucket; /* bucket.h */
struct gs_copy {
	struct gs_thread *thread; /* which counts it; NULL: nobody does */
	struct gs_bucket *bucket; /* that it was taken from; NULL none */
	uint64_t place;           /* in the bucket's queue */
	uint64_t bytes;
};

bool gs_copy_slow(struct gs_copy *c, CUstream stream); /* for gs_copy_enter */
void gs_copy_wait(struct gs_copy *c, enum gs_way way);
void gs_copy_refused(struct gs_copy *c); /* for gs_copy_leave */

#define GS_COPY_MOST (1ull << 48) /* bytes; more is an argument that the driver will refuse */

/* Without a rate: a few loads, and nothing that threads share. */
static inline bool gs_copy_enter(struct gs_copy *c, CUstream stream, uint64_t bytes)
{
	struct gs_thread *t = gs_self;

	c->thread = t;
	c->bucket = NULL;
	c->bytes = bytes;
	if (likely(t && t->copies_generation == atomic_load_explicit(&gs_generation, memory_order_relaxed) &&
		   !atomic_load_explicit(&gs_captures, memory_order_relaxed))) {
		const struct gs_slot *slot = &atomic_load_explicit(&gs_page, memory_order_acquire)
						      ->slot[atomic_load_explicit(&t->copies_gpu, memory_order_relaxed)];
		return unlikely(__atomic_load_n(&slot->link, __ATOMIC_RELAXED) | __atomic_load_n(&slot->copy, __ATOMIC_RELAXED)) &&
		       bytes && bytes < GS_COPY_MOST;
	}
	return gs_copy_slow(c, stream);
}

static inline void gs_copy_leave(struct gs_copy *c, CUresult r)
{
	if (likely(!r && c->thread)) {
		uint64_t was = atomic_load_explicit(&c->thread->copied, memory_order_relaxed);
		atomic_store_explicit(&c->thread->copied, was + c->bytes, memory_order_relaxed);
	} else if (unlikely(r && c->bucket)) {
		gs_copy_refused(c);
	}
}

/* ---- turns.c ---- */
/* Starts the helper thread where there is none: once, and again after a fork
 * when the child uses CUDA. Safe from any thread. */
void gs_turns_start(void);

/* ---- claims.c, growers.c; the wrappers themselves are named in calls.h ---- */
void gs_memory_settle(void); /* frees in the books by what pools shrank; for the helper, each second */
uint64_t gs_memory_uncounted(void); /* allocations that could not be booked, since the start */

/* ---- entries.c ---- */
bool gs_entry_known(const char *name);  /* whether entries.h has it, whatever its version */
void gs_entry_given(const char *name);  /* to the program, as the driver's own */
uint32_t gs_entries_unknown(void);      /* how many of them entries.h does not have */

/* ---- intercept.c ---- */
extern struct gs_real { /* the driver's own functions, by name, NULL where it has none */
#define GS_CALL(name, ...) CUresult (*name)(__VA_ARGS__);
#include "calls.h"
#undef GS_CALL
} gs_real;

#endif

/* The trace: what the program does, for its steps, stragglers and hangs. To note an
 * event costs a reading of the processor's counter and a few stores. Threads share an
 * addition for each GS_BLOCK events of one: an atomic one takes half as long as the
 * counter, and many times as long if others use it, too. Without a trace an event costs
 * a load. */
#ifndef GPUSTEWARD_TRACE_H
#define GPUSTEWARD_TRACE_H

#include "base/clock.h"
#include "trace/threads.h"

extern _Atomic(struct gs_trace *) gs_trace; /* NULL: nothing is noted */
extern _Atomic uint64_t gs_waits; /* of the program for the GPU, noted ones */
extern bool gs_trace_tsc; /* the processor's counter can be its clock: it never stops nor changes its pace */

static inline uint64_t gs_trace_ticks(void)
{
#if defined __x86_64__
	if (likely(gs_trace_tsc))
		return __builtin_ia32_rdtsc();
	return gs_now();
#else
	uint64_t ticks;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#endif
}

/* Of a trace, the numbers that are the thread's. */
struct gs_block {
	uint64_t next;  /* number of its next event; a multiple of GS_BLOCK: it has none left */
	uint32_t trace; /* gs_traces at that time */
};

extern _Thread_local struct gs_block gs_block __attribute__((tls_model("initial-exec")));
extern _Atomic uint32_t gs_traces; /* that were begun */

static inline void gs_trace_put(struct gs_trace *t, enum gs_event_kind kind, unsigned gpu, uint32_t id)
{
	struct gs_block *b = &gs_block;
	uint64_t n = b->next, head = __atomic_load_n(&t->head, __ATOMIC_RELAXED);
	uint32_t trace = atomic_load_explicit(&gs_traces, memory_order_relaxed);

	/* Half a ring later, others will soon want its place. */
	if (unlikely(!(n % GS_BLOCK) || head - n > GS_EVENTS_KEPT / 2 || b->trace != trace)) {
		n = __atomic_fetch_add(&t->head, GS_BLOCK, __ATOMIC_RELAXED);
		b->trace = trace;
	}
	b->next = n + 1;
	struct gs_event *e = &t->event[n % GS_EVENTS_KEPT];
	uint32_t thread = gs_self ? (uint32_t)(gs_self - gs_threads) : GS_THREADS - 1;
	uint32_t what = (uint32_t)kind | (uint32_t)(n / GS_EVENTS_KEPT & 0xff) << 8 | (gpu & 15) << 16 | thread << 20;

	__atomic_store_n(&e->ticks, gs_trace_ticks(), __ATOMIC_RELAXED);
	__atomic_store_n(&e->id, id, __ATOMIC_RELAXED);
	__atomic_store_n(&e->what, what, __ATOMIC_RELEASE);
}

/* Notes an event of the thread's GPU. */
static inline void gs_note(enum gs_event_kind kind, uint32_t id)
{
	struct gs_trace *t = atomic_load_explicit(&gs_trace, memory_order_acquire);

	if (likely(t))
		gs_trace_put(t, kind,
			     gs_self ? (unsigned)atomic_load_explicit(&gs_self->gpu, memory_order_relaxed) : 0, id);
}

/* Notes that the thread begins to wait for the GPU. */
static inline void gs_note_wait(enum gs_event_kind kind, uint32_t id)
{
	gs_note(kind, id);
	atomic_fetch_add_explicit(&gs_waits, 1, memory_order_relaxed);
}

static inline uint32_t gs_note_id(const void *handle)
{
	return (uint32_t)((uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u >> 32);
}

static inline uint32_t gs_note_units(uint64_t bytes, unsigned unit)
{
	uint64_t n = bytes / unit + (bytes % unit != 0);
	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* The process has memory of a kind of enum gs_shared from now on. */
void gs_note_shared(uint32_t kind);

/* So it is if a call succeeded, whose result this returns. */
static inline CUresult gs_shares(CUresult r, uint32_t kind)
{
	if (r == CUDA_SUCCESS)
		gs_note_shared(kind);
	return r;
}

/* Takes the place of the last trace; NULL: nothing is noted from now on. */
void gs_trace_begin(struct gs_trace *t);
/* The helper calls it now and then, and whoever is told of a fault. It returns after how
 * many ns the helper calls it again: a rate needs two readings some time apart. */
uint64_t gs_trace_clock(void);

#endif

/* The launch path. */
#ifndef GPUSTEWARD_GATE_H
#define GPUSTEWARD_GATE_H

#include "session/local.h"
#include "streams/streams.h"

/* Around every launch:
 *
 *	struct gs_launch l;
 *	gs_gate_enter(&l, stream, per_thread, graph, what);
 *	CUresult r = gs_real.cuLaunchKernel(...);
 *	gs_gate_leave(&l, r);
 *
 * stream is as the program gave it. per_thread: NULL is the thread's own stream
 * (the _ptsz names). graph is the executable graph; NULL: a kernel. what is the
 * function or the graph; NULL: a copy. enter may wait for a turn; leave marks. */

void gs_gate_slow(struct gs_launch *l); /* for gs_gate_enter */

static inline struct gs_known *gs_known(struct gs_thread *t, const void *graph)
{
	for (unsigned i = 0; i < GS_KNOWN; i++)
		if (t->known[i].exec == graph)
			return &t->known[i];
	return NULL;
}

static inline void gs_gate_enter(struct gs_launch *l, CUstream stream, bool per_thread, void *graph, const void *what)
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
		bool free = !(__atomic_load_n(&page->gated, __ATOMIC_RELAXED) |
			      atomic_load_explicit(&gs_deep, memory_order_relaxed) |
			      atomic_load_explicit(&gs_tickets, memory_order_relaxed));
		struct gs_known *known = NULL;
		if (unlikely(graph)) {
			known = gs_known(t, graph);
			free = free && known && known->left && known->cost <= t->graphs_ns;
		} else if (unlikely(!free) && t->spare && t->page == page &&
			   !atomic_load_explicit(&gs_tickets, memory_order_relaxed) &&
			   t->bell == __atomic_load_n(&page->bell, __ATOMIC_RELAXED) &&
			   t->credits == atomic_load_explicit(&gs_credits, memory_order_relaxed)) {
			t->spare--;
			free = true;
		}
		if (likely(free && !(seq & 1) && t->stream == stream &&
			   t->generation == atomic_load_explicit(&gs_generation, memory_order_relaxed))) {
			if (unlikely(known)) {
				known->left--;
				t->graphs_ns -= known->cost;
				t->graphs_spent += known->cost;
			}
			l->entry = NULL;
			l->crowd = NULL;
			l->seq = seq + 1;
			return;
		}
		atomic_store_explicit(&t->seq, seq, memory_order_relaxed);
	}
	l->stream = stream;
	l->graph = graph;
	l->what = what;
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

/* After gs_gate_leave: that launch does not count. */
static inline void gs_gate_uncount(const struct gs_launch *l)
{
	if (l->seq && gs_self)
		atomic_fetch_add_explicit(&gs_self->elsewhere, 1, memory_order_relaxed);
}

/* Before the driver's call: a host function is queued. What waits behind it may wait
 * for launches, and its time is not the GPU's. The functions in a graph stay unknown:
 * no event tells their time from that of the graph's other nodes. */
void gs_gate_host(CUstream s, bool per_thread);
/* After the driver's call (create, primary retain): launches may come from the
 * context. gpu is the session's; -1: none. */
void gs_gate_context_created(CUcontext c, int gpu);

#endif

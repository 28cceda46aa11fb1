/* The rates of copies. */
#ifndef GPUSTEWARD_BANDWIDTH_H
#define GPUSTEWARD_BANDWIDTH_H

#include "session/local.h"
#include "streams/work.h"

/* Around every copy that the driver is asked for:
 *
 *	struct gs_copy c;
 *	if (gs_copy_enter(&c, stream, bytes))
 *		gs_copy_wait(&c, way);
 *	CUresult r = gs_real.cuMemcpyAsync(...);
 *	gs_copy_leave(&c, r);
 *
 * stream is the one whose capture the copy could become a part of: NULL for a
 * call that has none, CU_STREAM_PER_THREAD for the thread's own. enter returns
 * whether a rate holds on the GPU: only then does the caller find out the way of
 * the bytes, and wait for them. */
struct gs_copy {
	struct gs_thread *thread; /* counts it; NULL: no thread does */
	struct gs_bucket *bucket; /* that it was taken from; NULL: none */
	uint64_t place;           /* in the bucket's queue */
	uint64_t bytes;
};

bool gs_copy_slow(struct gs_copy *c, CUstream stream); /* for gs_copy_enter */
void gs_copy_wait(struct gs_copy *c, enum gs_way way);
void gs_copy_refused(struct gs_copy *c); /* for gs_copy_leave */

#define GS_COPY_MOST (1ull << 48) /* bytes; more is an argument that the driver will refuse */

/* Without a rate this is a few loads, of nothing that threads share. */
static inline bool gs_copy_enter(struct gs_copy *c, CUstream stream, uint64_t bytes)
{
	struct gs_thread *t = gs_self;

	c->thread = t;
	c->bucket = NULL;
	c->bytes = bytes;
	if (likely(t && t->copies_generation == atomic_load_explicit(&gs_generation, memory_order_relaxed) &&
		   !atomic_load_explicit(&gs_captures, memory_order_relaxed))) {
		int gpu = atomic_load_explicit(&t->copies_gpu, memory_order_relaxed);
		const struct gs_slot *slot = &atomic_load_explicit(&gs_page, memory_order_acquire)->slot[gpu];
		return unlikely(__atomic_load_n(&slot->link, __ATOMIC_RELAXED) |
				__atomic_load_n(&slot->copy, __ATOMIC_RELAXED)) &&
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

uint64_t gs_copies_sum(const struct gs_gpu *g); /* bytes ever copied on the GPU, which is locked */

#endif

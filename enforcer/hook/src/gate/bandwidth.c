/* What copies may take of the GPU's link and of its memory's bandwidth.
 *
 * A copy is charged to a bucket before it is made, and waits there for those before
 * it. It does not pass the gate of launches, so another tenant's turn does not stop
 * it. The charge is what was asked for, at the time of the call; the driver may
 * make the copy later. Copies inside graphs and kernels that copy are not seen.
 *
 * While there is no rate, threads share nothing: each adds up its own bytes, for
 * one GPU at a time, and the helper sums them. */
#include "gate/bandwidth.h"

#include "base/clock.h"
#include "base/futex.h"
#include "session/client.h"
#include "streams/limits.h"
#include "streams/streams.h"

/* The rate in force, bytes a second; 0: there is none. */
static uint64_t rate_of(const struct gs_slot *slot, enum gs_way way)
{
	if (__atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE) == GS_KILL)
		return 0;
	return __atomic_load_n(way == GS_LINK ? &slot->link : &slot->copy, __ATOMIC_RELAXED);
}

bool gs_copy_slow(struct gs_copy *c, CUstream s)
{
	struct gs_thread *t = gs_thread_of_self();

	c->thread = NULL;
	if (!t) {
		atomic_fetch_add(&gs_errors, 1);
		return false;
	}
	struct gs_context *context = gs_context_current();
	if (!context)
		return false;
	/* A capture only notes the copy. The legacy stream never captures, and
	 * asking about it would spoil another stream's capture. */
	if (s && s != CU_STREAM_LEGACY && atomic_load(&gs_captures) && gs_stream_captures(s))
		return false;
	uint64_t generation = atomic_load(&gs_generation);
	struct gs_gpu *g = atomic_load(&context->gpu);
	int gpu = (int)gs_gpu_index(g);
	if (atomic_load(&t->copies_gpu) != gpu) {
		gs_copies_settle(t);
		atomic_store(&t->copies_gpu, gpu);
	}
	t->copies_generation = gs_contexts_one() ? generation : 0;
	c->thread = t;
	const struct gs_slot *slot = &atomic_load(&gs_page)->slot[gpu];
	return (rate_of(slot, GS_LINK) || rate_of(slot, GS_WITHIN)) && c->bytes && c->bytes < GS_COPY_MOST;
}

/* Takes the copy's bytes from the bucket, once, and returns how long it still has
 * to wait, ns. */
static uint64_t look(struct gs_copy *c, struct gs_bucket *b, uint64_t rate, uint64_t now)
{
	if (!rate) {
		if (c->bucket)
			gs_bucket_return(b, c->bytes);
		c->bucket = NULL;
		return 0;
	}
	gs_bucket_pour(b, rate, now);
	if (!c->bucket) {
		c->bucket = b;
		c->place = gs_bucket_take(b, c->bytes);
	}
	return gs_bucket_left(b, c->place);
}

void gs_copy_wait(struct gs_copy *c, enum gs_way way)
{
	int gpu = atomic_load(&c->thread->copies_gpu);
	struct gs_gpu *g = &gs_gates[gpu];
	uint64_t began = 0;

	for (;;) {
		struct gs_page *page = atomic_load(&gs_page);
		uint32_t bell = __atomic_load_n(&page->bell, __ATOMIC_ACQUIRE);
		uint64_t rate = rate_of(&page->slot[gpu], way);
		pthread_mutex_lock(&g->lock);
		uint64_t now = gs_now(), left = look(c, &g->bucket[way], rate, now);
		if (!left && began)
			g->usage.overhead_ns += now - began;
		pthread_mutex_unlock(&g->lock);
		if (!left)
			return;
		if (!began)
			began = now;
		else if (now - began >= LOOK_NS &&
			 now > __atomic_load_n(&page->heartbeat_ns, __ATOMIC_RELAXED) + STALE_NS)
			gs_client_poll(); /* the helper sits in the driver, or there is none */
		/* The bell announces another rate, and the loss of the broker. */
		gs_bell_wait(page, bell, left < LOOK_NS ? left : LOOK_NS);
	}
}

void gs_copy_refused(struct gs_copy *c)
{
	struct gs_gpu *g = &gs_gates[atomic_load(&c->thread->copies_gpu)];

	pthread_mutex_lock(&g->lock);
	gs_bucket_return(c->bucket, c->bytes);
	pthread_mutex_unlock(&g->lock);
}

uint64_t gs_copies_sum(const struct gs_gpu *g)
{
	int self = (int)gs_gpu_index(g);
	uint64_t n = g->copied;

	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++)
		if (atomic_load(&gs_threads[i].copies_gpu) == self)
			n += atomic_load(&gs_threads[i].copied);
	return n;
}

/* The launch path where it is not free: a launch that must be counted, that
 * would queue too much, or that must wait for a turn. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "streams.h"

#define LOOK_NS 1000000000 /* a waiting launch looks around that often */
#define STALE_NS 4000000000 /* the helper should long have seen that the broker's heart stopped */
#define REGRANT_NS 1000000 /* a page that still says RUN that long after we yielded and asked again means it */

#define SAMPLE 32 /* of so many launches beside others one is marked */

enum verdict { PASS, SAMPLED, QUEUED, NOT_OURS, CHANGED };

void gs_bell_wait(struct gs_page *page, uint32_t was, uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	syscall(SYS_futex, &page->bell, FUTEX_WAIT, was, &t, NULL, 0);
}

/* A waiter can be woken through a mapping that cannot be written. */
void gs_bell_ring(struct gs_page *page)
{
	syscall(SYS_futex, &page->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void inside(struct gs_thread *t)
{
	atomic_fetch_add_explicit(&t->seq, 1, memory_order_seq_cst);
}

/* No launch was made: seq / 2 counts those that were. */
static void outside(struct gs_thread *t)
{
	atomic_fetch_sub_explicit(&t->seq, 1, memory_order_release);
}

static uint64_t cap_ns(const struct gs_slot *slot)
{
	return (uint64_t)__atomic_load_n(&slot->inflight_us, __ATOMIC_RELAXED) * 1000;
}

/* A launch that is let go on to be marked. A graph that is to be measured must
 * not share its marker with what was launched before. */
static void count(struct gs_stream *e, struct gs_launch *l, const struct gs_slot *slot, uint64_t now)
{
	if (l->graph && e->now.launches && gs_marker_alone(e->gpu, l->graph))
		gs_marker_record(e, l->stream, now);
	l->cost = gs_marker_cost(e, l->graph, cap_ns(slot));
	l->entry = e;
}

/* Whether the launch may be made now, as the page says. asked_ns is when this
 * launch began to wait for a turn, 0 if it did not. */
static enum verdict admit(struct gs_stream *e, struct gs_launch *l, const struct gs_slot *slot, uint64_t asked_ns)
{
	struct gs_gpu *g = e->gpu;
	uint32_t mode = __atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE);
	bool watched = __atomic_load_n(&slot->flags, __ATOMIC_RELAXED) & GS_WATCH;

	if (mode == GS_KILL || (mode == GS_OPEN && !watched)) {
		if (!atomic_load_explicit(&e->opened, memory_order_relaxed))
			atomic_store(&e->opened, true);
		return PASS;
	}
	if (mode == GS_PAUSE)
		return NOT_OURS;
	enum verdict v = PASS;
	uint64_t now = gs_now(), turn = __atomic_load_n(&slot->turn, __ATOMIC_RELAXED);
	pthread_mutex_lock(&g->lock);
	/* The helper may have given the turn back while we waited for the lock,
	 * and it will not look again: what counts is the page's word from now on. */
	if (__atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE) != mode)
		v = CHANGED;
	else if (mode == GS_RUN && (g->turn != turn || (g->phase == GS_GIVEN && asked_ns && now - asked_ns >= REGRANT_NS)))
		gs_turns_begin(g, GS_TURN, turn, now);
	else if (watched && g->phase != GS_WATCHED)
		gs_turns_begin(g, GS_WATCHED, turn, now);
	if (mode == GS_RUN && g->phase == GS_GIVEN)
		v = NOT_OURS;
	else if (v == PASS && mode == GS_RUN && gs_marker_left(e, now) > cap_ns(slot))
		v = QUEUED;
	if (v == PASS)
		count(e, l, slot, now);
	pthread_mutex_unlock(&g->lock);
	if (v == PASS && mode == GS_OPEN) {
		atomic_store(&e->opened, true);
		return SAMPLED;
	}
	return v;
}

/* Waits until the GPU has less to do: for the oldest marker, or, where that
 * stands for a long graph, until about the cap is left of it, so that the next
 * one is there in time. */
static void wait_queue(struct gs_stream *e, struct gs_launch *l, struct gs_page *page, uint32_t bell)
{
	struct gs_gpu *g = e->gpu;
	uint64_t now = gs_now(), cap = cap_ns(&page->slot[gs_gpu_index(g)]), left, pause = 0;
	CUevent event = NULL;

	pthread_mutex_lock(&g->lock);
	gs_marker_reap(g);
	left = gs_marker_left(e, now);
	if (left > cap) {
		struct gs_marker *m = gs_marker_oldest(e);
		if (!m && ((e->now.launches && gs_marker_record(e, l->stream, now)) || gs_marker_tails(g, now)))
			m = gs_marker_oldest(e);
		if (!m)
			g->queued = 0; /* nothing stands behind the estimate */
		else if (m->graph && m->cost > cap && left < m->cost + cap)
			pause = left - cap;
		else
			event = m->event;
	}
	pthread_mutex_unlock(&g->lock);
	if (pause)
		gs_bell_wait(page, bell, pause);
	if (event) {
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		gs_real.cuThreadExchangeStreamCaptureMode(&mode);
		gs_real.cuEventSynchronize(event);
		gs_real.cuThreadExchangeStreamCaptureMode(&mode);
	}
}

static void wait_turn(struct gs_gpu *g, struct gs_page *page, uint32_t bell, uint64_t asked_ns, uint64_t now)
{
	const struct gs_slot *slot = &page->slot[gs_gpu_index(g)];

	pthread_mutex_lock(&g->lock);
	gs_turns_ask(g, __atomic_load_n(&slot->turn, __ATOMIC_RELAXED), now - asked_ns >= LOOK_NS, now);
	g->held = true;
	pthread_mutex_unlock(&g->lock);
	if (now - asked_ns >= LOOK_NS && now > __atomic_load_n(&page->heartbeat_ns, __ATOMIC_RELAXED) + STALE_NS)
		gs_client_poll(); /* the helper sits in the driver, or there is none */
	gs_bell_wait(page, bell, __atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE) == GS_RUN ? REGRANT_NS : LOOK_NS);
}

void gs_gate_slow(struct gs_launch *l)
{
	struct gs_thread *t = gs_thread_of_self();
	uint64_t asked = 0, began = 0, now;

	l->entry = NULL;
	l->counted = false;
	if (!t) {
		atomic_fetch_add(&gs_errors, 1);
		return;
	}
	if (atomic_load_explicit(&t->seq, memory_order_relaxed) & 1)
		return; /* a launch within a launch: the driver's own */
	struct gs_stream *e = gs_stream_of(t, l->stream);
	if (!e || e->broken || (atomic_load(&gs_captures) && gs_stream_captures(l->stream)))
		return;
	for (;;) {
		struct gs_page *page = atomic_load(&gs_page);
		uint32_t bell = __atomic_load_n(&page->bell, __ATOMIC_ACQUIRE);
		inside(t);
		enum verdict v = admit(e, l, &page->slot[gs_gpu_index(e->gpu)], asked);
		if (v == PASS || v == SAMPLED) {
			t->spare = v == SAMPLED ? SAMPLE - 1 : 0;
			t->bell = bell;
			t->page = page;
			break;
		}
		outside(t);
		if (v == CHANGED)
			continue;
		now = gs_now();
		if (!began)
			began = now;
		if (v == QUEUED) {
			asked = 0;
			wait_queue(e, l, page, bell);
		} else {
			if (!asked)
				asked = now;
			wait_turn(e->gpu, page, bell, asked, now);
		}
	}
	l->counted = true;
	if (began) {
		pthread_mutex_lock(&e->gpu->lock);
		e->gpu->usage.overhead_ns += gs_now() - began;
		pthread_mutex_unlock(&e->gpu->lock);
	}
}

void gs_gate_left(struct gs_launch *l, CUresult r)
{
	struct gs_stream *e = l->entry;
	struct gs_gpu *g = e->gpu;
	struct gs_context *c = e->stray ? gs_context_current() : e->context;

	if (r || !c)
		return;
	pthread_mutex_lock(&g->lock);
	if (e->stray || e->stream == l->stream) {
		uint64_t now = gs_now();
		gs_marker_add(e, c, l->graph, l->cost, now);
		if (g->phase == GS_WATCHED)
			e->now.uneven = true; /* others went by uncounted */
		g->usage.launched++;
		g->launched_ns = now;
		if (!g->usage.first_ns)
			g->usage.first_ns = now;
		if (gs_marker_due(e)) {
			gs_marker_look(e);
			gs_marker_record(e, l->stream, now);
		}
	}
	pthread_mutex_unlock(&g->lock);
}

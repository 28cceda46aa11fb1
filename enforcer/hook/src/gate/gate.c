/* The slow path of launches: a launch must be counted, would queue too much, or
 * must wait because others go first. */
#include "gate/gate.h"

#include "base/clock.h"
#include "base/devices.h"
#include "base/futex.h"
#include "gate/helper.h"
#include "gate/turns.h"
#include "session/client.h"
#include "session/local.h"
#include "streams/bound.h"
#include "streams/limits.h"
#include "streams/markers.h"
#include "trace/trace.h"

enum verdict { PASS, QUEUED, HELD, EARLY, CHANGED };

static struct gs_context *context(const struct gs_stream *e) { return e->stray ? gs_context_current() : e->context; }

/* The helper sees that the thread is inside, or the thread sees what the page says. */
static void inside(struct gs_thread *t, struct gs_launch *l, struct gs_gpu *g)
{
	l->crowd = t ? NULL : g;
	atomic_fetch_add_explicit(t ? &t->seq : &g->crowded, 1, memory_order_seq_cst);
}

/* No launch was made: seq / 2 is the number of those that were. */
static void outside(struct gs_thread *t, struct gs_launch *l)
{
	atomic_fetch_sub_explicit(t ? &t->seq : &l->crowd->crowded, 1, memory_order_release);
	l->crowd = NULL;
}

/* If a program waited for the bound and then has hardly anything queued when it
 * launches again, it could have queued more: it was faster than the GPU. */
static void widen(struct gs_stream *e, const struct gs_slot *slot, uint64_t now)
{
	if (!e->bounded)
		return;
	gs_marker_look(e);
	if (gs_marker_left(e, now) > DRY_NS)
		return;
	e->bounded = false;
	gs_bound_double(e, slot, now);
}

/* A launch waits for the bound. A program that needed more a while ago may not need it now. */
static void bounded(struct gs_stream *e, uint64_t now)
{
	e->bounded = true;
	if (now - e->bound_set < BOUND_AGAIN_NS)
		return;
	e->bound_ns /= 2;
	e->bound_set = now;
}

/* This graph may go by in OPEN from now on, as the thread's others may, until the next one that looks. */
static void grant_graphs(struct gs_thread *t, const struct gs_stream *e, const struct gs_launch *l)
{
	uint64_t cost = gs_marker_learnt(e->gpu, l->graph);
	struct gs_known *known = gs_known(t, l->graph);

	if (!cost || cost > GRAPHS_NS || e->stray || e->refusals) {
		if (known)
			known->exec = NULL; /* it looks each time, as others do once after it */
		return;
	}
	if (!known)
		known = &t->known[t->known_next++ % GS_KNOWN];
	known->exec = l->graph;
	known->cost = (uint32_t)cost;
	known->left = CREDIT_MOST;
	t->graphs_ns = GRAPHS_NS;
}

/* A launch goes on and is to be marked. A graph that is to be measured must not
 * share its marker with earlier launches. */
static void count(struct gs_stream *e, struct gs_launch *l, bool timed, uint64_t now)
{
	gs_marker_hosted(e, l->stream, now);
	if (timed && gs_marker_before(e, l->stream, now)) {
		l->beside = gs_stream_beside(e, false);
		l->timed_ns = gs_now();
	} else if (l->graph && e->now.launches && gs_marker_alone(e->gpu, l->graph)) {
		gs_marker_record(e, l->stream, now);
	}
	l->cost = gs_marker_cost(e, l->graph, GRAPH_NS);
	l->entry = e;
}

/* How many launches may go by without a look after this one: cheap ones do not fill
 * a queue soon. */
static uint32_t credit(const struct gs_stream *e, const struct gs_launch *l)
{
	uint64_t cost = e->cost;

	if (l->graph || e->stray || !cost || cost >= DEAR_NS)
		return 0;
	return CREDIT_NS / cost < CREDIT_MOST ? (uint32_t)(CREDIT_NS / cost) : CREDIT_MOST;
}

/* The helper may be fast asleep, since there was nothing to do. If it is about to
 * sleep and misses this, the next launch that looks wakes it. */
static void rouse(uint64_t now)
{
	if (atomic_load(&gs_helper_wake) > now + ROUSE_NS)
		gs_bell_ring(atomic_load(&gs_page));
}

/* The launch fails, which the program is to see at once. */
static bool lost(const struct gs_stream *e)
{
	const struct gs_context *c = context(e);

	return c && atomic_load(&c->lost);
}

/* A launch goes on at a pace. */
static void line_up(struct gs_gpu *g, uint64_t cost, uint32_t pace, uint64_t now)
{
	if (g->line_ns < now - SPRINT_NS)
		g->line_ns = now - SPRINT_NS;
	g->line_ns += cost * 1000 / pace;
	if (g->line_ns > now + EARLY_MOST_NS)
		g->line_ns = now + EARLY_MOST_NS;
}

/* Waits until the line has moved, or the page changes. */
static void wait_line(struct gs_gpu *g, struct gs_page *page, uint32_t bell)
{
	gs_gpu_lock(g);
	uint64_t now = gs_now(), at = g->line_ns;
	pthread_mutex_unlock(&g->lock);
	if (at > now)
		gs_bell_wait(page, bell, at - now);
}

/* Returns whether the launch has the ticket: it is to be timed. What was timed often leaves the ticket to others for a
 * while, or a kernel that a step has once among a thousand would not be timed for seconds. */
static bool ticket(const void *what)
{
	static _Atomic unsigned left; /* to others, of late */
	_Atomic uint16_t *times = &gs_timed[gs_note_id(what) % GS_TIMED];
	unsigned n = atomic_load_explicit(&gs_tickets, memory_order_relaxed), saved;

	while (n > 1 && what && !atomic_compare_exchange_weak(&gs_tickets, &n, n - 1))
		;
	if (n != 1 || !what)
		return false;
	if (atomic_load(times) >= OFTEN && atomic_fetch_add(&left, 1) < LEAVES)
		return false;
	if (!atomic_compare_exchange_strong(&gs_tickets, &n, 0))
		return false;
	saved = atomic_load(&gs_saved);
	while (saved && !atomic_compare_exchange_weak(&gs_saved, &saved, saved - 1))
		;
	if (saved)
		atomic_store(&gs_tickets, gs_next_ticket(gs_trace_ticks() * 0x9e3779b97f4a7c15u >> 48));
	atomic_store(&left, 0);
	atomic_fetch_add(times, atomic_load(times) < OFTEN);
	return true;
}

/* Decides by the page whether the launch may be made now. passes: it has waited long enough. */
static enum verdict admit(struct gs_thread *t, struct gs_stream *e, struct gs_launch *l, const struct gs_slot *slot,
			  bool passes, bool timed)
{
	struct gs_gpu *g = e->gpu;
	uint32_t mode = __atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE);

	if (mode == GS_OPEN && !atomic_load_explicit(&e->opened, memory_order_relaxed))
		atomic_store(&e->opened, true);
	uint32_t pace = __atomic_load_n(&slot->pace_permille, __ATOMIC_RELAXED);
	bool free = mode == GS_OPEN && !pace && !l->graph && !atomic_load_explicit(&gs_deep, memory_order_relaxed);
	if (mode == GS_KILL || lost(e) || (free && !timed))
		return PASS;
	uint64_t now = gs_now();
	if (mode == GS_PAUSE && !passes && now >= atomic_load(&gs_passing))
		return HELD;
	enum verdict v = PASS;
	gs_gpu_lock(g);
	uint64_t turn = __atomic_load_n(&slot->turn, __ATOMIC_ACQUIRE);
	if (__atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE) != mode) {
		v = CHANGED;
	} else {
		if (mode == GS_RUN && (g->turn != turn || g->phase != GS_TURN))
			gs_turns_begin(g, GS_TURN, turn, __atomic_load_n(&slot->flags, __ATOMIC_RELAXED), now);
		if (mode == GS_RUN)
			rouse(now);
		if (mode != GS_OPEN)
			gs_turns_ask(g, false);
		if (t)
			gs_stream_settle(t, now);
		if (t)
			gs_stream_settle_graphs(t, now);
		widen(e, slot, now);
		if (passes)
			e->stalled += e->stalled < STALLED_DOUBLES;
		else if (pace && g->line_ns > now)
			v = EARLY;
		else if (!free && gs_marker_left(e, now) > gs_bound(e, slot))
			v = QUEUED;
		if (v == QUEUED)
			bounded(e, now);
		if (v == PASS) {
			count(e, l, timed, now);
			if (pace)
				line_up(g, l->cost, pace, now);
			if (passes || mode == GS_PAUSE)
				atomic_fetch_add(&gs_passed, 1);
			if (t)
				t->spare = passes || pace || mode == GS_PAUSE ? 0 : credit(e, l);
			if (t && l->graph && mode == GS_OPEN && !pace && !passes)
				grant_graphs(t, e, l);
		}
	}
	pthread_mutex_unlock(&g->lock);
	return v;
}

/* Waits a moment until the stream has less to do. Returns whether the stream has
 * made no progress for so long that it may wait for this very launch. */
static bool wait_queue(struct gs_stream *e, struct gs_launch *l, struct gs_page *page, uint32_t bell, uint64_t began)
{
	struct gs_gpu *g = e->gpu;
	uint64_t now = gs_now(), nap = 0, most = DOZE_NS;
	bool stalled = false;

	gs_gpu_lock(g);
	struct gs_slot *slot = &page->slot[gs_gpu_index(g)];
	uint64_t cap = gs_bound(e, slot);
	gs_marker_look(e);
	uint64_t left = gs_marker_left(e, now);
	if (left > cap) {
		struct gs_marker *m = gs_marker_oldest(e);
		if (!m && e->now.launches && gs_marker_record(e, l->stream, now))
			m = gs_marker_oldest(e);
		nap = left - cap;
		if (!m) {
			e->queued = 0; /* no event supports the estimate */
		} else {
			uint64_t since = e->passed_ns > began ? e->passed_ns : began;
			if (m->recorded_ns > since) /* before that nobody could see it pass */
				since = m->recorded_ns;
			uint64_t slow = m->hosts ? 0 : SLOW * (m->cost > g->longest_ns ? m->cost : g->longest_ns);
			uint64_t least = e->stalled ? STALLED_NS << (m->hosts ? 0 : e->stalled) : m->hosts ? HOSTED_NS : STALL_NS;
			if (m->hosts && gs_marker_known(e) > SLOW * GS_AHEAD) /* all of it comes at once when the function ends */
				least = STALL_NS;
			if (slow > STALL_MOST_NS)
				slow = STALL_MOST_NS;
			if (e->stalled && __atomic_load_n(&slot->mode, __ATOMIC_RELAXED) == GS_OPEN)
				slow = 0; /* what waited once for work without end need not, for each launch again */
			most = m->hosts ? STALLED_NS : DOZE_NS;
			stalled = now > since && now - since > (slow > least ? slow : least);
			if (stalled)
				m->awaited_ns = now;
		}
	}
	pthread_mutex_unlock(&g->lock);
	if (nap && !stalled)
		gs_bell_wait(page, bell, nap < NAP_NS ? NAP_NS : nap > most ? most : nap);
	return stalled;
}

/* Returns whether work of this process has made no progress since then, on any GPU. What
 * is suspended makes none. */
static bool stalled(uint64_t since, uint64_t now)
{
	if (gs_suspended())
		return false;
	for (unsigned i = 0; i < GS_GPUS && i < gs_gpu_count(); i++) {
		struct gs_gpu *g = &gs_gates[i];
		if (!g->seated)
			continue;
		gs_gpu_lock(g);
		gs_marker_reap(g);
		uint64_t from = g->progress_ns > since ? g->progress_ns : since, least = SLOW * gs_marker_dearest(g);
		if (least > STALL_MOST_NS) /* work that stalls seems to be long */
			least = STALL_MOST_NS;
		if (least < atomic_load(&gs_patience))
			least = atomic_load(&gs_patience);
		if (g->phase == GS_DRAINING && gs_marker_at_hosts(g)) /* others wait for that, at the tenant's cost */
			least = HOSTED_NS;
		bool is = gs_marker_any(g) && now > from && now - from >= least;
		if (is)
			gs_marker_await(g, now);
		pthread_mutex_unlock(&g->lock);
		if (is)
			return true;
	}
	return false;
}

/* Work that made no progress while a launch waited may wait for that launch: its
 * duration does not tell its cost. */
static void suspect(void)
{
	for (unsigned i = 0; i < GS_GPUS && i < gs_gpu_count(); i++) {
		struct gs_gpu *g = &gs_gates[i];
		if (!g->seated)
			continue;
		gs_gpu_lock(g);
		gs_marker_reap(g);
		gs_marker_suspect(g);
		pthread_mutex_unlock(&g->lock);
	}
}

/* Waits for the page to change. A launch passes in any case if work in flight makes
 * no progress: that may wait for what this thread is about to launch. */
static bool wait_turn(struct gs_gpu *g, struct gs_page *page, uint32_t bell, uint64_t began)
{
	uint64_t now = gs_now(), most = atomic_load(&gs_patience);

	if (now - began >= HOSTED_NS && stalled(began, now)) {
		atomic_store(&gs_passing, now + PASSING_NS);
		if (now - began >= most)
			atomic_store(&gs_patience, 2 * most < STALL_MOST_NS ? 2 * most : STALL_MOST_NS);
		return true;
	}
	gs_gpu_lock(g);
	if (g->phase != GS_GIVEN)
		most = HOSTED_NS;
	gs_turns_ask(g, now - began >= LOOK_NS);
	pthread_mutex_unlock(&g->lock);
	if (now - began >= LOOK_NS && now > __atomic_load_n(&page->heartbeat_ns, __ATOMIC_RELAXED) + STALE_NS)
		gs_client_poll(); /* the helper sits in the driver, or there is none */
	gs_bell_wait(page, bell, most);
	return false;
}

/* The thread's stream. The helper begins if no call told of its context. */
static struct gs_stream *stream_of(struct gs_thread *t, CUstream s)
{
	struct gs_stream *e = gs_stream_of(t, s);

	if (e && unlikely(!atomic_load(&e->gpu->seated))) {
		atomic_store(&e->gpu->seated, true);
		gs_helper_start();
	}
	return e;
}

/* A launch waits at the gate for a turn from now on (1), or has waited for so long, ns, for a turn (-1) or not (0). */
static void waits(struct gs_gpu *g, int launches, uint64_t ns)
{
	gs_gpu_lock(g);
	g->waiting += (unsigned)launches;
	g->usage.overhead_ns += ns;
	pthread_mutex_unlock(&g->lock);
}

void gs_gate_slow(struct gs_launch *l)
{
	GS_UNCANCELLED;
	struct gs_thread *t = gs_thread_of_self();
	uint64_t began = 0;
	bool passes = false, held = false, waited = false;
	enum gs_event_kind noted = 0;

	l->entry = NULL;
	l->crowd = NULL;
	l->seq = 0;
	l->timed_ns = 0;
	gs_launch_over(t);
	struct gs_stream *e = stream_of(t, l->stream);
	if (!e || (atomic_load(&gs_captures) && gs_stream_captures(l->stream)))
		return;
	bool timed = ticket(l->what);
	for (;;) {
		struct gs_page *page = atomic_load(&gs_page);
		uint32_t bell = __atomic_load_n(&page->bell, __ATOMIC_ACQUIRE);
		uint64_t credits = atomic_load(&gs_credits);
		inside(t, l, e->gpu);
		enum verdict v = admit(t, e, l, &page->slot[gs_gpu_index(e->gpu)], passes, timed);
		if (v == PASS) {
			if (t) {
				if (!l->entry)
					t->spare = 0;
				t->bell = bell;
				t->credits = credits;
				t->page = page;
			}
			break;
		}
		outside(t, l);
		if (v == CHANGED)
			continue;
		if (!began) {
			began = gs_now();
			noted = v == QUEUED ? GS_EVENT_WAITED : GS_EVENT_RELEASED;
			gs_note(v == QUEUED ? GS_EVENT_WAIT : GS_EVENT_HELD, GS_WAIT_QUEUE);
		}
		held = held || v == HELD;
		if (v != QUEUED && !waited) {
			waited = true;
			waits(e->gpu, 1, 0);
		}
		if (v == EARLY)
			wait_line(e->gpu, page, bell);
		else
			passes = v == QUEUED ? wait_queue(e, l, page, bell, began) : wait_turn(e->gpu, page, bell, began);
	}
	l->seq = t ? atomic_load_explicit(&t->seq, memory_order_relaxed) : 0;
	gs_present = *l;
	if (held)
		suspect();
	if (began) {
		gs_note(noted, GS_WAIT_QUEUE);
		waits(e->gpu, -waited, gs_now() - began);
	}
}

static bool open_at(const struct gs_gpu *g)
{
	return __atomic_load_n(&atomic_load(&gs_page)->slot[gs_gpu_index(g)].mode, __ATOMIC_ACQUIRE) == GS_OPEN;
}

/* A host function may wait for what this thread does after further launches. At an
 * open gate no launch looks, so the function is only remembered. */
void gs_gate_host(CUstream s, bool per_thread)
{
	GS_UNCANCELLED;
	struct gs_thread *t = gs_thread_of_self();

	if (s == NULL && per_thread)
		s = CU_STREAM_PER_THREAD;
	else if (s == CU_STREAM_LEGACY)
		s = NULL;
	struct gs_context *c = gs_context_current();
	struct gs_gpu *g = c ? atomic_load(&c->gpu) : NULL;
	if (atomic_load(&gs_captures) && gs_stream_captures(s))
		return;
	if (t && g && open_at(g) && !atomic_load(&gs_deep)) {
		gs_stream_hosted(t, c, s);
		return;
	}
	struct gs_stream *e = stream_of(t, s);
	if (!e || e->stray)
		return;
	uint64_t now = gs_now();
	gs_gpu_lock(e->gpu);
	gs_stream_settle(t, now);
	gs_marker_host(e, s, now);
	t->spare = 0; /* the next launch looks */
	pthread_mutex_unlock(&e->gpu->lock);
}

/* A process that makes a context takes a seat on its GPU. */
void gs_gate_context_created(CUcontext c, int gpu)
{
	if (!c || gpu < 0 || gpu >= GS_GPUS)
		return;
	gs_context_of(c);
	struct gs_gpu *g = &gs_gates[gpu];
	pthread_mutex_lock(&g->lock);
	g->seated = true;
	gs_turns_seat(g);
	pthread_mutex_unlock(&g->lock);
	gs_helper_start();
}

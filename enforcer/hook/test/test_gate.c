/* The gate, against a driver and a broker that do what the test says. */
#define _GNU_SOURCE
#include <setjmp.h>

#include "fake.h"
#include "streams/bound.h"
#include "trace/trace.h"

static void an_open_gate_records_nothing(void)
{
	fake_instant = true; /* otherwise the helper would sound it */
	for (int i = 0; i < 1000; i++)
		fake_launch(0, false, NULL);
	CHECK(put_all() == 1000 && gs_self->entry && gs_self->stream == NULL);
	CHECK(atomic_load(&gs_self->seq) == 2000);
	CHECK(!fake[0].records && !fake_acquires && !fake_yields && !gs_gate_errors());
}

static void a_pause_holds_all_and_asks_once(void)
{
	pthread_t t[4];

	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(fake_yields && phase() == GS_GIVEN); /* nothing was in flight */
	for (uintptr_t i = 0; i < 4; i++)
		t[i] = launching(10 + i);
	AWAIT(held() == 4 && fake_acquires == 1);
	spin(30000000); /* no work in flight could wait for them */
	CHECK(put_all() == 0 && fake_acquires == 1);
	fake_mode(0, GS_RUN, 2, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	CHECK(put_all() == 4 && !gs_passed && waited() >= 4 * 30000000ull);
}

static void launch_many(uintptr_t stream, int n, void *graph)
{
	for (int i = 0; i < n; i++)
		fake_launch(stream, false, graph);
}

static void *launch_hundred(void *unused)
{
	launch_many(10, 100, NULL);
	return unused;
}

static void work_in_flight_is_bounded(void)
{
	pthread_t t;
	fake_mode(0, GS_RUN, 1, 0);
	CHECK(!pthread_create(&t, NULL, launch_hundred, NULL));
	AWAIT(fake[10].put >= 8); /* 0.75 ms, and 0.1 ms each while their cost is not known */
	uint64_t put = fake[10].put;
	CHECK(put <= 10 + gs_passed); /* the first may be taken for done, and one has passed and is not counted yet */
	fake_instant = true;
	pthread_join(t, NULL);
	CHECK(fake[10].put == 100);
}

/* The GPU never does anything: its work may wait for what is held back. */
static void a_full_queue_without_progress_lets_pass(void)
{
	uint64_t from = gs_now();

	fake_mode(0, GS_RUN, 1, 0);
	launch_many(10, 40, NULL);
	CHECK(fake[10].put == 40 && !fake[10].done);
	CHECK(gs_passed >= 40 - 10 && gs_passed <= 40 - 8);
	CHECK(gs_now() - from >= 5000000 + 20 * 25600000); /* each of them a little later */
	fake_mode(0, GS_PAUSE, 1, 0);
	const struct fake_word *w;
	AWAIT((w = told(GS_YIELD, GS_UNDRAINED, 0)));
	CHECK(w->usage.passed == gs_passed && w->usage.overhead_ns >= 20000000 && !w->usage.errors);
}

/* Who reads the trace must not take it for the program's own wait. */
static void a_wait_for_room_is_noted_as_such(void)
{
	static struct gs_trace trace;
	unsigned waits = 0;

	atomic_store(&gs_trace, &trace);
	fake_mode(0, GS_RUN, 1, 0);
	launch_many(10, 40, NULL);
	atomic_store(&gs_trace, NULL);
	for (const struct gs_event *e = trace.event; e < trace.event + trace.head; e++) {
		uint32_t kind = e->what & 0xff;

		CHECK((kind != GS_EVENT_WAIT && kind != GS_EVENT_WAITED) || e->id == GS_WAIT_QUEUE);
		waits += kind == GS_EVENT_WAIT;
	}
	CHECK(waits >= gs_passed && gs_passed);
}

static void a_stream_does_not_wait_for_another(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	launch_many(10, 8, NULL);
	launch_many(11, 8, NULL);
	launch_many(12, 1, NULL);
	CHECK(put_all() == 17 && !gs_passed && !waited());
}

/* Finishes all work on the stream, lets it launch once more, and returns how often
 * it may launch after that until one passes for want of progress. */
static int depth(struct gs_stream *e)
{
	int n = 1;

	spin(5000000); /* the launch that passed did not help */
	fake_finish(10);
	fake_reap(); /* which took much too long */
	set_cost(10, 100000);
	fake_launch(10, false, NULL);
	for (uint64_t passed = gs_passed; gs_passed == passed; n++)
		fake_launch(10, false, NULL);
	CHECK(e->bounded);
	return n;
}

/* The bound is as little as costs the program nothing, and at most the page's: 2
 * ms. The work of the first marker may be taken for done, and launches go by on
 * credit. */
static void who_runs_dry_may_queue_more(void)
{
	struct gs_stream *e;

	fake_mode(0, GS_RUN, 1, 0);
	launch_many(10, 11, NULL);
	CHECK((e = gs_self->entry) && gs_passed && e->bounded && !e->bound_ns);
	int n = depth(e);
	CHECK(e->bound_ns == 1500000 && n >= 16 && n <= 16 + 8);
	n = depth(e);
	CHECK(e->bound_ns == 3000000 && n >= 21 && n <= 21 + 8);
	e->bound_set -= 1000000000; /* a second ago */
	fake_launch(10, false, NULL);
	CHECK(e->bound_ns == 1500000);
}

/* A launch that finds so much work in its queue after one waited for the bound. */
static bool runs_dry(uint64_t ns)
{
	fake_finish(10);
	fake_reap();
	set_cost(10, 100000);
	pthread_mutex_lock(&gs_gates[0].lock);
	struct gs_stream *e = gs_self->entry;
	e->bounded = true;
	e->queued = ns;
	e->bound_ns = 0;
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_launch(10, false, NULL);
	return !e->bounded && e->bound_ns == 1500000;
}

static void hardly_any_work_is_none(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	CHECK(runs_dry(50000) && !runs_dry(500000)); /* an emulated processor takes some of it meanwhile */
}

/* An empty queue after a pause tells nothing. */
static void a_turn_that_ends_is_no_reason_to_queue_more(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	launch_many(10, 11, NULL);
	struct gs_stream *e = gs_self->entry;
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(e && e->bounded);
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	spin(5000000);
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	fake_mode(0, GS_RUN, 2, 0);
	fake_launch(10, false, NULL);
	CHECK(!e->bounded && !e->bound_ns);
}

/* Work that goes on as soon as a launch passes had waited for it. That time is not
 * its cost, and the bound was in the way. */
static void who_was_helped_may_queue_more(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 300000);
	uint64_t from = gs_now();
	for (uint64_t n = gs_passed; gs_passed == n;)
		fake_launch(10, false, NULL);
	struct gs_stream *e = gs_self->entry;
	CHECK(gs_now() - from >= 5000000);
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t bound = e->bound_ns;
	struct gs_marker *m = gs_marker_oldest(e);
	CHECK(m && m->awaited_ns);
	m->awaited_ns = gs_now() + 10000000000; /* soon after, even on a busy machine */
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_finish(10);
	fake_reap();
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(!e->stalled && e->cost <= 300000);
	CHECK(!bound && e->bound_ns == 1500000);
	pthread_mutex_unlock(&gs_gates[0].lock);
}

/* A launch at a pause, behind work that never ends. Each one waits longer, but not
 * for ever. Those soon after it do not wait. */
static void a_stalled_launch_passes_a_pause(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_mode(0, GS_PAUSE, 1, 0);
	for (uint64_t i = 0; i < 3; i++) {
		uint64_t from = gs_now();
		pthread_join(launching(11 + i), NULL);
		CHECK(fake[11 + i].put == 1 && gs_passed == i + 1);
		CHECK(gs_now() - from >= 5000000ull << i);
		spin(2000000);
	}
	uint64_t took = UINT64_MAX, passed = 3;
	for (int i = 0; i < 20 && took > 5000000; i++) { /* the machine may be busy with other work just then */
		fake_launch(13, false, NULL);
		uint64_t from = gs_now();
		fake_launch(13, false, NULL);
		took = gs_now() - from;
		passed += 2;
	}
	CHECK(took <= 5000000 && gs_passed == passed);
	AWAIT(told(GS_YIELD, GS_UNDRAINED, 0));
	CHECK(!told(GS_YIELD, GS_DRAINED, 0) && !told(GS_YIELD, GS_IDLE, fake_says - 1));
	for (uintptr_t i = 10; i < 14; i++)
		fake_finish(i);
	const struct fake_word *w;
	AWAIT((w = told(GS_YIELD, GS_DRAINED, 0)));
	CHECK(w->usage.passed == passed);
	AWAIT(fake_launched == 1 + passed);
	pthread_t t = launching(14); /* nothing is in flight any more */
	AWAIT(held() == 1);
	spin(50000000);
	CHECK(!fake[14].put && gs_passed == passed);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
}

/* Two seconds are the longest that a launch waits. */
static void patience_ends(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_mode(0, GS_PAUSE, 1, 0);
	atomic_store(&gs_patience, 1200000000);
	pthread_join(launching(11), NULL);
	CHECK(gs_passed == 1 && gs_patience == 2000000000);
}

/* Long work that does not wait for a launch is known as that, and no launch passes
 * again while it takes no longer. Until then they pass less and less often. */
static void launches_seldom_pass_long_work(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_mode(0, GS_PAUSE, 1, 0);
	uint64_t from = gs_now(), passed = 0;
	for (; gs_now() - from < 400000000; passed++) {
		pthread_join(launching(11 + passed), NULL);
		spin(2000000); /* those soon after it do not wait */
	}
	CHECK(passed >= 2 && passed <= 7 && gs_passed == passed); /* after 5 ms, 10 ms, 20 ms and so on */
	pthread_mutex_lock(&gs_gates[0].lock);
	for (struct gs_stream *e = gs_gates[0].streams; e; e = e->next)
		if (gs_marker_oldest(e))
			gs_marker_oldest(e)->awaited_ns = from;
	CHECK(gs_gates[0].longest_ns < 40000000);
	pthread_mutex_unlock(&gs_gates[0].lock);
	for (uintptr_t i = 10; i < 11 + passed; i++)
		fake_finish(i);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(gs_gates[0].longest_ns >= 350000000); /* it shrinks with each message */
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_mode(0, GS_RUN, 2, 0);
	fake_launch(40, false, NULL);
	fake_mode(0, GS_PAUSE, 2, 0);
	pthread_t t = launching(41);
	spin(200000000);
	CHECK(!fake[41].put && gs_passed == passed);
	fake_mode(0, GS_RUN, 3, 0);
	pthread_join(t, NULL);
}

/* A launch of 10 ms that takes longer, and one behind it that waits at a pause. */
static struct gs_stream *behind(pthread_t *t)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	fake_reap();
	set_cost(10, 10000000);
	fake_launch(10, false, NULL);
	struct gs_stream *e = gs_self->entry;
	fake_mode(0, GS_PAUSE, 1, 0);
	fake_progress();
	*t = launching(10);
	AWAIT(held() == 1);
	fake_age();
	spin(20000000);
	return e;
}

static uint64_t cost_of(struct gs_stream *e)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t cost = e->cost;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return cost;
}

/* Returns the cost after a millisecond of six launches, all of which one look sees pass. */
static uint64_t cost_of_six(uintptr_t stream)
{
	launch_many(stream, 6, NULL); /* a marker each */
	spin(1000000);
	fake_reap();
	fake_finish(stream);
	fake_reap();
	return cost_of(gs_self->entry);
}

/* All markers but the first seem to have passed at once. If a cost came to nothing, any
 * number of launches could be queued. */
static void who_is_seen_late_costs_something(void)
{
	uint64_t cost = 0;

	fake_mode(0, GS_RUN, 1, 0);
	for (uintptr_t i = 10; i < 30 && !cost; i++) /* the machine may be busy */
		cost = cost_of_six(i);
	CHECK(cost >= 1000000);
	fake_elapsed_ms = 0.5f;
	cost = 0;
	for (uintptr_t i = 30; i < 50 && !cost; i++)
		cost = cost_of_six(i);
	CHECK(cost >= 500000);
}

/* Work that ends after a launch had its turn may have waited for that. */
static void who_is_waited_for_tells_no_cost(void)
{
	pthread_t t;
	struct gs_stream *e = behind(&t);

	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	fake_finish(10);
	fake_reap();
	CHECK(cost_of(e) <= 10000000);
}

/* Work that ends while the launch waits has not. */
static void who_ends_beforehand_tells_its_cost(void)
{
	pthread_t t;
	struct gs_stream *e = behind(&t);

	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	CHECK(cost_of(e) > 10000000);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
}

static void gpus_may_wait_for_one_another(void)
{
	gs_gate_context_created((CUcontext)0x200, 1);
	fake_mode(1, GS_RUN, 1, 0);
	fake_context = (CUcontext)0x200;
	fake_launch(10, false, NULL);
	fake_mode(0, GS_PAUSE, 1, 0);
	pthread_join(launching(11), NULL); /* a new thread is in GPU 0's context */
	CHECK(fake[11].put == 1 && gs_passed == 1);
}

/* The threads may look often whether the work that they wait for made progress. */
static void who_waits_long_asks_each_second(void)
{
	pthread_t t[2];

	gs_gate_context_created((CUcontext)0x200, 1); /* only this work could wait for them */
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(told(GS_YIELD, GS_IDLE, 0));
	uint64_t from = gs_now();
	for (uintptr_t i = 0; i < 2; i++)
		t[i] = launching(10 + i);
	AWAIT(fake_acquires >= 2);
	CHECK(gs_now() - from >= 1000000000);
	spin(200000000);
	CHECK(fake_acquires == 2 || gs_now() - from >= 2000000000);
	fake_mode(0, GS_RUN, 2, 0);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

/* A launch at a pause looks for the broker itself, after so long. */
static void looks_around(uint64_t heartbeat, uint64_t ns)
{
	uint64_t from = gs_now();

	__atomic_store_n(&fake_page->heartbeat_ns, heartbeat, __ATOMIC_RELEASE);
	atomic_store(&fake_polls, 0);
	fake_mode(0, GS_PAUSE, 1, 0);
	pthread_t t = launching(10);
	AWAIT(fake_polls);
	CHECK(gs_now() - from >= ns);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
}

static void who_waits_long_looks_around(void)
{
	fake_instant = true;
	looks_around(0, 1000000000);
	looks_around(gs_now() - 2000000000, 2000000000);
}

/* These are not looked at one by one, but all are in the books. */
static void cheap_launches_go_by_on_credit(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 1000);
	launch_many(10, 11, NULL);
	CHECK(gs_self->spare == 54); /* of 64 */
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	CHECK(!told(GS_YIELD, GS_DRAINED, 0) && fake_launched <= 1);
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	AWAIT(fake_launched == 12);
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(gs_self->counted == 12 && !gs_marker_outstanding(&gs_gates[0]));
	pthread_mutex_unlock(&gs_gates[0].lock);
	CHECK(gs_self->spare == 54 && gs_self->bell != fake_page->bell); /* it is worth nothing now */
}

static void who_passes_a_pause_has_no_credit(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 1000);
	fake_launch(10, false, NULL);
	fake_mode(0, GS_PAUSE, 1, 0);
	fake_launch(10, false, NULL); /* after some ms */
	CHECK(gs_passed == 1 && !gs_self->spare);
}

static void dear_launches_and_graphs_have_no_credit(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 100000);
	fake_launch(10, false, NULL);
	CHECK(!gs_self->spare);
	set_cost(10, 1000);
	fake_launch(10, false, NULL);
	CHECK(gs_self->spare == 64);
	fake_launch(10, false, (void *)0x1000);
	CHECK(!gs_self->spare);
}

/* In OPEN no launch waits, but even there no seconds of graphs may be queued. */
static void graphs_in_open_are_bounded(void)
{
	launch_many(10, 50, (void *)0x1000); /* 1 ms each while their cost is not known */
	CHECK(!gs_passed);
	launch_many(10, 10, (void *)0x1000);
	CHECK(fake[10].put == 60 && gs_passed >= 7 && gs_passed <= 9);
	launch_many(11, 50, (void *)0x1000); /* for each stream */
	launch_many(12, 400, NULL);
	CHECK(gs_passed <= 9);
}

/* The number of timed launches in a trace; all are of this one, and took so many units of 10 ns. */
static unsigned timed(struct gs_trace *t, const void *what, uint32_t took)
{
	unsigned n = 0;

	for (unsigned i = 0; i < 64; i++)
		if ((t->event[i].what & 0xff) == GS_EVENT_TIMED) {
			CHECK(t->event[i].id == gs_note_id(what) && (t->event[i + 1].what & 0xff) == GS_EVENT_TOOK);
			CHECK(t->event[i + 1].id <= took && t->event[i + 1].id + 20000 >= took); /* 200 us of waits for it at most */
			n++;
		}
	return n;
}

/* Of launches at an open gate, in a turn and on credit, the one with the ticket is between two markers. */
static void a_launch_with_the_ticket_is_timed(void)
{
	static struct gs_trace traces[2];

	gs_trace_begin(&traces[0]);
	fake_elapsed_ms = 50;
	fake_instant = true;
	atomic_fetch_add(&gs_captures, 1); /* the helper records no markers of its own */
	launch_many(10, 3, NULL);
	CHECK(!fake[10].records);
	gs_tickets = 3;
	launch_many(10, 2, NULL);
	CHECK(!fake[10].records && gs_tickets == 1);
	launch_many(10, 2, NULL);
	CHECK(fake[10].records == 2 && !gs_tickets);
	fake_reap();
	CHECK(timed(&traces[0], fake_kernel, 5000000) == 1);
	gs_trace_begin(&traces[1]);
	gs_tickets = 1;
	launch_many(10, 1, (void *)0x1000);
	fake_reap();
	CHECK(timed(&traces[1], (void *)0x1000, 5000000) == 1);
	fake_mode(0, GS_RUN, 1, 0);
	launch_many(10, 2, NULL);
	set_cost(10, 1000);
	launch_many(10, 1, NULL);
	CHECK(gs_self->spare == 64);
	gs_tickets = 1;
	launch_many(10, 2, NULL);
	CHECK(gs_self->spare == 63 && !gs_tickets);
	gs_trace_begin(NULL);
}

/* So does a kernel that each step has many times, and one that it has once is timed as well. */
static void what_was_timed_often_leaves_the_ticket(void)
{
	atomic_fetch_add(&gs_captures, 1);
	fake_kernel = (void *)0x2000;
	for (int i = 0; i < 16; i++) {
		gs_tickets = 1;
		launch_many(10, 1, NULL);
		CHECK(!gs_tickets);
		fake_finish(10);
	}
	gs_tickets = 1;
	launch_many(10, 15, NULL);
	CHECK(gs_tickets == 1);
	fake_kernel = (void *)0x3000;
	launch_many(10, 1, NULL);
	CHECK(!gs_tickets);
	fake_kernel = (void *)0x2000;
	gs_tickets = 1;
	launch_many(10, 16, NULL);
	CHECK(gs_tickets == 1);
	launch_many(10, 1, NULL);
	CHECK(!gs_tickets);
}

static void *launch_graph(void *stream)
{
	fake_launch((uintptr_t)stream, false, (void *)0x1000);
	return NULL;
}

static _Atomic bool stays;

static void *launch_and_stay(void *graph)
{
	stays = true;
	fake_launch(10, false, graph);
	AWAIT(!stays);
	return NULL;
}

/* A launch with the ticket has begun on a stream, between events so far apart. */
static struct gs_trace *begin_timed(struct gs_launch *l, float ms)
{
	static struct gs_trace traces[2];
	static unsigned begun;
	struct gs_trace *t = &traces[begun++ % 2];

	gs_trace_begin(t);
	fake_elapsed_ms = ms;
	atomic_fetch_add(&gs_captures, 1);
	launch_many(10, 1, NULL);
	gs_tickets = 1;
	gs_gate_enter(l, (CUstream)10, false, NULL, fake_kernel);
	return t;
}

static unsigned end_timed(struct gs_trace *t, struct gs_launch *l)
{
	unsigned asks = fake_asks;
	gs_gate_leave(l, 0);
	CHECK(fake_asked == asks); /* the event comes at once */
	fake_finish(10);
	launch_graph((void *)10);
	fake_reap();
	gs_trace_begin(NULL);
	return timed(t, fake_kernel, 100000);
}

/* A thread was away between marker and launch: that is no time of its kernel. */
static void a_launch_that_came_late_is_not_timed(void)
{
	struct gs_launch l;
	struct gs_trace *t = begin_timed(&l, 1);

	fake_finish(10);
	spin(1000000);
	CHECK(!end_timed(t, &l));
}

/* Another thread launches on the stream meanwhile, with a marker or without: the time is not that launch's alone. */
static void a_launch_of_another_thread_ends_the_timing(void)
{
	for (uintptr_t graph = 0; graph <= 0x1000; graph += 0x1000) {
		struct gs_launch l;
		struct gs_trace *t = begin_timed(&l, 1);
		uint64_t put = fake[10].put;
		pthread_t other;

		CHECK(!pthread_create(&other, NULL, launch_and_stay, (void *)graph));
		AWAIT(fake[10].put == put + 1);
		CHECK(!end_timed(t, &l));
		stays = false;
		pthread_join(other, NULL);
	}
}

/* A kernel at an open gate does not wait for the bound, with the ticket or without. */
static void the_ticket_makes_no_kernel_wait(void)
{
	atomic_fetch_add(&gs_captures, 1);
	launch_many(10, 1, (void *)0x1000);
	set_cost(10, 60000000);
	for (int i = 0; i < 3; i++) {
		gs_tickets = 1;
		launch_many(10, 1, NULL);
	}
	CHECK(fake[10].put == 4 && !gs_passed);
}

/* The helper gives out tickets as long as the page says how often. */
static void tickets_come_now_and_then(void)
{
	__atomic_store_n(&fake_page->timed, 2000, __ATOMIC_RELAXED);
	gs_bell_ring(fake_page);
	for (int i = 0; i < 3; i++) {
		AWAIT(gs_tickets > 0 && gs_tickets <= 16);
		gs_tickets = 0;
	}
	AWAIT(gs_tickets && gs_saved == 24); /* for a burst */
	gs_saved = 100;			     /* more than the helper saves: it adds none */
	gs_tickets = 1;
	launch_many(10, 1, NULL);
	CHECK(gs_saved >= 90 && gs_saved < 100 && gs_tickets);
	gs_saved = 0;
	AWAIT(gs_tickets && gs_saved == 24);
	gs_timed[7] = 16;
	__atomic_store_n(&fake_page->timed, 0, __ATOMIC_RELAXED);
	gs_bell_ring(fake_page);
	AWAIT(!gs_tickets);
	AWAIT(!gs_timed[7] && !gs_saved);
}

/* One launch waits for work that does not get on, and those after it do not: the program comes to the wait in which
 * everybody sees that it is stuck. */
static void launches_behind_endless_work_pass_an_open_gate(void)
{
	launch_many(10, 50, (void *)0x1000);
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_gates[0].longest_ns = 250000000;
	pthread_mutex_unlock(&gs_gates[0].lock);
	uint64_t from = gs_now();
	launch_many(10, 10, (void *)0x1000);
	CHECK(fake[10].put == 60 && gs_passed >= 7 && gs_now() - from > 900000000 && gs_now() - from < 5000000000);
}

/* An update changes neither name nor cost: a graph of a known cost goes by, unless it is to be measured or others
 * are owed. What went by counts at the next look. */
static void graphs_in_open_go_by_on_credit(void)
{
	struct gs_stream *e;

	atomic_fetch_add(&gs_captures, 1); /* the helper looks at no queue: on a busy machine this one would soon be deep */
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_gates[0].graphs[(0x1000 >> 4) % GS_GRAPHS] = (struct gs_graph){ .exec = (void *)0x1000, .cost = 1000000, .seen = 10 };
	pthread_mutex_unlock(&gs_gates[0].lock);
	launch_many(10, 1, (void *)0x1000);
	CHECK(gs_self->graphs_ns == 20000000 && (e = atomic_load(&gs_self->entry)));
	fake_host(11);
	CHECK(gs_self->graphs_ns == 20000000 && gs_self->entry == e); /* a stream for functions alone takes nothing away */
	unsigned records = fake[10].records;
	launch_many(10, 20, (void *)0x1000);
	CHECK(!gs_self->graphs_ns && fake[10].records == records && e->queued < 2000000);
	launch_many(10, 1, (void *)0x1000);
	CHECK(gs_self->graphs_ns == 20000000 && e->queued > 20000000 && !gs_passed);
	launch_many(10, 42, (void *)0x1000); /* 22, 43 and then 63 ms: the third one that looks waits */
	CHECK(fake[10].put == 64 && gs_passed == 1);
	launch_many(11, 1, (void *)0x1000);
	launch_many(10, 1, (void *)0x1000); /* another stream has no credit of this one */
	CHECK(fake[10].records > records);
	launch_many(10, 5, (void *)0x1000);
	fake_mode(0, GS_RUN, 1, 0);
	records = fake[10].records;
	launch_many(10, 2, (void *)0x1000);
	CHECK(fake[10].records >= records + 2);
}

static void knows_graph(uintptr_t exec, uint64_t cost)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_gates[0].graphs[(exec >> 4) % GS_GRAPHS] = (struct gs_graph){ .exec = (void *)exec, .cost = cost, .seen = 10 };
	pthread_mutex_unlock(&gs_gates[0].lock);
}

/* The credit of a cheap graph is none for a dear one. */
static void a_dear_graph_has_no_credit_of_a_cheap_one(void)
{
	atomic_fetch_add(&gs_captures, 1);
	knows_graph(0x1000, 100000);
	launch_many(11, 1, (void *)0x1000);
	CHECK(gs_self->graphs_ns == 20000000 && gs_self->known[0].left == 64);
	gs_gate_graph_forget((void *)0x1000); /* another one has its address */
	launch_many(11, 2, (void *)0x1000);
	CHECK(!gs_self->graphs_ns);
	knows_graph(0x1000, 100000);
	knows_graph(0x1010, 20000000);
	launch_many(10, 1, (void *)0x1000);
	CHECK(gs_self->graphs_ns == 20000000);
	launch_many(10, 3, (void *)0x1010);
	CHECK(!gs_passed);
	launch_many(10, 3, (void *)0x1010); /* 60 ms are queued */
	CHECK(gs_passed >= 1);
}

/* Two graphs that come in turn, as those of torch.compile, share a credit, and a fifth one takes the place of the first. */
static void graphs_in_turn_share_a_credit(void)
{
	static const uintptr_t graphs[] = {0x1000, 0x1010, 0x1020, 0x1030, 0x1040};

	atomic_fetch_add(&gs_captures, 1);
	for (int i = 0; i < 5; i++)
		knows_graph(graphs[i], 2000000 + 1000000 * (i == 1));
	for (int i = 0; i < 4; i++)
		launch_many(10, 1, (void *)graphs[i]);
	unsigned records = fake[10].records;
	for (int i = 0; i < 4; i++) {
		launch_many(10, 1, (void *)graphs[0]);
		launch_many(10, 1, (void *)graphs[1]);
	}
	CHECK(!gs_self->graphs_ns && gs_self->graphs_spent == 20000000 && fake[10].records == records);
	launch_many(10, 1, (void *)graphs[4]);
	CHECK(gs_self->graphs_ns == 20000000 && gs_self->entry->queued > 20000000);
	launch_many(10, 1, (void *)graphs[1]);
	CHECK(gs_self->graphs_ns == 17000000);
	launch_many(10, 1, (void *)graphs[0]);
	CHECK(gs_self->graphs_ns == 20000000);
	gs_self->graphs_ns = 0;
	knows_graph(graphs[1], 0); /* it is another one by now */
	launch_many(10, 1, (void *)graphs[1]);
	launch_many(10, 1, (void *)graphs[0]);
	CHECK(gs_self->graphs_ns == 20000000);
	launch_many(10, 1, (void *)graphs[1]);
	CHECK(!gs_self->graphs_ns);
	knows_graph(graphs[0], 100000);
	knows_graph(graphs[1], 5000000); /* it is always the one that finds too little credit, */
	fake_instant = true;
	for (int i = 0; i < 200; i++)
		launch_many(10, 1, (void *)graphs[i % 2]);
	CHECK(gs_gates[0].graphs[(graphs[0] >> 4) % GS_GRAPHS].seen > 10); /* and yet the cheap one looks now and then */
}

/* What went by on credit counts although launches on another stream come between. */
static void graphs_on_credit_count_beside_another_stream(void)
{
	atomic_fetch_add(&gs_captures, 1);
	knows_graph(0x1000, 1000000);
	for (int i = 0; i < 4; i++) {
		launch_many(10, 20, (void *)0x1000);
		launch_many(11, 1, NULL);
		launch_many(11, 1, (void *)0x1000);
		CHECK(i == 3 || !gs_passed);
	}
	CHECK(fake[10].put == 80 && gs_passed >= 1);
}

/* A marker in OPEN covers 6 ms of kernels, and one of sixteen a single kernel, which tells its cost. So does each at a pace. */
static void a_kernel_in_open_is_measured_now_and_then(void)
{
	struct gs_stream e = {.gpu = &gs_gates[0], .cost = 1000000, .now = {.launches = 1, .cost = 1000000}, .made = 32};

	CHECK(gs_marker_due(&e));
	e.made++;
	CHECK(!gs_marker_due(&e));
	e.now = (struct gs_marker){.launches = 7, .cost = 7000000};
	CHECK(gs_marker_due(&e));
	e.now.cost = 1000000;
	fake_page->slot[0].pace_permille = 500;
	CHECK(gs_marker_due(&e));
}

static void kernels_in_open_are_bounded_after_a_deep_queue(void)
{
	launch_many(10, 1000, NULL);
	AWAIT(gs_deep == 1);
	set_cost(10, 100000);
	uint64_t records = fake[10].records;
	launch_many(10, 490, NULL); /* 50 ms, and 0.1 ms each */
	CHECK(!gs_passed && fake[10].records < records + 60); /* each 6 ms, and a few of the helper: events slow kernels down */
	launch_many(10, 20, NULL);
	CHECK(fake[10].put == 1510 && gs_passed >= 7 && gs_passed <= 10);
	fake_finish(10);
	AWAIT(!gs_deep);
	fake_instant = true;
	launch_many(10, 1000, NULL);
	CHECK(gs_passed <= 10);
	fake_instant = false;
	launch_many(10, 1, NULL);
	AWAIT(gs_deep == 1);
	fake_mode(0, GS_RUN, 1, 0);
	AWAIT(!gs_deep); /* it is OPEN's affair */
}

/* A launch costs 0.1 ms while nobody knows better, and has a tenth of the time. A page without a
 * pace lets the rest go at once. */
static void launches_keep_the_pages_pace(void)
{
	struct gs_slot *slot = &fake_page->slot[0];
	pthread_t t;

	__atomic_store_n(&slot->pace_permille, 100, __ATOMIC_RELAXED);
	fake_mode(0, GS_OPEN, 1, 0);
	uint64_t began = gs_now();
	launch_many(10, 24, NULL);
	CHECK(gs_now() - began >= 19000000 && fake[10].put == 24 && !gs_passed);
	__atomic_store_n(&slot->pace_permille, 1, __ATOMIC_RELAXED);
	CHECK(!pthread_create(&t, NULL, launch_hundred, NULL));
	AWAIT(held());
	__atomic_store_n(&slot->pace_permille, 0, __ATOMIC_RELAXED);
	fake_mode(0, GS_OPEN, 2, 0);
	fake_instant = true;
	pthread_join(t, NULL);
	CHECK(fake[10].put == 124 && waited() < 5000000000);
}

/* A launch at that pace leaves the line so far behind its own time, or before it. */
static void line(uint32_t permille, int64_t ns)
{
	__atomic_store_n(&fake_page->slot[0].pace_permille, permille, __ATOMIC_RELAXED);
	fake_mode(0, GS_OPEN, 1, 0);
	uint64_t from = gs_now() + (uint64_t)ns;
	fake_launch(10, false, NULL);
	uint64_t at = gs_gates[0].line_ns;
	CHECK(at >= from && at <= gs_now() + (uint64_t)ns);
}

static void the_line_moves_by_the_cost(void)
{
	fake_launch(10, false, NULL);
	fake_finish(10);
	line(500, 2 * 100000 - 300000);
	fake_finish(10);
	fake_reap();
	set_cost(10, 10000000);
	line(1, 1000000000); /* and not 10 s */
}

static void a_graph_is_measured_alone(void)
{
	struct gs_graph *found = NULL;

	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	spin(3000000);
	fake_finish(10);
	fake_launch(10, false, (void *)0x1000);
	unsigned since = fake_says;
	fake_reap();
	fake_age();
	spin(20000000);
	fake_finish(10);
	const struct fake_word *w;
	AWAIT((w = told(GS_YIELD, GS_IDLE, since)));
	CHECK(w->usage.longest_ns >= 20000000 && w->usage.launched <= 2);
	for (int i = 0; i < GS_GRAPHS; i++)
		if (gs_gates[0].graphs[i].exec)
			found = &gs_gates[0].graphs[i];
	CHECK(found && found->cost >= 20000000);
	gs_gate_graph_forget((void *)0x1000);
	CHECK(!found->exec && !found->cost);
}

static void a_long_graph_is_followed_in_time(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	pthread_mutex_lock(&gs_gates[0].lock);
	size_t at = (0x1000 >> 4) % GS_GRAPHS;
	gs_gates[0].graphs[at] = (struct gs_graph){ .exec = (void *)0x1000, .cost = 10000000, .seen = 10 };
	pthread_mutex_unlock(&gs_gates[0].lock);
	uint64_t from = gs_now();
	fake_launch(10, false, (void *)0x1000);
	fake_launch(10, false, (void *)0x1000); /* when 2 ms are left, though the GPU has not said so */
	CHECK(gs_now() - from > 7000000 && fake[10].put == 2 && !fake[10].done && !gs_passed);
}

/* A launch that waits has found its stream already. A host function came before. */
static void a_stream_may_end_while_a_launch_waits(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	fake_mode(0, GS_PAUSE, 1, 0);
	fake_host(10);
	pthread_t t = launching(10);
	AWAIT(held() == 1);
	gs_gate_stream_destroyed((CUstream)10);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	CHECK(fake[10].put == 3 && !gs_gate_errors()); /* with the function */
}

/* Work of 0.4 ms, and more behind a host function, both under way. */
static struct gs_stream *around_a_function(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	fake_reap();
	set_cost(10, 400000);
	fake_launch(10, false, NULL);
	fake_host(10);
	fake_launch(10, false, NULL);
	return gs_self->entry;
}

static void done(uintptr_t stream, uint64_t less)
{
	atomic_store(&fake[stream].done, atomic_load(&fake[stream].put) - less);
	fake_reap();
}

/* The time of a host function is not that of the work before and behind it. */
static void a_host_function_tells_no_cost(void)
{
	struct gs_stream *e = around_a_function();

	done(10, 2);
	set_cost(10, 400000);
	for (unsigned i = 0; i < 100; i++) { /* the helper looks as often as it would */
		spin(1000000);
		fake_reap();
	}
	done(10, 1);
	fake_finish(10);
	fake_reap();
	CHECK(cost_of(e) < 10000000);
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(gs_gates[0].longest_ns < 100000000);
	pthread_mutex_unlock(&gs_gates[0].lock);
}

/* The best of several tries: the machine may be busy. */
#define LEAST(least, from) (least) = gs_now() - (from) < (least) ? gs_now() - (from) : (least)

/* The function may wait for the very launch, so that waits neither for the function
 * nor for as long as the work behind it seems to last. */
static void a_launch_passes_soon_behind_a_host_function(void)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 20 && least >= 5000000; i++) {
		around_a_function();
		done(10, 2);
		set_cost(10, 10000000);
		uint64_t passed = gs_passed, from = gs_now();
		while (gs_passed == passed) {
			from = gs_now();
			fake_launch(10, false, NULL);
		}
		LEAST(least, from);
		CHECK(gs_now() - from >= 1000000 && !gs_gate_errors());
		fake_finish(10);
		fake_reap();
	}
	CHECK(least < 5000000);
}

/* What is queued behind the function comes at once when that ends. */
static void few_launches_pass_soon_behind_a_host_function(void)
{
	struct gs_stream *e = around_a_function();

	done(10, 2);
	set_cost(10, 120000000);
	launch_many(10, 2, NULL);
	for (int i = 0; i < 3; i++) {
		uint64_t from = gs_now();
		fake_launch(10, false, NULL);
		CHECK(gs_now() - from >= 5000000 && e->stalled);
	}
}

/* While others wait for the drain, and only then: they must not wait for launches
 * that pass in their turn. */
static void a_host_function_lets_pass_while_it_drains(void)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 20 && least >= 5000000; i++) {
		around_a_function();
		done(10, 2);
		fake_mode(0, GS_PAUSE, 1, 0);
		AWAIT(drains());
		spin(2000000); /* what passed before does not help it */
		uint64_t from = gs_now();
		fake_launch(11, false, NULL);
		LEAST(least, from);
		fake_finish(10);
		fake_finish(11);
		AWAIT(phase() == GS_GIVEN);
	}
	CHECK(least < 5000000);
	around_a_function();
	done(10, 2);
	unsigned since = fake_says;
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(told(GS_YIELD, GS_UNDRAINED, since));
	spin(2000000);
	uint64_t from = gs_now(), put = fake[11].put;
	pthread_t t = launching(11);
	while (gs_now() - from < 4000000)
		fake_mode(0, GS_PAUSE, 1, 0); /* it looks each time */
	uint64_t still = fake[11].put;
	CHECK(still == put || gs_now() - from >= 5000000);
	pthread_join(t, NULL);
	CHECK(gs_now() - from >= 5000000);
}

/* A launch behind a host function does not go by on credit, and those before it are
 * in the books. */
static void a_host_function_ends_credit(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 10000);
	launch_many(10, 3, NULL);
	CHECK(gs_self->spare);
	fake_host(10);
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(gs_self->counted == gs_self->seq / 2 && !gs_self->entry->now.launches);
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_launch(10, false, NULL);
	CHECK(!gs_self->entry->hosted);
}

/* What an open gate let by is taken for a lot of work. Launches wait for that, but
 * not if a host function is in it. */
static void a_host_function_in_open_is_remembered(void)
{
	struct gs_marker *m = NULL;

	atomic_fetch_add(&gs_captures, 1); /* the helper records no marker of its own */
	fake_launch(10, false, NULL);
	fake_host(10);
	fake_launch(10, false, NULL);
	CHECK(!fake[10].records && gs_self->entry);
	atomic_fetch_sub(&gs_captures, 1);
	struct gs_stream *e = gs_self->entry;
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	while (!m) {
		pthread_mutex_lock(&gs_gates[0].lock);
		m = gs_marker_oldest(e);
		CHECK(!m || (m->hosts && m->uneven));
		uint64_t dearest = gs_marker_dearest(&gs_gates[0]);
		CHECK(!m || dearest < 1000000000);
		pthread_mutex_unlock(&gs_gates[0].lock);
	}
	fake_mode(0, GS_RUN, 2, 0);
	uint64_t from = gs_now();
	fake_launch(10, false, NULL);
	CHECK(gs_now() - from < 160000000); /* four times the longest that counts */
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(e->queued >= 1000000000 && gs_marker_known(e) < 10000000); /* so launches pass soon */
	pthread_mutex_unlock(&gs_gates[0].lock);
}

static void a_captured_host_function_passes(void)
{
	fake_host(12); /* nothing was launched there before, */
	fake_launch(12, false, NULL);
	CHECK(gs_self->entry->hosted); /* and yet launches may wait for it */
	fake_launch(10, false, NULL);
	gs_gate_capture((CUstream)10, true);
	fake[10].captures = true;
	fake_host(10);
	CHECK(!gs_self->entry->hosted);
	fake[10].captures = false;
	gs_gate_capture((CUstream)10, false);
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	uint64_t records = fake[10].records;
	gs_gate_capture((CUstream)10, true);
	fake[10].captures = true;
	fake_host(10);
	CHECK(fake[10].records == records && !gs_self->entry->hosted);
}

static void a_capture_passes_a_pause(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(11, false, NULL);
	fake_finish(11);
	uint64_t asked = fake_acquires; /* the turn may have seemed idle before */
	gs_gate_capture((CUstream)10, true);
	fake[10].captures = fake[11].captures = true; /* 11 joined it by waiting for an event */
	fake_mode(0, GS_PAUSE, 1, 0);
	for (int i = 0; i < 10; i++) {
		fake_launch(10, false, NULL);
		fake_launch(11, false, NULL);
	}
	AWAIT(fake_yields && phase() == GS_GIVEN);
	CHECK(fake[10].put == 10 && !fake[10].records && fake_acquires == asked);
	fake[10].captures = fake[11].captures = false;
	gs_gate_capture((CUstream)10, false);
	pthread_t t = launching(10);
	AWAIT(held());
	CHECK(fake[10].put == 10);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
}

static void a_destroyed_stream_is_left_alone_and_drained(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	gs_gate_stream_destroyed((CUstream)10);
	fake[10].destroyed = true;
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	CHECK(!told(GS_YIELD, GS_DRAINED, 0));
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	CHECK(fake_launched == 1);
}

static void a_destroyed_context_is_left_alone(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	gs_gate_context_destroyed((CUcontext)0x100);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(fake_yields && phase() == GS_GIVEN); /* although its work is never seen to end */
	CHECK(!told(GS_YIELD, GS_UNDRAINED, 0) && !gs_gates[0].streams);
}

/* The driver is asked for an event of the stream from then on. Returns how often it has refused one. */
static unsigned retry_at(struct gs_stream *e, uint64_t ns)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	unsigned refusals = e->refusals;
	e->retry_ns = ns;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return refusals;
}

/* Launches on a stream for which the driver refuses events wait for their turns, but
 * not for a bound. Others wait for its work as for that of any stream. */
static void a_refused_stream_is_governed(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 0);
	launch_many(10, 4, NULL); /* each with a marker: their cost is not known */
	struct gs_stream *e = gs_self->entry;
	fake_error = CUDA_ERROR_OUT_OF_MEMORY;
	fake_launch(10, false, NULL);
	retry_at(e, UINT64_MAX);
	uint64_t errors = gs_gate_errors();
	launch_many(10, 94, NULL);
	CHECK(errors && fake[10].put == 100 && !gs_passed && !waited());
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(e->now.uneven && gs_gates[0].unpaced && e->context->spares == 6 && fake_events == 6);
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	CHECK(!told(GS_YIELD, GS_DRAINED, 0));
	pthread_t t = launching(10);
	AWAIT(held() == 1);
	AWAIT(told(GS_YIELD, GS_UNDRAINED, 0)); /* they do not wait for ever */
	CHECK(fake[10].put == 100 && fake_launched == 100);
	uint64_t ended = gs_now();
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	CHECK(told(GS_YIELD, GS_DRAINED, 0)->usage.last_ns >= ended); /* it is charged until then */
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	unsigned since = fake_says; /* the turn may have seemed idle before */
	spin(10000000);
	CHECK(!told(GS_YIELD, GS_IDLE, since));
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_IDLE, since));
	CHECK(!gs_passed && gs_gate_errors() == errors);
}

static void a_refused_stream_is_tried_again(void)
{
	uint64_t ns = 1000000000, from = gs_now();

	fake_mode(0, GS_RUN, 1, 0);
	fake_instant = true;
	fake_launch(10, false, NULL);
	struct gs_stream *e = gs_self->entry;
	fake_error = CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned tries = 1; tries <= 11; tries++) {
		while (gs_gate_errors() < tries) /* not each launch is to have a marker */
			fake_launch(10, false, NULL);
		pthread_mutex_lock(&gs_gates[0].lock);
		CHECK(e->retry_ns >= from + ns && e->retry_ns <= gs_now() + ns);
		e->retry_ns = from = gs_now();
		pthread_mutex_unlock(&gs_gates[0].lock);
		if (tries < 9)
			ns *= 2;
	}
	CHECK(ns == 256000000000 && fake_events <= 2);
	fake_error = 0;
	while (retry_at(e, 0))
		fake_launch(10, false, NULL);
	fake_finish(10);
	fake_instant = false;
	set_cost(10, 400000);
	gs_self->spare = 0;
	uint64_t passed = gs_passed;
	launch_many(10, 10, NULL);
	CHECK(gs_passed > passed); /* it has a bound again */
}

static uint64_t busy(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t ns = gs_gates[0].usage.busy_ns;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return ns;
}

static void a_refused_stream_has_work_in_open(void)
{
	fake_error = CUDA_ERROR_OUT_OF_MEMORY;
	fake_launch(10, false, NULL);
	AWAIT(gs_gate_errors());
	AWAIT(busy() >= 200000000);
}

/* The program must see the error as it would without the hook. */
static void a_lost_context_lets_pass(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(told(GS_YIELD, GS_UNDRAINED, 0));
	fake_progress();
	pthread_t t = launching(11);
	AWAIT(held() == 1);
	CHECK(!fake[11].put);
	fake_fault = CUDA_ERROR_ILLEGAL_ADDRESS;
	pthread_join(t, NULL);
	launch_many(10, 100, NULL);
	launch_many(12, 100, NULL);
	CHECK(put_all() == 202 && gs_gate_errors() && !gs_passed);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	gs_gate_context_destroyed((CUcontext)0x100);
	fake_fault = 0;
	t = launching(10); /* in a new one of the same name */
	AWAIT(held() == 1);
	fake_mode(0, GS_OPEN, 2, 0);
	pthread_join(t, NULL);
}

/* It was lost by work that has no marker yet. */
static void a_context_lost_without_a_marker_lets_pass(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 1000);
	fake_fault = CUDA_ERROR_ECC_UNCORRECTABLE;
	fake_launch(10, false, NULL);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(phase() == GS_GIVEN);
	launch_many(10, 100, NULL);
	CHECK(fake[10].put == 102 && gs_gate_errors());
}

static void gpus_are_paused_one_by_one(void)
{
	fake_instant = true;
	gs_gate_context_created((CUcontext)0x200, 1);
	fake_mode(0, GS_PAUSE, 1, 0);
	fake_mode(1, GS_RUN, 1, 0);
	fake_context = (CUcontext)0x200;
	fake_launch(0, false, NULL);
	CHECK(gs_launches(&gs_gates[1]) == 1 && told(GS_ACQUIRE, 0, 0)->usage.gpu == 1);
	pthread_t t = launching(0); /* a new thread is in GPU 0's context */
	AWAIT(held() == 1);
	CHECK(gs_launches(&gs_gates[0]) == 0);
	fake_mode(0, GS_OPEN, 1, 0);
	pthread_join(t, NULL);
	fake_context = (CUcontext)0x100;
	fake_mode(1, GS_OPEN, 1, 0);
	fake_launch(0, false, NULL);
	CHECK(gs_launches(&gs_gates[0]) == 2 && gs_launches(&gs_gates[1]) == 1); /* those of a thread stay there */
	CHECK(!gs_self->entry); /* the handle of the legacy stream does not tell its context */
}

static void streams_without_room_are_marked_each_time(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_instant = true;
	for (uintptr_t s = 3; s < FAKE_STREAMS; s++)
		fake_launch(s, false, NULL);
	CHECK(put_all() == FAKE_STREAMS - 3);
	CHECK(fake[FAKE_STREAMS - 1].records == 1);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(fake_yields && phase() == GS_GIVEN && fake_launched == FAKE_STREAMS - 3);
	CHECK(!gs_gate_errors());
}

static void *launch_own(void *unused)
{
	(void)unused;
	fake_launch(0, true, NULL);
	return NULL;
}

static void threads_that_end_leave_nothing(void)
{
	fake_instant = true;
	fake_mode(0, GS_RUN, 1, 0);
	for (int i = 0; i < 2 * GS_STREAMS; i++) {
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, launch_own, NULL));
		pthread_join(t, NULL);
	}
	CHECK(fake[2].put == 2 * GS_STREAMS && atomic_load(&gs_threads_used) == 1);
	CHECK(!gs_gates[0].streams && gs_gates[0].spare && gs_launches(&gs_gates[0]) == 2 * GS_STREAMS);
}

/* They wait, launch when they may, and others wait for them. */
static void governed_like_others(pthread_t t)
{
	AWAIT(held() == 1 && fake_acquires); /* again if the pause had not been told */
	CHECK(!fake[10].put);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	CHECK(fake[10].put == 1 && gs_launches(&gs_gates[0]) == 1 && !gs_gate_errors() && !gs_passed);
	fake_mode(0, GS_PAUSE, 2, 0);
}

static void threads_without_room_are_governed_together(void)
{
	for (int i = 0; i < GS_THREADS; i++)
		gs_threads[i].taken = true;
	fake_mode(0, GS_PAUSE, 1, 0);
	governed_like_others(launching(10));
	CHECK(gs_gates[0].crowd == 1 && !gs_gates[0].crowded);
	AWAIT(drains());
	CHECK(!fake_launched);
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, 1) && fake_launched == 1);
}

static void a_launch_of_a_crowd_is_waited_for(void)
{
	for (int i = 0; i < GS_THREADS; i++)
		gs_threads[i].taken = true;
	fake_instant = true;
	fake_hold = true;
	pthread_t t = launching(10);
	AWAIT(gs_gates[0].crowded == 1);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	CHECK(!told(GS_YIELD, GS_DRAINED, 0));
	fake_hold = false;
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	pthread_join(t, NULL);
	CHECK(put_all() == 1);
}

/* ---- launches that are never left ---- */

static _Atomic unsigned inside;

/* The launch is made, and the thread does not come back from the driver. */
static void enter(uintptr_t stream)
{
	struct gs_launch l;

	gs_gate_enter(&l, (CUstream)stream, false, NULL, NULL);
	atomic_fetch_add(&of((CUstream)stream)->put, 1);
	atomic_fetch_add(&inside, 1);
}

static void *enter_until_cancelled(void *stream)
{
	enter((uintptr_t)stream);
	if (stream)
		fake_context = NULL; /* the driver may release the thread before the hook does */
	for (;;)
		of(NULL);
	return NULL;
}

static void cancel_in_a_launch(uintptr_t stream)
{
	unsigned before = inside;
	pthread_t t;
	void *r;

	CHECK(!pthread_create(&t, NULL, enter_until_cancelled, (void *)stream));
	AWAIT(inside == before + 1);
	CHECK(!gs_quiet(&gs_gates[0]));
	pthread_cancel(t);
	pthread_join(t, &r);
	CHECK(r == PTHREAD_CANCELED && gs_quiet(&gs_gates[0]));
}

/* The next owner of the place is governed, and its launches are waited for. */
static void governed_after(unsigned launches, uintptr_t stream)
{
	CHECK(gs_launches(&gs_gates[0]) == launches);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	CHECK(!told(GS_YIELD, GS_DRAINED, 0) && fake_launched < launches);
	fake_finish(stream);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	AWAIT(fake_launched == launches);
	pthread_t t = launching(11);
	AWAIT(held() == 1);
	CHECK(!fake[11].put);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	CHECK(fake[11].put == 1 && gs_launches(&gs_gates[0]) == launches + 1 && gs_quiet(&gs_gates[0]) && !gs_passed &&
	      !gs_gate_errors());
}

static void a_cancelled_launch_counts_as_made(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	cancel_in_a_launch(10);
	CHECK(atomic_load(&gs_threads_used) == 1 && atomic_load(&gs_threads[0].seq) == 2 && !gs_threads[0].taken);
	governed_after(1, 10);
}

static void a_launch_cancelled_on_credit_counts_as_made(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 1000);
	cancel_in_a_launch(10);
	governed_after(2, 10);
}

static void a_cancelled_launch_of_a_crowd_counts_as_made(void)
{
	for (int i = 0; i < GS_THREADS; i++)
		gs_threads[i].taken = true;
	fake_mode(0, GS_RUN, 1, 0);
	cancel_in_a_launch(0);
	CHECK(gs_gates[0].crowd == 1 && !gs_gates[0].crowded);
	governed_after(1, 0);
}

static void *jump_and_launch(void *unused)
{
	static _Thread_local jmp_buf back;

	if (!setjmp(back)) {
		enter(10);
		longjmp(back, 1);
	}
	CHECK(!gs_quiet(&gs_gates[0]));
	while (!drains())
		sched_yield();
	fake_launch(11, false, NULL);
	return unused;
}

/* The thread goes on, with a launch that has to wait. */
static void a_launch_that_was_jumped_out_of_counts_as_made(void)
{
	pthread_t t;

	fake_mode(0, GS_RUN, 1, 0);
	CHECK(!pthread_create(&t, NULL, jump_and_launch, NULL));
	AWAIT(inside == 1);
	fake_finish(10);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0) && held() == 1);
	CHECK(!fake[11].put && fake_launched == 1 && gs_launches(&gs_gates[0]) == 1 && gs_quiet(&gs_gates[0]));
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	CHECK(fake[11].put == 1 && gs_launches(&gs_gates[0]) == 2 && !gs_passed && !gs_gate_errors());
}

static void a_launch_within_a_launch_is_one_more(void)
{
	struct gs_launch outer;

	fake_mode(0, GS_RUN, 1, 0);
	fake[0].put = 1; /* that is never done */
	for (int crowd = 0; crowd < 2; crowd++) {
		gs_gate_enter(&outer, NULL, false, NULL, NULL);
		fake_launch(0, false, NULL);
		gs_gate_leave(&outer, 0);
		CHECK(gs_quiet(&gs_gates[0]) && gs_launches(&gs_gates[0]) == 2 + 2 * (unsigned)crowd);
		for (int i = 0; i < GS_THREADS; i++)
			gs_threads[i].taken = true;
		gs_self = NULL; /* one of the crowd from now on */
	}
	CHECK(gs_gates[0].crowd == 2 && !gs_gates[0].crowded);
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(gs_threads[0].counted == 2 && gs_marker_outstanding(&gs_gates[0]) == 4);
	pthread_mutex_unlock(&gs_gates[0].lock);
}

static void *launch_cancelled(void *stream)
{
	static struct gs_launch l; /* a sanitizer would complain that the cancelled thread's frame is still there */

	if (inside)
		pthread_cancel(pthread_self());
	gs_gate_enter(&l, (CUstream)(uintptr_t)stream, false, NULL, NULL);
	atomic_fetch_add(&fake[(uintptr_t)stream].put, 1);
	pthread_cancel(pthread_self());
	gs_gate_leave(&l, 0);
	of(NULL);
	CHECK(!"cancelled before");
	return NULL;
}

/* The thread is about to be cancelled, and asks the driver for what the hook wants
 * to know, with the GPU locked. */
static void a_thread_is_not_cancelled_in_the_hook(void)
{
	struct timespec until;
	pthread_t t;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	fake_mode(0, GS_RUN, 1, 0);
	for (int i = 0; i < 2; i++, inside = 1) { /* in the driver; and before */
		CHECK(!pthread_create(&t, NULL, launch_cancelled, (void *)10));
		pthread_join(t, NULL);
		CHECK(!pthread_mutex_timedlock(&gs_gates[0].lock, &until)); /* the helper may have it for a moment */
		pthread_mutex_unlock(&gs_gates[0].lock);
		CHECK(gs_quiet(&gs_gates[0]) && fake[10].put == 1u + (unsigned)i &&
		      gs_launches(&gs_gates[0]) == 1u + (unsigned)i);
	}
	CHECK(fake[10].records == 2);
	fake_finish(10); /* no work in flight could wait for the next */
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(phase() == GS_GIVEN);
	CHECK(!pthread_create(&t, NULL, launch_cancelled, (void *)11));
	AWAIT(held() == 1);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	CHECK(!held() && fake[11].put == 1 && fake[11].records == 1);
}

/* The books of a thread are ahead of its seq until it has left the launch. */
static void what_is_about_to_be_left_is_booked_once(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_self->counted = 2;
	gs_stream_settle(gs_self, gs_now());
	CHECK(gs_self->counted == 2 && gs_marker_outstanding(&gs_gates[0]) == 1);
	gs_self->counted = 1;
	pthread_mutex_unlock(&gs_gates[0].lock);
}

static void *launch_elsewhere(void *unused)
{
	fake_context = (CUcontext)0x7000000;
	fake_launch(10, false, NULL);
	return unused;
}

static void contexts_without_room_are_governed_together(void)
{
	pthread_t t;

	for (uintptr_t i = 0; i <= GS_CONTEXTS; i++)
		gs_gate_context_created((CUcontext)(0x1000000 + i), 0);
	CHECK(!gs_gate_errors());
	fake_mode(0, GS_PAUSE, 1, 0);
	CHECK(!pthread_create(&t, NULL, launch_elsewhere, NULL));
	governed_like_others(t);
	CHECK(gs_launches(&gs_gates[0]) == 1 && !gs_gates[0].streams);
}

__attribute__((unused)) static void a_child_begins_afresh(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	pthread_mutex_lock(&gs_gates[0].lock); /* another thread holds it when the fork comes */
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!gs_self && !gs_gates[0].streams && !gs_gates[0].seated);
		fake_begin();
		fake_seat();
		fake_launch(10, false, NULL);
		CHECK(atomic_load(&gs_self->seq) == 2);
		gs_helper_start();
		fake_mode(0, GS_PAUSE, 1, 0);
		fake_finish(10);
		AWAIT(fake_yields && phase() == GS_GIVEN);
		exit(0);
	}
	pthread_mutex_unlock(&gs_gates[0].lock);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* The thread that forks is in a launch, and leaves it in both processes. */
__attribute__((unused)) static void a_child_leaves_no_launch_of_its_parent(void)
{
	struct gs_launch l;
	int status;

	fake_mode(0, GS_RUN, 1, 0);
	for (int crowd = 0; crowd < 2; crowd++) {
		gs_gate_enter(&l, (CUstream)10, false, NULL, NULL);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			gs_gate_leave(&l, 0);
			CHECK(!gs_self && !gs_gates[0].crowd && !gs_gates[0].crowded && !fake[10].records &&
			      gs_quiet(&gs_gates[0]));
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		gs_gate_leave(&l, 0);
		CHECK(gs_quiet(&gs_gates[0]) && gs_launches(&gs_gates[0]) == 1u + (unsigned)crowd);
		fake[10].records = 0;
		for (int i = 0; i < GS_THREADS; i++)
			gs_threads[i].taken = true;
		gs_self = NULL; /* one of the crowd from now on */
	}
}

static void no_marker_is_recorded_into_a_capture(void)
{
	struct gs_gpu *g = &gs_gates[0];

	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	pthread_mutex_lock(&g->lock); /* the helper stays out */
	gs_marker_add(g->streams, g->streams->context, NULL, 1, 1000, gs_now());
	fake[10].captures = true; /* it joined a capture that began elsewhere */
	CHECK(!gs_marker_tails(g, gs_now()) && fake[10].records == 1);
	fake[10].captures = false;
	CHECK(gs_marker_tails(g, gs_now()) && fake[10].records == 2);
	pthread_mutex_unlock(&g->lock);
}

static void a_new_graph_shares_no_marker(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	set_cost(10, 1000); /* so that the next kernel is not marked at once */
	fake_launch(10, false, NULL);
	fake_launch(10, false, (void *)0x1000);
	CHECK(fake[10].records == 3); /* before and behind it */
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(an_open_gate_records_nothing),
		TEST(a_pause_holds_all_and_asks_once),
		TEST(work_in_flight_is_bounded),
		TEST(a_full_queue_without_progress_lets_pass),
		TEST(a_wait_for_room_is_noted_as_such),
		TEST(a_stream_does_not_wait_for_another),
		TEST(who_runs_dry_may_queue_more),
		TEST(hardly_any_work_is_none),
		TEST(a_turn_that_ends_is_no_reason_to_queue_more),
		TEST(who_was_helped_may_queue_more),
		TEST(who_is_seen_late_costs_something),
		TEST(who_is_waited_for_tells_no_cost),
		TEST(who_ends_beforehand_tells_its_cost),
		TEST(a_stalled_launch_passes_a_pause),
		TEST(patience_ends),
		TEST(launches_seldom_pass_long_work),
		TEST(a_stream_may_end_while_a_launch_waits),
		TEST(a_host_function_tells_no_cost),
		TEST(a_launch_passes_soon_behind_a_host_function),
		TEST(few_launches_pass_soon_behind_a_host_function),
		TEST(a_host_function_lets_pass_while_it_drains),
		TEST(a_host_function_ends_credit),
		TEST(a_host_function_in_open_is_remembered),
		TEST(a_captured_host_function_passes),
		TEST(gpus_may_wait_for_one_another),
		TEST(who_waits_long_asks_each_second),
		TEST(who_waits_long_looks_around),
		TEST(cheap_launches_go_by_on_credit),
		TEST(who_passes_a_pause_has_no_credit),
		TEST(dear_launches_and_graphs_have_no_credit),
		TEST(graphs_in_open_are_bounded),
		TEST(graphs_in_open_go_by_on_credit),
		TEST(launches_behind_endless_work_pass_an_open_gate),
		TEST(a_launch_with_the_ticket_is_timed),
		TEST(what_was_timed_often_leaves_the_ticket),
		TEST(a_launch_that_came_late_is_not_timed),
		TEST(a_launch_of_another_thread_ends_the_timing),
		TEST(the_ticket_makes_no_kernel_wait),
		TEST(a_dear_graph_has_no_credit_of_a_cheap_one),
		TEST(graphs_in_turn_share_a_credit),
		TEST(graphs_on_credit_count_beside_another_stream),
		TEST(tickets_come_now_and_then),
		TEST(a_kernel_in_open_is_measured_now_and_then),
		TEST(kernels_in_open_are_bounded_after_a_deep_queue),
		TEST(launches_keep_the_pages_pace),
		TEST(the_line_moves_by_the_cost),
		TEST(a_graph_is_measured_alone),
		TEST(a_new_graph_shares_no_marker),
		TEST(no_marker_is_recorded_into_a_capture),
		TEST(a_long_graph_is_followed_in_time),
		TEST(a_capture_passes_a_pause),
		TEST(a_destroyed_stream_is_left_alone_and_drained),
		TEST(a_destroyed_context_is_left_alone),
		TEST(a_refused_stream_is_governed),
		TEST(a_refused_stream_is_tried_again),
		TEST(a_refused_stream_has_work_in_open),
		TEST(a_lost_context_lets_pass),
		TEST(a_context_lost_without_a_marker_lets_pass),
		TEST(gpus_are_paused_one_by_one),
		TEST(streams_without_room_are_marked_each_time),
		TEST(threads_that_end_leave_nothing),
		TEST(threads_without_room_are_governed_together),
		TEST(a_launch_of_a_crowd_is_waited_for),
		TEST(a_cancelled_launch_counts_as_made),
		TEST(a_launch_cancelled_on_credit_counts_as_made),
		TEST(a_cancelled_launch_of_a_crowd_counts_as_made),
		TEST(a_launch_that_was_jumped_out_of_counts_as_made),
		TEST(a_launch_within_a_launch_is_one_more),
		TEST(a_thread_is_not_cancelled_in_the_hook),
		TEST(what_is_about_to_be_left_is_booked_once),
		TEST(contexts_without_room_are_governed_together),
#if !defined __SANITIZE_THREAD__ && !defined __SANITIZE_ADDRESS__ /* a child may inherit their locks taken */
		TEST(a_child_begins_afresh),
		TEST(a_child_leaves_no_launch_of_its_parent),
#endif
	};

	return RUN_TESTS(tests, argc, argv, fake_begin_seated);
}

/* The helper: what it tells the broker, and when. */
#define _GNU_SOURCE
#include "fake.h"

static void a_pause_drains_and_tells(void)
{
	uint64_t before = gs_now();

	fake_mode(0, GS_RUN, 7, 0);
	for (int i = 0; i < 5; i++)
		fake_launch(10, false, NULL);
	fake_launch(0, false, NULL);
	fake_mode(0, GS_PAUSE, 7, 0);
	EVENTUALLY(phase() == GS_DRAINING);
	fake_finish(10);
	EVENTUALLY(fake[0].records == 1);
	CHECK(phase() != GS_GIVEN); /* the legacy stream is still at it */
	fake_finish(0);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake_last.why == GS_DRAINED && fake_last.turn == 7 && fake_last.launched == 6 && fake_last.gpu == 0);
	CHECK(fake_last.marks >= 2 && fake_last.first_ns >= before && fake_last.last_ns >= fake_last.first_ns);
	CHECK(fake_last.last_ns <= gs_now());
}

static void what_was_launched_in_open_is_drained(void)
{
	for (int i = 0; i < 100; i++) {
		fake_launch(10, false, NULL);
		fake_launch(0, true, NULL);
	}
	fake_mode(0, GS_PAUSE, 1, 0);
	EVENTUALLY(fake[10].records == 1 && fake[0].records == 1); /* the legacy one stands for the thread's own */
	CHECK(phase() != GS_GIVEN);
	fake_finish(10);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake_last.why == GS_DRAINED);
}

static void a_pause_that_does_not_drain_has_a_deadline(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	uint64_t from = gs_now();
	fake_mode(0, GS_PAUSE, 1, 0);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake_last.why == GS_UNDRAINED && gs_now() - from >= 45000000);
}

static void *launch_slowly(void *unused)
{
	(void)unused;
	fake_launch(10, false, NULL);
	fake_hold = true;
	fake_launch(10, false, NULL); /* without a lock: the stream is known */
	return NULL;
}

static void a_launch_under_way_is_waited_for(void)
{
	pthread_t t;

	fake_instant = true;
	CHECK(!pthread_create(&t, NULL, launch_slowly, NULL));
	EVENTUALLY(atomic_load(&gs_threads[0].seq) == 3);
	fake_mode(0, GS_PAUSE, 1, 0);
	EVENTUALLY(phase() == GS_DRAINING);
	CHECK(phase() != GS_GIVEN);
	fake_hold = false;
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(put_all() == 2);
	pthread_join(t, NULL);
}

static void an_idle_turn_is_given_back(void)
{
	fake_mode(0, GS_RUN, 3, 0);
	fake_launch(10, false, NULL);
	EVENTUALLY(fake[10].records == 1);
	CHECK(phase() != GS_GIVEN);
	fake_finish(10);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake_last.why == GS_IDLE && fake_last.turn == 3);
	CHECK(gs_now() - fake_last.last_ns >= 200000);
	/* The page still says RUN: asked for, and then taken at its word. */
	fake_launch(10, false, NULL);
	CHECK(fake_acquires >= 1 && fake[10].put == 2);
}

/* The broker knows that who drained goes on wanting: no message says so again,
 * but for a second later, in case it does not know after all. */
static void who_drained_does_not_ask_again(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	uint64_t acquires = fake_acquires, yields = fake_yields; /* the turn may have seemed idle before */
	fake_mode(0, GS_PAUSE, 1, 0);
	pthread_t t = launching(11);
	EVENTUALLY(held());
	fake_finish(10);
	EVENTUALLY(fake_yields > yields && phase() == GS_GIVEN);
	CHECK(fake_last.why != GS_IDLE && fake_acquires == acquires);
	EVENTUALLY(fake_acquires == acquires + 1);
	CHECK(fake[11].put == 0);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
}

static void who_drained_foretells_a_burst(void)
{
	struct gs_predict *p = &gs_gates[0].predict;

	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	pthread_mutex_lock(&gs_gates[0].lock);
	while (p->bursts < GS_BURSTS)
		p->burst[p->bursts++] = 10000000;
	pthread_mutex_unlock(&gs_gates[0].lock);
	uint64_t acquires = fake_acquires, from = gs_now();
	fake_mode(0, GS_PAUSE, 1, 0);
	pthread_t t = launching(11);
	EVENTUALLY(fake_acquires > acquires);
	CHECK(gs_now() - from < 900000000); /* not only to be sure */
	fake_finish(10);
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
}

static void a_watched_gate_tells_every_100_ms(void)
{
	fake_instant = true;
	fake_mode(0, GS_OPEN, 1, GS_WATCH);
	uint64_t from = gs_now(), n = 0;
	for (; fake_usages < 2; n++)
		fake_launch(10, false, NULL);
	CHECK(gs_now() - from >= 190000000 && fake_last.marks > 0 && fake_last.launched > 0);
	CHECK(fake_last.behind < fake_last.marks); /* the GPU never is, but this machine may be busy */
	CHECK(!fake_yields);
}

static void a_queue_is_seen_from_late_markers(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	for (int i = 0; i < 3; i++)
		fake_launch(10, false, NULL);
	for (uint64_t until = gs_now() + 2000000; gs_now() < until;)
		;
	fake_finish(10);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake_last.marks == 3 && fake_last.behind == 3);
}

static _Atomic bool over;

static void *launch_on(void *stream)
{
	for (unsigned i = 0; !atomic_load(&over); i++)
		fake_launch((uintptr_t)stream + i % 3, i % 5 == 0, i % 7 ? NULL : (void *)0x1000);
	return NULL;
}

/* Four threads launch all the time while turns come and go. Between a YIELD
 * and the next turn not one launch may be made. */
static void no_launch_passes_a_pause(void)
{
	static const struct { enum gs_mode mode; uint32_t flags; } turns[] = { { GS_OPEN, 0 }, { GS_RUN, 0 }, { GS_OPEN, GS_WATCH } };
	pthread_t t[4];
	unsigned drained = 0;

	fake_instant = true;
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, launch_on, (void *)(10 + 2 * i)));
	for (unsigned turn = 1; turn <= 300; turn++) {
		uint64_t put = put_all(), yields = fake_yields;
		fake_mode(0, turns[turn % 3].mode, turn, turns[turn % 3].flags);
		EVENTUALLY(put_all() >= put + 50);
		fake_mode(0, GS_PAUSE, turn, 0);
		/* A turn that was RUN may have been given back as idle before. */
		EVENTUALLY(fake_yields > yields && phase() == GS_GIVEN);
		pthread_mutex_lock(&gs_gates[0].lock);
		enum gs_why why = fake_last.why;
		pthread_mutex_unlock(&gs_gates[0].lock);
		if (why == GS_UNDRAINED)
			continue; /* this machine was too busy: nothing is promised */
		drained++;
		put = put_all();
		for (int i = 0; i < 100; i++)
			sched_yield();
		CHECK(put_all() == put);
	}
	CHECK(drained > 150);
	atomic_store(&over, true);
	fake_mode(0, GS_OPEN, 1000, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

/* The same where the kernel has no membarrier. */
static void no_launch_passes_a_pause_with_fences(void)
{
	gs_fences = true;
	no_launch_passes_a_pause();
	fake_launch(10, false, NULL);
	CHECK(!gs_self->entry); /* every launch takes the path with the fence */
}

int main(int argc, char **argv)
{
	static const struct fake_case cases[] = {
		CASE(a_pause_drains_and_tells),
		CASE(what_was_launched_in_open_is_drained),
		CASE(a_pause_that_does_not_drain_has_a_deadline),
		CASE(a_launch_under_way_is_waited_for),
		CASE(an_idle_turn_is_given_back),
		CASE(who_drained_does_not_ask_again),
		CASE(who_drained_foretells_a_burst),
		CASE(a_watched_gate_tells_every_100_ms),
		CASE(a_queue_is_seen_from_late_markers),
		CASE(no_launch_passes_a_pause),
		CASE(no_launch_passes_a_pause_with_fences),
	};

	return fake_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}

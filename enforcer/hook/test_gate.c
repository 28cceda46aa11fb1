/* The gate, against a driver and a broker that do what the test says. */
#define _GNU_SOURCE
#include "fake.h"

static void an_open_gate_records_nothing(void)
{
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
	EVENTUALLY(fake_yields && phase() == GS_GIVEN); /* nothing was in flight */
	for (uintptr_t i = 0; i < 4; i++)
		t[i] = launching(10 + i);
	EVENTUALLY(fake_acquires == 1 && atomic_load(&gs_threads_used) == 4);
	CHECK(put_all() == 0);
	fake_mode(0, GS_RUN, 2, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	CHECK(put_all() == 4);
}

static void *launch_many(void *n)
{
	for (uintptr_t i = 0; i < (uintptr_t)n; i++)
		fake_launch(10, false, NULL);
	return NULL;
}

static void work_in_flight_is_bounded(void)
{
	pthread_t t;
	fake_mode(0, GS_RUN, 1, 0);
	CHECK(!pthread_create(&t, NULL, launch_many, (void *)100));
	EVENTUALLY(fake[10].put >= 21); /* 2 ms, and 0.1 ms each while nothing is known */
	for (int i = 0; i < 1000; i++)
		sched_yield();
	CHECK(fake[10].put <= 22); /* the first may be taken for done */
	fake_instant = true;
	pthread_join(t, NULL);
	CHECK(fake[10].put == 100);
}

static void a_graph_is_measured_alone(void)
{
	struct gs_graph *found = NULL;

	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	for (uint64_t until = gs_now() + 3000000; gs_now() < until;)
		;
	fake_finish(10);
	fake_launch(10, false, (void *)0x1000);
	for (uint64_t until = gs_now() + 5000000; gs_now() < until;)
		;
	fake_finish(10);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	for (int i = 0; i < GS_GRAPHS; i++)
		if (gs_gates[0].graphs[i].exec)
			found = &gs_gates[0].graphs[i];
	CHECK(found && found->cost >= 5000000);
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
	CHECK(gs_now() - from > 7000000 && fake[10].put == 2 && !fake[10].done);
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
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake[10].put == 10 && !fake[10].records && fake_acquires == asked);
	fake[10].captures = fake[11].captures = false;
	gs_gate_capture((CUstream)10, false);
	pthread_t t = launching(10);
	EVENTUALLY(held());
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
	EVENTUALLY(phase() == GS_DRAINING);
	CHECK(phase() != GS_GIVEN);
	fake_finish(10);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake_last.why == GS_DRAINED && fake_last.marks == 1);
}

static void a_destroyed_context_is_left_alone(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	gs_gate_context_destroyed((CUcontext)0x100);
	fake_mode(0, GS_PAUSE, 1, 0);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN); /* although its work is never seen to end */
	CHECK(fake_last.why != GS_UNDRAINED && !gs_gates[0].streams);
}

static void what_the_driver_refuses_is_let_pass(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_error = 700;
	fake_launch(10, false, NULL);
	CHECK(gs_gate_errors() == 1);
	fake_mode(0, GS_PAUSE, 1, 0);
	for (int i = 0; i < 100; i++)
		fake_launch(10, false, NULL);
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake[10].put == 101 && gs_gate_errors() == 1);
}

static void gpus_are_paused_one_by_one(void)
{
	fake_instant = true;
	gs_gate_context_created((CUcontext)0x100);
	gs_gate_context_created((CUcontext)0x200);
	fake_mode(0, GS_PAUSE, 1, 0);
	fake_mode(1, GS_RUN, 1, 0);
	fake_context = (CUcontext)0x200;
	fake_launch(0, false, NULL);
	CHECK(gs_gates[1].usage.launched == 1);
	pthread_t t = launching(0); /* a new thread is in GPU 0's context */
	EVENTUALLY(fake_acquires == 1);
	fake_mode(0, GS_OPEN, 1, 0);
	pthread_join(t, NULL);
	fake_context = (CUcontext)0x100;
	fake_mode(1, GS_OPEN, 1, 0);
	fake_launch(0, false, NULL);
	CHECK(!gs_self->entry); /* the legacy stream is whose context is current: not known by its handle */
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
	EVENTUALLY(fake_yields && phase() == GS_GIVEN);
	CHECK(fake_launched == FAKE_STREAMS - 3 && !gs_gate_errors());
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
	CHECK(!gs_gates[0].streams && gs_gates[0].spare);
}

static void threads_without_room_are_let_pass(void)
{
	for (int i = 0; i < GS_THREADS; i++)
		gs_threads[i].taken = true;
	fake_mode(0, GS_PAUSE, 1, 0);
	fake_launch(10, false, NULL);
	CHECK(fake[10].put == 1 && gs_gate_errors() == 1);
}

__attribute__((unused)) static void a_child_begins_afresh(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	pthread_mutex_lock(&gs_gates[0].lock); /* held by another thread when the fork came */
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		gs_gate_forked();
		CHECK(!gs_self && !gs_gates[0].streams && !gs_gates[0].queued);
		fake_begin();
		fake_launch(10, false, NULL);
		CHECK(atomic_load(&gs_self->seq) == 2);
		gs_turns_start();
		fake_mode(0, GS_PAUSE, 1, 0);
		fake_finish(10);
		EVENTUALLY(fake_yields && phase() == GS_GIVEN);
		exit(0);
	}
	pthread_mutex_unlock(&gs_gates[0].lock);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void no_marker_is_recorded_into_a_capture(void)
{
	struct gs_gpu *g = &gs_gates[0];

	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	pthread_mutex_lock(&g->lock); /* the helper stays out */
	gs_marker_add(g->streams, g->streams->context, NULL, 1000, gs_now());
	fake[10].captures = true; /* it joined one that began elsewhere */
	CHECK(!gs_marker_tails(g, gs_now()) && fake[10].records == 1);
	fake[10].captures = false;
	CHECK(gs_marker_tails(g, gs_now()) && fake[10].records == 2);
	pthread_mutex_unlock(&g->lock);
}

static void a_new_graph_shares_no_marker(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_gates[0].streams->cost = 1000; /* so that the next kernel is not marked at once */
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_launch(10, false, NULL);
	fake_launch(10, false, (void *)0x1000);
	CHECK(fake[10].records == 3); /* before and behind it */
}

int main(int argc, char **argv)
{
	static const struct fake_case cases[] = {
		CASE(an_open_gate_records_nothing),
		CASE(a_pause_holds_all_and_asks_once),
		CASE(work_in_flight_is_bounded),
		CASE(a_graph_is_measured_alone),
		CASE(a_new_graph_shares_no_marker),
		CASE(no_marker_is_recorded_into_a_capture),
		CASE(a_long_graph_is_followed_in_time),
		CASE(a_capture_passes_a_pause),
		CASE(a_destroyed_stream_is_left_alone_and_drained),
		CASE(a_destroyed_context_is_left_alone),
		CASE(what_the_driver_refuses_is_let_pass),
		CASE(gpus_are_paused_one_by_one),
		CASE(streams_without_room_are_marked_each_time),
		CASE(threads_that_end_leave_nothing),
		CASE(threads_without_room_are_let_pass),
#if !defined __SANITIZE_THREAD__ && !defined __SANITIZE_ADDRESS__ /* whose own locks a child of threads may inherit taken */
		CASE(a_child_begins_afresh),
#endif
	};

	return fake_run(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL);
}

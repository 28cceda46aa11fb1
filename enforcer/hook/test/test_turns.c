/* The helper: what it tells the broker, and when. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "fake.h"
#include "gate/turns.h"

static void a_pause_drains_and_tells(void)
{
	const struct fake_word *w;
	uint64_t before = gs_now();

	fake_mode(0, GS_RUN, 7, 0);
	for (int i = 0; i < 5; i++)
		fake_launch(10, false, NULL);
	fake_launch(0, false, NULL);
	fake_mode(0, GS_PAUSE, 7, 0);
	AWAIT(drains());
	fake_finish(10);
	AWAIT(fake[0].records == 1);
	CHECK(!told(GS_YIELD, GS_DRAINED, 0)); /* the legacy stream is still at it */
	fake_finish(0);
	AWAIT((w = told(GS_YIELD, GS_DRAINED, 0)));
	CHECK(w->usage.turn == 7 && w->usage.gpu == 0 && fake_launched == 6);
	CHECK(w->usage.last_ns >= before && w->usage.last_ns <= w->at);
	AWAIT(told(GS_YIELD, GS_IDLE, (unsigned)(w - fake_said))); /* and nothing is left to launch */
	CHECK(fake_acquires >= 1 && !gs_passed);
}

/* Most calls would wait there, with the GPU's lock held, and others would end the process. */
static void the_driver_of_a_suspended_process_is_left_alone(void)
{
	for (int i = 0; i < 100; i++)
		fake_launch(10, false, NULL);
	fake_finish(10);
	__atomic_store_n(&fake_page->suspended, 1, __ATOMIC_RELEASE);
	fake_looked();
	uint64_t records = fake[10].records; /* launches that took their time had markers of their own */
	fake_mode(0, GS_PAUSE, 1, 0);
	spin(20000000);
	CHECK(fake[10].records == records && !told(GS_YIELD, GS_DRAINED, 0));
	__atomic_store_n(&fake_page->suspended, 0, __ATOMIC_RELEASE);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(fake[10].records > records && told(GS_YIELD, GS_DRAINED, 0));
}

static void what_was_launched_in_open_is_drained(void)
{
	for (int i = 0; i < 100; i++) {
		fake_launch(10, false, NULL);
		fake_launch(0, true, NULL);
	}
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(fake[10].records && fake[0].records); /* the legacy one stands for the thread's own */
	CHECK(!told(GS_YIELD, GS_DRAINED, 0));
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
}

/* A tenant that does not drain says so, and says so again when it has drained after
 * all. What is under way is not reported as launched before that. */
static void a_pause_that_does_not_drain_has_a_deadline(void)
{
	const struct fake_word *w;

	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	uint64_t from = gs_now();
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT((w = told(GS_YIELD, GS_UNDRAINED, 0)));
	CHECK(w->at - from >= 45000000 && !fake_launched);
	spin(20000000);
	CHECK(!told(GS_YIELD, GS_DRAINED, 0) && !fake_launched);
	fake_finish(10);
	AWAIT((w = told(GS_YIELD, GS_DRAINED, 0)));
	CHECK(w->usage.launched == 1 && w->usage.turn == 1 && fake_launched == 1);
}

/* The broker waits for the end of every turn, also of one that began and ended while the helper slept. */
static void the_end_of_a_missed_turn_is_told(void)
{
	const struct fake_word *w;

	fake_mode(0, GS_RUN, 1, 0);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(told(GS_YIELD, GS_DRAINED, 0) && phase() == GS_GIVEN);
	pthread_mutex_lock(&gs_gates[0].lock);
	unsigned since = fake_says;
	fake_mode(0, GS_RUN, 2, 0);
	fake_mode(0, GS_PAUSE, 2, 0);
	pthread_mutex_unlock(&gs_gates[0].lock);
	AWAIT((w = told(GS_YIELD, GS_DRAINED, since)));
	CHECK(w->usage.turn == 2);
}

/* Launches n times, each done after 2 ms. Returns what the broker was told of these
 * and the launches before. */
static struct gs_usage paces(unsigned n, unsigned before)
{
	struct gs_usage sum;
	unsigned from = fake_says;
	uint64_t began = gs_now();

	for (unsigned i = 0; i < n; i++) {
		fake_launch(10, false, NULL);
		spin(2000000);
		fake_finish(10);
	}
	do {
		memset(&sum, 0, sizeof sum);
		for (unsigned i = from; i < fake_says; i++) {
			sum.launched += fake_said[i].usage.launched;
			sum.solo += fake_said[i].usage.solo;
			sum.solo_ns += fake_said[i].usage.solo_ns;
		}
	} while (sum.launched < n + before);
	CHECK(sum.solo_ns <= fake_said[fake_says - 1].at - began); /* the helper may see late what has passed */
	return sum;
}

static void who_runs_alone_tells_his_pace(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	paces(1, 0); /* it had been open */
	for (int i = 0; i < 2; i++) {
		struct gs_usage u = paces(5, 0);
		CHECK(u.launched == 5 && u.solo == 5 && u.solo_ns >= 10000000);
		spin(100000000); /* nothing of that counts */
	}
}

static void who_runs_beside_others_tells_no_pace(void)
{
	fake_mode(0, GS_RUN, 1, GS_BESIDE);
	struct gs_usage u = paces(5, 0);
	CHECK(u.launched == 5 && !u.solo && !u.solo_ns);
}

/* Without a broker, the others may run at the same time. */
static void what_ran_before_the_session_tells_no_pace(void)
{
	const struct fake_word *w;

	fake_mode(0, GS_RUN, 1, 0);
	paces(1, 0);
	for (bool paced = false; !paced;) {
		fake_launch(10, false, NULL);
		spin(100000);
		fake_finish(10);
		pthread_mutex_lock(&gs_gates[0].lock);
		paced = gs_gates[0].usage.solo;
		if (paced)
			atomic_store(&fake_epoch, 2);
		pthread_mutex_unlock(&gs_gates[0].lock);
	}
	unsigned since = fake_says;
	fake_mode(0, GS_RUN, 1, 0);
	AWAIT((w = told(GS_YIELD, GS_IDLE, since)));
	CHECK(!w->usage.solo && !w->usage.solo_ns);
}

static bool unpaced(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	bool is = gs_gates[0].unpaced;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return is;
}

/* Work that is under way when the others stop was slowed down by them, and launches
 * in OPEN are in no book: the pace begins after them. */
static void what_was_launched_before_tells_no_pace(void)
{
	fake_mode(0, GS_RUN, 1, GS_BESIDE);
	fake_launch(10, false, NULL);
	fake_mode(0, GS_RUN, 1, 0);
	AWAIT(unpaced());
	spin(100000000);
	fake_finish(10);
	struct gs_usage u = paces(3, 1);
	CHECK(u.solo <= 3);
	fake_mode(0, GS_OPEN, 2, 0);
	AWAIT(phase() == GS_UNGATED);
	fake_launch(10, false, NULL);
	fake_mode(0, GS_RUN, 3, 0);
	AWAIT(unpaced());
	spin(100000000);
	fake_finish(10);
	u = paces(3, 0);
	CHECK(u.solo <= 3);
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
	AWAIT(atomic_load(&gs_threads[0].seq) == 3);
	fake_mode(0, GS_PAUSE, 1, 0);
	AWAIT(drains());
	CHECK(!told(GS_YIELD, GS_DRAINED, 0));
	fake_hold = false;
	AWAIT(told(GS_YIELD, GS_DRAINED, 0));
	CHECK(put_all() == 2);
	pthread_join(t, NULL);
}

/* The time from the tenant's last work to its message that it is idle, ns. */
static uint64_t idle_after(uint32_t flags)
{
	static uint64_t turn;
	const struct fake_word *w;

	fake_mode(0, GS_RUN, ++turn, flags);
	fake_launch(10, false, NULL);
	unsigned since = fake_says;
	AWAIT(fake[10].records == fake[10].put);
	CHECK(!told(GS_YIELD, GS_IDLE, since));
	fake_finish(10);
	AWAIT((w = told(GS_YIELD, GS_IDLE, since)));
	CHECK(w->usage.turn == turn && w->usage.last_ns);
	return w->at - w->usage.last_ns;
}

static void an_idle_turn_is_given_back(void)
{
	CHECK(idle_after(0) >= 2000000);
	CHECK(idle_after(0) >= 2000000 && fake_launched == 2);
}

/* It matters to others: at once, but not so soon that the pauses between steps count. */
static void an_idle_turn_is_given_back_in_haste(void)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 100 && least >= 2000000; i++) {
		spin(11000000);
		uint64_t ns = idle_after(GS_HASTE);
		CHECK(ns >= 300000);
		least = ns < least ? ns : least;
	}
	CHECK(least < 2000000);
}

static uint64_t grace(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t ns = gs_gates[0].grace_ns;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return ns;
}

/* One step, and the message that there are no more. The helper is made to believe that the tenant had no work for so
 * long before it. */
static void step_after(uint64_t ns)
{
	unsigned since = fake_says;

	pthread_mutex_lock(&gs_gates[0].lock);
	gs_gates[0].rested_ns = gs_now() - ns;
	pthread_mutex_unlock(&gs_gates[0].lock);
	fake_launch(10, false, NULL);
	AWAIT(told(GS_YIELD, GS_IDLE, since));
}

/* Work that comes again at once was taken for done too soon. The rest that counts begins
 * with the end of the work: a program that rests for longer is not waited for. */
static void haste_learns_patience(void)
{
	fake_instant = true;
	fake_mode(0, GS_RUN, 1, GS_HASTE);
	for (int i = 0; i < 500 && grace() < 2000000; i++)
		step_after(0);
	CHECK(grace() >= 2000000 && grace() < 5000000);
	step_after(2500000); /* so it stays */
	pthread_mutex_lock(&gs_gates[0].lock);
	CHECK(gs_now() - gs_gates[0].rested_ns >= gs_gates[0].grace_ns);
	pthread_mutex_unlock(&gs_gates[0].lock);
	for (int i = 0; i < 500 && grace() > 600000; i++)
		step_after(3500000);
	CHECK(grace() <= 600000 && grace() >= 300000);
}

/* The page still says RUN: a tenant that said it had nothing need not wait to say
 * that it has something again. */
static void who_is_idle_goes_on_at_once(void)
{
	fake_mode(0, GS_RUN, 3, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	set_cost(10, 1000); /* on credit, but not past that message */
	fake_launch(10, false, NULL);
	unsigned since = fake_says;
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_IDLE, since));
	uint64_t acquires = fake_acquires;
	set_cost(10, 1000); /* whatever the helper saw of it */
	CHECK(gs_self->spare);
	fake_launch(10, false, NULL);
	CHECK(fake[10].put == 3 && fake_acquires == acquires + 1);
	for (int i = 0; i < 5; i++)
		fake_launch(10, false, NULL);
	CHECK(fake[10].put == 8 && fake_acquires == acquires + 1 && !waited() && phase() == GS_TURN);
}

/* The broker knows that a drained tenant still wants the GPU. No message repeats
 * that, but for one a second later, in case it does not know after all. */
static void who_drained_does_not_ask_again(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_progress();
	uint64_t acquires = fake_acquires; /* the turn may have seemed idle before */
	unsigned since = fake_says;
	fake_mode(0, GS_PAUSE, 1, 0);
	pthread_t t = launching(11);
	AWAIT(held() == 1);
	fake_finish(10);
	AWAIT(told(GS_YIELD, GS_DRAINED, since));
	CHECK(fake_acquires == acquires);
	AWAIT(fake_acquires > acquires);
	CHECK(fake[11].put == 0 && !told(GS_YIELD, GS_IDLE, since));
	fake_mode(0, GS_RUN, 2, 0);
	pthread_join(t, NULL);
	CHECK(!gs_passed);
}

static void who_runs_beside_others_tells_every_10_ms(void)
{
	fake_instant = true;
	fake_mode(0, GS_RUN, 1, GS_BESIDE);
	AWAIT(fake_usages); /* the flags are new */
	uint64_t from = gs_now(), usages = fake_usages;
	while (fake_usages < usages + 10)
		fake_launch(10, false, NULL);
	CHECK(gs_now() - from >= 80000000 && fake_launched > 0);
	const struct fake_word *w = told(GS_USAGE, 0, fake_says - 1);
	CHECK(!w || (w->usage.turn == 1 && !w->usage.longest_ns && !w->usage.busy_ns));
}

static void who_runs_alone_tells_nothing(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	for (uint64_t until = gs_now() + 50000000; gs_now() < until;)
		fake_launch(11, false, NULL), fake_finish(11);
	CHECK(!fake_usages);
}

static void what_is_under_way_is_not_told_of(void)
{
	fake_mode(0, GS_RUN, 1, GS_BESIDE);
	for (int i = 0; i < 3; i++)
		fake_launch(10, false, NULL);
	uint64_t usages = fake_usages;
	AWAIT(fake_usages > usages + 2);
	CHECK(!fake_launched);
	fake_launch(11, false, NULL);
	fake_finish(11);
	AWAIT(fake_launched == 1);
	fake_finish(10);
	AWAIT(fake_launched == 4);
}

/* ---- open, and seats ---- */

static uint64_t busy_told(void)
{
	uint64_t ns = 0;

	for (unsigned i = 0; i < fake_says; i++)
		ns += fake_said[i].usage.busy_ns;
	return ns;
}

static bool is_busy(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	bool busy = gs_gates[0].busy;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return busy;
}

/* When the helper looked at an open gate last. */
static uint64_t sampled(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t at = gs_gates[0].sampled_ns;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return at;
}

static void an_open_gate_tells_how_busy_the_gpu_was(void)
{
	AWAIT(sampled());
	uint64_t from = sampled();

	fake_launch(10, false, NULL);
	AWAIT(busy_told() >= 500000000);
	uint64_t told = busy_told();
	CHECK(told <= gs_now() - from);
	CHECK(fake_launched == 1 && !fake_yields && !fake_acquires);
	fake_finish(10);
	AWAIT(!is_busy());
	fake_mode(0, GS_RUN, 1, 0); /* the rest is told then */
	AWAIT(phase() == GS_TURN || fake_yields);
	uint64_t busy = busy_told();
	fake_mode(0, GS_OPEN, 2, 0);
	uint64_t usages = fake_usages;
	fake_instant = true;
	fake_launch(10, false, NULL);
	AWAIT(fake_usages > usages && fake_launched == 2);
	CHECK(busy_told() == busy);
}

/* Reports of some time, but of less than half a second. */
static unsigned told_soon(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < fake_says; i++)
		n += fake_said[i].usage.busy_ns && fake_said[i].usage.busy_ns < 500000000;
	return n;
}

static void a_watched_gate_tells_sooner(void)
{
	fake_mode(0, GS_OPEN, 1, GS_HASTE);
	fake_launch(10, false, NULL);
	AWAIT(told_soon() >= 4 || busy_told() >= 5000000000);
	CHECK(told_soon() >= 4);
	fake_finish(10);
}

static void a_stream_of_earlier_turns_is_seen_at_an_open_gate(void)
{
	fake_mode(0, GS_RUN, 1, 0);
	fake_launch(10, false, NULL);
	fake_finish(10);
	AWAIT(fake_yields);
	fake_mode(0, GS_OPEN, 2, 0);
	AWAIT(phase() == GS_UNGATED);
	fake_launch(10, false, NULL);
	AWAIT(busy_told() >= 500000000);
	fake_finish(10);
}

static void who_has_no_context_tells_nothing(void)
{
	fake_mode(0, GS_PAUSE, 1, 0);
	fake_mode(0, GS_RUN, 2, GS_BESIDE);
	spin(100000000);
	CHECK(!fake_says);
	gs_gate_context_created((CUcontext)0x900, -1); /* on a GPU that is not governed */
	CHECK(!fake_says);
	gs_gate_context_created((CUcontext)0x100, 0);
	CHECK(fake_usages >= 1 && fake_said[0].type == GS_USAGE && !fake_said[0].usage.launched &&
	      !fake_said[0].usage.turn);
	CHECK(!fake_acquires);
}

static void a_seat_is_taken_once_in_each_session(void)
{
	gs_gate_context_created((CUcontext)0x200, 1);
	CHECK(fake_usages == 1 && fake_said[0].usage.gpu == 1); /* GPU 0 had one */
	gs_gate_context_created((CUcontext)0x300, 1);
	gs_gate_context_created((CUcontext)0x300, 0);
	CHECK(fake_usages == 1);
	atomic_store(&fake_epoch, 2);
	fake_mode(0, GS_OPEN, 1, 0);
	AWAIT(fake_usages == 3);
}

/* The session that began at this message heard of a group this often. */
static unsigned told_of(uint64_t group, unsigned since)
{
	unsigned n = 0;

	for (unsigned i = since; i < fake_says; i++)
		n += fake_said[i].type == GS_USAGE && fake_said[i].usage.group == group;
	return n;
}

static void joins(uint64_t group)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_turns_group(&gs_gates[0], group);
	pthread_mutex_unlock(&gs_gates[0].lock);
}

static void communicators_are_told_of_in_each_session(void)
{
	joins(7);
	CHECK(!fake_says); /* there is no context, and no seat */
	gs_gate_context_created((CUcontext)0x100, 0);
	CHECK(told_of(7, 0) == 1 && !fake_said[0].usage.launched);
	joins(8);
	CHECK(told_of(8, 0) == 1);
	unsigned since = fake_says;
	atomic_store(&fake_epoch, 2);
	fake_mode(0, GS_OPEN, 1, 0);
	AWAIT(told_of(7, since) == 1 && told_of(8, since) == 1);
}

static void a_context_that_was_not_seen_takes_a_seat_by_a_launch(void)
{
	fake_launch(10, false, NULL);
	fake_mode(0, GS_OPEN, 1, 0);
	AWAIT(fake_usages >= 1);
	CHECK(fake_said[0].type == GS_USAGE && !fake_said[0].usage.launched);
}

static _Atomic bool over;

static void *launch_on(void *stream)
{
	for (unsigned i = 0; !atomic_load(&over); i++)
		fake_launch((uintptr_t)stream + i % 3, i % 5 == 0, i % 7 ? NULL : (void *)0x1000);
	return NULL;
}

/* Four threads launch all the time while turns come and go. Not one launch may be
 * made between a YIELD and the next turn. Threads that do not run for a while let a
 * turn end as idle: such an end is no answer to the pause, and is not judged. */
static void no_launch_passes_a_pause(void)
{
	static const struct { enum gs_mode mode; uint32_t flags; } turns[] = { { GS_OPEN, 0 }, { GS_RUN, GS_HASTE },
									      { GS_RUN, GS_BESIDE } };
	pthread_t t[4];

	fake_instant = true;
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, launch_on, (void *)(10 + 2 * i)));
	for (unsigned turn = 1; turn <= 300; turn++) {
		uint64_t put = put_all();
		fake_mode(0, turns[turn % 3].mode, turn, turns[turn % 3].flags);
		AWAIT(put_all() >= put + 50);
		pthread_mutex_lock(&gs_gates[0].lock);
		bool idle = turns[turn % 3].mode == GS_RUN && gs_gates[0].phase == GS_GIVEN;
		unsigned since = fake_says;
		fake_mode(0, GS_PAUSE, turn, 0);
		pthread_mutex_unlock(&gs_gates[0].lock);
		AWAIT(idle || (told(GS_YIELD, GS_DRAINED, since) && phase() == GS_GIVEN));
		put = put_all();
		AWAIT(held() == 4);
		CHECK(idle || put_all() == put);
	}
	atomic_store(&over, true);
	fake_mode(0, GS_OPEN, 1000, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

/* The same if the kernel has no membarrier. */
static void no_launch_passes_a_pause_with_fences(void)
{
	gs_fences = true;
	no_launch_passes_a_pause();
	fake_launch(10, false, NULL);
	CHECK(!gs_self->entry); /* every launch takes the path with the fence */
}

/* A thread that waits for the helper's end is not cancelled in that wait: the
 * process would go on. */
__attribute__((unused)) static void a_thread_to_be_cancelled_can_exit(void)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		fake_begin();
		fake_seat();
		gs_helper_start();
		pthread_cancel(pthread_self());
		exit(7);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

/* No handler of forks ran in the child, which ends without a wait for the parent's helper:
 * that would go to sleep more than a thousand times. */
__attribute__((unused)) static void a_bare_child_waits_for_no_helper(void)
{
	struct rusage usage;
	int status;

	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	CHECK(pid >= 0);
	if (!pid)
		exit(7);
	CHECK(wait4(pid, &status, 0, &usage) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	CHECK(usage.ru_nvcsw < 20);
}

/* The helper does not keep a process whose other threads have ended. */
__attribute__((unused)) static void who_leaves_its_main_thread_ends_with_the_others(void)
{
	int status;
	pid_t pid = fork(), ended = 0;

	CHECK(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fake_begin();
		fake_seat();
		gs_helper_start();
		launching(10);
		pthread_exit(NULL);
	}
	AWAIT(ended || (ended = waitpid(pid, &status, WNOHANG)));
	CHECK(ended == pid && status == 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_pause_drains_and_tells),
		TEST(the_driver_of_a_suspended_process_is_left_alone),
		TEST(what_was_launched_in_open_is_drained),
		TEST(a_pause_that_does_not_drain_has_a_deadline),
		TEST(the_end_of_a_missed_turn_is_told),
		TEST(a_launch_under_way_is_waited_for),
		TEST(an_idle_turn_is_given_back),
		TEST(an_idle_turn_is_given_back_in_haste),
		TEST(haste_learns_patience),
		TEST(who_is_idle_goes_on_at_once),
		TEST(who_drained_does_not_ask_again),
		TEST(who_runs_beside_others_tells_every_10_ms),
		TEST(who_runs_alone_tells_nothing),
		TEST(who_runs_alone_tells_his_pace),
		TEST(who_runs_beside_others_tells_no_pace),
		TEST(what_was_launched_before_tells_no_pace),
		TEST(what_ran_before_the_session_tells_no_pace),
		TEST(what_is_under_way_is_not_told_of),
		TEST(an_open_gate_tells_how_busy_the_gpu_was),
		TEST(a_watched_gate_tells_sooner),
		TEST(a_stream_of_earlier_turns_is_seen_at_an_open_gate),
		TEST(a_seat_is_taken_once_in_each_session),
		TEST(no_launch_passes_a_pause),
		TEST(no_launch_passes_a_pause_with_fences),
#if !defined __SANITIZE_THREAD__ && !defined __SANITIZE_ADDRESS__ /* a child may inherit their locks taken */
		TEST(a_thread_to_be_cancelled_can_exit),
		TEST(a_bare_child_waits_for_no_helper),
		TEST(who_leaves_its_main_thread_ends_with_the_others), /* the sanitizers have threads of their own */
#endif
	};

	static const struct test bare[] = { /* the program has no context yet */
		TEST(who_has_no_context_tells_nothing),
		TEST(communicators_are_told_of_in_each_session),
		TEST(a_context_that_was_not_seen_takes_a_seat_by_a_launch),
	};

	return RUN_TESTS(tests, argc, argv, fake_begin_seated) | RUN_TESTS(bare, argc, argv, fake_begin_bare);
}

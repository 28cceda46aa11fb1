/* The helper thread. A program that sits in a synchronize never comes back to
 * the gate, so somebody else must notice that a turn has ended, wait until the
 * GPU is drained and tell the broker; or notice that nothing is left to do. */
#define _GNU_SOURCE
#include <linux/membarrier.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "streams.h"

#define LAZY_NS 250000000  /* between looks, by what goes on */
#define WATCH_NS 10000000
#define TURN_NS 200000
#define DRAIN_NS 50000
#define TELL_NS 100000000  /* between USAGEs of a watched GPU */
#define COPIES_NS 1000000000 /* between USAGEs that tell of nothing but copies */
#define IDLE_NS 200000     /* nothing launched and nothing in flight for so long: the turn is over */
#define STILL_NS 50000     /* nothing launched for so long: look whether that was all */
#define DEADLINE_NS 50000000
#define EXIT_NS 100000000
#define STACK (256 << 10)

static _Atomic bool running, stopping;

/* ---- what the broker hears; the GPU is locked, so that it hears it in order ---- */

void gs_turns_ask(struct gs_gpu *g, uint64_t turn, bool again, uint64_t now)
{
	uint64_t burst, window, epoch = gs_client_epoch();
	bool known = g->wanted && g->asked_epoch == epoch;

	if (!again && g->asked && g->asked_epoch == epoch && g->asked_turn == turn)
		return;
	g->asked = true;
	g->asked_epoch = epoch;
	g->asked_turn = turn;
	gs_predict_next(&g->predict, now, g->held, &burst, &window);
	if (again || !known || burst) /* else it would say nothing new, at the price of a message for each turn */
		gs_client_acquire(gs_gpu_index(g), burst, window);
}

/* The bytes that were copied since the broker was told of them last. */
static uint64_t copies(struct gs_gpu *g, uint64_t now)
{
	uint64_t sum = gs_copies_sum(g), new = sum - g->copies_told;

	g->copies_told = sum;
	g->copies_ns = now;
	return new;
}

/* What goes with no turn's end is told by itself, in time. It names no turn, so
 * that it says nothing of one. */
static void tell_copies(struct gs_gpu *g, uint64_t now)
{
	struct gs_usage u = {.gpu = gs_gpu_index(g), .overhead_ns = g->usage.overhead_ns, .copied = copies(g, now)};

	if (!u.copied)
		return;
	g->usage.overhead_ns = 0;
	gs_client_usage(GS_USAGE, &u);
}

static void tell(struct gs_gpu *g, enum gs_type type, enum gs_why why, uint64_t now)
{
	g->usage.gpu = gs_gpu_index(g);
	g->usage.why = why;
	g->usage.turn = g->turn;
	g->usage.copied = copies(g, now);
	gs_client_usage(type, &g->usage);
	memset(&g->usage, 0, sizeof g->usage);
	g->told_ns = now;
}

/* ---- phases ---- */

/* The kernel makes every thread of ours that runs see what the page says, or
 * be seen inside the gate. Where it cannot, each launch has a fence of its own,
 * and the addition is ours (the sanitizer knows no plain fences). */
static void barrier(void)
{
	static _Atomic unsigned fence;

	if (!gs_fences)
		syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
	atomic_fetch_add(&fence, 1);
}

/* How many launches the threads have made that work on this GPU. */
static uint64_t launches(const struct gs_gpu *g)
{
	int self = (int)gs_gpu_index(g);
	uint64_t n = 0;

	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++) {
		int gpu = atomic_load(&gs_threads[i].gpu);
		if (gpu < 0 || gpu == self)
			n += atomic_load(&gs_threads[i].seq) / 2;
	}
	return n;
}

/* Beside others most launches are not counted one by one. */
static void sum(struct gs_gpu *g)
{
	uint64_t n = launches(g);

	g->usage.launched = n - g->watched;
	g->watched = n;
}

static bool quiet(const struct gs_gpu *g)
{
	int self = (int)gs_gpu_index(g);

	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++) {
		int gpu = atomic_load(&gs_threads[i].gpu);
		if ((gpu < 0 || gpu == self) && atomic_load(&gs_threads[i].seq) & 1)
			return false;
	}
	return true;
}

/* The page may say OPEN for so short a time that nobody here sees it but the
 * threads that launch: what they did since the turn was given away counts as
 * launched in OPEN. */
void gs_turns_begin(struct gs_gpu *g, enum gs_phase phase, uint64_t turn, uint64_t now)
{
	bool free = g->phase == GS_UNGATED || g->phase == GS_WATCHED;

	if (free || phase == GS_DRAINING)
		barrier();
	if (free || (g->phase == GS_GIVEN && launches(g) != g->given))
		g->uncounted = true;
	if (g->phase == GS_WATCHED)
		sum(g);
	else if (phase == GS_WATCHED)
		g->watched = launches(g);
	g->phase = phase;
	g->turn = turn;
	g->began_ns = now;
	g->told_ns = now;
	g->asked = false;
	if (phase != GS_DRAINING) {
		g->wanted = phase == GS_TURN;
		g->asked_epoch = gs_client_epoch();
	}
}

static void give(struct gs_gpu *g, enum gs_why why, uint64_t now)
{
	g->phase = GS_GIVEN;
	g->given = launches(g);
	g->asked = false;
	g->wanted = g->wanted && why != GS_IDLE;
	tell(g, GS_YIELD, why, now);
}

/* Whether nothing is in flight and nobody is about to launch. */
static bool drained(struct gs_gpu *g, uint64_t now)
{
	if (!quiet(g))
		return false;
	if (g->uncounted) {
		gs_marker_opened(g, now);
		g->uncounted = false;
	}
	bool marked = gs_marker_tails(g, now);
	gs_marker_reap(g);
	return marked && !gs_marker_any(g);
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Each returns in how many ns to look again. */

static uint64_t step_turn(struct gs_gpu *g, uint64_t now)
{
	uint64_t idle = later(later(g->launched_ns, g->usage.last_ns), g->began_ns);

	if (now - later(g->launched_ns, g->began_ns) < STILL_NS && !g->uncounted) {
		gs_marker_reap(g); /* in time, or all would seem to have been reached late */
		return TURN_NS;
	}
	if (!drained(g, now))
		return g->launched_ns + TURN_NS > now ? DRAIN_NS : TURN_NS;
	idle = later(idle, g->usage.last_ns);
	if (now < idle + IDLE_NS) /* the last marker may have passed since we looked at the clock */
		return idle + IDLE_NS - now;
	give(g, GS_IDLE, now);
	return LAZY_NS;
}

static uint64_t step_pause(struct gs_gpu *g, uint64_t turn, bool rung, uint64_t now)
{
	if (g->phase == GS_GIVEN) {
		if (rung)
			barrier();
		g->look = g->look || rung;
		if (!g->look || launches(g) == g->given) {
			g->look = g->look && !quiet(g); /* a thread inside may launch, or only find the pause */
			return g->look ? DRAIN_NS : LAZY_NS;
		}
	}
	g->look = false;
	if (g->phase != GS_DRAINING)
		gs_turns_begin(g, GS_DRAINING, g->phase == GS_TURN ? g->turn : turn, now);
	if (drained(g, now))
		give(g, GS_DRAINED, now);
	else if (now - g->began_ns >= DEADLINE_NS)
		give(g, GS_UNDRAINED, now);
	else
		return DRAIN_NS;
	return LAZY_NS;
}

static uint64_t step_watch(struct gs_gpu *g, uint64_t turn, uint64_t now)
{
	if (g->phase != GS_WATCHED)
		gs_turns_begin(g, GS_WATCHED, turn, now);
	gs_marker_reap(g);
	if (now - g->told_ns >= TELL_NS) {
		sum(g);
		tell(g, GS_USAGE, 0, now);
	}
	return gs_marker_any(g) ? WATCH_NS / 10 : WATCH_NS;
}

static uint64_t step(struct gs_gpu *g, const struct gs_slot *slot, bool rung)
{
	uint64_t next = LAZY_NS;

	pthread_mutex_lock(&g->lock);
	uint32_t mode = __atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE);
	uint64_t turn = __atomic_load_n(&slot->turn, __ATOMIC_RELAXED);
	bool watched = __atomic_load_n(&slot->flags, __ATOMIC_RELAXED) & GS_WATCH;
	uint64_t now = gs_now();
	if (mode == GS_PAUSE) {
		next = step_pause(g, turn, rung, now);
	} else if (mode == GS_RUN) {
		if (g->turn != turn || (g->phase != GS_TURN && g->phase != GS_GIVEN))
			gs_turns_begin(g, GS_TURN, turn, now);
		if (g->phase == GS_TURN)
			next = step_turn(g, now);
	} else if (mode == GS_OPEN && watched) {
		next = step_watch(g, turn, now);
	} else if (g->phase != GS_UNGATED) {
		gs_turns_begin(g, GS_UNGATED, turn, now);
		memset(&g->usage, 0, sizeof g->usage);
	}
	if (now - g->copies_ns >= COPIES_NS)
		tell_copies(g, now);
	pthread_mutex_unlock(&g->lock);
	return next;
}

/* ---- the thread ---- */

static void *run(void *unused)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	const struct gs_page *seen = NULL;
	uint32_t seen_bell = 0;

	(void)unused;
	prctl(PR_SET_NAME, "gpusteward");
	if (gs_real.cuThreadExchangeStreamCaptureMode)
		gs_real.cuThreadExchangeStreamCaptureMode(&mode);
	while (!atomic_load(&stopping)) {
		struct gs_page *page = atomic_load(&gs_page);
		uint32_t bell = __atomic_load_n(&page->bell, __ATOMIC_ACQUIRE);
		uint64_t poll = gs_client_poll(), now = gs_now();
		uint64_t wait = poll > now ? poll - now : 0;
		if (page != atomic_load(&gs_page))
			continue;
		for (unsigned i = 0; i < GS_GPUS && i < gs_gpu_count(); i++) {
			uint64_t next = step(&gs_gates[i], &page->slot[i], page != seen || bell != seen_bell);
			if (next < wait)
				wait = next;
		}
		seen = page;
		seen_bell = bell;
		if (!atomic_load(&stopping))
			gs_bell_wait(page, bell, wait < LAZY_NS ? wait : LAZY_NS);
	}
	atomic_store(&running, false);
	return NULL;
}

/* At exit the driver goes away under the helper: stop it first. It may sit in
 * the driver, so the wait has a bound. */
static void stop(void)
{
	uint64_t until = gs_now() + EXIT_NS;
	struct gs_page *page = atomic_load(&gs_page);

	atomic_store(&stopping, true);
	while (atomic_load(&running) && gs_now() < until) {
		gs_bell_ring(page);
		usleep(50);
	}
}

static void prepare(void)
{
	gs_fences = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0;
	atexit(stop);
}

void gs_turns_start(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;

	pthread_once(&once, prepare);
	if (atomic_load(&stopping) || atomic_exchange(&running, true))
		return;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, &attributes, run, NULL)) {
		atomic_fetch_add(&gs_errors, 1);
		atomic_store(&running, false);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
}

void gs_turns_forked(void) { atomic_store(&running, false); }

/* The phases of each GPU, and what the broker is told of it. */
#define _GNU_SOURCE
#include "gate/turns.h"

#include <linux/membarrier.h>
#include <string.h>

#include "base/clock.h"
#include "base/sys.h"
#include "gate/bandwidth.h"
#include "gate/slices.h"
#include "ledger/claims.h"
#include "session/request.h"
#include "session/session.h"
#include "streams/bound.h"
#include "streams/markers.h"
#include "streams/streams.h"
#include "trace/trace.h"

#define DRAIN_NS 50000     /* between looks: while it drains, */
#define HASTE_NS 200000    /* while others wait for us, */
#define RUN_NS 1000000     /* while no other does, */
#define SAMPLE_NS 20000000 /* and in OPEN, about */
#define TELL_NS 10000000   /* between USAGEs beside others, */
#define OPEN_NS 1000000000 /* or in OPEN, or of copies if there is nothing else to tell; between ACQUIREs */
#define WATCH_NS 100000000 /* or in OPEN with GS_HASTE */
#define HASTY_NS 300000    /* nothing to do for so long while others wait: idle, */
#define HASTY_MOST_NS 2000000 /* or for up to a little longer than this if that was too soon, */
#define GAP_NS 2000000     /* because work came again within so long */
#define IDLE_NS 2000000    /* the same while no other waits */
#define STILL_NS 50000     /* if nothing was launched for so long, look whether that was all */
#define DEADLINE_NS 50000000

/* ---- what the broker hears; the GPU is locked, so that it hears it in order ---- */

void gs_turns_seat(struct gs_gpu *g)
{
	struct gs_usage u = {.gpu = gs_gpu_index(g)};
	uint64_t epoch = gs_client_epoch() + 1;

	if (!g->seated || g->seat == epoch)
		return;
	g->seat = epoch;
	g->told = GS_NOTHING;
	g->usage.solo = g->usage.solo_ns = 0; /* others may have run, too, while there was no broker */
	g->unpaced = true;
	gs_client_usage(GS_USAGE, &u, gs_slices_own(u.gpu));
	for (unsigned i = 0; i < g->groups; i++) {
		u.group = g->group[i];
		gs_client_usage(GS_USAGE, &u, gs_slices_own(u.gpu));
	}
}

void gs_turns_group(struct gs_gpu *g, uint64_t group)
{
	for (unsigned i = 0; i < g->groups; i++)
		if (g->group[i] == group)
			return;
	if (g->groups == GS_GROUPS)
		return;
	g->group[g->groups++] = group;
	g->seat = 0; /* all is told again */
	gs_turns_seat(g);
}

/* A tenant that had no work for so short a time was between two steps: next time
 * the helper waits longer. A wait for one that rests for longer is in vain. */
static void patient(struct gs_gpu *g, uint64_t rested)
{
	if (rested < GAP_NS && g->grace_ns < HASTY_MOST_NS)
		g->grace_ns *= 2;
	else if (rested > GAP_NS + GAP_NS / 2 && g->grace_ns > HASTY_NS)
		g->grace_ns /= 2;
}

void gs_turns_ask(struct gs_gpu *g, bool again)
{
	uint64_t epoch = gs_client_epoch();
	bool known = g->told == GS_WORK && g->epoch == epoch;

	if (known && !again)
		return;
	uint64_t now = gs_now();
	if (known && now - g->asked_ns < OPEN_NS)
		return;
	if (g->told == GS_NO_WORK && g->epoch == epoch)
		patient(g, now - g->rested_ns);
	g->asked_ns = now;
	gs_turns_seat(g);
	g->told = GS_WORK;
	g->epoch = epoch;
	gs_client_acquire(gs_gpu_index(g));
}

/* The bytes that were copied since the broker was last told of them. */
static uint64_t copies(struct gs_gpu *g)
{
	uint64_t sum = gs_copies_sum(g), new = sum - g->copies_told;

	g->copies_told = sum;
	return new;
}

/* The launches that threads made without a look go into the books of their streams.
 * Those in OPEN are in no book. */
static void settle(struct gs_gpu *g, bool forget, uint64_t now)
{
	int self = (int)gs_gpu_index(g);

	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++) {
		struct gs_thread *t = &gs_threads[i];
		if (atomic_load(&t->gpu) != self)
			continue;
		if (forget)
			t->counted = atomic_load(&t->seq) / 2;
		else
			gs_stream_settle(t, now);
	}
}

static void tell(struct gs_gpu *g, enum gs_type type, enum gs_why why, uint64_t now)
{
	uint64_t n = gs_launches(g);

	if (g->phase != GS_UNGATED) { /* what is under way is told when it is done */
		settle(g, false, now);
		gs_marker_reap(g);
		uint64_t outstanding = gs_marker_outstanding(g);
		n -= outstanding < n ? outstanding : n;
	}
	g->usage.gpu = gs_gpu_index(g);
	g->usage.why = why;
	g->usage.turn = g->turn;
	g->usage.launched = n > g->reported ? n - g->reported : 0;
	g->usage.copied = copies(g);
	g->usage.passed = atomic_load(&gs_passed);
	g->usage.errors = gs_gate_errors();
	g->usage.uncounted = gs_memory_uncounted();
	g->usage.slice_us = g->slice_told = gs_slices_set(gs_gpu_index(g));
	g->usage.refused = g->refused_told = gs_slices_refused(gs_gpu_index(g));
	if (g->usage.last_ns < g->seen_ns)
		g->usage.last_ns = g->seen_ns;
	g->own_told = gs_slices_own(gs_gpu_index(g));
	gs_client_usage(type, &g->usage, g->own_told);
	memset(&g->usage, 0, sizeof g->usage);
	g->longest_ns -= g->longest_ns / 32; /* a gap that does not come again is forgotten */
	if (n > g->reported)
		g->reported = n;
	g->told_ns = now;
}

/* ---- phases ---- */

/* The kernel makes every running thread of ours see what the page says, or be seen
 * inside the gate. If it cannot, each launch has a fence of its own, and the
 * addition is ours (the sanitizer knows no plain fences). */
static void barrier(void)
{
	static _Atomic unsigned fence;

	if (!gs_fences)
		GS_SYS(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
	atomic_fetch_add(&fence, 1);
}

static void set_deep(struct gs_gpu *g, bool deep)
{
	if (g->deep == deep)
		return;
	g->deep = deep;
	if (deep)
		atomic_fetch_add(&gs_deep, 1);
	else
		atomic_fetch_sub(&gs_deep, 1);
}

/* The page may say OPEN for so short a time that only the threads that launch see
 * it: their launches since the phase became GIVEN count as launched in OPEN. */
void gs_turns_begin(struct gs_gpu *g, enum gs_phase phase, uint64_t turn, uint32_t flags, uint64_t now)
{
	bool free = g->phase == GS_UNGATED;

	if (free || phase == GS_DRAINING)
		barrier();
	bool missed = g->phase == GS_GIVEN && gs_launches(g) != g->given;

	if (free || missed)
		g->uncounted = true;
	if (phase == GS_UNGATED || missed)
		gs_streams_opened(g);
	if (free) {
		set_deep(g, false);
		if (g->usage.busy_ns)
			tell(g, GS_USAGE, 0, now);
		g->reported = gs_launches(g);
		settle(g, true, now);
		g->told = GS_NOTHING; /* the broker believes that we have work */
		g->seen = gs_launches(g);
		g->seen_ns = now;
	}
	g->phase = phase;
	g->turn = turn;
	g->began_ns = now;
	g->flags = flags;
	g->paced_ns = 0;
	g->unpaced = g->uncounted;
	for (struct gs_stream *e = g->streams; e; e = e->next)
		e->bounded = false; /* it is no wonder that it runs empty now */
}

/* last is when the last work ended, of IDLE. */
static void give(struct gs_gpu *g, enum gs_why why, uint64_t last, uint64_t now)
{
	g->phase = GS_GIVEN;
	g->given = gs_launches(g);
	if (why == GS_IDLE) {
		g->told = GS_NO_WORK;
		g->rested_ns = last;
		g->epoch = gs_client_epoch();
		atomic_fetch_add(&gs_credits, 1);
	}
	g->undrained = why == GS_UNDRAINED;
	if (!g->undrained)
		gs_gate_drained();
	tell(g, GS_YIELD, why, now);
}

/* Returns whether nothing is in flight and no thread is about to launch. */
static bool drained(struct gs_gpu *g, uint64_t now)
{
	if (!gs_quiet(g))
		return false;
	settle(g, false, now);
	if (g->uncounted) {
		gs_marker_opened(g, now);
		g->uncounted = false;
	}
	bool marked = gs_marker_tails(g, now);
	gs_marker_reap(g);
	return marked && !gs_marker_any(g);
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The time of the last launch, as far as looks tell. */
static uint64_t launched(struct gs_gpu *g, uint64_t now)
{
	uint64_t n = gs_launches(g);

	if (n != g->seen) {
		g->seen = n;
		g->seen_ns = now;
	}
	return g->seen_ns;
}

/* Each returns in how many ns to look again. */

static uint64_t step_turn(struct gs_gpu *g, uint32_t flags, uint64_t now)
{
	if (!g->grace_ns)
		g->grace_ns = HASTY_NS;
	uint64_t grace = flags & GS_HASTE ? g->grace_ns : IDLE_NS, next = flags & GS_HASTE ? HASTE_NS : RUN_NS;
	uint64_t last = later(launched(g, now), g->began_ns);

	if (g->flags != flags)
		tell(g, GS_USAGE, 0, now);
	if ((g->flags ^ flags) & GS_BESIDE)
		g->unpaced = true;
	g->flags = flags;
	if (now - last < STILL_NS || !drained(g, now)) {
		gs_marker_reap(g);
		if (flags & GS_BESIDE && now - g->told_ns >= TELL_NS) /* an idle tenant says so soon, and since when */
			tell(g, GS_USAGE, 0, now);
		return next;
	}
	last = later(last, later(g->usage.last_ns, g->progress_ns));
	if (now < last + grace) /* the last marker may have passed since we looked at the clock */
		return later(last + grace - now, DRAIN_NS) < next ? later(last + grace - now, DRAIN_NS) : next;
	give(g, GS_IDLE, last, now);
	return GS_LAZY_NS;
}

/* In a pause. A tenant that drains late says so, and one that has nothing to launch
 * does, too. */
static uint64_t step_given(struct gs_gpu *g, uint64_t now)
{
	if (g->undrained) {
		if (!drained(g, now))
			return RUN_NS;
		give(g, GS_DRAINED, 0, now);
	}
	uint64_t last = later(later(g->progress_ns, g->seen_ns), g->began_ns);
	if (g->told == GS_NO_WORK || g->waiting)
		return GS_LAZY_NS;
	if (now < last + HASTY_NS)
		return later(last + HASTY_NS - now, DRAIN_NS);
	give(g, GS_IDLE, last, now);
	return GS_LAZY_NS;
}

static uint64_t step_pause(struct gs_gpu *g, uint64_t turn, bool rung, uint64_t now)
{
	if (g->phase == GS_GIVEN && g->turn == turn) { /* else a turn was missed, and its end is waited for */
		if (rung)
			barrier();
		g->look = g->look || rung;
		if (!g->look || gs_launches(g) == g->given) {
			g->look = g->look && !gs_quiet(g); /* a thread inside may launch, or only find the pause */
			return g->look ? DRAIN_NS : step_given(g, now);
		}
	}
	g->look = false;
	if (g->phase != GS_DRAINING)
		gs_turns_begin(g, GS_DRAINING, g->phase == GS_TURN ? g->turn : turn, 0, now);
	launched(g, now);
	if (drained(g, now))
		give(g, GS_DRAINED, 0, now);
	else if (now - g->began_ns >= DEADLINE_NS)
		give(g, GS_UNDRAINED, 0, now);
	else
		return DRAIN_NS;
	return HASTY_NS;
}

/* In OPEN a program can queue seconds of work. Once that was seen, its launches
 * look at the length of the queue. */
static void sound(struct gs_gpu *g, uint64_t now)
{
	if (g->busy && !atomic_load(&gs_captures))
		gs_marker_sound(g, now);
	if (g->busy && gs_marker_older(g, now - GS_AHEAD)) {
		g->shallow_ns = now;
		set_deep(g, true);
	} else if (now - g->shallow_ns >= OPEN_NS) {
		set_deep(g, false);
	}
}

/* The GPU had work for so long. */
static void note_busy(const struct gs_gpu *g, uint64_t ns)
{
	struct gs_trace *t = atomic_load(&gs_trace);

	if (t)
		gs_trace_put(t, GS_EVENT_BUSY, gs_gpu_index(g), gs_note_units(ns, 1000));
}

/* In OPEN the work is not counted. Looks at times that the program does not know tell for how long there
 * is some. Beside others a gap between two launches counts as work, as in a turn: a GPU that has nothing to
 * do is looked at again a moment later. */
static uint64_t step_open(struct gs_gpu *g, uint32_t flags, uint64_t now)
{
	static uint32_t random = 1;
	uint64_t often = flags & GS_BESIDE ? SAMPLE_NS / 4 : SAMPLE_NS;

	if (!g->sampled_ns)
		g->sampled_ns = now - often / 2; /* nothing was looked at before */
	bool fresh = launched(g, now) > g->sampled_ns;
	if (now < g->sampled_ns + often / 2)
		return g->sampled_ns + often / 2 - now;
	bool was = g->busy, doubted = g->doubted;
	g->doubted = false;
	g->busy = g->waiting || ((fresh || was) && !gs_marker_idle(g)); /* a launch may wait for its pace */
	if (!g->busy && doubted) {
		g->busy = g->seen != g->doubt;
	} else if (!g->busy && (fresh || was) && flags & GS_BESIDE) {
		g->doubted = g->busy = true;
		g->doubt = g->seen;
		return HASTY_NS;
	}
	if (g->busy)
		note_busy(g, now - g->sampled_ns);
	if (g->busy)
		g->usage.busy_ns += now - g->sampled_ns < OPEN_NS ? now - g->sampled_ns : OPEN_NS;
	g->sampled_ns = now;
	gs_marker_reap(g);
	sound(g, now);
	if (now - g->told_ns >= (flags & GS_HASTE ? WATCH_NS : OPEN_NS) &&
	    (g->usage.busy_ns || gs_launches(g) != g->reported || gs_copies_sum(g) != g->copies_told))
		tell(g, GS_USAGE, 0, now);
	random = random * 1664525 + 1013904223;
	if (fresh || was || (flags & GS_BESIDE && now - g->seen_ns < OPEN_NS))
		return often / 2 + random % often;
	return 3 * SAMPLE_NS + random % SAMPLE_NS;
}

/* Returns whether the program is launching, so that there is nothing to see to. It
 * takes no lock, because the program's threads need it. */
static bool launching(struct gs_gpu *g)
{
	uint64_t n = gs_launches(g);
	bool more = n != g->glanced;

	g->glanced = n;
	return more;
}

uint64_t gs_turns_step(struct gs_gpu *g, const struct gs_slot *slot, bool rung)
{
	uint64_t next, glance = gs_now();

	if (!rung && glance < g->next_ns && launching(g))
		return __atomic_load_n(&slot->flags, __ATOMIC_RELAXED) & GS_HASTE ? HASTE_NS : RUN_NS;
	pthread_mutex_lock(&g->lock);
	g->next_ns = 0;
	uint32_t mode, flags;
	uint64_t turn;
	do { /* or a pause after the last turn would count as one after this turn */
		turn = __atomic_load_n(&slot->turn, __ATOMIC_ACQUIRE);
		mode = __atomic_load_n(&slot->mode, __ATOMIC_ACQUIRE);
		flags = __atomic_load_n(&slot->flags, __ATOMIC_ACQUIRE);
	} while (__atomic_load_n(&slot->turn, __ATOMIC_RELAXED) != turn);
	uint64_t now = gs_now();
	if (!g->seated) {
		pthread_mutex_unlock(&g->lock);
		return GS_LAZY_NS;
	}
	gs_turns_seat(g);
	if (mode == GS_PAUSE) {
		next = step_pause(g, turn, rung, now);
	} else if (mode == GS_RUN) {
		if (g->turn != turn || (g->phase != GS_TURN && g->phase != GS_GIVEN))
			gs_turns_begin(g, GS_TURN, turn, flags, now);
		next = g->phase == GS_TURN ? step_turn(g, flags, now) : GS_LAZY_NS;
		if (g->phase == GS_TURN) {
			g->glanced = gs_launches(g);
			g->next_ns = (flags & GS_BESIDE ? g->told_ns : now) + TELL_NS;
		}
	} else {
		if (g->phase != GS_UNGATED) {
			tell(g, GS_USAGE, 0, now);
			gs_turns_begin(g, GS_UNGATED, turn, 0, now);
			g->sampled_ns = now;
			g->busy = true;
		}
		next = step_open(g, flags, now);
	}
	unsigned self = gs_gpu_index(g);
	if (g->slice_told != gs_slices_set(self) || g->refused_told != gs_slices_refused(self) ||
	    g->own_told != gs_slices_own(self) ||
	    (mode != GS_OPEN && now - g->told_ns >= OPEN_NS && gs_copies_sum(g) != g->copies_told))
		tell(g, GS_USAGE, 0, now);
	pthread_mutex_unlock(&g->lock);
	return next;
}

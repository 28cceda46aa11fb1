/* The process's own page.
 *
 * The gate and the memory wrappers know only a page. While there is no broker they
 * look at this one, and this file writes it as a broker would. */
#include "session/local.h"

#include <string.h>

#include "base/clock.h"
#include "base/futex.h"
#include "base/settings.h"
#include "session/sums.h"

#define GS_PERIOD (100 * GS_MS)       /* of the duty cycle */
#define GS_GRACE (30 * GS_SECOND)     /* the cycle goes on for so long after a loss */
#define GS_LATE (2 * GS_SECOND)       /* a broker that was lost may be there again by then */

struct gs_page gs_own = {.magic = GS_MAGIC, .version = 1};
_Atomic(struct gs_page *) gs_page = &gs_own;

/* Bytes of the cap that this process may not take: the others of its tenant have
 * them, or may take them. */
static uint64_t elsewhere[GS_GPUS];

static struct {
	uint64_t since, until; /* until 0: there is none */
	bool gpu[GS_GPUS];
	bool rates; /* of copies; they end with the cycle */
} cycle;

static void store64(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

static void set_mode(struct gs_slot *s, enum gs_mode mode, uint64_t end_ns)
{
	store64(&s->end_ns, mode == GS_RUN ? end_ns : 0);
	if (mode == GS_RUN)
		store64(&s->turn, s->turn + 1);
	__atomic_store_n(&s->mode, (uint32_t)mode, __ATOMIC_RELEASE);
}

static void set_rates(struct gs_slot *s, uint64_t link, uint64_t copy)
{
	store64(&s->link, link);
	store64(&s->copy, copy);
}

static void publish(void)
{
	uint32_t gated = 0;

	for (int i = 0; i < GS_GPUS; i++)
		gated |= gs_own.slot[i].mode != GS_OPEN;
	__atomic_store_n(&gs_own.gated, gated, __ATOMIC_RELEASE);
	__atomic_add_fetch(&gs_own.bell, 1, __ATOMIC_RELEASE);
	gs_bell_ring(&gs_own);
}

/* As it is before there was any broker. */
void gs_local_begin(bool closed)
{
	memset(&cycle, 0, sizeof(cycle));
	for (int i = 0; i < GS_GPUS; i++) {
		store64(&gs_own.slot[i].cap, gs_settings.memory);
		elsewhere[i] = 0;
		gs_local_used((unsigned)i, gs_client_committed((unsigned)i));
		set_rates(&gs_own.slot[i], 0, 0);
		set_mode(&gs_own.slot[i], closed ? GS_PAUSE : GS_OPEN, 0);
	}
	__atomic_store_n(&gs_own.suspended, 0, __ATOMIC_RELEASE);
	store64(&gs_own.heartbeat_ns, gs_now());
	publish();
}

void gs_forked_local(void) { gs_local_begin(false); }

/* What the tenant had left when the broker died is divided among its processes,
 * which do not know each other. With fail closed, none gets more than it had. The
 * page may be a heartbeat behind the others. */
static void divide(unsigned gpu, const struct gs_slot *last, bool closed, uint64_t epoch)
{
	uint64_t cap = __atomic_load_n(&last->cap, __ATOMIC_RELAXED),
		used = __atomic_load_n(&last->used, __ATOMIC_RELAXED);
	uint64_t here = gs_sums_granted(gpu, epoch), processes = __atomic_load_n(&last->processes, __ATOMIC_RELAXED);

	if (used < here)
		used = here;
	uint64_t part = closed || used >= cap ? 0 : (cap - used) / (processes ? processes : 1);
	elsewhere[gpu] = here + part < cap ? cap - here - part : 0;
	store64(&gs_own.slot[gpu].cap, cap ? cap : gs_settings.memory);
	gs_local_used(gpu, gs_client_committed(gpu));
}

/* Goes on from the broker's last page. The caps stay. A process that had to share
 * keeps its share, and the rates of its copies, for a while. A suspended one stays so
 * until the next broker resumes it. */
void gs_local_take_over(const struct gs_page *last, bool closed, uint64_t epoch)
{
	uint64_t now = gs_now();

	cycle.since = now;
	cycle.until = now + GS_GRACE;
	cycle.rates = false;
	__atomic_store_n(&gs_own.suspended, __atomic_load_n(&last->suspended, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	for (int i = 0; i < GS_GPUS; i++) {
		const struct gs_slot *l = &last->slot[i];
		struct gs_slot *s = &gs_own.slot[i];
		uint32_t mode = __atomic_load_n(&l->mode, __ATOMIC_ACQUIRE);
		uint32_t share = __atomic_load_n(&l->share_permille, __ATOMIC_RELAXED);

		divide((unsigned)i, l, closed, epoch);
		__atomic_store_n(&s->inflight_us, __atomic_load_n(&l->inflight_us, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
		__atomic_store_n(&s->share_permille, share, __ATOMIC_RELAXED);
		if (mode == GS_KILL)
			set_rates(s, 0, 0);
		else
			set_rates(s, __atomic_load_n(&l->link, __ATOMIC_RELAXED),
				  __atomic_load_n(&l->copy, __ATOMIC_RELAXED));
		cycle.rates |= !closed && (s->link || s->copy);
		cycle.gpu[i] = !closed && (mode == GS_RUN || mode == GS_PAUSE) && share > 0 && share < 1000;
		set_mode(s, closed || cycle.gpu[i] ? GS_PAUSE : GS_OPEN, 0);
	}
	gs_local_tick(now);
	publish();
}

uint64_t gs_local_tick(uint64_t now)
{
	uint64_t next = GS_NEVER, start = now - (now - cycle.since) % GS_PERIOD;
	bool changed = false, over = now >= cycle.until;

	store64(&gs_own.heartbeat_ns, now);
	for (int i = 0; i < GS_GPUS; i++) {
		struct gs_slot *s = &gs_own.slot[i];
		if (!cycle.gpu[i])
			continue;
		uint64_t end = start + GS_PERIOD * s->share_permille / 1000;
		enum gs_mode mode = over ? GS_OPEN : now < end ? GS_RUN : GS_PAUSE;
		if (mode != s->mode || (mode == GS_RUN && end != s->end_ns)) {
			set_mode(s, mode, end);
			changed = true;
		}
		cycle.gpu[i] = !over;
		uint64_t turn = now < end ? end : start + GS_PERIOD;
		if (!over && turn < next)
			next = turn;
	}
	if (cycle.rates && over) {
		for (int i = 0; i < GS_GPUS; i++)
			set_rates(&gs_own.slot[i], 0, 0);
		cycle.rates = false;
		changed = true;
	} else if (cycle.rates && cycle.until < next) {
		next = cycle.until;
	}
	if (changed)
		publish();
	return next;
}

/* The broker's page counts again. Threads that wait on this one must see that. */
void gs_local_step_down(void)
{
	memset(cycle.gpu, 0, sizeof(cycle.gpu));
	cycle.rates = false;
	publish();
}

uint64_t gs_local_most(unsigned gpu)
{
	uint64_t cap = gs_own.slot[gpu].cap;

	return cap ? cap - elsewhere[gpu] : UINT64_MAX;
}

bool gs_local_doubts(unsigned gpu, uint64_t bytes)
{
	return bytes > gs_local_most(gpu) && bytes <= gs_own.slot[gpu].cap && gs_now() - cycle.since < GS_LATE;
}

/* The page's number is the tenant's, so that the rest is what this process may have. */
void gs_local_used(unsigned gpu, uint64_t bytes) { store64(&gs_own.slot[gpu].used, elsewhere[gpu] + bytes); }

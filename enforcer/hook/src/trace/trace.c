/* The trace: where it lies, and its clock. */
#include "trace/trace.h"

#if defined __x86_64__
#include <cpuid.h>
#endif

#define CLOCK_NS 20000000 /* ns: the broker takes a rate of half as much */

_Atomic(struct gs_trace *) gs_trace;
_Atomic uint64_t gs_waits;
bool gs_trace_tsc;
_Thread_local struct gs_block gs_block;
_Atomic uint32_t gs_traces;
static _Atomic uint32_t shared;

static bool constant(void)
{
#if defined __x86_64__
	unsigned a, b, c, d;

	return __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1u << 8;
#else
	return true;
#endif
}

/* Both clocks at one moment. The best of three readings: a thread may lose the
 * processor between the two. */
static void look(uint64_t *ticks, uint64_t *ns)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 3; i++) {
		uint64_t before = gs_trace_ticks(), now = gs_now(), took = gs_trace_ticks() - before;

		if (took > least)
			continue;
		least = took;
		*ticks = before + took / 2;
		*ns = now;
	}
}

/* Another thread may note an event meanwhile: its time is wrong if the clock is of
 * the other kind, which happens at most once, and before the first session. */
void gs_trace_begin(struct gs_trace *t)
{
	if (t && !atomic_load(&gs_trace) && gs_trace_tsc != constant())
		gs_trace_tsc = !gs_trace_tsc;
	if (t) {
		look(&t->first_ticks, &t->first_ns);
		t->last_ticks = t->first_ticks;
		t->last_ns = t->first_ns;
		__atomic_store_n(&t->version, 2, __ATOMIC_RELEASE);
		atomic_fetch_add(&gs_traces, 1);
	}
	atomic_store(&gs_trace, t);
	if (t)
		__atomic_fetch_or(&t->shared, atomic_load(&shared), __ATOMIC_RELAXED);
}

/* The order matters: gs_trace_begin stores the trace before it loads the kinds. */
void gs_note_shared(uint32_t kind)
{
	atomic_fetch_or(&shared, kind);
	struct gs_trace *t = atomic_load(&gs_trace);

	if (t)
		__atomic_fetch_or(&t->shared, kind, __ATOMIC_RELAXED);
}

uint64_t gs_trace_clock(void)
{
	struct gs_trace *t = atomic_load(&gs_trace);
	uint64_t ticks = 0, ns = 0;

	if (!t)
		return UINT64_MAX;
	look(&ticks, &ns);
	uint64_t again = ns - t->first_ns < CLOCK_NS ? CLOCK_NS : UINT64_MAX;
	uint32_t writing = __atomic_load_n(&t->writing, __ATOMIC_RELAXED);
	if (writing % 2 || !__atomic_compare_exchange_n(&t->writing, &writing, writing + 1, false, __ATOMIC_ACQ_REL,
							 __ATOMIC_RELAXED))
		return again; /* another thread writes it */
	__atomic_store_n(&t->last_ticks, ticks, __ATOMIC_RELAXED);
	__atomic_store_n(&t->last_ns, ns, __ATOMIC_RELAXED);
	__atomic_fetch_add(&t->writing, 1, __ATOMIC_RELEASE);
	return again;
}

/* The trace is the parent's, and so is the memory. */
void gs_forked_trace(void)
{
	atomic_store(&gs_trace, NULL);
	atomic_store(&shared, 0);
}

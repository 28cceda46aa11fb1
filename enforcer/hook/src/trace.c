/* The trace: where it lies, and its clock. */
#include "trace.h"

#if defined __x86_64__
#include <cpuid.h>
#endif

#include "forks.h"

_Atomic(struct gs_trace *) gs_trace;
bool gs_trace_tsc;

static bool constant(void)
{
#if defined __x86_64__
	unsigned a, b, c, d;

	return __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1u << 8;
#else
	return true;
#endif
}

/* Another thread may note an event meanwhile: its time is wrong if the clock is of
 * the other kind, which happens at most once, and before the first session. */
void gs_trace_begin(struct gs_trace *t)
{
	if (t && !atomic_load(&gs_trace) && gs_trace_tsc != constant())
		gs_trace_tsc = !gs_trace_tsc;
	if (t) {
		t->first_ticks = t->last_ticks = gs_trace_ticks();
		t->first_ns = t->last_ns = gs_now();
		__atomic_store_n(&t->version, 1, __ATOMIC_RELEASE);
	}
	atomic_store_explicit(&gs_trace, t, memory_order_release);
}

void gs_trace_clock(void)
{
	struct gs_trace *t = atomic_load(&gs_trace);

	if (!t)
		return;
	__atomic_fetch_add(&t->writing, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&t->last_ticks, gs_trace_ticks(), __ATOMIC_RELAXED);
	__atomic_store_n(&t->last_ns, gs_now(), __ATOMIC_RELAXED);
	__atomic_fetch_add(&t->writing, 1, __ATOMIC_RELEASE);
}

/* The trace is the parent's. */
void gs_forked_trace(void) { atomic_store(&gs_trace, NULL); }

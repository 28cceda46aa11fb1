#include "streams/bound.h"

#include "session/local.h"
#include "streams/limits.h"

_Atomic uint64_t gs_patience = STALL_NS;
_Atomic uint64_t gs_passing;

/* How much work a stream may have queued. In OPEN it is much, but never so much
 * that another program could not come beside it for seconds. Otherwise it is
 * little, so that it drains soon, or, if the program would lose by that, as much as
 * the page allows. */
uint64_t gs_bound(const struct gs_stream *e, const struct gs_slot *slot)
{
	if (__atomic_load_n(&slot->mode, __ATOMIC_RELAXED) == GS_OPEN)
		return GS_AHEAD;
	uint64_t most = (uint64_t)__atomic_load_n(&slot->inflight_us, __ATOMIC_RELAXED) * 1000;
	uint64_t bound = e->bound_ns > BOUND_NS ? e->bound_ns : BOUND_NS;
	return bound < most ? bound : most;
}

void gs_bound_double(struct gs_stream *e, const struct gs_slot *slot, uint64_t now)
{
	e->bound_ns = 2 * gs_bound(e, slot);
	e->bound_set = now;
}

/* All work of a GPU has ended, so no work stalls any more. */
void gs_gate_drained(void)
{
	if (atomic_load(&gs_patience) > STALL_NS)
		atomic_store(&gs_patience, STALL_NS);
	atomic_store(&gs_passing, 0);
}

/* The bound was in the way, so more may be queued from now on. */
void gs_gate_helped(struct gs_stream *e, uint64_t now)
{
	atomic_store(&gs_patience, STALL_NS);
	atomic_store(&gs_passing, 0);
	if (e->stalled)
		gs_bound_double(e, &atomic_load(&gs_page)->slot[gs_gpu_index(e->gpu)], now);
}

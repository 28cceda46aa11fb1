#include "streams/work.h"

#include "base/driver.h"
#include "trace/crash.h"

struct gs_gpu gs_gates[GS_GPUS];
_Atomic uint64_t gs_generation = 1;
_Atomic unsigned gs_captures;
_Atomic unsigned gs_deep;
_Atomic unsigned gs_tickets, gs_saved;
_Atomic uint16_t gs_timed[GS_TIMED];
_Atomic uint64_t gs_credits;
_Atomic uint64_t gs_errors, gs_passed;
bool gs_fences;

uint64_t gs_launches(struct gs_gpu *g)
{
	int self = (int)gs_gpu_index(g);
	uint64_t n = atomic_load(&g->gone) + atomic_load(&g->crowd);

	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++)
		if (atomic_load(&gs_threads[i].gpu) == self)
			n += atomic_load(&gs_threads[i].seq) / 2 - atomic_load(&gs_threads[i].elsewhere);
	return n;
}

bool gs_quiet(struct gs_gpu *g)
{
	int self = (int)gs_gpu_index(g);

	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++)
		if (atomic_load(&gs_threads[i].gpu) == self && atomic_load(&gs_threads[i].seq) & 1)
			return false;
	return !atomic_load(&g->crowded);
}

struct gs_stream *gs_strays(struct gs_gpu *g)
{
	g->strays.gpu = g;
	g->strays.stray = true;
	return &g->strays;
}

bool gs_stream_captures(CUstream s)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = gs_real.cuStreamIsCapturing(s, &status);

	return r ? !gs_crash_lost(r) : status != CU_STREAM_CAPTURE_STATUS_NONE;
}

uint64_t gs_gate_errors(void) { return atomic_load(&gs_errors); }

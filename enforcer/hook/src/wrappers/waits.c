/* Calls that wait for the GPU, or ask what it has done. The trace has when they began and
 * ended, and how far streams have come that wait for a collective. */
#include "wrappers/waits.h"

#include "base/clock.h"
#include "base/futex.h"
#include "gate/nccl.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/wrapped.h"

/* The broker sees by this that the process wants its GPU back. */
void gs_wait_until_resumed(void)
{
	gs_note(GS_EVENT_HELD, 0);
	for (;;) {
		struct gs_page *page = atomic_load(&gs_page);
		uint32_t bell = __atomic_load_n(&page->bell, __ATOMIC_ACQUIRE);
		if (!gs_suspended())
			break;
		gs_bell_wait(page, bell, GS_SECOND);
	}
	gs_note(GS_EVENT_RELEASED, 0);
}

/* Defines the wrapper of a call that asks what the GPU has done. */
#define ASK(name, parameters, arguments)         \
	CUresult name parameters                 \
	{                                        \
		GS_NEED(name);                   \
		gs_wait_suspended();             \
		CUresult r = gs_real.name arguments; \
		gs_note_result(r);               \
		return r;                        \
	}

ASK(cuStreamQuery, (CUstream s), (s))
ASK(cuStreamQuery_ptsz, (CUstream s), (s))
ASK(cuEventQuery, (CUevent e), (e))
ASK(cuEventElapsedTime, (float *ms, CUevent from, CUevent to), (ms, from, to))
ASK(cuEventElapsedTime_v2, (float *ms, CUevent from, CUevent to), (ms, from, to))

/* Defines the wrapper of a call that waits for the GPU. */
#define WAIT(name, parameters, arguments, what)    \
	CUresult name parameters                   \
	{                                          \
		GS_NEED(name);                     \
		gs_wait_suspended();               \
		gs_note_wait(GS_EVENT_WAIT, what); \
		CUresult r = gs_real.name arguments; \
		gs_note_result(r);                 \
		gs_note(GS_EVENT_WAITED, what);    \
		return r;                          \
	}

/* Above its lowest 8 bits the event's id has those from 4 to 27 of the stream's handle. They
 * are 0 for a default stream. */
static uint32_t for_stream(CUstream s) { return GS_WAIT_STREAM | (uint32_t)((uintptr_t)s >> 4) << 8; }

WAIT(cuStreamSynchronize, (CUstream s), (s), for_stream(s))
WAIT(cuStreamSynchronize_ptsz, (CUstream s), (s), for_stream(s))
WAIT(cuEventSynchronize, (CUevent e), (e), GS_WAIT_EVENT)
WAIT(cuCtxSynchronize, (void), (), GS_WAIT_CONTEXT)
WAIT(cuCtxSynchronize_v2, (CUcontext c), (c), GS_WAIT_CONTEXT)

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	GS_NEED(cuStreamWaitEvent);
	gs_nccl_stream_waits(s);
	return gs_real.cuStreamWaitEvent(s, e, flags);
}

CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags)
{
	GS_NEED(cuStreamWaitEvent_ptsz);
	gs_nccl_stream_waits(s ? s : CU_STREAM_PER_THREAD);
	return gs_real.cuStreamWaitEvent_ptsz(s, e, flags);
}

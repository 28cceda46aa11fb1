/* Calls that wait for the GPU. The trace has when they began and ended, and how far
 * streams have come that wait for a collective. */
#include "intercept.h"
#include "nccl.h"
#include "trace.h"

/* Defines the wrapper of a call that waits for the GPU. */
#define WAIT(name, parameters, arguments, what)    \
	CUresult name parameters                   \
	{                                          \
		GS_NEED(name);                     \
		gs_note_wait(GS_EVENT_WAIT, what); \
		CUresult r = gs_real.name arguments; \
		gs_note(GS_EVENT_WAITED, what);    \
		return r;                          \
	}

WAIT(cuStreamSynchronize, (CUstream s), (s), GS_WAIT_STREAM)
WAIT(cuStreamSynchronize_ptsz, (CUstream s), (s), GS_WAIT_STREAM)
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

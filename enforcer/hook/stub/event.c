/* Events: when the GPU reached them. While the file that GS_STUB_FULL names exists, a GPU
 * has no memory for new ones of this process. */
#include <stdlib.h>
#include <unistd.h>

#include "stub.h"

static bool full(void)
{
	const char *file = getenv("GS_STUB_FULL");

	return file && !access(file, F_OK);
}

GS_API cuEventCreate(CUevent *e, unsigned flags)
{
	CUcontext c;
	struct gs_gpu *g;
	uint32_t i = 0;

	GS_TRY(gs_current(&c));
	if (full())
		return CUDA_ERROR_OUT_OF_MEMORY;
	*e = calloc(1, sizeof **e);
	g = gs_gpu_lock((unsigned)c->device);
	while (i < GS_STUB_EVENTS && g->event[i].owner)
		i++;
	if (*e && i < GS_STUB_EVENTS) {
		**e = (struct CUevent_st){.ctx = c, .slot = i, .timed = !(flags & CU_EVENT_DISABLE_TIMING)};
		g->event[i] = (struct gs_slot_event){.owner = (uint32_t)c->proc + 1, .timed = (*e)->timed};
		if (g->events <= i)
			g->events = i + 1;
	}
	gs_gpu_unlock(g);
	if (*e && i == GS_STUB_EVENTS) {
		free(*e);
		*e = NULL;
	}
	return *e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuEventDestroy_v2(CUevent e)
{
	struct gs_gpu *g;

	GS_TRY(gs_enter());
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	g = gs_gpu_lock((unsigned)e->ctx->device);
	g->event[e->slot] = (struct gs_slot_event){0};
	gs_gpu_unlock(g);
	free(e);
	return CUDA_SUCCESS;
}

GS_API cuEventRecord(CUevent e, CUstream s)
{
	CUgraph graph;

	GS_TRY(gs_stream_of(s, &s));
	if (!e || e->ctx != s->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	GS_TRY(gs_capture_of(s, &graph));
	if (graph) {
		e->captured = s->capture->id;
		return CUDA_SUCCESS;
	}
	e->captured = 0;
	return gs_put(s, GS_WORK_EVENT, 0, e, (struct gs_point){0});
}

GS_API cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags)
{
	(void)flags;
	return cuEventRecord(e, s);
}

static CUresult look(CUevent e, struct gs_slot_event *out, bool *passed)
{
	struct gs_gpu *g;

	GS_TRY(gs_enter());
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	g = gs_gpu_lock((unsigned)e->ctx->device);
	*out = g->event[e->slot];
	*passed = gs_passed(g, out->point);
	gs_gpu_unlock(g);
	return CUDA_SUCCESS;
}

GS_API cuEventQuery(CUevent e)
{
	struct gs_slot_event v;
	bool passed;

	gs_client_ask();
	GS_TRY(look(e, &v, &passed));
	GS_TRY(gs_unsafe());
	GS_TRY(gs_capture_event(e));
	return passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

GS_API cuEventSynchronize(CUevent e)
{
	struct gs_slot_event v;
	bool passed;

	gs_client_ask();
	GS_TRY(look(e, &v, &passed));
	GS_TRY(gs_unsafe());
	GS_TRY(gs_capture_event(e));
	gs_wait(e->ctx->g, v.point);
	gs_pools_trim(e->ctx);
	return CUDA_SUCCESS;
}

GS_API cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
	struct gs_slot_event from, to;
	bool from_passed, to_passed;

	gs_client_ask();
	GS_TRY(look(a, &from, &from_passed));
	GS_TRY(look(b, &to, &to_passed));
	GS_TRY(gs_capture_event(a));
	GS_TRY(gs_capture_event(b));
	if (!from.timed || !to.timed || !from.record || !to.record)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!from_passed || !to_passed)
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)(int64_t)(to.time - from.time) / 1e6);
	return CUDA_SUCCESS;
}

GS_API cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b) { return cuEventElapsedTime(ms, a, b); }

GS_API cuEventRecord_ptsz(CUevent e, CUstream s) { return cuEventRecord(e, GS_PTSZ(s)); }

GS_API cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned flags)
{
	return cuEventRecordWithFlags(e, GS_PTSZ(s), flags);
}

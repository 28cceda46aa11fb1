/* Stream capture: which calls become nodes, which are refused and which end the
 * capture with an error, after the driver's manual. It is not checked that every
 * stream was joined again at the end. */
#include <stdlib.h>

#include "stub.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gs_capture *captures; /* being made */
static _Atomic int count;           /* their number, so that the launch path takes no lock */
static _Thread_local CUstreamCaptureMode mode_of_thread;

CUresult gs_unsafe(void)
{
	CUresult r = CUDA_SUCCESS;

	if (!count || mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED)
		return r;
	pthread_mutex_lock(&lock);
	for (struct gs_capture *c = captures; c; c = c->next) {
		bool mine = c->thread == gs_self() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		bool global = mode_of_thread == CU_STREAM_CAPTURE_MODE_GLOBAL &&
			c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

		if (!mine && !global)
			continue;
		c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* Work for the legacy stream would have to wait for a blocking stream that
 * captures: both captures are lost. */
static CUresult implicit(CUstream s)
{
	CUresult r = CUDA_SUCCESS;

	for (struct gs_capture *c = captures; c; c = c->next) {
		if (s->kind != GS_LEGACY || c->origin->ctx != s->ctx || c->origin->kind != GS_BLOCKING)
			continue;
		c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
		r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return r;
}

CUresult gs_capture_of(CUstream s, CUgraph *graph)
{
	CUresult r = CUDA_SUCCESS;
	struct gs_capture *c;

	*graph = NULL;
	if (!count)
		return r;
	pthread_mutex_lock(&lock);
	c = s->capture;
	if (!c)
		r = implicit(s);
	else if (c->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else
		*graph = c->graph;
	pthread_mutex_unlock(&lock);
	return r;
}

void gs_capture_lose(CUstream s)
{
	struct gs_capture *c;

	pthread_mutex_lock(&lock);
	c = s->capture;
	if (c)
		c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
	pthread_mutex_unlock(&lock);
}

CUresult gs_capture_none(CUstream s)
{
	CUgraph graph;

	GS_TRY(gs_capture_of(s, &graph));
	if (!graph)
		return CUDA_SUCCESS;
	gs_capture_lose(s);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

extern CUresult cuGraphDestroy(CUgraph g);

static CUresult end(struct gs_capture *c, CUgraph *graph)
{
	struct gs_capture **link = &captures;
	CUresult r = CUDA_SUCCESS;

	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	count--;
	if (c->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
		cuGraphDestroy(c->graph);
		c->graph = NULL;
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	*graph = c->graph;
	c->origin->capture = NULL;
	for (CUstream s = c->joined; s; s = s->joined)
		s->capture = NULL;
	free(c);
	return r;
}

void gs_capture_leave(CUstream s)
{
	struct gs_capture *c;
	CUgraph graph;

	pthread_mutex_lock(&lock);
	c = s->capture;
	if (c)
		c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
	if (c && c->origin == s)
		end(c, &graph);
	else if (c)
		for (CUstream *link = &c->joined; *link; link = &(*link)->joined)
			if (*link == s) {
				*link = s->joined;
				break;
			}
	pthread_mutex_unlock(&lock);
}

bool gs_capture_joins(CUstream s, CUevent e)
{
	struct gs_capture *c;

	if (!count || !e->captured)
		return false;
	pthread_mutex_lock(&lock);
	for (c = captures; c && c->id != e->captured; c = c->next)
		;
	if (c && !s->capture) {
		s->capture = c;
		s->joined = c->joined;
		c->joined = s;
	}
	c = c && s->capture == c ? c : NULL;
	pthread_mutex_unlock(&lock);
	return c != NULL;
}

CUresult gs_capture_event(CUevent e)
{
	return e->captured ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

GS_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode old = mode_of_thread;

	if ((unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	mode_of_thread = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

GS_API cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode)
{
	static cuuint64_t id;
	struct gs_capture *c;
	CUresult r = CUDA_SUCCESS;

	GS_TRY(gs_stream_of(s, &s));
	if (s->kind == GS_LEGACY)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	c = calloc(1, sizeof *c);
	pthread_mutex_lock(&lock);
	if (s->capture || !c) {
		r = CUDA_ERROR_INVALID_VALUE;
		free(c);
	} else {
		*c = (struct gs_capture){.next = captures, .origin = s, .thread = gs_self(), .mode = mode,
			.status = CU_STREAM_CAPTURE_STATUS_ACTIVE, .graph = calloc(1, sizeof *c->graph), .id = ++id};
		captures = s->capture = c;
		count++;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

GS_API cuStreamBeginCapture(CUstream s) { return cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL); }

GS_API cuStreamEndCapture(CUstream s, CUgraph *graph)
{
	struct gs_capture *c;
	CUresult r;

	GS_TRY(gs_stream_of(s, &s));
	*graph = NULL;
	pthread_mutex_lock(&lock);
	c = s->capture;
	if (!c)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (c->origin != s)
		r = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	else if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != gs_self())
		r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	else
		r = end(c, graph);
	pthread_mutex_unlock(&lock);
	return r;
}

GS_API cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status)
{
	CUresult r = CUDA_SUCCESS;

	GS_TRY(gs_stream_of(s, &s));
	pthread_mutex_lock(&lock);
	*status = s->capture ? s->capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
	if (!s->capture)
		r = implicit(s);
	pthread_mutex_unlock(&lock);
	return r;
}

GS_API cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **dependencies, size_t *count_out)
{
	GS_TRY(cuStreamIsCapturing(s, status));
	GS_TRY(gs_stream_of(s, &s));
	pthread_mutex_lock(&lock);
	if (*status != CU_STREAM_CAPTURE_STATUS_NONE && s->capture) {
		if (id)
			*id = s->capture->id;
		if (graph)
			*graph = s->capture->graph;
		if (dependencies)
			*dependencies = &s->capture->graph->last;
		if (count_out)
			*count_out = s->capture->graph->last != NULL;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

GS_API cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count_out)
{
	if (edges)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(s, status, id, graph, dependencies, count_out);
}

GS_API cuStreamBeginCapture_ptsz(CUstream s) { return cuStreamBeginCapture(GS_PTSZ(s)); }
GS_API cuStreamEndCapture_ptsz(CUstream s, CUgraph *graph) { return cuStreamEndCapture(GS_PTSZ(s), graph); }

GS_API cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(GS_PTSZ(s), mode);
}

GS_API cuStreamIsCapturing_ptsz(CUstream s, CUstreamCaptureStatus *status)
{
	return cuStreamIsCapturing(GS_PTSZ(s), status);
}

GS_API cuStreamGetCaptureInfo_v2_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **dependencies, size_t *count_out)
{
	return cuStreamGetCaptureInfo_v2(GS_PTSZ(s), status, id, graph, dependencies, count_out);
}

GS_API cuStreamGetCaptureInfo_v3_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count_out)
{
	return cuStreamGetCaptureInfo_v3(GS_PTSZ(s), status, id, graph, dependencies, edges, count_out);
}

/* This does not count against the graph that was. */
GS_API cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph g, void *callback, void *data)
{
	(void)callback, (void)data;
	return g ? cuStreamBeginCapture_v2(s, mode) : CUDA_ERROR_INVALID_VALUE;
}

GS_API cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode mode, CUgraph g, void *callback, void *data)
{
	return cuStreamBeginRecaptureToGraph(GS_PTSZ(s), mode, g, callback, data);
}

/* Into a command list of graphics, which does not run here. */
GS_API cuStreamBeginCaptureToCig(CUstream s, const void *params)
{
	return params ? cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED) : CUDA_ERROR_INVALID_VALUE;
}

GS_API cuStreamEndCaptureToCig(CUstream s)
{
	CUgraph g;

	return cuStreamEndCapture(s, &g);
}

GS_API cuStreamBeginCaptureToCig_ptsz(CUstream s, const void *params)
{
	return cuStreamBeginCaptureToCig(GS_PTSZ(s), params);
}
GS_API cuStreamEndCaptureToCig_ptsz(CUstream s) { return cuStreamEndCaptureToCig(GS_PTSZ(s)); }

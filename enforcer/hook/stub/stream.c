/* Streams and events: what is put in, and waiting for it. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "stub.h"

#define ROOM 64 /* entries that must end before a full stream takes more */
#define SOON 2000    /* ns; a waiter does not look again before */
#define LATER 20000  /* while an entry waits that cannot be predicted: at first, */
#define LATEST 100000 /* and in the end; */
#define HORIZON 10000000 /* with many who wait so, one after the other, but not later than this */

/* When a waiter looks again that cannot tell how long it waits, unless the bell rings. */
static uint64_t turn(uint64_t now, uint64_t patience)
{
	uint64_t last = gs_host->look, at;

	do
		at = (last < now ? now : last) + patience;
	while (at < now + HORIZON && !atomic_compare_exchange_weak(&gs_host->look, &last, at));
	return at < now + HORIZON ? at : now + HORIZON;
}

/* Sleeps until the GPU should be there, and looks again: other work may have come between. */
void gs_wait(struct gs_gpu *g, struct gs_point p)
{
	static _Thread_local bool sharp;
	uint64_t patience = LATER;

	if (!sharp)
		prctl(PR_SET_TIMERSLACK, 1);
	sharp = true;
	for (;;) {
		uint32_t seen = gs_host->bell;
		uint64_t t = 0;

		gs_gpu_lock((unsigned)(g - gs_host->gpu));
		if (!gs_passed(g, p)) {
			t = gs_predict(g, p);
			if (gs_host->waits && t < g->now + patience) {
				t = turn(g->now, patience);
				patience += patience < LATEST ? patience / 4 : 0;
			}
			if (t < g->now + SOON)
				t = g->now + SOON;
		}
		gs_gpu_unlock(g);
		if (!t)
			return;
		gs_bell_await(seen, t);
	}
}

/* The place behind the stream's last entry, once there is room. The GPU is locked.
 * NULL: the stream is gone, and the GPU is not locked. */
static struct gs_entry *room(CUstream s)
{
	struct gs_gpu *g = gs_gpu_change((unsigned)s->ctx->device);
	struct gs_slot_stream *q = &g->stream[s->slot];

	while (q->generation == s->generation && q->tail - q->head >= GS_STUB_RING) {
		struct gs_point room = {s->slot, s->generation, q->head + ROOM - 1};

		gs_gpu_unlock(g);
		gs_wait(g, room);
		gs_gpu_change((unsigned)s->ctx->device);
	}
	if (q->generation != s->generation) {
		gs_gpu_unlock(g);
		return NULL;
	}
	return &g->ring[s->slot][q->tail % GS_STUB_RING];
}

static CUresult put(CUstream s, struct gs_entry what, uint64_t ns, CUevent event, struct gs_point *where)
{
	struct gs_entry *e = room(s);
	struct gs_gpu *g = s->ctx->g;
	struct gs_slot_stream *q = &g->stream[s->slot];

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	*e = what;
	e->order = g->proc[s->ctx->proc].order++;
	if (event) {
		struct gs_slot_event *v = &g->event[event->slot];

		v->record = e->record = ++g->records;
		v->time = 0;
		v->point = (struct gs_point){s->slot, s->generation, q->tail};
		e->event = event->slot;
	}
	q->queued += ns;
	e->until = q->queued;
	e->copied = q->copied;
	gs_host->waits += gs_waits(e->work);
	if (where)
		*where = (struct gs_point){s->slot, s->generation, q->tail};
	q->tail++;
	gs_gpu_unlock(g);
	return CUDA_SUCCESS;
}

CUresult gs_put(CUstream s, enum gs_work work, uint64_t ns, CUevent event, struct gs_point point)
{
	return put(s, (struct gs_entry){.work = work, .point = point}, ns, event, NULL);
}

CUresult gs_put_wait(CUstream s, enum gs_work work, uint64_t ns, struct gs_wait wait, struct gs_point *where)
{
	return put(s, (struct gs_entry){.work = work, .wait = wait}, ns, NULL, where);
}

/* The engine makes the copies of all processes in the order in which they come. */
CUresult gs_put_copy(CUstream s, enum gs_engine way, uint64_t bytes)
{
	struct gs_entry *e = room(s);
	struct gs_gpu *g = s->ctx->g;
	struct gs_slot_stream *q = &g->stream[s->slot];

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (g->engine[way] < g->now)
		g->engine[way] = g->now;
	g->engine[way] += gs_copy_ns(way, bytes);
	if (q->copied < g->engine[way])
		q->copied = g->engine[way];
	*e = (struct gs_entry){
		.work = GS_WORK_COPY, .order = g->proc[s->ctx->proc].order++, .until = q->queued, .copied = q->copied};
	g->copies++;
	q->tail++;
	gs_gpu_unlock(g);
	return CUDA_SUCCESS;
}

CUstream gs_stream_make(CUcontext ctx, uint32_t kind, int priority)
{
	struct gs_gpu *g = gs_gpu_change((unsigned)ctx->device);
	struct gs_slot_proc *p = &g->proc[ctx->proc];
	CUstream s = NULL;
	uint32_t i = 0;

	while (i < GS_STUB_STREAMS && g->stream[i].owner)
		i++;
	if (i < GS_STUB_STREAMS && (s = calloc(1, sizeof *s))) {
		*s = (struct CUstream_st){
			.ctx = ctx, .slot = i, .generation = ++g->generation, .kind = kind, .priority = priority};
		g->stream[i] = (struct gs_slot_stream){.owner = (uint32_t)ctx->proc + 1, .generation = s->generation,
			.kind = kind, .context = ctx->number, .next = p->streams};
		p->streams = i + 1;
	}
	gs_gpu_unlock(g);
	return s;
}

void gs_stream_close(CUstream s)
{
	struct gs_gpu *g = gs_gpu_change((unsigned)s->ctx->device);
	struct gs_slot_stream *q = &g->stream[s->slot];

	if (q->generation == s->generation) {
		q->closed = 1;
		if (q->head == q->tail)
			gs_stream_free(g, s->slot);
	}
	gs_gpu_unlock(g);
	free(s);
}

CUresult gs_stream_of(CUstream s, CUstream *out)
{
	static _Thread_local CUstream own;
	CUcontext c;

	GS_TRY(gs_current(&c));
	if (!s || s == CU_STREAM_LEGACY) {
		*out = c->legacy;
	} else if (s == CU_STREAM_PER_THREAD) {
		if (own && own->ctx != c) {
			gs_stream_close(own);
			own = NULL;
		}
		if (!own)
			own = gs_stream_make(c, GS_BLOCKING, 0);
		*out = own;
	} else {
		*out = s;
	}
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct gs_point tail_of(CUstream s)
{
	struct gs_gpu *g = gs_gpu_lock((unsigned)s->ctx->device);
	struct gs_point p = {s->slot, s->generation, g->stream[s->slot].tail - 1};

	if (g->stream[s->slot].head == g->stream[s->slot].tail)
		p.generation = 0;
	gs_gpu_unlock(g);
	return p;
}

static bool passed(CUcontext c, struct gs_point p)
{
	struct gs_gpu *g = gs_gpu_lock((unsigned)c->device);
	bool yes = gs_passed(g, p);

	gs_gpu_unlock(g);
	return yes;
}

CUresult gs_finish(CUcontext c)
{
	struct gs_point points[GS_STUB_STREAMS];
	struct gs_gpu *g = gs_gpu_lock((unsigned)c->device);
	int n = 0;

	for (uint32_t i = g->proc[c->proc].streams; i; i = g->stream[i - 1].next)
		if (g->stream[i - 1].context == c->number && g->stream[i - 1].head != g->stream[i - 1].tail)
			points[n++] = (struct gs_point){i - 1, g->stream[i - 1].generation, g->stream[i - 1].tail - 1};
	gs_gpu_unlock(g);
	while (n)
		gs_wait(c->g, points[--n]);
	gs_pools_trim(c);
	return CUDA_SUCCESS;
}

GS_API cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority)
{
	CUcontext c;

	GS_TRY(gs_current(&c));
	if (flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	*s = gs_stream_make(c, flags ? GS_NON_BLOCKING : GS_BLOCKING, priority);
	return *s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuStreamCreate(CUstream *s, unsigned flags) { return cuStreamCreateWithPriority(s, flags, 0); }

GS_API cuStreamDestroy_v2(CUstream s)
{
	GS_TRY(gs_enter());
	if (!s || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	gs_capture_leave(s);
	gs_stream_close(s);
	return CUDA_SUCCESS;
}

GS_API cuStreamGetCtx(CUstream s, CUcontext *c)
{
	GS_TRY(gs_stream_of(s, &s));
	*c = s->ctx;
	return CUDA_SUCCESS;
}

GS_API cuStreamGetDevice(CUstream s, CUdevice *d)
{
	GS_TRY(gs_stream_of(s, &s));
	*d = s->ctx->device;
	return CUDA_SUCCESS;
}

GS_API cuStreamQuery(CUstream s)
{
	gs_client_ask();
	GS_TRY(gs_stream_of(s, &s));
	GS_TRY(gs_unsafe());
	return passed(s->ctx, tail_of(s)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

GS_API cuStreamSynchronize(CUstream s)
{
	gs_client_ask();
	GS_TRY(gs_stream_of(s, &s));
	GS_TRY(gs_unsafe());
	gs_wait(s->ctx->g, tail_of(s));
	gs_pools_trim(s->ctx);
	return CUDA_SUCCESS;
}

GS_API cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	struct gs_gpu *g;
	struct gs_point p;
	CUgraph graph;

	(void)flags;
	GS_TRY(gs_stream_of(s, &s));
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (gs_capture_joins(s, e))
		return CUDA_SUCCESS;
	GS_TRY(gs_capture_of(s, &graph));
	if (graph) {
		gs_capture_lose(s);
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	GS_TRY(gs_capture_event(e));
	g = gs_gpu_lock((unsigned)e->ctx->device);
	p = g->event[e->slot].point;
	gs_gpu_unlock(g);
	if (g != s->ctx->g) {
		/* GPUs do not see each other's streams: the caller waits instead. */
		gs_wait(g, p);
		return CUDA_SUCCESS;
	}
	return gs_put(s, GS_WORK_WAIT, 0, NULL, p);
}

GS_API cuStreamGetCtx_ptsz(CUstream s, CUcontext *c) { return cuStreamGetCtx(GS_PTSZ(s), c); }
GS_API cuStreamGetDevice_ptsz(CUstream s, CUdevice *d) { return cuStreamGetDevice(GS_PTSZ(s), d); }
GS_API cuStreamQuery_ptsz(CUstream s) { return cuStreamQuery(GS_PTSZ(s)); }
GS_API cuStreamSynchronize_ptsz(CUstream s) { return cuStreamSynchronize(GS_PTSZ(s)); }

GS_API cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags)
{
	return cuStreamWaitEvent(GS_PTSZ(s), e, flags);
}

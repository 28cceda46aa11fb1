/* Markers: events behind launches, which tell us what the GPU has done. The thread
 * that launched records them on the stream of the launch. The helper records only
 * the last ones of a stream. All of this runs with the GPU's lock held. */
#include "streams/markers.h"

#include <string.h>

#include "base/clock.h"
#include "base/driver.h"
#include "session/local.h"
#include "streams/bound.h"
#include "trace/crash.h"
#include "trace/trace.h"

#define MARKER_NS 400000     /* of work that a marker covers, about, */
#define MARKER_PART 8        /* or this part of what may be queued */
#define MARKER_LAUNCHES 256  /* at most, in case the estimate is wrong */
#define FEW 16               /* of so many markers in OPEN, one covers no more than in a turn */
#define KERNEL_NS 100000     /* a kernel's cost while it is not known */
#define UNCOUNTED_NS 1000000000
#define CHAIN_NS 10000000000 /* beyond this the driver's float of milliseconds is too coarse */
#define RETRY_NS 1000000000  /* after a refusal the driver is asked again, and each time after twice as long, */
#define RETRY_DOUBLES 8      /* up to so many times */
#define HELPED_NS 4000000    /* work that was passed so soon after a launch passed for it had waited for that */
#define VAIN_NS 40000000     /* work that took so long, and that launches passed for in vain, did not wait: it is long */
#define GRAPH_SEEN 4         /* launches of a graph that are measured alone, */
#define GRAPH_AGAIN 64       /* and again after so many */

static struct gs_marker *ring_at(struct gs_stream *e, unsigned i)
{
	return &e->ring[(e->head + i) % GS_MARKERS];
}

static CUresult event_take(struct gs_context *c, CUevent *event)
{
	if (c->spares) {
		*event = c->spare[--c->spares];
		return CUDA_SUCCESS;
	}
	CUresult r = gs_real.cuEventCreate(event, CU_EVENT_DEFAULT); /* nobody sleeps for it: no interrupt */
	if (r)
		*event = NULL;
	return r;
}

static void event_give(struct gs_marker *m)
{
	if (!m->event)
		return;
	if (m->context->spares < GS_EVENTS)
		m->context->spare[m->context->spares++] = m->event;
	else
		gs_real.cuEventDestroy_v2(m->event);
	m->event = NULL;
}

/* The driver refused what the stream's markers need. What is under way there is not
 * known until an event succeeds. */
static void refused(struct gs_stream *e, struct gs_context *c, CUresult r, uint64_t now)
{
	if (gs_crash_lost(r)) {
		atomic_store(&c->lost, true);
		gs_crash_fault(r);
	}
	if (now < e->retry_ns)
		return;
	atomic_fetch_add(&gs_errors, 1);
	while (e->pending)
		event_give(ring_at(e, --e->pending));
	event_give(&e->passed);
	event_give(&e->now);
	gs_marker_forget(e);
	e->retry_ns = now + ((uint64_t)RETRY_NS << e->refusals);
	if (e->refusals < RETRY_DOUBLES)
		e->refusals++;
	gs_marker_add(e, c, NULL, 0, 0, now); /* there may be work */
}

bool gs_marker_record(struct gs_stream *e, CUstream stream, uint64_t now)
{
	struct gs_marker *m = &e->now;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (now < e->retry_ns || e->pending == GS_MARKERS || gs_real.cuThreadExchangeStreamCaptureMode(&mode))
		return false;
	bool free = !gs_stream_captures(stream);
	CUresult r = free ? event_take(m->context, &m->event) : CUDA_SUCCESS;
	if (free && !r)
		r = gs_real.cuEventRecord(m->event, stream);
	gs_real.cuThreadExchangeStreamCaptureMode(&mode);
	if (r)
		refused(e, m->context, r, now);
	if (!free || r)
		return false;
	e->refusals = 0;
	e->made++;
	m->recorded_ns = now;
	*ring_at(e, e->pending++) = *m;
	memset(m, 0, sizeof *m);
	return true;
}

/* What the driver says of a stream without events. If it says nothing, the stream's work
 * counts as done. */
static bool done(struct gs_stream *e, CUresult r, uint64_t now)
{
	if (r == CUDA_ERROR_NOT_READY)
		return false;
	if (r)
		refused(e, e->now.context, r, now);
	memset(&e->now, 0, sizeof e->now);
	e->gpu->progress_ns = e->gpu->usage.last_ns = now;
	return true;
}

/* Another thread cannot name a thread's own stream. But an event on the legacy
 * stream comes after everything on such streams. */
static bool tail(struct gs_stream *e, uint64_t now)
{
	CUcontext popped, c = atomic_load(&e->now.context->handle);
	CUstream stream = e->thread || e->stray ? NULL : e->stream;

	if (e->thread && atomic_load(&gs_captures))
		return false;
	CUresult r = gs_real.cuCtxPushCurrent_v2(c);
	if (r)
		return done(e, r, now);
	bool ok = gs_marker_record(e, stream, now);
	if (!ok && e->refusals && !gs_stream_captures(stream))
		ok = done(e, gs_real.cuStreamQuery ? gs_real.cuStreamQuery(stream) : CUDA_SUCCESS, now);
	gs_real.cuCtxPopCurrent_v2(&popped);
	return ok;
}

bool gs_marker_tails(struct gs_gpu *g, uint64_t now)
{
	bool all = true;

	for (struct gs_stream *e = g->streams; e; e = e->next)
		if (e->now.launches && !tail(e, now))
			all = false;
	if (g->strays.now.launches && !tail(&g->strays, now))
		all = false;
	return all;
}

void gs_marker_add(struct gs_stream *e, struct gs_context *c, void *graph, uint32_t launches, uint64_t cost,
		   uint64_t now)
{
	struct gs_marker *m = &e->now;

	if (!m->launches) {
		m->context = c;
		m->first_ns = now;
		m->graph = graph;
	} else if (m->graph != graph || now > m->last_ns + GS_GAP || e->stray) {
		m->uneven = true;
	}
	m->last_ns = now;
	m->launches += launches ? launches : 1;
	if (e->refusals) { /* nothing tells when they are done, so they count as done */
		m->uneven = e->gpu->unpaced = true;
		return;
	}
	m->real += launches;
	m->cost += cost;
	e->queued += cost;
}

uint64_t gs_marker_outstanding(const struct gs_gpu *g)
{
	uint64_t n = g->strays.now.real;

	for (const struct gs_stream *e = g->streams; e; e = e->next) {
		n += e->now.real;
		for (unsigned i = 0; i < e->pending; i++)
			n += e->ring[(e->head + i) % GS_MARKERS].real;
	}
	for (unsigned i = 0; i < g->strays.pending; i++)
		n += g->strays.ring[(g->strays.head + i) % GS_MARKERS].real;
	return n;
}

/* Launches that were not counted are taken for a lot of work. */
void gs_marker_opened(struct gs_gpu *g, uint64_t now)
{
	for (struct gs_stream *e = g->streams; e; e = e->next)
		if (atomic_load(&e->opened)) {
			gs_marker_add(e, e->context, NULL, 0, UNCOUNTED_NS, now);
			e->now.uneven = true;
			e->now.guessed += UNCOUNTED_NS;
			e->now.hosts = atomic_exchange(&e->hosted, false) || e->now.hosts;
		}
}

void gs_marker_host(struct gs_stream *e, CUstream stream, uint64_t now)
{
	if (e->now.launches)
		gs_marker_record(e, stream, now);
	atomic_store(&e->hosted, true);
}

void gs_marker_hosted(struct gs_stream *e, CUstream stream, uint64_t now)
{
	if (!e->context || !atomic_exchange(&e->hosted, false)) /* the stream may be gone by now */
		return;
	gs_marker_add(e, e->context, NULL, 0, 0, now);
	e->now.uneven = e->now.hosts = true;
	gs_marker_record(e, stream, now);
}

static bool paced(const struct gs_gpu *g)
{
	return __atomic_load_n(&atomic_load(&gs_page)->slot[gs_gpu_index(g)].pace_permille, __ATOMIC_RELAXED);
}

bool gs_marker_due(const struct gs_stream *e)
{
	const struct gs_marker *m = &e->now;
	/* Events between the kernels of a deep queue slow it down. Now and then one tells the cost of a single kernel. */
	bool open = e->gpu->phase == GS_UNGATED && !m->graph && e->made % FEW && !paced(e->gpu);
	uint64_t bound = open ? GS_AHEAD : e->bound_ns;
	uint64_t most = bound / MARKER_PART > MARKER_NS ? bound / MARKER_PART : MARKER_NS;

	if (!m->launches || e->pending == GS_MARKERS)
		return false;
	return e->stray || (!m->graph && !e->cost) || (m->graph && !m->uneven && gs_marker_alone(e->gpu, m->graph)) ||
		m->cost >= most || m->launches >= MARKER_LAUNCHES || m->last_ns - m->first_ns >= most;
}

/* ---- costs ---- */

static struct gs_graph *graph_of(struct gs_gpu *g, void *exec)
{
	size_t at = ((uintptr_t)exec >> 4) % GS_GRAPHS;

	for (unsigned i = 0; i < 8; i++) {
		struct gs_graph *graph = &g->graphs[(at + i) % GS_GRAPHS];
		if (graph->exec == exec)
			return graph;
	}
	return NULL;
}

static struct gs_graph *graph_make(struct gs_gpu *g, void *exec)
{
	struct gs_graph *graph = graph_of(g, exec);

	if (!graph && !(graph = graph_of(g, NULL)))
		graph = &g->graphs[((uintptr_t)exec >> 4) % GS_GRAPHS];
	if (graph->exec != exec)
		*graph = (struct gs_graph){ .exec = exec };
	return graph;
}

bool gs_marker_alone(struct gs_gpu *g, void *exec)
{
	struct gs_graph *graph = graph_of(g, exec);

	return !graph || graph->seen % GRAPH_AGAIN < GRAPH_SEEN;
}

uint64_t gs_marker_learnt(struct gs_gpu *g, void *exec)
{
	return gs_marker_alone(g, exec) ? 0 : graph_of(g, exec)->cost;
}

uint64_t gs_marker_cost(struct gs_stream *e, void *exec, uint64_t unknown)
{
	if (!exec)
		return e->cost ? e->cost : KERNEL_NS;
	struct gs_graph *graph = graph_make(e->gpu, exec);
	graph->seen++;
	return graph->cost ? graph->cost : unknown;
}

void gs_gate_graph_forget(void *exec)
{
	for (unsigned i = 0; exec && i < GS_GPUS; i++) {
		pthread_mutex_lock(&gs_gates[i].lock);
		struct gs_graph *graph = graph_of(&gs_gates[i], exec);
		if (graph) {
			*graph = (struct gs_graph){ 0 };
			atomic_fetch_add(&gs_generation, 1); /* no thread lets it go by */
		}
		pthread_mutex_unlock(&gs_gates[i].lock);
	}
}

/* Work beside others that took longer had to wait for them. */
static void average(uint64_t *cost, uint64_t sample, bool beside)
{
	if (!sample)
		sample = 1;
	if (beside && *cost && sample > *cost)
		return;
	*cost = *cost ? (*cost * 7 + sample) / 8 : sample;
	if (!*cost)
		*cost = 1;
}

/* ---- what the GPU has passed ---- */

/* When it passed m: not before m was recorded, and as long after the marker before it
 * as the GPU's own clock says. That clock may run slower than ours. So we add a
 * little, and come down to now each time that we look soon enough. It may be after
 * now: the marker before it was seen late. */
static uint64_t passed_at(const struct gs_stream *e, const struct gs_marker *m, uint64_t now)
{
	const struct gs_marker *before = &e->passed;
	uint64_t at = now;
	float ms;

	if (before->event && before->context == m->context && now - e->passed_ns < CHAIN_NS &&
	    !gs_real.cuEventElapsedTime(&ms, before->event, m->event) && ms >= 0)
		at = e->passed_ns + (uint64_t)((double)ms * 1e6 * 1.0001);
	return at < m->recorded_ns ? m->recorded_ns : at;
}

/* The pace of the program while it runs alone: the work from a turn's first launch
 * to its last marker. Work after that marker is not known to be at its pace. */
static void pace(struct gs_gpu *g, const struct gs_marker *m, uint64_t at)
{
	if (g->phase != GS_TURN || g->flags & GS_BESIDE || m->recorded_ns < g->began_ns)
		return;
	if (g->unpaced) {
		g->unpaced = false;
		g->paced_ns = at;
		return;
	}
	if (!g->paced_ns)
		g->paced_ns = m->first_ns > g->began_ns ? m->first_ns : g->began_ns;
	g->usage.solo += m->real;
	if (at <= g->paced_ns)
		return;
	g->usage.solo_ns += at - g->paced_ns;
	g->paced_ns = at;
}

bool gs_marker_before(struct gs_stream *e, CUstream stream, uint64_t now)
{
	gs_marker_look(e);
	if (e->stray || !e->context || e->refusals || e->pending > GS_MARKERS / 2)
		return false;
	gs_marker_add(e, e->context, NULL, 0, 0, now);
	e->now.uneven = true;
	return gs_marker_record(e, stream, now);
}

/* Nothing comes between the launch and the event behind it: a GPU that is ahead waits for the event, too. If it has passed
 * the marker before the launch by then, it had nothing to do until the launch came. */
void gs_marker_time(struct gs_stream *e, CUstream stream, uint32_t id, uint64_t since, uint64_t now)
{
	bool alone = e->pending && ring_at(e, e->pending - 1)->recorded_ns <= since && e->now.launches == 1; /* else another thread's */

	if (!gs_marker_record(e, stream, now) || !alone)
		return;
	struct gs_marker *m = ring_at(e, e->pending - 1);
	m->timed = id;
	if (gs_real.cuEventQuery(ring_at(e, e->pending - 2)->event) == CUDA_SUCCESS)
		m->idle_ns = now - since < UINT32_MAX ? (uint32_t)(now - since) : UINT32_MAX;
}

/* Notes how long the launch took, by the GPU's clock. */
static void tell_time(const struct gs_stream *e, const struct gs_marker *m)
{
	struct gs_trace *t = atomic_load(&gs_trace);
	float ms;

	if (!t || !e->passed.event || e->passed.context != m->context ||
	    gs_real.cuEventElapsedTime(&ms, e->passed.event, m->event) || ms < 0)
		return;
	uint64_t ns = (uint64_t)((double)ms * 1e6), idle = m->idle_ns < GS_GAP ? m->idle_ns : GS_GAP;
	if (m->idle_ns > GS_GAP && m->idle_ns > ns / 8) /* the thread was away, or the launch began meanwhile */
		return;
	gs_trace_put(t, GS_EVENT_TIMED, gs_gpu_index(e->gpu), m->timed);
	gs_trace_put(t, GS_EVENT_TOOK, gs_gpu_index(e->gpu), gs_note_units(ns > idle ? ns - idle : 0, 10));
}

/* The stream's work up to m took so long. sure: that is its cost. */
static void account(struct gs_stream *e, const struct gs_marker *m, uint64_t at, uint64_t took, bool sure)
{
	struct gs_gpu *g = e->gpu;

	e->queued -= m->cost < e->queued ? m->cost : e->queued;
	if (m->awaited_ns && at < m->awaited_ns + HELPED_NS)
		gs_gate_helped(e, at);
	else if (m->awaited_ns && took > VAIN_NS && took > g->longest_ns)
		g->longest_ns = took;
	e->stalled = 0;
	g->progress_ns = at;
	pace(g, m, at);
	if (at > g->usage.last_ns)
		g->usage.last_ns = at;
	if (m->uneven || m->awaited_ns || !sure) /* its wait is not its cost */
		return;
	if (m->launches == 1 && !(g->flags & GS_BESIDE) && took > g->usage.longest_ns) {
		g->usage.longest_ns = took;
		if (took > g->longest_ns)
			g->longest_ns = took;
	}
	struct gs_graph *graph = m->graph ? graph_of(g, m->graph) : NULL;
	if (graph)
		average(&graph->cost, took / m->launches, g->flags & GS_BESIDE);
	else if (!m->graph)
		average(&e->cost, took / m->launches, g->flags & GS_BESIDE);
}

static void reap(struct gs_stream *e)
{
	while (e->pending) {
		struct gs_marker *m = ring_at(e, 0);
		CUresult r = gs_real.cuEventQuery(m->event);
		if (r == CUDA_ERROR_NOT_READY) {
			e->looked_ns = gs_now();
			return;
		}
		if (r) {
			refused(e, m->context, r, gs_now());
			return;
		}
		uint64_t now = gs_now(), end = passed_at(e, m, now), at = end < now ? end : now;
		uint64_t from = e->passed_ns > m->first_ns && !e->stray ? e->passed_ns : m->first_ns;
		uint64_t before = e->looked_ns > m->recorded_ns ? e->looked_ns : m->recorded_ns;
		/* If it was not looked at for long, it may have passed at any time since. So may the one
		 * before it, of which only the GPU's clock tells more if one look saw both. */
		bool soon = now - before <= 2 * GS_GAP || now - before <= (at - m->first_ns) / 4;
		if (m->timed)
			tell_time(e, m);
		account(e, m, at, end - from, at < now || (soon && (end > now || e->passed_ns <= before)));
		event_give(e->stray ? m : &e->passed);
		e->passed = *m;
		e->passed_ns = at;
		if (e->stray)
			e->passed.event = NULL;
		e->head = (e->head + 1) % GS_MARKERS;
		e->pending--;
	}
}

void gs_marker_look(struct gs_stream *e)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (!e->pending || gs_suspended() || gs_real.cuThreadExchangeStreamCaptureMode(&mode))
		return;
	reap(e);
	gs_real.cuThreadExchangeStreamCaptureMode(&mode);
}

void gs_marker_reap(struct gs_gpu *g)
{
	for (struct gs_stream *e = g->streams; e; e = e->next)
		gs_marker_look(e);
	gs_marker_look(&g->strays);
}

bool gs_marker_any(const struct gs_gpu *g)
{
	for (const struct gs_stream *e = g->streams; e; e = e->next)
		if (e->pending)
			return true;
	return g->strays.pending;
}

bool gs_marker_at_hosts(const struct gs_gpu *g)
{
	bool any = false;

	for (const struct gs_stream *e = g->streams; e; e = e->next) {
		if (e->pending && !e->ring[e->head].hosts)
			return false;
		any = any || e->pending;
	}
	return any && !g->strays.pending;
}

struct gs_marker *gs_marker_oldest(struct gs_stream *e) { return e->pending ? ring_at(e, 0) : NULL; }

void gs_marker_suspect(struct gs_gpu *g)
{
	for (struct gs_stream *e = g->streams; e; e = e->next)
		if (e->pending)
			ring_at(e, 0)->uneven = true;
}

void gs_marker_await(struct gs_gpu *g, uint64_t now)
{
	for (struct gs_stream *e = g->streams; e; e = e->next)
		if (e->pending)
			ring_at(e, 0)->awaited_ns = now;
}

uint64_t gs_marker_left(struct gs_stream *e, uint64_t now)
{
	const struct gs_marker *m = e->pending ? ring_at(e, 0) : &e->now;
	uint64_t from = e->passed_ns > m->first_ns ? e->passed_ns : m->first_ns;
	uint64_t done = m->launches && now > from ? now - from : 0;

	if (done > m->cost)
		done = m->cost;
	return e->queued > done ? e->queued - done : 0;
}

uint64_t gs_marker_known(const struct gs_stream *e)
{
	uint64_t guessed = e->now.guessed;

	for (unsigned i = 0; i < e->pending; i++)
		guessed += e->ring[(e->head + i) % GS_MARKERS].guessed;
	return e->queued > guessed ? e->queued - guessed : 0;
}

uint64_t gs_marker_dearest(struct gs_gpu *g)
{
	uint64_t most = 0;

	for (struct gs_stream *e = g->streams; e; e = e->next)
		if (e->pending && !ring_at(e, 0)->hosts && ring_at(e, 0)->cost > most)
			most = ring_at(e, 0)->cost;
	return most < g->longest_ns ? g->longest_ns : most;
}

void gs_marker_sound(struct gs_gpu *g, uint64_t now)
{
	for (struct gs_stream *e = g->streams; e; e = e->next) {
		gs_marker_look(e);
		if (!atomic_load(&e->opened) || e->thread || !e->context || e->pending >= GS_MARKERS / 2)
			continue;
		gs_marker_add(e, e->context, NULL, 0, 0, now);
		e->now.uneven = true;
		tail(e, now);
	}
}

bool gs_marker_older(const struct gs_gpu *g, uint64_t than)
{
	for (struct gs_stream *e = g->streams; e; e = e->next)
		if (e->pending && ring_at(e, 0)->recorded_ns < than)
			return true;
	return false;
}

/* Another thread cannot ask about a thread's own stream, nor about any stream while
 * a capture may be under way. There the launches count. */
bool gs_marker_idle(struct gs_gpu *g)
{
	CUcontext popped;

	for (struct gs_stream *e = g->streams; e; e = e->next) {
		CUcontext c = e->context ? atomic_load(&e->context->handle) : NULL;
		if (!atomic_load(&e->opened) || !c)
			continue;
		if (e->thread || atomic_load(&gs_captures) || !gs_real.cuStreamQuery || gs_real.cuCtxPushCurrent_v2(c))
			return false;
		CUresult r = gs_real.cuStreamQuery(e->stream);
		gs_real.cuCtxPopCurrent_v2(&popped);
		if (r == CUDA_ERROR_NOT_READY)
			return false;
		if (r) { /* not asked again before the next launch: the stream may be gone */
			atomic_store(&e->opened, false);
			refused(e, e->context, r, gs_now());
		}
	}
	return true;
}

/* ---- ends ---- */

void gs_marker_forget(struct gs_stream *e)
{
	e->queued = 0;
	e->pending = 0;
	memset(&e->now, 0, sizeof e->now);
	memset(&e->passed, 0, sizeof e->passed);
	e->passed_ns = 0;
}

void gs_marker_to_strays(struct gs_stream *e)
{
	struct gs_stream *to = gs_strays(e->gpu);

	to->queued += e->queued;
	if (e->now.launches && to->now.launches) { /* one tail will do for both */
		to->now.launches += e->now.launches;
		to->now.real += e->now.real;
		to->now.cost += e->now.cost;
	} else if (e->now.launches) {
		to->now = e->now;
	}
	to->now.uneven = true;
	memset(&e->now, 0, sizeof e->now);
	event_give(&e->passed);
	while (e->pending && to->pending < GS_MARKERS) {
		*ring_at(to, to->pending++) = *ring_at(e, 0);
		e->head = (e->head + 1) % GS_MARKERS;
		e->pending--;
	}
	gs_marker_forget(e); /* what had no room */
}

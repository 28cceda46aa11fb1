/* The threads that launch, the contexts they launch from, and the streams they
 * launch on. All three have a bound. What does not fit is governed together. */
#include "streams/streams.h"

#include <string.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/driver.h"
#include "streams/markers.h"
#include "trace/trace.h"

static struct gs_context contexts[GS_CONTEXTS];
static _Atomic unsigned contexts_known, contexts_used; /* used: no context's place lies beyond */
static struct gs_stream streams[GS_STREAMS];
static unsigned streams_used; /* guarded by table */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- threads ---- */

static void release(struct gs_gpu *g, struct gs_stream **link);

/* From now on the thread launches on another GPU; -1: on none. */
static void moves(struct gs_thread *t, int gpu)
{
	int old = atomic_load(&t->gpu);

	if (old == gpu)
		return;
	if (old >= 0) {
		struct gs_gpu *g = &gs_gates[old];
		pthread_mutex_lock(&g->lock);
		gs_stream_settle(t, gs_now());
		uint64_t made = atomic_load(&t->seq) / 2 - atomic_load(&t->elsewhere);
		atomic_store(&t->gpu, -1);
		atomic_fetch_add(&g->gone, made);
		atomic_fetch_add(&t->elsewhere, made);
		pthread_mutex_unlock(&g->lock);
	}
	atomic_store(&t->gpu, gpu);
}

void gs_stream_settle(struct gs_thread *t, uint64_t now)
{
	struct gs_stream *e = atomic_load(&t->entry);
	uint64_t made = atomic_load(&t->seq) / 2, n = made - t->counted;

	if (made < t->counted) /* the thread is about to leave that launch */
		return;
	t->counted = made;
	if (!n || !e || !e->context || e->gpu->phase == GS_UNGATED)
		return;
	gs_marker_add(e, e->context, NULL, (uint32_t)n, n * (e->cost ? e->cost : 1), now);
}

void gs_stream_settle_graphs(struct gs_thread *t, uint64_t now)
{
	struct gs_stream *e = atomic_load(&t->entry);
	uint32_t spent = t->graphs_spent;

	t->graphs_ns = t->graphs_spent = 0;
	if (!spent || !e || !e->context || e->stream != t->stream)
		return;
	gs_marker_add(e, e->context, NULL, 0, spent, now);
	e->now.uneven = true;
}

uint64_t gs_stream_beside(const struct gs_stream *e, bool under_way)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++)
		if (&gs_threads[i] != gs_self && atomic_load(&gs_threads[i].entry) == e)
			n += (atomic_load(&gs_threads[i].seq) + under_way) / 2;
	return n;
}

void gs_streams_opened(struct gs_gpu *g)
{
	for (unsigned i = 0; i < atomic_load(&gs_threads_used); i++) {
		struct gs_stream *e = atomic_load(&gs_threads[i].entry);
		if (e && e->gpu == g)
			atomic_store(&e->opened, true);
	}
}

/* The thread's bytes so far belong to the GPU on which they were copied. */
void gs_copies_settle(struct gs_thread *t)
{
	int gpu = atomic_load(&t->copies_gpu);

	t->copies_generation = 0;
	if (gpu < 0)
		return;
	pthread_mutex_lock(&gs_gates[gpu].lock);
	gs_gates[gpu].copied += atomic_load(&t->copied);
	atomic_store(&t->copied, 0);
	atomic_store(&t->copies_gpu, -1);
	pthread_mutex_unlock(&gs_gates[gpu].lock);
}

static _Atomic uint64_t ends; /* of threads that had a place */

static struct gs_thread none; /* stands for the place of a thread that has none */

/* A thread's own streams go with it. */
static void ended(void *value)
{
	struct gs_thread *t = value;

	gs_launch_over(t != &none ? t : NULL);
	if (t == &none)
		return;
	gs_copies_settle(t);
	moves(t, -1);
	for (unsigned i = 0; i < GS_GPUS; i++) {
		struct gs_gpu *g = &gs_gates[i];
		pthread_mutex_lock(&g->lock);
		for (struct gs_stream **p = &g->streams; *p;)
			if ((*p)->thread == t)
				release(g, p);
			else
				p = &(*p)->next;
		pthread_mutex_unlock(&g->lock);
	}
	gs_self = NULL;
	atomic_store(&t->entry, NULL);
	t->generation = 0;
	t->spare = 0;
	atomic_store(&t->taken, false);
	atomic_fetch_add(&ends, 1);
}

static void prepare(void)
{
	if (pthread_key_create(&ending, ended))
		atomic_fetch_add(&gs_errors, 1);
}

struct gs_thread *gs_thread_of_self(void)
{
	static _Thread_local uint64_t crowded; /* 1 + the number of threads that had ended when no place was left */

	if (gs_self)
		return gs_self;
	if (crowded == atomic_load(&ends) + 1)
		return NULL;
	pthread_once(&once, prepare);
	for (unsigned i = 0; i < GS_THREADS; i++) {
		struct gs_thread *t = &gs_threads[i];
		if (atomic_load_explicit(&t->taken, memory_order_relaxed) || atomic_exchange(&t->taken, true))
			continue;
		atomic_store(&t->gpu, -1); /* before any thread looks at it */
		atomic_store(&t->copies_gpu, -1);
		unsigned used = atomic_load(&gs_threads_used);
		while (used < i + 1 && !atomic_compare_exchange_weak(&gs_threads_used, &used, i + 1))
			;
		if (pthread_setspecific(ending, t)) {
			atomic_store(&t->taken, false);
			return NULL;
		}
		return gs_self = t;
	}
	crowded = atomic_load(&ends) + 1;
	pthread_setspecific(ending, &none);
	return NULL;
}

/* ---- contexts ---- */

struct gs_context *gs_context_of(CUcontext c)
{
	unsigned used = atomic_load_explicit(&contexts_used, memory_order_acquire);

	for (unsigned i = 0; i < used; i++)
		if (atomic_load_explicit(&contexts[i].handle, memory_order_acquire) == c)
			return &contexts[i];
	struct gs_context *free = NULL;
	pthread_mutex_lock(&table);
	for (unsigned i = 0; i < GS_CONTEXTS; i++) {
		CUcontext handle = atomic_load(&contexts[i].handle);
		if (handle == c) {
			pthread_mutex_unlock(&table);
			return &contexts[i];
		}
		if (!handle && !free)
			free = &contexts[i];
	}
	if (free) {
		free->spares = 0;
		atomic_store(&free->lost, false);
		atomic_store(&free->gpu, NULL);
		atomic_store(&free->handle, c);
		if (atomic_load(&contexts_used) <= (unsigned)(free - contexts))
			atomic_store(&contexts_used, (unsigned)(free - contexts) + 1);
		atomic_fetch_add(&contexts_known, 1);
		atomic_fetch_add(&gs_generation, 1);
	}
	pthread_mutex_unlock(&table);
	return free;
}

struct gs_context *gs_context_current(void)
{
	CUcontext c = NULL;

	if (!gs_real.cuCtxGetCurrent || gs_real.cuCtxGetCurrent(&c) || !c)
		return NULL;
	struct gs_context *known = gs_context_of(c);
	if (known && !atomic_load(&known->gpu)) {
		int gpu = gs_gpu_current();
		if (gpu < 0 || gpu >= GS_GPUS)
			return NULL;
		atomic_store(&known->gpu, &gs_gates[gpu]);
	}
	return known;
}

bool gs_contexts_one(void) { return atomic_load(&contexts_known) == 1; }

void gs_gate_context_destroyed(CUcontext c)
{
	for (unsigned i = 0; c && i < GS_CONTEXTS; i++) {
		struct gs_context *known = &contexts[i];
		if (atomic_load(&known->handle) != c)
			continue;
		struct gs_gpu *g = atomic_load(&known->gpu);
		if (g) {
			pthread_mutex_lock(&g->lock);
			gs_marker_forget(gs_strays(g)); /* and those of other contexts: they are soon done */
			for (struct gs_stream **p = &g->streams; *p;)
				if ((*p)->context == known) {
					gs_marker_forget(*p);
					release(g, p);
				} else {
					p = &(*p)->next;
				}
			known->spares = 0;
			pthread_mutex_unlock(&g->lock);
		}
		atomic_fetch_add(&gs_generation, 1);
		atomic_fetch_sub(&contexts_known, 1);
		atomic_store(&known->handle, NULL);
	}
}

/* ---- streams ---- */

/* Takes the entry out of its list. Its generation ends, so that no thread takes it
 * for the stream's any more. */
static void release(struct gs_gpu *g, struct gs_stream **link)
{
	struct gs_stream *e = *link;

	gs_marker_to_strays(e);
	atomic_fetch_add(&gs_generation, 1);
	*link = e->next;
	e->stream = NULL;
	e->context = NULL;
	e->thread = NULL;
	e->next = g->spare;
	g->spare = e;
}

/* A fresh entry, or the one for strays if none is left. */
static struct gs_stream *entry_new(struct gs_gpu *g, struct gs_context *c, CUstream s, struct gs_thread *t)
{
	struct gs_stream *e = g->spare;

	if (e) {
		g->spare = e->next;
	} else {
		pthread_mutex_lock(&table);
		e = streams_used < GS_STREAMS ? &streams[streams_used++] : NULL;
		pthread_mutex_unlock(&table);
	}
	if (!e)
		return gs_strays(g);
	memset(e, 0, sizeof *e);
	e->gpu = g;
	e->context = c;
	e->stream = s;
	e->thread = t;
	e->next = g->streams;
	g->streams = e;
	return e;
}

/* The entry of a stream, which is made if there is none. The GPU is locked. */
static struct gs_stream *entry_of(struct gs_gpu *g, struct gs_context *c, CUstream s, struct gs_thread *own)
{
	struct gs_stream *e = g->streams;

	while (e && (e->context != c || e->stream != s || e->thread != own))
		e = e->next;
	return e ? e : entry_new(g, c, s, own);
}

struct gs_stream *gs_stream_of(struct gs_thread *t, CUstream s)
{
	struct gs_stream *known = t ? atomic_load(&t->entry) : NULL;

	if (known && t->stream == s && t->generation == atomic_load(&gs_generation))
		return known;
	if (known && t->graphs_spent) {
		gs_gpu_lock(known->gpu);
		gs_stream_settle_graphs(t, gs_now());
		pthread_mutex_unlock(&known->gpu->lock);
	}
	struct gs_context *c = gs_context_current();
	int gpu = c ? (int)gs_gpu_index(atomic_load(&c->gpu)) : gs_gpu_current();
	if (gpu < 0 || gpu >= GS_GPUS)
		return NULL;
	if (!t || !c) { /* there are too many threads or contexts */
		if (t)
			moves(t, gpu);
		return gs_strays(&gs_gates[gpu]);
	}
	uint64_t generation = atomic_load(&gs_generation);
	if (t->generation != generation || atomic_load(&t->gpu) != gpu)
		memset(t->known, 0, sizeof t->known); /* a graph may be gone by now, or have another cost here */
	struct gs_gpu *g = &gs_gates[gpu];
	struct gs_thread *own = s == CU_STREAM_PER_THREAD ? t : NULL;
	moves(t, gpu);
	pthread_mutex_lock(&g->lock);
	gs_stream_settle(t, gs_now());
	struct gs_stream *e = entry_of(g, c, s, own);
	pthread_mutex_unlock(&g->lock);
	/* Streams without an object are another context's once that is made
	 * current, and no call tells of it. They are known by their handle only
	 * while there is one context. */
	bool sure = (s && s != CU_STREAM_PER_THREAD) || gs_contexts_one();
	bool keep = sure && !gs_fences && !e->stray && atomic_load(&g->seated); /* before the helper, fences are not known */
	atomic_store(&t->entry, keep ? e : NULL);
	t->stream = s;
	t->generation = keep ? generation : 0;
	t->graphs_ns = t->graphs_spent = 0;
	return e;
}

void gs_stream_hosted(struct gs_thread *t, struct gs_context *c, CUstream s)
{
	struct gs_gpu *g = atomic_load(&c->gpu);
	struct gs_stream *e = atomic_load(&t->entry);

	if (!e || t->stream != s || t->generation != atomic_load(&gs_generation)) {
		gs_gpu_lock(g);
		e = entry_of(g, c, s, s == CU_STREAM_PER_THREAD ? t : NULL);
		pthread_mutex_unlock(&g->lock);
	}
	if (!e->stray)
		atomic_store(&e->hosted, true);
}

void gs_gate_stream_destroyed(CUstream s)
{
	if (!s || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD)
		return;
	for (unsigned i = 0; i < GS_GPUS; i++) {
		struct gs_gpu *g = &gs_gates[i];
		pthread_mutex_lock(&g->lock);
		for (struct gs_stream **p = &g->streams; *p;)
			if ((*p)->stream == s) {
				for (unsigned t = 0; t < atomic_load(&gs_threads_used); t++)
					if (atomic_load(&gs_threads[t].entry) == *p)
						gs_stream_settle(&gs_threads[t], gs_now());
				if ((*p)->now.launches || ((*p)->gpu->uncounted && atomic_load(&(*p)->opened)))
					gs_marker_record(*p, s, gs_now());
				release(g, p);
			} else {
				p = &(*p)->next;
			}
		pthread_mutex_unlock(&g->lock);
	}
}

void gs_gate_capture(CUstream s, bool begins)
{
	(void)s;
	if (!begins) {
		unsigned n = atomic_load(&gs_captures);
		while (n && !atomic_compare_exchange_weak(&gs_captures, &n, n - 1))
			;
		return;
	}
	atomic_fetch_add(&gs_captures, 1);
	/* A thread that records now ends that before the capture begins. One that
	 * comes later asks the stream. */
	for (unsigned i = 0; i < GS_GPUS; i++) {
		pthread_mutex_lock(&gs_gates[i].lock);
		pthread_mutex_unlock(&gs_gates[i].lock);
	}
}

/* ---- the end of a launch ---- */

_Thread_local struct gs_launch gs_present;

/* The launch was made, or refused. It is booked, and marked if that is due and the
 * thread still can. */
static void mark(const struct gs_launch *l, CUresult r, bool can)
{
	struct gs_stream *e = l->entry;
	struct gs_gpu *g = e->gpu;
	struct gs_context *c = e->stray ? gs_context_current() : e->context;

	gs_gpu_lock(g);
	if (l->seq)
		gs_self->counted = l->seq / 2 + 1;
	if (!r && c && (e->stray || e->stream == l->stream)) {
		uint64_t now = gs_now();
		gs_marker_add(e, c, l->graph, 1, l->cost, now);
		if (l->timed_ns && can) {
			bool one = l->beside == gs_stream_beside(e, true);
			gs_marker_time(e, l->stream, one ? gs_note_id(l->what) : 0, l->timed_ns, now);
		} else if (can && gs_marker_due(e)) {
			gs_marker_look(e);
			gs_marker_record(e, l->stream, now);
		}
	}
	pthread_mutex_unlock(&g->lock);
}

static void crowd_left(struct gs_gpu *g)
{
	atomic_fetch_add(&g->crowd, 1);
	atomic_fetch_sub_explicit(&g->crowded, 1, memory_order_release);
}

void gs_gate_left(struct gs_launch *l, CUresult r)
{
	GS_UNCANCELLED;
	if (gs_present.seq != l->seq || gs_present.crowd != l->crowd)
		return; /* it is settled, or this is the child of a fork in it */
	gs_present = (struct gs_launch){ 0 };
	if (l->entry)
		mark(l, r, true);
	if (l->crowd)
		crowd_left(l->crowd);
}

void gs_launch_over(struct gs_thread *t)
{
	uint64_t seq = t ? atomic_load_explicit(&t->seq, memory_order_relaxed) : 0;

	if (!(seq & 1) && !gs_present.crowd)
		return;
	struct gs_launch l = gs_present;
	gs_present = (struct gs_launch){ 0 };
	if (l.entry && (l.crowd || l.seq == seq))
		mark(&l, 0, false);
	if (l.crowd)
		crowd_left(l.crowd);
	if (seq & 1)
		atomic_store_explicit(&t->seq, seq + 1, memory_order_release);
}

/* ---- fork ---- */

/* A program that never launched before the fork pays nothing. */
void gs_forked_streams(void)
{
	gs_present = (struct gs_launch){ 0 };
	if (!atomic_load(&gs_threads_used) && !atomic_load(&contexts_known))
		return;
	memset(gs_gates, 0, sizeof gs_gates);
	memset(gs_threads, 0, atomic_load(&gs_threads_used) * sizeof *gs_threads);
	atomic_store(&gs_threads_used, 0);
	memset(contexts, 0, sizeof contexts);
	streams_used = 0;
	atomic_store(&contexts_known, 0);
	atomic_store(&contexts_used, 0);
	atomic_store(&gs_captures, 0);
	atomic_fetch_add(&gs_generation, 1);
	pthread_mutex_init(&table, NULL);
	for (unsigned i = 0; i < GS_GPUS; i++)
		pthread_mutex_init(&gs_gates[i].lock, NULL);
	if (gs_self)
		pthread_setspecific(ending, NULL);
	gs_self = NULL;
}

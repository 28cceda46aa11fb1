/* Communicators: which processes wait for each other, and for how long. NCCL's
 * calls are noted and passed on. The broker is told the communicator's identity for
 * the GPU, so that it can hold back and release the ranks of a job together. The
 * trace gets each collective, and how long it took on the GPU, between two events
 * around it on the stream: the rank for which the others wait has the shortest. The
 * first event also tells whether the GPU has come to the collective at all. Few of many
 * are measured, so a mark stands where another stream waits for the last one: a GPU whose
 * kernel has no end does not come there.
 *
 * The library is the one that the program's caller would find. */
#define _GNU_SOURCE
#include "gate/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/devices.h"
#include "base/driver.h"
#include "base/sys.h"
#include "gate/turns.h"
#include "streams/work.h"
#include "trace/trace.h"

#define NCCL_SYSTEM_ERROR 2
#define NCCL_IN_PROGRESS 7

#define PERIOD_NS 1000000000 /* in each of which */
#define MEASURED 200        /* calls are measured, about, for each reason: each costs the program two events */
#define MEASURES 256        /* under way at a time: so many for four reasons between two looks of the helper at rest */
#define PAUSE_NS 1000000    /* without a collective: what comes next is the first of others */

struct id { char bytes[128]; }; /* ncclUniqueId, passed by value */

/* ---- NCCL's own functions ---- */

/* The functions that are ours. In order of their names in the library's header. */
#define GS_NCCL(X)                                                                                                   \
	X(ncclCommInitRank, (void **, int, struct id, int))                                                          \
	X(ncclCommInitRankConfig, (void **, int, struct id, int, void *))                                            \
	X(ncclCommInitRankScalable, (void **, int, int, int, struct id *, void *))                                   \
	X(ncclCommInitAll, (void **, int, const int *))                                                              \
	X(ncclCommSplit, (void *, int, int, void **, void *))                                                        \
	X(ncclCommDestroy, (void *))                                                                                 \
	X(ncclCommAbort, (void *))                                                                                   \
	X(ncclGroupStart, (void))                                                                                    \
	X(ncclGroupEnd, (void))                                                                                      \
	X(ncclAllReduce, (const void *, void *, size_t, int, int, void *, CUstream))                                 \
	X(ncclBroadcast, (const void *, void *, size_t, int, int, void *, CUstream))                                 \
	X(ncclBcast, (void *, size_t, int, int, void *, CUstream))                                                   \
	X(ncclReduce, (const void *, void *, size_t, int, int, int, void *, CUstream))                               \
	X(ncclAllGather, (const void *, void *, size_t, int, void *, CUstream))                                      \
	X(ncclReduceScatter, (const void *, void *, size_t, int, int, void *, CUstream))                             \
	X(ncclAlltoAll, (const void *, void *, size_t, int, void *, CUstream))                                       \
	X(ncclGather, (const void *, void *, size_t, int, int, void *, CUstream))                                    \
	X(ncclScatter, (const void *, void *, size_t, int, int, void *, CUstream))                                   \
	X(ncclSend, (const void *, size_t, int, int, void *, CUstream))                                              \
	X(ncclRecv, (void *, size_t, int, int, void *, CUstream))

#define DECLARE(name, types) GS_EXPORT int name types;
GS_NCCL(DECLARE)

enum call {
#define NUMBER(name, types) call_##name,
	GS_NCCL(NUMBER)
	CALLS,
};

static struct {
	const char *name;
	void *wrapper;
	_Atomic(void *) real;
} calls[] = {
#define ROW(name, types) {#name, (void *)name, NULL},
	GS_NCCL(ROW)
};

static void *find(const char *name)
{
	GS_ERRNO;
	void *f = gs_dlsym(RTLD_NEXT, name), *nccl;

	if (!f && ((nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD)) ||
		   (nccl = dlopen("libnccl.so", RTLD_LAZY | RTLD_NOLOAD))))
		f = gs_dlsym(nccl, name);
	return f;
}

static void *real(enum call c)
{
	void *f = atomic_load_explicit(&calls[c].real, memory_order_acquire);

	if (unlikely(!f)) {
		f = find(calls[c].name);
		atomic_store_explicit(&calls[c].real, f, memory_order_release);
	}
	return f;
}

/* The result of NCCL's own function of that name. */
#define REAL(name, types, ...)                                        \
	({                                                            \
		void *found = real(call_##name);                      \
		int(*own) types;                                      \
		memcpy(&own, &found, sizeof own);                     \
		found ? own(__VA_ARGS__) : NCCL_SYSTEM_ERROR;         \
	})

/* A program that loads NCCL itself asks dlsym. The library that it names counts
 * from then on. */
bool gs_nccl_resolve(void *handle, const char *name, void **answer)
{
	for (enum call c = 0; c < CALLS; c++) {
		if (strcmp(name, calls[c].name) != 0 || gs_intercept_off())
			continue;
		void *at = gs_dlsym(handle, name);
		if (at == calls[c].wrapper) /* the search began with us */
			at = gs_dlsym(RTLD_NEXT, name);
		if (at)
			atomic_store_explicit(&calls[c].real, at, memory_order_release);
		*answer = at ? calls[c].wrapper : NULL;
		return true;
	}
	return false;
}

/* ---- communicators ---- */

/* Guards what follows. It is not held where the driver may wait for the GPU. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A communicator, and its place in the trace. */
static struct communicator {
	void *comm; /* NULL: free */
	uint64_t id;
	uint32_t rank, ranks; /* ranks 0: not known yet */
	int gpu;
	uint64_t splits; /* of it: all its ranks split it in the same order */
	uint64_t entered, entered_ticks, begun, unbegun, ended, bytes, measured, measured_ns, reached, unreached;
	enum gs_collective op;
	struct gs_peer peer[GS_PEERS];
	uint32_t inside, before;
	uint64_t exchanges;
	uint64_t marks, marked;        /* collectives for which another stream waited, and the last one */
	uint64_t waits, called_ns;     /* gs_waits and the time at the last collective */
	bool numbered, first;          /* what was called since the last chance to measure it: a collective, the first one */
	uint32_t with;                 /* after a wait or a pause, and exchanges with the peers of these bits */
} communicators[GS_COMMUNICATORS];

_Atomic(void *) gs_nccl_unmarked;
_Atomic(CUstream) gs_nccl_stream;

/* A call that the GPU is not known to be done with, or a mark to which it has not come. */
static struct measure {
	CUevent begin, end; /* kept for the next one; NULL: none yet */
	CUcontext context;  /* theirs */
	struct communicator *of; /* NULL: free */
	bool open;          /* a thread records the events */
	bool begun;         /* on the GPU */
	bool counts;        /* its time is told: all ranks measure it */
	bool mark;          /* it has no end */
	uint64_t number;    /* of the collective in its communicator, for a mark the last one; 0: it is an exchange */
	uint32_t with;      /* the peers of these bits */
} measures[MEASURES];

/* Why calls are measured: the collectives whose numbers all ranks agree on; the first ones after a wait or a pause,
 * before which a GPU stands if a kernel does not end; exchanges, which tell for whom a GPU waits. And marks. */
static struct rate {
	uint64_t since; /* when the period began */
	unsigned taken; /* measures in it */
	uint64_t every; /* one of so many calls is measured: a power of two, so that ranks measure the same ones */
} numbered = {.every = 1}, firsts = {.every = 1}, exchanges = {.every = 1}, marks = {.every = 1};

/* Calls of a group are made at its end. */
static _Thread_local struct {
	int depth;
	struct communicator *last; /* with the last call of the group; NULL: none */
	CUstream stream;
} group;

void gs_forked_nccl(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	memset(communicators, 0, sizeof communicators);
	memset(measures, 0, sizeof measures);
	group.last = NULL;
	atomic_store(&gs_nccl_unmarked, NULL);
}

/* FNV-1a: the identity is random unless it is an address. */
static uint64_t hash(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t h = 14695981039346656037u;

	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 1099511628211u;
	return h ? h : 1;
}

/* With the lock held. */
static struct communicator *known(void *comm)
{
	for (struct communicator *c = communicators; comm && c < communicators + GS_COMMUNICATORS; c++)
		if (c->comm == comm)
			return c;
	return NULL;
}

/* Writes the communicator's place in the trace anew: the trace may be a new session's. With the lock held. */
static void show(const struct communicator *c)
{
	struct gs_trace *t = atomic_load(&gs_trace);

	if (!t)
		return;
	struct gs_communicator *to = &t->communicator[c - communicators];
	to->id = c->comm ? c->id : 0;
	to->rank = c->rank;
	to->ranks = c->ranks;
	to->gpu = (uint32_t)c->gpu;
	to->bytes = c->bytes;
	to->begun = c->begun;
	to->unbegun = c->unbegun;
	memcpy(to->peer, c->peer, sizeof to->peer);
	to->inside = c->inside;
	to->before = c->before;
	to->reached = (uint32_t)c->reached;
	to->unreached = (uint32_t)c->unreached;
	to->ended = c->ended;
	to->measured = c->measured;
	to->measured_ns = c->measured_ns;
	to->op = c->op;
	to->entered_ticks = c->entered_ticks;
	__atomic_store_n(&to->entered, c->entered, __ATOMIC_RELEASE);
}

/* The communicator's place, or a free one; NULL: all are taken. With the lock held. */
static struct communicator *place_for(void *comm)
{
	struct communicator *c = known(comm); /* its end went unseen */

	for (c = c ? c : communicators; c < communicators + GS_COMMUNICATORS; c++)
		if (!c->comm || c->comm == comm)
			return c;
	return NULL;
}

/* One rank alone waits for nobody. */
static void joined(void *comm, uint64_t id, int rank, int ranks, int gpu)
{
	GS_UNCANCELLED;

	if (gpu < 0 || gpu >= GS_GPUS || ranks == 1)
		return;
	gs_gpu_lock(&gs_gates[gpu]);
	gs_turns_group(&gs_gates[gpu], id);
	pthread_mutex_unlock(&gs_gates[gpu].lock);
	pthread_mutex_lock(&lock);
	struct communicator *c = place_for(comm);
	if (c) {
		*c = (struct communicator){.comm = comm, .id = id, .rank = (uint32_t)rank, .ranks = (uint32_t)ranks,
					   .gpu = gpu};
		show(c);
	}
	pthread_mutex_unlock(&lock);
}

static bool made(int r) { return !r || r == NCCL_IN_PROGRESS; }

int ncclCommInitRank(void **comm, int ranks, struct id id, int rank)
{
	int r = REAL(ncclCommInitRank, (void **, int, struct id, int), comm, ranks, id, rank);
	if (made(r))
		joined(*comm, hash(&id, sizeof id), rank, ranks, gs_gpu_current());
	return r;
}

int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, void *config)
{
	int r = REAL(ncclCommInitRankConfig, (void **, int, struct id, int, void *), comm, ranks, id, rank, config);
	if (made(r))
		joined(*comm, hash(&id, sizeof id), rank, ranks, gs_gpu_current());
	return r;
}

int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, struct id *id, void *config)
{
	int r = REAL(ncclCommInitRankScalable, (void **, int, int, int, struct id *, void *), comm, ranks, rank, ids,
		     id, config);
	if (made(r) && id && ids > 0)
		joined(*comm, hash(id, sizeof *id), rank, ranks, gs_gpu_current());
	return r;
}

/* One process with several GPUs. */
int ncclCommInitAll(void **comms, int count, const int *devices)
{
	int r = REAL(ncclCommInitAll, (void **, int, const int *), comms, count, devices);
	for (int i = 0; !r && i < count; i++)
		joined(comms[i], (uint64_t)(uintptr_t)comms[0] ^ (uint64_t)GS_SYS(SYS_getpid) << 40, i, count,
		       gs_gpu_of_device(devices ? devices[i] : i));
	return r;
}

/* 0: not known yet, because the communicator is still being made. */
static int number(const char *name, void *comm)
{
	void *found = find(name);
	int (*own)(void *, int *), n = 0;

	memcpy(&own, &found, sizeof own);
	return found && !own(comm, &n) ? n : 0;
}

static void ask(struct communicator *c)
{
	c->rank = (uint32_t)number("ncclCommUserRank", c->comm);
	c->ranks = (uint32_t)number("ncclCommCount", c->comm);
}

/* All ranks of the parent make the call, in the same order, and those of one color get a communicator. */
int ncclCommSplit(void *comm, int color, int key, void **child, void *config)
{
	uint64_t from[3] = {0, 0, (uint64_t)(int64_t)color};
	int gpu = -1;

	pthread_mutex_lock(&lock);
	struct communicator *c = known(comm);
	if (c) {
		from[0] = c->id;
		from[1] = c->splits++;
		gpu = c->gpu;
	}
	pthread_mutex_unlock(&lock);
	int r = REAL(ncclCommSplit, (void *, int, int, void **, void *), comm, color, key, child, config);
	if (made(r) && *child && from[0])
		joined(*child, hash(from, sizeof from), number("ncclCommUserRank", *child),
		       number("ncclCommCount", *child), gpu);
	return r;
}

static void left(void *comm)
{
	GS_UNCANCELLED;

	pthread_mutex_lock(&lock);
	struct communicator *c = known(comm);
	if (c) {
		for (struct measure *m = measures; m < measures + MEASURES; m++)
			if (m->of == c)
				m->of = NULL;
		if (atomic_load(&gs_nccl_unmarked) == c)
			atomic_store(&gs_nccl_unmarked, NULL);
		c->comm = NULL;
		show(c);
	}
	pthread_mutex_unlock(&lock);
}

int ncclCommDestroy(void *comm)
{
	left(comm);
	return REAL(ncclCommDestroy, (void *), comm);
}

int ncclCommAbort(void *comm)
{
	left(comm);
	return REAL(ncclCommAbort, (void *), comm);
}

/* ---- collectives ---- */

/* Whether the call of this number is measured. With the lock held. */
static bool due(struct rate *r, uint64_t number)
{
	uint64_t now = gs_now();

	if (now - r->since >= PERIOD_NS) {
		for (; r->taken > MEASURED; r->taken /= 2)
			r->every *= 2;
		if (r->taken < MEASURED / 4 && r->every > 1)
			r->every /= 2;
		r->since = now;
		r->taken = 0;
	}
	if (number % r->every)
		return false;
	r->taken++;
	return true;
}

static bool events(struct measure *m)
{
	CUcontext now = NULL;

	if (!gs_real.cuCtxGetCurrent || gs_real.cuCtxGetCurrent(&now) || !now)
		return false;
	if (m->begin && m->context != now) {
		gs_real.cuEventDestroy_v2(m->begin);
		gs_real.cuEventDestroy_v2(m->end);
		m->begin = NULL;
	}
	if (!m->begin && !gs_real.cuEventCreate(&m->begin, CU_EVENT_DEFAULT) && gs_real.cuEventCreate(&m->end, CU_EVENT_DEFAULT)) {
		gs_real.cuEventDestroy_v2(m->begin);
		m->begin = NULL;
	}
	m->context = now;
	return m->begin;
}

/* Ranks agree on a collective's number alone: one may wait or pause where another does not. Steps repeat a count of
 * collectives, so that the first ones of steps may all have odd numbers. */
static uint64_t mixed(uint64_t number) { return number * 0x9e3779b97f4a7c15u >> 32; }

/* Whether the communicator's last call is measured, and *counts for all to see. With the lock held. */
static bool chosen(struct communicator *c, bool *counts)
{
	bool first = c->first && due(&firsts, mixed(c->entered));

	*counts = c->numbered && due(&numbered, c->entered);
	return *counts || first || (!c->numbered && c->with && due(&exchanges, ++c->exchanges));
}

/* A free measure, open; NULL: there is none. The one taken longest ago is most likely free. With the lock held. */
static struct measure *take(struct communicator *c, uint64_t number)
{
	static unsigned next;

	for (unsigned tries = 0; tries < MEASURES; tries++) {
		struct measure *m = &measures[next++ % MEASURES];
		if (!m->of && !m->open) {
			m->of = c;
			m->open = true;
			m->begun = m->counts = m->mark = false;
			m->number = number;
			m->with = 0;
			return m;
		}
	}
	return NULL;
}

/* A measure for the communicator's last call; NULL: that is not measured. With the lock held. */
static struct measure *take_for_call(struct communicator *c)
{
	bool counts;
	struct measure *m = chosen(c, &counts) ? take(c, c->numbered ? c->entered : 0) : NULL;

	if (m) {
		m->counts = counts;
		m->with = c->with;
	}
	c->numbered = c->first = false;
	c->with = 0;
	return m;
}

static void drop(struct measure *m)
{
	pthread_mutex_lock(&lock);
	m->of = NULL;
	m->open = false;
	pthread_mutex_unlock(&lock);
}

/* Puts the first event on the stream, before the communicator's last call. */
static struct measure *begin(struct communicator *c, CUstream s)
{
	GS_UNCANCELLED;

	if (!atomic_load(&gs_trace) || gs_stream_captures(s))
		return NULL;
	pthread_mutex_lock(&lock);
	struct measure *m = take_for_call(c);
	pthread_mutex_unlock(&lock);
	if (m && (!events(m) || gs_real.cuEventRecord(m->begin, s))) {
		drop(m);
		return NULL;
	}
	return m;
}

static void record_ended(struct measure *m)
{
	pthread_mutex_lock(&lock);
	m->open = false;
	pthread_mutex_unlock(&lock);
}

/* Puts the second event on the stream, after the call. */
static void finish(struct measure *m, CUstream s, int r)
{
	GS_UNCANCELLED;

	if (!m)
		return;
	if (!made(r) || gs_real.cuEventRecord(m->end, s)) {
		drop(m);
		return;
	}
	record_ended(m);
}

/* A stream that waits from now on waits for this call. */
static void await_mark(struct communicator *c, CUstream s)
{
	atomic_store_explicit(&gs_nccl_stream, s, memory_order_relaxed);
	atomic_store_explicit(&gs_nccl_unmarked, c, memory_order_release);
}

/* Puts a mark on a stream before it waits for the last collective. */
void gs_nccl_mark(CUstream s)
{
	GS_UNCANCELLED;
	struct measure *m = NULL;

	if (!atomic_load(&gs_trace) || atomic_load(&gs_captures))
		return;
	pthread_mutex_lock(&lock);
	struct communicator *c = atomic_exchange(&gs_nccl_unmarked, NULL);
	if (c && c->comm && c->entered != c->marked) {
		c->marked = c->entered;
		if (due(&marks, ++c->marks) && (m = take(c, c->entered)))
			m->mark = true;
	}
	pthread_mutex_unlock(&lock);
	if (!m)
		return;
	if (!events(m) || gs_real.cuEventRecord(m->begin, s))
		drop(m);
	else
		record_ended(m);
}

static void done(struct measure *m, float ms)
{
	struct communicator *c = m->of;
	struct gs_trace *t = atomic_load(&gs_trace);

	if (c->ended < m->number)
		c->ended = m->number;
	if (!m->counts)
		return;
	c->measured++;
	c->measured_ns += (uint64_t)((double)ms * 1e6);
	if (t)
		gs_trace_put(t, GS_EVENT_COLLECTED, (unsigned)(c - communicators),
			     ms < 4e6f ? (uint32_t)(ms * 1000) : UINT32_MAX);
}

/* The GPU is in the call, or has not come to it. */
static void stands(const struct measure *m)
{
	struct communicator *c = m->of;
	uint64_t *first = m->mark ? &c->unreached : &c->unbegun;

	if (!m->number)
		*(m->begun ? &c->inside : &c->before) |= m->with;
	else if (!m->begun && (!*first || m->number < *first))
		*first = m->number;
}

/* The GPU has come to the call, or the mark. */
static void comes(struct measure *m)
{
	uint64_t *last = m->mark ? &m->of->reached : &m->of->begun;

	m->begun = true;
	if (*last < m->number)
		*last = m->number;
}

static void look(struct measure *m)
{
	CUresult r = m->begun ? CUDA_SUCCESS : gs_real.cuEventQuery(m->begin);
	float ms;

	if (!r) {
		comes(m);
		r = m->mark ? CUDA_SUCCESS : gs_real.cuEventQuery(m->end);
	}
	if (r == CUDA_ERROR_NOT_READY) {
		stands(m);
		return;
	}
	if (!r && !m->mark && !gs_real.cuEventElapsedTime(&ms, m->begin, m->end) && ms >= 0)
		done(m, ms);
	m->of = NULL;
}

/* All are shown: a new session's trace has none, and those in which the program hangs will not come again. */
void gs_nccl_look(void)
{
	if (pthread_mutex_trylock(&lock))
		return;
	for (struct communicator *c = communicators; c < communicators + GS_COMMUNICATORS; c++) {
		c->unbegun = c->unreached = 0;
		c->inside = c->before = 0;
	}
	for (struct measure *m = measures; m < measures + MEASURES; m++)
		if (m->of && !m->open)
			look(m);
	for (struct communicator *c = communicators; c < communicators + GS_COMMUNICATORS; c++)
		if (c->comm)
			show(c);
	pthread_mutex_unlock(&lock);
}

void gs_nccl_context_destroyed(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (struct measure *m = measures; m < measures + MEASURES; m++)
		if (!m->open && m->context == context) {
			m->of = NULL;
			m->begin = NULL;
		}
	pthread_mutex_unlock(&lock);
}

/* The bytes of one element, by ncclDataType_t. */
static uint64_t element(int type)
{
	static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

	return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 1;
}

static void note(const struct communicator *c, enum gs_collective op, uint64_t bytes)
{
	struct gs_trace *t = atomic_load(&gs_trace);

	if (t)
		gs_trace_put(t, GS_EVENT_COLLECTIVE, (unsigned)(c - communicators),
			     (uint32_t)hash((uint64_t[]){op, bytes}, 16));
}

/* Another communicator's call, for which the trace has no room, or one of a single rank. */
static void overlook(void *comm)
{
	struct gs_trace *t = atomic_load(&gs_trace);

	if (t && !place_for(comm))
		__atomic_fetch_add(&t->lost, 1, __ATOMIC_RELAXED);
}

/* Numbers a collective. */
static void number_next(struct communicator *c)
{
	uint64_t waits = atomic_load_explicit(&gs_waits, memory_order_relaxed), now = gs_now();

	c->entered++;
	c->numbered = true;
	c->first |= waits != c->waits || now - c->called_ns >= PAUSE_NS;
	c->waits = waits;
	c->called_ns = now;
}

/* Two ranks exchange what they send and receive in an order of their own, so only each pair's calls are counted. */
static void exchange(struct communicator *c, enum gs_collective op, int with)
{
	struct gs_peer *p = c->peer;

	while (p < c->peer + GS_PEERS && p->rank && p->rank != (uint32_t)with + 1)
		p++;
	if (p == c->peer + GS_PEERS)
		return;
	p->rank = (uint32_t)with + 1;
	p->sent += op == GS_SEND;
	p->received += op == GS_RECV;
	c->with |= 1u << (p - c->peer);
}

/* Counts and notes a call on the communicator, whether there is a trace or not: all ranks count the same. */
static struct communicator *enter(void *comm, enum gs_collective op, uint64_t bytes, int with)
{
	GS_UNCANCELLED;

	pthread_mutex_lock(&lock);
	struct communicator *c = known(comm);
	if (c) {
		atomic_store_explicit(&gs_nccl_unmarked, NULL, memory_order_relaxed); /* NCCL's own streams wait, too */
		if (op < GS_SEND)
			number_next(c);
		else
			exchange(c, op, with);
		c->bytes += bytes;
		c->op = op;
		c->entered_ticks = atomic_load(&gs_trace) ? gs_trace_ticks() : 0;
		if (!c->ranks)
			ask(c);
		show(c);
		note(c, op, bytes);
	} else {
		overlook(comm);
	}
	pthread_mutex_unlock(&lock);
	return c;
}

/* Defines the wrapper of a call with the rank "with". */
#define CALL(name, op, bytes, with, types, parameters, ...)                            \
	int name parameters                                                            \
	{                                                                              \
		struct communicator *c = enter(comm, op, (bytes) * element(type), with); \
		struct measure *m = NULL;                                              \
		if (c && !group.depth)                                                 \
			m = begin(c, s);                                               \
		int r = REAL(name, types, __VA_ARGS__);                                \
		finish(m, s, r);                                                       \
		if (c && !group.depth)                                                 \
			await_mark(c, s);                                              \
		if (c && group.depth) {                                                \
			group.last = c;                                                \
			group.stream = s;                                              \
		}                                                                      \
		return r;                                                              \
	}

#define COLLECTIVE(name, op, bytes, ...) CALL(name, op, bytes, -1, __VA_ARGS__)
#define BUFFERS const void *from, void *to, size_t count, int type
#define RANKED const void *, void *, size_t, int, int, void *, CUstream
#define PLAIN const void *, void *, size_t, int, void *, CUstream

COLLECTIVE(ncclAllReduce, GS_ALL_REDUCE, count, (RANKED), (BUFFERS, int how, void *comm, CUstream s), from, to, count,
	   type, how, comm, s)
COLLECTIVE(ncclBroadcast, GS_BROADCAST, count, (RANKED), (BUFFERS, int root, void *comm, CUstream s), from, to, count,
	   type, root, comm, s)
COLLECTIVE(ncclBcast, GS_BROADCAST, count, (void *, size_t, int, int, void *, CUstream),
	   (void *to, size_t count, int type, int root, void *comm, CUstream s), to, count, type, root, comm, s)
COLLECTIVE(ncclReduce, GS_REDUCE, count, (const void *, void *, size_t, int, int, int, void *, CUstream),
	   (BUFFERS, int how, int root, void *comm, CUstream s), from, to, count, type, how, root, comm, s)
COLLECTIVE(ncclAllGather, GS_ALL_GATHER, count, (PLAIN), (BUFFERS, void *comm, CUstream s), from, to, count, type, comm,
	   s)
COLLECTIVE(ncclReduceScatter, GS_REDUCE_SCATTER, count, (RANKED), (BUFFERS, int how, void *comm, CUstream s), from, to,
	   count, type, how, comm, s)
COLLECTIVE(ncclAlltoAll, GS_ALL_TO_ALL, count, (PLAIN), (BUFFERS, void *comm, CUstream s), from, to, count, type, comm,
	   s)
COLLECTIVE(ncclGather, GS_GATHER, count, (RANKED), (BUFFERS, int root, void *comm, CUstream s), from, to, count, type,
	   root, comm, s)
COLLECTIVE(ncclScatter, GS_SCATTER, count, (RANKED), (BUFFERS, int root, void *comm, CUstream s), from, to, count, type,
	   root, comm, s)
CALL(ncclSend, GS_SEND, count, peer, (const void *, size_t, int, int, void *, CUstream),
     (const void *from, size_t count, int type, int peer, void *comm, CUstream s), from, count, type, peer, comm, s)
CALL(ncclRecv, GS_RECV, count, peer, (void *, size_t, int, int, void *, CUstream),
     (void *to, size_t count, int type, int peer, void *comm, CUstream s), to, count, type, peer, comm, s)

int ncclGroupStart(void)
{
	group.depth++;
	return REAL(ncclGroupStart, (void));
}

int ncclGroupEnd(void)
{
	struct measure *m = NULL;
	struct communicator *c = NULL;
	CUstream s = group.stream;

	if (group.depth > 0 && --group.depth == 0 && group.last) {
		c = group.last;
		m = begin(c, s);
		group.last = NULL;
	}
	int r = REAL(ncclGroupEnd, (void));
	finish(m, s, r);
	if (c)
		await_mark(c, s);
	return r;
}

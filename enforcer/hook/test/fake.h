/* For the tests of the gate: a driver whose GPU does what the test says, and a
 * broker that is the test itself. It defines what the gate calls, so that the other
 * parts of the library stay out of the program. */
#ifndef GPUSTEWARD_FAKE_H
#define GPUSTEWARD_FAKE_H

#include <sched.h>

#include "run.h"

#include "base/clock.h"
#include "base/devices.h"
#include "base/driver.h"
#include "base/futex.h"
#include "gate/bandwidth.h"
#include "gate/gate.h"
#include "gate/helper.h"
#include "gate/nccl.h"
#include "ledger/admit.h"
#include "ledger/claims.h"
#include "session/client.h"
#include "session/request.h"
#include "streams/markers.h"
#include "wrappers/forks.h"

#define FAKE_STREAMS 2048

/* A stream is a number. Its work is counted, and done as far as the test says. */
struct fake_stream {
	_Atomic uint64_t put, done;
	_Atomic bool captures, destroyed;
	_Atomic uint64_t records;
};
static struct fake_stream fake[FAKE_STREAMS]; /* 0 is the legacy one, 2 the per-thread ones together */
static _Atomic int fake_error;     /* what cuEventRecord answers */
static _Atomic int fake_fault;     /* what every call answers in a context that is lost */
static _Atomic unsigned fake_events; /* made so far */
static _Atomic(float) fake_elapsed_ms; /* between two markers; 0: the GPU has no clock */
static _Atomic bool fake_instant;  /* the GPU does everything at once */
static _Atomic uint64_t fake_bad;  /* calls that a driver would punish */
static _Atomic unsigned fake_asks, fake_asked; /* questions about events, and those before the last record */
static _Atomic bool fake_hold;     /* a launch does not come back from the driver */
static _Thread_local CUcontext fake_context = (CUcontext)0x100; /* of GPU 0; 0x200 is GPU 1's */

static _Atomic uint64_t fake_acquires, fake_yields, fake_usages, fake_launched, fake_copied;
static _Atomic uint64_t fake_epoch = 1, fake_polls;
static struct gs_page *fake_page;
static const void *fake_kernel; /* that is launched */

/* All that the broker was told, in order. What is below the count stays. */
#define FAKE_SAYS (1 << 14)
static struct fake_word { enum gs_type type; uint64_t at; struct gs_usage usage; } fake_said[FAKE_SAYS];
static _Atomic unsigned fake_says;

_Atomic(struct gs_page *) gs_page;
struct gs_real gs_real;

struct CUevent_st {
	_Atomic uintptr_t stream;
	_Atomic uint64_t at;
};

/* ---- the driver: a thread may be cancelled wherever it is called ---- */

static struct fake_stream *of(CUstream s)
{
	uintptr_t i = (uintptr_t)s;

	pthread_testcancel();
	if (i >= FAKE_STREAMS || atomic_load(&fake[i].destroyed)) {
		atomic_fetch_add(&fake_bad, 1);
		i = 0;
	}
	return &fake[i];
}

static inline CUresult event_create(CUevent *e, unsigned flags)
{
	static struct CUevent_st events[1 << 16];

	*e = &events[atomic_fetch_add(&fake_events, 1) % (1 << 16)];
	return flags == CU_EVENT_DEFAULT ? atomic_load(&fake_fault) : 1; /* the hook needs no other */
}

static inline CUresult event_record(CUevent e, CUstream s)
{
	struct fake_stream *f = of(s);

	if (atomic_load(&f->captures) || !fake_context)
		atomic_fetch_add(&fake_bad, 1);
	if (atomic_load(&fake_fault) || atomic_load(&fake_error))
		return atomic_load(&fake_fault) ? atomic_load(&fake_fault) : atomic_load(&fake_error);
	atomic_fetch_add(&f->records, 1);
	atomic_store(&fake_asked, atomic_load(&fake_asks));
	atomic_store(&e->stream, (uintptr_t)s);
	atomic_store(&e->at, atomic_load(&f->put));
	return 0;
}

static inline CUresult event_query(CUevent e)
{
	struct fake_stream *f = &fake[atomic_load(&e->stream)];

	atomic_fetch_add(&fake_asks, 1);
	if (atomic_load(&fake_fault))
		return atomic_load(&fake_fault);
	return atomic_load(&fake_instant) || atomic_load(&f->done) >= atomic_load(&e->at) ? 0 : CUDA_ERROR_NOT_READY;
}

static inline CUresult event_synchronize(CUevent e)
{
	AWAIT(!event_query(e));
	return 0;
}

static inline CUresult event_elapsed(float *ms, CUevent a, CUevent b)
{
	(void)a, (void)b;
	*ms = atomic_load(&fake_elapsed_ms);
	return *ms ? 0 : CUDA_ERROR_INVALID_VALUE; /* there is no clock: what was seen counts */
}

static inline CUresult event_destroy(CUevent e)
{
	(void)e;
	return 0;
}

static inline CUresult is_capturing(CUstream s, int *status)
{
	*status = atomic_load(&of(s)->captures);
	return atomic_load(&fake_fault);
}

static inline CUresult stream_query(CUstream s)
{
	struct fake_stream *f = of(s);

	if (atomic_load(&f->captures) || !fake_context)
		atomic_fetch_add(&fake_bad, 1);
	if (atomic_load(&fake_fault))
		return atomic_load(&fake_fault);
	return atomic_load(&fake_instant) || atomic_load(&f->done) >= atomic_load(&f->put) ? 0 : CUDA_ERROR_NOT_READY;
}

static inline CUresult exchange(int *mode)
{
	static _Thread_local int now;
	int was = now;

	pthread_testcancel();
	now = *mode;
	*mode = was;
	return 0;
}

static inline CUresult ctx_current(CUcontext *c)
{
	pthread_testcancel();
	*c = fake_context;
	return 0;
}

static _Thread_local CUcontext pushed;

static inline CUresult ctx_push(CUcontext c)
{
	pushed = fake_context;
	fake_context = c;
	return 0;
}

static inline CUresult ctx_pop(CUcontext *c)
{
	*c = fake_context;
	fake_context = pushed;
	return 0;
}

/* ---- the client ---- */

static void say(enum gs_type type, const struct gs_usage *u)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* GPUs have one each */

	pthread_mutex_lock(&lock);
	unsigned i = atomic_load(&fake_says);
	CHECK(i < FAKE_SAYS);
	fake_said[i] = (struct fake_word){ type, gs_now(), *u };
	atomic_fetch_add(&fake_launched, u->launched);
	atomic_fetch_add(&fake_copied, u->copied);
	atomic_fetch_add(type == GS_ACQUIRE ? &fake_acquires : type == GS_YIELD ? &fake_yields : &fake_usages, 1);
	atomic_store(&fake_says, i + 1);
	pthread_mutex_unlock(&lock);
}

void gs_client_acquire(unsigned gpu)
{
	say(GS_ACQUIRE, &(struct gs_usage){ .gpu = gpu });
}

void gs_client_usage(enum gs_type type, const struct gs_usage *u, uint32_t own_slice_us)
{
	(void)own_slice_us;
	say(type, u);
}

void gs_nccl_look(void) { }
uint64_t gs_client_epoch(void) { return atomic_load(&fake_epoch); }
uint64_t gs_memory_uncounted(void) { return 0; }
uint64_t gs_client_poll(void)
{
	if (gs_self) /* it launches: it is not the helper */
		atomic_fetch_add(&fake_polls, 1);
	return gs_now() + 1000000000;
}

void *gs_dlsym(void *handle, const char *name) { return (void)handle, (void)name, NULL; }
int gs_gpu_making(void) { return -1; }
int gs_gpu_only(void) { return 0; }
int gs_gpu_current(void) { return fake_context == (CUcontext)0x200 ? 1 : 0; }
unsigned gs_gpu_count(void) { return 2; }

/* ---- the broker and the program ---- */

static inline void fake_begin(void)
{
	int fd = memfd_create("page", MFD_CLOEXEC);

	gs_forks_watch(); /* as the wrapper of cuInit does */
	CHECK(fd >= 0 && !ftruncate(fd, sizeof *fake_page));
	fake_page = mmap(NULL, sizeof *fake_page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	/* The hook's own mapping cannot be written. */
	struct gs_page *mine = mmap(NULL, sizeof *fake_page, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(fake_page != MAP_FAILED && mine != MAP_FAILED);
	fake_kernel = fake_page;
	close(fd);
	for (unsigned i = 0; i < GS_GPUS; i++)
		fake_page->slot[i].inflight_us = 2000;
	atomic_store(&gs_page, mine);
	gs_real.cuEventCreate = event_create;
	gs_real.cuEventRecord = event_record;
	gs_real.cuEventQuery = event_query;
	gs_real.cuEventSynchronize = event_synchronize;
	gs_real.cuEventElapsedTime = event_elapsed;
	gs_real.cuEventDestroy_v2 = event_destroy;
	gs_real.cuStreamIsCapturing = is_capturing;
	gs_real.cuStreamQuery = stream_query;
	gs_real.cuThreadExchangeStreamCaptureMode = exchange;
	gs_real.cuCtxGetCurrent = ctx_current;
	gs_real.cuCtxPushCurrent_v2 = ctx_push;
	gs_real.cuCtxPopCurrent_v2 = ctx_pop;
}

/* The program makes its context. The seat that the process takes with it is not counted. */
static inline void fake_seat(void)
{
	gs_gate_context_created((CUcontext)0x100, 0);
	atomic_store(&fake_usages, 0);
	atomic_store(&fake_says, 0);
}

static inline void fake_mode(unsigned gpu, enum gs_mode mode, uint64_t turn, uint32_t flags)
{
	struct gs_slot *s = &fake_page->slot[gpu];
	uint32_t gated = 0;

	__atomic_store_n(&s->turn, turn, __ATOMIC_RELAXED);
	__atomic_store_n(&s->flags, flags, __ATOMIC_RELAXED);
	__atomic_store_n(&s->mode, mode, __ATOMIC_RELEASE);
	for (unsigned i = 0; i < GS_GPUS; i++)
		gated |= fake_page->slot[i].mode != GS_OPEN || fake_page->slot[i].pace_permille;
	__atomic_store_n(&fake_page->gated, gated, __ATOMIC_RELEASE);
	__atomic_fetch_add(&fake_page->bell, 1, __ATOMIC_RELEASE);
	gs_bell_ring(fake_page);
}

/* As the wrapper does it. */
static inline void fake_launch(uintptr_t stream, bool per_thread, void *graph)
{
	struct gs_launch l;

	gs_gate_enter(&l, (CUstream)stream, per_thread, graph, graph ? graph : fake_kernel);
	AWAIT(!atomic_load(&fake_hold));
	atomic_fetch_add(&of((CUstream)(stream || !per_thread ? stream : 2))->put, 1);
	gs_gate_leave(&l, 0);
}

/* A function of the host, which comes after all that was put on the stream. */
static inline void fake_host(uintptr_t stream)
{
	gs_gate_host((CUstream)stream, false);
	atomic_fetch_add(&fake[stream].put, 1);
}

/* The stream has done all that was put on it. */
static inline void fake_finish(uintptr_t stream)
{
	atomic_store(&fake[stream].done, atomic_load(&fake[stream].put));
}

/* The helper has looked at the page since. The look that is under way may have begun before. */
static inline void fake_looked(void)
{
	for (int i = 0; i < 2; i++) {
		uint64_t sleeps = atomic_load(&gs_helper_wake);
		__atomic_fetch_add(&fake_page->bell, 1, __ATOMIC_RELEASE);
		gs_bell_ring(fake_page);
		AWAIT(atomic_load(&gs_helper_wake) && atomic_load(&gs_helper_wake) != sleeps);
	}
}

static inline uint64_t put_all(void)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < FAKE_STREAMS; i++)
		n += atomic_load(&fake[i].put);
	return n;
}

/* What was told since then, of this type and for this reason; NULL: not yet. */
static inline const struct fake_word *told(enum gs_type type, enum gs_why why, unsigned since)
{
	for (unsigned i = since; i < atomic_load(&fake_says); i++)
		if (fake_said[i].type == type && (type == GS_ACQUIRE || fake_said[i].usage.why == why))
			return &fake_said[i];
	return NULL;
}

/* A turn may be given back as idle before the test launches, so a test waits for
 * what was told together with this, and does not count. */
static inline enum gs_phase phase(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	enum gs_phase phase = gs_gates[0].phase;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return phase;
}

/* The helper waits for work under way, or has told that this takes long. */
static inline bool drains(void)
{
	return phase() == GS_DRAINING || told(GS_YIELD, GS_UNDRAINED, 0);
}

/* The number of launches that wait for a turn. */
static inline unsigned held(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	unsigned held = gs_gates[0].waiting;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return held;
}

/* How long launches waited, ns, without what the broker was told of. */
static inline uint64_t waited(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t ns = gs_gates[0].usage.overhead_ns;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return ns;
}

/* Sets the known cost of kernels on a stream, ns. What is done cannot change it any more. */
static inline void set_cost(uintptr_t stream, uint64_t cost)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_marker_reap(&gs_gates[0]);
	for (struct gs_stream *e = gs_gates[0].streams; e; e = e->next)
		if (e->stream == (CUstream)stream)
			e->cost = cost;
	pthread_mutex_unlock(&gs_gates[0].lock);
}

static inline void fake_reap(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_marker_reap(&gs_gates[0]);
	pthread_mutex_unlock(&gs_gates[0].lock);
}

/* The work under way was launched ten seconds earlier, behind other work. So the helper looks often enough to tell its
 * cost, even on a busy machine. */
static inline void fake_age(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	for (struct gs_stream *e = gs_gates[0].streams; e; e = e->next) {
		struct gs_marker *m = gs_marker_oldest(e);
		CHECK(!m || e->passed_ns); /* it counts from there */
		if (m)
			m->first_ns -= 10000000000;
	}
	pthread_mutex_unlock(&gs_gates[0].lock);
}

/* The GPU makes progress until it ends the work under way: no launch passes for want of that, however late the
 * threads of this test go on. */
static inline void fake_progress(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_gates[0].progress_ns = gs_now() + 1000000000000;
	pthread_mutex_unlock(&gs_gates[0].lock);
}

/* Time goes by. */
static inline void spin(uint64_t ns)
{
	uint64_t until = gs_now() + ns;

	AWAIT(gs_now() >= until);
}

static inline void *launch_one(void *stream)
{
	fake_launch((uintptr_t)stream, false, NULL);
	return NULL;
}

static inline pthread_t launching(uintptr_t stream)
{
	pthread_t t;

	CHECK(!pthread_create(&t, NULL, launch_one, (void *)stream));
	return t;
}

/* A driver punished nothing that this process did. */
static inline void fake_end(void)
{
	if (fake_bad)
		_exit(2);
}

static inline void fake_begin_bare(void)
{
	atexit(fake_end);
	fake_begin();
	gs_helper_start();
}

/* The program has a context. */
static inline void fake_begin_seated(void)
{
	atexit(fake_end);
	fake_begin();
	fake_seat();
	gs_helper_start();
}

#endif

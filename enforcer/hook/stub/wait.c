/* What holds a stream up: words of memory, which streams wait for and write, and
 * functions of the host, which one thread runs when the streams come to them. Only
 * streams and kernels change words: what the host or a fill writes there is not
 * seen. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "stub.h"

#define SOON 20000   /* ns; the thread that runs functions does not look again earlier, */
#define LATE 200000  /* and not later than that */

CUresult gs_put_word(CUstream s, enum gs_work work, uint64_t ns, CUdeviceptr at, uint32_t how, uint64_t value)
{
	int place;

	GS_TRY(gs_capture_none(s));
	if (!at || at % (how & GS_WIDE ? 8 : 4))
		return CUDA_ERROR_INVALID_VALUE;
	place = gs_word(getpid(), at, (unsigned)s->ctx->device);
	if (place < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return gs_put_wait(s, work, ns, (struct gs_wait){.place = (uint32_t)place, .how = how, .value = value}, NULL);
}

static CUresult word(CUstream s, enum gs_work work, CUdeviceptr at, uint32_t wide, uint64_t value, unsigned flags)
{
	unsigned most = work == GS_WORK_UNTIL ? CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH
		: CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;

	GS_TRY(gs_stream_of(s, &s));
	if (flags & ~most)
		return CUDA_ERROR_INVALID_VALUE;
	return gs_put_word(s, work, 0, at, wide | (work == GS_WORK_UNTIL ? flags & GS_COMPARE : 0), value);
}

/* Each call under its names. */
#define WORDS(name, work, wide, type) \
	GS_API name(CUstream s, CUdeviceptr at, type value, unsigned flags) \
	{ return word(s, work, at, wide, value, flags); } \
	GS_API name##_ptsz(CUstream s, CUdeviceptr at, type value, unsigned flags) \
	{ return word(GS_PTSZ(s), work, at, wide, value, flags); }
#define BOTH(name, work, wide, type) WORDS(name, work, wide, type) WORDS(name##_v2, work, wide, type)

BOTH(cuStreamWaitValue32, GS_WORK_UNTIL, 0, uint32_t)
BOTH(cuStreamWaitValue64, GS_WORK_UNTIL, GS_WIDE, cuuint64_t)
BOTH(cuStreamWriteValue32, GS_WORK_WRITE, 0, uint32_t)
BOTH(cuStreamWriteValue64, GS_WORK_WRITE, GS_WIDE, cuuint64_t)

struct call {
	struct call *next;
	struct gs_gpu *g;
	struct gs_point point;
	CUhostFn function; /* NULL: it is not made */
	CUstreamCallback callback; /* made in its place, for this stream */
	CUstream stream;
	void *of;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken before a GPU's */
static pthread_cond_t more;
static struct call *calls; /* to be made */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Takes one out whose stream has come to it, or is gone: then it is not made. NULL,
 * and when to look again: there is none. Under the lock. */
static struct call *next_call(uint64_t *when)
{
	struct gs_gpu *g;

	*when = gs_stub_now() + LATE;
	for (struct call **link = &calls, *c; (c = *link); link = &c->next) {
		bool due;

		g = gs_gpu_lock((unsigned)(c->g - gs_host->gpu));
		if (gs_passed(g, c->point))
			c->function = NULL;
		due = !c->function || gs_at_head(g, c->point);
		if (!due) {
			uint64_t t = gs_predict(g, c->point);

			if (t < *when)
				*when = t < g->now + SOON ? g->now + SOON : t;
		}
		gs_gpu_unlock(g);
		if (due) {
			*link = c->next;
			return c;
		}
	}
	return NULL;
}

/* The stream goes on. */
static void made(const struct call *c)
{
	struct gs_gpu *g = gs_gpu_lock((unsigned)(c->g - gs_host->gpu));

	if (!gs_passed(g, c->point)) {
		struct gs_entry *e = &g->ring[c->point.stream][c->point.at % GS_STUB_RING];

		e->work = GS_WORK_WAIT; /* for nothing */
		gs_host->waits--;
	}
	gs_gpu_unlock(g);
	gs_bell_ring();
}

static void *serve(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		uint64_t when;
		struct call *c = next_call(&when);

		if (c) {
			pthread_mutex_unlock(&lock);
			if (c->function) {
				c->function(c->callback ? (void *)c : c->of);
				made(c);
			}
			free(c);
			pthread_mutex_lock(&lock);
		} else if (calls) {
			struct timespec at = {(time_t)(when / 1000000000), (long)(when % 1000000000)};

			pthread_cond_timedwait(&more, &lock, &at);
		} else {
			pthread_cond_wait(&more, &lock);
		}
	}
	return NULL;
}

static void begin(void)
{
	pthread_condattr_t a;
	pthread_t thread;
	sigset_t all, old;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&more, &a);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, serve, NULL))
		abort();
	pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static CUresult queue(CUstream s, struct call what)
{
	CUstream named = s;
	struct call *c;
	CUresult r;

	GS_TRY(gs_stream_of(s, &s));
	if (!what.function)
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(gs_capture_none(s));
	c = calloc(1, sizeof *c);
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_once(&once, begin);
	*c = what;
	c->g = s->ctx->g;
	c->stream = named;
	r = gs_put_wait(s, GS_WORK_HOST, 0, (struct gs_wait){0}, &c->point);
	if (r) {
		free(c);
		return r;
	}
	pthread_mutex_lock(&lock);
	c->next = calls;
	calls = c;
	pthread_cond_signal(&more);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static void call_back(void *of)
{
	const struct call *c = of;

	c->callback(c->stream, CUDA_SUCCESS, c->of);
}

GS_API cuLaunchHostFunc(CUstream s, CUhostFn function, void *of)
{
	return queue(s, (struct call){.function = function, .of = of});
}

GS_API cuLaunchHostFunc_ptsz(CUstream s, CUhostFn function, void *of)
{
	return cuLaunchHostFunc(GS_PTSZ(s), function, of);
}

GS_API cuLaunchHostFunc_v2(CUstream s, CUhostFn function, void *of, unsigned mode)
{
	return mode > 1 ? CUDA_ERROR_INVALID_VALUE : cuLaunchHostFunc(s, function, of);
}

GS_API cuLaunchHostFunc_v2_ptsz(CUstream s, CUhostFn function, void *of, unsigned mode)
{
	return cuLaunchHostFunc_v2(GS_PTSZ(s), function, of, mode);
}

GS_API cuStreamAddCallback(CUstream s, CUstreamCallback callback, void *of, unsigned flags)
{
	if (flags || !callback)
		return CUDA_ERROR_INVALID_VALUE;
	return queue(s, (struct call){.function = call_back, .callback = callback, .of = of});
}

GS_API cuStreamAddCallback_ptsz(CUstream s, CUstreamCallback callback, void *of, unsigned flags)
{
	return cuStreamAddCallback(GS_PTSZ(s), callback, of, flags);
}

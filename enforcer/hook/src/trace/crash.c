#include "trace/crash.h"

#include <string.h>

#include "base/clock.h"
#include "trace/trace.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gs_trace *trace; /* the session's; NULL: it has none */
static struct gs_crash *crash; /* behind it */
static bool failed;            /* the broker was told, or there was none */

/* What is in the session's memory is here, too: the next session begins with it. A place
 * that was freed is taken again when all others are in use or were freed later. */
static struct gs_allocation known[GS_ALLOCATIONS];
static uint16_t after[GS_ALLOCATIONS]; /* the place that was freed next, and 1; 0: none was */
static unsigned used, first, last;     /* places ever taken; the first and the last one that was freed, and 1 */
static uint64_t unlisted;

static struct gs_kernel named[GS_KERNELS];
static char names[GS_NAME_BYTES];
static unsigned kernels, bytes; /* of these */
static unsigned graphs;         /* among them */
static uint64_t unnamed;

/* The address tells a reader that the rest is of one allocation. */
static void show(unsigned i)
{
	if (!crash)
		return;
	struct gs_allocation *a = &crash->allocation[i];
	__atomic_store_n(&a->address, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(&a->bytes, known[i].bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&a->made_ns, known[i].made_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&a->freed_ns, known[i].freed_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&a->address, known[i].address, __ATOMIC_RELEASE);
}

static void show_unlisted(void)
{
	if (crash)
		__atomic_store_n(&crash->unlisted, unlisted, __ATOMIC_RELAXED);
}

unsigned gs_crash_allocated(uint64_t address, uint64_t bytes)
{
	unsigned place = 0;

	pthread_mutex_lock(&lock);
	if (used < GS_ALLOCATIONS) {
		place = ++used;
	} else if (first) {
		place = first;
		first = after[place - 1];
	}
	if (place) {
		known[place - 1] = (struct gs_allocation){.address = address, .bytes = bytes, .made_ns = gs_now()};
		show(place - 1);
	} else {
		unlisted++;
		show_unlisted();
	}
	pthread_mutex_unlock(&lock);
	return place;
}

void gs_crash_freed(unsigned place)
{
	if (!place)
		return;
	pthread_mutex_lock(&lock);
	known[place - 1].freed_ns = gs_now();
	after[place - 1] = 0;
	if (first)
		after[last - 1] = (uint16_t)place;
	else
		first = place;
	last = place;
	if (crash)
		__atomic_store_n(&crash->allocation[place - 1].freed_ns, known[place - 1].freed_ns, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&lock);
}

void gs_crash_unlisted(void)
{
	pthread_mutex_lock(&lock);
	unlisted++;
	show_unlisted();
	pthread_mutex_unlock(&lock);
}

/* Some errors from 700 to 799 refuse one launch or one call. */
static bool ends(CUresult r)
{
	const uint32_t refusals = 1u << 1 | 7u << 3 | 3u << 8 | 7u << 11 | 1u << 20;

	return r < CUDA_ERROR_ILLEGAL_ADDRESS || r > CUDA_ERROR_ILLEGAL_ADDRESS + 31 ||
	       !(refusals >> (r - CUDA_ERROR_ILLEGAL_ADDRESS) & 1);
}

void gs_crash_fault(CUresult r)
{
	GS_UNCANCELLED;

	if (!ends(r))
		return;
	gs_trace_clock(); /* the process may be about to end */
	pthread_mutex_lock(&lock);
	if (trace && !failed) {
		__atomic_store_n(&trace->failed_ns, gs_now(), __ATOMIC_RELAXED);
		__atomic_store_n(&trace->failed, (uint32_t)r, __ATOMIC_RELEASE);
	}
	failed = true;
	pthread_mutex_unlock(&lock);
}

/* A name's place tells a reader that the rest is of one kernel. */
static void show_kernel(unsigned i)
{
	if (!crash)
		return;
	const char *name = names + named[i].name - 1;
	memcpy(crash->names + (name - names), name, strlen(name) + 1);
	crash->kernel[i].since_ns = named[i].since_ns;
	crash->kernel[i].id = named[i].id;
	__atomic_store_n(&crash->kernel[i].name, named[i].name, __ATOMIC_RELEASE);
}

static void show_unnamed(void)
{
	if (crash)
		__atomic_store_n(&crash->unnamed, unnamed, __ATOMIC_RELAXED);
}

/* The name of the last kernel with this id; NULL: there is none. */
static const char *name_of(uint32_t id)
{
	for (unsigned i = kernels; i-- > 0;)
		if (named[i].id == id)
			return names + named[i].name - 1;
	return NULL;
}

/* The lock is held. */
static void put_name(uint32_t id, const char *name)
{
	const char *is = name_of(id);
	size_t length = strlen(name) + 1;

	if (is && !strcmp(is, name))
		return;
	if (kernels == GS_KERNELS || length > GS_NAME_BYTES - bytes) {
		unnamed++;
		show_unnamed();
		return;
	}
	memcpy(names + bytes, name, length);
	named[kernels] = (struct gs_kernel){.since_ns = gs_now(), .id = id, .name = bytes + 1};
	bytes += (unsigned)length;
	show_kernel(kernels++);
}

void gs_crash_named(uint32_t id, const char *name)
{
	pthread_mutex_lock(&lock);
	put_name(id, name);
	pthread_mutex_unlock(&lock);
}

void gs_crash_same(uint32_t id, uint32_t as)
{
	pthread_mutex_lock(&lock);
	const char *name = name_of(as);
	if (name)
		put_name(id, name);
	pthread_mutex_unlock(&lock);
}

bool gs_crash_knows(uint32_t id)
{
	pthread_mutex_lock(&lock);
	bool is = name_of(id) != NULL;
	pthread_mutex_unlock(&lock);
	return is;
}

void gs_crash_graph(uint32_t id, const char *text)
{
	pthread_mutex_lock(&lock);
	const char *is = name_of(id);
	if (graphs < GS_GRAPHS_NAMED && !(is && !strcmp(is, text))) {
		put_name(id, text);
		graphs++;
	}
	pthread_mutex_unlock(&lock);
}

void gs_traced_begin(struct gs_trace *t)
{
	gs_trace_begin(t);
	pthread_mutex_lock(&lock);
	trace = t;
	crash = t ? &((struct gs_traced *)t)->crash : NULL;
	for (unsigned i = 0; i < used; i++)
		show(i);
	show_unlisted();
	for (unsigned i = 0; i < kernels; i++)
		show_kernel(i);
	show_unnamed();
	pthread_mutex_unlock(&lock);
}

/* The parent's memory is none of the child's. Its handles of kernels are. */
void gs_forked_crash(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	trace = NULL;
	crash = NULL;
	failed = false;
	used = first = last = 0;
	unlisted = 0;
}

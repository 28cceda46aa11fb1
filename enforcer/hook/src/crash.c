#include "crash.h"

#include <string.h>

#include "clock.h"
#include "forks.h"
#include "trace.h"

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

#define PROBES 16
_Atomic uint32_t gs_seen[GS_SEEN];
static _Atomic unsigned seen;   /* of these; half of them at most */
static unsigned kernels, bytes; /* of the names in the session's memory */
static uint64_t unnamed, unloaded_ns;

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

/* All kernels are new. */
static void forget(void)
{
	for (unsigned i = 0; seen && i < GS_SEEN; i++)
		atomic_store_explicit(&gs_seen[i], 0, memory_order_relaxed);
	seen = 0;
}

void gs_crash_unloaded(void)
{
	pthread_mutex_lock(&lock);
	unloaded_ns = gs_now();
	forget();
	pthread_mutex_unlock(&lock);
}

/* Whether the id was new. */
static bool is_new(uint32_t id)
{
	for (unsigned i = 0; i < PROBES; i++) {
		_Atomic uint32_t *at = &gs_seen[(id + i) % GS_SEEN];
		uint32_t is = atomic_load_explicit(at, memory_order_relaxed);
		if (is == id)
			return false;
		if (is)
			continue;
		atomic_store_explicit(at, id, memory_order_relaxed);
		atomic_store_explicit(&seen, seen + 1, memory_order_relaxed);
		return true;
	}
	return false;
}

/* Whether the last kernel with this id has this name. The program may write over names. */
static bool is_named(uint32_t id, const char *name)
{
	for (unsigned i = kernels; i-- > 0;) {
		const struct gs_kernel *k = &crash->kernel[i];
		uint32_t at = __atomic_load_n(&k->name, __ATOMIC_RELAXED) - 1;
		if (k->id == id)
			return at < GS_NAME_BYTES && !strncmp(crash->names + at, name, GS_NAME_BYTES - at);
	}
	return false;
}

bool gs_crash_knows(uint32_t id)
{
	uint32_t is = 1;

	for (unsigned i = 0; i < PROBES && is; i++) {
		is = atomic_load_explicit(&gs_seen[(id + i) % GS_SEEN], memory_order_relaxed);
		if (is == id)
			return true;
	}
	return is || atomic_load_explicit(&seen, memory_order_relaxed) >= GS_SEEN / 2;
}

void gs_crash_named(uint32_t id, const char *name)
{
	size_t length = name ? strlen(name) + 1 : 0;

	pthread_mutex_lock(&lock);
	if (crash && is_new(id) && !(name && is_named(id, name))) {
		if (name && kernels < GS_KERNELS && length <= GS_NAME_BYTES - bytes) {
			struct gs_kernel *k = &crash->kernel[kernels++];
			memcpy(crash->names + bytes, name, length);
			k->since_ns = unloaded_ns;
			k->id = id;
			__atomic_store_n(&k->name, bytes + 1, __ATOMIC_RELEASE);
			bytes += (unsigned)length;
		} else {
			__atomic_store_n(&crash->unnamed, ++unnamed, __ATOMIC_RELAXED);
		}
	}
	pthread_mutex_unlock(&lock);
}

void gs_crash_begin(struct gs_trace *t)
{
	pthread_mutex_lock(&lock);
	trace = t;
	crash = t ? &((struct gs_traced *)t)->crash : NULL;
	for (unsigned i = 0; i < used; i++)
		show(i);
	show_unlisted();
	kernels = bytes = 0;
	unnamed = 0;
	forget();
	pthread_mutex_unlock(&lock);
}

/* The parent's memory is none of the child's. */
void gs_forked_crash(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	trace = NULL;
	crash = NULL;
	failed = false;
	used = first = last = 0;
	unlisted = unnamed = 0;
	kernels = bytes = 0;
	forget();
}

/* The file that makes one host of many processes: which process made it, and which
 * ones live. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"

#define MAGIC 0x3847505742555453ull /* changes with struct gs_host */
#define BURY_EVERY 1000000ull        /* ns */
#define FRESH 10000 /* ns */

struct gs_host *gs_host;
static int file = -1;
static int own[GS_STUB_GPUS_MAX]; /* this process's slots, + 1 */

uint64_t gs_stub_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t gs_setting(const char *name, uint64_t otherwise)
{
	const char *v = getenv(name);

	return v && *v ? strtoull(v, NULL, 0) : otherwise;
}

void gs_bell_ring(void)
{
	gs_host->bell++;
	syscall(SYS_futex, &gs_host->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void gs_bell_await(uint32_t seen, uint64_t until)
{
	struct timespec at = {(time_t)(until / 1000000000), (long)(until % 1000000000)};

	syscall(SYS_futex, &gs_host->bell, FUTEX_WAIT_BITSET, seen, &at, NULL, FUTEX_BITSET_MATCH_ANY);
}

bool gs_byte_lock(int command, short type, off_t at)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	if (fcntl(file, command, &l))
		return false;
	return command != F_GETLK || l.l_type == F_UNLCK;
}

static off_t byte_of(const struct gs_gpu *g, int proc)
{
	return (off_t)sizeof *gs_host + (g - gs_host->gpu) * GS_STUB_PROCS + proc;
}

static void make(struct gs_host *h)
{
	pthread_mutexattr_t a;
	uint64_t memory = gs_setting("GS_STUB_MEMORY", 80ull << 30);

	h->gpus = (uint32_t)gs_setting("GS_STUB_GPUS", 1);
	if (h->gpus > GS_STUB_GPUS_MAX)
		h->gpus = GS_STUB_GPUS_MAX;
	h->slice = gs_setting("GS_STUB_SLICE_US", 2000) * 1000;
	if (!h->slice)
		h->slice = 1000;
	h->change = gs_setting("GS_STUB_SWITCH_US", 20) * 1000;
	h->rate[GS_ENGINE_LINK] = gs_setting("GS_STUB_LINK_MBPS", 25000) * 1000000;
	h->rate[GS_ENGINE_MEMORY] = gs_setting("GS_STUB_COPY_MBPS", 1000000) * 1000000;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&h->places, &a);
	for (uint32_t i = 0; i < h->gpus; i++) {
		pthread_mutex_init(&h->gpu[i].mutex, &a);
		h->gpu[i].memory = memory;
		h->gpu[i].now = gs_stub_now();
	}
	h->magic = MAGIC;
}

/* Without GS_STUB_FILE the GPUs are this process's own. */
bool gs_host_open(void)
{
	const char *path = getenv("GS_STUB_FILE");
	struct gs_host *h = MAP_FAILED;

	if (gs_host)
		return true;
	if (path && *path)
		file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	else
		file = memfd_create("gpus", MFD_CLOEXEC);
	if (file < 0 || !gs_byte_lock(F_SETLKW, F_WRLCK, 0))
		return false;
	if (!ftruncate(file, sizeof *h))
		h = mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (h != MAP_FAILED && h->magic == 0)
		make(h);
	gs_byte_lock(F_SETLK, F_UNLCK, 0);
	if (h == MAP_FAILED || h->magic != MAGIC)
		return false;
	gs_host = h;
	return true;
}

void gs_proc_leave(struct gs_gpu *g, int proc)
{
	struct gs_slot_proc *p = &g->proc[proc];

	while (p->streams)
		gs_stream_free(g, p->streams - 1);
	for (uint32_t i = 0; i < g->events; i++)
		if (g->event[i].owner == (uint32_t)proc + 1)
			g->event[i] = (struct gs_slot_event){0};
	gs_places_leave((unsigned)(g - gs_host->gpu), proc, p->pid);
	*p = (struct gs_slot_proc){0};
	if (own[g - gs_host->gpu] == proc + 1) {
		own[g - gs_host->gpu] = 0;
		gs_byte_lock(F_SETLK, F_UNLCK, byte_of(g, proc));
	}
}

static void bury(struct gs_gpu *g, uint64_t now)
{
	if (now - g->buried < BURY_EVERY)
		return;
	g->buried = now;
	for (uint32_t i = 0; i < g->procs; i++) {
		if (g->proc[i].pid && g->proc[i].pid != getpid() && gs_byte_lock(F_GETLK, F_WRLCK, byte_of(g, (int)i)))
			gs_proc_leave(g, (int)i);
		if (g->proc[i].client)
			gs_client_recover(&gs_host->client[g->proc[i].client - 1]);
	}
}

static void lock(struct gs_gpu *g)
{
	if (pthread_mutex_lock(&g->mutex) == EOWNERDEAD)
		pthread_mutex_consistent(&g->mutex);
}

/* Moves locked GPUs on to the present. */
static void move(struct gs_gpu *const *all, unsigned n)
{
	uint64_t now = gs_stub_now();

	for (unsigned i = 0; i < n; i++)
		bury(all[i], now);
	gs_simulate(all, n, now);
}

/* If an entry waits for what another GPU may do, all GPUs are moved on together, so
 * that each sees the others' doings at their times. They are locked in one order,
 * and never by a process that has one already. That costs microseconds, so the
 * present is what it was a few of them ago. */
struct gs_gpu *gs_gpu_lock(unsigned gpu)
{
	struct gs_gpu *all[GS_STUB_GPUS_MAX], *g = &gs_host->gpu[gpu];
	bool together = gs_host->waits != 0;
	unsigned n = 0;

	lock(g);
	if (together && g->now + FRESH > gs_stub_now())
		return g;
	if (together)
		gs_gpu_unlock(g);
	for (unsigned i = 0; together && i < gs_host->gpus; i++)
		lock(all[n++] = &gs_host->gpu[i]);
	if (!together)
		all[n++] = g;
	move(all, n);
	while (n--)
		if (all[n] != g)
			gs_gpu_unlock(all[n]);
	return g;
}

void gs_gpu_unlock(struct gs_gpu *g)
{
	pthread_mutex_unlock(&g->mutex);
}

struct gs_gpu *gs_gpu_change(unsigned gpu)
{
	struct gs_gpu *g = gs_gpu_lock(gpu);

	while (gs_client && gs_client_locked(gs_client)) {
		gs_gpu_unlock(g);
		gs_client_await(gs_client, false);
		gs_gpu_lock(gpu);
	}
	return g;
}

void gs_host_lock(void)
{
	struct gs_gpu *all[GS_STUB_GPUS_MAX];

	for (unsigned i = 0; i < gs_host->gpus; i++)
		lock(all[i] = &gs_host->gpu[i]);
	move(all, gs_host->gpus);
}

void gs_host_unlock(void)
{
	for (unsigned i = 0; i < gs_host->gpus; i++)
		gs_gpu_unlock(&gs_host->gpu[i]);
}

int gs_proc_join(struct gs_gpu *g)
{
	for (int i = 0; i < GS_STUB_PROCS; i++) {
		if (g->proc[i].pid || !gs_byte_lock(F_SETLK, F_WRLCK, byte_of(g, i)))
			continue;
		if (g->procs <= (uint32_t)i)
			g->procs = (uint32_t)i + 1;
		g->proc[i].client = gs_client ? (uint32_t)(gs_client - gs_host->client) + 1 : 0;
		g->proc[i].pid = getpid();
		own[g - gs_host->gpu] = i + 1;
		return i;
	}
	return -1;
}

uint64_t gs_used(const struct gs_gpu *g)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < g->procs; i++)
		sum += gs_proc_used(&g->proc[i]);
	return sum;
}

bool gs_memory_take(struct gs_gpu *g, int proc, uint64_t bytes)
{
	struct gs_slot_proc *p = &g->proc[proc];
	uint64_t used;
	bool fits;

	gs_gpu_change((unsigned)(g - gs_host->gpu));
	used = gs_used(g) + bytes;
	fits = bytes <= g->memory && used <= g->memory;
	if (fits) {
		p->used += bytes;
		if (g->peak < used)
			g->peak = used;
		if (p->peak < p->used)
			p->peak = p->used;
	}
	gs_gpu_unlock(g);
	return fits;
}

void gs_memory_give(struct gs_gpu *g, int proc, uint64_t bytes)
{
	struct gs_slot_proc *p = &g->proc[proc];

	gs_gpu_change((unsigned)(g - gs_host->gpu));
	if (own[g - gs_host->gpu] != proc + 1)
		bytes = 0; /* it went with the last context */
	if (bytes > p->used)
		bytes = p->used;
	p->used -= bytes;
	gs_gpu_unlock(g);
}

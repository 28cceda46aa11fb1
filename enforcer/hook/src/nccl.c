/* Communicators: which processes wait for each other. NCCL's calls are only noted
 * and passed on. The broker is told the communicator's identity for the GPU, so
 * that it can hold back and release the ranks of a job together.
 *
 * The library is the one that the program's caller would find. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "contexts.h"
#include "intercept.h"
#include "streams.h"
#include "turns.h"

#define NCCL_SYSTEM_ERROR 2

struct id { char bytes[128]; }; /* ncclUniqueId, passed by value */

int ncclCommInitRank(void **comm, int ranks, struct id id, int rank);
int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, void *config);
int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, struct id *id, void *config);
int ncclCommInitAll(void **comms, int count, const int *devices);

static void *find(const char *name)
{
	void *f = gs_real_dlsym(RTLD_NEXT, name), *nccl;

	if (!f && ((nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD)) ||
		   (nccl = dlopen("libnccl.so", RTLD_LAZY | RTLD_NOLOAD))))
		f = gs_real_dlsym(nccl, name);
	return f;
}

/* FNV-1a: the identity is random unless it is an address. */
static uint64_t hash(const struct id *id)
{
	uint64_t h = 14695981039346656037u;

	for (unsigned i = 0; i < sizeof id->bytes; i++)
		h = (h ^ (unsigned char)id->bytes[i]) * 1099511628211u;
	return h ? h : 1;
}

static void joined(int gpu, uint64_t group)
{
	if (gpu < 0 || gpu >= GS_GPUS)
		return;
	gs_gpu_lock(&gs_gates[gpu]);
	gs_turns_group(&gs_gates[gpu], group);
	pthread_mutex_unlock(&gs_gates[gpu].lock);
}

#define CALL(name, type, ...)                          \
	int (*real)type;                               \
	void *found = find(#name);                     \
	if (!found)                                    \
		return NCCL_SYSTEM_ERROR;              \
	memcpy(&real, &found, sizeof real);            \
	int r = real(__VA_ARGS__)


GS_EXPORT int ncclCommInitRank(void **comm, int ranks, struct id id, int rank)
{
	CALL(ncclCommInitRank, (void **, int, struct id, int), comm, ranks, id, rank);
	if (!r && ranks > 1)
		joined(gs_gpu_current(), hash(&id));
	return r;
}

GS_EXPORT int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, void *config)
{
	CALL(ncclCommInitRankConfig, (void **, int, struct id, int, void *), comm, ranks, id, rank, config);
	if ((!r || r == 7 /* in progress */) && ranks > 1)
		joined(gs_gpu_current(), hash(&id));
	return r;
}

GS_EXPORT int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, struct id *id, void *config)
{
	CALL(ncclCommInitRankScalable, (void **, int, int, int, struct id *, void *), comm, ranks, rank, ids, id,
	     config);
	if ((!r || r == 7) && ranks > 1 && id && ids > 0)
		joined(gs_gpu_current(), hash(id));
	return r;
}

/* One process with several GPUs. */
GS_EXPORT int ncclCommInitAll(void **comms, int count, const int *devices)
{
	CALL(ncclCommInitAll, (void **, int, const int *), comms, count, devices);
	for (int i = 0; !r && count > 1 && i < count; i++)
		joined(gs_gpu_of_device(devices ? devices[i] : i),
		       (uint64_t)(uintptr_t)comms[0] ^ (uint64_t)getpid() << 40);
	return r;
}

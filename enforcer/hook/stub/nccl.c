/* A simulated NCCL. A collective is a kernel that ends when all ranks have begun the
 * one of the same number, and the time that its bytes need is over. A rank that never
 * calls it, or calls another one, keeps the others waiting for good. No data move.
 *
 * The calls of a group are made at its end. Those between two ranks run beside each
 * other then, each on a stream of its own, because ranks list them in any order.
 *
 * The driver's functions are found as a program's are, so that a preloaded library
 * sees what this one does. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "gpu.h"

#define NCCL_API __attribute__((visibility("default"))) int
#define LATENCY 20000 /* ns */
#define RATE 100      /* bytes a ns */
#define CALLS 256     /* of a group */

enum { OK, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum op { ALL_REDUCE = 1, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER };

struct id { char bytes[128]; };

/* The beginning of ncclConfig_t. */
struct config { size_t size; unsigned magic, version; int blocking; };

struct ncclComm {
	uint64_t group; /* of the meeting */
	int place, rank, ranks;
	CUcontext context;
	CUfunction kernel;
	uint64_t calls, rounds;
	bool in_progress; /* until the program asks whether it is */
};

struct call {
	struct ncclComm *comm;
	CUstream stream;
	bool peers; /* it is between two ranks */
	uint64_t group, number, rank, ranks, lasts, what;
	CUevent after; /* of those: it is done */
};

static _Thread_local struct {
	int depth;
	unsigned n;
	struct call call[CALLS];
} group;

/* FNV-1a */
static uint64_t hash(const void *bytes, size_t n)
{
	uint64_t h = 14695981039346656037u;

	for (const unsigned char *p = bytes; n--; p++)
		h = (h ^ *p) * 1099511628211u;
	return h ? h : 1;
}

/* ---- communicators ---- */

/* The process's number on the GPU, as the driver has it. */
static int process_on(CUdevice d)
{
	const struct gs_gpu *g = &gs_host->gpu[d];
	uint32_t i = 0;

	while (i < g->procs && g->proc[i].pid != getpid())
		i++;
	return i < g->procs ? (int)i : 0;
}

/* Tells the other ranks a value, and waits for all of theirs. */
static void exchange(struct ncclComm *c, uint64_t value, uint64_t *values)
{
	gs_meeting_say(c->place, (uint64_t)c->rank, ++c->rounds, value);
	while (!gs_meeting_heard(c->place, c->rounds, values))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int make(struct ncclComm **out, uint64_t number, int rank, int ranks)
{
	struct ncclComm *c = calloc(1, sizeof *c);
	CUmodule m;
	CUdevice d;

	*out = NULL;
	if (!c || !gs_host_open() || ranks < 1 || ranks > GS_STUB_RANKS || rank < 0 || rank >= ranks) {
		free(c);
		return INVALID_ARGUMENT;
	}
	*c = (struct ncclComm){.group = number, .rank = rank, .ranks = ranks};
	if (cuCtxGetCurrent(&c->context) || cuCtxGetDevice(&d) || cuModuleLoadData(&m, "") ||
	    cuModuleGetFunction(&c->kernel, m, "collective")) {
		free(c);
		return CUDA_ERROR;
	}
	c->place = gs_meeting(number, (uint64_t)ranks, (uint64_t)rank, (unsigned)d, process_on(d));
	if (c->place < 0) {
		free(c);
		return INVALID_ARGUMENT;
	}
	*out = c;
	return OK;
}

static int join(struct ncclComm **out, uint64_t number, int rank, int ranks)
{
	uint64_t all[GS_STUB_RANKS];
	int r = make(out, number, rank, ranks);

	if (!r)
		exchange(*out, 0, all);
	return r;
}

NCCL_API ncclGetUniqueId(struct id *id)
{
	return getrandom(id, sizeof *id, 0) == sizeof *id ? OK : SYSTEM_ERROR;
}

NCCL_API ncclCommInitRank(struct ncclComm **c, int ranks, struct id id, int rank)
{
	return join(c, hash(&id, sizeof id), rank, ranks);
}

NCCL_API ncclCommInitRankConfig(struct ncclComm **c, int ranks, struct id id, int rank, void *config)
{
	(void)config;
	return ncclCommInitRank(c, ranks, id, rank);
}

NCCL_API ncclCommInitRankScalable(struct ncclComm **c, int ranks, int rank, int ids, struct id *id, void *config)
{
	(void)config;
	return ids > 0 ? ncclCommInitRank(c, ranks, *id, rank) : INVALID_ARGUMENT;
}

/* All ranks are this process's. */
NCCL_API ncclCommInitAll(struct ncclComm **all, int count, const int *devices)
{
	CUcontext c;
	struct id id;
	int r = ncclGetUniqueId(&id);

	for (int i = 0; i < count && !r; i++) {
		if (cuDevicePrimaryCtxRetain(&c, devices ? devices[i] : i) || cuCtxPushCurrent_v2(c))
			return CUDA_ERROR;
		r = make(&all[i], hash(&id, sizeof id), i, count);
		cuCtxPopCurrent_v2(&c);
	}
	return r;
}

/* The ranks of one color, by their keys and then by their old ranks. */
NCCL_API ncclCommSplit(struct ncclComm *c, int color, int key, struct ncclComm **out,
	const struct config *config)
{
	uint64_t all[GS_STUB_RANKS], from[3] = {c->group, c->rounds, (uint64_t)color};
	int rank = 0, ranks = 0, r;

	*out = NULL;
	exchange(c, (uint64_t)(uint32_t)color << 32 | (uint32_t)key, all);
	for (int i = 0; i < c->ranks; i++) {
		int other = (int)(uint32_t)all[i];

		if ((int)(all[i] >> 32) != color)
			continue;
		ranks++;
		rank += other < key || (other == key && i < c->rank);
	}
	r = color < 0 ? OK : join(out, hash(from, sizeof from), rank, ranks);
	if (r || !*out || !config || config->blocking)
		return r;
	(*out)->in_progress = true;
	return IN_PROGRESS;
}

NCCL_API ncclCommGetAsyncError(struct ncclComm *c, int *result)
{
	c->in_progress = false;
	*result = OK;
	return OK;
}

NCCL_API ncclCommUserRank(const struct ncclComm *c, int *rank)
{
	*rank = c->rank;
	return c->in_progress ? IN_PROGRESS : OK;
}

NCCL_API ncclCommCount(const struct ncclComm *c, int *ranks)
{
	*ranks = c->ranks;
	return c->in_progress ? IN_PROGRESS : OK;
}

NCCL_API ncclCommDestroy(struct ncclComm *c)
{
	free(c);
	return OK;
}

/* Its kernels end here. The other ranks' wait on. */
NCCL_API ncclCommAbort(struct ncclComm *c)
{
	gs_meeting_abort(c->place, (uint64_t)c->rank);
	return ncclCommDestroy(c);
}

/* ---- collectives ---- */

static CUresult launch(const struct call *c, CUstream s)
{
	uint64_t none = 0, p[] = {c->group, c->number, c->rank, c->ranks, c->lasts, c->what};
	void *params[] = {&none, &p[0], &p[1], &p[2], &p[3], &p[4], &p[5]};

	return cuLaunchKernel(c->comm->kernel, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

/* On a stream of its own, behind what is on the call's stream so far. */
static CUresult launch_beside(struct call *c)
{
	CUstream s = NULL;
	CUevent before = NULL;
	CUresult r = cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);

	r = r ? r : cuEventCreate(&before, CU_EVENT_DISABLE_TIMING);
	r = r ? r : cuEventCreate(&c->after, CU_EVENT_DISABLE_TIMING);
	r = r ? r : cuEventRecord(before, c->stream);
	r = r ? r : cuStreamWaitEvent(s, before, 0);
	r = r ? r : launch(c, s);
	r = r ? r : cuEventRecord(c->after, s);
	if (before)
		cuEventDestroy_v2(before);
	if (s)
		cuStreamDestroy_v2(s);
	return r;
}

/* The call's stream goes on behind it. */
static CUresult launch_joined(const struct call *c)
{
	CUresult r = cuStreamWaitEvent(c->stream, c->after, 0);

	cuEventDestroy_v2(c->after);
	return r;
}

static CUresult launch_alone(struct call *c) { return c->peers ? CUDA_SUCCESS : launch(c, c->stream); }
static CUresult launch_pair(struct call *c) { return c->peers ? launch_beside(c) : CUDA_SUCCESS; }
static CUresult end_pair(struct call *c) { return c->after ? launch_joined(c) : CUDA_SUCCESS; }

static int each(CUresult (*step)(struct call *))
{
	CUresult r = CUDA_SUCCESS;
	CUcontext was;

	for (struct call *c = group.call; c < group.call + group.n && !r; c++) {
		r = cuCtxPushCurrent_v2(c->comm->context);
		r = r ? r : step(c);
		cuCtxPopCurrent_v2(&was);
	}
	return r ? CUDA_ERROR : OK;
}

static int launch_group(void)
{
	int r = each(launch_alone);

	r = r ? r : each(launch_pair);
	r = r ? r : each(end_pair);
	group.n = 0;
	return r;
}

static int add(struct call c)
{
	if (!c.comm)
		return INVALID_ARGUMENT;
	if (group.n == CALLS)
		return INTERNAL_ERROR;
	group.call[group.n++] = c;
	return group.depth ? OK : launch_group();
}

/* Bytes of an element, by ncclDataType_t. */
static uint64_t bytes(size_t count, int type)
{
	static const uint8_t size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

	return count * (type >= 0 && (size_t)type < sizeof size ? size[type] : 1);
}

static int collective(struct ncclComm *c, enum op op, uint64_t bytes, int root, CUstream s)
{
	if (!c || root < 0 || root >= c->ranks)
		return INVALID_ARGUMENT;
	return add((struct call){.comm = c, .stream = s, .group = c->group, .number = ++c->calls,
		.rank = (uint64_t)c->rank, .ranks = (uint64_t)c->ranks, .lasts = LATENCY + bytes / RATE,
		.what = hash((uint64_t[]){op, bytes, (uint64_t)root}, 24)});
}

/* The sender is rank 0 of a meeting of two. */
static int pair(struct ncclComm *c, int from, int to, uint64_t bytes, CUstream s)
{
	if (!c || from < 0 || to < 0 || from >= c->ranks || to >= c->ranks)
		return INVALID_ARGUMENT;
	return add((struct call){.comm = c, .stream = s, .peers = true, .ranks = 2, .rank = c->rank == to,
		.group = hash((uint64_t[]){c->group, (uint64_t)from, (uint64_t)to}, 24), .lasts = LATENCY + bytes / RATE,
		.what = bytes});
}

NCCL_API ncclGroupStart(void)
{
	group.depth++;
	return OK;
}

NCCL_API ncclGroupEnd(void)
{
	if (!group.depth)
		return INVALID_USAGE;
	return --group.depth ? OK : launch_group();
}

#define BUFFERS const void *from, void *to, size_t n, int type
#define LAST struct ncclComm *c, CUstream s

NCCL_API ncclAllReduce(BUFFERS, int how, LAST)
{
	(void)from, (void)to, (void)how;
	return collective(c, ALL_REDUCE, bytes(n, type), 0, s);
}

NCCL_API ncclBroadcast(BUFFERS, int root, LAST)
{
	(void)from, (void)to;
	return collective(c, BROADCAST, bytes(n, type), root, s);
}

NCCL_API ncclBcast(void *to, size_t n, int type, int root, LAST)
{
	return ncclBroadcast(to, to, n, type, root, c, s);
}

NCCL_API ncclReduce(BUFFERS, int how, int root, LAST)
{
	(void)from, (void)to, (void)how;
	return collective(c, REDUCE, bytes(n, type), root, s);
}

NCCL_API ncclAllGather(BUFFERS, LAST)
{
	(void)from, (void)to;
	return collective(c, ALL_GATHER, bytes(n, type), 0, s);
}

NCCL_API ncclReduceScatter(BUFFERS, int how, LAST)
{
	(void)from, (void)to, (void)how;
	return collective(c, REDUCE_SCATTER, bytes(n, type), 0, s);
}

NCCL_API ncclAlltoAll(BUFFERS, LAST)
{
	(void)from, (void)to;
	return collective(c, ALL_TO_ALL, bytes(n, type), 0, s);
}

NCCL_API ncclGather(BUFFERS, int root, LAST)
{
	(void)from, (void)to;
	return collective(c, GATHER, bytes(n, type), root, s);
}

NCCL_API ncclScatter(BUFFERS, int root, LAST)
{
	(void)from, (void)to;
	return collective(c, SCATTER, bytes(n, type), root, s);
}

NCCL_API ncclSend(const void *from, size_t n, int type, int peer, LAST)
{
	(void)from;
	return pair(c, c ? c->rank : 0, peer, bytes(n, type), s);
}

NCCL_API ncclRecv(void *to, size_t n, int type, int peer, LAST)
{
	(void)to;
	return pair(c, peer, c ? c->rank : 0, bytes(n, type), s);
}

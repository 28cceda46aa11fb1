/* Checkpoints of processes, which another process makes: it locks one, takes its
 * memory from the GPUs, puts it there again, and lets it go on. Only the states are
 * real: no byte of the memory exists, but taking it away and putting it back take their
 * time.
 *   GS_STUB_CHECKPOINT_RATE, GS_STUB_RESTORE_RATE  of the process that calls: bytes a
 *                       second, by default 2 GiB and 6 GiB; 0: they take no time
 *   GS_STUB_CHECKPOINT  of the process to be checkpointed, when it calls cuInit. refuse:
 *                       CUDA_ERROR_NOT_SUPPORTED, and it stays locked; fail:
 *                       CUDA_ERROR_UNKNOWN, and it has failed; hang: the call does not
 *                       return before that process ends, and it stays locked
 * A process that asks what its GPU has done, or waits for that, while its memory is away
 * faults: cuStreamQuery, cuEventQuery, cuEventElapsedTime, cuStreamSynchronize,
 * cuEventSynchronize and cuCtxSynchronize. The real driver (580.159) then ends it by SIGSEGV, and
 * this one by SIGBUS. Other calls wait.
 * A process that has failed gets CUDA_ERROR_UNKNOWN from all calls. Unlike with the real
 * driver, the process need not run for this: it may be stopped. And a restore that found
 * no room can be tried again; some drivers (580.95) fail for good then. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stub.h"

#define SOON 20000    /* ns; who waits for work to end does not look again earlier, */
#define LATE 10000000 /* and not later than this */
#define CHECKPOINT_RATE (2ull << 30) /* bytes a second */
#define RESTORE_RATE (6ull << 30)

enum gs_checkpoint gs_checkpoint(void)
{
	const char *set = getenv("GS_STUB_CHECKPOINT");

	if (!set)
		return GS_WORKS;
	return !strcmp(set, "refuse") ? GS_REFUSES : !strcmp(set, "fail") ? GS_FAILS : !strcmp(set, "hang") ? GS_HANGS
		: GS_WORKS;
}

static bool zero(const void *args, size_t n)
{
	static const char none[64];

	return !args || !memcmp(args, none, n);
}

/* The bytes that the process holds on the GPU. It is locked. */
static uint64_t held(const struct gs_gpu *g, int pid, bool *uses)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < g->procs; i++)
		if (g->proc[i].pid == pid) {
			sum += g->proc[i].used;
			*uses = true;
		}
	return sum;
}

static uint64_t held_on_all(int pid, bool *uses)
{
	uint64_t sum = 0;

	*uses = false;
	for (uint32_t i = 0; i < gs_host->gpus; i++) {
		struct gs_gpu *g = gs_gpu_lock(i);

		sum += held(g, pid, uses);
		gs_gpu_unlock(g);
	}
	return sum;
}

/* The process of that number, which lives and uses a GPU. */
static CUresult find(int pid, struct gs_client **out)
{
	struct gs_client *c, *end;
	bool uses;

	GS_TRY(gs_initialised());
	c = gs_host->client;
	end = c + GS_STUB_CLIENTS;
	while (c < end && (c->pid != pid || !gs_client_alive(c)))
		c++;
	if (pid <= 0 || c == end)
		return CUDA_ERROR_INVALID_VALUE;
	held_on_all(pid, &uses);
	*out = c;
	return uses ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult end(struct gs_client *c, CUresult r)
{
	gs_client_end(c);
	return r;
}

/* The same, and no other is at a checkpoint of it. */
static CUresult begin(int pid, struct gs_client **c)
{
	GS_TRY(find(pid, c));
	if (!gs_client_begin(*c))
		return CUDA_ERROR_ILLEGAL_STATE;
	/* It may have died meanwhile, and its place may be another's. */
	return (*c)->pid == pid ? CUDA_SUCCESS : end(*c, CUDA_ERROR_INVALID_VALUE);
}

static CUresult change(struct gs_client *c, enum gs_state from, enum gs_state to)
{
	if (!gs_client_alive(c))
		return CUDA_ERROR_INVALID_VALUE;
	return gs_client_change(c, from, to) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

/* No later than the work that a stream has now will be done; 0: it has none. */
static uint64_t busy_stream(struct gs_gpu *g, uint32_t stream)
{
	const struct gs_slot_stream *s = &g->stream[stream];

	return s->head == s->tail ? 0 : gs_predict(g, (struct gs_point){stream, s->generation, s->tail - 1});
}

/* The same of all streams of a process. */
static uint64_t busy(int pid)
{
	uint64_t last = 0;

	for (uint32_t n = 0; n < gs_host->gpus; n++) {
		struct gs_gpu *g = gs_gpu_lock(n);

		for (uint32_t p = 0; p < g->procs; p++)
			for (uint32_t i = g->proc[p].pid == pid ? g->proc[p].streams : 0; i; i = g->stream[i - 1].next) {
				uint64_t t = busy_stream(g, i - 1);

				last = t > last ? t : last;
			}
		gs_gpu_unlock(g);
	}
	return last;
}

/* Its calls wait at once, so that its work can come to an end. */
static CUresult lock(struct gs_client *c, uint64_t timeout)
{
	uint64_t deadline = timeout ? gs_stub_now() + timeout : GS_NEVER;
	int pid = c->pid;

	GS_TRY(change(c, GS_RUNNING, GS_LOCKING));
	for (;;) {
		uint32_t seen = gs_host->bell;
		uint64_t until = busy(pid), now = gs_stub_now();

		if (!until)
			return change(c, GS_LOCKING, GS_LOCKED);
		if (now >= deadline || !gs_client_alive(c)) {
			GS_TRY(change(c, GS_LOCKING, GS_RUNNING));
			return CUDA_ERROR_NOT_READY;
		}
		until = until < now + SOON ? now + SOON : until > now + LATE ? now + LATE : until;
		gs_bell_await(seen, until < deadline ? until : deadline);
	}
}

/* Lets the time pass that so many bytes take, unless the process dies meanwhile. */
static CUresult pass(const struct gs_client *c, uint64_t bytes, uint64_t rate)
{
	uint64_t now = gs_stub_now(), done = now + (rate ? (uint64_t)((double)bytes * 1e9 / (double)rate) : 0);

	for (; now < done; now = gs_stub_now()) {
		nanosleep(&(struct timespec){.tv_nsec = (long)(done - now < LATE ? done - now : LATE)}, NULL);
		if (!gs_client_alive(c))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult checkpoint(struct gs_client *c)
{
	bool uses;

	if (c->state != GS_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (c->shares || c->checkpoint == GS_REFUSES)
		return CUDA_ERROR_NOT_SUPPORTED;
	while (c->checkpoint == GS_HANGS) {
		nanosleep(&(struct timespec){.tv_nsec = LATE}, NULL);
		if (!gs_client_alive(c))
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (c->checkpoint == GS_FAILS) {
		GS_TRY(change(c, GS_LOCKED, GS_FAILED));
		return CUDA_ERROR_UNKNOWN;
	}
	GS_TRY(pass(c, held_on_all(c->pid, &uses), gs_setting("GS_STUB_CHECKPOINT_RATE", CHECKPOINT_RATE)));
	gs_client_put(c, false);
	return change(c, GS_LOCKED, GS_CHECKPOINTED);
}

/* Takes its memory again: on all GPUs, or on none. */
static CUresult take(struct gs_client *c)
{
	CUresult r = CUDA_SUCCESS;
	int pid = c->pid;
	bool uses;

	gs_host_lock();
	for (uint32_t i = 0; i < gs_host->gpus; i++) {
		const struct gs_gpu *g = &gs_host->gpu[i];

		if (held(g, pid, &uses) > g->memory - gs_used(g))
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!r)
		r = change(c, GS_CHECKPOINTED, GS_RESTORING);
	for (uint32_t i = 0; i < gs_host->gpus && !r; i++) {
		struct gs_gpu *g = &gs_host->gpu[i];

		if (g->peak < gs_used(g))
			g->peak = gs_used(g);
	}
	gs_host_unlock();
	return r;
}

static CUresult restore(struct gs_client *c)
{
	bool uses;

	if (c->state != GS_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	GS_TRY(take(c));
	GS_TRY(pass(c, held_on_all(c->pid, &uses), gs_setting("GS_STUB_RESTORE_RATE", RESTORE_RATE)));
	gs_client_put(c, true);
	return change(c, GS_RESTORING, GS_LOCKED);
}

/* The driver has a thread for this in the process. Here it is the first one. */
GS_API cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct gs_client *c;

	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(find(pid, &c));
	*tid = pid;
	return CUDA_SUCCESS;
}

GS_API cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct gs_client *c;
	enum gs_state s;

	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(find(pid, &c));
	s = c->state;
	*state = s == GS_LOCKING ? CU_PROCESS_STATE_RUNNING : s == GS_RESTORING ? CU_PROCESS_STATE_CHECKPOINTED
		: (CUprocessState)s;
	return CUDA_SUCCESS;
}

GS_API cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	struct gs_client *c;

	if (args && (args->reserved0 || !zero(args->reserved1, sizeof args->reserved1)))
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(begin(pid, &c));
	return end(c, lock(c, args ? args->timeoutMs * 1000000ull : 0));
}

GS_API cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	struct gs_client *c;

	if (!zero(args, sizeof *args))
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(begin(pid, &c));
	return end(c, checkpoint(c));
}

/* Always to the GPUs that it was on. */
GS_API cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct gs_client *c;

	if (!zero(args, sizeof *args))
		return CUDA_ERROR_NOT_SUPPORTED;
	GS_TRY(begin(pid, &c));
	return end(c, restore(c));
}

GS_API cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	struct gs_client *c;

	if (!zero(args, sizeof *args))
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(begin(pid, &c));
	return end(c, change(c, GS_LOCKED, GS_RUNNING));
}

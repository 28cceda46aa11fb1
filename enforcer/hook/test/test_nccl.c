/* Communicators and collectives in the trace, on the simulated driver and NCCL. Most
 * tests are two ranks, each a process with a GPU of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "gate/nccl.h"
#include "gate/turns.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/wrapped.h"

static int rank;
#define CHECK(x) do { if (!(x)) { dprintf(2, "%s:%d: rank %d: not so: %s\n", __FILE__, __LINE__, rank, #x); _exit(1); } } while (0)
#include "run.h"
#define MS 1000000ull
#define FLOAT 7
#define IN_PROGRESS 7
#define MIB (1ull << 20)

struct id { char bytes[128]; };
int ncclCommInitRank(void **comm, int ranks, struct id id, int of);
int ncclCommInitAll(void **comms, int count, const int *devices);
int ncclCommSplit(void *comm, int color, int key, void **child, void *config);
int ncclCommDestroy(void *comm);
int ncclCommAbort(void *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *from, void *to, size_t n, int type, int how, void *comm, CUstream s);
int ncclAllGather(const void *from, void *to, size_t n, int type, void *comm, CUstream s);
int ncclSend(const void *from, size_t n, int type, int peer, void *comm, CUstream s);
int ncclRecv(void *to, size_t n, int type, int peer, void *comm, CUstream s);

static void *nccl;
static CUstream stream;
static CUfunction await;
static CUstream signals;
static CUdeviceptr word;
static struct gs_trace *own; /* the process's trace */

/* Each rank's clock stands until the test moves it on: a rank that waits for a processor does not pause. */
static _Atomic uint64_t clock_at = 1000000 * MS;
uint64_t gs_now(void) { return clock_at; }
static void clock_pass(uint64_t ns) { clock_at += ns; }

/* There is no helper: the tests look themselves. */
_Atomic uint64_t gs_helper_wake;
static _Atomic uint64_t groups; /* the broker was told of */
void gs_helper_start(void) { }
void gs_turns_ask(struct gs_gpu *g, bool again) { (void)g, (void)again; }
void gs_turns_seat(struct gs_gpu *g) { (void)g; }
void gs_turns_group(struct gs_gpu *g, uint64_t group) { (void)g, (void)group, groups++; }
void gs_turns_begin(struct gs_gpu *g, enum gs_phase phase, uint64_t turn, uint32_t flags, uint64_t now)
{
	(void)g, (void)phase, (void)turn, (void)flags, (void)now;
}

/* The two ranks tell each other these. */
static struct shared {
	_Atomic uint64_t id[2][2];
	_Atomic uint64_t collected[2]; /* us */
	_Atomic uint64_t arrived;
	_Atomic uint64_t seen[2]; /* a bit for each collective that was measured */
} *shared;

/* ---- a rank ---- */

#define DRIVER(name, ...) ((CUresult (*)(__VA_ARGS__))driver(#name))

static void *driver(const char *name)
{
	void *f = NULL;
	int status;

	OK(cuGetProcAddress_v2(name, &f, 13000, 0, &status));
	return f;
}

static void begin_trace(void)
{
	own = calloc(1, sizeof(struct gs_traced));
	gs_trace_begin(own);
}

static void begin(void)
{
	CUcontext c;
	void *module;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&c, rank));
	OK(DRIVER(cuCtxSetCurrent, CUcontext)(c));
	OK(DRIVER(cuStreamCreate, CUstream *, unsigned)(&stream, 1));
	OK(DRIVER(cuModuleLoadData, void **, const void *)(&module, ""));
	OK(DRIVER(cuModuleGetFunction, CUfunction *, void *, const char *)(&await, module, "await"));
	OK(DRIVER(cuStreamCreate, CUstream *, unsigned)(&signals, 1));
	OK(DRIVER(cuMemAlloc, CUdeviceptr *, size_t)(&word, 4));
	OK(DRIVER(cuMemsetD32, CUdeviceptr, unsigned, size_t)(word, 0, 1));
	begin_trace();
}

static void *join_as(int ranks, int of, const char *name)
{
	struct id id = {{0}};
	void *comm = NULL;

	snprintf(id.bytes, sizeof id.bytes, "%s", name);
	OK(ncclCommInitRank(&comm, ranks, id, of));
	return comm;
}

static void *join(void)
{
	begin();
	return join_as(2, rank, "two");
}

/* The stream does not get on until release(). */
static void hold(void)
{
	uint64_t ns = 1000, address = word, value = 1;
	void *params[] = {&ns, &address, &value};

	OK(cuLaunchKernel(await, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void release(void)
{
	OK(DRIVER(cuStreamWriteValue32, CUstream, CUdeviceptr, uint32_t, unsigned)(signals, word, 1, 0));
}

static int reduce(void *comm, size_t bytes)
{
	return ncclAllReduce(NULL, NULL, bytes / 4, FLOAT, 0, comm, stream);
}

static void finish(void)
{
	OK(cuStreamSynchronize(stream));
	gs_nccl_look();
}

/* Both ranks are here. */
static void meet(uint64_t times)
{
	atomic_fetch_add(&shared->arrived, 1);
	AWAIT(atomic_load(&shared->arrived) >= 2 * times);
}

static unsigned count(enum gs_event_kind kind, uint32_t *last)
{
	unsigned n = 0;

	for (uint64_t i = 0; i < own->head; i++)
		if ((own->event[i].what & 0xff) == kind) {
			n++;
			*last = own->event[i].id;
		}
	return n;
}

/* ---- the tests ---- */

static _Atomic unsigned touched;

static CUresult touch(CUevent e)
{
	(void)e;
	touched++;
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult touch_record(CUevent e, CUstream s)
{
	(void)s;
	return touch(e);
}

static void collectives_are_noted(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];
	uint32_t first = 0, second = 0, us;

	OK(reduce(comm, MIB));
	CHECK(count(GS_EVENT_COLLECTIVE, &first) == 1);
	CHECK(c->entered == 1 && c->op == GS_ALL_REDUCE && c->bytes == MIB && c->entered_ticks);
	OK(ncclAllGather(NULL, NULL, 100, FLOAT, comm, stream));
	CHECK(count(GS_EVENT_COLLECTIVE, &second) == 2 && second != first);
	CHECK(c->entered == 2 && c->op == GS_ALL_GATHER && c->bytes == MIB + 400);
	OK(reduce(comm, MIB));
	CHECK(count(GS_EVENT_COLLECTIVE, &second) == 3 && second == first);
	CHECK(c->rank == (uint32_t)rank && c->ranks == 2 && c->gpu == (uint32_t)rank && c->id && groups == 1);
	finish();
	CHECK(c->ended == 3 && c->measured == 3 && count(GS_EVENT_COLLECTED, &us) == 3);
	shared->id[rank][0] = c->id;
	meet(1);
	CHECK(shared->id[0][0] == shared->id[1][0]);
	OK(ncclCommDestroy(comm));
	CHECK(!c->id);
}

/* The rank for which the other waits has the shorter time. */
static void waiting_is_measured(void)
{
	void *comm = join();
	uint32_t us = 0;

	OK(reduce(comm, MIB)); /* both begin the next one at the same time */
	finish();
	if (rank)
		hold();
	OK(reduce(comm, 100 * MIB));
	meet(1);
	if (rank) {
		usleep(100000); /* or longer: the other rank's GPU waits meanwhile */
		release();
	}
	finish();
	CHECK(count(GS_EVENT_COLLECTED, &us) == 2 && own->communicator[0].measured_ns >= us * 1000ull);
	shared->collected[rank] = us;
	meet(2);
	CHECK(shared->collected[1] > 1000 && shared->collected[1] < 50000); /* 100 MiB need 1.07 ms */
	CHECK(shared->collected[0] > shared->collected[1] + 50000);
}

/* One of the ranks does not come, and then it comes for something else. */
static void who_is_missing_is_seen(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];

	OK(reduce(comm, MIB));
	finish();
	if (rank)
		OK(reduce(comm, MIB));
	meet(1);
	if (rank)
		CHECK(gs_real.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
	gs_nccl_look();
	CHECK(c->entered == 1u + (unsigned)rank && c->ended == 1);
	if (!rank)
		OK(reduce(comm, 2 * MIB));
	meet(2);
	gs_nccl_look();
	CHECK(gs_real.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY && c->entered == 2 && c->ended == 1);
	OK(ncclCommAbort(comm));
	OK(cuStreamSynchronize(stream));
}

static void splits_have_one_identity(void)
{
	void *comm = join(), *child[2], *none = NULL;
	struct { size_t size; unsigned magic, version; int blocking; } config = {.blocking = 0};
	int result;

	OK(ncclCommSplit(comm, 3, -rank, &child[0], NULL)); /* in the other order */
	OK(ncclCommSplit(comm, rank ? -1 : 0, 0, &none, NULL)); /* of one rank, and none */
	CHECK(ncclCommSplit(comm, 3, 0, &child[1], &config) == IN_PROGRESS);
	CHECK(own->communicator[1].rank == 1u - (unsigned)rank && own->communicator[1].ranks == 2);
	CHECK(!own->communicator[2].ranks && !own->communicator[3].id);
	OK(((int (*)(void *, int *))dlsym(nccl, "ncclCommGetAsyncError"))(child[1], &result));
	OK(reduce(child[1], MIB));
	CHECK(own->communicator[2].rank == (unsigned)rank && own->communicator[2].ranks == 2);
	if (!rank)
		OK(reduce(none, MIB));
	finish();
	CHECK(!own->communicator[0].entered && own->communicator[2].ended == 1 && !own->lost);
	for (int i = 0; i < 2; i++)
		shared->id[rank][i] = own->communicator[i + 1].id;
	meet(1);
	CHECK(shared->id[0][0] == shared->id[1][0] && shared->id[0][1] == shared->id[1][1]);
	CHECK(shared->id[0][0] != shared->id[0][1] && shared->id[0][0] != own->communicator[0].id);
}

static void nothing_is_measured_in_a_capture(void)
{
	void *comm = join();
	CUgraph graph = NULL;
	uint32_t us = 0;

	CUresult (*record)(CUevent, CUstream) = gs_real.cuEventRecord;

	OK(cuStreamBeginCapture_v2(stream, 2));
	gs_real.cuEventRecord = touch_record;
	OK(reduce(comm, MIB));
	gs_real.cuEventRecord = record;
	OK(cuStreamEndCapture(stream, &graph));
	finish();
	CHECK(graph && !touched && own->communicator[0].entered == 1 && !count(GS_EVENT_COLLECTED, &us));
	OK(reduce(comm, MIB));
	finish();
	CHECK(count(GS_EVENT_COLLECTED, &us) == 1 && own->communicator[0].ended == 2);
}

static void groups_are_measured_once(void)
{
	void *comm = join();
	uint32_t us = 0;

	OK(ncclGroupStart());
	OK(reduce(comm, MIB));
	OK(ncclGroupStart());
	OK(reduce(comm, 2 * MIB));
	OK(ncclGroupEnd());
	OK(reduce(comm, 4 * MIB));
	CHECK(own->communicator[0].entered == 3 && !own->communicator[0].measured);
	OK(ncclGroupEnd());
	finish();
	CHECK(own->communicator[0].ended == 3 && count(GS_EVENT_COLLECTED, &us) == 1);
}

/* Two ranks send and receive in the same order: only in a group does that end. */
static void exchanges_are_not_numbered(void)
{
	void *comm = join();
	uint32_t id;

	OK(ncclGroupStart());
	OK(ncclSend(NULL, 100, FLOAT, 1 - rank, comm, stream));
	OK(ncclRecv(NULL, 100, FLOAT, 1 - rank, comm, stream));
	OK(ncclGroupEnd());
	finish();
	CHECK(!own->communicator[0].entered && own->communicator[0].bytes == 800);
	CHECK(count(GS_EVENT_COLLECTIVE, &id) == 2 && !count(GS_EVENT_COLLECTED, &id));
}

/* Calls so many within a second. */
static void call_many(void *comm, unsigned calls, unsigned waits_after)
{
	for (unsigned i = 1; i <= calls; i++) {
		OK(reduce(comm, 4));
		if (i % waits_after == 0)
			finish();
	}
	clock_pass(1000 * MS);
}

/* After the first second all ranks measure the same few of many. */
static void of_many_the_same_are_measured(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];
	uint64_t measured;

	call_many(comm, 1000, 4);
	measured = c->measured;
	call_many(comm, 1000, 4);
	CHECK(c->measured - measured == 1000 / 8);
}

/* A GPU that does not come to the first of many collectives is seen. That one does not count: the ranks may wait for
 * their GPUs at different times. */
static void the_first_after_a_wait_is_seen(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];

	call_many(comm, 1000, 1000);
	call_many(comm, 1, 1); /* of the following, each eighth counts */
	uint64_t measured = c->measured, entered = c->entered;
	CHECK(measured < entered && entered == 1001 && c->ended <= entered && !c->unbegun);
	meet(1);
	if (rank)
		hold();
	for (int i = 0; i < 3; i++)
		OK(reduce(comm, 4));
	meet(2);
	while (!rank && c->begun <= entered)
		gs_nccl_look();
	gs_nccl_look();
	CHECK(rank ? c->unbegun == entered + 1 : c->begun == entered + 1 && c->ended <= entered);
	meet(3);
	if (rank)
		release();
	finish();
	CHECK(!c->unbegun && c->ended > entered && c->measured <= measured + 1);
}

/* Of many first ones, all ranks measure the same, although one has paused where the other one has not. */
static void of_many_first_ones_the_same_are_measured(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];
	uint64_t seen = 0, counted = 0;

	call_many(comm, 1000, 1);
	OK(reduce(comm, 4));
	if (rank)
		clock_pass(2 * MS);
	OK(reduce(comm, 4));
	for (int i = 0; i < 64; i++) {
		for (int j = 0; j < 2; j++) /* the first one has an odd number */
			OK(reduce(comm, 4));
		uint64_t first = c->entered - 1, before = c->ended;
		finish();
		seen |= (uint64_t)(c->ended >= first && before < first) << i;
		counted |= (uint64_t)(c->entered % 8 == 0) << i;
	}
	atomic_store(&shared->seen[rank], seen);
	meet(1);
	CHECK(atomic_load(&shared->seen[0]) == atomic_load(&shared->seen[1]));
	CHECK(seen & ~counted);
}

/* The helper looks four times a second at rest: in between, a program with short steps has many measured. */
static void many_are_measured_between_two_looks(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];

	call_many(comm, 1000, 1000);
	gs_nccl_look();
	for (int i = 0; i < 150; i++) {
		OK(reduce(comm, 4));
		OK(cuStreamSynchronize(stream));
	}
	meet(1);
	if (rank)
		hold();
	OK(reduce(comm, 4));
	meet(2);
	while (!rank && c->begun < c->entered)
		gs_nccl_look();
	gs_nccl_look();
	CHECK(rank ? c->unbegun == c->entered : c->ended == c->entered - 1);
	meet(3);
	if (rank)
		release();
	finish();
}

/* A GPU that does not come to where another stream waits for the last collective is seen. The stream is marked once
 * for it, and for no exchange; neither is the collective's own stream, nor one that waits before the first one. */
static void streams_that_wait_are_marked(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];
	CUresult (*wait)(CUstream, CUevent, unsigned) = DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned);
	CUstream communicate;
	CUevent e;

	OK(DRIVER(cuStreamCreate, CUstream *, unsigned)(&communicate, 1));
	OK(DRIVER(cuEventCreate, CUevent *, unsigned)(&e, 0));
	OK(wait(stream, e, 0));
	OK(ncclAllReduce(NULL, NULL, 1, FLOAT, 0, comm, communicate));
	OK(wait(communicate, e, 0));
	OK(cuStreamSynchronize(communicate));
	gs_nccl_look();
	CHECK(!c->reached && !c->unreached);
	meet(1);
	if (rank)
		hold();
	OK(wait(stream, e, 0));
	meet(2);
	while (!rank && !c->reached)
		gs_nccl_look();
	gs_nccl_look();
	CHECK(c->reached == !rank && c->unreached == (uint32_t)rank);
	meet(3);
	if (rank)
		release();
	finish();
	CHECK(c->reached == 1 && !c->unreached && c->measured == 1);
	OK(ncclGroupStart());
	OK(ncclAllReduce(NULL, NULL, 1, FLOAT, 0, comm, communicate));
	OK(ncclGroupEnd());
	OK(wait(stream, e, 0));
	finish();
	CHECK(c->reached == 2);
	OK(rank ? ncclRecv(NULL, 1, FLOAT, 0, comm, communicate) : ncclSend(NULL, 1, FLOAT, 1, comm, communicate));
	gs_real.cuEventRecord = touch_record;
	OK(wait(stream, e, 0));
	OK(wait(stream, e, 0));
	CHECK(!touched);
}

/* A capture would end without a graph, or have the mark in it. */
static void nothing_is_marked_in_a_capture(void)
{
	void *comm = join();
	CUstream captured;
	CUgraph graph = NULL;
	CUevent e;

	OK(DRIVER(cuStreamCreate, CUstream *, unsigned)(&captured, 1));
	OK(DRIVER(cuEventCreate, CUevent *, unsigned)(&e, 0));
	OK(reduce(comm, MIB));
	OK(cuStreamBeginCapture_v2(captured, 2));
	gs_real.cuEventRecord = touch_record;
	OK(DRIVER(cuEventRecord, CUevent, CUstream)(e, captured));
	OK(DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned)(captured, e, 0));
	OK(cuStreamEndCapture(captured, &graph));
	CHECK(graph && !touched);
}

static _Atomic unsigned records;
static CUresult (*record)(CUevent, CUstream);

static CUresult count_record(CUevent e, CUstream s)
{
	records++;
	return record(e, s);
}

static CUstream inner;
static CUevent before;

/* Other streams wait while NCCL makes a call: its own. */
static CUresult wait_and_record(CUevent e, CUstream s)
{
	if (!records++)
		OK(DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned)(inner, before, 0));
	return record(e, s);
}

static void streams_of_nccl_are_not_marked(void)
{
	void *comm = join();

	OK(DRIVER(cuStreamCreate, CUstream *, unsigned)(&inner, 1));
	OK(DRIVER(cuEventCreate, CUevent *, unsigned)(&before, 0));
	OK(reduce(comm, MIB));
	record = gs_real.cuEventRecord;
	gs_real.cuEventRecord = wait_and_record;
	OK(reduce(comm, MIB));
	CHECK(records == 2); /* around the call */
}

/* A program that waits before each collective has no more than some of them measured. */
static void waits_cost_a_bounded_number_of_events(void)
{
	void *comm = join();

	for (int i = 0; i < 2; i++)
		call_many(comm, 4000, 1);
	record = gs_real.cuEventRecord;
	gs_real.cuEventRecord = count_record;
	call_many(comm, 4000, 1);
	CHECK(records > 0 && records < 2 * 2 * 300);
}

/* Who waits for whom in an exchange. */
static void exchanges_are_counted_by_peer(void)
{
	void *comm = join();
	const struct gs_communicator *c = &own->communicator[0];

	for (int i = 0; i < 2; i++)
		OK(rank ? ncclRecv(NULL, 100, FLOAT, 0, comm, stream) : ncclSend(NULL, 100, FLOAT, 1, comm, stream));
	finish();
	CHECK(c->peer[0].rank == 2u - (unsigned)rank && !c->peer[1].rank && !c->inside && !c->before);
	CHECK(c->peer[0].sent == (rank ? 0 : 2) && c->peer[0].received == (rank ? 2 : 0));
	if (rank)
		hold();
	OK(rank ? ncclRecv(NULL, 100, FLOAT, 0, comm, stream) : ncclSend(NULL, 100, FLOAT, 1, comm, stream));
	meet(1);
	while (!rank && !c->inside)
		gs_nccl_look();
	gs_nccl_look();
	CHECK(c->inside == 1u - (unsigned)rank && c->before == (unsigned)rank);
	meet(2);
	if (rank)
		release();
	finish();
	CHECK(!c->inside && !c->before && !c->measured);
}

static void a_trace_that_begins_later_has_all(void)
{
	void *comm;
	const struct gs_communicator *c;

	begin();
	gs_trace_begin(NULL);
	comm = join_as(2, rank, "two");
	for (int i = 0; i < 5; i++)
		OK(reduce(comm, MIB));
	finish();
	CHECK(!own->head && !own->communicator[0].id);
	gs_trace_begin(own);
	gs_nccl_look();
	c = &own->communicator[0];
	CHECK(c->id && c->entered == 5 && c->bytes == 5 * MIB && c->op == GS_ALL_REDUCE && !c->ended && !own->head);
	OK(reduce(comm, MIB));
	finish();
	CHECK(c->entered == 6 && c->ended == 6);
	memset(own, 0, sizeof *own); /* another session's, at the same place */
	gs_trace_begin(own);
	gs_nccl_look();
	CHECK(c->id && c->entered == 6 && c->ended == 6 && c->entered_ticks);
}

static void a_child_has_none(void)
{
	void *comm = join();
	int status;
	pid_t child;

	OK(reduce(comm, MIB));
	finish();
	child = fork();
	if (!child) {
		CHECK(!gs_trace);
		begin_trace();
		gs_nccl_look();
		CHECK(!own->communicator[0].id);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status && own->communicator[0].id);
}

static void events_end_with_their_context(void)
{
	void *comm = join();

	OK(reduce(comm, MIB));
	OK(cuStreamSynchronize(stream));
	meet(1);
	OK(cuDevicePrimaryCtxReset_v2(rank));
	gs_real.cuEventQuery = touch;
	gs_real.cuEventDestroy_v2 = touch;
	gs_nccl_look();
	CHECK(!touched && !own->communicator[0].measured);
}

static void one_process_can_be_all_ranks(void)
{
	void *comms[2];
	CUstream streams[2];
	CUcontext c;

	if (rank)
		return;
	begin();
	OK(ncclCommInitAll(comms, 2, NULL));
	for (int i = 0; i < 2; i++) {
		CHECK(own->communicator[i].rank == (unsigned)i && own->communicator[i].gpu == (unsigned)i);
		OK(cuDevicePrimaryCtxRetain(&c, i));
		OK(DRIVER(cuCtxSetCurrent, CUcontext)(c));
		OK(DRIVER(cuStreamCreate, CUstream *, unsigned)(&streams[i], 1));
	}
	CHECK(own->communicator[0].id == own->communicator[1].id);
	OK(ncclGroupStart());
	for (int i = 0; i < 2; i++)
		OK(ncclAllReduce(NULL, NULL, 100, FLOAT, 0, comms[i], streams[i]));
	OK(ncclGroupEnd());
	OK(cuStreamSynchronize(streams[0]));
	OK(cuStreamSynchronize(streams[1]));
	CHECK(own->communicator[0].entered == 1 && own->communicator[1].entered == 1);
}

static void there_is_room_for_so_many(void)
{
	void *comm, *last = NULL;
	char name[16];

	begin();
	for (int i = 0; i <= GS_COMMUNICATORS; i++) {
		snprintf(name, sizeof name, "%d", i);
		comm = join_as(2, rank, name);
		if (i < GS_COMMUNICATORS)
			last = comm;
	}
	OK(reduce(comm, MIB));
	CHECK(own->lost == 1 && own->communicator[GS_COMMUNICATORS - 1].id);
	OK(ncclCommDestroy(last));
	CHECK(!own->communicator[GS_COMMUNICATORS - 1].id);
	join_as(2, rank, "more");
	CHECK(own->communicator[GS_COMMUNICATORS - 1].id);
}

static void dlsym_finds_the_wrappers(void)
{
	CHECK(dlsym(nccl, "ncclAllReduce") == (void *)ncclAllReduce);
	CHECK(dlsym(nccl, "ncclGetUniqueId") && dlsym(nccl, "ncclGetUniqueId") == gs_dlsym(nccl, "ncclGetUniqueId"));
	CHECK(!dlsym(nccl, "ncclNeverHeardOf"));
}

/* Each of the two ranks, a child of this process, runs the test, and this process waits for them. */
static void begin_ranks(void)
{
	int failed = 0, status;
	pid_t child[2];

	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	run_gpus();
	for (rank = 0; rank < 2; rank++) {
		child[rank] = fork();
		if (!child[rank]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run_keeps();
			return;
		}
	}
	for (int i = 0; i < 2; i++) {
		wait(&status);
		if (status && !failed) /* the other one may wait for it */
			kill(child[0], SIGKILL), kill(child[1], SIGKILL);
		failed |= status;
	}
	_exit(failed != 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(collectives_are_noted),
		TEST(waiting_is_measured),
		TEST(who_is_missing_is_seen),
		TEST(splits_have_one_identity),
		TEST(nothing_is_measured_in_a_capture),
		TEST(groups_are_measured_once),
		TEST(exchanges_are_not_numbered),
		TEST(of_many_the_same_are_measured),
		TEST(the_first_after_a_wait_is_seen),
		TEST(of_many_first_ones_the_same_are_measured),
		TEST(many_are_measured_between_two_looks),
		TEST(waits_cost_a_bounded_number_of_events),
		TEST(streams_that_wait_are_marked),
		TEST(nothing_is_marked_in_a_capture),
		TEST(streams_of_nccl_are_not_marked),
		TEST(exchanges_are_counted_by_peer),
		TEST(a_trace_that_begins_later_has_all),
		TEST(a_child_has_none),
		TEST(events_end_with_their_context),
		TEST(one_process_can_be_all_ranks),
		TEST(there_is_room_for_so_many),
		TEST(dlsym_finds_the_wrappers),
	};

	setenv("GS_STUB_GPUS", "2", 1);
	nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL); /* as Python's modules load it */
	CHECK(nccl);
	return RUN_TESTS(tests, argc, argv, begin_ranks);
}

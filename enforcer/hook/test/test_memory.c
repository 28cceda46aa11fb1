/* The books of memory, on the simulated driver, with a broker that is a few lines
 * here: one cap that all processes share. */
#define _GNU_SOURCE
#include <pthread.h>

#include "base/futex.h"
#include "ledger/growers.h"
#include "test_books.h"
#include "trace/crash.h"
#include "trace/trace.h"

#define MIB (1ull << 20)

/* ---- what the test calls and the hook does not ---- */

CUresult gs_test_call(const char *name, void **f)
{
	int status;
	return cuGetProcAddress_v2(name, f, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
}
#define DRIVER(name, ...) CUresult (*name)(__VA_ARGS__); OK(gs_test_call(#name, (void **)&name))

/* What all processes hold, according to the driver itself. */
static uint64_t truth(void)
{
	size_t left, total;

	OK(gs_real.cuMemGetInfo_v2(&left, &total));
	return total - left;
}

/* The books and the driver agree, and nothing is left over. */
#define AGREE(bytes) do { \
	CHECK(truth() == (bytes)); CHECK(shared->committed == (bytes)); \
	CHECK(shared->used == (bytes)); CHECK(!shared->bad); } while (0)

static CUcontext begin(uint64_t cap)
{
	CUcontext c;

	shared->cap = cap;
	page.slot[0].cap = cap;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(c));
	return c;
}

static void linear(void)
{
	CUdeviceptr a = 0, b = 0, untouched = 77;
	size_t pitch = 0, left, total;

	begin(64 * MIB);
	OK(cuMemAlloc_v2(&a, 60 * MIB));
	AGREE(60 * MIB);
	CHECK(cuMemAlloc_v2(&untouched, 5 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && untouched == 77);
	CHECK(cuMemAllocManaged(&untouched, 5 * MIB, 1) == CUDA_ERROR_OUT_OF_MEMORY && untouched == 77);
	CHECK(cuMemAllocPitch_v2(&untouched, &pitch, 1 * MIB, 5, 4) == CUDA_ERROR_OUT_OF_MEMORY && untouched == 77 &&
	      pitch == 0);
	CHECK(cuMemAllocPitch_v2(&untouched, &pitch, SIZE_MAX, SIZE_MAX, 4) == CUDA_ERROR_OUT_OF_MEMORY &&
	      untouched == 77);
	OK(cuMemGetInfo_v2(&left, &total));
	CHECK(left == 4 * MIB && total == 64 * MIB);
	OK(cuDeviceTotalMem_v2(&total, 0));
	CHECK(total == 64 * MIB);
	OK(cuMemAllocPitch_v2(&b, &pitch, 1000, 100, 4));
	AGREE(60 * MIB + pitch * 100);
	OK(cuMemFree_v2(a));
	AGREE(pitch * 100);
	OK(cuMemAllocManaged(&a, 3 * MIB, 1));
	AGREE(3 * MIB + pitch * 100);
	CHECK(cuMemFree_v2(0x1234567000) == CUDA_ERROR_INVALID_VALUE); /* no allocation's */
	CHECK(cuMemFree_v2(a + 512) == CUDA_ERROR_INVALID_VALUE);
	AGREE(3 * MIB + pitch * 100);
	OK(cuMemFree_v2(a));
	OK(cuMemFree_v2(b));
	CHECK(cuMemFree_v2(a) == CUDA_ERROR_INVALID_VALUE); /* twice */
	CHECK(cuMemAlloc_v2(&untouched, 0) == CUDA_ERROR_INVALID_VALUE);
	AGREE(0);
}

/* A trace has the kinds of memory for which the driver cannot checkpoint a process,
 * once a call for them succeeded. */
static void kinds_are_noted(void)
{
	struct gs_trace *trace = calloc(1, sizeof(struct gs_traced));
	CUmemAllocationProp p = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h, m;
	CUmemoryPool pool;
	CUdeviceptr a;
	int fd;
	char ipc[64];

	begin(64 * MIB);
	gs_trace_begin(trace);
	OK(cuMemAlloc_v2(&a, MIB));
	CHECK(cuMemAllocManaged(&a, 65 * MIB, 1) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuIpcGetMemHandle(NULL, a) != CUDA_SUCCESS);
	CHECK(!trace->shared);
	OK(cuIpcGetMemHandle((CUipcMemHandle *)ipc, a));
	CHECK(trace->shared == GS_SHARED_PROCESSES);
	trace->shared = 0;
	OK(cuMemCreate(&h, 2 * MIB, &p, 0));
	CHECK(!trace->shared);
	OK(cuMemExportToShareableHandle(&fd, h, 1, 0));
	CHECK(trace->shared == GS_SHARED_PROCESSES);
	trace->shared = 0;
	OK(cuMemImportFromShareableHandle(&m, (void *)(intptr_t)fd, 1));
	CHECK(trace->shared == GS_SHARED_PROCESSES);
	OK(cuMemRelease(m));
	OK(cuMemRelease(h));
	close(fd);
	trace->shared = 0;
	DRIVER(cuDeviceGetDefaultMemPool, CUmemoryPool *, CUdevice);
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
	CHECK(trace->shared == GS_SHARED_PROCESSES);
	trace->shared = 0;
	OK(cuMulticastCreate(&m, (const CUmulticastObjectProp *)&p));
	CHECK(trace->shared == GS_SHARED_MULTICAST);
	OK(cuMemAllocManaged(&a, MIB, 1));
	CHECK(trace->shared == (GS_SHARED_MULTICAST | GS_SHARED_MANAGED));
	gs_trace_begin(NULL);
	free(trace);
}

/* A trace has allocations with their size, and frees. */
static void noted(void)
{
	struct gs_trace *trace = calloc(1, sizeof(struct gs_traced));
	const struct gs_event *e = trace->event;
	CUdeviceptr a = 0;

	begin(64 * MIB);
	gs_trace_begin(trace);
	OK(cuMemAlloc_v2(&a, MIB + 1));
	OK(cuMemFree_v2(a));
	CHECK((e[0].what & 0xff) == GS_EVENT_ALLOC && e[0].id == 257);
	CHECK((e[1].what & 0xff) == GS_EVENT_FREE && !e[1].id && !e[2].what);
}

/* A suspended process may not ask or wait for its GPU: the driver would end it. So the call
 * waits here. */
static CUevent event;
static CUcontext own;
static size_t left_over, all_of_it;
static float took;
static CUresult stream_query(void) { return cuStreamQuery(NULL); }
static CUresult event_query(void) { return cuEventQuery(event); }
static CUresult elapsed(void) { return cuEventElapsedTime(&took, event, event); }
static CUresult elapsed_v2(void) { return cuEventElapsedTime_v2(&took, event, event); }
static CUresult stream_wait(void) { return cuStreamSynchronize(NULL); }
static CUresult event_wait(void) { return cuEventSynchronize(event); }
static CUresult context_wait(void) { return cuCtxSynchronize(); }
static CUresult memory_left(void) { return cuMemGetInfo_v2(&left_over, &all_of_it); }

static void *makes(void *call)
{
	CUresult (*own_call)(void);
	DRIVER(cuCtxSetCurrent, CUcontext);

	OK(cuCtxSetCurrent(own));
	memcpy(&own_call, &call, sizeof call);
	OK(own_call());
	return NULL;
}

static void who_is_suspended_waits(void)
{
	CUresult (*const calls[])(void) = {stream_query, event_query, elapsed, elapsed_v2, stream_wait, event_wait,
					   context_wait, memory_left};
	struct gs_trace *trace = calloc(1, sizeof(struct gs_traced));

	own = begin(64 * MIB);
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	OK(cuEventCreate(&event, 0));
	OK(cuEventRecord(event, NULL));
	OK(cuCtxSynchronize());
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		pthread_t t;
		void *call;

		gs_trace_begin(NULL);
		memset(trace, 0, sizeof *trace);
		gs_trace_begin(trace);
		__atomic_store_n(&page.suspended, 1, __ATOMIC_RELEASE);
		memcpy(&call, &calls[i], sizeof call);
		CHECK(!pthread_create(&t, NULL, makes, call));
		AWAIT((__atomic_load_n(&trace->event[0].what, __ATOMIC_ACQUIRE) & 0xff) == GS_EVENT_HELD);
		CHECK(!__atomic_load_n(&trace->event[1].what, __ATOMIC_ACQUIRE));
		__atomic_store_n(&page.suspended, 0, __ATOMIC_RELEASE);
		__atomic_fetch_add(&page.bell, 1, __ATOMIC_RELEASE);
		gs_bell_ring(&page);
		CHECK(!pthread_join(t, NULL));
		CHECK((trace->event[1].what & 0xff) == GS_EVENT_RELEASED);
	}
}

/* The interface before CUDA 3.2, which drivers still have. Two allocations in two
 * contexts of it have the same address. */
static void first_interface(void)
{
	const CUDA_ARRAY_DESCRIPTOR_v1 flat = {.Width = 1024, .Height = 1024, .Format = 0x20, .NumChannels = 4};
	const CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {.Width = 256, .Height = 256, .Depth = 16, .Format = 0x20,
						 .NumChannels = 1};
	CUdeviceptr_v1 a, b, none = 77;
	unsigned left, total, pitch;
	CUcontext one, two;
	CUarray x, y;

	begin(64 * MIB);
	OK(cuCtxCreate(&one, 0, 0));
	OK(cuMemAlloc(&a, 20 * MIB));
	OK(cuCtxCreate(&two, 0, 0)); /* is current now */
	OK(cuMemAlloc(&b, 30 * MIB));
	CHECK(a == b);
	AGREE(50 * MIB);
	CHECK(cuMemAlloc(&none, 20 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && none == 77);
	CHECK(cuMemAllocPitch(&none, &pitch, MIB, 20, 4) == CUDA_ERROR_OUT_OF_MEMORY && none == 77);
	OK(cuMemGetInfo(&left, &total));
	CHECK(left == 14 * MIB && total == 64 * MIB);
	OK(cuDeviceTotalMem(&total, 0));
	CHECK(total == 64 * MIB);
	OK(cuMemFree(b));
	AGREE(20 * MIB);
	CHECK(cuMemFree(b + 512) == CUDA_ERROR_INVALID_VALUE);
	OK(cuArrayCreate(&x, &flat));
	OK(cuArray3DCreate(&y, &deep));
	AGREE(40 * MIB);
	CHECK(cuArrayCreate(&x, &(CUDA_ARRAY_DESCRIPTOR_v1){.Width = 1024, .Height = 8192, .Format = 0x20,
							    .NumChannels = 4}) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuArrayDestroy(y));
	AGREE(36 * MIB);
	OK(cuArrayDestroy(x));
	OK(cuMemAllocPitch(&b, &pitch, 1000, 1024, 4));
	AGREE(21 * MIB);
	OK(cuCtxDestroy_v2(two));
	AGREE(20 * MIB);
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(one));
	OK(cuMemFree(a));
	AGREE(0);
}

static void contexts(void)
{
	CUcontext primary = begin(64 * MIB), own;
	CUdeviceptr a, b;

	OK(cuMemAlloc_v2(&a, MIB));
	OK(cuCtxCreate_v2(&own, 0, 0)); /* is current now */
	OK(cuMemAlloc_v2(&b, 2 * MIB));
	AGREE(3 * MIB);
	OK(cuCtxDestroy_v2(own));
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(primary));
	AGREE(MIB);
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuDevicePrimaryCtxRelease_v2(0)); /* not the last */
	AGREE(MIB);
	CHECK(destroyed_contexts == 1);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	CHECK(destroyed_contexts == 2 && shared->committed == 0 && shared->used == 0);
}

static void handles(void)
{
	CUmemAllocationProp prop = {.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle h = 0, again = 0, none = 9;
	CUdeviceptr at;

	begin(64 * MIB);
	DRIVER(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	OK(cuMemAddressReserve(&at, 8 * MIB, 0, 0, 0));
	OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
	AGREE(4 * MIB);
	CHECK(cuMemCreate(&none, 62 * MIB, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY && none == 9);
	OK(cuMemMap(at, 4 * MIB, 0, h, 0));
	OK(cuMemMap(at + 4 * MIB, 4 * MIB, 0, h, 0));
	OK(cuMemRelease(h));
	AGREE(4 * MIB); /* mapped */
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 4 * MIB)));
	OK(cuMemUnmap(at, 8 * MIB)); /* both */
	AGREE(4 * MIB); /* retained */
	OK(cuMemRelease(again));
	AGREE(0);
}

/* The bytes that are live at an address; 0: it was freed; -1: it was never listed. */
static int64_t live(const struct gs_crash *c, CUdeviceptr p)
{
	for (const struct gs_allocation *a = c->allocation; a < c->allocation + GS_ALLOCATIONS; a++)
		if (a->address == p)
			return a->freed_ns ? 0 : (int64_t)a->bytes;
	return -1;
}

/* What explains a crash has the memory of every kind of call, and what became of it. */
static void allocations_are_listed(void)
{
	struct gs_traced *t = calloc(1, sizeof *t);
	CUmemAllocationProp prop = {.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle h;
	CUdeviceptr a, b, pool, map;
	size_t pitch;

	CUcontext c = begin(64 * MIB);
	gs_traced_begin(&t->trace);
	DRIVER(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	DRIVER(cuStreamSynchronize, CUstream);
	OK(cuMemAlloc_v2(&a, MIB));
	OK(cuMemAllocPitch_v2(&b, &pitch, 1000, 100, 4));
	OK(cuMemAllocAsync(&pool, 3 * MIB, NULL));
	OK(cuMemAddressReserve(&map, 8 * MIB, 0, 0, 0));
	OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
	OK(cuMemMap(map, 4 * MIB, 0, h, 0));
	CHECK(live(&t->crash, a) == MIB && live(&t->crash, b) == (int64_t)pitch * 100);
	CHECK(live(&t->crash, pool) == 3 * MIB && live(&t->crash, map) == 4 * MIB);
	CHECK(cuMemFree_v2(a + 512) == CUDA_ERROR_INVALID_VALUE && live(&t->crash, a) == MIB);
	OK(cuMemFree_v2(a));
	OK(cuMemFreeAsync(pool, NULL));
	OK(cuMemUnmap(map, 4 * MIB));
	CHECK(!live(&t->crash, a) && live(&t->crash, b) && !live(&t->crash, pool) && !live(&t->crash, map));
	OK(cuStreamSynchronize(NULL));
	gs_context_gone(c);
	CHECK(!live(&t->crash, b) && !t->crash.unlisted);
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1024, .Height = 1024, .Format = 0x20, .NumChannels = 4};
	CUDA_ARRAY3D_DESCRIPTOR deep = {.Width = 256, .Height = 256, .Depth = 16, .Format = 0x20, .NumChannels = 1};
	CUarray a, b, none = (CUarray)9;
	CUmipmappedArray m;

	begin(64 * MIB);
	OK(cuArrayCreate_v2(&a, &flat));
	OK(cuArray3DCreate_v2(&b, &deep));
	OK(cuMipmappedArrayCreate(&m, &deep, 3));
	CHECK(shared->committed > 16 * MIB + 8 * MIB && !shared->bad);
	AGREE(truth());
	flat.Height = 8192;
	CHECK(cuArrayCreate_v2(&none, &flat) == CUDA_ERROR_OUT_OF_MEMORY && none == (CUarray)9);
	OK(cuArrayDestroy(a));
	OK(cuArrayDestroy(b));
	OK(cuMipmappedArrayDestroy(m));
	AGREE(0);
}

static void pools(void)
{
	CUmemPoolProps props = {.allocType = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemoryPool own;
	CUdeviceptr p[8], q, untouched = 77;
	uint64_t asked;

	begin(256 * MIB);
	DRIVER(cuStreamSynchronize, CUstream);
	for (int i = 0; i < 8; i++)
		OK(cuMemAllocAsync(&p[i], 20 * MIB, NULL));
	AGREE(truth());
	CHECK(truth() >= 160 * MIB);
	CHECK(cuMemAllocAsync(&untouched, 200 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY && untouched == 77);
	OK(cuMemFreeAsync(p[7], NULL));
	asked = shared->asked;
	OK(cuMemAllocAsync(&p[7], 20 * MIB, NULL)); /* it fits: the broker is not asked */
	CHECK(shared->asked == asked);
	for (int i = 0; i < 8; i++)
		OK(cuMemFreeAsync(p[i], NULL));
	OK(cuStreamSynchronize(NULL));
	gs_memory_settle();
	AGREE(0);

	OK(cuMemPoolCreate(&own, &props));
	uint64_t keep = UINT64_MAX;
	DRIVER(cuMemPoolSetAttribute, CUmemoryPool, int, void *);
	OK(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocFromPoolAsync(&q, 200 * MIB, own, NULL));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuStreamSynchronize(NULL));
	gs_memory_settle();
	CHECK(shared->committed >= 200 * MIB); /* kept */
	AGREE(truth());
	OK(cuMemAlloc_v2(&q, 100 * MIB)); /* denied at first; then the pool is trimmed */
	AGREE(100 * MIB);
	OK(cuMemFree_v2(q));
	OK(cuMemAllocFromPoolAsync(&q, 200 * MIB, own, NULL));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemPoolTrimTo(own, 0));
	AGREE(0);
	OK(cuMemPoolDestroy(own));
	AGREE(0);
}

/* Pools of managed memory, which may prefer any place. */
static void managed_pools(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED};
	CUmemLocation nowhere = {0}, device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	CUmemoryPool pool[4];
	CUdeviceptr p, untouched = 77;

	begin(128 * MIB);
	DRIVER(cuStreamSynchronize, CUstream);
	CHECK(cuMemPoolCreate(&pool[0], &props) == CUDA_SUCCESS);
	OK(cuMemGetDefaultMemPool(&pool[1], &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED));
	OK(cuMemGetMemPool(&pool[2], &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED));
	OK(cuMemGetDefaultMemPool(&pool[3], &device, 1));
	CHECK(cuMemGetMemPool(&pool[3], &(CUmemLocation){.type = 2}, 1) != CUDA_SUCCESS);
	for (int i = 0; i < 4; i++) {
		CHECK(cuMemAllocFromPoolAsync(&untouched, 200 * MIB, pool[i], NULL) == CUDA_ERROR_OUT_OF_MEMORY &&
		      untouched == 77);
		OK(cuMemAllocFromPoolAsync(&p, 100 * MIB, pool[i], NULL));
		CHECK(truth() >= 100 * MIB);
		AGREE(truth());
		OK(cuMemFreeAsync(p, NULL));
		OK(cuStreamSynchronize(NULL));
		gs_memory_settle();
		AGREE(0);
	}
}

static void graphs(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1,
							   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}};
	CUgraph g;
	CUgraphNode n;
	CUgraphExec e, none = (CUgraphExec)9;

	begin(256 * MIB);
	DRIVER(cuGraphCreate, CUgraph *, unsigned);
	DRIVER(cuGraphAddMemAllocNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *);
	DRIVER(cuStreamSynchronize, CUstream);
	OK(cuGraphCreate(&g, 0));
	params.bytesize = 64 * MIB;
	OK(cuGraphAddMemAllocNode(&n, g, NULL, 0, &params));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	AGREE(truth());
	OK(cuGraphLaunch(e, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK(truth() >= 64 * MIB);
	AGREE(truth());
	OK(cuGraphExecDestroy(e));
	OK(cuDeviceGraphMemTrim(0));
	AGREE(truth());
	params.bytesize = 1024 * MIB;
	OK(cuGraphAddMemAllocNode(&n, g, NULL, 0, &params));
	CHECK(cuGraphInstantiateWithFlags(&none, g, 0) == CUDA_ERROR_OUT_OF_MEMORY && none == (CUgraphExec)9);
	AGREE(truth());
	DRIVER(cuGraphDestroy, CUgraph);
	OK(cuGraphDestroy(g));
}

/* ---- threads that are cancelled ---- */

static CUcontext current;
static _Atomic bool made;

static __attribute__((noinline)) void set_current(void)
{
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(current));
}

/* Makes a call in a thread that is to be cancelled wherever the driver allows it. */
static void *to_be_cancelled(void *call)
{
	set_current();
	pthread_cancel(pthread_self());
	((void (*)(void))call)();
	made = true;
	pthread_testcancel();
	return NULL;
}

static void cancelled_in(void (*call)(void))
{
	pthread_t t;
	void *r;

	made = false;
	CHECK(!pthread_create(&t, NULL, to_be_cancelled, (void *)call) && !pthread_join(t, &r) &&
	      r == PTHREAD_CANCELED && made);
	AGREE(truth());
}

static CUdeviceptr linear_at, managed_at, pitched_at, pooled_at, reserved_at;
static CUmemGenericAllocationHandle created;
static CUmemoryPool pool_made;
static CUarray array_made;
static CUmipmappedArray levels_made;
static CUgraph graph_made;
static CUgraphExec exec_made;
static CUstream stream_made;
static CUcontext context_made;

static void take_linear(void) { OK(cuMemAlloc_v2(&linear_at, 3 * MIB)); }
static void take_managed(void) { OK(cuMemAllocManaged(&managed_at, 3 * MIB, 1)); }
static void take_pitched(void) { OK(cuMemAllocPitch_v2(&pitched_at, &(size_t){0}, 1000, 1000, 4)); }
static void take_pooled(void) { OK(cuMemAllocAsync(&pooled_at, 3 * MIB, NULL)); }
static void take_handle(void)
{
	OK(cuMemCreate(&created, 4 * MIB,
		       &(CUmemAllocationProp){.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}, 0));
}
static void take_array(void)
{
	OK(cuArrayCreate_v2(&array_made, &(CUDA_ARRAY_DESCRIPTOR){.Width = 1024, .Height = 1024, .Format = 0x20,
								  .NumChannels = 4}));
}
static void take_levels(void)
{
	OK(cuMipmappedArrayCreate(&levels_made,
				  &(CUDA_ARRAY3D_DESCRIPTOR){.Width = 256, .Height = 256, .Depth = 16, .Format = 0x20,
							     .NumChannels = 1}, 3));
}
static void take_graph(void) { OK(cuGraphInstantiateWithFlags(&exec_made, graph_made, 0)); }
static void launch_graph(void) { OK(cuGraphLaunch(exec_made, NULL)); }
static void map_handle(void) { OK(cuMemMap(reserved_at, 4 * MIB, 0, created, 0)); }
static void make_pool(void)
{
	OK(cuMemPoolCreate(&pool_made, &(CUmemPoolProps){.allocType = 1,
							 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}));
}
static void take_from_pool(void) { OK(cuMemAllocFromPoolAsync(&pooled_at, 3 * MIB, pool_made, NULL)); }
static void let_linear_go(void) { OK(cuMemFree_v2(linear_at)); }
static void let_managed_go(void) { OK(cuMemFree_v2(managed_at)); }
static void let_pitched_go(void) { OK(cuMemFree_v2(pitched_at)); }
static void let_handle_go(void) { OK(cuMemRelease(created)); }
static void unmap_handle(void) { OK(cuMemUnmap(reserved_at, 4 * MIB)); }
static void let_array_go(void) { OK(cuArrayDestroy(array_made)); }
static void let_levels_go(void) { OK(cuMipmappedArrayDestroy(levels_made)); }
static void let_graph_go(void) { OK(cuGraphExecDestroy(exec_made)); }
static void trim_graphs(void) { OK(cuDeviceGraphMemTrim(0)); }
static void trim_pool(void) { OK(cuMemPoolTrimTo(pool_made, 0)); }
static void let_pool_go(void) { OK(cuMemPoolDestroy(pool_made)); }
static void begin_capture(void) { OK(cuStreamBeginCapture_v2(stream_made, CU_STREAM_CAPTURE_MODE_RELAXED)); }
static void end_capture(void) { OK(cuStreamEndCapture(stream_made, &graph_made)); }

static void destroy_stream(void) { OK(cuStreamDestroy_v2(stream_made)); }
static void create_context(void) { OK(cuCtxCreate_v2(&context_made, 0, 0)); }
static void destroy_context(void) { OK(cuCtxDestroy_v2(context_made)); }
static void retain_primary(void) { OK(cuDevicePrimaryCtxRetain(&current, 0)); }
static void release_primary(void) { OK(cuDevicePrimaryCtxRelease_v2(0)); }

/* Whatever a thread is cancelled in, the books agree with the driver, and no lock
 * is left: the next call needs it. */
static void cancelled(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1,
							   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
							   .bytesize = 8 * MIB};
	CUgraphNode n;

	current = begin(256 * MIB);
	DRIVER(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuGraphCreate, CUgraph *, unsigned);
	DRIVER(cuGraphDestroy, CUgraph);
	DRIVER(cuGraphAddMemAllocNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *);
	OK(cuMemAddressReserve(&reserved_at, 8 * MIB, 0, 0, 0));
	OK(cuStreamCreate(&stream_made, 1));
	OK(cuGraphCreate(&graph_made, 0));
	OK(cuGraphAddMemAllocNode(&n, graph_made, NULL, 0, &params));
	static void (*const take[])(void) = {take_linear, take_managed, take_pitched, take_pooled, take_handle,
					     map_handle,
		take_array, take_levels, take_graph, launch_graph};
	for (size_t i = 0; i < sizeof take / sizeof *take; i++)
		cancelled_in(take[i]);
	OK(cuMemFreeAsync(pooled_at, NULL));
	cancelled_in(make_pool);
	cancelled_in(take_from_pool);
	OK(cuMemFreeAsync(pooled_at, NULL));
	OK(cuStreamSynchronize(NULL));
	gs_memory_settle();
	CHECK(truth() > 8 * MIB + 16 * MIB);
	static void (*const let_go[])(void) = {let_linear_go, let_managed_go, let_pitched_go, let_handle_go,
					       unmap_handle,
		let_array_go, let_levels_go, let_graph_go, trim_graphs, trim_pool, let_pool_go};
	for (size_t i = 0; i < sizeof let_go / sizeof *let_go; i++)
		cancelled_in(let_go[i]);
	AGREE(0);
	OK(cuGraphDestroy(graph_made));
	cancelled_in(begin_capture);
	CHECK(captures == 1);
	cancelled_in(end_capture);
	CHECK(!captures);
	OK(cuGraphDestroy(graph_made));
	static void (*const rest[])(void) = {destroy_stream, create_context, destroy_context, retain_primary,
					     release_primary};
	for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
		cancelled_in(rest[i]);
}

/* ---- the race ---- */

static void *racer(void *with)
{
	CUmemAllocationProp prop = {.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	unsigned seed = (unsigned)(uintptr_t)with;
	CUcontext c;

	OK(cuDevicePrimaryCtxRetain(&c, 0));
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(c));
	for (int i = 0; i < 200; i++) {
		CUdeviceptr p = 0;
		CUmemGenericAllocationHandle h;
		CUresult r;
		int kind = rand_r(&seed) % 3;
		size_t bytes = (1 + (unsigned)rand_r(&seed) % 16) * 2 * MIB;
		if (kind == 0)
			r = cuMemAlloc_v2(&p, bytes);
		else if (kind == 1)
			r = cuMemAllocAsync(&p, bytes, NULL);
		else
			r = cuMemCreate(&h, bytes, &prop, 0);
		CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY);
		if (truth() > shared->cap)
			atomic_fetch_add(&shared->over, 1);
		if (r == CUDA_SUCCESS)
			OK(kind == 0 ? cuMemFree_v2(p) : kind == 1 ? cuMemFreeAsync(p, NULL) : cuMemRelease(h));
	}
	return NULL;
}

/* Eight processes of eight threads, all under one cap. */
static void race(void)
{
	pid_t child[8];
	int status;

	for (int i = 0; i < 8; i++) {
		if ((child[i] = fork()))
			continue;
		pthread_t t[8];
		begin(160 * MIB);
		DRIVER(cuCtxSynchronize, void);
		for (int k = 0; k < 8; k++)
			CHECK(!pthread_create(&t[k], NULL, racer, (void *)(uintptr_t)(1 + i * 8 + k)));
		for (int k = 0; k < 8; k++)
			pthread_join(t[k], NULL);
		OK(cuCtxSynchronize());
		gs_memory_settle();
		_exit(0);
	}
	for (int i = 0; i < 8; i++)
		CHECK(waitpid(child[i], &status, 0) == child[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(shared->over == 0 && shared->bad == 0 && shared->most <= 160 * MIB);
	CHECK(shared->committed == 0 && shared->used == 0);
	printf("race: 64 threads in 8 processes, %llu requests, at most %llu of %llu MiB, over the cap 0 bytes\n",
	       (unsigned long long)shared->asked, (unsigned long long)(shared->most / MIB), 160ull);
}

static void forked(void)
{
	CUdeviceptr a;
	int status;

	begin(64 * MIB);
	OK(cuMemAlloc_v2(&a, MIB));
	uint64_t asked = shared->asked;
	pid_t child = fork();
	if (!child) {
		_exit(cuMemAlloc_v2(&a, MIB) == CUDA_ERROR_NOT_INITIALIZED &&
		      cuMemFree_v2(a) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(shared->asked == asked && shared->committed == MIB && !shared->bad);
	OK(cuMemFree_v2(a));
	AGREE(0);
}

/* Each test has a broker and GPUs of its own. */
static void begin_test(void)
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	run_gpus();
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(linear), TEST(noted), TEST(kinds_are_noted), TEST(who_is_suspended_waits), TEST(first_interface),
		TEST(contexts), TEST(handles), TEST(allocations_are_listed), TEST(arrays), TEST(pools), TEST(managed_pools), TEST(graphs),
		TEST(cancelled), TEST(forked), TEST(race),
	};

	return RUN_TESTS(tests, argc, argv, begin_test);
}

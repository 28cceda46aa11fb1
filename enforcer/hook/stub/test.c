/* Tests of the simulated driver. Each runs in processes of its own, on a GPU of its
 * own file, so that no test can spoil another. */
#define _GNU_SOURCE
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define MIB (1ull << 20)
#define IS(call, want) expect((long)(call), (long)(want), #call, __LINE__)

static CUfunction spin, meeting, collective, await, teller;
static CUcontext context, other; /* of GPU 0, and of GPU 1 if a test has it */

static void expect(long got, long want, const char *what, int line)
{
	if (got == want)
		return;
	fprintf(stderr, "test.c:%d: %s = %ld, want %ld\n", line, what, got, want);
	_exit(1);
}

static void near(double got, double want, double by, const char *what)
{
	if (got >= want - by && got <= want + by)
		return;
	fprintf(stderr, "%s: %g, want %g +- %g\n", what, got, want, by);
	_exit(1);
}

static void start(void)
{
	CUmodule m;

	IS(cuInit(0), 0);
	IS(cuDevicePrimaryCtxRetain(&context, 0), 0);
	IS(cuCtxSetCurrent(context), 0);
	IS(cuModuleLoadData(&m, "image"), 0);
	IS(cuModuleGetFunction(&spin, m, "spin"), 0);
	IS(cuModuleGetFunction(&meeting, m, "meet"), 0);
	IS(cuModuleGetFunction(&collective, m, "collective"), 0);
	IS(cuModuleGetFunction(&await, m, "await"), 0);
	IS(cuModuleGetFunction(&teller, m, "tell"), 0);
}

/* The same on a host of two GPUs, with GPU 0 current. */
static void start_two(void)
{
	setenv("GS_STUB_GPUS", "2", 1);
	start();
	IS(cuDevicePrimaryCtxRetain(&other, 1), 0);
}

static CUstream stream_on(CUcontext c)
{
	CUstream s;

	IS(cuCtxSetCurrent(c), 0);
	IS(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0);
	IS(cuCtxSetCurrent(context), 0);
	return s;
}

static CUresult run(uint64_t ns, CUstream s)
{
	void *params[] = {&ns};

	return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static CUresult meet(uint64_t ns, uint64_t group, uint64_t number, uint64_t rank, uint64_t count, CUstream s)
{
	void *params[] = {&ns, &group, &number, &rank, &count};

	return cuLaunchKernel(meeting, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

/* Of two ranks. */
static CUresult collect(uint64_t number, uint64_t rank, uint64_t lasts, uint64_t what, CUstream s)
{
	uint64_t none = 0, group = 9, count = 2;
	void *params[] = {&none, &group, &number, &rank, &count, &lasts, &what};

	return cuLaunchKernel(collective, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static CUresult on_word(CUfunction f, uint64_t ns, CUdeviceptr at, uint64_t value, CUstream s)
{
	void *params[] = {&ns, &at, &value};

	return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static CUevent event(CUstream s)
{
	CUcontext c;
	CUevent e;

	IS(cuStreamGetCtx(s, &c), 0);
	IS(cuCtxSetCurrent(c), 0);
	IS(cuEventCreate(&e, 0), 0);
	IS(cuEventRecord(e, s), 0);
	IS(cuCtxSetCurrent(context), 0);
	return e;
}

static double between(CUevent a, CUevent b)
{
	float ms;

	IS(cuEventElapsedTime(&ms, a, b), 0);
	return ms;
}

static size_t memory_free(void)
{
	size_t free, total;

	IS(cuMemGetInfo_v2(&free, &total), 0);
	return free;
}

static void events_are_exact(void)
{
	CUevent a, b, c, never;
	CUstream s;

	start();
	IS(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0);
	a = event(s);
	IS(run(3000000, s), 0);
	b = event(s);
	IS(run(500000, s), 0);
	c = event(s);
	IS(cuEventQuery(c), CUDA_ERROR_NOT_READY);
	IS(cuEventSynchronize(c), 0);
	/* The first kernel came some microseconds after the first event. */
	near(between(a, b), 3, 0.5, "first kernel");
	near(between(b, c), 0.5, 1e-6, "second kernel");
	IS(cuEventCreate(&never, 0), 0);
	IS(cuEventQuery(never), 0);
}

static void streams_are_ordered(void)
{
	CUstream s, t;
	CUevent e, f;

	start();
	IS(cuStreamCreate(&s, 0), 0);
	IS(cuStreamCreate(&t, 0), 0);
	IS(run(4000000, s), 0);
	e = event(s);
	IS(cuStreamWaitEvent(t, e, 0), 0);
	f = event(t);
	IS(cuEventSynchronize(f), 0);
	near(between(e, f), 0, 1e-6, "a stream that waits");
	IS(run(1000000, s), 0);
	e = event(s);
	IS(run(1000000, NULL), 0); /* the legacy stream waits for s */
	f = event(NULL);
	IS(cuStreamSynchronize(NULL), 0);
	near(between(e, f), 1, 1e-6, "legacy stream");
	IS(cuStreamDestroy_v2(s), 0);
	IS(cuCtxSynchronize(), 0);
}

/* The time of 100 ms of this process's kernels. Work before them covers the other's
 * start, and work after them makes the GPU wanted all the time, however busy this
 * machine's CPUs are. */
static void stretch(int go, int out)
{
	CUevent a, b;
	CUstream s;
	double ms;
	char c;

	start();
	IS(cuStreamCreate(&s, 0), 0);
	IS(read(go, &c, 1), 1);
	IS(run(300000000, s), 0);
	a = event(s);
	for (int i = 0; i < 200; i++)
		IS(run(500000, s), 0);
	b = event(s);
	IS(run(300000000, s), 0);
	IS(cuEventSynchronize(b), 0);
	ms = between(a, b);
	IS(write(out, &ms, sizeof ms), sizeof ms);
	IS(cuStreamSynchronize(s), 0);
	_exit(0);
}

static void two_share_half_and_half(void)
{
	int go[2], out[2];
	double ms;

	IS(pipe(go), 0);
	IS(pipe(out), 0);
	for (int i = 0; i < 2; i++)
		if (!fork())
			stretch(go[0], out[1]);
	IS(write(go[1], "go", 2), 2);
	for (int i = 0; i < 2; i++) {
		IS(read(out[0], &ms, sizeof ms), sizeof ms);
		near(ms, 202, 5, "100 ms of kernels at one half, 2 ms slices and 20 us switches");
	}
}

static void capture_has_rules(void)
{
	CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstream s;
	CUgraph g;
	CUgraphExec x;
	CUevent e, a;
	CUdeviceptr p;
	size_t n;

	start();
	IS(cuStreamCreate(&s, 0), 0);
	e = event(s);
	IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	IS(run(1000000, s), 0);
	IS(run(1000000, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	IS(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	IS(cuEventQuery(e), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	IS(run(1000, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	IS(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	IS(cuMemAlloc_v2(&p, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	IS(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	IS(run(1000000, s), 0);
	IS(cuThreadExchangeStreamCaptureMode(&relaxed), 0);
	IS(cuEventQuery(e), 0);
	IS(run(2000000, s), 0);
	IS(cuStreamEndCapture(s, &g), 0);
	IS(cuGraphGetNodes(g, NULL, &n), 0);
	IS(n, 2);
	IS(cuGraphInstantiateWithFlags(&x, g, 0), 0);
	IS(run(1000000, s), 0);
	a = event(s);
	IS(cuGraphLaunch(x, s), 0);
	e = event(s);
	IS(cuStreamSynchronize(s), 0);
	near(between(a, e), 3, 1e-6, "graph");
}

static void memory_is_one_arena(void)
{
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;
	CUmemoryPool pool;
	CUdeviceptr p, at, q = 7;
	size_t all;

	start();
	all = memory_free();
	IS(cuMemAlloc_v2(&p, all), 0);
	IS(cuMemAlloc_v2(&q, 1), CUDA_ERROR_OUT_OF_MEMORY);
	IS(q, 7);
	IS(cuMemFree_v2(p + 1), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemFree_v2(p), 0);
	IS(memory_free(), all);
	IS(cuMemAllocAsync(&p, MIB, NULL), 0);
	IS(memory_free(), all - 32 * MIB);
	IS(cuMemFreeAsync(p, NULL), 0);
	IS(cuDeviceGetDefaultMemPool(&pool, 0), 0);
	IS(cuMemPoolTrimTo(pool, 0), 0);
	IS(memory_free(), all);
	IS(cuMemCreate(&h, 20 * MIB, &prop, 0), 0);
	IS(cuMemAddressReserve(&at, 20 * MIB, 0, 0, 0), 0);
	IS(cuMemMap(at, 20 * MIB, 0, h, 0), 0);
	IS(cuMemRelease(h), 0);
	IS(memory_free(), all - 20 * MIB);
	IS(cuMemUnmap(at, 20 * MIB), 0);
	IS(memory_free(), all);
}

static void death_gives_back(void)
{
	int ready[2];
	struct timespec from, t;
	CUstream s;
	CUdeviceptr p;
	size_t all;
	char c;
	pid_t child;
	double ms;

	IS(pipe(ready), 0);
	child = fork();
	if (!child) {
		start();
		IS(cuMemAlloc_v2(&p, 1000 * MIB), 0);
		for (int i = 0; i < 500; i++)
			IS(run(100000000, NULL), 0);
		IS(write(ready[1], "x", 1), 1);
		pause();
	}
	IS(read(ready[0], &c, 1), 1);
	start();
	IS(cuStreamCreate(&s, 0), 0);
	all = memory_free();
	kill(child, SIGKILL);
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		clock_gettime(CLOCK_MONOTONIC, &t);
		ms = (double)(t.tv_sec - from.tv_sec) * 1e3 + (double)(t.tv_nsec - from.tv_nsec) / 1e6;
		near(ms, 0, 1000, "death, ms");
	} while (memory_free() != all + 1000 * MIB);
	CUevent a = event(s);
	IS(run(20000000, s), 0);
	CUevent b = event(s);
	IS(cuStreamSynchronize(s), 0);
	near(between(a, b), 20, 1, "a kernel alone");
}

static void a_forked_child_has_no_driver(void)
{
	CUstream s;
	int status;
	pid_t child;

	start();
	IS(cuStreamCreate(&s, 0), 0);
	child = fork();
	if (!child) {
		IS(cuStreamQuery(s), CUDA_ERROR_NOT_INITIALIZED);
		IS(run(1, s), CUDA_ERROR_NOT_INITIALIZED);
		IS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
		_exit(0);
	}
	IS(waitpid(child, &status, 0), child);
	IS(status, 0);
	IS(run(1, s), 0);
}

static void versions_are_gated(void)
{
	CUdriverProcAddressQueryResult status;
	void *f, *g;

	start();
	IS(cuGetProcAddress_v2("cuMemAlloc", &f, 12000, 0, &status), 0);
	IS(f == (void *)(uintptr_t)cuMemAlloc_v2, 1);
	IS(cuGetProcAddress_v2("cuLaunchKernelEx", &f, 11000, 0, &status), 0);
	IS(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	IS(cuGetProcAddress_v2("cuNoSuch", &f, 13000, 0, &status), 0);
	IS(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	IS(cuGetProcAddress_v2("cuCtxCreate", &f, 12000, 0, &status), 0);
	IS(cuGetProcAddress_v2("cuCtxCreate", &g, 13000, 0, &status), 0);
	IS(f == g, 0);
	IS(cuGetProcAddress_v2("cuLaunchKernel", &f, 13000, 2, &status), 0);
	IS(f == (void *)(uintptr_t)cuLaunchKernel_ptsz, 1);
}

/* 25 GB/s over the link and 1000 GB/s within, beside the kernels. */
static void copies_take_their_time(void)
{
	CUstream s, t, u;
	CUdeviceptr p, q;
	CUevent a, b, c, d;
	CUgraph g;
	size_t n;
	char h[1];
	int type;

	start();
	IS(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0);
	IS(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING), 0);
	IS(cuStreamCreate(&u, CU_STREAM_NON_BLOCKING), 0);
	IS(cuMemAlloc_v2(&p, 1000 * MIB), 0);
	IS(cuMemAlloc_v2(&q, 1000 * MIB), 0);
	a = event(s);
	IS(cuMemcpyHtoDAsync_v2(p, h, 250000000, s), 0);
	b = event(s);
	IS(cuMemcpyHtoDAsync_v2(q, h, 250000000, t), 0); /* the link makes one at a time */
	c = event(t);
	IS(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	IS(cuEventSynchronize(c), 0);
	near(between(b, c), 10, 0.5, "a copy behind another one, ms");
	near(between(a, c), 20, 1, "two copies, ms");
	a = event(u);
	IS(run(60000000, u), 0);
	d = event(u);
	IS(cuMemcpyHtoDAsync_v2(p, h, 250000000, s), 0);
	b = event(s);
	IS(cuEventSynchronize(d), 0);
	near(between(a, b), 10, 5, "a copy beside a kernel, ms");
	near(between(a, d), 60, 1, "the kernel, ms");
	a = event(s);
	IS(cuMemcpyDtoDAsync_v2(p, q, 500000000, s), 0);
	IS(run(1000000, s), 0); /* begins when the copy is done */
	b = event(s);
	IS(cuStreamSynchronize(s), 0);
	near(between(a, b), 1.5, 0.5, "a copy within and a kernel, ms");
	IS(cuMemcpyHtoD_v2(p, h, 25000000), 0);
	IS(cuMemcpyHtoD_v2(0, h, 1), CUDA_ERROR_INVALID_VALUE);
	IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 900 * MIB), 0);
	IS(type, CU_MEMORYTYPE_DEVICE);
	IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)h), CUDA_ERROR_INVALID_VALUE);
	IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	IS(cuMemcpyHtoDAsync_v2(p, h, 25000000, s), 0);
	IS(cuMemcpyHtoD_v2(p, h, 25000000), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	IS(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	IS(cuMemcpyHtoDAsync_v2(p, h, 25000000, s), 0);
	IS(cuStreamEndCapture(s, &g), 0);
	IS(cuGraphGetNodes(g, NULL, &n), 0);
	IS(n, 1);
}

/* A kernel that meets ends when the last of its partners begins, to the nanosecond,
 * whichever GPU is looked at first. */
static void partners_wait_for_each_other(void)
{
	CUstream s, t;
	CUevent a, b, c, d;

	start_two();
	s = stream_on(context);
	t = stream_on(other);
	a = event(s);
	IS(meet(1000000, 7, 1, 0, 2, s), 0);
	b = event(s);
	IS(run(20000000, t), 0);
	c = event(t);
	IS(meet(1000000, 7, 1, 1, 2, t), 0);
	d = event(t);
	IS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	IS(cuEventSynchronize(d), 0);
	IS(cuEventSynchronize(b), 0);
	near(between(c, b), 0, 1e-6, "who came first, ms after the other began");
	near(between(c, d), 1, 1e-6, "who came last, ms: its own work");
	near(between(a, b), 20, 5, "who came first, ms");
	IS(meet(0, 7, 1, 2, 2, s), CUDA_ERROR_INVALID_VALUE);
	IS(meet(0, 7, 1, 0, 3, s), CUDA_ERROR_INVALID_VALUE);
	IS(meet(0, 0, 1, 0, 1, s), CUDA_ERROR_INVALID_VALUE);
}

/* Two collectives in opposite order, each on its own stream: neither waits for what
 * is behind the other. And a rank that left is not waited for. */
static void orders_may_be_opposite(void)
{
	CUstream s[2], t[2];

	start_two();
	for (int i = 0; i < 2; i++) {
		s[i] = stream_on(context);
		t[i] = stream_on(other);
	}
	for (uint64_t n = 1; n <= 50; n++) {
		IS(meet(1000, 1, n, 0, 2, s[0]), 0);
		IS(meet(1000, 2, n, 1, 2, t[1]), 0);
		IS(run(10000, s[1]), 0);
		IS(run(10000, t[0]), 0);
		IS(meet(1000, 2, n, 0, 2, s[1]), 0);
		IS(meet(1000, 1, n, 1, 2, t[0]), 0);
	}
	for (int i = 0; i < 2; i++) {
		IS(cuStreamSynchronize(s[i]), 0);
		IS(cuStreamSynchronize(t[i]), 0);
	}
	IS(meet(0, 1, 0, 0, 2, s[0]), 0); /* its 51st */
	IS(meet(0, 1, UINT64_MAX, 1, 2, t[0]), 0);
	IS(meet(0, 1, 0, 0, 2, s[0]), 0);
	IS(cuStreamSynchronize(s[0]), 0);
}

/* A hundred steps of a gang of two processes. On one GPU they have it by turns. */
static double gang(int rank, int gpu)
{
	CUstream s;
	CUevent a, b;

	start_two();
	s = stream_on(gpu ? other : context);
	IS(meet(0, 3, 0, (uint64_t)rank, 2, s), 0);
	a = event(s);
	for (int i = 0; i < 100; i++) {
		IS(run(900000, s), 0);
		IS(meet(100000, 3, 0, (uint64_t)rank, 2, s), 0);
	}
	b = event(s);
	IS(cuEventSynchronize(b), 0);
	return between(a, b);
}

static double gang_of_two(int gpu)
{
	int status;
	pid_t child = fork();
	double ms;

	if (!child) {
		gang(1, gpu);
		_exit(0);
	}
	ms = gang(0, 0);
	IS(waitpid(child, &status, 0), child);
	IS(status, 0);
	return ms;
}

static void gangs_step_together(void) { near(gang_of_two(1), 100, 3, "100 steps on two GPUs, ms"); }
static void gangs_may_share_a_gpu(void) { near(gang_of_two(0), 205, 20, "100 steps on one GPU, ms"); }

/* A child that begins nothing, or one whose kernel waits for a partner that never
 * comes, once it has launched it. */
static pid_t lonely(bool begins)
{
	CUstream s;
	int ready[2];
	pid_t child;
	char c;

	IS(pipe(ready), 0);
	child = fork();
	if (child) {
		IS(read(ready[0], &c, 1), 1);
		return child;
	}
	start_two();
	s = stream_on(context);
	if (!begins)
		IS(run(1000000000000, s), 0);
	IS(meet(0, 4, 1, 1, 2, s), 0);
	IS(write(ready[1], "x", 1), 1);
	pause();
	_exit(0);
}

static void who_waits_spins_its_slices_away(void)
{
	CUevent a, b;
	CUstream s, t;
	pid_t child = lonely(true);

	start();
	s = stream_on(context);
	t = stream_on(context);
	a = event(s);
	IS(run(100000000, s), 0);
	b = event(s);
	IS(cuEventSynchronize(b), 0);
	near(between(a, b), 202, 5, "100 ms beside one that spins, 2 ms slices and 20 us switches");
	IS(meet(0, 4, 1, 0, 3, s), CUDA_ERROR_INVALID_VALUE); /* their meeting is of two */
	kill(child, SIGKILL);
	IS(waitpid(child, NULL, 0), child);
	while (meet(0, 4, 1, 0, 3, s)) { /* until a process sees that it is dead, and its place is free */
		IS(cuStreamQuery(s), 0);
		usleep(1000);
	}
	a = event(t);
	IS(run(20000000, t), 0);
	b = event(t);
	IS(cuEventSynchronize(b), 0);
	near(between(a, b), 20, 0.5, "20 ms on a stream beside one that spins");
	IS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
}

static void a_dead_partner_is_waited_for(void)
{
	CUstream s;
	pid_t child = lonely(false);

	start();
	s = stream_on(context);
	IS(meet(0, 4, 1, 0, 2, s), 0);
	kill(child, SIGKILL);
	IS(waitpid(child, NULL, 0), child);
	usleep(50000);
	IS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	IS(cuDevicePrimaryCtxRelease_v2(0), 0); /* and the waiting one may go */
	start();
	s = stream_on(context);
	IS(meet(0, 4, 1, 0, 1, s), 0);
	IS(cuStreamSynchronize(s), 0);
}

static void meetings_are_bounded(void)
{
	CUstream s;

	start();
	s = stream_on(context);
	for (uint64_t i = 1; i <= 1024; i++)
		IS(meet(0, i, 0, 0, 1, s), 0);
	IS(meet(0, 1025, 0, 0, 1, s), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuDevicePrimaryCtxRelease_v2(0), 0);
	start();
	s = stream_on(context);
	IS(meet(0, 1025, 0, 0, 1, s), 0);
	IS(cuStreamSynchronize(s), 0);
}

/* The second one begins 10 ms later. Then both go on for 5 ms, beside other kernels. */
static void partners_go_on_together(void)
{
	CUstream s, t, u;
	CUevent a, b, c, d, e, f;

	start_two();
	s = stream_on(context);
	t = stream_on(other);
	u = stream_on(context);
	a = event(s);
	b = event(t);
	c = event(u);
	IS(collect(1, 0, 5000000, 1, s), 0);
	IS(run(10000000, t), 0);
	IS(collect(1, 1, 5000000, 1, t), 0);
	IS(run(20000000, u), 0);
	d = event(s);
	e = event(t);
	f = event(u);
	usleep(30000); /* nobody looks meanwhile */
	IS(cuEventSynchronize(d), 0);
	IS(cuEventSynchronize(e), 0);
	IS(cuEventSynchronize(f), 0);
	near(between(a, d), 15, 2.1, "5 ms after the partner, who came after 10, and a slice");
	near(between(b, e), 15, 2.1, "10 ms, and 5 with the partner, and a slice");
	near(between(c, f), 20, 1, "20 ms beside that");
}

static void who_comes_for_something_else_meets_nobody(void)
{
	CUstream s, t;

	start_two();
	s = stream_on(context);
	t = stream_on(other);
	IS(collect(1, 0, 0, 1, s), 0);
	IS(collect(1, 1, 0, 2, t), 0);
	usleep(20000);
	IS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	IS(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
}

static void some_gpus_are_visible(void)
{
	CUdevice d = 0;
	int n = 0;

	setenv("GS_STUB_GPUS", "3", 1);
	setenv("CUDA_VISIBLE_DEVICES", "2,1,7,0", 1); /* up to the first that there is not */
	IS(cuInit(0), 0);
	IS(cuDeviceGetCount(&n), 0);
	IS(n, 2);
	IS(cuDeviceGet(&d, 0), 0);
	IS(d, 2);
	IS(cuDeviceGet(&d, 1), 0);
	IS(d, 1);
	IS(cuDeviceGet(&d, 2), CUDA_ERROR_INVALID_DEVICE);
}

static void kernels_wait_for_words(void)
{
	CUstream s, t, u;
	CUevent a, b, c;
	CUdeviceptr p;
	CUgraph g;

	start_two();
	s = stream_on(context);
	t = stream_on(context);
	u = stream_on(other);
	IS(cuMemAlloc_v2(&p, 4096), 0);
	a = event(s);
	IS(on_word(await, 0, p, 1, s), 0);
	IS(run(1000000, s), 0);
	b = event(s);
	IS(run(5000000, t), 0);
	c = event(t);
	IS(on_word(teller, 5000000, p, 1, t), 0);
	IS(cuStreamSynchronize(s), 0);
	near(between(c, b), 6, 1e-6, "what it waited for, and the kernel behind it, ms");
	near(between(a, b), 11, 0.5, "all of it, ms");
	IS(on_word(await, 0, p, 2, u), 0); /* on another GPU */
	b = event(u);
	IS(on_word(teller, 5000000, p, 2, t), 0);
	c = event(t);
	IS(cuStreamSynchronize(u), 0);
	near(between(c, b), 0, 1e-6, "on another GPU, ms");
	IS(on_word(await, 0, 0, 2, s), CUDA_ERROR_INVALID_VALUE);
	IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
	IS(on_word(await, 0, p, 3, s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	IS(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* A stream that waits does not hold its process's other streams up, and does not spin. */
static void streams_wait_for_words(void)
{
	static const struct { unsigned how; uint32_t value, no, yes; } compare[] = {
		{CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6}, {CU_STREAM_WAIT_VALUE_GEQ, 0x7fffffff, 0x7ffffffe, 0x80000001},
		{CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5}, {CU_STREAM_WAIT_VALUE_AND, 6, 9, 10},
		{CU_STREAM_WAIT_VALUE_NOR, 0xfffffff0, 15, 7},
	};
	CUdriverProcAddressQueryResult status;
	CUstream s, t;
	CUevent a, b, c;
	CUdeviceptr p;
	void *f;

	start();
	s = stream_on(context);
	t = stream_on(context);
	IS(cuMemAlloc_v2(&p, 4096), 0);
	for (size_t i = 0; i < sizeof compare / sizeof *compare; i++) {
		IS(cuStreamWriteValue32_v2(t, p, compare[i].no, 0), 0);
		IS(cuStreamSynchronize(t), 0);
		IS(cuStreamWaitValue32_v2(s, p, compare[i].value, compare[i].how), 0);
		b = event(s);
		IS(run(3000000, t), 0);
		IS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
		a = event(t);
		IS(cuStreamWriteValue32_v2(t, p, compare[i].yes, 0), 0);
		c = event(t);
		IS(cuStreamSynchronize(s), 0);
		IS(cuStreamSynchronize(t), 0);
		near(between(a, b), 0, 1e-3, "a stream that waited, ms after what it waited for");
		near(between(a, c), 0, 1e-3, "a write, ms");
	}
	IS(cuStreamWriteValue64_v2(s, p + 8, 1ull << 40, 0), 0);
	IS(cuStreamWaitValue64_v2(t, p + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_EQ), 0);
	IS(cuStreamSynchronize(t), 0);
	IS(cuStreamWaitValue32_v2(s, p + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
	IS(cuStreamWaitValue64_v2(s, p + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
	IS(cuStreamWaitValue32_v2(s, p, 0, 4), CUDA_ERROR_INVALID_VALUE);
	IS(cuStreamWriteValue32_v2(s, p, 0, 2), CUDA_ERROR_INVALID_VALUE);
	IS(cuGetProcAddress_v2("cuStreamWaitValue32", &f, 12000, 2, &status), 0);
	IS(f == (void *)(uintptr_t)cuStreamWaitValue32_v2_ptsz, 1);
	IS(cuGetProcAddress_v2("cuLaunchHostFunc", &f, 13000, 2, &status), 0);
	IS(f == (void *)(uintptr_t)cuLaunchHostFunc_ptsz, 1);
}

static _Atomic int calls, go;

static void count(void *order)
{
	IS(calls++, (intptr_t)order);
}

static void until_go(void *unused)
{
	(void)unused;
	while (!go)
		usleep(100);
}

static void functions_have_their_place(void)
{
	CUstream s, t;
	CUevent a, b;

	start();
	s = stream_on(context);
	t = stream_on(context);
	for (intptr_t i = 0; i < 5; i++) {
		IS(run(2000000, s), 0);
		IS(cuLaunchHostFunc(s, count, (void *)i), 0);
	}
	IS(calls, 0);
	IS(cuStreamSynchronize(s), 0);
	IS(calls, 5);
	IS(cuLaunchHostFunc(s, until_go, NULL), 0);
	a = event(s);
	IS(run(1000000, t), 0); /* another stream goes on */
	b = event(t);
	IS(cuStreamSynchronize(t), 0);
	IS(cuEventQuery(a), CUDA_ERROR_NOT_READY);
	go = 1;
	IS(cuEventSynchronize(a), 0);
	near(between(a, b) < 0, 1, 0, "a function's stream comes after");
	go = 0;
	IS(cuLaunchHostFunc(s, until_go, NULL), 0);
	IS(cuLaunchHostFunc(s, count, (void *)9), 0); /* is not called: its context goes */
	IS(cuStreamDestroy_v2(s), 0);
	IS(cuDevicePrimaryCtxRelease_v2(0), 0);
	go = 1;
	usleep(20000);
	IS(calls, 5);
	IS(cuLaunchHostFunc(NULL, NULL, NULL), CUDA_ERROR_INVALID_CONTEXT);
}

/* ---- checkpoints ---- */

#define BOUND 60 /* s; what takes longer hangs */

/* A process that makes the calls it is asked for, one by one, and tells what they return. */
struct target {
	pid_t pid;
	int ask, told;
};

static CUresult export(void)
{
	CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;
	int fd;

	IS(cuMemCreate(&h, 2 * MIB, &prop, 0), 0);
	return cuMemExportToShareableHandle(&fd, h, 1, 0);
}

/* What a target is asked for: a query, memory, memory that it shares, memory of a pool
 * that it frees, 200 ms of work, work that never ends, to wait for its work, and no
 * context any more. */
static CUresult call(char what)
{
	CUdeviceptr p;

	switch (what) {
	case 'q': return cuStreamQuery(NULL);
	case 'm': return cuMemAlloc_v2(&p, MIB);
	case 'x': return export();
	case 'p': return cuMemAllocAsync(&p, MIB, NULL) ? CUDA_ERROR_UNKNOWN : cuMemFreeAsync(p, NULL);
	case 'w': return run(200000000, NULL);
	case 'n': return on_word(await, 0, 4096, 1, NULL);
	case 's': return cuStreamSynchronize(NULL);
	default: return cuDevicePrimaryCtxRelease_v2(0);
	}
}

/* It has so much memory on GPU 0, and if more is not 0, on GPU 1. */
static struct target target(uint64_t mib, uint64_t more, const char *checkpoint)
{
	int ask[2], told[2];
	struct target t;
	CUdeviceptr p;
	CUresult r;
	char what;

	IS(pipe(ask), 0);
	IS(pipe(told), 0);
	t = (struct target){fork(), ask[1], told[0]};
	if (t.pid) {
		close(ask[0]);
		close(told[1]);
		IS(read(t.told, &r, sizeof r), sizeof r);
		return t;
	}
	close(ask[1]);
	alarm(BOUND);
	if (checkpoint)
		setenv("GS_STUB_CHECKPOINT", checkpoint, 1);
	if (more)
		start_two();
	else
		start();
	r = cuMemAlloc_v2(&p, mib * MIB);
	if (more) {
		IS(cuCtxSetCurrent(other), 0);
		IS(cuMemAlloc_v2(&p, more * MIB), 0);
		IS(cuCtxSetCurrent(context), 0);
	}
	do
		IS(write(told[1], &r, sizeof r), sizeof r);
	while (read(ask[0], &what, 1) == 1 && ((r = call(what)), true));
	_exit(0);
}

static void ask(struct target t, char what)
{
	IS(write(t.ask, &what, 1), 1);
}

static CUresult told(struct target t)
{
	CUresult r;

	IS(read(t.told, &r, sizeof r), sizeof r);
	return r;
}

static CUresult calls_for(struct target t, char what)
{
	ask(t, what);
	return told(t);
}

static bool waits(struct target t)
{
	struct pollfd p = {.fd = t.told, .events = POLLIN};

	return !poll(&p, 1, 50);
}

static void end(pid_t pid, int how)
{
	int status;

	kill(pid, how);
	IS(waitpid(pid, &status, 0), pid);
	IS(WIFSIGNALED(status) ? WTERMSIG(status) : 0, how);
}

static int state(struct target t)
{
	CUprocessState s = -1;

	IS(cuCheckpointProcessGetState(t.pid, &s), 0);
	return (int)s;
}

static CUresult lock(struct target t, unsigned ms)
{
	CUcheckpointLockArgs args = {.timeoutMs = ms};

	return cuCheckpointProcessLock(t.pid, &args);
}

static CUresult checkpoint(struct target t) { return cuCheckpointProcessCheckpoint(t.pid, NULL); }
static CUresult restore(struct target t) { return cuCheckpointProcessRestore(t.pid, NULL); }
static CUresult unlock(struct target t) { return cuCheckpointProcessUnlock(t.pid, NULL); }

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static size_t free_on(CUcontext c)
{
	size_t n;

	IS(cuCtxSetCurrent(c), 0);
	n = memory_free();
	IS(cuCtxSetCurrent(context), 0);
	return n;
}

static CUresult lock_for_long(struct target t) { return lock(t, 0); }

/* The checkpoint itself takes no time. */
static CUresult lock_and_checkpoint(struct target t)
{
	setenv("GS_STUB_CHECKPOINT_RATE", "0", 1);
	IS(lock(t, 0), 0);
	return checkpoint(t);
}

/* A process that makes one call when it is asked to, which takes long, until it is killed. */
static struct target caller(CUresult (*call)(struct target), struct target t)
{
	int ask[2], told[2];
	struct target c;
	char go;

	IS(pipe(ask), 0);
	IS(pipe(told), 0);
	c = (struct target){fork(), ask[1], told[0]};
	if (c.pid)
		return c;
	close(ask[1]);
	alarm(BOUND);
	setenv("GS_STUB_CHECKPOINT_RATE", "1", 1);
	setenv("GS_STUB_RESTORE_RATE", "1", 1);
	IS(cuInit(0), 0);
	if (read(ask[0], &go, 1) == 1 && write(told[1], &go, 1) == 1)
		call(t);
	_exit(0);
}

static void until_asleep(struct target t)
{
	char path[64], line[512] = "", *c;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)t.pid);
	do {
		usleep(1000);
		f = fopen(path, "r");
		IS(f && fgets(line, sizeof line, f), 1);
		fclose(f);
		c = strrchr(line, ')');
	} while (!c || c[2] != 'S');
}

/* Lets it make its call, until it sleeps in it. */
static void begins(struct target caller)
{
	char c;

	ask(caller, 'c');
	IS(read(caller.told, &c, 1), 1);
	until_asleep(caller);
}

/* Every call in every state. The one that calls has no context. */
static void a_checkpoint_has_its_order(void)
{
	CUcheckpointRestoreArgs pairs = {.reserved = {1}};
	CUcheckpointLockArgs args = {.reserved0 = 1};
	CUdriverProcAddressQueryResult found;
	struct target t = target(64, 0, NULL);
	const char *name;
	void *f;
	int tid = 0;

	alarm(BOUND);
	IS(lock(t, 0), CUDA_ERROR_NOT_INITIALIZED);
	IS(cuInit(0), 0);
	IS(state(t), CU_PROCESS_STATE_RUNNING);
	IS(checkpoint(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(restore(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(unlock(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(cuCheckpointProcessLock(t.pid, &args), CUDA_ERROR_INVALID_VALUE);
	IS(cuCheckpointProcessLock(t.pid, NULL), 0);
	IS(state(t), CU_PROCESS_STATE_LOCKED);
	IS(lock(t, 0), CUDA_ERROR_ILLEGAL_STATE);
	IS(restore(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(checkpoint(t), 0);
	IS(state(t), CU_PROCESS_STATE_CHECKPOINTED);
	IS(lock(t, 0), CUDA_ERROR_ILLEGAL_STATE);
	IS(checkpoint(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(unlock(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(cuCheckpointProcessRestore(t.pid, &pairs), CUDA_ERROR_NOT_SUPPORTED);
	IS(restore(t), 0);
	IS(state(t), CU_PROCESS_STATE_LOCKED);
	IS(restore(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(unlock(t), 0);
	IS(state(t), CU_PROCESS_STATE_RUNNING);
	IS(calls_for(t, 'q'), 0);
	IS(cuCheckpointProcessGetRestoreThreadId(t.pid, &tid), 0);
	IS(kill(tid, 0), 0);
	IS(cuGetErrorName(CUDA_ERROR_ILLEGAL_STATE, &name), 0);
	IS(strcmp(name, "CUDA_ERROR_ILLEGAL_STATE"), 0);
	IS(cuGetProcAddress_v2("cuCheckpointProcessLock", &f, 12070, 0, &found), 0);
	IS(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	IS(cuGetProcAddress_v2("cuCheckpointProcessLock", &f, 12080, 0, &found), 0);
	IS(f == (void *)(uintptr_t)cuCheckpointProcessLock, 1);
}

/* Neither this process, which has no context, nor one that has given its own back. */
static void only_a_gpus_process_is_checkpointed(void)
{
	struct target t = target(1, 0, NULL), self = {.pid = getpid()}, none = {.pid = INT_MAX}, odd = {.pid = -1};
	CUprocessState s;
	int tid;

	alarm(BOUND);
	IS(cuInit(0), 0);
	IS(lock(self, 0), CUDA_ERROR_INVALID_VALUE);
	IS(lock(odd, 0), CUDA_ERROR_INVALID_VALUE);
	IS(lock(none, 0), CUDA_ERROR_INVALID_VALUE);
	IS(checkpoint(none), CUDA_ERROR_INVALID_VALUE);
	IS(restore(none), CUDA_ERROR_INVALID_VALUE);
	IS(unlock(none), CUDA_ERROR_INVALID_VALUE);
	IS(cuCheckpointProcessGetState(none.pid, &s), CUDA_ERROR_INVALID_VALUE);
	IS(cuCheckpointProcessGetRestoreThreadId(none.pid, &tid), CUDA_ERROR_INVALID_VALUE);
	IS(lock(t, 0), 0);
	IS(unlock(t), 0);
	IS(calls_for(t, 'r'), 0);
	IS(lock(t, 0), CUDA_ERROR_INVALID_VALUE);
}

static void who_is_locked_waits(void)
{
	struct target t = target(64, 0, NULL);
	CUresult r;
	int all[] = {'q', 'm', 'w'};

	alarm(BOUND);
	start();
	for (int i = 0; i < 3; i++) {
		size_t left = memory_free();

		IS(lock(t, 0), 0);
		ask(t, (char)all[i]);
		IS(waits(t), 1);
		IS(checkpoint(t), 0);
		IS(memory_free(), left + (64 + (i > 1)) * MIB);
		IS(restore(t), 0);
		IS(memory_free(), left);
		IS(waits(t), 1);
		IS(unlock(t), 0);
		r = told(t);
		IS(r, 0);
		IS(memory_free(), left - (i == 1) * MIB);
	}
	IS(run(1000, NULL), 0); /* this process went on all the time */
	IS(cuStreamSynchronize(NULL), 0);
}

/* The 200 ms are this process's if the GPU is given it alone: they take no less. */
static void a_lock_waits_for_work(void)
{
	struct target t = target(64, 0, NULL), dies = caller(lock_for_long, t);
	double from;

	alarm(BOUND);
	IS(cuInit(0), 0);
	from = now_ms();
	IS(calls_for(t, 'w'), 0);
	IS(lock(t, 20000), 0);
	IS(now_ms() - from >= 200, 1);
	ask(t, 'q');
	IS(waits(t), 1);
	IS(unlock(t), 0);
	IS(told(t), 0);
	IS(calls_for(t, 'n'), 0);
	from = now_ms();
	IS(lock(t, 30), CUDA_ERROR_NOT_READY);
	IS(now_ms() - from >= 30, 1);
	IS(state(t), CU_PROCESS_STATE_RUNNING);
	IS(calls_for(t, 'q'), CUDA_ERROR_NOT_READY); /* its own work, which still runs */
	begins(dies);
	do /* until that call holds it */
		ask(t, 'q');
	while (!waits(t) && told(t));
	IS(state(t), CU_PROCESS_STATE_RUNNING);
	IS(unlock(t), CUDA_ERROR_ILLEGAL_STATE);
	end(dies.pid, SIGKILL);
	IS(told(t), CUDA_ERROR_NOT_READY);
	IS(lock(t, 1), CUDA_ERROR_NOT_READY);
}

/* Other calls wait. */
static void who_asks_while_away_ends(void)
{
	alarm(BOUND);
	IS(cuInit(0), 0);
	for (const char *what = "qs"; *what; what++) {
		struct target t = target(1, 0, NULL);
		int status;

		IS(lock_and_checkpoint(t), 0);
		ask(t, *what);
		IS(waitpid(t.pid, &status, 0), t.pid);
		IS(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, 1);
	}
}

/* A call may have begun before. This one waits for work, and gives memory back then. */
static void a_call_under_way_waits_too(void)
{
	struct target t = target(64, 0, NULL);
	size_t left;

	alarm(BOUND);
	start();
	IS(calls_for(t, 'p'), 0);
	left = memory_free();
	IS(calls_for(t, 'w'), 0);
	ask(t, 's');
	until_asleep(t);
	IS(lock(t, 0), 0);
	IS(waits(t), 1);
	IS(memory_free(), left);
	IS(checkpoint(t), 0);
	IS(restore(t), 0);
	IS(memory_free(), left);
	IS(unlock(t), 0);
	IS(told(t), 0);
	IS(memory_free(), left + 32 * MIB);
}

/* By the rates, 300 MiB go in 200 ms and come in 100; by those of an H200, in less. */
static void memory_leaves_and_returns(void)
{
	struct target t;
	size_t all, more;
	double from;

	alarm(BOUND);
	setenv("GS_STUB_GPUS", "2", 1);
	setenv("GS_STUB_CHECKPOINT_RATE", "1572864000", 1);
	setenv("GS_STUB_RESTORE_RATE", "3145728000", 1);
	t = target(100, 200, NULL);
	start_two();
	all = free_on(context);
	more = free_on(other);
	IS(lock(t, 0), 0);
	from = now_ms();
	IS(checkpoint(t), 0);
	near(now_ms() - from, 1100, 900, "a checkpoint of 300 MiB, ms");
	IS(free_on(context), all + 100 * MIB);
	IS(free_on(other), more + 200 * MIB);
	from = now_ms();
	IS(restore(t), 0);
	near(now_ms() - from, 1050, 950, "300 MiB come back, ms");
	IS(free_on(context), all);
	IS(free_on(other), more);
	IS(unlock(t), 0);
	IS(calls_for(t, 'm'), 0);
	IS(free_on(context), all - MIB);
}

/* It has no room on its second GPU: then it takes nothing of the first one. */
static void a_restore_needs_room(void)
{
	struct target t;
	size_t all, more;
	CUdeviceptr p;

	alarm(BOUND);
	setenv("GS_STUB_GPUS", "2", 1);
	t = target(100, 200, NULL);
	start_two();
	IS(lock(t, 0), 0);
	IS(checkpoint(t), 0);
	all = free_on(context);
	IS(cuCtxSetCurrent(other), 0);
	more = memory_free();
	IS(cuMemAlloc_v2(&p, more - 200 * MIB + 1), 0);
	IS(restore(t), CUDA_ERROR_OUT_OF_MEMORY);
	IS(state(t), CU_PROCESS_STATE_CHECKPOINTED);
	IS(memory_free(), 200 * MIB - 1);
	IS(free_on(context), all);
	IS(unlock(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(cuCtxSetCurrent(other), 0);
	IS(cuMemFree_v2(p), 0);
	IS(cuMemAlloc_v2(&p, more - 200 * MIB), 0);
	IS(restore(t), 0);
	IS(free_on(other), 0);
	IS(free_on(context), all - 100 * MIB);
	IS(unlock(t), 0);
	IS(calls_for(t, 'q'), 0);
}

static void a_checkpoint_may_be_refused(void)
{
	struct target t = target(64, 0, "refuse"), u = target(64, 0, NULL);
	size_t all;

	alarm(BOUND);
	start();
	all = memory_free();
	IS(checkpoint(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(lock(t, 0), 0);
	IS(checkpoint(t), CUDA_ERROR_NOT_SUPPORTED);
	IS(state(t), CU_PROCESS_STATE_LOCKED);
	IS(memory_free(), all);
	IS(unlock(t), 0);
	IS(calls_for(t, 'q'), 0);
	IS(calls_for(u, 'x'), 0); /* it shares memory */
	IS(lock(u, 0), 0);
	IS(checkpoint(u), CUDA_ERROR_NOT_SUPPORTED);
	IS(state(u), CU_PROCESS_STATE_LOCKED);
	IS(unlock(u), 0);
}

static void a_checkpoint_may_fail(void)
{
	struct target t = target(64, 0, "fail");
	size_t all;

	alarm(BOUND);
	start();
	all = memory_free();
	IS(lock(t, 0), 0);
	ask(t, 'q');
	IS(waits(t), 1);
	IS(checkpoint(t), CUDA_ERROR_UNKNOWN);
	IS(state(t), CU_PROCESS_STATE_FAILED);
	IS(told(t), CUDA_ERROR_UNKNOWN);
	IS(lock(t, 0), CUDA_ERROR_ILLEGAL_STATE);
	IS(checkpoint(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(restore(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(unlock(t), CUDA_ERROR_ILLEGAL_STATE);
	IS(memory_free(), all);
	end(t.pid, SIGKILL);
	while (memory_free() != all + 64 * MIB)
		usleep(1000);
}

static void a_checkpoint_may_hang(void)
{
	struct target t = target(64, 0, "hang"), dies = caller(lock_and_checkpoint, t);
	size_t all;

	alarm(BOUND);
	start();
	all = memory_free();
	begins(dies);
	while (state(t) != CU_PROCESS_STATE_LOCKED)
		usleep(1000);
	IS(unlock(t), CUDA_ERROR_ILLEGAL_STATE); /* the other is at it */
	IS(state(t), CU_PROCESS_STATE_LOCKED);
	IS(memory_free(), all);
	end(dies.pid, SIGKILL);
	IS(state(t), CU_PROCESS_STATE_LOCKED);
	IS(unlock(t), 0);
	IS(calls_for(t, 'q'), 0);
}

/* A caller dies in the middle: the process is where it was, with its memory or without. */
static void who_makes_a_checkpoint_may_die(void)
{
	struct target t = target(64, 0, NULL), dies = caller(checkpoint, t), too = caller(restore, t);
	size_t all;

	alarm(BOUND);
	start();
	all = memory_free();
	IS(lock(t, 0), 0);
	begins(dies);
	end(dies.pid, SIGKILL);
	IS(state(t), CU_PROCESS_STATE_LOCKED);
	IS(memory_free(), all);
	IS(checkpoint(t), 0); /* another may do it now */
	begins(too);
	IS(memory_free(), all); /* it is taken at the beginning */
	IS(state(t), CU_PROCESS_STATE_CHECKPOINTED);
	IS(restore(t), CUDA_ERROR_ILLEGAL_STATE);
	end(too.pid, SIGKILL);
	while (memory_free() != all + 64 * MIB)
		usleep(1000);
	IS(state(t), CU_PROCESS_STATE_CHECKPOINTED);
	IS(restore(t), 0);
	IS(memory_free(), all);
	IS(unlock(t), 0);
	IS(calls_for(t, 'q'), 0);
}

/* In each state: what it held is free. */
static void a_dead_process_has_no_checkpoint(void)
{
	struct target all[4];
	size_t left;

	alarm(BOUND);
	for (int i = 0; i < 4; i++)
		all[i] = target(64, 0, NULL);
	start();
	left = memory_free();
	for (int steps = 0; steps < 4; steps++) {
		struct target t = all[steps];
		CUprocessState s;

		if (steps > 0)
			IS(lock(t, 0), 0);
		if (steps > 1)
			IS(checkpoint(t), 0);
		if (steps > 2)
			IS(restore(t), 0);
		end(t.pid, SIGKILL);
		IS(cuCheckpointProcessGetState(t.pid, &s), CUDA_ERROR_INVALID_VALUE);
		IS(lock(t, 0), CUDA_ERROR_INVALID_VALUE);
		IS(restore(t), CUDA_ERROR_INVALID_VALUE);
		IS(unlock(t), CUDA_ERROR_INVALID_VALUE);
		left += 64 * MIB;
		while (memory_free() != left)
			usleep(1000);
	}
}

static const struct { const char *name; void (*test)(void); } tests[] = {
#define T(name) {#name, name}
	T(events_are_exact), T(streams_are_ordered), T(two_share_half_and_half), T(capture_has_rules),
	T(memory_is_one_arena), T(death_gives_back), T(a_forked_child_has_no_driver), T(versions_are_gated),
	T(copies_take_their_time), T(partners_wait_for_each_other), T(orders_may_be_opposite),
	T(gangs_step_together), T(gangs_may_share_a_gpu), T(who_waits_spins_its_slices_away),
	T(a_dead_partner_is_waited_for), T(meetings_are_bounded), T(partners_go_on_together),
	T(who_comes_for_something_else_meets_nobody), T(some_gpus_are_visible), T(kernels_wait_for_words), T(streams_wait_for_words),
	T(functions_have_their_place), T(a_checkpoint_has_its_order), T(only_a_gpus_process_is_checkpointed),
	T(who_is_locked_waits), T(who_asks_while_away_ends), T(a_lock_waits_for_work), T(a_call_under_way_waits_too),
	T(memory_leaves_and_returns), T(a_restore_needs_room),
	T(a_checkpoint_may_be_refused), T(a_checkpoint_may_fail), T(a_checkpoint_may_hang),
	T(who_makes_a_checkpoint_may_die), T(a_dead_process_has_no_checkpoint),
};

int main(void)
{
	int failed = 0;

	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		char path[] = "/dev/shm/gpus-XXXXXX";
		int status = 1, fd = mkstemp(path);
		pid_t child;

		close(fd);
		setenv("GS_STUB_FILE", path, 1);
		child = fork();
		if (!child) {
			tests[i].test();
			_exit(0);
		}
		waitpid(child, &status, 0);
		unlink(path);
		printf("%s %s\n", status ? "FAIL" : "ok  ", tests[i].name);
		fflush(stdout);
		failed |= status;
	}
	return failed != 0;
}

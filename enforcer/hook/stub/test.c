/* Tests of the simulated driver. Each runs in processes of its own, on a GPU of
 * its own file, so that one cannot spoil another. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define MIB (1ull << 20)
#define IS(call, want) expect((long)(call), (long)(want), #call, __LINE__)

static CUfunction spin;
static CUcontext context;

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
}

static CUresult run(uint64_t ns, CUstream s)
{
	void *params[] = {&ns};

	return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static CUevent event(CUstream s)
{
	CUevent e;

	IS(cuEventCreate(&e, 0), 0);
	IS(cuEventRecord(e, s), 0);
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

/* How long 100 ms of this process's kernels take, with work before them that
 * covers the other's start, and after them, so that the GPU is wanted all the
 * time however busy this machine's CPUs are. */
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

static const struct { const char *name; void (*test)(void); } tests[] = {
#define T(name) {#name, name}
	T(events_are_exact), T(streams_are_ordered), T(two_share_half_and_half), T(capture_has_rules),
	T(memory_is_one_arena), T(death_gives_back), T(a_forked_child_has_no_driver), T(versions_are_gated),
	T(copies_take_their_time),
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

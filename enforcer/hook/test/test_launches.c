/* Launches other than one kernel on one stream, and changes of where they may be
 * marked: on the simulated driver, with the process's own page. */
#define _GNU_SOURCE

#include "run.h"

#include "base/devices.h"
#include "base/futex.h"
#include "session/local.h"
#include "session/session.h"
#include "streams/streams.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/wrapped.h"

static void *address(const char *name)
{
	void *f = NULL;
	int status;

	OK(cuGetProcAddress_v2(name, &f, 13030, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
	CHECK(f);
	return f;
}
#define DRIVER(name, ...) CUresult (*name)(__VA_ARGS__) = (CUresult (*)(__VA_ARGS__))address(#name)

static CUcontext context[2];
static CUstream stream[2];
static CUfunction spin;

static void begin(int gpus)
{
	CUmodule m;

	setenv("GS_STUB_GPUS", gpus == 2 ? "2" : "1", 1);
	gs_client.said = true; /* that there is no broker */
	OK(cuInit(0));
	DRIVER(cuCtxSetCurrent, CUcontext);
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *);
	for (int d = gpus - 1; d >= 0; d--) {
		OK(cuDevicePrimaryCtxRetain(&context[d], d));
		OK(cuCtxSetCurrent(context[d]));
		OK(cuStreamCreate(&stream[d], 1));
	}
	OK(cuModuleLoadData(&m, "an image"));
	OK(cuModuleGetFunction(&spin, m, "spin"));
}

static void mode(int gpu, enum gs_mode to)
{
	__atomic_store_n(&gs_own.slot[gpu].mode, (uint32_t)to, __ATOMIC_RELEASE);
	__atomic_store_n(&gs_own.gated, gs_own.slot[0].mode != GS_OPEN || gs_own.slot[1].mode != GS_OPEN,
			 __ATOMIC_RELEASE);
	__atomic_add_fetch(&gs_own.bell, 1, __ATOMIC_RELEASE);
	gs_bell_ring(&gs_own);
}

static uint64_t launches(int gpu)
{
	gs_gpu_lock(&gs_gates[gpu]);
	uint64_t n = gs_launches(&gs_gates[gpu]);
	pthread_mutex_unlock(&gs_gates[gpu].lock);
	return n;
}

static uint32_t waiting(int gpu)
{
	gs_gpu_lock(&gs_gates[gpu]);
	uint32_t n = gs_gates[gpu].waiting;
	pthread_mutex_unlock(&gs_gates[gpu].lock);
	return n;
}

static uint64_t ns = 1000;
static void *params[] = {&ns};
static unsigned kernels;
static _Atomic bool made;

static void *on_both(void *none)
{
	CUDA_LAUNCH_PARAMS list[2] = {{.function = spin, .hStream = stream[0], .kernelParams = params},
				      {.function = spin, .hStream = stream[1], .kernelParams = params}};
	DRIVER(cuCtxSetCurrent, CUcontext);

	OK(cuCtxSetCurrent(context[0]));
	OK(cuLaunchCooperativeKernelMultiDevice(list, kernels, 0));
	made = true;
	AWAIT(!made); /* its launches are this thread's for so long */
	return none;
}

/* The launch waits for each of its GPUs, and is counted on each. */
static void several_gpus(void)
{
	begin(2);
	for (int held = 0; held < 2; held++) {
		for (kernels = 1 + held; kernels <= 2; kernels++) {
			pthread_t t;
			uint64_t before[2] = {launches(0), launches(1)};
			mode(held, GS_PAUSE);
			CHECK(!pthread_create(&t, NULL, on_both, NULL));
			AWAIT(waiting(held));
			CHECK(!made && launches(held) == before[held]);
			mode(held, GS_OPEN);
			AWAIT(made);
			CHECK(launches(0) == before[0] + 1 && launches(1) == before[1] + (kernels == 2));
			made = false;
			CHECK(!pthread_join(t, NULL));
		}
	}
	CHECK(cuLaunchCooperativeKernelMultiDevice(NULL, 2, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuLaunchCooperativeKernelMultiDevice(&(CUDA_LAUNCH_PARAMS){0}, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}

/* The hook hears of every capture until it ends. */
static void captures(void)
{
	CUgraph graph;
	CUstream own = stream[0];

	begin(1);
	own = stream[0];
	DRIVER(cuGraphCreate, CUgraph *, unsigned);
	OK(cuGraphCreate(&graph, 0));
	CHECK(cuStreamBeginRecaptureToGraph(own, 0, NULL, NULL, NULL) == CUDA_ERROR_INVALID_VALUE && gs_captures == 0);
	OK(cuStreamBeginRecaptureToGraph(own, 0, graph, NULL, NULL));
	CHECK(gs_captures == 1);
	OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, own, params, NULL));
	OK(cuStreamEndCapture(own, &graph));
	CHECK(gs_captures == 0);
	OK(cuStreamBeginRecaptureToGraph_ptsz(NULL, 0, graph, NULL, NULL));
	CHECK(gs_captures == 1);
	OK(cuStreamEndCapture_ptsz(NULL, &graph));
	CHECK(cuStreamBeginCaptureToCig(own, NULL) == CUDA_ERROR_INVALID_VALUE && gs_captures == 0);
	OK(cuStreamBeginCaptureToCig(own, "a list"));
	CHECK(gs_captures == 1);
	OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, own, params, NULL));
	OK(cuStreamEndCaptureToCig(own));
	CHECK(gs_captures == 0);
	OK(cuStreamBeginCaptureToCig_ptsz(NULL, "a list"));
	CHECK(gs_captures == 1);
	OK(cuStreamEndCaptureToCig_ptsz(NULL));
	CHECK(gs_captures == 0);
}

static _Atomic int calls;

static void call(void *by)
{
	CHECK(by == &calls);
	calls++;
}

static void call_back(CUstream s, CUresult r, void *by)
{
	CHECK(!r && (s == stream[0] || s == CU_STREAM_PER_THREAD));
	call(by);
}

/* The stream of the last launch has a host function since. */
static bool hosted(void)
{
	OK(cuStreamSynchronize(stream[0]));
	OK(cuStreamSynchronize_ptsz(NULL));
	struct gs_stream *e = gs_self->entry;
	return e && atomic_exchange(&e->hosted, false);
}

/* The hook hears of each function that is queued, by any of its calls. */
static void host_functions(void)
{
	begin(1);
	OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream[0], params, NULL));
	CHECK(!hosted());
	OK(cuLaunchHostFunc(stream[0], call, &calls));
	CHECK(hosted() && calls == 1);
	OK(cuLaunchHostFunc_v2(stream[0], call, &calls, 1));
	CHECK(hosted() && calls == 2);
	OK(cuStreamAddCallback(stream[0], call_back, &calls, 0));
	CHECK(hosted() && calls == 3);
	OK(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(!hosted());
	OK(cuLaunchHostFunc_ptsz(NULL, call, &calls));
	CHECK(hosted() && calls == 4);
	OK(cuLaunchHostFunc_v2_ptsz(NULL, call, &calls, 0));
	CHECK(hosted() && calls == 5);
	OK(cuStreamAddCallback_ptsz(NULL, call_back, &calls, 0));
	CHECK(hosted() && calls == 6);
}

/* A destroyed green context is not touched, and frees its place. The launches from
 * it were counted on its own GPU. */
static void green(void)
{
	CUgreenCtx g;
	CUcontext c;

	begin(2);
	DRIVER(cuCtxSetCurrent, CUcontext);
	DRIVER(cuCtxSynchronize, void);
	for (int i = 0; i < 1000; i++) {
		uint64_t before = launches(i % 2);
		OK(cuGreenCtxCreate(&g, NULL, i % 2, 0));
		OK(gs_real.cuCtxFromGreenCtx(&c, g));
		OK(cuCtxSetCurrent(c));
		OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		CHECK(launches(i % 2) == before + 1);
		struct gs_context *place = gs_context_current();
		CHECK(place && place->handle == c);
		OK(cuCtxSynchronize());
		OK(cuGreenCtxDestroy(g));
		CHECK(place->handle != c);
	}
}

/* While there is one GPU, all threads work on it. */
static void green_first(void)
{
	CUgreenCtx g;
	CUcontext c;

	setenv("GS_STUB_GPUS", "2", 1);
	gs_client.said = true;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context[0], 0));
	OK(cuGreenCtxCreate(&g, NULL, 1, 0));
	OK(gs_real.cuCtxFromGreenCtx(&c, g));
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(c));
	CHECK(gs_gpu_current() == 1);
	OK(cuCtxSetCurrent(context[0]));
	CHECK(gs_gpu_current() == 0);
}

static int made_on;

static CUresult make(void)
{
	made_on = gs_gpu_making();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver allocates a context's channel groups meanwhile. */
static void in_the_making(void)
{
	CUgreenCtx g;
	CUcontext c;

	setenv("GS_STUB_GPUS", "2", 1);
	gs_client.said = true;
	OK(cuInit(0));
	CHECK(gs_gpu_only() == -1);
	OK(cuDevicePrimaryCtxRetain(&c, 1));
	CHECK(gs_gpu_only() == 1 && gs_gpu_making() == -1);
#define MAKES(name, ...) do { \
	*(void **)&gs_real.name = (void *)make; \
	made_on = -1; \
	CHECK(name(__VA_ARGS__) == CUDA_ERROR_OUT_OF_MEMORY && made_on == 1 && gs_gpu_making() == -1); \
} while (0)
	MAKES(cuCtxCreate, &c, 0, 1);
	MAKES(cuCtxCreate_v2, &c, 0, 1);
	MAKES(cuCtxCreate_v3, &c, NULL, 0, 0, 1);
	MAKES(cuCtxCreate_v4, &c, NULL, 0, 1);
	MAKES(cuGreenCtxCreate, &g, NULL, 1, 0);
	CUresult (*retain)(CUcontext *, CUdevice) = gs_real.cuDevicePrimaryCtxRetain;
	MAKES(cuDevicePrimaryCtxRetain, &c, 1);
	gs_real.cuDevicePrimaryCtxRetain = retain;
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	CHECK(gs_gpu_only() == -1);
}

/* The name of a kernel is noted when the program asks for it, and its error when a wait returns it. */
static void named(void)
{
	struct gs_traced *t = calloc(1, sizeof *t);
	const struct gs_kernel *k = t->crash.kernel;
	CUfunction fault;
	CUmodule m;

	begin(1);
	gs_traced_begin(&t->trace);
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *);
	OK(cuModuleLoadData(&m, "an image"));
	CHECK(k->id == gs_note_id(spin) && !strcmp(t->crash.names + k->name - 1, "spin") && !k[1].name); /* before the session */
	OK(cuModuleGetFunction(&fault, m, "fault"));
	k++;
	CHECK(k->id == gs_note_id(fault) && !strcmp(t->crash.names + k->name - 1, "fault") && !k[1].name && !t->crash.unnamed);
	OK(cuStreamSynchronize(stream[0]));

	/* A graph has the names of its kernels, the most frequent first. */
	CUfunction other;
	CUgraph graph;
	CUgraphExec exec;
	char want[64];
	OK(cuModuleGetFunction(&other, m, "other"));
	OK(cuStreamBeginCapture_v2(stream[0], 0));
	OK(cuLaunchKernel(other, 1, 1, 1, 1, 1, 1, 0, stream[0], NULL, NULL));
	for (int i = 0; i < 3; i++)
		OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream[0], (void *[]){&ns}, NULL));
	OK(cuStreamEndCapture(stream[0], &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	k += 2;
	snprintf(want, sizeof want, "graph 4 3x%08x 1x%08x", gs_note_id(spin), gs_note_id(other));
	CHECK(k->id == gs_note_id(exec) && !strcmp(t->crash.names + k->name - 1, want));
	OK(cuLaunchKernel(fault, 1, 1, 1, 1, 1, 1, 0, stream[0], (void *[]){&ns, &ns}, NULL));
	CHECK(!t->trace.failed);
	CHECK(cuStreamSynchronize(stream[0]) == CUDA_ERROR_ILLEGAL_ADDRESS && t->trace.failed == 700);
}

static void begin_test(void)
{
	run_gpus();
	run_keeps(); /* the driver keeps what it made */
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(several_gpus), TEST(captures), TEST(host_functions), TEST(green), TEST(green_first), TEST(in_the_making),
		TEST(named),
	};

	return RUN_TESTS(tests, argc, argv, begin_test);
}

/* The wrappers of copies, on the simulated driver, with the process's own page in
 * place of a broker's: how many bytes each counts, and which way. */
#define _GNU_SOURCE

#include "run.h"

#include "base/clock.h"
#include "base/futex.h"
#include "gate/bandwidth.h"
#include "session/local.h"
#include "session/session.h"
#include "wrappers/wrapped.h"


/* What the test calls and the hook does not. */
static void *address(const char *name)
{
	void *f = NULL;
	int status;

	OK(cuGetProcAddress_v2(name, &f, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
	CHECK(f);
	return f;
}
#define DRIVER(name, ...) CUresult (*name)(__VA_ARGS__) = (CUresult (*)(__VA_ARGS__))address(#name)

#define MUCH (1ull << 60) /* a rate that never makes a copy wait */
#define BATCH_OF (CUdeviceptr[]){a, a}, (CUdeviceptr[]){b, b}, (size_t[]){60, 40}, 2, NULL, NULL, 0

static CUdeviceptr a, b;
static CUcontext context;

static void begin(unsigned gpus)
{
	setenv("GS_STUB_GPUS", gpus == 2 ? "2" : "1", 1);
	gs_client.said = true; /* that there is no broker */
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&a, 1 << 20));
	OK(cuMemAlloc_v2(&b, 1 << 20));
}

static uint64_t asked(enum gs_way way) { return gs_gates[0].bucket[way].asked; }

/* The call passed with this many bytes, this way. */
#define MOVES(call, bytes, way) do { \
	uint64_t before = asked(way), other = asked(!(way)), counted = gs_copies_sum(&gs_gates[0]); \
	OK(call); \
	CHECK(gs_copies_sum(&gs_gates[0]) == counted + (bytes)); \
	CHECK(asked(way) == before + (bytes) && asked(!(way)) == other); \
} while (0)
/* The same under its other names. */
#define BOTH(plain, per_thread, arguments, bytes, way) do { \
	MOVES(plain arguments, bytes, way); \
	MOVES(per_thread arguments, bytes, way); \
} while (0)
#define S NULL

static void linear(void)
{
	char h[1] = {0};
	CUdeviceptr host = (uintptr_t)h;

	BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (a, h, 100), 100, GS_LINK);
	BOTH(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, (a, h, 100, S), 100, GS_LINK);
	BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (h, a, 100), 100, GS_LINK);
	BOTH(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, (h, a, 100, S), 100, GS_LINK);
	BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (a, b, 100), 100, GS_WITHIN);
	BOTH(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, (a, b, 100, S), 100, GS_WITHIN);
	BOTH(cuMemcpy, cuMemcpy_ptds, (a + 500, b, 100), 100, GS_WITHIN);
	BOTH(cuMemcpy, cuMemcpy_ptds, (a, host, 100), 100, GS_LINK);
	BOTH(cuMemcpyAsync, cuMemcpyAsync_ptsz, (host, a, 100, S), 100, GS_LINK);
	BOTH(cuMemcpyAsync, cuMemcpyAsync_ptsz, (a, b, 100, S), 100, GS_WITHIN);
	BOTH(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz, (BATCH_OF, NULL, S), 100, GS_WITHIN);
	BOTH(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz, (BATCH_OF, S), 100, GS_WITHIN);
	BOTH(cuMemcpyPeer, cuMemcpyPeer_ptds, (a, context, b, context, 100), 100, GS_WITHIN);
	BOTH(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, (a, context, b, context, 100, S), 100, GS_WITHIN);
}

static void first_interface(void)
{
	const CUDA_MEMCPY2D_v1 plane = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
					.WidthInBytes = 20, .Height = 30};
	CUdeviceptr_v1 to;
	CUcontext own;
	char h[1] = {0};

	OK(cuCtxCreate(&own, 0, 0));
	OK(cuMemAlloc(&to, 1000));
	MOVES(cuMemcpyHtoD(to, h, 100), 100, GS_LINK);
	MOVES(cuMemcpyDtoDAsync(to, to, 100, S), 100, GS_WITHIN);
	MOVES(cuMemsetD32(to, 7, 100), 400, GS_WITHIN);
	CHECK(cuMemcpy2D(&plane) == CUDA_ERROR_NOT_FOUND); /* the simulated driver has none */
	OK(cuCtxDestroy_v2(own));
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(context));
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR d = {.Width = 1000, .Height = 1, .Format = 1, .NumChannels = 1};
	CUarray array;
	char h[1] = {0};

	OK(cuArrayCreate_v2(&array, &d));
	BOTH(cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, (array, 0, h, 100), 100, GS_LINK);
	BOTH(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz, (array, 0, h, 100, S), 100, GS_LINK);
	BOTH(cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, (h, array, 0, 100), 100, GS_LINK);
	BOTH(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz, (h, array, 0, 100, S), 100, GS_LINK);
	BOTH(cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, (array, 0, a, 100), 100, GS_WITHIN);
	BOTH(cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, (a, array, 0, 100), 100, GS_WITHIN);
	BOTH(cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds, (array, 0, array, 500, 100), 100, GS_WITHIN);
}

static void boxes(void)
{
	CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = &up, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			    .dstDevice = a,
			    .WidthInBytes = 20, .Height = 30};
	CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = b,
			    .dstMemoryType = CU_MEMORYTYPE_ARRAY,
			    .WidthInBytes = 20, .Height = 30};
	CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = b,
			     .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = a,
			     .WidthInBytes = 20, .Height = 30, .Depth = 2};
	CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = b,
			     .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			     .dstDevice = (uintptr_t)&up, .WidthInBytes = 20, .Height = 30, .Depth = 2};
	CUDA_MEMCPY3D peer = box;

	BOTH(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (&up), 600, GS_LINK);
	BOTH(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, (&in, S), 600, GS_WITHIN);
	BOTH(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (&in), 600, GS_WITHIN);
	BOTH(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (&box), 1200, GS_WITHIN);
	BOTH(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, (&out, S), 1200, GS_LINK);
	peer.srcContext = peer.dstContext = context;
	BOTH(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (&peer), 1200, GS_WITHIN);
	peer.srcContext = (CUcontext)&peer;
	BOTH(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, (&peer, S), 1200, GS_LINK);
}

static CUresult descriptor(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array)
{
	(void)array;
	*d = (CUDA_ARRAY3D_DESCRIPTOR){.Format = 0x20, .NumChannels = 4}; /* floats */
	return CUDA_SUCCESS;
}

static void batches_and_pages(void)
{
	char h[1] = {0};
	CUDA_MEMCPY3D_BATCH_OP in[2] = {
		{.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = b},
		 .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = a},
		 .width = 10, .height = 2, .depth = 3}};
	CUDA_MEMCPY3D_BATCH_OP up = in[0], texels = in[0];
	CUmemLocation to = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	CUmemDecompressParams packed[2] = {{.srcNumBytes = 1, .dstNumBytes = 60},
					   {.srcNumBytes = 1, .dstNumBytes = 40}};

	in[1] = in[0];
	up.src.op.ptr.ptr = (uintptr_t)h;
	texels.dst = (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_ARRAY};
	gs_real.cuArray3DGetDescriptor_v2 = descriptor;
	BOTH(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz, (2, in, NULL, 0, S), 120, GS_WITHIN);
	BOTH(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz, (1, &up, 0, S), 60, GS_LINK);
	BOTH(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz, (1, &texels, 0, S), 960, GS_WITHIN);
	BOTH(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz, (a, 100, 0, S), 100, GS_LINK);
	BOTH(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz, (a, 100, to, 0, S), 100, GS_LINK);
	BOTH(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz,
	     ((CUdeviceptr[]){a, b}, (size_t[]){60, 40}, 2, &to, (size_t[]){0}, 1, 0, S),
	     100, GS_LINK);
	BOTH(cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz, (packed, 2, 0, NULL, S), 100, GS_WITHIN);
	CHECK(cuMemcpy3DBatchAsync_v2(1, NULL, 0, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPrefetchBatchAsync(NULL, NULL, 1, NULL, NULL, 0, 0, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemBatchDecompressAsync(NULL, 1, 0, NULL, NULL) == CUDA_ERROR_INVALID_VALUE);
}

static void fills(void)
{
	BOTH(cuMemsetD8_v2, cuMemsetD8_v2_ptds, (a, 0, 100), 100, GS_WITHIN);
	BOTH(cuMemsetD16_v2, cuMemsetD16_v2_ptds, (a, 0, 100), 200, GS_WITHIN);
	BOTH(cuMemsetD32_v2, cuMemsetD32_v2_ptds, (a, 0, 100), 400, GS_WITHIN);
	BOTH(cuMemsetD8Async, cuMemsetD8Async_ptsz, (a, 0, 100, S), 100, GS_WITHIN);
	BOTH(cuMemsetD16Async, cuMemsetD16Async_ptsz, (a, 0, 100, S), 200, GS_WITHIN);
	BOTH(cuMemsetD32Async, cuMemsetD32Async_ptsz, (a, 0, 100, S), 400, GS_WITHIN);
	BOTH(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, (a, 512, 0, 10, 20), 200, GS_WITHIN);
	BOTH(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, (a, 512, 0, 10, 20), 400, GS_WITHIN);
	BOTH(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, (a, 512, 0, 10, 20), 800, GS_WITHIN);
	BOTH(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, (a, 512, 0, 10, 20, S), 200, GS_WITHIN);
	BOTH(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, (a, 512, 0, 10, 20, S), 400, GS_WITHIN);
	BOTH(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz, (a, 512, 0, 10, 20, S), 800, GS_WITHIN);
}

static void every_call_is_counted_its_way(void)
{
	begin(1);
	gs_own.slot[0].link = gs_own.slot[0].copy = MUCH;
	linear();
	first_interface();
	arrays();
	boxes();
	fills();
	batches_and_pages();
}

/* If the driver refuses a copy, the program gets the driver's own error under the
 * hook too, and nothing is counted or waited for. */
static void wrong_arguments_pass(void)
{
	const CUDA_MEMCPY2D nonsense = {.WidthInBytes = SIZE_MAX, .Height = 1};
	char h[1] = {0};
	size_t one = 1;

	CHECK(cuMemcpyHtoD_v2(1, h, 1) == CUDA_ERROR_NOT_INITIALIZED);
	begin(1);
	for (int kind = 0; kind < 3; kind++) { /* the rate holds, nothing does, launches are gated */
		gs_own.slot[0].link = gs_own.slot[0].copy = kind == 0;
		__atomic_store_n(&gs_own.gated, kind == 2, __ATOMIC_RELEASE);
		uint64_t from = gs_now();
		CHECK(cuMemcpyHtoD_v2(0, h, SIZE_MAX) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemcpyHtoD_v2(0, h, 1 << 20) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemcpyDtoHAsync_v2(NULL, a, 1, NULL) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemcpy2D_v2(NULL) == CUDA_ERROR_INVALID_VALUE &&
		      cuMemcpy3D_v2(NULL) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemcpy3DPeer(NULL) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemcpyBatchAsync_v2(NULL, NULL, &one, 1, NULL, NULL, 0, NULL) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemsetD2D32_v2(0, 1, 1, SIZE_MAX, SIZE_MAX) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemcpy2D_v2(&nonsense) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemcpyHtoD_v2(a, h, 0) == CUDA_SUCCESS);
		CHECK(gs_now() - from < 500000000 && !gs_copies_sum(&gs_gates[0]));
	}
}

/* The capture notes a copy, and the graph makes it. The hook does not see that. */
static void a_capture_passes(void)
{
	CUstream s;
	CUgraph graph;

	begin(1);
	gs_own.slot[0].link = 1;
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 10; i++)
		OK(cuMemcpyHtoDAsync_v2(a, &s, 1 << 20, s));
	OK(cuStreamEndCapture(s, &graph));
	CHECK(!gs_copies_sum(&gs_gates[0]) && !asked(GS_LINK));
	DRIVER(cuGraphDestroy, CUgraph);
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy_v2(s));
}

static void page(enum gs_mode mode)
{
	__atomic_store_n(&gs_own.slot[0].mode, mode, __ATOMIC_RELEASE); /* the thread of turns reads it */
	__atomic_store_n(&gs_own.gated, mode != GS_OPEN, __ATOMIC_RELEASE);
	__atomic_fetch_add(&gs_own.bell, 1, __ATOMIC_RELEASE);
	gs_bell_ring(&gs_own);
}

static unsigned waiting(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	unsigned n = gs_gates[0].waiting;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return n;
}

static uint64_t launches(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t n = gs_launches(&gs_gates[0]);
	pthread_mutex_unlock(&gs_gates[0].lock);
	return n;
}

static void fill(void) { OK(cuMemsetD8Async(a, 0, 100, NULL)); }
static void fill_and_wait(void) { OK(cuMemsetD32_v2(a, 0, 100)); }
static void within(void) { OK(cuMemcpyDtoDAsync_v2(a, b, 100, NULL)); }
static void within_unified(void) { OK(cuMemcpyAsync_ptsz(a, b, 100, NULL)); }

static _Atomic unsigned made;
static void *make(void *call)
{
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(context));
	(*(void (**)(void))call)();
	atomic_fetch_add(&made, 1);
	return NULL;
}

/* What a GPU does by itself waits for its turn. What goes over the link does not. */
static void copies_within_the_gpu_and_fills_pass_the_gate(void)
{
	static void (*const calls[])(void) = {fill, fill_and_wait, within, within_unified};
	const unsigned n = sizeof calls / sizeof *calls;
	pthread_t t[sizeof calls / sizeof *calls];
	char h[1] = {0};

	begin(1);
	uint64_t before = launches();
	fill();
	fill_and_wait();
	within(); /* in OPEN the way is not asked for */
	OK(cuMemcpyHtoDAsync_v2(a, h, 1, NULL));
	CHECK(launches() == before + 2);
	page(GS_PAUSE);
	OK(cuMemcpyHtoDAsync_v2(a, h, 1, NULL));
	OK(cuMemcpyDtoH_v2(h, a, 1));
	for (unsigned i = 0; i < n; i++)
		CHECK(!pthread_create(&t[i], NULL, make, (void *)&calls[i]));
	AWAIT(waiting() == n);
	CHECK(!made && launches() == before + 2);
	page(GS_RUN);
	for (unsigned i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	CHECK(made == n && launches() == before + 4 && !gs_passed); /* the same calls count in every mode */
	page(GS_OPEN);
}

static void a_captured_fill_passes_a_pause(void)
{
	CUstream s;
	CUgraph graph;

	begin(1);
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	page(GS_PAUSE);
	uint64_t before = launches();
	for (int i = 0; i < 10; i++)
		OK(cuMemsetD8Async(a, 0, 100, s));
	CHECK(launches() == before && !waiting());
	OK(cuStreamEndCapture(s, &graph));
	page(GS_OPEN);
	DRIVER(cuGraphDestroy, CUgraph);
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy_v2(s));
}

/* Between GPUs the link counts, whatever the name of the call. */
static void another_gpu_is_over_the_link(void)
{
	CUcontext second;
	CUdeviceptr there;

	begin(2);
	gs_own.slot[0].link = gs_own.slot[0].copy = MUCH;
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	DRIVER(cuCtxSetCurrent, CUcontext);
	OK(cuCtxSetCurrent(second));
	OK(cuMemAlloc_v2(&there, 1000));
	OK(cuCtxSetCurrent(context));
	MOVES(cuMemcpyDtoD_v2(a, there, 100), 100, GS_LINK);
	MOVES(cuMemcpyPeer(a, context, there, second, 100), 100, GS_LINK);
	OK(cuCtxSetCurrent(second));
	OK(cuMemsetD8_v2(there, 0, 77));
	CHECK(gs_copies_sum(&gs_gates[1]) == 77 && gs_copies_sum(&gs_gates[0]) == 200);
}

/* The wrappers wait. test_bandwidth.c has what a rate means. */
static void a_rate_holds(void)
{
	const uint64_t rate = 200 << 20, bytes = 20 << 20;
	char h[1] = {0};

	begin(1);
	gs_own.slot[0].link = rate;
	uint64_t from = gs_now();
	for (unsigned i = 0; i < 20; i++)
		OK(cuMemcpyHtoDAsync_v2(a, h, bytes / 20, NULL));
	/* The bucket keeps 20 ms, and the last one is waited for by the next. */
	CHECK(gs_now() - from >= (bytes - bytes / 20) * 1000000000 / rate - 20000000);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(every_call_is_counted_its_way),
		TEST(wrong_arguments_pass),
		TEST(a_capture_passes),
		TEST(copies_within_the_gpu_and_fills_pass_the_gate),
		TEST(a_captured_fill_passes_a_pause),
		TEST(another_gpu_is_over_the_link),
		TEST(a_rate_holds),
	};

	setenv("GPUSTEWARD_SOCKET", "/nowhere", 1);
	return RUN_TESTS(tests, argc, argv, NULL);
}

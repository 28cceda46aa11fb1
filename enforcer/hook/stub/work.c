/* The load generator's and the recipes' kernels, on any driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

#define SHORT 100000 /* iterations of the calibration's kernels */
#define LONG 300000
#define TRIES 15

struct calls cu;
const char *program = "load";
CUcontext context;
struct kernels kernels;
double per_ns = 1;
bool simulated;

/* A chain of multiplications and additions, each of which needs the one before. */
#define WORK \
	"	.reg .u64 %n, %at;\n" \
	"	.reg .u32 %x;\n" \
	"	.reg .pred %more;\n" \
	"	ld.param.u64 %n, [iterations];\n" \
	"	cvt.u32.u64 %x, %n;\n" \
	"	setp.eq.u64 %more, %n, 0;\n" \
	"	@%more bra WORKED;\n" \
	"WORK:\n" \
	"	mad.lo.u32 %x, %x, 1664525, 1013904223;\n" \
	"	sub.u64 %n, %n, 1;\n" \
	"	setp.ne.u64 %more, %n, 0;\n" \
	"	@%more bra WORK;\n" \
	"WORKED:\n" \
	"	mov.u64 %at, sink;\n" \
	"	st.global.u32 [%at], %x;\n"

/* Spins until the word at %at is %value or more, or a minute is over. */
#define SPIN \
	"	mov.u64 %begin, %globaltimer;\n" \
	"SPIN:\n" \
	"	ld.acquire.sys.global.u32 %x, [%at];\n" \
	"	setp.ge.u32 %more, %x, %value;\n" \
	"	@%more bra SPUN;\n" \
	"	mov.u64 %n, %globaltimer;\n" \
	"	sub.u64 %n, %n, %begin;\n" \
	"	setp.lt.u64 %more, %n, 60000000000;\n" \
	"	@%more bra SPIN;\n" \
	"SPUN:\n"

#define VALUE(name) \
	"	.reg .u64 %begin;\n" \
	"	.reg .u32 %value;\n" \
	"	ld.param.u64 %n, [" name "];\n" \
	"	cvt.u32.u64 %value, %n;\n"

static const char ptx[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .global .align 4 .u32 sink;\n"
	".visible .entry spin(.param .u64 iterations)\n"
	"{\n"
	WORK
	"	ret;\n"
	"}\n"
	".visible .entry fault(.param .u64 iterations, .param .u64 where)\n"
	"{\n"
	WORK
	"	ld.param.u64 %at, [where];\n"
	"	st.global.u32 [%at], %x;\n"
	"	ret;\n"
	"}\n"
	".visible .entry meet(.param .u64 iterations, .param .u64 words, .param .u64 number, .param .u64 rank,\n"
	"	.param .u64 ranks)\n"
	"{\n"
	"	.reg .u64 %left;\n"
	WORK
	VALUE("number")
	"	ld.param.u64 %n, [rank];\n"
	"	ld.param.u64 %at, [words];\n"
	"	mad.lo.u64 %n, %n, 128, %at;\n"
	"	st.release.sys.global.u32 [%n], %value;\n"
	"	ld.param.u64 %left, [ranks];\n"
	"RANK:\n"
	SPIN
	"	add.u64 %at, %at, 128;\n"
	"	sub.u64 %left, %left, 1;\n"
	"	setp.ne.u64 %more, %left, 0;\n"
	"	@%more bra RANK;\n"
	"	ret;\n"
	"}\n"
	".visible .entry await(.param .u64 iterations, .param .u64 address, .param .u64 least)\n"
	"{\n"
	WORK
	VALUE("least")
	"	ld.param.u64 %at, [address];\n"
	SPIN
	"	ret;\n"
	"}\n"
	".visible .entry tell(.param .u64 iterations, .param .u64 address, .param .u64 what)\n"
	"{\n"
	WORK
	VALUE("what")
	"	ld.param.u64 %at, [address];\n"
	"	st.release.sys.global.u32 [%at], %value;\n"
	"	ret;\n"
	"}\n";

void check(CUresult r, const char *what)
{
	if (!r)
		return;
	fprintf(stderr, "%s: %s: error %d\n", program, what, (int)r);
	exit(1);
}

void resolve(const char *how)
{
	void *library = strchr(how, '/') ? dlopen(how, RTLD_NOW) : strcmp(how, "dlmopen") ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)
		: dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	CUresult (*address)(const char *, void **, int, cuuint64_t, int *) = NULL;
	void *(*find)(void *, const char *) = dlsym;
	void *from = strcmp(how, "link") ? library : RTLD_DEFAULT, *f;

	if (!library) {
		fprintf(stderr, "%s: %s\n", program, dlerror());
		exit(1);
	}
	if (!strcmp(how, "dlvsym")) { /* the C library's own dlsym, of glibc 2.34 or before */
		f = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.34");
		if (!f)
			f = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
		check(f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, "dlsym");
		memcpy(&find, &f, sizeof f);
	}
	if (!strcmp(how, "procaddress")) {
		f = dlsym(library, "cuGetProcAddress_v2");
		memcpy(&address, &f, sizeof f);
	}
#define X(name, base, ...) \
	f = NULL; \
	if (address) \
		address(#base, &f, 12000, 0, NULL); \
	else \
		f = find(from, #name); \
	memcpy(&cu.name, &f, sizeof f); \
	check(f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, #name);
	CALLS
#undef X
}

CUresult launch_kernel(uint64_t iterations, CUstream s)
{
	void *params[] = {&iterations};

	return cu.cuLaunchKernel(kernels.spin, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

CUresult launch_meet(uint64_t where, uint64_t number, uint64_t rank, uint64_t ranks, CUstream s)
{
	uint64_t none = 0;
	void *params[] = {&none, &where, &number, &rank, &ranks};

	return cu.cuLaunchKernel(kernels.meet, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

CUresult launch_await(CUdeviceptr at, uint64_t value, CUstream s)
{
	uint64_t none = 0;
	void *params[] = {&none, &at, &value};

	return cu.cuLaunchKernel(kernels.await, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

CUresult launch_tell(uint64_t iterations, CUdeviceptr at, uint64_t value, CUstream s)
{
	void *params[] = {&iterations, &at, &value};

	return cu.cuLaunchKernel(kernels.tell, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

CUdeviceptr share(void *at, size_t bytes)
{
	CUdeviceptr p;

	check(cu.cuMemHostRegister_v2(at, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
		"cuMemHostRegister");
	check(cu.cuMemHostGetDevicePointer_v2(&p, at, 0), "cuMemHostGetDevicePointer");
	return p;
}

CUresult launch_fault(uint64_t iterations, CUdeviceptr at, CUstream s)
{
	void *params[] = {&iterations, &at};

	return cu.cuLaunchKernel(kernels.fault, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

void load_kernels(struct kernels *k)
{
	CUmodule m;

	check(cu.cuModuleLoadData(&m, ptx), "cuModuleLoadData");
	check(cu.cuModuleGetFunction(&k->spin, m, "spin"), "cuModuleGetFunction");
	check(cu.cuModuleGetFunction(&k->meet, m, "meet"), "cuModuleGetFunction");
	check(cu.cuModuleGetFunction(&k->await, m, "await"), "cuModuleGetFunction");
	check(cu.cuModuleGetFunction(&k->tell, m, "tell"), "cuModuleGetFunction");
	check(cu.cuModuleGetFunction(&k->fault, m, "fault"), "cuModuleGetFunction");
}

CUgraphExec graph_of(uint64_t iterations, int kernels)
{
	CUstream s;
	CUgraph g;
	CUgraphExec x;

	check(cu.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cu.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
	while (kernels--)
		check(launch_kernel(iterations, s), "cuLaunchKernel");
	check(cu.cuStreamEndCapture(s, &g), "cuStreamEndCapture");
	check(cu.cuGraphInstantiateWithFlags(&x, g, 0), "cuGraphInstantiateWithFlags");
	return x;
}

/* The shortest of several, so that neither another process's turn nor a sleeping
 * GPU counts. Ms. */
static double shortest(uint64_t iterations, CUstream s)
{
	CUevent a, b;
	double best = 1e9;

	check(cu.cuEventCreate(&a, 0), "cuEventCreate");
	check(cu.cuEventCreate(&b, 0), "cuEventCreate");
	for (int i = 0; i < TRIES; i++) {
		float ms;

		check(cu.cuEventRecord(a, s), "cuEventRecord");
		check(launch_kernel(iterations, s), "cuLaunchKernel");
		check(cu.cuEventRecord(b, s), "cuEventRecord");
		check(cu.cuEventSynchronize(b), "cuEventSynchronize");
		check(cu.cuEventElapsedTime(&ms, a, b), "cuEventElapsedTime");
		if (ms < best)
			best = ms;
	}
	return best;
}

void open_gpu(int ordinal, double rate)
{
	char name[64] = "";
	CUdevice d;
	CUstream s;

	check(cu.cuInit(0), "cuInit");
	check(cu.cuDeviceGet(&d, ordinal), "cuDeviceGet");
	check(cu.cuDeviceGetName(name, sizeof name, d), "cuDeviceGetName");
	check(cu.cuDevicePrimaryCtxRetain(&context, d), "cuDevicePrimaryCtxRetain");
	check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
	load_kernels(&kernels);
	simulated = !strcmp(name, "gpusteward stub");
	if (rate > 0) {
		per_ns = rate;
	} else if (!simulated) {
		check(cu.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
		shortest(10 * LONG, s); /* wakes the clocks */
		per_ns = (LONG - SHORT) / ((shortest(LONG, s) - shortest(SHORT, s)) * 1e6);
	}
}

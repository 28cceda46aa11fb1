/* The load generator's kernel, on whatever driver is there. */
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
CUcontext context;
CUfunction spin;
double per_ns = 1;

/* A chain of multiplications and additions that each need the one before. */
static const char ptx[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .global .align 4 .u32 sink;\n"
	".visible .entry spin(.param .u64 iterations)\n"
	"{\n"
	"	.reg .u64 %n, %at;\n"
	"	.reg .u32 %x;\n"
	"	.reg .pred %more;\n"
	"	ld.param.u64 %n, [iterations];\n"
	"	cvt.u32.u64 %x, %n;\n"
	"	setp.eq.u64 %more, %n, 0;\n"
	"	@%more bra END;\n"
	"LOOP:\n"
	"	mad.lo.u32 %x, %x, 1664525, 1013904223;\n"
	"	sub.u64 %n, %n, 1;\n"
	"	setp.ne.u64 %more, %n, 0;\n"
	"	@%more bra LOOP;\n"
	"END:\n"
	"	mov.u64 %at, sink;\n"
	"	st.global.u32 [%at], %x;\n"
	"	ret;\n"
	"}\n";

void check(CUresult r, const char *what)
{
	if (!r)
		return;
	fprintf(stderr, "load: %s: error %d\n", what, (int)r);
	exit(1);
}

void resolve(const char *how)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	CUresult (*address)(const char *, void **, int, cuuint64_t, int *) = NULL;
	void *from = strcmp(how, "link") ? library : RTLD_DEFAULT, *f;

	if (!library) {
		fprintf(stderr, "load: %s\n", dlerror());
		exit(1);
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
		f = dlsym(from, #name); \
	memcpy(&cu.name, &f, sizeof f); \
	check(f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, #name);
	CALLS
#undef X
}

CUresult launch_kernel(uint64_t iterations, CUstream s)
{
	void *params[] = {&iterations};

	return cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
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

/* The shortest of several, so that neither another process's turn nor a GPU
 * that still sleeps counts. Ms. */
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
	CUmodule m;
	CUstream s;

	check(cu.cuInit(0), "cuInit");
	check(cu.cuDeviceGet(&d, ordinal), "cuDeviceGet");
	check(cu.cuDeviceGetName(name, sizeof name, d), "cuDeviceGetName");
	check(cu.cuDevicePrimaryCtxRetain(&context, d), "cuDevicePrimaryCtxRetain");
	check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cu.cuModuleLoadData(&m, ptx), "cuModuleLoadData");
	check(cu.cuModuleGetFunction(&spin, m, "spin"), "cuModuleGetFunction");
	if (rate > 0) {
		per_ns = rate;
	} else if (strcmp(name, "gpusteward stub")) {
		check(cu.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
		shortest(10 * LONG, s); /* wakes the clocks */
		per_ns = (LONG - SHORT) / ((shortest(LONG, s) - shortest(SHORT, s)) * 1e6);
	}
}

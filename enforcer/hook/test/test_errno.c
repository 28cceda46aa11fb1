/* errno around every wrapped call, under a driver that changes it in each of its own. What
 * the program finds is its own value, or that of the call that it made. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "session/local.h"
#include "wrappers/wrapped.h"

#define PROGRAM 4242
#define CALLED 99
#define OTHER 55

/* It serves for an address, a size and a count. What lies there is zero. */
#define ANY 0x20000L
#define ROOM (512 * ANY)

static const char *_Atomic called = "";
static _Atomic CUresult result;

static CUresult answer(const char *name)
{
	errno = strcmp(name, called) ? OTHER : CALLED;
	return result;
}

#define GS_CALL(name, ...) static CUresult driver_##name(void) { return answer(#name); }
#include "base/calls.h"
#undef GS_CALL

/* These succeed, so that the hook has a GPU and a context. */
static CUresult none(void *a)
{
	memset(a, 0, sizeof(int));
	errno = OTHER;
	return CUDA_SUCCESS;
}
static CUresult first(CUdevice *d, int i)
{
	*d = i;
	errno = OTHER;
	return CUDA_SUCCESS;
}
static CUresult one(int *n)
{
	*n = 1;
	errno = OTHER;
	return CUDA_SUCCESS;
}
static CUresult context(CUcontext *c)
{
	*c = (CUcontext)ANY;
	errno = OTHER;
	return CUDA_SUCCESS;
}
static CUresult captures(CUstream s, int *status)
{
	(void)s;
	return none(status);
}

static const struct wrapper {
	const char *name;
	void *call;
} wrappers[] = {
#define GS_CALL(name, ...)
#define GS_WRAP(name, ...) {#name, (void *)name},
#include "base/calls.h"
#undef GS_CALL
};

static int failed;

static void check(const struct wrapper *w, const char *when)
{
	CUresult (*call)(long, long, long, long, long, long, long, long, long, long, long, long);

	memcpy(&call, &w->call, sizeof call);
	memset((void *)ANY, 0, 4096);
	called = w->name;
	errno = PROGRAM;
	call(ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY);
	if (errno == PROGRAM || errno == CALLED)
		return;
	printf("%s, %s: errno is %d\n", w->name, when, errno);
	failed = 1;
}

static void each(CUresult r, const char *when)
{
	result = r;
	for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
		check(&wrappers[i], when);
}

int main(void)
{
	static struct gs_page page = {.gated = 1, .heartbeat_ns = UINT64_MAX / 2};

	alarm(100);
	close(2); /* nobody asked for a line about the broker */
	setenv("GPUSTEWARD_SOCKET", "/none", 1);
	if (mmap((void *)ANY, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
		 0) == MAP_FAILED)
		return 1;
#define GS_CALL(name, ...) gs_real.name = (CUresult (*)(__VA_ARGS__))(void *)driver_##name;
#include "base/calls.h"
#undef GS_CALL
	gs_real.cuDeviceGetCount = one;
	gs_real.cuDeviceGet = first;
	gs_real.cuCtxGetDevice = (CUresult (*)(CUdevice *))none;
	gs_real.cuCtxGetCurrent = context;
	gs_real.cuStreamIsCapturing = captures;
	each(CUDA_SUCCESS, "as it succeeds");
	each(CUDA_ERROR_INVALID_VALUE, "as it fails");
	for (unsigned i = 0; i < GS_GPUS; i++)
		page.slot[i] = (struct gs_slot){.mode = GS_RUN, .turn = 1, .inflight_us = 2000, .cap = UINT64_MAX / 2};
	atomic_store(&gs_page, &page);
	each(CUDA_SUCCESS, "among others, as it succeeds");
	each(CUDA_ERROR_INVALID_VALUE, "among others, as it fails");
	fflush(stdout);
	_exit(failed);
}

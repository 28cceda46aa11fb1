/* Initialisation, devices, contexts. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stub.h"

#define VERSION 13000
#define DEPTH 16

pthread_mutex_t gs_process = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool initialised, forked;
static _Thread_local CUcontext stack[DEPTH];
static _Thread_local int depth;
static struct { CUcontext primary; unsigned retained, flags, contexts; int proc; } device[GS_STUB_GPUS_MAX];

const void *gs_self(void)
{
	return &depth;
}

static void in_child(void)
{
	forked = initialised;
}

CUresult gs_initialised(void)
{
	return initialised && !forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

_Atomic bool gs_faulted;

/* The real driver may wait in any call, and a thread may be cancelled there. */
CUresult gs_enter(void)
{
	pthread_testcancel();
	GS_TRY(gs_initialised());
	gs_client_await(gs_client, true);
	if (gs_faulted)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	return gs_client->state == GS_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult gs_current(CUcontext *ctx)
{
	GS_TRY(gs_enter());
	*ctx = depth ? stack[depth - 1] : NULL;
	return *ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult gs_device(CUdevice d)
{
	GS_TRY(gs_enter());
	return d >= 0 && (uint32_t)d < gs_host->gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

GS_API cuInit(unsigned flags)
{
	CUresult r = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&gs_process);
	if (!initialised && (!gs_host_open() || !gs_client_open(gs_checkpoint()) || pthread_atfork(NULL, NULL, in_child)))
		r = CUDA_ERROR_NO_DEVICE;
	else
		initialised = true;
	pthread_mutex_unlock(&gs_process);
	return r;
}

GS_API cuDriverGetVersion(int *v)
{
	*v = VERSION;
	return CUDA_SUCCESS;
}

/* The GPUs that CUDA_VISIBLE_DEVICES lists, or all. A device is a GPU of the host. */
static int visible(CUdevice *out)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	int n = 0;
	char *end;

	for (CUdevice d = 0; !list && (uint32_t)d < gs_host->gpus; d++)
		out[n++] = d;
	for (; list && *list && n < GS_STUB_GPUS_MAX; list = *end ? end + 1 : end) {
		out[n] = (CUdevice)strtol(list, &end, 10);
		if (end == list || gs_device(out[n++]))
			return n - 1;
	}
	return n;
}

GS_API cuDeviceGet(CUdevice *d, int ordinal)
{
	CUdevice all[GS_STUB_GPUS_MAX];

	GS_TRY(gs_enter());
	if (ordinal < 0 || ordinal >= visible(all))
		return CUDA_ERROR_INVALID_DEVICE;
	*d = all[ordinal];
	return CUDA_SUCCESS;
}

GS_API cuDeviceGetCount(int *n)
{
	CUdevice all[GS_STUB_GPUS_MAX];

	GS_TRY(gs_enter());
	*n = visible(all);
	return CUDA_SUCCESS;
}

/* The last byte tells the simulated GPUs of a host apart. */
GS_API cuDeviceGetUuid_v2(CUuuid *u, CUdevice d)
{
	GS_TRY(gs_device(d));
	memcpy(u->bytes, "gpusteward-stub\0", 16);
	u->bytes[15] = (char)d;
	return CUDA_SUCCESS;
}

GS_API cuDeviceGetUuid(CUuuid *u, CUdevice d)
{
	return cuDeviceGetUuid_v2(u, d);
}

GS_API cuDeviceGetName(char *name, int length, CUdevice d)
{
	GS_TRY(gs_device(d));
	snprintf(name, (size_t)length, "gpusteward stub");
	return CUDA_SUCCESS;
}

GS_API cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d)
{
	GS_TRY(gs_device(d));
	switch (a) {
	case 1: *v = 1024; break;     /* threads of a block */
	case 10: *v = 32; break;      /* threads of a warp */
	case 13: *v = 1000000; break; /* clock, kHz */
	case 16: *v = 132; break;     /* multiprocessors */
	case 41: case 83: case 102: case 115: *v = 1; break; /* addresses, managed, virtual, pools */
	case 92: case 93: case 94: case 122: case 123: *v = 1; break; /* streams that wait for words of memory */
	case 75: *v = 9; break;       /* compute capability */
	default: *v = 0;
	}
	return CUDA_SUCCESS;
}

GS_API cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
	GS_TRY(gs_device(d));
	*bytes = gs_host->gpu[d].memory;
	return CUDA_SUCCESS;
}

GS_API cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUcontext c;
	struct gs_gpu *g;

	GS_TRY(gs_current(&c));
	g = gs_gpu_lock((unsigned)c->device);
	*total = g->memory;
	*free = g->memory - gs_used(g);
	gs_gpu_unlock(g);
	return CUDA_SUCCESS;
}

/* Under gs_process. */
static CUcontext make(CUdevice d)
{
	static uint32_t number;
	CUcontext c = calloc(1, sizeof *c);

	*c = (struct CUctx_st){.device = d, .g = &gs_host->gpu[d], .number = ++number};
	if (!device[d].contexts) {
		gs_gpu_change((unsigned)d);
		device[d].proc = gs_proc_join(c->g);
		gs_gpu_unlock(c->g);
	}
	c->proc = device[d].proc;
	if (c->proc < 0) {
		free(c);
		return NULL;
	}
	device[d].contexts++;
	c->legacy = gs_stream_make(c, GS_LEGACY, 0);
	gs_group_make(c);
	return c;
}

/* Under gs_process. The object itself stays: other threads may have it current, and
 * the real driver too can be asked about it. */
static void unmake(CUcontext c)
{
	gs_memory_forget(c);
	gs_group_unmake(c);
	gs_gpu_change((unsigned)c->device);
	for (uint32_t i = c->g->proc[c->proc].streams, next; i; i = next) {
		next = c->g->stream[i - 1].next;
		if (c->g->stream[i - 1].context == c->number)
			gs_stream_free(c->g, i - 1);
	}
	if (!--device[c->device].contexts)
		gs_proc_leave(c->g, c->proc);
	gs_gpu_unlock(c->g);
	if (!device[c->device].contexts) {
		gs_pools_forget(c->device);
		gs_graphs_forget(c->device);
	}
	for (int i = 0; i < depth; i++)
		if (stack[i] == c)
			stack[i] = NULL;
}

GS_API cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&gs_process);
	if (!device[d].primary && (device[d].primary = make(d)))
		device[d].primary->primary = true;
	*c = device[d].primary;
	if (*c)
		device[d].retained++;
	pthread_mutex_unlock(&gs_process);
	return *c ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUdevice d, bool all)
{
	CUresult r = CUDA_SUCCESS;

	GS_TRY(gs_device(d));
	pthread_mutex_lock(&gs_process);
	if (!device[d].primary) {
		r = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	} else if (all || !--device[d].retained) {
		unmake(device[d].primary);
		device[d].primary = NULL;
		device[d].retained = 0;
	}
	pthread_mutex_unlock(&gs_process);
	return r;
}

GS_API cuDevicePrimaryCtxRelease_v2(CUdevice d) { return release(d, false); }
GS_API cuDevicePrimaryCtxReset_v2(CUdevice d) { return release(d, true); }

GS_API cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active)
{
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&gs_process);
	*flags = device[d].flags;
	*active = device[d].primary != NULL;
	pthread_mutex_unlock(&gs_process);
	return CUDA_SUCCESS;
}

GS_API cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned flags)
{
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&gs_process);
	device[d].flags = flags;
	pthread_mutex_unlock(&gs_process);
	return CUDA_SUCCESS;
}

GS_API cuCtxPushCurrent_v2(CUcontext c)
{
	GS_TRY(gs_enter());
	if (c && c->gone)
		abort(); /* as the real one may */
	if (!c || depth == DEPTH)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = c;
	return CUDA_SUCCESS;
}

GS_API cuCtxPopCurrent_v2(CUcontext *c)
{
	GS_TRY(gs_enter());
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (c)
		*c = stack[depth];
	return CUDA_SUCCESS;
}

GS_API cuCtxCreate_v2(CUcontext *c, unsigned flags, CUdevice d)
{
	(void)flags;
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&gs_process);
	*c = make(d);
	pthread_mutex_unlock(&gs_process);
	return *c ? cuCtxPushCurrent_v2(*c) : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuCtxCreate_v4(CUcontext *c, CUctxCreateParams *params, unsigned flags, CUdevice d)
{
	(void)params;
	return cuCtxCreate_v2(c, flags, d);
}

GS_API cuCtxDestroy_v2(CUcontext c)
{
	GS_TRY(gs_enter());
	if (!c || c->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth && stack[depth - 1] == c)
		depth--;
	pthread_mutex_lock(&gs_process);
	unmake(c);
	pthread_mutex_unlock(&gs_process);
	return CUDA_SUCCESS;
}

/* A green context is a context. Its memory goes with it here; the real driver keeps
 * it with the primary one. */
GS_API cuGreenCtxCreate(CUgreenCtx *g, const void *description, CUdevice d, unsigned flags)
{
	(void)description, (void)flags;
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&gs_process);
	*g = make(d);
	pthread_mutex_unlock(&gs_process);
	return *g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuCtxFromGreenCtx(CUcontext *c, CUgreenCtx g)
{
	GS_TRY(gs_enter());
	*c = g;
	return g ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

GS_API cuGreenCtxDestroy(CUgreenCtx g)
{
	GS_TRY(cuCtxDestroy_v2(g));
	g->gone = true;
	return CUDA_SUCCESS;
}

GS_API cuCtxSetCurrent(CUcontext c)
{
	GS_TRY(gs_enter());
	if (depth)
		depth--;
	if (c)
		stack[depth++] = c;
	return CUDA_SUCCESS;
}

GS_API cuCtxGetCurrent(CUcontext *c)
{
	GS_TRY(gs_enter());
	*c = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

GS_API cuCtxGetDevice(CUdevice *d)
{
	CUcontext c;

	GS_TRY(gs_current(&c));
	*d = c->device;
	return CUDA_SUCCESS;
}

GS_API cuCtxSynchronize(void)
{
	CUcontext c;

	gs_client_ask();
	GS_TRY(gs_current(&c));
	GS_TRY(gs_unsafe());
	return gs_finish(c);
}

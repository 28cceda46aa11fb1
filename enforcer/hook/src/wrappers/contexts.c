/* Contexts: what begins and ends with one. */
#include "base/devices.h"
#include "gate/gate.h"
#include "gate/nccl.h"
#include "ledger/claims.h"
#include "ledger/growers.h"
#include "streams/streams.h"
#include "wrappers/wrapped.h"

/* First line of a wrapper that may make a context, up to the end of the block. */
#define GS_MAKES(device) int gs_made __attribute__((cleanup(made), unused)) = gs_gpu_makes(gs_gpu_of_device(device))

static void made(const int *was) { gs_gpu_makes(*was); }

#define DEVICES 64
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	CUcontext context;
	uint64_t retained;
} primary[DEVICES];

void gs_forked_contexts(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (int d = 0; d < DEVICES; d++)
		primary[d].context = NULL, primary[d].retained = 0;
}

static CUresult created(CUresult r, CUcontext *c, CUdevice device)
{
	if (r == CUDA_SUCCESS)
		gs_gate_context_created(*c, gs_gpu_made(device));
	return r;
}

CUresult cuCtxCreate(CUcontext *c, unsigned flags, CUdevice device)
{
	GS_WHOLE(cuCtxCreate);
	GS_MAKES(device);
	return created(gs_real.cuCtxCreate(c, flags, device), c, device);
}

CUresult cuCtxCreate_v2(CUcontext *c, unsigned flags, CUdevice device)
{
	GS_WHOLE(cuCtxCreate_v2);
	GS_MAKES(device);
	return created(gs_real.cuCtxCreate_v2(c, flags, device), c, device);
}

CUresult cuCtxCreate_v3(CUcontext *c, void *affinity, int count, unsigned flags, CUdevice device)
{
	GS_WHOLE(cuCtxCreate_v3);
	GS_MAKES(device);
	return created(gs_real.cuCtxCreate_v3(c, affinity, count, flags, device), c, device);
}

CUresult cuCtxCreate_v4(CUcontext *c, void *params, unsigned flags, CUdevice device)
{
	GS_WHOLE(cuCtxCreate_v4);
	GS_MAKES(device);
	return created(gs_real.cuCtxCreate_v4(c, params, flags, device), c, device);
}

static void ends(CUcontext c)
{
	gs_gate_context_destroyed(c);
	gs_nccl_context_destroyed(c);
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext c)
{
	ends(c);
	CUresult r = real(c);
	if (r == CUDA_SUCCESS)
		gs_context_gone(c);
	return r;
}

CUresult cuCtxDestroy(CUcontext c)
{
	GS_WHOLE(cuCtxDestroy);
	return destroy(gs_real.cuCtxDestroy, c);
}

CUresult cuCtxDestroy_v2(CUcontext c)
{
	GS_WHOLE(cuCtxDestroy_v2);
	return destroy(gs_real.cuCtxDestroy_v2, c);
}

/* A green context is a part of its device's primary one, under a handle of its own.
 * The gate knows it from the first launch. Its memory is the primary context's and
 * stays with that. */
CUresult cuGreenCtxCreate(CUgreenCtx *g, void *description, CUdevice device, unsigned flags)
{
	GS_WHOLE(cuGreenCtxCreate);
	GS_MAKES(device);
	CUresult r = gs_real.cuGreenCtxCreate(g, description, device, flags);
	if (r == CUDA_SUCCESS)
		gs_gpu_made(device);
	return r;
}

CUresult cuGreenCtxDestroy(CUgreenCtx g)
{
	CUcontext c = NULL;

	GS_WHOLE(cuGreenCtxDestroy);
	if (g && gs_real.cuCtxFromGreenCtx && gs_real.cuCtxFromGreenCtx(&c, g) == CUDA_SUCCESS)
		ends(c);
	return gs_real.cuGreenCtxDestroy(g);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice device)
{
	GS_WHOLE(cuDevicePrimaryCtxRetain);
	GS_MAKES(device);
	CUresult r = gs_real.cuDevicePrimaryCtxRetain(c, device);
	if (r != CUDA_SUCCESS || device < 0 || device >= DEVICES)
		return r;
	pthread_mutex_lock(&lock);
	primary[device].context = *c;
	primary[device].retained++;
	pthread_mutex_unlock(&lock);
	return created(r, c, device);
}

/* The primary context ends with its last release, or at once with a reset. */
static CUresult let_go(CUresult (*real)(CUdevice), CUdevice device, bool reset)
{
	CUcontext c;
	unsigned flags;
	int active = 0;

	if (device < 0 || device >= DEVICES)
		return real(device);
	pthread_mutex_lock(&lock);
	bool last = reset || primary[device].retained == 1;
	c = primary[device].context;
	pthread_mutex_unlock(&lock);
	if (c && last)
		ends(c);
	CUresult r = real(device);
	if (r != CUDA_SUCCESS)
		return r;
	pthread_mutex_lock(&lock);
	if (!reset && primary[device].retained)
		primary[device].retained--;
	pthread_mutex_unlock(&lock);
	if (!reset && gs_real.cuDevicePrimaryCtxGetState &&
	    gs_real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active)
		return r;
	gs_context_gone(c);
	int gpu = atomic_load(&gs_counting) ? gs_gpu_of_device(device) : -1;
	if (gpu >= 0)
		gs_pools_reset(gpu);
	return r;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	GS_WHOLE(cuDevicePrimaryCtxRelease);
	return let_go(gs_real.cuDevicePrimaryCtxRelease, device, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	GS_WHOLE(cuDevicePrimaryCtxRelease_v2);
	return let_go(gs_real.cuDevicePrimaryCtxRelease_v2, device, false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	GS_WHOLE(cuDevicePrimaryCtxReset);
	return let_go(gs_real.cuDevicePrimaryCtxReset, device, true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	GS_WHOLE(cuDevicePrimaryCtxReset_v2);
	return let_go(gs_real.cuDevicePrimaryCtxReset_v2, device, true);
}

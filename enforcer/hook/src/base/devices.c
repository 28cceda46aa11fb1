#include "base/devices.h"

#include <string.h>

#include "base/driver.h"

struct gs_gpus gs_gpus;

unsigned gs_gpu_count(void) { return gs_gpus.count; }

int gs_gpu_of_uuid(const CUuuid *uuid)
{
	for (unsigned i = 0; i < gs_gpus.count; i++)
		if (!memcmp(&gs_gpus.uuid[i], uuid, sizeof(*uuid)))
			return (int)i;
	return -1;
}

int gs_gpu_of_device(CUdevice device)
{
	for (unsigned i = 0; i < gs_gpus.count; i++)
		if (gs_gpus.device[i] == device)
			return (int)i;
	return -1;
}

void gs_find_gpus(void)
{
	CUresult (*uuid)(CUuuid *, CUdevice) =
		gs_real.cuDeviceGetUuid_v2 ? gs_real.cuDeviceGetUuid_v2 : gs_real.cuDeviceGetUuid;
	int n = 0, version = 0;

	if (gs_real.cuDriverGetVersion && gs_real.cuDriverGetVersion(&version) == CUDA_SUCCESS)
		gs_gpus.cuda = (uint32_t)version;
	if (!uuid || !gs_real.cuDeviceGetCount || !gs_real.cuDeviceGet || gs_real.cuDeviceGetCount(&n) != CUDA_SUCCESS)
		return;
	for (int i = 0; i < n && i < GS_GPUS; i++)
		if (gs_real.cuDeviceGet(&gs_gpus.device[i], i) != CUDA_SUCCESS ||
		    uuid(&gs_gpus.uuid[i], gs_gpus.device[i]) != CUDA_SUCCESS)
			return;
		else
			gs_gpus.count = (unsigned)i + 1;
}

/* ---- which of them a thread works on ---- */

#define NONE -1
#define SEVERAL -2

/* The only GPU on which the process made contexts. While there is only one, the
 * driver is not asked for the current one. */
static _Atomic int only = NONE;
static _Thread_local int making = NONE;

int gs_gpu_makes(int gpu)
{
	int was = making;

	making = gpu;
	return was;
}

int gs_gpu_making(void) { return making; }

int gs_gpu_current(void)
{
	int gpu = atomic_load_explicit(&only, memory_order_relaxed);
	CUdevice device;

	if (likely(gpu >= 0))
		return gpu;
	if (!gs_real.cuCtxGetDevice || gs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return -1;
	return gs_gpu_of_device(device);
}

int gs_gpu_only(void)
{
	int gpu = atomic_load(&only);

	return gpu >= 0 ? gpu : -1;
}

int gs_gpu_made(CUdevice device)
{
	int gpu = gs_gpu_of_device(device), none = NONE;

	if (!atomic_compare_exchange_strong(&only, &none, gpu < 0 ? SEVERAL : gpu) && none != gpu)
		atomic_store(&only, SEVERAL);
	return gpu;
}

void gs_forked_devices(void)
{
	gs_gpus.count = 0;
	atomic_store(&only, NONE);
	making = NONE;
}

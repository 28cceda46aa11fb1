/* NVML of the simulated GPUs: their memory, their processes, and their UUIDs. With
 * GS_STUB_MIG=N each GPU has N MIG devices, which are the devices that CUDA sees.
 * It sees all of them; the real one shows a process one. Simulated GPUs that are
 * left over are not NVML's. With GS_STUB_UNIFIED their memory is not told, as that of
 * GPUs that use the host's. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define API __attribute__((visibility("default"))) int
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE };
#define NONE UINT32_MAX /* of GPU instances and compute instances */

/* Simulated GPUs, from the first on. A MIG device has its GPU instance; 0: it is none. */
struct device {
	uint32_t first, count, gi;
};
static struct device devices[2][GS_STUB_GPUS_MAX];

/* MIG devices of a GPU; 0: without MIG. */
static uint32_t slices(void)
{
	const char *set = getenv("GS_STUB_MIG");

	return set ? (uint32_t)strtoul(set, NULL, 10) : 0;
}

static uint32_t each(void)
{
	return slices() ? slices() : 1;
}

API nvmlInit_v2(void)
{
	return gs_host_open() ? SUCCESS : UNINITIALIZED;
}

API nvmlShutdown(void)
{
	return SUCCESS;
}

API nvmlDeviceGetCount_v2(unsigned *n)
{
	if (!gs_host)
		return UNINITIALIZED;
	*n = gs_host->gpus / each();
	return SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned i, struct device **d)
{
	if (!gs_host)
		return UNINITIALIZED;
	if (i >= gs_host->gpus / each())
		return INVALID_ARGUMENT;
	*d = &devices[0][i];
	**d = (struct device){.first = i * each(), .count = each()};
	return SUCCESS;
}

API nvmlDeviceGetMigMode(const struct device *d, unsigned *now, unsigned *next)
{
	if (d->gi)
		return INVALID_ARGUMENT;
	*now = *next = slices() > 0;
	return SUCCESS;
}

API nvmlDeviceGetMaxMigDeviceCount(const struct device *d, unsigned *n)
{
	*n = d->gi ? 0 : slices();
	return SUCCESS;
}

API nvmlDeviceGetMigDeviceHandleByIndex(const struct device *of, unsigned i, struct device **d)
{
	if (!slices())
		return NOT_SUPPORTED;
	if (i >= of->count)
		return NOT_FOUND;
	*d = &devices[1][of->first + i];
	**d = (struct device){.first = of->first + i, .count = 1, .gi = i + 1};
	return SUCCESS;
}

API nvmlDeviceGetGpuInstanceId(const struct device *d, unsigned *id)
{
	*id = d->gi;
	return d->gi ? SUCCESS : INVALID_ARGUMENT;
}

API nvmlDeviceGetComputeInstanceId(const struct device *d, unsigned *id)
{
	*id = 0;
	return d->gi ? SUCCESS : INVALID_ARGUMENT;
}

API nvmlDeviceGetName(const struct device *d, char *text, unsigned length)
{
	snprintf(text, length, "gpusteward stub%s", d->gi ? " MIG 1g" : "");
	return SUCCESS;
}

/* It is CUDA's, which is the MIG device's if there is one: see device.c. */
API nvmlDeviceGetUUID(const struct device *d, char *text, unsigned length)
{
	unsigned char u[16] = "gpusteward-stub";

	u[15] = (unsigned char)(d->first / (d->gi ? 1 : each()));
	if (slices() && !d->gi)
		u[0] = 'G';
	snprintf(text, length, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 d->gi ? "MIG" : "GPU",
		u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	return SUCCESS;
}

struct process {
	unsigned pid;
	unsigned long long used;
	unsigned gi, ci;
};

/* A process that is checkpointed is listed with 0 bytes. On a real GPU it keeps about
 * 4 MiB. */
API nvmlDeviceGetComputeRunningProcesses_v3(const struct device *d, unsigned *n, struct process *all)
{
	unsigned room = *n;

	if (!gs_host)
		return UNINITIALIZED;
	*n = 0;
	for (uint32_t i = 0; i < d->count; i++) {
		uint32_t gi = d->gi ? d->gi : slices() ? i + 1 : NONE;
		struct gs_gpu *g = gs_gpu_lock(d->first + i);
		for (uint32_t p = 0; p < g->procs; p++) {
			if (!g->proc[p].pid)
				continue;
			if (*n < room)
				all[*n] = (struct process){
					(unsigned)g->proc[p].pid, gs_proc_used(&g->proc[p]), gi, gi == NONE ? NONE : 0};
			++*n;
		}
		gs_gpu_unlock(g);
	}
	return *n > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define RESERVED (256ull << 20)

API nvmlDeviceGetMemoryInfo(const struct device *d, unsigned long long m[3])
{
	if (!gs_host)
		return UNINITIALIZED;
	if (getenv("GS_STUB_UNIFIED"))
		return NOT_SUPPORTED;
	memset(m, 0, 3 * sizeof *m);
	for (uint32_t i = 0; i < d->count; i++) {
		struct gs_gpu *g = gs_gpu_lock(d->first + i);
		m[0] += g->memory;
		m[1] += g->memory - gs_used(g);
		m[2] += gs_used(g);
		gs_gpu_unlock(g);
	}
	return SUCCESS;
}

struct second {
	unsigned version;
	unsigned long long m[4];
};

API nvmlDeviceGetMemoryInfo_v2(const struct device *d, struct second *to)
{
	unsigned long long m[3];
	int error;

	if (to->version != (sizeof *to | 2u << 24))
		return INVALID_ARGUMENT;
	error = nvmlDeviceGetMemoryInfo(d, m);
	if (error)
		return error;
	to->m[0] = m[0];
	to->m[1] = RESERVED;
	to->m[2] = m[1] - RESERVED;
	to->m[3] = m[2];
	return SUCCESS;
}

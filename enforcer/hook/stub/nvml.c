/* NVML of the simulated GPUs: what it says of their memory, and by which UUIDs.
 * With GS_STUB_MIG=1 each GPU has one MIG device, which is what CUDA sees. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define API __attribute__((visibility("default"))) int
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6 };

struct device {
	uint32_t gpu;
	bool mig;
};
static struct device devices[2][GS_STUB_GPUS_MAX];

static bool mig(void)
{
	const char *set = getenv("GS_STUB_MIG");

	return set && !strcmp(set, "1");
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
	*n = gs_host->gpus;
	return SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned i, struct device **d)
{
	if (!gs_host)
		return UNINITIALIZED;
	if (i >= gs_host->gpus)
		return INVALID_ARGUMENT;
	*d = &devices[0][i];
	**d = (struct device){.gpu = i};
	return SUCCESS;
}

API nvmlDeviceGetMigDeviceHandleByIndex(struct device *of, unsigned i, struct device **d)
{
	if (!mig())
		return NOT_SUPPORTED;
	if (i)
		return NOT_FOUND;
	*d = &devices[1][of->gpu];
	**d = (struct device){.gpu = of->gpu, .mig = true};
	return SUCCESS;
}

/* As CUDA's, which are the MIG devices' where there are some: see device.c. */
API nvmlDeviceGetUUID(struct device *d, char *text, unsigned length)
{
	unsigned char u[16] = "gpusteward-stub";

	u[15] = (unsigned char)d->gpu;
	if (mig() && !d->mig)
		u[0] = 'G';
	snprintf(text, length, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", d->mig ? "MIG" : "GPU",
		u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	return SUCCESS;
}

#define RESERVED (256ull << 20)

API nvmlDeviceGetMemoryInfo(const struct device *d, unsigned long long m[3])
{
	if (!gs_host)
		return UNINITIALIZED;
	struct gs_gpu *g = gs_gpu_lock(d->gpu);
	m[0] = g->memory;
	m[1] = g->memory - g->used;
	m[2] = g->used;
	gs_gpu_unlock(g);
	return SUCCESS;
}

struct second {
	unsigned version;
	unsigned long long m[4];
};

API nvmlDeviceGetMemoryInfo_v2(const struct device *d, struct second *to)
{
	unsigned long long m[3];

	if (to->version != (sizeof *to | 2u << 24))
		return INVALID_ARGUMENT;
	nvmlDeviceGetMemoryInfo(d, m);
	to->m[0] = m[0];
	to->m[1] = RESERVED;
	to->m[2] = m[1] - RESERVED;
	to->m[3] = m[2];
	return SUCCESS;
}

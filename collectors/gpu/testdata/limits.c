/*
 * A libnvidia-ml.so.1 that keeps memory limits, of one GPU, GPU-a, and one
 * cgroup. The structures are those of the public reference of NVML. Files in
 * the directory that FAKE_DRIVER names: limits has what was set, sets how
 * often, hang has a set not return for as long as it is there, which stuck
 * says, deaf has it not set anything, return has what it returns. -DOLD leaves
 * the limits out.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct gpu { int open; } *nvmlDevice_t;
typedef struct {
	const char *nameSpace;
	unsigned long long softLimit;
	unsigned long long hardLimit;
} nvmlSetMemoryLimits_v1_t;
typedef struct {
	const char *nameSpace;
	unsigned long long softLimit;
	unsigned long long hardLimit;
	unsigned long long currentUsed;
} nvmlGetMemoryLimits_v1_t;

static struct gpu gpu;
static int sessions;

static FILE *file(const char *name, const char *mode)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", getenv("FAKE_DRIVER"), name);
	return fopen(path, mode);
}

int nvmlInit_v2(void) { sessions++; return 0; }
int nvmlShutdown(void) { return sessions-- > 0 ? 0 : 1; }

int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	if (!sessions)
		return 1;
	if (strcmp(uuid, "GPU-a"))
		return 6;
	*device = &gpu;
	return 0;
}

#ifndef OLD
static int there(const char *name)
{
	FILE *f = file(name, "r");
	if (f)
		fclose(f);
	return f != NULL;
}

int nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *l)
{
	int ret = 0;
	FILE *f;

	if (!sessions || device != &gpu)
		return 2;
	if ((f = file("return", "r"))) {
		if (fscanf(f, "%d", &ret) != 1)
			ret = 999;
		fclose(f);
		return ret;
	}
	if (there("hang") && (f = file("stuck", "w"))) {
		fputs("1", f);
		fclose(f);
	}
	while (there("hang"))
		usleep(1000);
	f = file("sets", "a");
	fputs("set\n", f);
	fclose(f);
	if (there("deaf"))
		return 0;
	f = file("limits", "w");
	fprintf(f, "%s %llu %llu", l->nameSpace, l->softLimit, l->hardLimit);
	fclose(f);
	return 0;
}

int nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *l)
{
	char name[4096];
	FILE *f = file("limits", "r");
	int n;

	if (!sessions || device != &gpu)
		return 2;
	if (!f)
		return 6;
	n = fscanf(f, "%4095s %llu %llu", name, &l->softLimit, &l->hardLimit);
	fclose(f);
	l->currentUsed = 77;
	return n == 3 && !strcmp(name, l->nameSpace) ? 0 : 6;
}
#endif

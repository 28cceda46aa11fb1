/* What NVML tells a program of a GPU's memory: the same card as the driver does
 * (memory.c), also in a process without CUDA, such as nvidia-smi. The rest of NVML
 * is left alone.
 *
 * The library is the one that the process has loaded. */
#define _GNU_SOURCE
#include "wrappers/nvml.h"

#include <dlfcn.h>
#include <string.h>

#include "base/devices.h"
#include "base/driver.h"
#include "ledger/claims.h"
#include "session/look.h"
#include "wrappers/forks.h"
#include "wrappers/memory.h"

enum { SUCCESS = 0, FUNCTION_NOT_FOUND = 13 }; /* of nvmlReturn_t */
#define UUID_LENGTH 96

/* The functions. The first two have wrappers of ours. */
enum call { MEMORY, MEMORY_V2, UUID, CALLS };
static struct {
	const char *name;
	void *wrapper, *real;
} calls[CALLS] = {
	{"nvmlDeviceGetMemoryInfo", (void *)nvmlDeviceGetMemoryInfo, NULL},
	{"nvmlDeviceGetMemoryInfo_v2", (void *)nvmlDeviceGetMemoryInfo_v2, NULL},
	{"nvmlDeviceGetUUID", NULL, NULL},
};

/* NVML's own function; NULL: the process has no NVML (open: and cannot load it), or
 * it lacks the function. It is never closed: see gs_driver_load. */
static void *real(enum call c, bool open)
{
	void *found = __atomic_load_n(&calls[c].real, __ATOMIC_ACQUIRE), *nvml;

	if (found)
		return found;
	GS_ERRNO;
	nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (!nvml && open)
		nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	if (nvml && (found = gs_dlsym(nvml, calls[c].name)))
		__atomic_store_n(&calls[c].real, found, __ATOMIC_RELEASE);
	return found;
}

bool gs_nvml_resolve(void *handle, const char *name, void **answer)
{
	for (enum call c = MEMORY; c <= MEMORY_V2; c++) {
		if (strcmp(name, calls[c].name) != 0 || gs_intercept_off())
			continue;
		/* If the search began with us, it goes on behind us. */
		void *at = gs_dlsym(handle, name);
		if (at == calls[c].wrapper)
			at = gs_dlsym(RTLD_NEXT, name);
		*answer = at && at == real(c, false) ? calls[c].wrapper : at;
		return true;
	}
	return false;
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0'
	     : c >= 'a' && c <= 'f' ? c - 'a' + 10
	     : c >= 'A' && c <= 'F' ? c - 'A' + 10
				    : -1;
}

/* Reads GPU-12345678-... or MIG-...: the bytes of CUDA's UUID. */
static bool parse(const char *text, CUuuid *uuid)
{
	unsigned n = 0;

	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	memset(uuid, 0, sizeof *uuid);
	for (text += 4; *text; text++) {
		int d = digit(*text);
		if (*text == '-')
			continue;
		if (d < 0 || n == 32)
			return false;
		uuid->bytes[n / 2] = (char)(uuid->bytes[n / 2] << 4 | d);
		n++;
	}
	return n == 32;
}

/* Returns what the tenant may have of a device, 0 without a cap, and sets what it has. */
static uint64_t cap_of(void *device, uint64_t *used)
{
	int (*tell)(void *, char *, unsigned);
	void *found = real(UUID, false);
	char text[UUID_LENGTH] = "";
	uint64_t cap = 0;
	CUuuid uuid;

	memcpy(&tell, &found, sizeof tell);
	if (gs_intercept_off() || !found || tell(device, text, sizeof text) != SUCCESS || !parse(text, &uuid))
		return 0;
	if (atomic_load_explicit(&gs_counting, memory_order_acquire)) {
		int gpu = gs_gpu_of_uuid(&uuid);
		if (gpu >= 0)
			return gs_cap_of(gpu, used);
	}
	gs_forks_watch();
	return gs_client_look(&uuid, &cap, used) ? cap : 0;
}

/* Shows the tenant's card, as the driver's cuMemGetInfo does. */
static void shrink(void *device, unsigned long long *total, unsigned long long *left, unsigned long long *used)
{
	uint64_t has = 0, cap = cap_of(device, &has);

	if (!cap)
		return;
	uint64_t rest = cap > has ? cap - has : 0;
	if (*total > cap)
		*total = cap;
	if (*left > rest)
		*left = rest;
	*used = has < *total ? has : *total;
}

int nvmlDeviceGetMemoryInfo(void *device, struct gs_nvml_memory *m)
{
	int (*call)(void *, struct gs_nvml_memory *);
	GS_UNCANCELLED;
	void *found = real(MEMORY, true);

	if (!found)
		return FUNCTION_NOT_FOUND;
	memcpy(&call, &found, sizeof call);
	int r = call(device, m);
	if (r == SUCCESS)
		shrink(device, &m->total, &m->left, &m->used);
	return r;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct gs_nvml_memory_v2 *m)
{
	int (*call)(void *, struct gs_nvml_memory_v2 *);
	GS_UNCANCELLED;
	void *found = real(MEMORY_V2, true);

	if (!found)
		return FUNCTION_NOT_FOUND;
	memcpy(&call, &found, sizeof call);
	int r = call(device, m);
	if (r != SUCCESS)
		return r;
	unsigned long long total = m->total;
	shrink(device, &m->total, &m->left, &m->used);
	if (m->total < total)
		m->reserved = 0; /* of the rest of the card */
	return r;
}

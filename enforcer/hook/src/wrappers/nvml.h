/* The few types of NVML that the hook needs, after its documentation, and the names
 * of it that are ours. */
#ifndef GPUSTEWARD_NVML_H
#define GPUSTEWARD_NVML_H

#include <stdbool.h>

struct gs_nvml_memory { /* bytes */
	unsigned long long total, left, used;
};
struct gs_nvml_memory_v2 {
	unsigned version;
	unsigned long long total, reserved, left, used;
};

#define GS_NVML __attribute__((visibility("default"))) int
GS_NVML nvmlDeviceGetMemoryInfo(void *device, struct gs_nvml_memory *m);
GS_NVML nvmlDeviceGetMemoryInfo_v2(void *device, struct gs_nvml_memory_v2 *m);

/* The answer of dlsym, if the name is ours. */
bool gs_nvml_resolve(void *handle, const char *name, void **answer);

#endif

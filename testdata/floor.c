// What the driver's library alone costs: a program that does nothing but
// nvmlInit. TestGPUFloor prints it, so that the agent's memory has a measure.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	int (*init)(void) = nvml ? (int (*)(void))dlsym(nvml, "nvmlInit_v2") : NULL;
	if (!init || init() != 0) {
		fprintf(stderr, "nvmlInit failed\n");
		return 1;
	}
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, "VmRSS", 5) || !strncmp(line, "RssAnon", 7) || !strncmp(line, "RssFile", 7))
			fputs(line, stdout);
	return 0;
}

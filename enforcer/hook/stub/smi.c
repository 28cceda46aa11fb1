/* Asks NVML for each GPU's memory, as nvidia-smi does, without CUDA. Each line,
 * with bytes:
 *   GPU TOTAL FREE USED RESERVED
 * RESERVED is - by the first version of the call, which does not tell it.
 *   smi [link|dlsym] [v1|v2] [gpu|mig] [EVERY_MS]
 * finds the call by its name or by dlsym, in this version of it, for each GPU or for
 * its MIG device. It asks once, or at this interval until it is killed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct v1 { unsigned long long total, left, used; };
struct v2 { unsigned version; unsigned long long total, reserved, left, used; };
int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d);
int nvmlDeviceGetMigDeviceHandleByIndex(void *of, unsigned i, void **d);
int nvmlDeviceGetMemoryInfo(void *d, struct v1 *m);
int nvmlDeviceGetMemoryInfo_v2(void *d, struct v2 *m);

static bool is(int argc, char **argv, int i, const char *word)
{
	return i < argc && !strcmp(argv[i], word);
}

int main(int argc, char **argv)
{
	bool second = is(argc, argv, 2, "v2");
	double ms = argc > 4 ? atof(argv[4]) : 0;
	struct timespec t = {(time_t)(ms / 1000), (long)(ms * 1e6) % 1000000000};
	int (*one)(void *, struct v1 *) = nvmlDeviceGetMemoryInfo;
	int (*two)(void *, struct v2 *) = nvmlDeviceGetMemoryInfo_v2;
	unsigned n;

	if (is(argc, argv, 1, "dlsym")) {
		void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *f = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
		memcpy(&one, &f, sizeof f);
		f = dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2");
		memcpy(&two, &f, sizeof f);
	}
	if (nvmlInit_v2() || nvmlDeviceGetCount_v2(&n))
		return 1;
	do {
		for (unsigned i = 0; i < n; i++) {
			struct v1 m;
			struct v2 w = {.version = sizeof w | 2u << 24};
			void *d;
			if (nvmlDeviceGetHandleByIndex_v2(i, &d) ||
			    (is(argc, argv, 3, "mig") && nvmlDeviceGetMigDeviceHandleByIndex(d, 0, &d)) ||
			    (second ? two(d, &w) : one(d, &m)))
				return 1;
			if (second)
				printf("%u %llu %llu %llu %llu\n", i, w.total, w.left, w.used, w.reserved);
			else
				printf("%u %llu %llu %llu -\n", i, m.total, m.left, m.used);
		}
		fflush(stdout);
	} while (ms > 0 && !nanosleep(&t, NULL));
	return 0;
}

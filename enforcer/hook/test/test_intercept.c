/* What a program gets from dlsym and cuGetProcAddress under the hook. This program
 * runs as it is, with the parts linked in. TestPreloaded runs it with
 * libgpusteward.so preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/cuda.h"
#include "run.h"

#ifndef PRELOADED
#include "base/entries.h"
#include "session/session.h"
#include "streams/streams.h"
#include "wrappers/nvml.h"
#include "wrappers/wrapped.h"
#endif

static const char *const wrapped[] = {
#define GS_CALL(name, ...)
#define GS_WRAP(name, ...) #name,
#include "base/calls.h"
#undef GS_CALL
};
static const char *const called[] = {
#define GS_CALL(name, ...) #name,
#define GS_WRAP(name, ...)
#include "base/calls.h"
#undef GS_CALL
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef CUresult (*gpa)(const char *, void **, int, uint64_t, int *);
static void *driver;

/* p lies in the driver's own file. */
static bool drivers(void *p)
{
	Dl_info at;
	return p && dladdr(p, &at) && strstr(at.dli_fname, "libcuda.so");
}

/* The CUDA runtime's way, for a name without a suffix. */
static void *ask(const char *name, int version, uint64_t flags)
{
	gpa get = (gpa)dlsym(driver, "cuGetProcAddress_v2");
	void *p = NULL;
	int status;
	return get(name, &p, version, flags, &status) == CUDA_SUCCESS ? p : NULL;
}

static void before_the_driver(void)
{
	dlerror();
	CHECK(!dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")); /* we are no driver */
	CHECK(dlerror());
	CHECK(!dlsym(RTLD_DEFAULT, "cudnnCreate") && !dlsym(RTLD_DEFAULT, "cublasCreate_v2"));
	CHECK(dlsym(RTLD_DEFAULT, "getpid") == (void *)getpid);
	CHECK(!dlerror());
}

static void by_name(void)
{
	size_t found = 0;

	for (size_t i = 0; i < COUNT(wrapped); i++) {
		dlerror();
		void *p = dlsym(driver, wrapped[i]);
		CHECK(!p == (dlerror() != NULL)); /* the test's driver does not have all */
		CHECK(!drivers(p));
		CHECK(!drivers(dlsym(RTLD_DEFAULT, wrapped[i])));
		found += p != NULL;
	}
	CHECK(found > 50);
	CHECK(dlsym(driver, "cuMemAlloc_v2") != dlsym(driver, "cuMemFree_v2"));
	for (size_t i = 0; i < COUNT(called); i++) {
		void *p = dlsym(driver, called[i]);
		CHECK(!p || drivers(p));
	}
	CHECK(!dlsym(driver, "cuNothingOfTheKind") && dlerror());
}

static void by_address(void)
{
	static const struct { const char *asked, *exported; int version; uint64_t flags; } rows[] = {
		{"cuMemAlloc", "cuMemAlloc_v2", 12000, 1},
		{"cuMemFree", "cuMemFree_v2", 13000, 1},
		{"cuLaunchKernel", "cuLaunchKernel", 12000, 1},
		{"cuLaunchKernel", "cuLaunchKernel_ptsz", 12000, 2},
		{"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", 12000, 2},
		{"cuMemAllocAsync", "cuMemAllocAsync_ptsz", 12000, 2},
		{"cuGraphLaunch", "cuGraphLaunch", 13000, 1},
		{"cuCtxCreate", "cuCtxCreate_v2", 12000, 1},
		{"cuCtxCreate", "cuCtxCreate_v4", 13000, 1},
		{"cuGetProcAddress", "cuGetProcAddress_v2", 12000, 1},
		{"cuGetProcAddress", "cuGetProcAddress", 11030, 1},
		{"cuInit", "cuInit", 12000, 1},
	};
	int status = -1;
	void *p = &status;

	for (size_t i = 0; i < COUNT(rows); i++) {
		void *at = ask(rows[i].asked, rows[i].version, rows[i].flags);
		if (at != dlsym(driver, rows[i].exported) || drivers(at) || !at) {
			fprintf(stderr, "cuGetProcAddress(%s, %d) is not our %s\n", rows[i].asked, rows[i].version,
				rows[i].exported);
			exit(1);
		}
	}
	CHECK(drivers(ask("cuDeviceGet", 12000, 1)));
	/* The driver's gating by version, its status and its errors are unchanged. */
	gpa get = (gpa)dlsym(driver, "cuGetProcAddress_v2");
	CHECK(get("cuMemAllocAsync", &p, 10000, 1, &status) != CUDA_SUCCESS || !p);
	CHECK(status == 2); /* the version is not sufficient */
	CHECK(get("cudnnCreate", &p, 12000, 1, &status) != CUDA_SUCCESS || !p);
	CHECK(status == 1); /* not found */
	CHECK(get("cuMemAlloc", NULL, 12000, 1, NULL) != CUDA_SUCCESS);
	get = (gpa)ask("cuGetProcAddress", 13000, 1); /* and once more through itself */
	CHECK(get("cuMemAlloc", &p, 13000, 1, NULL) == CUDA_SUCCESS && !drivers(p));
}

static pthread_barrier_t barrier;

static void *first(void *none)
{
	(void)none;
	pthread_barrier_wait(&barrier);
	void *d = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(d && dlsym(d, "cuLaunchKernel") && !drivers(dlsym(d, "cuLaunchKernel")));
	gpa get = (gpa)dlsym(d, "cuGetProcAddress_v2");
	void *p;
	CHECK(get("cuMemAlloc", &p, 12000, 1, NULL) == CUDA_SUCCESS && !drivers(p));
	return NULL;
}

/* Many threads find the driver at once, before any other did. */
static void at_once(void)
{
	pthread_t t[16];

	pthread_barrier_init(&barrier, NULL, COUNT(t));
	for (size_t i = 0; i < COUNT(t); i++)
		CHECK(!pthread_create(&t[i], NULL, first, NULL));
	for (size_t i = 0; i < COUNT(t); i++)
		pthread_join(t[i], NULL);
}

/* libc must see the caller: the next library after the caller is ours, and the next
 * one after our own would be libc. */
static void true_caller(void)
{
#ifdef PRELOADED
	Dl_info at;
	void *next = dlsym(RTLD_NEXT, "dlsym");
	CHECK(next && dladdr(next, &at) && strstr(at.dli_fname, "libgpusteward.so"));
#endif
}

/* A program that asks the C library for its dlsym gets the driver's calls by that one, too. */
static void by_dlsym(void)
{
	static const char *const files[] = {"libc.so.6", "libdl.so.2"};
	void *(*found)(void *, const char *);
	unsigned n = 0;

	for (size_t i = 0; i <= COUNT(files); i++) {
		void *from = i < COUNT(files) ? dlopen(files[i], RTLD_NOW) : RTLD_NEXT;
		if (!from || !(*(void **)&found = dlsym(from, "dlsym")))
			continue; /* it is in one of the two, by the C library's age */
		CHECK(!drivers((void *)found(driver, "cuMemAlloc_v2")) &&
		      found(driver, "cuMemAlloc_v2") == dlsym(driver, "cuMemAlloc_v2"));
		CHECK(found(RTLD_DEFAULT, "getpid") == (void *)getpid && !found(driver, "cuNothingOfTheKind") &&
		      dlerror());
		n++;
	}
	CHECK(n >= 2);
	CHECK(dlsym(RTLD_DEFAULT, "dlsym") == (void *)dlsym);
}

static void turned_off(void)
{
	setenv("GPUSTEWARD_OFF", "1", 1);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver && drivers(dlsym(driver, "cuMemAlloc_v2")) && drivers(ask("cuLaunchKernel", 12000, 1)));
	CHECK(dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym") != (void *)dlsym);
}

/* A name that the driver has and the table has not is counted once, by whichever
 * way and in whatever version the program got it. */
static void unheard_of(void)
{
#ifndef PRELOADED
	static const char *const known[] = {"cuMemAlloc_v2", "cuMemAlloc", "cuStreamQuery_ptsz", "cuMemcpyHtoD_v2_ptds",
					    "cuDeviceGetUuid_v2",
					    "cuStreamWaitValue32_v2_ptsz", "cuArray3DCreate_v2", "cuZ", "cuda"};

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	for (size_t i = 0; i < COUNT(known); i++)
		CHECK(gs_entry_known(known[i]) == (i < COUNT(known) - 2));
	by_name();
	by_address();
	CHECK(!dlsym(driver, "cuUnheardOf") && dlerror() && !dlsym(RTLD_DEFAULT, "cuUnheardOf_v2") && dlerror());
	CHECK(gs_entries_unknown() == 0);
	void *p = dlsym(driver, "cuUnheardOf_v2");
	CHECK(drivers(p) && ask("cuUnheardOf", 12000, 1) == p && dlsym(driver, "cuUnheardOf_v2") == p);
	CHECK(gs_entries_unknown() == 1);
#endif
}

/* A program that is linked with the driver's names never calls dlsym. */
static void linked(void)
{
#ifndef PRELOADED
	size_t left, total;
	CHECK(cuMemGetInfo_v2(&left, &total) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuInit(0) == CUDA_SUCCESS && cuInit(0) == CUDA_SUCCESS);
#endif
}

/* A program that only asks for the GPUs keeps its one thread, as without the hook: it may fork
 * or enter a namespace. The helper begins with a context, or with memory that needs none. */
#ifndef PRELOADED
static unsigned threads(void)
{
	struct stat st;

	CHECK(!stat("/proc/self/task", &st));
	return (unsigned)st.st_nlink - 2;
}
#endif

static void helped_by_a_context(void)
{
#ifndef PRELOADED
	unsigned before = threads();
	CUcontext c;

	CHECK(!cuInit(0) && threads() == before);
	CHECK(!cuDevicePrimaryCtxRetain(&c, 0) && threads() > before);
#endif
}

static void helped_by_memory(void)
{
#ifndef PRELOADED
	CUmemAllocationProp prop = {.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	unsigned before = threads();

	CHECK(!cuInit(0));
	cuMemCreate(&handle, 2 << 20, &prop, 0); /* the simulated driver wants a context */
	CHECK(threads() > before);
#endif
}

/* NVML tells a program that uses CUDA the same as CUDA does. */
static void same_card(void)
{
#ifndef PRELOADED
	struct gs_nvml_memory m;
	struct gs_nvml_memory_v2 w = {.version = sizeof w | 2u << 24};
	int (*init)(void), (*by_index)(unsigned, void **), (*mig)(void *, unsigned, void **);
	size_t left, total;
	CUdeviceptr p;
	CUcontext c;
	void *d;

	setenv("GPUSTEWARD_SOCKET", "/none", 1);
	setenv("GPUSTEWARD_MEMORY_LIMIT", "1g", 1);
	gs_client.said = true; /* that there is no broker */
	CHECK(nvmlDeviceGetMemoryInfo(NULL, &m) == 1); /* not initialised: its own error */
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	CHECK(nvml);
	*(void **)&init = dlsym(nvml, "nvmlInit_v2");
	*(void **)&by_index = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&mig = dlsym(nvml, "nvmlDeviceGetMigDeviceHandleByIndex");
	CHECK(dlsym(nvml, "nvmlDeviceGetMemoryInfo") == (void *)nvmlDeviceGetMemoryInfo);
	CHECK(!dlsym(nvml, "nvmlDeviceGetMemoryInfo_v3") && dlerror());
	CHECK(!init() && !by_index(0, &d));
	CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&c, 0));
	CHECK(!gs_real.cuCtxPushCurrent_v2(c) && !cuMemAlloc_v2(&p, 100 << 20) && !cuMemGetInfo_v2(&left, &total));
	CHECK(total == 1 << 30 && left == total - (100 << 20));
	CHECK(!nvmlDeviceGetMemoryInfo(d, &m) && m.total == total && m.left == left && m.used == 100 << 20);
	CHECK(!nvmlDeviceGetMemoryInfo_v2(d, &w) && w.total == total && w.left == left && w.used == 100 << 20 &&
	      !w.reserved);
	w.version = 1;
	CHECK(nvmlDeviceGetMemoryInfo_v2(d, &w) == 2 && w.total == total); /* its own error */
	setenv("GS_STUB_MIG", "1", 1);
	CHECK(!mig(d, 0, &d) && !nvmlDeviceGetMemoryInfo(d, &m) && m.total == total && m.used == 100 << 20);
#endif
}

static void all(void)
{
	before_the_driver();
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver);
	by_name();
	by_address();
	by_dlsym();
	true_caller();
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(all), TEST(at_once), TEST(turned_off), TEST(linked),  TEST(unheard_of),
		TEST(same_card), TEST(helped_by_a_context), TEST(helped_by_memory),
	};

	return RUN_TESTS(tests, argc, argv, run_gpus);
}

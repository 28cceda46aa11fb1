/* The simulated driver, without the hook: its memory is one arena, and its work takes its time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#include "base/cuda.h"
#include "run.h"

#define MEMORY (1u << 30)

static void *driver;

#define DRIVER(name, ...) ((CUresult (*)(__VA_ARGS__))dlsym(driver, #name))

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void begin(void)
{
	CUcontext c;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver);
	OK(DRIVER(cuInit, unsigned)(0));
	OK(DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&c, 0));
	OK(DRIVER(cuCtxSetCurrent, CUcontext)(c));
}

static size_t left(void)
{
	size_t left, total;

	OK(DRIVER(cuMemGetInfo_v2, size_t *, size_t *)(&left, &total));
	return left;
}

/* What a process took is free again when it has ended. */
static void memory_is_one_arena(void)
{
	CUdeviceptr p;
	int status;
	pid_t child = fork();

	if (!child) {
		begin();
		OK(DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, 1 << 20));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	begin();
	AWAIT(left() == MEMORY); /* the kernel may release its locks a moment after it tells of the end */
	OK(DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, 1 << 20));
	CHECK(left() == MEMORY - (1 << 20));
	CHECK(DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, MEMORY) == CUDA_ERROR_OUT_OF_MEMORY);
}

static void work_takes_its_time(void)
{
	uint64_t ns = 5000000;
	void *params[] = {&ns};
	CUmodule m;
	CUfunction spin;

	begin();
	uint64_t from = now();
	OK(DRIVER(cuModuleLoadData, CUmodule *, const void *)(&m, "image"));
	OK(DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *)(&spin, m, "spin"));
	for (int i = 0; i < 4; i++)
		OK(DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			  CUstream, void **, void **)(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	OK(DRIVER(cuCtxSynchronize, void)());
	CHECK(now() - from >= 4 * ns);
}

static void begin_test(void)
{
	run_gpus();
	run_keeps(); /* the driver keeps what it made */
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {TEST(memory_is_one_arena), TEST(work_takes_its_time)};

	setenv("GS_STUB_MEMORY", "1073741824", 1);
	return RUN_TESTS(tests, argc, argv, begin_test);
}

/* The driver in this process, and libc's dlsym, by which its functions are found. */
#define _GNU_SOURCE
#include "base/driver.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

struct gs_real gs_real;

/* The names of its members, each with its end. */
static const char names[] =
#define GS_CALL(name, ...) #name "\0"
#include "base/calls.h"
#undef GS_CALL
	;

void *gs_driver, *gs_driver_base;
static _Atomic bool ready; /* gs_real is filled */
static bool off;           /* GPUSTEWARD_OFF */

static void *no_dlsym(void *handle, const char *name)
{
	(void)handle, (void)name;
	return NULL;
}

__attribute__((visibility("hidden"))) void *(*gs_real_dlsym)(void *, const char *) = no_dlsym;

static void read_off(void)
{
	const char *set = getenv("GPUSTEWARD_OFF");

	off = set && !strcmp(set, "1");
}

bool gs_intercept_off(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_off);
	return off;
}

static void fill(void)
{
	void *handle = __atomic_load_n(&gs_driver, __ATOMIC_ACQUIRE), **real = (void **)&gs_real;
	struct link_map *map;
	Dl_info at;

	for (const char *name = names; *name; name += strlen(name) + 1)
		__atomic_store_n(real++, gs_real_dlsym(handle, name), __ATOMIC_RELEASE);
	/* What the driver looks up for itself stays its own: see gs_resolve. */
	if (gs_real.cuInit && dladdr((void *)gs_real.cuInit, &at))
		__atomic_store_n(&gs_driver_base, at.dli_fbase, __ATOMIC_RELEASE);
	else if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0)
		__atomic_store_n(&gs_driver_base, (void *)map->l_addr, __ATOMIC_RELEASE);
	atomic_store_explicit(&ready, true, memory_order_release);
}

void gs_find_dlsym(void)
{
	/* By age: since dlsym is in libc, and before that on either architecture. */
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	void *found = NULL;

	if (__atomic_load_n((void **)&gs_real_dlsym, __ATOMIC_ACQUIRE) != (void *)no_dlsym)
		return;
	for (size_t i = 0; i < sizeof versions / sizeof *versions && !found; i++)
		found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	if (found)
		__atomic_store_n((void **)&gs_real_dlsym, found, __ATOMIC_RELEASE);
}

bool gs_driver_load(bool open)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (atomic_load_explicit(&ready, memory_order_acquire))
		return true;
	GS_ERRNO;
	void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!handle && open)
		handle = dlopen("libcuda.so.1", RTLD_NOW);
	if (!handle)
		return false;
	/* It is never closed: the wrappers need it as long as the process lives. */
	__atomic_store_n(&gs_driver, handle, __ATOMIC_RELEASE);
	pthread_once(&once, fill);
	return true;
}

void *gs_dlsym(void *handle, const char *name)
{
	gs_find_dlsym();
	return gs_real_dlsym(handle, name);
}

bool gs_look_up(void *real)
{
	gs_find_dlsym();
	return gs_driver_load(true) && __atomic_load_n((void **)real, __ATOMIC_ACQUIRE);
}

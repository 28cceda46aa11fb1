/* The driver's own functions, and what every wrapper of one needs. */
#ifndef GPUSTEWARD_DRIVER_H
#define GPUSTEWARD_DRIVER_H

#include "base/hook.h"

#define GS_EXPORT __attribute__((visibility("default")))

extern struct gs_real { /* the driver's own functions by name; NULL: it has none */
#define GS_CALL(name, ...) CUresult (*name)(__VA_ARGS__);
#include "base/calls.h"
#undef GS_CALL
} gs_real;

extern void *gs_driver;      /* the handle of libcuda.so.1; NULL: it is not known yet */
extern void *gs_driver_base; /* where it lies */
/* Fills gs_real once the driver is in the process; open: loads it. */
bool gs_driver_load(bool open);

/* Looks the driver up if *real is not known yet, and loads it if need be: a
 * program that was linked with the driver's names comes here without a dlsym.
 * False: there is no driver, or it lacks this function. */
bool gs_look_up(void *real);

/* dlsym is also called before a sanitizer of the tests is ready, and by it. */
#define GS_EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

/* libc's dlsym. */
void *gs_dlsym(void *handle, const char *name);
/* The same once gs_find_dlsym found it; before, it finds nothing. */
extern void *(*gs_real_dlsym)(void *, const char *) __attribute__((visibility("hidden")));
void gs_find_dlsym(void) GS_EARLY; /* once a program's dlsym has come to us */

bool gs_intercept_off(void); /* GPUSTEWARD_OFF=1: nothing is substituted or counted */

/* First line of the wrapper of name. */
#define GS_NEED(name)                                                                                        \
	do {                                                                                                 \
		if (unlikely(!__atomic_load_n(&gs_real.name, __ATOMIC_ACQUIRE)) && !gs_look_up(&gs_real.name)) \
			return CUDA_ERROR_NOT_FOUND;                                                         \
	} while (0)

/* The same for a call that changes books: both the driver's part and ours run to
 * their end. */
#define GS_WHOLE(name)  \
	GS_NEED(name);  \
	GS_UNCANCELLED

#endif

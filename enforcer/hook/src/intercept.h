/* What every wrapper needs. */
#ifndef GPUSTEWARD_INTERCEPT_H
#define GPUSTEWARD_INTERCEPT_H

#include "hook.h"

#define GS_EXPORT __attribute__((visibility("default")))

/* The wrappers, under the driver's own names. */
#define GS_CALL(name, ...)
#define GS_WRAP(name, ...) GS_EXPORT CUresult name(__VA_ARGS__);
#include "calls.h"
#undef GS_CALL

/* Looks the driver up where *real is not known yet, and loads it if need be: a
 * program that was linked with the driver's names comes here without a dlsym.
 * False where the driver, or this function of it, is not there. */
bool gs_look_up(void *real);

/* libc's dlsym. */
void *gs_dlsym(void *handle, const char *name);

/* The wrapper of what lies at the driver's address, or the address itself. */
void *gs_substitute(void *address);
bool gs_intercept_off(void); /* GPUSTEWARD_OFF=1: nothing is substituted or counted */

/* First line of the wrapper of name. */
#define GS_NEED(name)                                                                                        \
	do {                                                                                                 \
		if (unlikely(!__atomic_load_n(&gs_real.name, __ATOMIC_ACQUIRE)) && !gs_look_up(&gs_real.name)) \
			return CUDA_ERROR_NOT_FOUND;                                                         \
	} while (0)

/* The same of a call by which books change: it happens to its end, the driver's
 * part and ours. */
#define GS_WHOLE(name)  \
	GS_NEED(name);  \
	GS_UNCANCELLED

#endif

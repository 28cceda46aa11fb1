/* The driver's functions, and what every wrapper of one needs. */
#ifndef GPUSTEWARD_INTERCEPT_H
#define GPUSTEWARD_INTERCEPT_H

#include "hook.h"

#define GS_EXPORT __attribute__((visibility("default")))

extern struct gs_real { /* the driver's own functions by name; NULL: it has none */
#define GS_CALL(name, ...) CUresult (*name)(__VA_ARGS__);
#include "calls.h"
#undef GS_CALL
} gs_real;

/* The wrappers, under the driver's own names. */
#define GS_CALL(name, ...)
#define GS_WRAP(name, ...) GS_EXPORT CUresult name(__VA_ARGS__);
#include "calls.h"
#undef GS_CALL

/* Looks the driver up if *real is not known yet, and loads it if need be: a
 * program that was linked with the driver's names comes here without a dlsym.
 * False: there is no driver, or it lacks this function. */
bool gs_look_up(void *real);

/* libc's dlsym. */
void *gs_dlsym(void *handle, const char *name);
/* The same once a program's dlsym has come to us; before, it finds nothing. */
extern void *(*gs_real_dlsym)(void *, const char *) __attribute__((visibility("hidden")));

/* The wrapper of the function at the driver's address, or the address itself. */
void *gs_substitute(void *address);
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

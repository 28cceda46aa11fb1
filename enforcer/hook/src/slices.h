/* The time slices of this process's contexts. */
#ifndef GPUSTEWARD_SLICES_H
#define GPUSTEWARD_SLICES_H

#include "hook.h"

/* First line of a wrapper that may make a context on a device: the channel groups that
 * this thread allocates until the end of the block belong to that GPU. */
#define GS_MAKES(device) \
	int gs_made_before __attribute__((cleanup(gs_slices_made), unused)) = gs_slices_makes(gs_gpu_of_device(device))

extern _Thread_local int gs_slices_making; /* the session's GPU; -1: none */

static inline int gs_slices_makes(int gpu)
{
	int was = gs_slices_making;

	gs_slices_making = gpu;
	return was;
}

static inline void gs_slices_made(const int *was) { gs_slices_making = *was; }

/* Sets what the page says where it differs from what is set. Only the helper calls it, and
 * never while the process is suspended. */
void gs_slices_step(const struct gs_page *page);
uint16_t gs_slices_set(unsigned gpu);     /* us, as far as the driver took it; 0: its default */
uint16_t gs_slices_refused(unsigned gpu); /* how often it did not; it stays at the most that it can be */

#endif

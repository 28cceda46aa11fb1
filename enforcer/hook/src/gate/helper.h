/* The helper thread. */
#ifndef GPUSTEWARD_HELPER_H
#define GPUSTEWARD_HELPER_H

#include "base/hook.h"

/* Starts the helper if there is none: once, and again after a fork if the child
 * uses CUDA. Safe from any thread. */
void gs_helper_start(void);
extern _Atomic uint64_t gs_helper_wake; /* when the helper wakes by itself */

#endif

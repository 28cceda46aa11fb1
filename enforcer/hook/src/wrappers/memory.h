#ifndef GPUSTEWARD_MEMORY_H
#define GPUSTEWARD_MEMORY_H

#include "base/hook.h"

/* Returns what the GPU's tenant may have, 0 without a cap, and sets what it has. */
uint64_t gs_cap_of(int gpu, uint64_t *used);

#endif

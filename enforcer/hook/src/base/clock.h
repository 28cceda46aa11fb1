#ifndef GPUSTEWARD_CLOCK_H
#define GPUSTEWARD_CLOCK_H

#include <stdint.h>

#define GS_MS 1000000ull        /* ns */
#define GS_SECOND 1000000000ull /* ns */

uint64_t gs_now(void); /* CLOCK_MONOTONIC, ns */

#endif

/* The wait of a call that ends a suspended process: driver 580.159 reads memory there that
 * it has unmapped. TestGPUSuspendedCalls tells which calls do. */
#ifndef GPUSTEWARD_WAITS_H
#define GPUSTEWARD_WAITS_H

#include "session/local.h"

void gs_wait_until_resumed(void);

/* Waits while the process is suspended. */
static inline void gs_wait_suspended(void)
{
	if (unlikely(gs_suspended()))
		gs_wait_until_resumed();
}

#endif

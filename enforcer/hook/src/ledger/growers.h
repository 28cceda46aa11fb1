/* What grows and shrinks inside the driver: stream-ordered pools, and the memory
 * of a device's graphs. No call says which of their pointers took how much of the
 * card, so the books follow what the driver says it keeps. */
#ifndef GPUSTEWARD_GROWERS_H
#define GPUSTEWARD_GROWERS_H

#include "ledger/claims.h"

struct gs_grower {
	int gpu;
	CUdevice device;
	CUmemoryPool pool; /* NULL: the device's graphs */
	uint64_t charged;  /* bytes, as in the books */
	uint64_t shrinks;  /* how often it was found smaller */
	struct gs_grower *next;
};

/* The lock of a GPU's growers is held over the driver's call that makes one grow:
 * otherwise two threads would count the same growth. */
struct gs_grower *gs_growers_lock(int gpu); /* returns the graphs' one; the pools follow it */
void gs_growers_unlock(int gpu);

/* All under the lock. */
bool gs_grower_kept(const struct gs_grower *g, uint64_t *bytes); /* that the driver keeps for it */
uint64_t gs_grower_settle(struct gs_grower *g); /* frees in the books what it shrank by, and returns that */
void gs_grower_charge_down(struct gs_grower *g, uint64_t to);
uint64_t gs_growers_trim(int gpu); /* gives back to the card what they keep and do not use; returns the bytes */
bool gs_grow(struct gs_claim *c, struct gs_grower *g, uint64_t need); /* before the driver's call; false: denied */
bool gs_grew(struct gs_claim *c, struct gs_grower *g); /* after it; false: it grew by more, and that was denied */

/* Asks for bytes. If they are denied, it trims the GPU's growers and asks once more.
 * False: the wrapper returns CUDA_ERROR_OUT_OF_MEMORY. Not under the lock. */
bool gs_claim(struct gs_claim *c, int gpu, enum gs_kind kind, uint64_t bytes);
/* The device was reset: what cannot be read any more is gone. Not under the lock. */
void gs_pools_reset(int gpu);
/* Frees in the books what the growers shrank by. The helper calls it each second. */
void gs_memory_settle(void);

#endif

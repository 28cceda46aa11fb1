/* The books of this process's GPU memory: what was admitted, and for which
 * pointer or handle. The broker has the sums; here is what a free gives back. */
#ifndef GPUSTEWARD_CLAIMS_H
#define GPUSTEWARD_CLAIMS_H

#include "hook.h"
#include "table.h"

/* True from a successful cuInit on; false again in a forked child. While it is
 * false everything goes to the driver as if the hook were not there. */
extern _Atomic bool gs_counting;
/* How often something could not be written down and went to the driver
 * uncounted. */
extern _Atomic uint64_t gs_uncounted;

/* Memory that is about to be taken. gpu is -1 where nobody counts it: then all
 * below do nothing and agree. */
struct gs_claim {
	int gpu;
	enum gs_kind kind;
	uint64_t reservation, bytes;
};

/* Asks for bytes; where they are denied, trims this process's pools and asks
 * once more. False: the wrapper answers CUDA_ERROR_OUT_OF_MEMORY. */
bool gs_claim(struct gs_claim *c, int gpu, enum gs_kind kind, uint64_t bytes);
bool gs_claim_once(struct gs_claim *c, int gpu, enum gs_kind kind, uint64_t bytes); /* trims nothing */
/* Books what was really taken. Where that is more than was claimed it asks for
 * the rest; false: denied, nothing is booked, and the caller gives it back. */
bool gs_claim_commit(struct gs_claim *c, uint64_t bytes);
void gs_claim_abort(struct gs_claim *c);
int gs_claim_gpu(void); /* where the calling thread's allocations go; -1 not counted */

/* What the GPU's tenant may have, 0 without a cap, and has. */
uint64_t gs_cap_of(int gpu, uint64_t *used);

/* Pointers of every kind, with the context that they belong to. Arrays have
 * odd keys: they are addresses of the host, and even. */
extern struct gs_table gs_held;
#define GS_ARRAY_KEY(array) ((uint64_t)(uintptr_t)(array) | 1)

/* Writes down what was committed, for the current context. */
void gs_hold(const struct gs_claim *c, uint64_t key, uint64_t bytes);
/* After the driver's answer to the free of what was taken out of gs_held. */
void gs_let_go(const struct gs_entry *e, CUresult r);
void gs_context_gone(CUcontext c); /* all that it held is free */

uint64_t gs_texel(int format, unsigned channels); /* bytes of an element of an array */
uint64_t gs_product(uint64_t a, uint64_t b); /* no more than 2^62 */

#endif

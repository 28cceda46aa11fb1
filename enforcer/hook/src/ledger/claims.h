/* The books of this process's GPU memory: what was admitted, and for which
 * pointer or handle. The broker has the sums. This has what a free gives back. */
#ifndef GPUSTEWARD_CLAIMS_H
#define GPUSTEWARD_CLAIMS_H

#include "base/hook.h"
#include "base/table.h"

/* True after a successful cuInit; false again in a forked child. While it is false
 * everything goes to the driver as if there were no hook. */
extern _Atomic bool gs_counting;
extern _Atomic uint64_t gs_uncounted; /* allocations that could not be booked, since the start */
uint64_t gs_memory_uncounted(void);

/* Memory that is about to be taken. gpu is -1 if it is not counted: then all
 * functions below do nothing and agree. */
struct gs_claim {
	int gpu;
	enum gs_kind kind;
	uint64_t reservation, bytes;
};

/* Asks for bytes. False: they are denied. */
bool gs_claim_once(struct gs_claim *c, int gpu, enum gs_kind kind, uint64_t bytes);
/* Books what was really taken. If that is more than was claimed, it asks for the
 * rest. False: the rest is denied, nothing is booked, and the caller gives all back. */
bool gs_claim_commit(struct gs_claim *c, uint64_t bytes);
void gs_claim_abort(struct gs_claim *c);
int gs_claim_gpu(void); /* the GPU of the calling thread's allocations; -1: not counted */

/* Pointers of every kind, each with its context. Arrays have odd keys: they are
 * addresses of the host, which are even. */
extern struct gs_table gs_held;
#define GS_ARRAY_KEY(array) ((uint64_t)(uintptr_t)(array) | 1)

/* Notes what was committed, for the current context. */
void gs_hold(const struct gs_claim *c, uint64_t key, uint64_t bytes);
/* Ends the free of an entry that was taken out of gs_held; r is the driver's answer. */
void gs_let_go(const struct gs_entry *e, CUresult r);
void gs_context_gone(CUcontext c); /* all that it held is free */

uint64_t gs_product(uint64_t a, uint64_t b); /* no more than 2^62 */

#endif

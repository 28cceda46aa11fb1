/* A bucket of bytes for all threads of the process: it fills at a rate, and copies
 * take from it. A copy begins once all bytes that were asked for before it are
 * paid, whatever its own size. So no copy is too large, and copies go in the order
 * in which they came. Bytes that no copy takes are kept for 20 ms. The bucket has
 * no clock and no lock. */
#ifndef GPUSTEWARD_BUCKET_H
#define GPUSTEWARD_BUCKET_H

#include <stdint.h>

struct gs_bucket {
	uint64_t rate;  /* bytes a second, since at_ns */
	uint64_t at_ns; /* up to when given is right */
	uint64_t asked; /* bytes of all copies ever */
	uint64_t given; /* bytes ever poured in; beyond asked: what is left over */
};

/* Brings the bucket to now. From then on it fills at rate, which is not 0. */
void gs_bucket_pour(struct gs_bucket *b, uint64_t rate, uint64_t now);
/* Takes bytes, and returns the place in the queue that goes with them. */
uint64_t gs_bucket_take(struct gs_bucket *b, uint64_t bytes);
/* How long the place has to wait after the last pour, ns; 0: not at all. */
uint64_t gs_bucket_left(const struct gs_bucket *b, uint64_t place);
/* Puts back the bytes of a copy that was not made. */
void gs_bucket_return(struct gs_bucket *b, uint64_t bytes);

#endif

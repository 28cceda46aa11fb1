/* How much work a stream may have queued, and for how long a launch waits for work that
 * makes no progress. */
#ifndef GPUSTEWARD_BOUND_H
#define GPUSTEWARD_BOUND_H

#include "streams/work.h"

/* Of the process, because its GPUs may wait for each other; ns. */
extern _Atomic uint64_t gs_patience;
extern _Atomic uint64_t gs_passing; /* until then launches go by at a pause */

/* The GPU is locked. */
uint64_t gs_bound(const struct gs_stream *e, const struct gs_slot *slot); /* ns of work */
void gs_bound_double(struct gs_stream *e, const struct gs_slot *slot, uint64_t now);
void gs_gate_drained(void); /* no work of this process is under way on some GPU */
/* The stream's work had made no progress, and went on soon after a launch passed. */
void gs_gate_helped(struct gs_stream *e, uint64_t now);

#endif

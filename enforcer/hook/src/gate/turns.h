/* The phases of each GPU, and what the broker is told of it. */
#ifndef GPUSTEWARD_TURNS_H
#define GPUSTEWARD_TURNS_H

#include "streams/work.h"

#define GS_LAZY_NS 250000000 /* between looks at rest */

/* Looks at a GPU, whose lock it takes, and at its place on the page; rung: the page may have changed. Returns in how
 * many ns to look again. Only the helper calls it. */
uint64_t gs_turns_step(struct gs_gpu *g, const struct gs_slot *slot, bool rung);

/* ---- the GPU is locked ---- */

/* Tells the broker that there is work, unless it was told; again: in any case. */
void gs_turns_ask(struct gs_gpu *g, bool again);
/* Tells the broker that there is a context, unless it was told. */
void gs_turns_seat(struct gs_gpu *g);
/* Tells the broker of a communicator in which this process is a rank with this GPU. */
void gs_turns_group(struct gs_gpu *g, uint64_t group);
void gs_turns_begin(struct gs_gpu *g, enum gs_phase phase, uint64_t turn, uint32_t flags, uint64_t now);

#endif

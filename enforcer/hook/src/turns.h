/* The helper thread, and what the broker is told of each GPU. */
#ifndef GPUSTEWARD_TURNS_H
#define GPUSTEWARD_TURNS_H

#include "hook.h"

struct gs_gpu;

enum gs_phase { GS_UNGATED, GS_TURN, GS_DRAINING, GS_GIVEN };

/* What the broker was told last about whether there is work. */
enum gs_told { GS_NOTHING, GS_WORK, GS_NO_WORK };

/* Starts the helper if there is none: once, and again after a fork if the child
 * uses CUDA. Safe from any thread. */
void gs_turns_start(void);
extern _Atomic uint64_t gs_turns_wake; /* when the helper wakes by itself */

/* ---- the GPU is locked ---- */

/* Tells the broker that there is work, unless it was told; again: in any case. */
void gs_turns_ask(struct gs_gpu *g, bool again);
/* Tells the broker that there is a context, unless it was told. */
void gs_turns_seat(struct gs_gpu *g);
/* Tells the broker of a communicator in which this process is a rank with this GPU. */
void gs_turns_group(struct gs_gpu *g, uint64_t group);
void gs_turns_begin(struct gs_gpu *g, enum gs_phase phase, uint64_t turn, uint32_t flags, uint64_t now);

#endif

/* The page that counts, and the process's own page. All functions are called
 * under the client's lock. */
#ifndef GPUSTEWARD_LOCAL_H
#define GPUSTEWARD_LOCAL_H

#include "base/hook.h"

/* The page that counts: the broker's, or the process's own while there is no
 * broker (all OPEN, cap from GPUSTEWARD_MEMORY_LIMIT). It is never NULL. It may
 * change at any time, and the old one stays mapped. */
extern _Atomic(struct gs_page *) gs_page;

extern struct gs_page gs_own;

/* The driver has this process's GPU state, or is about to take it. Most calls of the driver
 * wait then. But the driver ends a process that asks whether its work is done, or waits
 * for that: see waits.h. */
static inline bool gs_suspended(void)
{
	return __atomic_load_n(&atomic_load_explicit(&gs_page, memory_order_acquire)->suspended, __ATOMIC_ACQUIRE);
}

#define GS_NEVER UINT64_MAX
void gs_local_begin(bool closed); /* as it is before there was any broker */
/* Goes on from the broker's last page, of the session of that epoch. The caps stay. A
 * process that had to share keeps its share, and the rates of its copies, for a while. */
void gs_local_take_over(const struct gs_page *last, bool closed, uint64_t epoch);
void gs_local_step_down(void); /* the broker's page counts again: threads that wait on this one look at it */
/* Moves the duty cycle on, and returns when it wants to be called again, or GS_NEVER. */
uint64_t gs_local_tick(uint64_t now);
uint64_t gs_local_most(unsigned gpu); /* bytes that this process may have; UINT64_MAX is no limit */
/* Those bytes are denied only for what others may have, which the broker knows, and it was lost a moment ago. */
bool gs_local_doubts(unsigned gpu, uint64_t bytes);
void gs_local_used(unsigned gpu, uint64_t bytes);

#endif

/* Waits of one thread for another, and of this process for the broker. */
#ifndef GPUSTEWARD_FUTEX_H
#define GPUSTEWARD_FUTEX_H

#include "base/hook.h"

/* Waits until *word is no longer seen, or a thread wakes it, or ns have passed. */
void gs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void gs_futex_wake(_Atomic uint32_t *word, int most);

/* Waits until the page's bell is no longer seen, or rings, or ns have passed. */
void gs_bell_wait(struct gs_page *page, uint32_t seen, uint64_t ns);
/* Wakes all threads that wait for the bell. The mapping of the page may be read-only. */
void gs_bell_ring(struct gs_page *page);

#endif

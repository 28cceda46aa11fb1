/* The time slices of this process's contexts. */
#ifndef GPUSTEWARD_SLICES_H
#define GPUSTEWARD_SLICES_H

#include "base/hook.h"

/* Sets what the page says where it differs from what is set. Only the helper calls it, and
 * never while the process is suspended. */
void gs_slices_step(const struct gs_page *page);
uint16_t gs_slices_set(unsigned gpu);     /* us, as far as the driver took it; 0: its default */
uint32_t gs_slices_own(unsigned gpu);     /* us, the longest that the process gave itself beyond the default; 0: none */
uint16_t gs_slices_refused(unsigned gpu); /* how often it did not; it stays at the most that it can be */

#endif

/* Whether this process may take memory of a GPU, and what it has back. */
#ifndef GPUSTEWARD_ADMIT_H
#define GPUSTEWARD_ADMIT_H

#include "base/hook.h"

/* Asks for bytes on the session's GPU. GS_GRANT sets the reservation, which is
 * then committed or aborted; the other answer is GS_DENY. It waits at most 1 s for
 * the broker, and decides by the local cap if there is none. Safe from any thread. */
enum gs_type gs_client_reserve(unsigned gpu, enum gs_kind kind, uint64_t bytes, uint64_t *reservation);
void gs_client_commit(unsigned gpu, enum gs_kind kind, uint64_t reservation, uint64_t bytes);
void gs_client_abort(unsigned gpu, uint64_t reservation);
void gs_client_free(unsigned gpu, enum gs_kind kind, uint64_t bytes);

#endif

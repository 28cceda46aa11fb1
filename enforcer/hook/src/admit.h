/* The memory that this process holds of each GPU, and is about to take. */
#ifndef GPUSTEWARD_ADMIT_H
#define GPUSTEWARD_ADMIT_H

#include "hook.h"

/* Asks for bytes on the session's GPU. GS_GRANT sets the reservation, which is
 * then committed or aborted; the other answer is GS_DENY. It waits at most 1 s for
 * the broker, and decides by the local cap if there is none. Safe from any thread. */
enum gs_type gs_client_reserve(unsigned gpu, enum gs_kind kind, uint64_t bytes, uint64_t *reservation);
void gs_client_commit(unsigned gpu, enum gs_kind kind, uint64_t reservation, uint64_t bytes);
void gs_client_abort(unsigned gpu, uint64_t reservation);
void gs_client_free(unsigned gpu, enum gs_kind kind, uint64_t bytes);
uint64_t gs_client_committed(unsigned gpu); /* by this process */

/* ---- for the client's parts: under the lock ---- */

void gs_admit_declare(uint64_t held[GS_GPUS]); /* what is committed */
uint64_t gs_admit_granted(unsigned gpu);       /* what is committed, or reserved in this session */

#endif

/* Requests to the broker and their answers. */
#ifndef GPUSTEWARD_REQUEST_H
#define GPUSTEWARD_REQUEST_H

#include "session/session.h"

void gs_client_acquire(unsigned gpu);
/* GS_YIELD or GS_USAGE. own_slice_us: see gs_header.flags */
void gs_client_usage(enum gs_type type, const struct gs_usage *u, uint32_t own_slice_us);

/* ---- for the client's parts: all under the lock ---- */

bool gs_client_governs(unsigned gpu); /* there is a session, for this GPU */
bool gs_client_send(enum gs_type type, const void *payload, uint32_t length);
/* Sends a request and waits for its answer. False: the session is lost. */
bool gs_client_ask(enum gs_type type, const void *payload, uint32_t length, struct gs_frame *answer);
bool gs_client_receive(bool wait); /* reads one frame; false: none came */

#endif

/* The start of the session with the broker, and its care. */
#ifndef GPUSTEWARD_CLIENT_H
#define GPUSTEWARD_CLIENT_H

#include "base/settings.h"

/* Connects within 250 ms, once, after a successful cuInit, in the thread that
 * called it. Later the helper connects again in the background. In a forked child
 * it begins without the parent's session. It never fails: see gs_page. */
void gs_client_start(void);
/* Reads the messages that answer no request (NOTICE, LIMITS_CHANGED, ERR, end of
 * file), sends PINGs, and reconnects. It is for the helper, safe from any thread,
 * and never waits. Returns the gs_now() time at which it wants to be called again. */
uint64_t gs_client_poll(void);
struct gs_settings gs_client_settings(void); /* also before the start */

#endif

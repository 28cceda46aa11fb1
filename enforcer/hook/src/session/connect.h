/* From nothing to a session. All functions are called under the client's lock. */
#ifndef GPUSTEWARD_CONNECT_H
#define GPUSTEWARD_CONNECT_H

void gs_connect_now(void);   /* waits for the session, 250 ms at most */
void gs_connect_begin(void); /* the link is closed: a reader may still hold the last one */
void gs_connect_await(void); /* looks whether WELCOME has come */

#endif

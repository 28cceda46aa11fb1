/* What is known of the session with the broker, for the parts that make it up. All is
 * under the lock but what is said to be for all. */
#ifndef GPUSTEWARD_SESSION_H
#define GPUSTEWARD_SESSION_H

#include "base/settings.h"
#include "session/link.h"

#define GS_CONNECT (250 * GS_MS) /* that a program waits for WELCOME, at its start */
#define GS_WELCOMED (2 * GS_SECOND) /* that the helper does: the broker may be on a busy host */
#define GS_STALE (3 * GS_SECOND) /* a broker whose heartbeat is older is lost */
#define GS_RETRY_FIRST (100 * GS_MS)
#define GS_RETRY_MOST GS_SECOND          /* after a loss: twice as long each time, up to this */
#define GS_RETRY_REFUSED (5 * GS_SECOND) /* the same if the broker does not want us */

/* A thread that waits for an answer; it lies on that thread's stack. The first
 * one that finds no thread reading reads for all. */
struct gs_waiter {
	struct gs_waiter *next;
	uint64_t seq;
	_Atomic uint32_t woken;
	bool answered;
	struct gs_frame *answer;
};

/* What is known of the session. */
extern struct gs_client {
	pthread_mutex_t lock;
	bool started;
	bool set; /* the settings were read before the start */
	enum { GS_CLOSED, GS_CONNECTING, GS_ACTIVE } state;
	_Atomic bool connected; /* state is GS_ACTIVE, for threads without the lock */
	_Atomic uint64_t epoch;
	struct gs_link link;
	bool reading; /* a thread reads without the lock: the link stays open */
	struct gs_waiter *waiters;
	uint64_t seq;
	unsigned governed; /* GPUs */
	bool closed;       /* without a broker launches wait */
	bool said;         /* it was logged that there is no broker, */
	bool told;         /* or that the broker does not know all GPUs */
	uint64_t session, token;        /* the last session's, for RESUME */
	uint64_t declared[GS_GPUS];     /* bytes, in this RESUME */
	uint64_t deadline;              /* of WELCOME */
	uint64_t retry_at, retry_after; /* ns; retry_at 0: at once */
	uint64_t read_at, ping_at, ping_every;
	struct gs_page *page;     /* the broker's; it stays mapped after the session */
	struct gs_leases *leases; /* the last session's; NULL: it had none */
	struct gs_trace *trace;   /* the last one; it stays mapped */
} gs_client;

/* The thread is not cancelled while it has the lock. gs_client_unlock gets what
 * gs_client_lock returned. */
int gs_client_lock(void);
void gs_client_unlock(int was);
void gs_client_park(_Atomic uint32_t *word, uint32_t seen, uint64_t ns); /* waits without the lock */
void gs_client_drop(void);            /* closes the link in any state */
void gs_client_lose(const char *why); /* ends the session if there is one */
/* Ends the session and begins another one, whose RESUME says what is held. That
 * corrects books that may differ from the broker's. */
void gs_client_again(const char *why);
void gs_client_fail(const char *why); /* there is no session, and there was none to lose */
void gs_waiter_wake(struct gs_waiter *w);

/* ---- for all parts ---- */

bool gs_client_connected(void);
uint64_t gs_client_epoch(void); /* changes with each session (connect, resume, loss, fork) */

#endif

/* What the parts of the client share; the other parts see hook.h only.
 *
 *   client.c   the session: its states, its loss, the helper's part
 *   connect.c  HELLO, RESUME, WELCOME
 *   request.c  what is sent and who gets the answer
 *   admit.c    bytes that this process holds, and that it is about to take
 *   link.c     one connection: the socket, its frames, the page
 *   local.c    the settings, the log, and the process's own page
 *   look.c     a look at what a tenant has, without a session
 */
#ifndef GPUSTEWARD_CLIENT_H
#define GPUSTEWARD_CLIENT_H

#include <pthread.h>
#include <sys/types.h>

#include "hook.h"

#define GS_MS 1000000ull          /* ns */
#define GS_SECOND 1000000000ull   /* ns */
#define GS_CONNECT (250 * GS_MS)  /* from connect to WELCOME */
#define GS_ANSWER GS_SECOND       /* from a request to its answer */
#define GS_STALE (3 * GS_SECOND)  /* a broker whose heartbeat is older is lost */
#define GS_NEVER UINT64_MAX
#define GS_RETRY_FIRST (100 * GS_MS)
#define GS_RETRY_MOST GS_SECOND         /* after a loss: twice as long each time, up to this, */
#define GS_RETRY_REFUSED (5 * GS_SECOND) /* and so long where the broker does not want us */

/* ---- local.c ---- */

/* The environment, read once. */
struct gs_settings {
	char socket[108];
	char tenant[64];
	uint64_t memory; /* bytes per GPU, 0 no limit */
	bool off;
	bool closed; /* GPUSTEWARD_FAIL=closed */
	bool log;
	bool asked; /* for a broker: its absence is worth a line */
};
extern struct gs_settings gs_settings;
void gs_settings_read(void);

/* One line on standard error. */
void gs_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Waits until *word is not seen any more, or is rung, ns at most. */
void gs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns);
void gs_futex_wake(_Atomic uint32_t *word, int most);
void gs_page_wake(struct gs_page *p); /* whoever waits on the bell, of a page that may be read-only */

/* The process's own page. All but gs_local_tick are called under the client's
 * lock, and so is that. */
extern struct gs_page gs_own;
void gs_local_begin(bool closed);
void gs_local_take_over(const struct gs_page *last, bool closed);
void gs_local_step_down(void);
uint64_t gs_local_tick(uint64_t now); /* moves the duty cycle on; when it wants to be called again */
uint64_t gs_local_most(unsigned gpu); /* bytes that this process may have; UINT64_MAX no limit */
void gs_local_used(unsigned gpu, uint64_t bytes);

/* ---- link.c ---- */

struct gs_link {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
};

struct gs_frame {
	struct gs_header header;
	union {
		struct gs_memory memory;
		struct gs_notice notice;
		struct gs_err err;
		struct gs_welcome welcome;
		char room[512];
	};
};

/* Each answers 0 or an errno. A descriptor that is not this link's any more,
 * because the program closed it, is EBADF. */
int gs_link_open(struct gs_link *l, const char *path);
int gs_link_send(const struct gs_link *l, const struct gs_header *h, const void *payload);
/* Reads one frame; EAGAIN where there is none, at once or after 50 ms.
 * fds are for the descriptors that may come with a WELCOME, NULL elsewhere. */
#define GS_FDS 2 /* the page's and the leases' */
int gs_link_receive(const struct gs_link *l, struct gs_frame *f, bool wait, int fds[GS_FDS]);
void gs_link_shut(const struct gs_link *l); /* whoever reads gets the end of file */
void gs_link_close(struct gs_link *l);

/* Maps the broker's page for reading and closes fd. at is the mapping that it
 * replaces, NULL the first time, so that there is never more than one.
 * NULL and why where it is not a page. */
struct gs_page *gs_link_map(int fd, const struct gs_welcome *w, struct gs_page *at, const char **why);
void gs_link_unmap(struct gs_page *p);
/* The same for the leases; NULL where they are of another kind. */
struct gs_leases *gs_link_map_leases(int fd);
void gs_link_unmap_leases(struct gs_leases *l);

/* ---- client.c: all below is called under the lock ---- */

/* A thread that waits for an answer, on its own stack. Whichever of them finds
 * nobody reading reads for all. */
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
	bool set; /* the settings were read, by whoever wanted them before the start */
	enum { GS_CLOSED, GS_CONNECTING, GS_ACTIVE } state;
	_Atomic bool connected; /* state is GS_ACTIVE, for those without the lock */
	_Atomic uint64_t epoch;
	struct gs_link link;
	bool reading; /* a thread reads without the lock: the link stays open */
	struct gs_waiter *waiters;
	uint64_t seq;
	unsigned governed; /* GPUs */
	bool closed;       /* without a broker launches wait */
	bool said;         /* that there is no broker */
	bool told;         /* that it does not know all GPUs */
	uint64_t session, token;        /* the last one's, for RESUME */
	uint64_t declared[GS_GPUS];     /* bytes, in this RESUME */
	uint64_t deadline;              /* of WELCOME */
	uint64_t retry_at, retry_after; /* ns; retry_at 0: at once */
	uint64_t read_at, ping_at, ping_every;
	struct gs_page *page; /* the broker's; stays mapped after the session */
	struct gs_leases *leases; /* the last session's; NULL: it had none */
} gs_client;

/* Which devices the process sees, in the order of CUDA_VISIBLE_DEVICES. */
extern struct gs_gpus {
	unsigned count;
	CUdevice device[GS_GPUS];
	CUuuid uuid[GS_GPUS];
} gs_gpus;

int gs_client_lock(void); /* answers what gs_client_unlock wants: the thread is not cancelled in between */
void gs_client_unlock(int was);
void gs_client_park(_Atomic uint32_t *word, uint32_t seen, uint64_t ns); /* gives the lock up meanwhile */
void gs_client_drop(void);           /* closes the link, whatever the state */
void gs_client_lose(const char *why); /* ends the session, where there is one */
/* Ends the session and begins another one, whose RESUME says what is held:
 * that is how books are put right that may differ from the broker's. */
void gs_client_again(const char *why);
void gs_client_fail(const char *why); /* there is no session, and there was none to lose */

/* ---- look.c ---- */

struct gs_settings gs_client_settings(void); /* in client.c, which takes the lock */

/* ---- connect.c ---- */

void gs_find_gpus(void);
void gs_connect_now(void);   /* waits for the session, 250 ms at most */
void gs_connect_begin(void); /* where the link is closed: a reader may still hold the last one */
void gs_connect_await(void); /* looks whether WELCOME has come */

/* ---- request.c ---- */

bool gs_client_governs(unsigned gpu); /* there is a session, for this GPU */
bool gs_client_send(enum gs_type type, const void *payload, uint32_t length);
/* Sends a request and waits for its answer. False: the session is lost. */
bool gs_client_ask(enum gs_type type, const void *payload, uint32_t length, struct gs_frame *answer);
bool gs_client_receive(bool wait); /* one frame; false where none came */
void gs_waiter_wake(struct gs_waiter *w);

/* ---- admit.c ---- */

void gs_admit_declare(uint64_t held[GS_GPUS]); /* what is committed */
uint64_t gs_admit_granted(unsigned gpu); /* what is committed, or reserved in this session */

#endif

/* One connection to the broker. */
#ifndef GPUSTEWARD_LINK_H
#define GPUSTEWARD_LINK_H

#include <sys/types.h>

#include "base/clock.h"
#include "base/hook.h"

#define GS_ANSWER GS_SECOND /* from a request to its answer */

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

/* Each returns 0 or an errno. It is EBADF if the program closed the descriptor,
 * even if the number is in use again. */
int gs_link_open(struct gs_link *l, const char *path);
int gs_link_send(const struct gs_link *l, const struct gs_header *h, const void *payload);
/* Reads one frame. EAGAIN: there is none, at once or after 50 ms. fds receives
 * the descriptors that may come with a WELCOME; it is NULL elsewhere. */
#define GS_FDS 2 /* the page's and the leases' */
int gs_link_receive(const struct gs_link *l, struct gs_frame *f, bool wait, int fds[GS_FDS]);
void gs_link_shut(const struct gs_link *l); /* a thread that reads gets the end of file */
void gs_link_close(struct gs_link *l);

/* Maps the broker's page for reading, and closes fd. at is the mapping that it
 * replaces, so that there is never more than one; it is NULL the first time.
 * Returns NULL, and why, if fd is not a page. */
struct gs_page *gs_link_map(int fd, const struct gs_welcome *w, struct gs_page *at, const char **why);
void gs_link_unmap(struct gs_page *p);
/* The same for the leases. Returns NULL, and ends the mapping at, if they are of another
 * kind. */
struct gs_leases *gs_link_map_leases(int fd, struct gs_leases *at);
void gs_link_unmap_leases(struct gs_leases *l);
/* The trace of the same descriptor, which stays open, and struct gs_crash behind it. Its mapping is never ended,
 * because a thread may be about to write: at is the one that it replaces. NULL: there is none. */
struct gs_trace *gs_link_map_trace(int fd, struct gs_trace *at);

#endif

/* What a tenant may have of a GPU, for a process that has no session there. It asks
 * the broker for a session, which ends once its page was read. */
#define _GNU_SOURCE
#include "session/look.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/sys.h"
#include "session/client.h"
#include "session/link.h"
#include "session/session.h"

#define GS_KEPT GS_SECOND /* the last answer holds for so long, */
#define GS_MUTE (5 * GS_SECOND) /* and the lack of an answer for so long */
#define GS_QUEUE (10 * GS_MS)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct seen {
	CUuuid uuid;
	bool there; /* a broker */
	uint64_t cap, used, until;
} seen[GS_GPUS];
static uint64_t mute; /* until then the broker is not asked */

void gs_forked_look(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

static int hello(const struct gs_link *l, const struct gs_settings *set, const CUuuid *uuid)
{
	struct gs_hello hello = {.pid = (uint32_t)GS_SYS(SYS_getpid), .gpus = 1, .hook = GS_VERSION};
	struct gs_header h = {.magic = GS_MAGIC, .major = GS_MAJOR, .minor = GS_MINOR, .type = GS_HELLO,
			      .length = sizeof(hello), .seq = 1};

	memcpy(hello.tenant, set->tenant, sizeof(hello.tenant));
	memcpy(hello.uuid[0], uuid, sizeof(hello.uuid[0]));
	return gs_link_send(l, &h, &hello);
}

/* Waits for the WELCOME, and takes what its page says. Returns an errno. */
static int take(const struct gs_link *l, uint64_t until, struct seen *s)
{
	int fds[GS_FDS] = {-1, -1}, err;
	struct gs_page *page = NULL;
	struct gs_frame f;
	const char *why;

	while ((err = gs_link_receive(l, &f, false, fds)) == EAGAIN) {
		struct pollfd p = {.fd = l->fd, .events = POLLIN};
		uint64_t now = gs_now();
		if (now >= until)
			return ETIMEDOUT;
		gs_sys_poll(&p, until - now);
	}
	if (!err && f.header.type == GS_WELCOME) {
		page = gs_link_map(fds[0], &f.welcome, NULL, &why);
		fds[0] = -1;
	}
	for (int i = 0; i < GS_FDS; i++)
		if (fds[i] >= 0)
			GS_SYS(SYS_close, fds[i]);
	if (!page)
		return err ? err : EPROTO;
	s->there = true;
	s->cap = __atomic_load_n(&page->slot[0].cap, __ATOMIC_RELAXED);
	s->used = __atomic_load_n(&page->slot[0].used, __ATOMIC_RELAXED);
	gs_link_unmap(page);
	return 0;
}

/* Asks the broker, within GS_CONNECT. */
static void ask(const struct gs_settings *set, struct seen *s)
{
	struct gs_link l = {.fd = -1};
	uint64_t until = gs_now() + GS_CONNECT;
	int err;

	while ((err = gs_link_open(&l, set->socket)) == EAGAIN && gs_now() < until)
		gs_sys_poll(NULL, GS_QUEUE);
	if (!err && !(err = hello(&l, set, &s->uuid)))
		err = take(&l, until, s);
	gs_link_close(&l);
	if (err == ETIMEDOUT || err == EAGAIN)
		mute = gs_now() + GS_MUTE;
}

/* The place of a GPU: its own, or the oldest. */
static struct seen *place_of(const CUuuid *uuid)
{
	struct seen *oldest = seen;

	for (struct seen *s = seen; s < seen + GS_GPUS; s++) {
		if (s->until && !memcmp(&s->uuid, uuid, sizeof(*uuid)))
			return s;
		if (s->until < oldest->until)
			oldest = s;
	}
	*oldest = (struct seen){.uuid = *uuid};
	return oldest;
}

bool gs_client_look(const CUuuid *uuid, uint64_t *cap, uint64_t *used)
{
	struct gs_settings set = gs_client_settings();
	uint64_t now = gs_now();

	pthread_mutex_lock(&lock);
	struct seen *s = place_of(uuid);
	if (now >= s->until && now >= mute) {
		*s = (struct seen){.uuid = *uuid};
		ask(&set, s);
		s->until = gs_now() + GS_KEPT;
	}
	bool there = s->there;
	*cap = there ? s->cap : set.memory;
	*used = there ? s->used : 0;
	pthread_mutex_unlock(&lock);
	return *cap != 0;
}

/* From nothing to a session: HELLO or RESUME, and the WELCOME. */
#define _GNU_SOURCE
#include "session/connect.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/devices.h"
#include "base/entries.h"
#include "base/sys.h"
#include "session/local.h"
#include "session/request.h"
#include "session/session.h"
#include "session/sums.h"
#include "trace/crash.h"

#define GS_BUSY (10 * GS_MS) /* the broker's queue of connections is full */

static int send_hello(void)
{
	uint32_t unknown = gs_entries_unknown();
	struct gs_hello hello = {.pid = (uint32_t)GS_SYS(SYS_getpid), .gpus = gs_gpus.count, .leases = 1, .trace = 1,
				 .crash = 1, .hook = GS_VERSION,
				 .unknown = unknown < UINT16_MAX ? (uint16_t)unknown : UINT16_MAX,
				 .cuda = gs_gpus.cuda, .old_session = gs_client.session, .token = gs_client.token};
	struct gs_header h = {.magic = GS_MAGIC, .major = GS_MAJOR, .minor = GS_MINOR, .type = GS_HELLO,
			      .length = sizeof(hello), .seq = ++gs_client.seq};

	memcpy(hello.tenant, gs_settings.tenant, sizeof(hello.tenant));
	memcpy(hello.uuid, gs_gpus.uuid, sizeof(hello.uuid));
	if (gs_gpus.count <= GS_CALLER_AT)
		memcpy(hello.uuid[GS_CALLER_AT], gs_settings.caller, sizeof(gs_settings.caller));
	gs_sums_declare(gs_client.declared);
	memcpy(hello.committed, gs_client.declared, sizeof(hello.committed));
	bool resume = gs_client.session != 0;
	for (int i = 0; i < GS_GPUS; i++)
		resume |= gs_client.declared[i] != 0;
	if (resume)
		h.type = GS_RESUME;
	return gs_link_send(&gs_client.link, &h, &hello);
}

/* The link is closed when this is called: a reader may still hold the last one. The driver
 * is not called: the process may be suspended. */
void gs_connect_begin(void)
{
	int err = gs_link_open(&gs_client.link, gs_settings.socket);

	if (err == EAGAIN) {
		gs_client.retry_at = gs_now() + GS_BUSY;
		return;
	}
	if (!err)
		err = send_hello();
	if (err) {
		gs_client_fail(strerror(err));
		return;
	}
	gs_client.state = GS_CONNECTING;
	gs_client.deadline = gs_now() + GS_WELCOMED;
}

/* Frees now what was freed since it was declared. Nothing can be added, so if more
 * was taken, all is declared again. */
static bool settle(void)
{
	uint64_t now[GS_GPUS];

	gs_sums_declare(now);
	for (unsigned i = 0; i < gs_client.governed; i++) {
		struct gs_memory m = {.gpu = i, .bytes = gs_client.declared[i] - now[i]};
		if (now[i] > gs_client.declared[i])
			return false;
		if (m.bytes && !gs_client_send(GS_FREE, &m, sizeof(m)))
			return true;
	}
	return true;
}

/* A process that believes itself within a quota must know where there is none. */
static void tell_ungoverned(const struct gs_welcome *w)
{
	if (w->gpus >= gs_gpus.count || gs_client.told)
		return;
	gs_client.told = true;
	gs_log("the broker at %s does not know %u of %u GPUs: %s", gs_settings.socket, gs_gpus.count - w->gpus,
	       gs_gpus.count, w->fail_closed ? "launches wait there, and no memory is given" : "no quota holds there");
}

static void welcomed(const struct gs_frame *f, const int fds[GS_FDS])
{
	const struct gs_welcome *w = &f->welcome;
	const char *why;
	struct gs_page *page = gs_link_map(fds[0], w, gs_client.page, &why);

	struct gs_trace *trace = gs_link_map_trace(fds[1], gs_client.trace);
	if (trace)
		gs_client.trace = trace;
	gs_traced_begin(trace);
	gs_client.leases = gs_link_map_leases(fds[1], gs_client.leases);
	if (!page) {
		gs_client_fail(why);
		return;
	}
	uint64_t beat = w->heartbeat_ms ? w->heartbeat_ms * GS_MS : GS_SECOND;
	bool resumed = gs_client.session != 0;
	gs_client.page = page;
	gs_client.session = f->header.session;
	gs_client.token = w->token;
	/* The broker does not say which GPUs it knows, and answers for all. */
	gs_client.governed = w->gpus || w->fail_closed ? gs_gpus.count : 0;
	gs_client.closed = gs_settings.closed || w->fail_closed;
	gs_client.ping_every = beat < 5 * GS_SECOND ? beat : 5 * GS_SECOND;
	gs_client.ping_at = gs_now() + gs_client.ping_every;
	gs_client.retry_after = GS_RETRY_FIRST;
	gs_client.state = GS_ACTIVE;
	if (!settle()) {
		gs_client_drop();
		gs_client.retry_at = 0;
		return;
	}
	if (gs_client.state != GS_ACTIVE)
		return;
	gs_client.said = false;
	tell_ungoverned(w);
	atomic_fetch_add(&gs_client.epoch, 1);
	atomic_store_explicit(&gs_page, page, memory_order_release);
	atomic_store(&gs_client.connected, true);
	gs_local_step_down();
	if (gs_settings.log)
		gs_log("%s the broker at %s as tenant %.64s", resumed ? "resumed with" : "connected to",
		       gs_settings.socket, w->tenant);
}

static void refused(const struct gs_err *e)
{
	char why[sizeof(e->text) + 1] = {0};

	memcpy(why, e->text, sizeof(e->text));
	if (gs_client.session) /* The broker may reject the old session, not the process. */
		gs_client.session = gs_client.token = 0;
	else
		gs_client.retry_after = GS_RETRY_REFUSED;
	gs_client_fail(*why ? why : "it refused");
}

void gs_connect_await(void)
{
	struct gs_frame f;
	int fds[GS_FDS] = {-1, -1}, err = gs_link_receive(&gs_client.link, &f, false, fds);

	if (!err && f.header.type == GS_WELCOME) {
		welcomed(&f, fds);
		return;
	}
	for (int i = 0; i < GS_FDS; i++)
		if (fds[i] >= 0)
			GS_SYS(SYS_close, fds[i]);
	if (err == EAGAIN && gs_now() < gs_client.deadline)
		return;
	if (err == EAGAIN)
		gs_client_fail("no answer");
	else if (err)
		gs_client_fail(err == EPROTONOSUPPORT ? "it speaks another version" : strerror(err));
	else if (f.header.type == GS_ERR)
		refused(&f.err);
	else
		gs_client_fail("its answer is not a WELCOME");
}

void gs_connect_now(void)
{
	uint64_t until = gs_now() + GS_CONNECT, now;

	gs_client.retry_after = GS_RETRY_FIRST;
	gs_connect_begin();
	while (gs_client.state != GS_ACTIVE && (now = gs_now()) < until) {
		struct pollfd p = {.fd = gs_client.link.fd, .events = POLLIN};
		if (gs_client.state == GS_CONNECTING) {
			gs_sys_poll(&p, until - now);
			gs_connect_await();
		} else if (gs_client.retry_at < now + GS_RETRY_FIRST) {
			gs_sys_poll(NULL, GS_BUSY); /* There is a broker, with much to do. */
			gs_connect_begin();
		} else {
			return;
		}
	}
	if (gs_client.state == GS_CONNECTING)
		gs_client_fail("no answer");
}

/* The helper's part of the session with the broker, and its start. */
#define _GNU_SOURCE
#include "session/client.h"

#include <string.h>

#include "base/clock.h"
#include "base/devices.h"
#include "session/connect.h"
#include "session/local.h"
#include "session/request.h"
#include "session/session.h"

#define GS_FRAMES 64          /* that the helper reads at a time */
#define GS_READ (10 * GS_MS) /* between its reads: while it drains, it comes by every 50 us */

/* ---- the helper's part ---- */

static bool revoked(void)
{
	for (unsigned i = 0; i < gs_client.governed; i++)
		if (__atomic_load_n(&gs_client.page->slot[i].mode, __ATOMIC_ACQUIRE) == GS_KILL)
			return true;
	return false;
}

static void look_after(uint64_t now)
{
	uint64_t beat = __atomic_load_n(&gs_client.page->heartbeat_ns, __ATOMIC_RELAXED);

	if (revoked()) {
		gs_client.retry_after = GS_RETRY_REFUSED;
		gs_client_lose("it revoked the session");
		return;
	}
	if (now > beat && now - beat > GS_STALE) {
		gs_client_lose("its heart stopped");
		return;
	}
	if (now >= gs_client.ping_at) {
		gs_client.ping_at = now + gs_client.ping_every;
		gs_client_send(GS_PING, NULL, 0);
	}
	if (now < gs_client.read_at)
		return;
	gs_client.read_at = now + GS_READ;
	for (int i = 0; i < GS_FRAMES && gs_client.state == GS_ACTIVE && !gs_client.reading &&
	     gs_client_receive(false); i++)
		;
}

uint64_t gs_client_poll(void)
{
	uint64_t now = gs_now(), next, cycle;
	int was = gs_client_lock();

	if (!gs_client.started || gs_settings.off) {
		gs_client_unlock(was);
		return now + GS_SECOND;
	}
	if (gs_client.state == GS_CLOSED && now >= gs_client.retry_at && gs_client.link.fd < 0)
		gs_connect_begin();
	else if (gs_client.state == GS_CONNECTING)
		gs_connect_await();
	else if (gs_client.state == GS_ACTIVE)
		look_after(now);
	cycle = gs_local_tick(now);
	switch (gs_client.state) {
	case GS_CLOSED: next = gs_client.link.fd < 0 ? gs_client.retry_at : now + GS_MS; break;
	case GS_CONNECTING: next = now + GS_MS; break;
	default: next = gs_client.ping_at;
	}
	gs_client_unlock(was);
	return cycle < next ? cycle : next;
}

/* ---- start ---- */

struct gs_settings gs_client_settings(void)
{
	int was = gs_client_lock();

	if (!gs_client.started && !gs_client.set) {
		gs_client.set = true;
		gs_settings_read();
	}
	struct gs_settings s = gs_settings;
	gs_client_unlock(was);
	return s;
}

void gs_client_start(void)
{
	int was = gs_client_lock();

	if (!gs_client.started) {
		gs_client.started = true;
		gs_settings_read();
		if (!gs_settings.off) {
			gs_client.closed = gs_settings.closed;
			gs_local_begin(gs_client.closed);
			gs_find_gpus();
			gs_connect_now();
		}
	}
	gs_client_unlock(was);
}

/* The session with the broker.
 *
 * It is closed, or connecting (HELLO is sent, WELCOME is awaited), or active. Every
 * failure has the same result: the session is lost, the process's own page takes
 * over, and the helper thread connects again. RESUME then says what is held, so
 * that both ends have the same books. */
#define _GNU_SOURCE
#include "client.h"

#include <pthread.h>
#include <string.h>

#include "clock.h"
#include "connect.h"
#include "devices.h"
#include "futex.h"
#include "local.h"
#include "request.h"
#include "sys.h"

#define GS_FRAMES 64          /* that the helper reads at a time */
#define GS_READ (10 * GS_MS) /* between its reads: while it drains, it comes by every 50 us */

struct gs_client gs_client = {.lock = PTHREAD_MUTEX_INITIALIZER, .link = {.fd = -1}};

bool gs_client_connected(void) { return atomic_load_explicit(&gs_client.connected, memory_order_acquire); }
uint64_t gs_client_epoch(void) { return atomic_load_explicit(&gs_client.epoch, memory_order_acquire); }

/* ---- the lock ---- */

int gs_client_lock(void)
{
	int was;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
	pthread_mutex_lock(&gs_client.lock);
	return was;
}

void gs_client_unlock(int was)
{
	pthread_mutex_unlock(&gs_client.lock);
	pthread_setcancelstate(was, NULL);
}

void gs_client_park(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
	pthread_mutex_unlock(&gs_client.lock);
	gs_futex_wait(word, seen, ns);
	pthread_mutex_lock(&gs_client.lock);
}

/* ---- the end of a session ---- */

/* The delay grows with each failure, and differs between processes. */
static uint64_t retry_delay(void)
{
	uint64_t delay = gs_client.retry_after;

	if (delay < GS_RETRY_MOST)
		gs_client.retry_after = delay * 2 < GS_RETRY_MOST ? delay * 2 : GS_RETRY_MOST;
	return delay + (gs_now() ^ (uint64_t)GS_SYS(SYS_getpid) * 2654435761u) % (delay / 4 + 1);
}

void gs_client_drop(void)
{
	gs_client.state = GS_CLOSED;
	gs_client.retry_at = gs_now() + retry_delay();
	if (gs_client.reading)
		gs_link_shut(&gs_client.link); /* The reader closes it. */
	else
		gs_link_close(&gs_client.link);
	for (struct gs_waiter *w = gs_client.waiters; w; w = w->next)
		gs_waiter_wake(w);
}

void gs_client_lose(const char *why)
{
	if (gs_client.state != GS_ACTIVE)
		return;
	atomic_store(&gs_client.connected, false);
	gs_local_take_over(gs_client.page, gs_client.closed);
	atomic_fetch_add(&gs_client.epoch, 1);
	atomic_store_explicit(&gs_page, &gs_own, memory_order_release);
	gs_bell_ring(gs_client.page);
	gs_client_drop();
	if (gs_settings.log)
		gs_log("lost the broker: %s", why);
}

void gs_client_again(const char *why)
{
	gs_client.retry_after = GS_RETRY_FIRST;
	gs_client_lose(why);
}

/* There is no session, and there was none to lose. */
void gs_client_fail(const char *why)
{
	if (gs_settings.log || (gs_settings.asked && !gs_client.said))
		gs_log("no broker at %s: %s", gs_settings.socket, why);
	gs_client.said = true;
	gs_client_drop();
}

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

/* ---- start and fork ---- */

/* The broker's page is unmapped once no thread reads it. */
void gs_forked_client(void)
{
	struct gs_client fresh = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoch = gs_client.epoch + 1, .link = {.fd = -1}};

	gs_link_close(&gs_client.link);
	atomic_store_explicit(&gs_page, &gs_own, memory_order_release);
	gs_link_unmap(gs_client.page);
	gs_link_unmap_leases(gs_client.leases);
	gs_client = fresh;
}

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

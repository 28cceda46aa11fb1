/* The session with the broker.
 *
 * It is closed, or connecting (HELLO is sent, WELCOME is awaited), or active. Every
 * failure has the same result: the session is lost, the process's own page takes
 * over, and the helper thread connects again. RESUME then says what is held, so
 * that both ends have the same books. */
#define _GNU_SOURCE
#include "session/session.h"

#include "base/clock.h"
#include "base/futex.h"
#include "base/sys.h"
#include "session/local.h"

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

void gs_waiter_wake(struct gs_waiter *w)
{
	atomic_store(&w->woken, 1);
	gs_futex_wake(&w->woken, 1);
}

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
	gs_local_take_over(gs_client.page, gs_client.closed, gs_client.epoch);
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

/* ---- fork ---- */

/* The broker's page is unmapped once no thread reads it. */
void gs_forked_session(void)
{
	struct gs_client fresh = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoch = gs_client.epoch + 1, .link = {.fd = -1}};

	gs_link_close(&gs_client.link);
	atomic_store_explicit(&gs_page, &gs_own, memory_order_release);
	gs_link_unmap(gs_client.page);
	gs_link_unmap_leases(gs_client.leases);
	gs_client = fresh;
}

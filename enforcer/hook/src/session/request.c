/* Requests and their answers.
 *
 * There is no thread that only reads. One of the threads that wait for an answer
 * reads for all; when it has its own, another one goes on. So a lone thread's round
 * trip is one send and one receive. */
#define _GNU_SOURCE
#include "session/request.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/entries.h"

static struct gs_waiter *waiting_for(uint64_t seq)
{
	for (struct gs_waiter *w = gs_client.waiters; w; w = w->next)
		if (w->seq == seq && !w->answered)
			return w;
	return NULL;
}

static void handle(const struct gs_frame *f)
{
	enum gs_type type = f->header.type;
	struct gs_waiter *w = type == GS_GRANT || type == GS_DENY || type == GS_ERR ? waiting_for(f->header.seq) : NULL;

	if (w) {
		*w->answer = *f;
		w->answered = true;
		gs_waiter_wake(w);
		return;
	}
	if (type == GS_ERR && gs_settings.log)
		gs_log("refused by the broker: %.120s", f->err.text);
	if (type == GS_ERR && (f->err.type == GS_COMMIT || f->err.type == GS_ABORT || f->err.type == GS_FREE))
		gs_client_again("the books differ");
	else if (type == GS_BYE)
		gs_client_lose("it said goodbye");
	else if (type == GS_NOTICE && gs_settings.log)
		gs_log("%.248s", f->notice.text);
}

/* Reads one frame. False: none came. */
bool gs_client_receive(bool wait)
{
	struct gs_frame f;
	uint64_t epoch = gs_client.epoch;

	gs_client.reading = true;
	if (wait)
		pthread_mutex_unlock(&gs_client.lock);
	int err = gs_link_receive(&gs_client.link, &f, wait, NULL);
	if (wait)
		pthread_mutex_lock(&gs_client.lock);
	gs_client.reading = false;
	if (gs_client.epoch != epoch)
		gs_link_close(&gs_client.link);
	else if (!err)
		handle(&f);
	else if (err != EAGAIN)
		gs_client_lose(err == EBADMSG ? "it sent a broken frame" : strerror(err));
	return !err;
}

bool gs_client_governs(unsigned gpu) { return gs_client.state == GS_ACTIVE && gpu < gs_client.governed; }

static bool send_flags(enum gs_type type, uint32_t flags, const void *payload, uint32_t length)
{
	struct gs_header h = {.magic = GS_MAGIC, .major = GS_MAJOR, .minor = GS_MINOR, .type = (uint16_t)type,
			      .length = length, .flags = flags,
			      .seq = ++gs_client.seq, .session = gs_client.session};
	int err = gs_link_send(&gs_client.link, &h, payload);

	if (err)
		gs_client_lose(strerror(err));
	return !err;
}

bool gs_client_send(enum gs_type type, const void *payload, uint32_t length)
{
	return send_flags(type, type == GS_PING ? gs_entries_unknown() : 0, payload, length);
}

bool gs_client_ask(enum gs_type type, const void *payload, uint32_t length, struct gs_frame *answer)
{
	struct gs_waiter me = {.next = gs_client.waiters, .seq = gs_client.seq + 1, .answer = answer};
	uint64_t epoch = gs_client.epoch, deadline = gs_now() + GS_ANSWER, now;

	if (!gs_client_send(type, payload, length))
		return false;
	gs_client.waiters = &me;
	while (!me.answered && gs_client.epoch == epoch) {
		if ((now = gs_now()) >= deadline) {
			gs_client_again("no answer");
		} else if (!gs_client.reading) {
			gs_client_receive(true);
		} else {
			gs_client_park(&me.woken, 0, deadline - now);
			atomic_store(&me.woken, 0);
		}
	}
	struct gs_waiter **w = &gs_client.waiters;
	while (*w != &me)
		w = &(*w)->next;
	*w = me.next;
	if (gs_client.waiters && !gs_client.reading)
		gs_waiter_wake(gs_client.waiters); /* It reads on. */
	return me.answered;
}

static void tell(enum gs_type type, uint32_t flags, unsigned gpu, const void *payload, uint32_t length)
{
	int was = gs_client_lock();

	if (gs_client_governs(gpu))
		send_flags(type, flags, payload, length);
	gs_client_unlock(was);
}

void gs_client_acquire(unsigned gpu)
{
	struct gs_acquire a = {.gpu = gpu};

	tell(GS_ACQUIRE, 0, gpu, &a, sizeof(a));
}

void gs_client_usage(enum gs_type type, const struct gs_usage *u, uint32_t own_slice_us)
{
	tell(type, own_slice_us, u->gpu, u, sizeof(*u));
}

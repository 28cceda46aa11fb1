/* What this process holds of each GPU's memory, and what it is about to take.
 *
 * With a session the broker decides, and these sums are what RESUME declares.
 * Without one they decide, by the cap of the process's own page. In both cases a
 * reservation is counted here before the driver is asked, so that the cap holds
 * while threads race and while sessions come and go.
 *
 * The broker is not asked for every few bytes, unless they are of unified memory. It
 * lends some, and the process may take again what it freed. The broker sees what is left of them, and takes that
 * back if another process needs it. */
#define _GNU_SOURCE
#include "ledger/admit.h"

#include "base/clock.h"
#include "base/futex.h"
#include "session/client.h"
#include "session/local.h"
#include "session/request.h"
#include "session/sums.h"

#define GS_PATIENCE (5 * GS_MS)
/* The broker says for how long an allocation waits for room. This bounds what it says. */
#define GS_ROOM (20 * 60 * GS_SECOND)

static void hold(unsigned gpu, uint64_t bytes)
{
	atomic_store(&gs_sums.committed[gpu], bytes);
	gs_local_used(gpu, bytes);
}

static struct gs_reservation *find_free(void)
{
	for (unsigned i = 0; i < GS_RESERVATIONS; i++)
		if (!gs_sums.reservation[i].taken)
			return &gs_sums.reservation[i];
	return NULL;
}

static struct gs_reservation *take(unsigned gpu, uint64_t bytes)
{
	uint64_t deadline = gs_now() + GS_ANSWER, now;
	struct gs_reservation *r;

	while (!(r = find_free())) {
		if ((now = gs_now()) >= deadline)
			return NULL;
		gs_sums.waiting++;
		gs_client_park(&gs_sums.released, gs_sums.released, deadline - now);
		gs_sums.waiting--;
	}
	*r = (struct gs_reservation){.taken = true, .gpu = gpu, .bytes = bytes};
	gs_sums.reserved[gpu] += bytes;
	return r;
}

static void release(struct gs_reservation *r)
{
	gs_sums.reserved[r->gpu] -= r->bytes;
	r->taken = false;
	atomic_fetch_add(&gs_sums.released, 1);
	if (gs_sums.waiting)
		gs_futex_wake(&gs_sums.released, 1);
}

/* ---- the lease ---- */

static uint64_t *lease(unsigned gpu)
{
	return gs_client_governs(gpu) && gs_client.leases ? &gs_client.leases->idle[gpu] : NULL;
}

static bool lease_take(struct gs_reservation *r)
{
	uint64_t *word = lease(r->gpu), was = word ? __atomic_load_n(word, __ATOMIC_ACQUIRE) : 0;

	do
		if (!(was & GS_LEASE_OPEN) || (was & ~GS_LEASE_OPEN) < r->bytes)
			return false;
	while (!__atomic_compare_exchange_n(word, &was, was - r->bytes, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	r->epoch = gs_client_epoch();
	return true;
}

/* Puts free bytes there, and returns the number of bytes that the broker has back.
 * If the lease is full, that is more, so that the broker need not be told again
 * soon. */
static uint64_t lease_put(unsigned gpu, uint64_t bytes)
{
	uint64_t *word = lease(gpu), was = word ? __atomic_load_n(word, __ATOMIC_ACQUIRE) : 0, idle, left;

	do {
		if (!(was & GS_LEASE_OPEN))
			return bytes;
		idle = (was & ~GS_LEASE_OPEN) + bytes;
		left = idle <= GS_LEASE_MAX ? idle : GS_LEASE_MAX / 2;
	} while (!__atomic_compare_exchange_n(word, &was, GS_LEASE_OPEN | left, false, __ATOMIC_ACQ_REL,
					      __ATOMIC_ACQUIRE));
	return idle - left;
}

static void give_back(unsigned gpu, enum gs_kind kind, uint64_t bytes)
{
	struct gs_memory m = {.gpu = gpu, .kind = kind, .bytes = lease_put(gpu, bytes)};

	if (m.bytes && gs_client_governs(gpu))
		gs_client_send(GS_FREE, &m, sizeof(m));
}

/* ---- reservations ---- */

/* Returns the broker's answer, GS_GRANT or GS_DENY, or 0 if there is none. If a
 * session sends too much, the broker says so, and the thread waits: the program did
 * nothing wrong. It also waits while the broker makes room for it, or awaits the
 * memory of the dead; that wait has an end, so the broker is told how long it was. */
static int ask(struct gs_reservation *r, enum gs_kind kind)
{
	struct gs_memory m = {.gpu = r->gpu, .kind = kind, .bytes = r->bytes};
	uint64_t began = gs_now(), deadline = began + GS_ANSWER;
	_Atomic uint32_t nobody = 0;
	struct gs_frame answer;

	for (;;) {
		if (!gs_client_governs(r->gpu) || !gs_client_ask(GS_RESERVE, &m, sizeof(m), &answer))
			return 0;
		if (answer.header.type == GS_DENY && answer.memory.wait && gs_now() - began < GS_ROOM) {
			uint64_t wait = answer.memory.wait * GS_MS;
			gs_client_park(&nobody, 0, wait < GS_SECOND ? wait : GS_SECOND);
			deadline = gs_now() + GS_ANSWER;
			m.wait = (uint32_t)((gs_now() - began) / GS_MS);
			continue;
		}
		if (answer.header.type != GS_ERR || answer.err.code != GS_E_LIMIT || gs_now() >= deadline)
			break;
		gs_client_park(&nobody, 0, GS_PATIENCE);
	}
	if (answer.header.type != GS_GRANT)
		return GS_DENY;
	if (answer.memory.bytes < r->bytes) {
		gs_client_again("it granted less than was asked");
		return 0;
	}
	r->number = answer.memory.reservation;
	r->epoch = gs_client_epoch();
	return GS_GRANT;
}

/* Decides by the own page's cap. r itself is in the sums. */
static int decide(const struct gs_reservation *r)
{
	return gs_sums.committed[r->gpu] + gs_sums.reserved[r->gpu] <= gs_local_most(r->gpu) ? GS_GRANT : GS_DENY;
}

/* With fail closed a broker that is there decides, be it one that came back while another
 * thread's answer was awaited. Without one, memory that has no cap waits: the broker may
 * just be late. */
static bool needs_broker(unsigned gpu)
{
	return gs_client.closed &&
	       (gs_client.state == GS_ACTIVE ? gs_client_governs(gpu) : gs_local_most(gpu) == UINT64_MAX);
}

enum gs_type gs_client_reserve(unsigned gpu, enum gs_kind kind, uint64_t bytes, uint64_t *reservation)
{
	enum gs_type answer = GS_DENY;

	*reservation = 0;
	if (gpu >= GS_GPUS)
		return GS_GRANT;
	if (bytes >> 48)
		return GS_DENY; /* No GPU has it, and the sums must not overflow. */
	int was = gs_client_lock();
	struct gs_reservation *r;
	int said = 0;
	for (;;) {
		_Atomic uint32_t nobody = 0;
		if (gs_client.state == GS_ACTIVE || !needs_broker(gpu)) {
			r = take(gpu, bytes);
			said = !r ? 0 : kind != GS_MANAGED && lease_take(r) ? GS_GRANT : ask(r, kind);
			if (!r || said || !(needs_broker(gpu) || gs_local_doubts(gpu, gs_sums.committed[gpu] + gs_sums.reserved[gpu])))
				break;
			release(r);
		}
		gs_client_unlock(was);
		gs_client_poll(); /* the helper may not have begun */
		gs_futex_wait(&nobody, 0, GS_PATIENCE);
		was = gs_client_lock();
	}
	if (r) {
		answer = (enum gs_type)(said ? said : decide(r));
		if (answer == GS_GRANT)
			*reservation = (uint64_t)(r - gs_sums.reservation) + 1;
		else
			release(r);
	}
	gs_client_unlock(was);
	return answer;
}

static struct gs_reservation *find(uint64_t reservation)
{
	if (reservation == 0 || reservation > GS_RESERVATIONS || !gs_sums.reservation[reservation - 1].taken)
		return NULL;
	return &gs_sums.reservation[reservation - 1];
}

/* Tells the broker the outcome of a reservation, if it is of this session. The
 * broker sees what was taken of the lease. It is told what the driver did not have. */
static void conclude(const struct gs_reservation *r, enum gs_type type, unsigned gpu, enum gs_kind kind, uint64_t bytes)
{
	if (!gs_client_governs(gpu))
		return;
	bool known = r && r->epoch == gs_client_epoch() && bytes <= r->bytes;
	if (known && !r->number && type == GS_COMMIT) {
		give_back(gpu, kind, r->bytes - bytes);
	} else if (known) {
		if (!r->number)
			bytes = r->bytes;
		struct gs_memory m = {.gpu = gpu, .kind = kind, .reservation = r->number, .bytes = bytes};
		gs_client_send(type, &m, sizeof(m));
	} else if (bytes) {
		gs_client_again("memory was taken that it does not know of");
	}
}

void gs_client_commit(unsigned gpu, enum gs_kind kind, uint64_t reservation, uint64_t bytes)
{
	if (gpu >= GS_GPUS)
		return;
	int was = gs_client_lock();
	struct gs_reservation *r = find(reservation);
	hold(gpu, gs_sums.committed[gpu] + bytes);
	conclude(r, GS_COMMIT, gpu, kind, bytes);
	if (r)
		release(r);
	gs_client_unlock(was);
}

void gs_client_abort(unsigned gpu, uint64_t reservation)
{
	if (gpu >= GS_GPUS)
		return;
	int was = gs_client_lock();
	struct gs_reservation *r = find(reservation);
	if (r) {
		conclude(r, GS_ABORT, gpu, GS_DEVICE, 0);
		release(r);
	}
	gs_client_unlock(was);
}

void gs_client_free(unsigned gpu, enum gs_kind kind, uint64_t bytes)
{
	if (gpu >= GS_GPUS)
		return;
	int was = gs_client_lock();
	uint64_t held = gs_sums.committed[gpu];
	if (bytes > held)
		bytes = held;
	hold(gpu, held - bytes);
	give_back(gpu, kind, bytes);
	gs_client_unlock(was);
}

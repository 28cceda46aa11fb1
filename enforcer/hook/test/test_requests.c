/* The use of a session: requests and their answers, in one thread, in many threads,
 * and in a forked child that has none. */
#include "test_broker.h"

#include "session/sums.h"

static void memory(void)
{
	struct request r;

	broker_listen();
	struct peer p = start();
	uint64_t first = grant(&p, 1000, 41), second = grant(&p, 2000, 42);
	gs_client_commit(0, GS_DEVICE, second, 1500);
	r = peer_expect(&p, GS_COMMIT);
	CHECK(r.memory.reservation == 42 && r.memory.bytes == 1500 && gs_client_committed(0) == 1500);
	gs_client_abort(0, first);
	CHECK(peer_expect(&p, GS_ABORT).memory.reservation == 41 && gs_client_committed(0) == 1500);
	gs_client_free(0, GS_DEVICE, 500);
	CHECK(peer_expect(&p, GS_FREE).memory.bytes == 500 && gs_client_committed(0) == 1000);

	pthread_t t = reserve_aside(5000);
	r = peer_expect(&p, GS_RESERVE);
	peer_answer(&p, GS_DENY, &r, 0);
	CHECK(reserved(t) == 0 && gs_client_connected());

	/* A process cannot free more than it holds, nor aborted memory twice. */
	gs_client_free(0, GS_DEVICE, 5000);
	CHECK(peer_expect(&p, GS_FREE).memory.bytes == 1000);
	gs_client_abort(0, first);
	gs_client_free(0, GS_DEVICE, 1);
	gs_client_acquire(0);
	peer_expect(&p, GS_ACQUIRE);
}

/* An allocation that the broker puts off is asked for again, for longer than an answer
 * may take, until the broker gives it or refuses it. Other requests pass meanwhile. */
static void put_off(void)
{
	struct request r;

	broker_listen();
	struct peer p = start();
	for (int refused = 0; refused < 2; refused++) {
		pthread_t t = reserve_aside(5000);
		for (int i = 0; i < 8; i++) {
			r = peer_expect(&p, GS_RESERVE);
			CHECK(r.memory.bytes == 5000 && (i ? r.memory.wait >= 300 : !r.memory.wait));
			gs_client_free(0, GS_DEVICE, 0);
			peer_puts_off(&p, &r, i ? 20 : 300);
		}
		r = peer_expect(&p, GS_RESERVE);
		peer_answer(&p, refused ? GS_DENY : GS_GRANT, &r, 7);
		uint64_t reservation = reserved(t);
		CHECK((reservation == 0) == (refused == 1));
		gs_client_abort(0, reservation);
		if (!refused)
			CHECK(peer_expect(&p, GS_ABORT).memory.reservation == 7);
	}
	CHECK(gs_client_connected());
}

/* A thread that is cancelled while it waits gets its answer all the same. So does
 * another one, for which it may be reading. */
static void cancelled(void)
{
	struct request r[2];
	uint64_t reservation[2];

	broker_listen();
	struct peer p = start();
	for (int i = 0; i < 20; i++) {
		pthread_t t[2];
		for (unsigned k = 0; k < 2; k++) {
			t[k] = reserve_aside(1000);
			r[k] = peer_expect(&p, GS_RESERVE);
		}
		CHECK(pthread_cancel(t[i % 2]) == 0);
		for (unsigned k = 0; k < 2; k++)
			peer_answer(&p, GS_GRANT, &r[k], 10 + k);
		for (unsigned k = 0; k < 2; k++)
			CHECK((reservation[k] = reserved(t[k])) && reservation[k] <= 2);
		gs_client_commit(0, GS_DEVICE, reservation[0], 1000);
		gs_client_abort(0, reservation[1]);
		CHECK(peer_expect(&p, GS_COMMIT).memory.reservation == 10 &&
		      peer_expect(&p, GS_ABORT).memory.reservation == 11);
		CHECK(gs_client_committed(0) == 1000 * (i + 1u));
	}
	CHECK(gs_client_connected());
}

/* There are too many messages: the thread waits, and the program does not notice. */
static void flood(void)
{
	struct gs_err e = {.code = GS_E_LIMIT, .type = GS_RESERVE, .text = "too many"};

	broker_listen();
	struct peer p = start();
	pthread_t t = reserve_aside(1000);
	struct request r = peer_expect(&p, GS_RESERVE);
	peer_send(&p, GS_ERR, r.header.seq, &e, sizeof(e), -1);
	r = peer_expect(&p, GS_RESERVE);
	peer_answer(&p, GS_GRANT, &r, 1);
	CHECK(reserved(t));
}

/* ---- the lease ---- */

static struct gs_leases *leases;

/* A session whose broker lends bytes, and sends one descriptor too many. */
static struct peer start_lent(uint64_t bytes)
{
	int with[3] = {-1, memfd_create("leases", MFD_CLOEXEC | MFD_ALLOW_SEALING), 1};

	CHECK(with[1] >= 0 && ftruncate(with[1], 4096) == 0 &&
	      fcntl(with[1], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	leases = mmap(NULL, sizeof(*leases), PROT_READ | PROT_WRITE, MAP_SHARED, with[1], 0);
	CHECK(leases != MAP_FAILED);
	leases->idle[0] = GS_LEASE_OPEN | bytes;
	broker_listen();
	pthread_t t = starting();
	struct peer p = peer_accept();
	struct request r = peer_expect(&p, GS_HELLO);
	CHECK(r.hello.leases == 1 && fcntl(p.memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
	with[0] = p.memfd;
	peer_send_with(&p, GS_WELCOME, r.header.seq, &WELCOME, sizeof(WELCOME), with, 3);
	CHECK(started(t));
	return p;
}

static uint64_t idle(void) { return __atomic_load_n(&leases->idle[0], __ATOMIC_RELAXED) ^ GS_LEASE_OPEN; }

static int leases_of(uint64_t bytes)
{
	struct gs_leases l = {.idle = {bytes}};
	int fd = memfd_create("leases", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && write(fd, &l, sizeof(l)) == sizeof(l) && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return fd;
}

/* A process that is suspended has addresses that its driver wants back: new leases take
 * none but that of the old ones. */
static void leases_keep_their_place(void)
{
	struct gs_leases *l = gs_link_map_leases(leases_of(1), NULL), *again;

	CHECK(l && l->idle[0] == 1);
	again = gs_link_map_leases(leases_of(2), l);
	CHECK(again == l && l->idle[0] == 2);
	CHECK(!gs_link_map_leases(-1, l) && msync(l, sizeof(*l), MS_ASYNC) && errno == ENOMEM);
}

static void *reserve_unified(void *unused)
{
	uint64_t r;

	(void)unused;
	CHECK(gs_client_reserve(0, GS_MANAGED, 1, &r) == GS_DENY);
	return NULL;
}

/* Lent bytes are taken and put back without a message. */
static void lent(void)
{
	struct peer p = start_lent(1000);
	uint64_t r[2];

	CHECK(gs_client_reserve(0, GS_DEVICE, 600, &r[0]) == GS_GRANT && idle() == 400);
	CHECK(gs_client_reserve(0, GS_POOL, 400, &r[1]) == GS_GRANT && idle() == 0);
	gs_client_commit(0, GS_DEVICE, r[0], 600);
	gs_client_commit(0, GS_POOL, r[1], 150); /* and the rest is there again */
	CHECK(idle() == 250 && gs_client_committed(0) == 750);
	gs_client_free(0, GS_DEVICE, 600);
	CHECK(idle() == 850 && gs_client_committed(0) == 150);
	gs_client_free(0, GS_DEVICE, 5000); /* more than it has */
	CHECK(idle() == 1000 && gs_client_committed(0) == 0);

	/* The broker is told what the driver did not have, and gets it back. */
	CHECK(gs_client_reserve(0, GS_DEVICE, 1000, &r[0]) == GS_GRANT);
	gs_client_abort(0, r[0]);
	struct request got = peer_expect(&p, GS_ABORT);
	CHECK(got.memory.reservation == 0 && got.memory.bytes == 1000 && idle() == 0);

	/* A request for more than there is goes to the broker. */
	leases->idle[0] = GS_LEASE_OPEN | 10;
	gs_client_commit(0, GS_DEVICE, grant(&p, 11, 41), 11);
	CHECK(peer_expect(&p, GS_COMMIT).memory.reservation == 41 && idle() == 10);

	/* Unified memory is asked for, because it cannot give way. */
	pthread_t t;
	CHECK(pthread_create(&t, NULL, reserve_unified, NULL) == 0);
	got = peer_expect(&p, GS_RESERVE);
	CHECK(got.memory.kind == GS_MANAGED && got.memory.bytes == 1 && idle() == 10);
	peer_answer(&p, GS_DENY, &got, 0);
	CHECK(!reserved(t));

	/* Bytes that the lease has no room for go back, and half of its most stays. */
	gs_client_commit(0, GS_DEVICE, grant(&p, 2 * GS_LEASE_MAX, 42), 2 * GS_LEASE_MAX);
	peer_expect(&p, GS_COMMIT);
	gs_client_free(0, GS_DEVICE, 2 * GS_LEASE_MAX);
	CHECK(peer_expect(&p, GS_FREE).memory.bytes == 2 * GS_LEASE_MAX + 10 - GS_LEASE_MAX / 2 &&
	      idle() == GS_LEASE_MAX / 2);

	/* Bytes that the broker took out are not there, and none are put there. */
	leases->idle[0] = 0;
	gs_client_free(0, GS_DEVICE, 11);
	CHECK(peer_expect(&p, GS_FREE).memory.bytes == 11 && leases->idle[0] == 0);
	gs_client_abort(0, grant(&p, 1, 43));
	CHECK(peer_expect(&p, GS_ABORT).memory.reservation == 43);
}

/* A lease goes with its session. What was taken of it is declared in the next one. */
static void lent_and_lost(void)
{
	struct peer p = start_lent(1000);
	struct request r;
	uint64_t before, meanwhile;

	CHECK(gs_client_reserve(0, GS_DEVICE, 300, &before) == GS_GRANT &&
	      gs_client_reserve(0, GS_DEVICE, 200, &meanwhile) == GS_GRANT);
	gs_client_commit(0, GS_DEVICE, before, 300);
	close(p.fd);
	AWAIT((gs_client_poll(), !gs_client_connected()));
	gs_client_free(0, GS_DEVICE, 100);
	CHECK(idle() == 500);
	start_helper();
	p = peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.committed[0] == 200);
	AWAIT(gs_client_connected());
	gs_client_commit(0, GS_DEVICE, meanwhile, 200);
	CHECK(!peer_read(&p, &r));
	p = peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.committed[0] == 400);
	AWAIT(gs_client_connected());
	gs_client_free(0, GS_DEVICE, 400); /* this one lends nothing */
	CHECK(peer_expect(&p, GS_FREE).memory.bytes == 400 && idle() == 500);
}

/* A child has nothing of its parent's lease. */
static void lent_and_forked(void)
{
	struct peer p = start_lent(1000);
	uint64_t reservation;
	int status;

	pid_t child = fork();
	if (child == 0) {
		CHECK(gs_client_reserve(0, GS_DEVICE, 600, &reservation) == GS_GRANT);
		gs_client_commit(0, GS_DEVICE, reservation, 600);
		_exit(idle() == 1000 ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0 && idle() == 1000);
	CHECK(gs_client_reserve(0, GS_DEVICE, 600, &reservation) == GS_GRANT && idle() == 400);
	close(p.fd);
}

/* ---- fork ---- */

static void fork_child(const struct peer *p)
{
	CHECK(!gs_client_connected() && gs_page == &gs_own && !gs_own.gated && gs_client_committed(0) == 0);
	CHECK(gs_gpu_count() == 0 && gs_own.slot[0].used == 0);
	uint64_t reservation;
	CHECK(gs_client_reserve(0, GS_DEVICE, 1000, &reservation) == GS_GRANT);
	gs_client_abort(0, reservation);
	gs_client_poll();
	close(p->fd);
	gs_client_start();
	CHECK(gs_client_connected());
	_exit(0);
}

static void forked(void)
{
	int status;
	struct request r;

	broker_listen();
	struct peer p = start();
	gs_client_commit(0, GS_DEVICE, grant(&p, 1000, 1), 1000);
	peer_expect(&p, GS_COMMIT);
	p.page->slot[0].mode = GS_PAUSE;
	pid_t child = fork();
	if (child == 0)
		fork_child(&p);
	struct peer q = peer_welcomed(&r, GS_HELLO);
	CHECK(r.hello.pid == (uint32_t)child && r.hello.old_session == 0 && r.hello.committed[0] == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(!peer_read(&q, &r));
	CHECK(gs_client_connected() && gs_client_committed(0) == 1000);
	gs_client_free(0, GS_DEVICE, 1000);
	CHECK(peer_expect(&p, GS_FREE).memory.bytes == 1000);
}

/* ---- many threads ---- */

#define THREADS 32
#define ROUNDS 50

static void *reserve_many(void *number)
{
	uint64_t reservation, bytes = 1000 + (uint64_t)(uintptr_t)number;

	for (int i = 0; i < ROUNDS; i++) {
		CHECK(gs_client_reserve(1, GS_VMM, bytes, &reservation) == GS_GRANT);
		gs_client_commit(1, GS_VMM, reservation, bytes);
		gs_client_free(1, GS_VMM, bytes);
	}
	return NULL;
}

/* Answers in the opposite order, as many at a time as have come. A commit names the
 * reservation of its own bytes, unless a thread got another one's answer. */
static void own_answers(void)
{
	pthread_t t[THREADS];
	struct request r, waiting[THREADS];
	int left = 3 * THREADS * ROUNDS, n = 0;
	bool answers = false; /* all that wait, before it hears more */

	broker_listen();
	struct peer p = start();
	start_helper();
	clock_stop(); /* no answer is late, on a busy machine either */
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&t[i], NULL, reserve_many, (void *)i) == 0);
	while (left || n) {
		struct pollfd more = {.fd = p.fd, .events = POLLIN};
		if (left && !answers && (n == 0 || poll(&more, 1, 0) == 1)) {
			CHECK(peer_read(&p, &r));
			if (r.header.type == GS_PING)
				continue;
			CHECK(r.header.type != GS_COMMIT || r.memory.reservation / THREADS / ROUNDS == r.memory.bytes);
			if (r.header.type == GS_RESERVE)
				waiting[n++] = r;
			left--;
			continue;
		}
		answers = --n > 0;
		peer_answer(&p, GS_GRANT, &waiting[n], waiting[n].memory.bytes * THREADS * ROUNDS);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(gs_client_connected() && gs_client_committed(1) == 0);
}

static _Atomic uint64_t got;

static void *take_what_is_there(void *unused)
{
	uint64_t reservation;

	while (gs_client_reserve(0, GS_DEVICE, 7, &reservation) == GS_GRANT) {
		atomic_fetch_add(&got, 7);
		CHECK(got <= 1000);
		gs_client_commit(0, GS_DEVICE, reservation, 7);
	}
	return unused;
}

/* Without a broker the cap holds for all threads together. */
static void local_race(void)
{
	pthread_t t[64];

	unsetenv("GPUSTEWARD_SOCKET");
	setenv("GPUSTEWARD_MEMORY_LIMIT", "1000", 1);
	gs_client_start();
	for (int i = 0; i < 64; i++)
		CHECK(pthread_create(&t[i], NULL, take_what_is_there, NULL) == 0);
	for (int i = 0; i < 64; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(got == 1000 / 7 * 7 && gs_client_committed(0) == got);
}

/* The 65th waits until one of the others has concluded. */
static void many_reservations(void)
{
	uint64_t held[64];

	unsetenv("GPUSTEWARD_SOCKET");
	gs_client_start();
	for (int i = 0; i < 64; i++)
		CHECK(gs_client_reserve(0, GS_DEVICE, 1, &held[i]) == GS_GRANT);
	pthread_t t = reserve_aside(1);
	CHECK(pthread_tryjoin_np(t, NULL) == EBUSY);
	gs_client_abort(0, held[17]);
	CHECK(reserved(t) == held[17]);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(memory),
		TEST(put_off),
		TEST(cancelled),
		TEST(flood),
		TEST(leases_keep_their_place),
		TEST(lent),
		TEST(lent_and_lost),
		TEST(lent_and_forked),
		TEST(forked),
		TEST(own_answers),
		TEST(local_race),
		TEST(many_reservations),
	};

	return RUN_ALL(tests, argc, argv);
}

/* The loss of a session at any moment, what goes on without it, and what the next
 * one is told. */
#include "test_broker.h"

#include "base/entries.h"

/* The cap of the last page decides. Then RESUME says what was taken. */
static void lost_in_reserve(void)
{
	struct request r;

	broker_listen();
	struct peer p = start();
	p.page->slot[0].cap = 3000;
	gs_client_commit(0, GS_DEVICE, grant(&p, 1000, 1), 1000);
	pthread_t t = reserve_aside(2000);
	peer_expect(&p, GS_COMMIT);
	peer_expect(&p, GS_RESERVE);
	close(p.fd);
	uint64_t reservation = reserved(t);
	CHECK(reservation && !gs_client_connected() && gs_page == &gs_own);
	CHECK(gs_page->slot[0].cap == 3000 && gs_page->slot[0].used == 1000);
	CHECK(reserved(reserve_aside(1)) == 0);
	gs_client_commit(0, GS_DEVICE, reservation, 2000);
	CHECK(gs_page->slot[0].used == 3000);

	start_helper();
	uint64_t epoch = gs_client_epoch();
	peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.old_session == 7 && r.hello.token == 99 && r.hello.committed[0] == 3000 &&
	      r.hello.committed[1] == 0);
	AWAIT(gs_client_connected());
	CHECK(gs_client_epoch() != epoch && gs_page != &gs_own);
}

static void called(void) { CHECK(!"no call of the driver"); }

/* A suspended process connects again without its driver. */
static void again_without_the_driver(void)
{
	struct request r;

	broker_listen();
	struct peer p = start();
	void *call = (void *)called;
	memcpy(&gs_real.cuDeviceGetCount, &call, sizeof(call));
	memcpy(&gs_real.cuDeviceGet, &call, sizeof(call));
	memcpy(&gs_real.cuDeviceGetUuid_v2, &call, sizeof(call));
	memcpy(&gs_real.cuDriverGetVersion, &call, sizeof(call));
	close(p.fd);
	start_helper();
	peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.cuda == 13000 && r.hello.gpus == 2);
	AWAIT(gs_client_connected());
}

/* Taken before there was any broker. */
static void declared_late(void)
{
	struct request r;

	gs_client_start();
	gs_client_commit(1, GS_DEVICE, 0, 512);
	broker_listen();
	start_helper();
	peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.old_session == 0 && r.hello.committed[1] == 512);
}

/* While WELCOME is on its way, memory is freed, and then memory is taken. */
static void changed_meanwhile(void)
{
	struct request r;

	gs_client_start();
	gs_client_commit(0, GS_DEVICE, 0, 1000);
	broker_listen();
	clock_stop(); /* the client waits for WELCOME, however long this takes */
	clock_pass(10 * GS_SECOND); /* until it tries again */
	start_helper();
	struct peer p = peer_accept();
	r = peer_expect(&p, GS_RESUME);
	gs_client_free(0, GS_DEVICE, 300);
	peer_welcome(&p, r.header.seq);
	CHECK(peer_expect(&p, GS_FREE).memory.bytes == 300);
	AWAIT(gs_client_connected());
	close(p.fd);
	while (gs_client_connected()) /* until it reads */
		clock_pass(GS_MS), sched_yield();
	pthread_mutex_lock(&gs_client.lock); /* it knows when it tries again */
	clock_pass(10 * GS_SECOND);
	pthread_mutex_unlock(&gs_client.lock);

	p = peer_accept();
	r = peer_expect(&p, GS_RESUME);
	CHECK(r.hello.committed[0] == 700);
	gs_client_commit(0, GS_DEVICE, 0, 50);
	peer_welcome(&p, r.header.seq);
	CHECK(!peer_read(&p, &r));
	peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.committed[0] == 750);
	AWAIT(gs_client_connected());
}

/* A reservation of a lost session does not belong to this one. */
static void commit_after_resume(void)
{
	struct request r;

	broker_listen();
	struct peer p = start();
	uint64_t reservation = grant(&p, 1000, 1);
	close(p.fd);
	start_helper();
	p = peer_welcomed(&r, GS_RESUME);
	AWAIT(gs_client_connected());
	gs_client_commit(0, GS_DEVICE, reservation, 1000);
	CHECK(!peer_read(&p, &r));
	peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.committed[0] == 1000);
}

/* The broker does not know of what is freed: the next RESUME corrects it. */
static void books_differ(void)
{
	struct gs_err e = {.code = GS_E_STATE, .type = GS_COMMIT, .text = "no such reservation"};
	struct request r;

	broker_listen();
	struct peer p = start();
	gs_client_commit(0, GS_DEVICE, grant(&p, 1000, 1), 1000);
	r = peer_expect(&p, GS_COMMIT);
	peer_send(&p, GS_ERR, r.header.seq, &e, sizeof(e), -1);
	start_helper();
	peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.committed[0] == 1000);
}

static void unanswered(void)
{
	broker_listen();
	struct peer p = start();
	uint64_t began = gs_now();
	pthread_t t = reserve_aside(1000);
	peer_expect(&p, GS_RESERVE);
	CHECK(reserved(t)); /* by the page's cap, which is none */
	CHECK(gs_now() - began >= GS_ANSWER && !gs_client_connected());
}

static void garbage_in_session(void)
{
	broker_listen();
	struct peer p = start();
	pthread_t t = reserve_aside(1000);
	struct request r = peer_expect(&p, GS_RESERVE);
	peer_send(&p, 1000, 0, "of a type to come", 17, -1);
	peer_send(&p, GS_GRANT, r.header.seq + 1, &r.memory, sizeof(r.memory), -1);
	CHECK(gs_client_connected());
	peer_send(&p, GS_GRANT, r.header.seq, "?", 1, -1);
	CHECK(reserved(t) && !gs_client_connected());
}

static void granted_less(void)
{
	broker_listen();
	struct peer p = start();
	pthread_t t = reserve_aside(1000);
	struct request r = peer_expect(&p, GS_RESERVE);
	r.memory.bytes = 999;
	peer_answer(&p, GS_GRANT, &r, 1);
	CHECK(reserved(t) && !gs_client_connected());
}

static void revoked(void)
{
	broker_listen();
	struct peer p = start();
	gs_client_poll();
	CHECK(gs_client_connected());
	__atomic_store_n(&p.page->slot[1].mode, GS_KILL, __ATOMIC_RELEASE);
	gs_client_poll();
	CHECK(!gs_client_connected() && gs_page == &gs_own && !gs_own.gated &&
	      gs_client.retry_at > gs_now() + 4 * GS_SECOND);
}

static void heart_stopped(void)
{
	broker_listen();
	struct peer p = start();
	__atomic_store_n(&p.page->heartbeat_ns, gs_now() - GS_STALE - 1, __ATOMIC_RELAXED);
	gs_client_poll();
	CHECK(!gs_client_connected() && gs_page == &gs_own);
}

static void pinged(void)
{
	struct request r;

	broker_listen();
	struct peer p = start();
	gs_entry_given("cuUnheardOf"); /* after HELLO */
	clock_stop();
	stopped_at = gs_client.ping_at;
	CHECK(gs_client_poll() > gs_now());
	clock_go();
	r = peer_expect(&p, GS_PING);
	CHECK(r.header.flags == 1);
	peer_send(&p, GS_PONG, r.header.seq, NULL, 0, -1);
	peer_send(&p, GS_NOTICE, 0, &(struct gs_notice){.text = "hello"}, sizeof(struct gs_notice), -1);
	peer_send(&p, GS_BYE, 0, NULL, 0, -1);
	AWAIT((gs_client_poll(), !gs_client_connected()));
}

/* The program closes every descriptor and opens its own under the same number. */
static void closed_under(void)
{
	struct request r;
	char found;
	int own[2];

	broker_listen();
	struct peer p = start();
	int number = gs_client.link.fd;
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, own) == 0 && dup2(own[0], number) == number);
	CHECK(reserved(reserve_aside(1000)) && !gs_client_connected());
	CHECK(recv(own[1], &found, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	CHECK(fcntl(number, F_GETFD) >= 0 && send(own[1], "x", 1, 0) == 1 && recv(number, &found, 1, 0) == 1);
	start_helper();
	peer_welcomed(&r, GS_RESUME);
	AWAIT(gs_client_connected());
	CHECK(gs_client.link.fd != number && !peer_read(&p, &r));
}

/* ---- what goes on after a loss ---- */

/* A process that has 1000 of the 4000 that three have, of which 2500 are used. 500
 * of the 1000 are granted and not committed yet. */
static void lose_one_of_three(bool closed)
{
	if (closed)
		setenv("GPUSTEWARD_FAIL", "closed", 1);
	broker_listen();
	struct peer p = start();
	gs_client_commit(0, GS_DEVICE, grant(&p, 500, 1), 500);
	peer_expect(&p, GS_COMMIT);
	uint64_t granted = grant(&p, 500, 2);
	p.page->slot[0].cap = 4000;
	p.page->slot[0].used = 2500;
	p.page->slot[0].processes = 3;
	close(p.fd);
	unlink(path);
	AWAIT((gs_client_poll(), !gs_client_connected()));
	gs_client_commit(0, GS_DEVICE, granted, 500);
}

static void rest_is_divided(void)
{
	lose_one_of_three(false);
	CHECK(gs_page->slot[0].cap == 4000 && gs_page->slot[0].used == 3500);
	CHECK(!reserved(reserve_aside(501)) && reserved(reserve_aside(500)));
	gs_client_free(0, GS_DEVICE, 1000); /* it may take its own again */
	CHECK(gs_page->slot[0].used == 2500 && !reserved(reserve_aside(1001)) && reserved(reserve_aside(1000)));
}

/* The others may have what is left, or nothing: the next broker knows. */
static void late_broker_decides(void)
{
	struct request r;

	lose_one_of_three(false);
	pthread_t t = reserve_aside(501);
	broker_listen();
	struct peer p = peer_welcomed(&r, GS_RESUME);
	CHECK(r.hello.committed[0] == 1000);
	r = peer_expect(&p, GS_RESERVE);
	CHECK(r.memory.bytes == 501);
	peer_answer(&p, GS_GRANT, &r, 1);
	CHECK(reserved(t));
}

static void growth_is_frozen(void)
{
	lose_one_of_three(true);
	CHECK(gs_page->slot[0].cap == 4000 && gs_page->slot[0].used == 4000 && !reserved(reserve_aside(1)));
	gs_client_free(0, GS_DEVICE, 300);
	CHECK(!reserved(reserve_aside(301)) && reserved(reserve_aside(300)));
}

static void duty_cycle(void)
{
	struct gs_page last = {0};
	uint64_t ran[3] = {0}, bells = gs_own.bell;

	last.slot[0] = (struct gs_slot){.mode = GS_PAUSE, .share_permille = 300, .inflight_us = 2000, .cap = 5};
	last.slot[1] = (struct gs_slot){.mode = GS_OPEN, .share_permille = 300};
	last.slot[2] = (struct gs_slot){.mode = GS_RUN, .share_permille = 700};
	gs_local_take_over(&last, false, 0);
	CHECK(gs_own.gated && gs_own.slot[0].mode == GS_RUN && gs_own.slot[0].cap == 5 &&
	      gs_own.slot[0].inflight_us == 2000);
	uint64_t began = gs_now(), turn = gs_own.slot[0].turn;
	for (uint64_t at = began; at < began + GS_SECOND; at += GS_MS) {
		CHECK(gs_local_tick(at) > at);
		for (int i = 0; i < 3; i++)
			ran[i] += gs_own.slot[i].mode != GS_PAUSE;
		CHECK(gs_own.slot[0].mode != GS_RUN || gs_own.slot[0].end_ns > at);
	}
	CHECK(ran[0] >= 299 && ran[0] <= 301 && ran[1] == 1000 && ran[2] >= 699 && ran[2] <= 701);
	CHECK(gs_own.slot[0].turn >= turn + 9 && gs_own.bell >= bells + 20);
	gs_local_tick(began + 30 * GS_SECOND);
	CHECK(!gs_own.gated && gs_own.slot[0].mode == GS_OPEN && gs_own.slot[0].cap == 5);
	CHECK(gs_local_tick(began + 31 * GS_SECOND) == GS_NEVER);

	gs_local_take_over(&last, true, 0);
	gs_local_tick(gs_now() + 40 * GS_SECOND);
	CHECK(gs_own.gated && gs_own.slot[0].mode == GS_PAUSE && gs_own.slot[1].mode == GS_PAUSE);
}

/* The next broker resumes it. */
static void who_is_suspended_stays_so(void)
{
	struct gs_page last = {.suspended = 1};

	gs_local_take_over(&last, false, 0);
	CHECK(gs_own.suspended && gs_suspended());
	gs_local_begin(false); /* in the child of a fork */
	CHECK(!gs_suspended());
}

/* A process that had a rate for copies keeps it as long as the duty cycle would last. */
static void rates_of_copies(void)
{
	struct gs_page last = {0};

	last.slot[0] = (struct gs_slot){.mode = GS_OPEN, .link = 1000, .copy = 2000};
	last.slot[1] = (struct gs_slot){.mode = GS_KILL, .link = 3000};
	gs_local_take_over(&last, false, 0);
	uint64_t began = gs_now();
	CHECK(gs_own.slot[0].link == 1000 && gs_own.slot[0].copy == 2000 && !gs_own.slot[1].link && !gs_own.gated);
	uint64_t next = gs_local_tick(began + GS_SECOND);
	CHECK(next > began + 29 * GS_SECOND && next <= began + 30 * GS_SECOND && gs_own.slot[0].link == 1000);
	uint32_t bell = gs_own.bell;
	CHECK(gs_local_tick(began + 30 * GS_SECOND) == GS_NEVER); /* and threads that wait are woken */
	CHECK(!gs_own.slot[0].link && !gs_own.slot[0].copy && gs_own.bell != bell);

	gs_local_take_over(&last, true, 0);
	gs_local_tick(gs_now() + 40 * GS_SECOND);
	CHECK(gs_own.slot[0].link == 1000); /* fail closed: until there is a broker */
	gs_local_begin(false);
	CHECK(!gs_own.slot[0].link && !gs_own.slot[0].copy);
}

/* The same with a broker that really goes away. */
static void rates_outlive_the_broker(void)
{
	broker_listen();
	struct peer p = start();
	p.page->slot[0].link = 1000;
	CHECK(gs_page->slot[0].link == 1000);
	close(p.fd);
	AWAIT((gs_client_poll(), !gs_client_connected()));
	CHECK(gs_page == &gs_own && gs_own.slot[0].link == 1000);
	CHECK(gs_local_tick(gs_now() + 31 * GS_SECOND) == GS_NEVER && !gs_own.slot[0].link);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(lost_in_reserve),
		TEST(again_without_the_driver),
		TEST(declared_late),
		TEST(changed_meanwhile),
		TEST(commit_after_resume),
		TEST(books_differ),
		TEST(unanswered),
		TEST(garbage_in_session),
		TEST(granted_less),
		TEST(revoked),
		TEST(heart_stopped),
		TEST(pinged),
		TEST(closed_under),
		TEST(rest_is_divided),
		TEST(late_broker_decides),
		TEST(growth_is_frozen),
		TEST(duty_cycle),
		TEST(who_is_suspended_stays_so),
		TEST(rates_of_copies),
		TEST(rates_outlive_the_broker),
	};

	return RUN_ALL(tests, argc, argv);
}

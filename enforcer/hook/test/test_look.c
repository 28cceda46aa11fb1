/* A look at what the tenant has, in a process without a session: what the broker is
 * asked, and what happens to a process whose broker does not answer. The clock is
 * the tests' own. */
#include "test_broker.h"

#define GIB (1ull << 30)

static const CUuuid A = {.bytes = "aaaaaaaaaaaaaaaa"}, B = {.bytes = "bbbbbbbbbbbbbbbb"};

struct answer {
	bool capped;
	uint64_t cap, used;
};

static struct answer look(const CUuuid *uuid)
{
	struct answer a;

	a.capped = gs_client_look(uuid, &a.cap, &a.used);
	return a;
}

static void *look_aside(void *of)
{
	static struct answer a;

	a = look(of);
	return &a;
}

static struct answer looked(pthread_t t)
{
	void *a;

	CHECK(pthread_join(t, &a) == 0);
	return *(struct answer *)a;
}

static pthread_t looking(const CUuuid *uuid)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, look_aside, (void *)uuid) == 0);
	return t;
}

/* No connection is left that was not accepted. */
static bool quiet(void)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};

	return poll(&p, 1, 0) == 0;
}

static struct peer peer_shows(const CUuuid *uuid, uint64_t cap, uint64_t used)
{
	struct peer p = peer_accept();
	struct request r = peer_expect(&p, GS_HELLO);

	CHECK(r.hello.gpus == 1 && !memcmp(r.hello.uuid[0], uuid, sizeof(*uuid)) && !r.hello.leases);
	CHECK(r.hello.pid == (uint32_t)getpid() && !strcmp(r.hello.tenant, "blue"));
	p.page->slot[0].cap = cap;
	p.page->slot[0].used = used;
	peer_welcome(&p, r.header.seq);
	return p;
}

static void seen(void)
{
	struct request r;

	setenv("GPUSTEWARD_TENANT", "blue", 1);
	broker_listen();
	int before = open_descriptors();
	pthread_t t = looking(&A);
	struct peer p = peer_shows(&A, 5 * GIB, 2 * GIB);
	struct answer a = looked(t);
	CHECK(a.capped && a.cap == 5 * GIB && a.used == 2 * GIB);
	CHECK(!peer_read(&p, &r)); /* it hung up */
	close(p.fd);
	close(p.memfd);
	CHECK(open_descriptors() == before);
	a = look(&A); /* the same for a second */
	CHECK(a.capped && a.cap == 5 * GIB && quiet());
	t = looking(&B);
	peer_shows(&B, 0, 3 * GIB);
	CHECK(!looked(t).capped);
	CHECK(look(&A).capped && quiet());
	clock_pass(1100 * GS_MS);
	t = looking(&A);
	peer_shows(&A, 5 * GIB, 4 * GIB);
	CHECK(looked(t).used == 4 * GIB);
}

/* There are more GPUs than places: the oldest answer goes. */
static void many(void)
{
	setenv("GPUSTEWARD_TENANT", "blue", 1);
	broker_listen();
	for (unsigned i = 0; i <= GS_GPUS; i++) {
		CUuuid u = {.bytes = {(char)(i + 1)}};
		pthread_t t = looking(&u);
		peer_shows(&u, (i + 1) * GIB, 0);
		CHECK(looked(t).cap == (i + 1) * GIB);
	}
	CHECK(look(&(CUuuid){.bytes = {2}}).cap == 2 * GIB && quiet());
}

/* It waits for 250 ms. Then neither the same GPU nor another one costs more, for 5 s. */
static void silent(void)
{
	setenv("GPUSTEWARD_TENANT", "blue", 1);
	broker_listen();
	pthread_t t = looking(&A);
	struct peer p = peer_accept();
	struct request r = peer_expect(&p, GS_HELLO);
	clock_pass(GS_CONNECT - 1); /* just in time */
	clock_seen();
	p.page->slot[0].cap = GIB;
	peer_welcome(&p, r.header.seq);
	CHECK(looked(t).capped);
	clock_pass(1100 * GS_MS);
	t = looking(&A);
	p = peer_accept();
	peer_expect(&p, GS_HELLO);
	clock_pass(GS_CONNECT);
	CHECK(!looked(t).capped);
	clock_pass(4900 * GS_MS);
	for (int i = 0; i < 100; i++)
		CHECK(!look(&A).capped && !look(&B).capped);
	CHECK(quiet());
	clock_pass(1100 * GS_MS);
	t = looking(&B);
	peer_shows(&B, GIB, 0);
	CHECK(looked(t).capped);
}

static void absent(void)
{
	setenv("GPUSTEWARD_MEMORY_LIMIT", "3g", 1);
	struct answer a = look(&A);
	CHECK(a.capped && a.cap == 3 * GIB && a.used == 0);
	clock_pass(1100 * GS_MS);
	setenv("GPUSTEWARD_TENANT", "blue", 1); /* too late: read */
	broker_listen();
	pthread_t t = looking(&A);
	struct peer p = peer_accept();
	struct request r = peer_expect(&p, GS_HELLO);
	CHECK(!*r.hello.tenant);
	struct gs_err e = {.code = GS_E_TENANT, .type = GS_HELLO, .text = "who?"};
	peer_send(&p, GS_ERR, r.header.seq, &e, sizeof(e), -1);
	a = looked(t);
	CHECK(a.capped && a.cap == 3 * GIB); /* refused: as without a broker */
}

/* A child has no thread that could end the look of its parent's. */
static void forked(void)
{
	int status;

	setenv("GPUSTEWARD_TENANT", "blue", 1);
	broker_listen();
	pthread_t t = looking(&A);
	struct peer p = peer_accept();
	struct request r = peer_expect(&p, GS_HELLO); /* it waits */
	pid_t child = fork();
	if (child == 0) {
		alarm(100);
		_exit(look(&B).cap == 7 * GIB ? 0 : 1);
	}
	struct peer of = peer_accept();
	struct request other = peer_expect(&of, GS_HELLO);
	CHECK(other.hello.pid == (uint32_t)child);
	of.page->slot[0].cap = 7 * GIB;
	peer_welcome(&of, other.header.seq);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	peer_welcome(&p, r.header.seq);
	pthread_join(t, NULL);
}

/* A process that looked before it used CUDA then has a session as others do. */
static void then_cuda(void)
{
	setenv("GPUSTEWARD_TENANT", "blue", 1);
	broker_listen();
	pthread_t t = looking(&A);
	peer_shows(&A, GIB, 0);
	CHECK(looked(t).capped);
	struct peer p = start();
	CHECK(gs_gpu_of_uuid(&A) == 0 && gs_gpu_of_uuid(&B) == 1 && gs_gpu_of_uuid(&(CUuuid){.bytes = {1}}) == -1);
	close(p.fd);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(seen),
		TEST(many),
		TEST(silent),
		TEST(absent),
		TEST(forked),
		TEST(then_cuda),
	};

	clock_stop();
	return RUN_ALL(tests, argc, argv);
}

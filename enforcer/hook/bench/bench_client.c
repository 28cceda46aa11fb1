/* The round trip of RESERVE: client, socket, a broker that only answers, and
 * back. And RESERVE with COMMIT and FREE, which have no answers.
 *
 *	make build/bench_client && build/bench_client */
#include "test_broker.h"

#define ROUNDS 20000

static void *answer_all(void *peer)
{
	struct peer *p = peer;
	struct request r;

	while (peer_read(p, &r)) {
		if (r.header.type == GS_RESERVE)
			peer_answer(p, GS_GRANT, &r, 1);
	}
	return NULL;
}

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void report(const char *what, uint64_t *ns)
{
	qsort(ns, ROUNDS, sizeof(*ns), ascending);
	printf("%-24s median %.1f us, 99 %% %.1f us\n", what, (double)ns[ROUNDS / 2] / 1e3,
	       (double)ns[ROUNDS / 100 * 99] / 1e3);
	fflush(stdout); /* what the test keeps is no leak: it leaves without that */
}

int main(void)
{
	static uint64_t reserve[ROUNDS], all[ROUNDS];
	pthread_t t;

	CHECK(mkdtemp(directory));
	begin_test();
	broker_listen();
	struct peer p = start();
	CHECK(pthread_create(&t, NULL, answer_all, &p) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t reservation, began = gs_now();
		CHECK(gs_client_reserve(0, GS_DEVICE, 4096, &reservation) == GS_GRANT);
		reserve[i] = gs_now() - began;
		gs_client_commit(0, GS_DEVICE, reservation, 4096);
		gs_client_free(0, GS_DEVICE, 4096);
		all[i] = gs_now() - began;
	}
	CHECK(gs_client_connected());
	report("reserve", reserve);
	report("reserve, commit, free", all);
	unlink(path);
	return rmdir(directory) != 0;
}

/* The predictor: bursts, the gaps between them, and what a pause does to both. */
#include <stdio.h>
#include <stdlib.h>

#include "predict.h"

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); exit(1); } } while (0)
#define MS 1000000ull

static uint64_t burst, window;

/* n bursts of five kernels of 1 ms each, with gaps of 20 ms. */
static uint64_t steady(struct gs_predict *p, uint64_t now, int n)
{
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < 5; k++, now += MS)
			gs_predict_busy(p, now, now + MS, false);
		now += 20 * MS;
	}
	return now;
}

int main(void)
{
	struct gs_predict p = { 0 };
	uint64_t now = steady(&p, 1000 * MS, 4);

	gs_predict_next(&p, now, false, &burst, &window);
	CHECK(burst == 0 && window == 0); /* three bursts have ended: too few to tell */
	now = steady(&p, now, 10);
	gs_predict_next(&p, now, false, &burst, &window);
	CHECK(burst == 5 * MS && window == 20 * MS);

	/* What is left of one under way. */
	gs_predict_busy(&p, now, now + 2 * MS, false);
	gs_predict_next(&p, now + 2 * MS, false, &burst, &window);
	CHECK(burst == 3 * MS && window == 20 * MS);

	/* A pause of ours is no gap of the program's. */
	gs_predict_next(&p, now + 50 * MS, true, &burst, &window);
	CHECK(burst == 3 * MS);
	gs_predict_busy(&p, now + 52 * MS, now + 55 * MS, true);
	now = steady(&p, now + 75 * MS, 1);
	gs_predict_next(&p, now, false, &burst, &window);
	CHECK(burst == 5 * MS && window == 20 * MS);

	/* Streams that overlap keep the GPU busy once. */
	struct gs_predict q = { 0 };
	for (int i = 0; i < 8; i++, now += 10 * MS) {
		gs_predict_busy(&q, now, now + 2 * MS, false);
		gs_predict_busy(&q, now + MS, now + 3 * MS, false);
	}
	gs_predict_next(&q, now, false, &burst, &window);
	CHECK(burst == 3 * MS && window == 7 * MS);

	/* Bursts that do not agree foretell nothing, even if their median is steady. */
	struct gs_predict r = { 0 };
	for (int i = 0; i < 40; i++, now += 50 * MS)
		gs_predict_busy(&r, now, now + (1 + (uint64_t)i % 7) * MS, false);
	gs_predict_next(&r, now, false, &burst, &window);
	CHECK(burst == 0);

	/* Old ones are forgotten. */
	now = steady(&r, now, GS_BURSTS + 2);
	gs_predict_next(&r, now, false, &burst, &window);
	CHECK(burst == 5 * MS && window == 20 * MS);
	return 0;
}

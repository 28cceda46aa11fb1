/* The bucket, by its own clock. */
#define _GNU_SOURCE
#include "base/bucket.h"
#include "run.h"

#define SECOND 1000000000ull
#define MIB (1ull << 20)

/* The time at which a copy may begin that comes now, and alone. */
static uint64_t begins(struct gs_bucket *b, uint64_t bytes, uint64_t rate, uint64_t now)
{
	gs_bucket_pour(b, rate, now);
	uint64_t place = gs_bucket_take(b, bytes), left;
	while ((left = gs_bucket_left(b, place))) {
		now += left;
		gs_bucket_pour(b, rate, now);
	}
	return now;
}

/* Makes copies of these bytes, one after the other, until the time is over. Returns
 * the bytes a second until the next one could begin. */
static double rate_of(const uint64_t *sizes, unsigned n, uint64_t rate, uint64_t step)
{
	struct gs_bucket b = {0};
	uint64_t from = 77 * SECOND, now = from, bytes = 0;

	for (unsigned i = 0; now < from + 2 * SECOND; i++) {
		now = begins(&b, sizes[i % n], rate, now) + step;
		bytes += sizes[i % n];
	}
	now = begins(&b, 0, rate, now);
	return (double)bytes / ((double)(now - from) / SECOND);
}

static void a_rate_holds(void)
{
	static const struct { uint64_t sizes[3]; unsigned n; uint64_t rate, step; } rows[] = {
		{{4096}, 1, 100 * MIB, 0},
		{{1}, 1, 1000, 0},
		{{7, 11}, 2, 3 * MIB, 40}, /* parts of a byte, with looks all the time */
		{{MIB}, 1, 1000 * MIB, 3000},
		{{4096, MIB, 64 * MIB}, 3, 1000 * MIB, 1000},
		{{64 * MIB}, 1, 100 * MIB, 0},
		{{4096, MIB, 64 * MIB}, 3, 500000 * MIB, 0},
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		double part = rate_of(rows[i].sizes, rows[i].n, rows[i].rate, rows[i].step) / (double)rows[i].rate;
		if (part < 0.99 || part > 1.011) /* 20 ms are kept */
			dprintf(2, "row %u: %f of the rate\n", i, part);
		CHECK(part >= 0.99 && part <= 1.011);
	}
}

static void little_is_kept(void)
{
	struct gs_bucket b = {0};

	CHECK(begins(&b, 1000, 1000000, SECOND) == SECOND);
	CHECK(begins(&b, 20000, 1000000, 100 * SECOND) == 100 * SECOND); /* 20 ms, although it had 99 s */
	CHECK(begins(&b, 1, 1000000, 100 * SECOND) == 100 * SECOND);
	CHECK(begins(&b, 1, 1000000, 100 * SECOND) == 100 * SECOND + 1000);
}

static void one_copy_is_never_too_large(void)
{
	struct gs_bucket b = {0};

	CHECK(begins(&b, 64 * MIB, MIB, SECOND) == SECOND);
	CHECK(begins(&b, 1, MIB, SECOND) == 65 * SECOND);
}

static void first_come_first_served(void)
{
	struct gs_bucket b = {0};

	gs_bucket_pour(&b, 1000, SECOND);
	uint64_t first = gs_bucket_take(&b, 100), second = gs_bucket_take(&b, 10), third = gs_bucket_take(&b, 1);
	CHECK(gs_bucket_left(&b, first) == 0);
	CHECK(gs_bucket_left(&b, second) == SECOND / 10 && gs_bucket_left(&b, third) == SECOND / 10 + SECOND / 100);
	gs_bucket_return(&b, 10); /* the second one is not made */
	CHECK(gs_bucket_left(&b, third) == SECOND / 10);
}

static void a_debt_is_paid_at_the_rate_that_holds(void)
{
	struct gs_bucket b = {0};

	gs_bucket_pour(&b, 1000, SECOND);
	gs_bucket_take(&b, 1000);
	uint64_t place = gs_bucket_take(&b, 1);
	gs_bucket_pour(&b, 100, SECOND + SECOND / 2); /* half is paid */
	CHECK(gs_bucket_left(&b, place) == 5 * SECOND);
	gs_bucket_pour(&b, 5000, SECOND + SECOND / 2);
	CHECK(gs_bucket_left(&b, place) == SECOND / 10);
}

static void nothing_overflows(void)
{
	struct gs_bucket b = {0};

	gs_bucket_pour(&b, UINT64_MAX / 100, 1);
	gs_bucket_take(&b, 1ull << 48);
	uint64_t place = gs_bucket_take(&b, 1);
	gs_bucket_pour(&b, 1, UINT64_MAX / 2);
	CHECK(gs_bucket_left(&b, place) == 0);
	gs_bucket_take(&b, 1ull << 62);
	CHECK(gs_bucket_left(&b, gs_bucket_take(&b, 1)) > UINT64_MAX / 2);
}

int main(void)
{
	a_rate_holds();
	little_is_kept();
	one_copy_is_never_too_large();
	first_come_first_served();
	a_debt_is_paid_at_the_rate_that_holds();
	nothing_overflows();
	return 0;
}

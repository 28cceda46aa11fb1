/* Copies and their rates, against a driver and a broker that do what the test says. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sys/syscall.h>

#include "fake.h"

#define KIB 1024ull
#define MIB (1ull << 20)

/* ---- time ---- */

/* The clock stands, if it is not 0. A copy that waits then moves it on to where its wait would
 * end. While the clock goes, only the bell ends a long wait. */
static _Atomic uint64_t stopped_at;
static _Thread_local bool copies;
static _Atomic uint64_t long_wait; /* the last long wait of a copy, ns */

uint64_t gs_now(void)
{
	uint64_t at = atomic_load(&stopped_at);
	struct timespec t;

	if (at)
		return at;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * GS_SECOND + (uint64_t)t.tv_nsec;
}

static void wait_for(void *word, int operation, uint32_t seen, const struct timespec *t)
{
	syscall(SYS_futex, word, operation, seen, t, NULL, 0);
}

static struct timespec after(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / GS_SECOND), (long)(ns % GS_SECOND)};
}

void gs_bell_wait(struct gs_page *page, uint32_t seen, uint64_t ns)
{
	struct timespec t = after(ns);

	if (!copies) {
		wait_for(&page->bell, FUTEX_WAIT, seen, &t);
	} else if (atomic_load(&stopped_at)) {
		atomic_fetch_add(&stopped_at, ns);
	} else {
		if (ns >= GS_SECOND / 10)
			atomic_store(&long_wait, ns);
		wait_for(&page->bell, FUTEX_WAIT, seen, ns < GS_SECOND / 10 ? &t : NULL);
	}
}

void gs_bell_ring(struct gs_page *page) { wait_for(&page->bell, FUTEX_WAKE, INT32_MAX, NULL); }
void gs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
	struct timespec t = after(ns);

	wait_for(word, FUTEX_WAIT_PRIVATE, seen, &t);
}
void gs_futex_wake(_Atomic uint32_t *word, int most) { wait_for(word, FUTEX_WAKE_PRIVATE, (uint32_t)most, NULL); }

/* ---- copies ---- */

/* As the wrapper does it. */
static void copy(uintptr_t stream, uint64_t bytes, enum gs_way way, CUresult r)
{
	struct gs_copy c;

	if (gs_copy_enter(&c, (CUstream)stream, bytes))
		gs_copy_wait(&c, way);
	gs_copy_leave(&c, r);
}

static void rates(unsigned gpu, uint64_t link, uint64_t within)
{
	__atomic_store_n(&fake_page->slot[gpu].link, link, __ATOMIC_RELAXED);
	__atomic_store_n(&fake_page->slot[gpu].copy, within, __ATOMIC_RELAXED);
}

static void ring(void)
{
	__atomic_fetch_add(&fake_page->bell, 1, __ATOMIC_RELEASE);
	gs_bell_ring(fake_page);
}

static uint64_t sum(unsigned gpu)
{
	pthread_mutex_lock(&gs_gates[gpu].lock);
	uint64_t n = gs_copies_sum(&gs_gates[gpu]);
	pthread_mutex_unlock(&gs_gates[gpu].lock);
	return n;
}

/* A copy waits in the bucket, or has taken from it. */
static uint64_t asked(enum gs_way way)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	uint64_t n = gs_gates[0].bucket[way].asked;
	pthread_mutex_unlock(&gs_gates[0].lock);
	return n;
}

static _Atomic uint64_t moved, over_at;

static void *copy_many(void *of)
{
	const uint64_t *sizes = of;

	copies = true;
	for (unsigned i = 0; gs_now() < over_at; i++) {
		copy(10, sizes[i % 3], GS_LINK, 0);
		atomic_fetch_add(&moved, sizes[i % 3]);
	}
	return NULL;
}

/* Threads copy for 2 s together. Then the test waits for what they took, so that a large copy
 * counts with the time that it stands for. */
static void hold(unsigned threads, const uint64_t *sizes, uint64_t rate)
{
	uint64_t from = gs_now();
	pthread_t t[4];

	rates(0, rate, 0);
	stopped_at = from;
	over_at = from + 2 * GS_SECOND;
	for (unsigned i = 0; i < threads; i++)
		CHECK(!pthread_create(&t[i], NULL, copy_many, (void *)sizes));
	for (unsigned i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	copies = true;
	copy(10, 1, GS_LINK, 0);
	double part = (double)moved / ((double)(gs_now() - from) / 1e9) / (double)rate;
	if (part < 0.97 || part > 1.03)
		dprintf(2, "%.4f of the rate\n", part);
	CHECK(part >= 0.97 && part <= 1.03 && sum(0) == moved + 1);
}

static void a_rate_holds_for_all_sizes(void) { hold(1, (const uint64_t[]){4 * KIB, MIB, 64 * MIB}, 500 * MIB); }
static void a_rate_holds_for_small_copies(void) { hold(1, (const uint64_t[]){4 * KIB, 4 * KIB, 4 * KIB}, 100 * MIB); }
static void threads_share_one_bucket(void) { hold(2, (const uint64_t[]){4 * KIB, MIB, 16 * KIB}, 200 * MIB); }

static void without_a_rate_nothing_is_shared(void)
{
	for (int i = 0; i < 1000; i++)
		copy(10, MIB, GS_LINK, 0);
	CHECK(gs_self->copied == 1000 * MIB && sum(0) == 1000 * MIB);
	CHECK(!asked(GS_LINK) && !asked(GS_WITHIN) && !gs_gates[0].usage.overhead_ns);
}

static void the_ways_have_a_rate_each(void)
{
	rates(0, 0, MIB);
	for (int i = 0; i < 10; i++)
		copy(10, 64 * MIB, GS_LINK, 0);
	CHECK(!asked(GS_LINK) && !asked(GS_WITHIN));
	copy(10, 64 * MIB, GS_WITHIN, 0);
	CHECK(asked(GS_WITHIN) == 64 * MIB);
}

static void *copy_one(void *bytes)
{
	copies = true;
	copy(10, (uint64_t)(uintptr_t)bytes, GS_LINK, 0);
	atomic_fetch_add(&moved, 1);
	return NULL;
}

static pthread_t copying(uint64_t bytes)
{
	pthread_t t;

	CHECK(!pthread_create(&t, NULL, copy_one, (void *)(uintptr_t)bytes));
	return t;
}

/* For a second the helper sends no message about copies alone. */
static void without_a_word(void)
{
	pthread_mutex_lock(&gs_gates[0].lock);
	gs_gates[0].told_ns = gs_now();
	pthread_mutex_unlock(&gs_gates[0].lock);
}

/* A thread at a bucket that never fills. */
static pthread_t stuck(void)
{
	without_a_word();
	rates(0, 1000, 0);
	copy(10, 64 * MIB, GS_LINK, 0);
	pthread_t t = copying(1);
	AWAIT(asked(GS_LINK) == 64 * MIB + 1);
	CHECK(!moved);
	return t;
}

static void freed(pthread_t t)
{
	pthread_join(t, NULL);
	CHECK(moved == 1);
}

static void a_rate_of_none_frees_whoever_waits(void)
{
	pthread_t t = stuck();

	rates(0, 0, 0);
	ring();
	freed(t);
	pthread_mutex_lock(&gs_gates[0].lock);
	struct gs_bucket *b = &gs_gates[0].bucket[GS_LINK];
	CHECK(b->asked - b->given >= 63 * MIB && b->asked - b->given <= 64 * MIB); /* what was not taken is put back */
	CHECK(gs_gates[0].usage.overhead_ns > 0);
	pthread_mutex_unlock(&gs_gates[0].lock);
}

static void who_waits_looks_for_a_new_rate(void)
{
	pthread_t t = stuck();

	AWAIT(long_wait);
	CHECK(long_wait <= GS_SECOND); /* then it would look */
	rates(0, 1000000 * MIB, 0);
	ring();
	freed(t);
}

static void a_lowered_rate_holds_for_whoever_waits(void)
{
	rates(0, 128 * MIB, 0);
	copy(10, 64 * MIB, GS_LINK, 0);
	pthread_t t = copying(1);
	AWAIT(long_wait);
	CHECK(long_wait <= GS_SECOND / 2);
	rates(0, 1000, 0);
	ring();
	AWAIT(long_wait == GS_SECOND); /* at the old rate it would have passed by now */
	CHECK(!moved);
	rates(0, 0, 0);
	ring();
	freed(t);
}

static void a_revoked_page_holds_nobody(void)
{
	pthread_t t = stuck();

	fake_mode(0, GS_KILL, 0, 0);
	freed(t);
	copy(10, 64 * MIB, GS_LINK, 0);
}

/* The page is another one: the broker is lost, and its rates are over. */
static void another_page_frees_whoever_waits(void)
{
	static struct gs_page own;
	pthread_t t = stuck();

	atomic_store(&gs_page, &own);
	ring();
	freed(t);
}

static void a_pause_does_not_hold_copies(void)
{
	fake_mode(0, GS_PAUSE, 1, 0);
	copy(10, MIB, GS_LINK, 0);
	CHECK(sum(0) == MIB);
}

static void a_captured_copy_is_not_made(void)
{
	rates(0, 1000, 1000);
	gs_gate_capture((CUstream)10, true);
	fake[10].captures = true;
	for (int i = 0; i < 10; i++)
		copy(10, 64 * MIB, GS_LINK, 0);
	CHECK(!asked(GS_LINK) && !sum(0));
	copy(11, MIB, GS_LINK, 0); /* another stream does not capture */
	copy(0, 1, GS_WITHIN, 0); /* nor does the legacy one ever */
	CHECK(asked(GS_LINK) == MIB && asked(GS_WITHIN) == 1 && sum(0) == MIB + 1);
	fake[10].captures = false;
	gs_gate_capture((CUstream)10, false);
}

static void what_is_refused_is_not_taken(void)
{
	rates(0, 1000, 0);
	for (int i = 0; i < 10; i++)
		copy(10, 64 * MIB, GS_LINK, 1);
	copy(10, SIZE_MAX, GS_LINK, 1);
	copy(10, 0, GS_LINK, 0);
	CHECK(!sum(0) && asked(GS_LINK) == 640 * MIB && gs_gates[0].bucket[GS_LINK].given >= 640 * MIB);
	copy(10, 1, GS_LINK, 0);
}

static void bytes_are_of_the_gpu_of_the_context(void)
{
	gs_gate_context_created((CUcontext)0x100, 0);
	gs_gate_context_created((CUcontext)0x200, 1);
	rates(1, 1000, 0);
	copy(0, 5, GS_LINK, 0);
	fake_context = (CUcontext)0x200;
	copy(0, 7, GS_LINK, 0);
	CHECK(gs_gates[1].bucket[GS_LINK].asked == 7 && !asked(GS_LINK));
	fake_context = (CUcontext)0x100;
	copy(0, 11, GS_LINK, 0);
	CHECK(sum(0) == 16 && sum(1) == 7);
	fake_context = NULL; /* the driver's affair */
	copy(0, 13, GS_LINK, 201);
	CHECK(sum(0) == 16 && sum(1) == 7);
}

static void a_thread_that_ends_leaves_its_bytes(void)
{
	for (int i = 0; i < 10; i++)
		pthread_join(copying(100), NULL);
	CHECK(sum(0) == 1000 && gs_gates[0].copied == 1000);
}

static void a_yield_tells_of_copies(void)
{
	without_a_word();
	fake_mode(0, GS_RUN, 3, 0);
	fake_launch(10, false, NULL); /* the turn does not end while that is under way */
	unsigned since = fake_says;
	const struct fake_word *w;
	copy(10, 4096, GS_LINK, 0);
	fake_finish(10);
	AWAIT((w = told(GS_YIELD, GS_IDLE, since)));
	CHECK(fake_copied == 4096 && w->usage.copied == 4096 && !fake_usages);
}

/* A tenant that only copies has no turns to end. */
static void copies_are_told_of_by_themselves(void)
{
	copy(10, 4096, GS_LINK, 0);
	const struct fake_word *w;
	AWAIT((w = told(GS_USAGE, 0, 0)));
	const struct gs_usage *u = &w->usage;
	CHECK(fake_copied == 4096 && fake_usages == 1);
	CHECK(!u->turn && !u->launched && !u->busy_ns && u->gpu == 0 && u->copied == 4096);
	copy(10, 100, GS_LINK, 0);
	AWAIT(fake_copied == 4196 && fake_usages == 2);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_rate_holds_for_all_sizes),
		TEST(a_rate_holds_for_small_copies),
		TEST(threads_share_one_bucket),
		TEST(without_a_rate_nothing_is_shared),
		TEST(the_ways_have_a_rate_each),
		TEST(a_rate_of_none_frees_whoever_waits),
		TEST(who_waits_looks_for_a_new_rate),
		TEST(a_lowered_rate_holds_for_whoever_waits),
		TEST(a_revoked_page_holds_nobody),
		TEST(another_page_frees_whoever_waits),
		TEST(a_pause_does_not_hold_copies),
		TEST(a_captured_copy_is_not_made),
		TEST(what_is_refused_is_not_taken),
		TEST(bytes_are_of_the_gpu_of_the_context),
		TEST(a_thread_that_ends_leaves_its_bytes),
		TEST(a_yield_tells_of_copies),
		TEST(copies_are_told_of_by_themselves),
	};

	return RUN_TESTS(tests, argc, argv, fake_begin_seated);
}

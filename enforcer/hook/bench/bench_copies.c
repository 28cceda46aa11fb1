/* What the hook adds to a copy, ns: entering and leaving it, around a driver
 * that does nothing, less the same loop without that. The figure is the median of
 * the repetitions. Threads are pinned, each to a CPU of its own.
 *
 *   bench_copies [repetitions]
 *
 * free: no rate, as in nearly all programs. rated: a rate that is never reached,
 * so that only the bucket costs something. */
#define _GNU_SOURCE
#include <sched.h>

#include "fake.h"

#define COPIES 1000000
#define THREADS 4

static pthread_barrier_t together;

static __attribute__((noinline)) CUresult driver(void)
{
	__asm__ volatile("");
	return 0;
}

static double loop(bool through)
{
	uint64_t from = gs_now();

	for (int i = 0; i < COPIES; i++) {
		struct gs_copy c;
		if (through && gs_copy_enter(&c, (CUstream)10, 4096))
			gs_copy_wait(&c, GS_LINK);
		CUresult r = driver();
		if (through)
			gs_copy_leave(&c, r);
	}
	return (double)(gs_now() - from) / COPIES;
}

static void *work(void *arg)
{
	double *ns = arg, plain;
	static _Atomic unsigned number;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(number++ % (unsigned)sysconf(_SC_NPROCESSORS_ONLN), &one);
	pthread_setaffinity_np(pthread_self(), sizeof one, &one);
	struct gs_copy c; /* so that the thread is known */
	gs_copy_enter(&c, (CUstream)10, 0);
	pthread_barrier_wait(&together);
	plain = loop(false);
	pthread_barrier_wait(&together);
	*ns = loop(true) - plain;
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

static void measure(const char *what, unsigned threads, int repetitions)
{
	double *ns = calloc((size_t)repetitions, sizeof *ns);

	pthread_barrier_init(&together, NULL, threads);
	for (int i = 0; i < repetitions; i++) {
		pthread_t t[THREADS];
		double each[THREADS];
		for (unsigned k = 0; k < threads; k++)
			CHECK(!pthread_create(&t[k], NULL, work, &each[k]));
		for (unsigned k = 0; k < threads; k++) {
			pthread_join(t[k], NULL);
			ns[i] += each[k] / threads;
		}
	}
	pthread_barrier_destroy(&together);
	qsort(ns, (size_t)repetitions, sizeof *ns, compare);
	printf("%s copies threads=%u median=%.2f ns p90=%.2f ns of %d x %d copies\n", what, threads,
	       ns[repetitions / 2],
	       ns[repetitions * 9 / 10], repetitions, COPIES);
	free(ns);
}

int main(int argc, char **argv)
{
	int repetitions = argc > 1 ? atoi(argv[1]) : 21;

	if (repetitions < 1)
		return 2;
	fake_begin();
	gs_helper_start();
	measure("free", 1, repetitions);
	measure("free", THREADS, repetitions);
	fake_page->slot[0].link = 1ull << 60;
	measure("rated", 1, repetitions);
	measure("rated", THREADS, repetitions);
	return 0;
}

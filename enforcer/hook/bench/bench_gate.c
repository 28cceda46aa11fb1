/* What the gate adds to a launch, ns: entering and leaving it, around a driver
 * that does nothing, less the same loop without the gate. Threads are pinned,
 * each to a CPU of its own. The figure is the median of the repetitions.
 *
 *   bench_gate [repetitions]
 *
 * open: no other tenant on the GPU, for which the goal is 5 ns, or 15 with 4
 * threads. traced: the same with a trace, for which the goal is 20 ns more. run: a
 * turn of ours among others, with the cost of markers in the fake driver. */
#define _GNU_SOURCE
#include <sched.h>

#include "fake.h"
#include "trace/crash.h"
#include "trace/trace.h"

#define LAUNCHES 1000000
#define THREADS 4

static pthread_barrier_t together;

static __attribute__((noinline)) CUresult driver(void)
{
	__asm__ volatile("");
	return 0;
}

static double loop(uintptr_t stream, bool through)
{
	uint64_t from = gs_now();

	for (int i = 0; i < LAUNCHES; i++) {
		struct gs_launch l;
		if (through) {
			gs_gate_enter(&l, (CUstream)stream, false, NULL, gs_threads);
			gs_note(GS_EVENT_LAUNCH, gs_note_id(&l));
		}
		CUresult r = driver();
		if (through)
			gs_gate_leave(&l, r);
	}
	return (double)(gs_now() - from) / LAUNCHES;
}

struct worker {
	pthread_t thread;
	uintptr_t number;
	double plain, ns;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(w->number % (unsigned)sysconf(_SC_NPROCESSORS_ONLN), &one);
	pthread_setaffinity_np(pthread_self(), sizeof one, &one);
	w->plain = loop(10 + w->number, false);
	struct gs_launch l; /* so that the thread and its stream are known */
	gs_gate_enter(&l, (CUstream)(10 + w->number), false, NULL, gs_threads);
	gs_gate_leave(&l, 0);
	pthread_barrier_wait(&together);
	w->ns = loop(10 + w->number, true) - w->plain;
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
		struct worker w[THREADS];
		for (unsigned t = 0; t < threads; t++) {
			w[t].number = t;
			CHECK(!pthread_create(&w[t].thread, NULL, work, &w[t]));
		}
		for (unsigned t = 0; t < threads; t++) {
			pthread_join(w[t].thread, NULL);
			ns[i] += w[t].ns / threads;
		}
	}
	pthread_barrier_destroy(&together);
	qsort(ns, (size_t)repetitions, sizeof *ns, compare);
	printf("%s threads=%u median=%.2f ns p90=%.2f ns of %d x %d launches\n", what, threads, ns[repetitions / 2],
	       ns[repetitions * 9 / 10], repetitions, LAUNCHES);
	free(ns);
}

int main(int argc, char **argv)
{
	int repetitions = argc > 1 ? atoi(argv[1]) : 21;

	if (repetitions < 1)
		return 2;
	fake_begin();
	fake_seat();
	fake_instant = true;
	gs_helper_start();
	measure("open", 1, repetitions);
	measure("open", THREADS, repetitions);
	gs_trace_begin(calloc(1, sizeof(struct gs_traced)));
	measure("traced", 1, repetitions);
	measure("traced", THREADS, repetitions);
	gs_trace_begin(NULL);
	fake_mode(0, GS_RUN, 1, 0);
	measure("run", 1, repetitions);
	measure("run", THREADS, repetitions);
	return 0;
}

/* What a call that lets a stream wait for an event costs more than the driver's own,
 * ns: for the streams of collectives, which wait before each of them. The goal is 20
 * ns. The others cost an event of the driver besides, 200 times a second at most. The
 * figure is the median of 21 repetitions. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "gate/nccl.h"
#include "wrappers/wrapped.h"

#define CALLS 10000000
#define REPETITIONS 21

static CUresult driver(CUstream s, CUevent e, unsigned flags)
{
	(void)s, (void)e, (void)flags;
	__asm__ volatile("");
	return 0;
}

static double loop(CUresult (*wait)(CUstream, CUevent, unsigned), CUstream s)
{
	uint64_t from = gs_now();

	for (int i = 0; i < CALLS; i++)
		wait(s, NULL, 0);
	return (double)(gs_now() - from) / CALLS;
}

static int compare(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

int main(void)
{
	CUstream s = (CUstream)10;
	double ns[REPETITIONS];

	gs_real.cuStreamWaitEvent = driver;
	atomic_store(&gs_nccl_stream, s);
	atomic_store(&gs_nccl_unmarked, &ns);
	for (int i = 0; i < REPETITIONS; i++)
		ns[i] = loop(cuStreamWaitEvent, s) - loop(driver, s);
	qsort(ns, REPETITIONS, sizeof *ns, compare);
	printf("wait median=%.2f ns p90=%.2f ns of %d calls\n", ns[REPETITIONS / 2], ns[REPETITIONS * 9 / 10], CALLS);
	return 0;
}

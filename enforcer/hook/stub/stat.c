/* What the simulated GPUs of GS_STUB_FILE do, which no program under test can
 * distort. Each line:
 *   NS GPU PID BUSY_NS USED_BYTES PEAK_BYTES
 * The line of the GPU itself has pid 0, and the time lost to switches as BUSY_NS.
 *   stat [EVERY_MS]
 * prints once, or at this interval until it is killed. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gpu.h"

static void print(uint32_t gpu)
{
	struct gs_gpu *g = gs_gpu_lock(gpu);

	printf("%llu %u 0 %llu %llu %llu\n", (unsigned long long)g->now, gpu, (unsigned long long)g->switching,
		(unsigned long long)gs_used(g), (unsigned long long)g->peak);
	for (uint32_t i = 0; i < g->procs; i++) {
		uint64_t busy = 0, used = 0, peak = 0;
		bool told = false;

		for (uint32_t k = 0; k < g->procs; k++) { /* a process may have loaded the driver more than once */
			if (g->proc[k].pid != g->proc[i].pid)
				continue;
			told |= k < i;
			busy += g->proc[k].busy;
			used += gs_proc_used(&g->proc[k]);
			peak += g->proc[k].peak;
		}
		if (g->proc[i].pid && !told)
			printf("%llu %u %d %llu %llu %llu\n", (unsigned long long)g->now, gpu, g->proc[i].pid,
				(unsigned long long)busy, (unsigned long long)used, (unsigned long long)peak);
	}
	gs_gpu_unlock(g);
}

int main(int argc, char **argv)
{
	double ms = argc > 1 ? atof(argv[1]) : 0;
	struct timespec t = {(time_t)(ms / 1000), (long)(ms * 1e6) % 1000000000};

	if (!gs_host_open()) {
		fprintf(stderr, "stat: cannot open GS_STUB_FILE\n");
		return 1;
	}
	do {
		for (uint32_t i = 0; i < gs_host->gpus; i++)
			print(i);
		fflush(stdout);
	} while (ms > 0 && !nanosleep(&t, NULL));
	return 0;
}

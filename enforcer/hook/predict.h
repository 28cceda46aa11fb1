/* How long the next burst of kernels will be, from those before it. */
#ifndef GPUSTEWARD_PREDICT_H
#define GPUSTEWARD_PREDICT_H

#include <stdbool.h>
#include <stdint.h>

#define GS_GAP 200000 /* ns: a GPU idle for longer is between bursts */
#define GS_BURSTS 16

struct gs_predict {
	uint64_t burst[GS_BURSTS], window[GS_BURSTS]; /* ns, a ring each */
	unsigned bursts, windows;                     /* ever put in */
	uint64_t busy; /* ns that the burst under way took so far */
	uint64_t end;  /* of the last kernel */
};

/* The GPU was busy for the process from one time to another, ns. held says
 * that launches waited for a turn since the busy time before: what lies
 * between is then no gap of the program's own, and the burst goes on. */
void gs_predict_busy(struct gs_predict *p, uint64_t from, uint64_t to, bool held);

/* What is left of the burst under way, or the next whole one where the last
 * has ended, and the gap after it; 0 where the past does not tell. */
void gs_predict_next(const struct gs_predict *p, uint64_t now, bool held, uint64_t *burst, uint64_t *window);

#endif

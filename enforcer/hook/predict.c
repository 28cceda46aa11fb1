#include "predict.h"

#define ENOUGH 4 /* bursts before anything is foretold */

void gs_predict_busy(struct gs_predict *p, uint64_t from, uint64_t to, bool held)
{
	if (p->end && !held && from > p->end + GS_GAP) {
		p->burst[p->bursts++ % GS_BURSTS] = p->busy;
		p->window[p->windows++ % GS_BURSTS] = from - p->end;
		p->busy = 0;
	}
	if (from < p->end)
		from = p->end; /* streams overlap */
	if (to > from) {
		p->busy += to - from;
		p->end = to;
	}
}

/* The median of a ring, or 0 where fewer than three in four of its values lie
 * within a quarter of it. */
static uint64_t median(const uint64_t ring[GS_BURSTS], unsigned ever)
{
	uint64_t sorted[GS_BURSTS];
	unsigned n = ever < GS_BURSTS ? ever : GS_BURSTS, close = 0;

	if (n < ENOUGH)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		unsigned j = i;
		for (; j > 0 && sorted[j - 1] > ring[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = ring[i];
	}
	uint64_t m = sorted[n / 2];
	for (unsigned i = 0; i < n; i++)
		close += sorted[i] >= m - m / 4 && sorted[i] <= m + m / 4;
	return close * 4 >= n * 3 ? m : 0;
}

void gs_predict_next(const struct gs_predict *p, uint64_t now, bool held, uint64_t *burst, uint64_t *window)
{
	*burst = median(p->burst, p->bursts);
	*window = median(p->window, p->windows);
	bool under_way = held || now <= p->end + GS_GAP;
	if (under_way && *burst)
		*burst = *burst > p->busy ? *burst - p->busy : 0;
}

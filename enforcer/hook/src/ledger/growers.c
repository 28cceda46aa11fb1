/* What the driver keeps for pools and graphs, in the books. */
#include "ledger/growers.h"

#include "base/driver.h"
#include "ledger/admit.h"
#include "trace/trace.h"

/* Drivers up to 580 let a pool grow by multiples of this if a request does not fit. */
#define CHUNK (32ull << 20)

static struct {
	pthread_mutex_t lock;
	struct gs_grower graphs;
} gpus[GS_GPUS] = {[0 ... GS_GPUS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .graphs.device = -1}};

struct gs_grower *gs_growers_lock(int gpu)
{
	pthread_mutex_lock(&gpus[gpu].lock);
	gpus[gpu].graphs.gpu = gpu;
	return &gpus[gpu].graphs;
}

void gs_growers_unlock(int gpu)
{
	pthread_mutex_unlock(&gpus[gpu].lock);
}

bool gs_grower_kept(const struct gs_grower *g, uint64_t *bytes)
{
	*bytes = 0;
	if (g->pool)
		return gs_real.cuMemPoolGetAttribute &&
		       gs_real.cuMemPoolGetAttribute(g->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
						     bytes) == CUDA_SUCCESS;
	return g->device >= 0 && gs_real.cuDeviceGetGraphMemAttribute &&
	       gs_real.cuDeviceGetGraphMemAttribute(g->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
						    bytes) == CUDA_SUCCESS;
}

void gs_grower_charge_down(struct gs_grower *g, uint64_t to)
{
	gs_client_free((unsigned)g->gpu, g->pool ? GS_POOL : GS_GRAPH, g->charged - to);
	g->charged = to;
	g->shrinks++;
}

uint64_t gs_grower_settle(struct gs_grower *g)
{
	uint64_t kept, was = g->charged;

	if (was && gs_grower_kept(g, &kept) && kept < was)
		gs_grower_charge_down(g, kept);
	return was - g->charged;
}

uint64_t gs_growers_trim(int gpu)
{
	uint64_t freed = 0;

	for (struct gs_grower *g = &gpus[gpu].graphs; g; g = g->next) {
		if (!g->charged)
			continue;
		if (g->pool)
			gs_real.cuMemPoolTrimTo(g->pool, 0);
		else if (gs_real.cuDeviceGraphMemTrim)
			gs_real.cuDeviceGraphMemTrim(g->device);
		freed += gs_grower_settle(g);
	}
	return freed;
}

bool gs_grow(struct gs_claim *c, struct gs_grower *g, uint64_t need)
{
	return gs_claim_once(c, g->gpu, g->pool ? GS_POOL : GS_GRAPH, (need + CHUNK - 1) & ~(CHUNK - 1));
}

bool gs_grew(struct gs_claim *c, struct gs_grower *g)
{
	uint64_t kept;

	if (!gs_grower_kept(g, &kept) || kept <= g->charged) {
		gs_claim_abort(c);
		return true;
	}
	if (!gs_claim_commit(c, kept - g->charged))
		return false;
	g->charged = kept;
	return true;
}

/* False: that gave nothing back. */
static bool trim(int gpu)
{
	gs_growers_lock(gpu);
	uint64_t freed = gs_growers_trim(gpu);
	gs_growers_unlock(gpu);
	return freed > 0;
}

bool gs_claim(struct gs_claim *c, int gpu, enum gs_kind kind, uint64_t bytes)
{
	gs_note(GS_EVENT_ALLOC, gs_note_units(bytes, 4096));
	return gs_claim_once(c, gpu, kind, bytes) ||
	       (trim(gpu) && gs_claim_once(c, gpu, kind, bytes));
}

void gs_pools_reset(int gpu)
{
	uint64_t kept;

	for (struct gs_grower *g = gs_growers_lock(gpu); g; g = g->next) {
		gs_grower_settle(g);
		if (g->charged && !gs_grower_kept(g, &kept))
			gs_grower_charge_down(g, 0);
	}
	gs_growers_unlock(gpu);
}

/* It never waits for a lock: the thread that has it will settle. */
void gs_memory_settle(void)
{
	for (int gpu = 0; gpu < GS_GPUS; gpu++) {
		if (!atomic_load(&gs_counting) || pthread_mutex_trylock(&gpus[gpu].lock))
			continue;
		for (struct gs_grower *g = &gpus[gpu].graphs; g; g = g->next)
			gs_grower_settle(g);
		gs_growers_unlock(gpu);
	}
}

void gs_forked_growers(void)
{
	for (int gpu = 0; gpu < GS_GPUS; gpu++) {
		gpus[gpu].lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
		gpus[gpu].graphs = (struct gs_grower){.device = -1};
	}
}

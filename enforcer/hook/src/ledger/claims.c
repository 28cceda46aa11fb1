#include "ledger/claims.h"

#include "base/devices.h"
#include "base/driver.h"
#include "ledger/admit.h"
#include "trace/crash.h"

_Atomic bool gs_counting;
_Atomic uint64_t gs_uncounted;

uint64_t gs_memory_uncounted(void) { return atomic_load(&gs_uncounted); }
struct gs_table gs_held = GS_TABLE_INIT;

int gs_claim_gpu(void)
{
	return atomic_load_explicit(&gs_counting, memory_order_acquire) ? gs_gpu_current() : -1;
}

bool gs_claim_once(struct gs_claim *c, int gpu, enum gs_kind kind, uint64_t bytes)
{
	*c = (struct gs_claim){.gpu = gpu, .kind = kind, .bytes = bytes};
	return gpu < 0 || !bytes || gs_client_reserve((unsigned)gpu, kind, bytes, &c->reservation) == GS_GRANT;
}

bool gs_claim_commit(struct gs_claim *c, uint64_t bytes)
{
	struct gs_claim rest = {0};

	if (c->gpu < 0)
		return true;
	if (bytes > c->bytes && !gs_claim_once(&rest, c->gpu, c->kind, bytes - c->bytes)) {
		gs_claim_abort(c);
		return false;
	}
	uint64_t first = bytes < c->bytes ? bytes : c->bytes;
	if (first)
		gs_client_commit((unsigned)c->gpu, c->kind, c->reservation, first);
	else
		gs_claim_abort(c);
	if (rest.bytes)
		gs_client_commit((unsigned)rest.gpu, rest.kind, rest.reservation, rest.bytes);
	return true;
}

void gs_claim_abort(struct gs_claim *c)
{
	if (c->gpu >= 0 && c->bytes)
		gs_client_abort((unsigned)c->gpu, c->reservation);
}

void gs_hold(const struct gs_claim *c, uint64_t key, uint64_t bytes)
{
	struct gs_entry e = {.key = key, .bytes = bytes, .gpu = (short)c->gpu, .kind = (short)c->kind};
	CUcontext context = NULL;

	if (c->gpu < 0 || bytes == 0)
		return;
	if (gs_real.cuCtxGetCurrent)
		gs_real.cuCtxGetCurrent(&context);
	e.owner = context;
	if (c->kind != GS_ARRAY)
		e.place = gs_crash_allocated(key, bytes);
	if (gs_table_put(&gs_held, e))
		return;
	gs_client_free((unsigned)c->gpu, c->kind, bytes);
	atomic_fetch_add_explicit(&gs_uncounted, 1, memory_order_relaxed);
}

void gs_let_go(const struct gs_entry *e, CUresult r)
{
	gs_note_result(r);
	if (r == CUDA_SUCCESS)
		gs_crash_freed(e->place);
	if ((r == CUDA_SUCCESS || !gs_table_put(&gs_held, *e)) && e->bytes)
		gs_client_free((unsigned)e->gpu, (enum gs_kind)e->kind, e->bytes);
}

struct sums {
	CUcontext context;
	uint64_t bytes[GS_GPUS][GS_GRAPH + 1];
};

static bool of_context(const struct gs_entry *e, void *with)
{
	struct sums *sums = with;

	if (e->owner != sums->context)
		return false;
	sums->bytes[e->gpu][e->kind] += e->bytes;
	gs_crash_freed(e->place);
	return true;
}

void gs_context_gone(CUcontext c)
{
	struct sums sums = {.context = c};

	if (!c)
		return;
	gs_table_sweep(&gs_held, of_context, &sums);
	for (unsigned gpu = 0; gpu < GS_GPUS; gpu++)
		for (int kind = 0; kind <= GS_GRAPH; kind++)
			if (sums.bytes[gpu][kind])
				gs_client_free(gpu, (enum gs_kind)kind, sums.bytes[gpu][kind]);
}

uint64_t gs_product(uint64_t a, uint64_t b)
{
	const uint64_t most = 1ull << 62;
	uint64_t p;

	return __builtin_mul_overflow(a, b, &p) || p > most ? most : p;
}

void gs_forked_claims(void)
{
	atomic_store(&gs_counting, false);
	gs_table_forked(&gs_held);
}

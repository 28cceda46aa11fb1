/* Stream-ordered pools. */
#include <stdlib.h>

#include "base/devices.h"
#include "ledger/claims.h"
#include "ledger/growers.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/wrapped.h"

static struct gs_table pools = GS_TABLE_INIT; /* to their struct gs_grower */

void gs_forked_pools(void) { gs_table_forked(&pools); }

/* Begins to follow a pool of a device. NULL: it cannot. */
static struct gs_grower *follow(CUmemoryPool pool, CUdevice device)
{
	int gpu = gs_gpu_of_device(device);
	struct gs_grower *g = gpu < 0 ? NULL : calloc(1, sizeof *g);

	if (!g)
		return NULL;
	*g = (struct gs_grower){.gpu = gpu, .device = device, .pool = pool};
	struct gs_grower *graphs = gs_growers_lock(gpu);
	struct gs_entry e;
	if (gs_table_find(&pools, (uintptr_t)pool, &e)) { /* another thread was first */
		free(g);
		g = e.owner;
	} else if (gs_table_put(&pools, (struct gs_entry){.key = (uintptr_t)pool, .owner = g})) {
		g->next = graphs->next;
		graphs->next = g;
	} else {
		free(g);
		g = NULL;
		atomic_fetch_add(&gs_uncounted, 1);
	}
	gs_growers_unlock(gpu);
	return g;
}

/* The grower of a pool; NULL for those that charge nothing: imported, on the host,
 * or unknown. No call makes a device's default pool. */
static struct gs_grower *grower_of(CUmemoryPool pool)
{
	struct gs_entry e;
	CUmemoryPool standard;

	if (gs_table_find(&pools, (uintptr_t)pool, &e))
		return e.owner;
	for (int d = 0; gs_real.cuDeviceGetDefaultMemPool && d < GS_GPUS; d++)
		if (gs_real.cuDeviceGetDefaultMemPool(&standard, d) != CUDA_SUCCESS)
			break;
		else if (standard == pool)
			return follow(pool, d);
	return NULL;
}

/* One of the four calls that allocate from a pool. */
struct request {
	CUdeviceptr *p;
	size_t bytes;
	CUmemoryPool pool; /* NULL: the device's */
	CUstream stream;
	bool per_thread;
};

static CUresult call(const struct request *q, CUdeviceptr *p)
{
	if (q->pool)
		return (q->per_thread ? gs_real.cuMemAllocFromPoolAsync_ptsz
				      : gs_real.cuMemAllocFromPoolAsync)(p, q->bytes, q->pool, q->stream);
	return (q->per_thread ? gs_real.cuMemAllocAsync_ptsz : gs_real.cuMemAllocAsync)(p, q->bytes, q->stream);
}

static struct gs_grower *grower_for(const struct request *q)
{
	CUmemoryPool pool = q->pool;
	CUdevice device;

	if (!atomic_load_explicit(&gs_counting, memory_order_acquire))
		return NULL;
	if (!pool) {
		/* The stream's device need not be the current one. */
		if (!(gs_real.cuStreamGetDevice && gs_real.cuStreamGetDevice(q->stream, &device) == CUDA_SUCCESS) &&
		    gs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
			return NULL;
		if (!gs_real.cuDeviceGetMemPool || gs_real.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
			return NULL;
	}
	return grower_of(pool);
}

/* How much the pool must grow for the request. */
static uint64_t need_of(const struct request *q, const struct gs_grower *g)
{
	uint64_t kept, used = 0, bytes = gs_product(q->bytes, 1);

	gs_grower_kept(g, &kept);
	gs_real.cuMemPoolGetAttribute(g->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	return used + bytes > kept ? used + bytes - kept : 0;
}

static bool captures(const struct request *q)
{
	CUresult (*asked)(CUstream, int *) =
		q->per_thread ? gs_real.cuStreamIsCapturing_ptsz : gs_real.cuStreamIsCapturing;
	int capturing = 0;

	return asked && asked(q->stream, &capturing) == CUDA_SUCCESS && capturing;
}

static void threshold(struct gs_grower *g, bool set, uint64_t *bytes)
{
	(set ? gs_real.cuMemPoolSetAttribute
	     : gs_real.cuMemPoolGetAttribute)(g->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes);
}

/* Under the lock. A request that fits in what the pool keeps takes nothing from the
 * card, and the broker is not asked. Otherwise the pool grows by whole chunks. */
static CUresult allocate_locked(const struct request *q, struct gs_grower *g, CUdeviceptr *p)
{
	struct gs_claim c;

	gs_grower_settle(g);
	if (!gs_grow(&c, g, need_of(q, g)) &&
	    !(gs_growers_trim(g->gpu) && gs_grow(&c, g, need_of(q, g))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = call(q, p);
	if (gs_grew(&c, g) || r != CUDA_SUCCESS)
		return r;
	(q->per_thread ? gs_real.cuMemFreeAsync_ptsz : gs_real.cuMemFreeAsync)(*p, q->stream);
	gs_real.cuMemPoolTrimTo(g->pool, g->charged);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A pool's pointer is charged with nothing. It is held for what explains a crash. */
static CUresult pooled(const struct request *q, CUresult r)
{
	struct gs_entry e = {.kind = GS_POOL};

	gs_note_result(r);
	if (r != CUDA_SUCCESS || !q->p || !atomic_load_explicit(&gs_counting, memory_order_acquire))
		return r;
	e.key = *q->p;
	e.place = gs_crash_allocated(e.key, q->bytes);
	if (e.place && !gs_table_put(&gs_held, e))
		gs_crash_freed(e.place);
	return r;
}

static CUresult allocate(const struct request *q)
{
	struct gs_grower *g = grower_for(q);
	uint64_t was = 0, all = UINT64_MAX;
	CUdeviceptr p = 0;

	/* A capture only notes the call: see graphs.c. */
	if (q->p && captures(q))
		return call(q, q->p);
	if (!g || !q->p || !gs_real.cuMemPoolSetAttribute)
		return pooled(q, call(q, q->p));
	gs_growers_lock(g->gpu);
	/* Another thread that synchronizes meanwhile would trim the pool, which
	 * would then grow by more than was expected. The threshold forbids it. */
	threshold(g, false, &was);
	if (was != all)
		threshold(g, true, &all);
	CUresult r = allocate_locked(q, g, &p);
	if (was != all)
		threshold(g, true, &was);
	gs_growers_unlock(g->gpu);
	if (r == CUDA_SUCCESS)
		*q->p = p;
	return pooled(q, r);
}

CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream)
{
	GS_WHOLE(cuMemAllocAsync);
	return allocate(&(struct request){.p = p, .bytes = bytes, .stream = stream});
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t bytes, CUstream stream)
{
	GS_WHOLE(cuMemAllocAsync_ptsz);
	return allocate(&(struct request){.p = p, .bytes = bytes, .stream = stream, .per_thread = true});
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	GS_WHOLE(cuMemAllocFromPoolAsync);
	if (!pool)
		return gs_real.cuMemAllocFromPoolAsync(p, bytes, pool, stream);
	return allocate(&(struct request){.p = p, .bytes = bytes, .pool = pool, .stream = stream});
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	GS_WHOLE(cuMemAllocFromPoolAsync_ptsz);
	if (!pool)
		return gs_real.cuMemAllocFromPoolAsync_ptsz(p, bytes, pool, stream);
	return allocate(&(struct request){.p = p, .bytes = bytes, .pool = pool, .stream = stream, .per_thread = true});
}

/* Memory of cuMemAlloc may be freed here too. For a pool's own pointer nothing is given
 * back: the pool shows what it shrank by. */
static CUresult free_async(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr p, CUstream stream)
{
	struct gs_entry e;
	bool held = gs_table_take(&gs_held, p, &e);
	CUresult r = real(p, stream);

	if (held)
		gs_let_go(&e, r);
	return r;
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
	GS_WHOLE(cuMemFreeAsync);
	return free_async(gs_real.cuMemFreeAsync, p, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream stream)
{
	GS_WHOLE(cuMemFreeAsync_ptsz);
	return free_async(gs_real.cuMemFreeAsync_ptsz, p, stream);
}

CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
	GS_WHOLE(cuMemPoolExportToShareableHandle);
	return gs_shares(gs_real.cuMemPoolExportToShareableHandle(out, pool, type, flags), GS_SHARED_PROCESSES);
}

/* The program got a pool. Managed memory is charged where it is taken, as
 * cuMemAllocManaged's is, wherever the pool prefers to be. */
static CUresult given(CUresult r, const CUmemoryPool *pool, const CUmemLocation *at, int type)
{
	CUdevice device = at ? at->id : 0;
	struct gs_entry e;

	if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
		gs_shares(r, GS_SHARED_MANAGED);
	if (r != CUDA_SUCCESS || !at || !atomic_load(&gs_counting) || gs_table_find(&pools, (uintptr_t)*pool, &e))
		return r;
	if (at->type == CU_MEM_LOCATION_TYPE_DEVICE ||
	    (type == CU_MEM_ALLOCATION_TYPE_MANAGED && gs_real.cuCtxGetDevice &&
	     gs_real.cuCtxGetDevice(&device) == CUDA_SUCCESS))
		follow(*pool, device);
	return r;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	GS_WHOLE(cuMemPoolCreate);
	CUresult r = gs_real.cuMemPoolCreate(pool, props);
	return r == CUDA_SUCCESS ? given(r, pool, &props->location, props->allocType) : r;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *at, int type)
{
	GS_WHOLE(cuMemGetDefaultMemPool);
	return given(gs_real.cuMemGetDefaultMemPool(pool, at, type), pool, at, type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *at, int type)
{
	GS_WHOLE(cuMemGetMemPool);
	return given(gs_real.cuMemGetMemPool(pool, at, type), pool, at, type);
}

/* What is still in use when a pool is destroyed stays on the card until it is
 * freed, and no call tells how much that is. It stays in the books as long as the
 * process lives. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct gs_entry e;
	uint64_t used = 0;

	GS_WHOLE(cuMemPoolDestroy);
	if (!gs_table_take(&pools, (uintptr_t)pool, &e))
		return gs_real.cuMemPoolDestroy(pool);
	struct gs_grower *g = e.owner, *before = gs_growers_lock(g->gpu);
	gs_real.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	CUresult r = gs_real.cuMemPoolDestroy(pool);
	if (r != CUDA_SUCCESS) {
		gs_table_put(&pools, e);
	} else {
		while (before->next != g)
			before = before->next;
		before->next = g->next;
		if (used < g->charged)
			gs_grower_charge_down(g, used);
	}
	gs_growers_unlock(g->gpu);
	if (r == CUDA_SUCCESS)
		free(g);
	return r;
}

/* Both under the lock: see allocate. */
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	struct gs_entry e;

	GS_WHOLE(cuMemPoolTrimTo);
	if (!gs_table_find(&pools, (uintptr_t)pool, &e))
		return gs_real.cuMemPoolTrimTo(pool, keep);
	struct gs_grower *g = e.owner;
	gs_growers_lock(g->gpu);
	CUresult r = gs_real.cuMemPoolTrimTo(pool, keep);
	gs_grower_settle(g);
	gs_growers_unlock(g->gpu);
	return r;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	struct gs_entry e;

	GS_WHOLE(cuMemPoolSetAttribute);
	if (!gs_table_find(&pools, (uintptr_t)pool, &e))
		return gs_real.cuMemPoolSetAttribute(pool, attribute, value);
	struct gs_grower *g = e.owner;
	gs_growers_lock(g->gpu);
	CUresult r = gs_real.cuMemPoolSetAttribute(pool, attribute, value);
	gs_growers_unlock(g->gpu);
	return r;
}

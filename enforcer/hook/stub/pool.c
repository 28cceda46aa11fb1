/* Stream-ordered pools. A free counts at once, not when the stream gets there. A
 * pool grows by 32 MiB if it can, and is trimmed to its release threshold at a
 * synchronisation. */
#include <stdlib.h>

#include "stub.h"

#define CHUNK (32ull << 20)
#define PAGE (2ull << 20)

struct CUmemPoolHandle_st {
	CUmemoryPool next;
	CUdevice device;
	CUcontext ctx; /* with its memory; NULL before */
	bool own;      /* the device's default */
	uint64_t threshold, reserved, reserved_high, used, used_high;
	int reuse[3];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool pools;
static CUmemoryPool managed; /* the default one for managed memory */
static CUmemoryPool standard[GS_STUB_GPUS_MAX], current[GS_STUB_GPUS_MAX];

static uint64_t up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* Under lock. */
static CUmemoryPool make(CUdevice d)
{
	CUmemoryPool p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	*p = (struct CUmemPoolHandle_st){.device = d, .next = pools, .reuse = {1, 1, 1}};
	return pools = p;
}

static CUmemoryPool standard_of(CUdevice d)
{
	if (!standard[d] && (standard[d] = make(d)))
		standard[d]->own = true;
	return standard[d];
}

/* Under lock. */
static void trim(CUmemoryPool p, uint64_t keep)
{
	uint64_t least = up(p->used, PAGE);

	if (keep < least)
		keep = least;
	if (!p->ctx || p->reserved <= keep)
		return;
	gs_memory_give(p->ctx->g, p->ctx->proc, p->reserved - keep);
	p->reserved = keep;
}

void gs_pools_trim(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	for (CUmemoryPool p = pools; p; p = p->next)
		if (p->device == ctx->device)
			trim(p, p->threshold);
	pthread_mutex_unlock(&lock);
}

void gs_pools_forget(CUdevice d)
{
	pthread_mutex_lock(&lock);
	for (CUmemoryPool p = pools; p; p = p->next)
		if (p->device == d) {
			p->ctx = NULL;
			p->reserved = p->used = 0;
		}
	pthread_mutex_unlock(&lock);
}

/* Under lock. */
static bool grow(CUmemoryPool p, uint64_t bytes)
{
	uint64_t need = p->used + bytes > p->reserved ? p->used + bytes - p->reserved : 0;
	uint64_t more = up(need, CHUNK);

	if (more && !gs_memory_take(p->ctx->g, p->ctx->proc, more)) {
		more = up(need, PAGE);
		if (!gs_memory_take(p->ctx->g, p->ctx->proc, more))
			return false;
	}
	p->reserved += more;
	p->used += bytes;
	if (p->reserved_high < p->reserved)
		p->reserved_high = p->reserved;
	if (p->used_high < p->used)
		p->used_high = p->used;
	return true;
}

CUresult gs_pool_take(CUmemoryPool p, uint64_t bytes, CUcontext ctx, CUdeviceptr *out)
{
	bool done;

	bytes = up(bytes, 512);
	pthread_mutex_lock(&lock);
	if (!p)
		p = current[ctx->device] ? current[ctx->device] : standard_of(ctx->device);
	if (!p->ctx)
		p->ctx = ctx;
	done = grow(p, bytes);
	pthread_mutex_unlock(&lock);
	if (!done)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = gs_address(bytes);
	gs_hold((struct gs_holding){.at = *out, .bytes = bytes, .held = GS_HELD_POOL, .ctx = ctx, .of = p});
	return CUDA_SUCCESS;
}

GS_API cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool p, CUstream s)
{
	CUgraph graph;

	GS_TRY(gs_stream_of(s, &s));
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(gs_capture_of(s, &graph));
	if (graph) {
		CUgraphNode n = gs_graph_add(graph, NULL, 0, bytes);

		if (!n)
			return CUDA_ERROR_OUT_OF_MEMORY;
		*out = n->at = gs_address(bytes);
		n->device = s->ctx->device;
		return CUDA_SUCCESS;
	}
	return gs_pool_take(p, bytes, s->ctx, out);
}

GS_API cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool p, CUstream s)
{
	return cuMemAllocFromPoolAsync(out, bytes, p, GS_PTSZ(s));
}

GS_API cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream s)
{
	return cuMemAllocFromPoolAsync(out, bytes, NULL, s);
}

GS_API cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream s)
{
	return cuMemAllocAsync(out, bytes, GS_PTSZ(s));
}

GS_API cuMemFreeAsync(CUdeviceptr at, CUstream s)
{
	struct gs_holding h;
	CUmemoryPool p;
	CUgraph graph;

	GS_TRY(gs_stream_of(s, &s));
	GS_TRY(gs_capture_of(s, &graph));
	if (graph)
		return CUDA_SUCCESS;
	if (!gs_release(at, GS_HELD_POOL, &h))
		return CUDA_ERROR_INVALID_VALUE;
	p = h.of;
	pthread_mutex_lock(&lock);
	p->used -= h.bytes < p->used ? h.bytes : p->used;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

GS_API cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream s) { return cuMemFreeAsync(at, GS_PTSZ(s)); }

GS_API cuMemPoolCreate(CUmemoryPool *p, const CUmemPoolProps *props)
{
	CUdevice d = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? props->location.id : 0;

	GS_TRY(gs_device(d));
	pthread_mutex_lock(&lock);
	*p = make(d);
	pthread_mutex_unlock(&lock);
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Memory in use goes too. The device's default pool cannot be destroyed. */
GS_API cuMemPoolDestroy(CUmemoryPool p)
{
	CUmemoryPool *link = &pools;

	GS_TRY(gs_enter());
	if (!p || p->own)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	while (*link != p)
		link = &(*link)->next;
	*link = p->next;
	p->used = 0;
	trim(p, 0);
	if (current[p->device] == p)
		current[p->device] = NULL;
	pthread_mutex_unlock(&lock);
	free(p);
	return CUDA_SUCCESS;
}

GS_API cuMemPoolTrimTo(CUmemoryPool p, size_t keep)
{
	GS_TRY(gs_enter());
	pthread_mutex_lock(&lock);
	trim(p, keep);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

GS_API cuMemPoolGetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *value)
{
	GS_TRY(gs_enter());
	if (a < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES || a > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	cuuint64_t v[] = {p->threshold, p->reserved, p->reserved_high, p->used, p->used_high};
	if (a < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		*(int *)value = p->reuse[a - 1];
	else
		*(cuuint64_t *)value = v[a - CU_MEMPOOL_ATTR_RELEASE_THRESHOLD];
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

GS_API cuMemPoolSetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *value)
{
	CUresult r = CUDA_SUCCESS;

	GS_TRY(gs_enter());
	pthread_mutex_lock(&lock);
	switch (a) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: p->threshold = *(cuuint64_t *)value; break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: p->reserved_high = p->reserved; break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: p->used_high = p->used; break;
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: p->reuse[a - 1] = *(int *)value; break;
	default: r = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

GS_API cuDeviceGetDefaultMemPool(CUmemoryPool *p, CUdevice d)
{
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&lock);
	*p = standard_of(d);
	pthread_mutex_unlock(&lock);
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuDeviceGetMemPool(CUmemoryPool *p, CUdevice d)
{
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&lock);
	*p = current[d] ? current[d] : standard_of(d);
	pthread_mutex_unlock(&lock);
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* All managed memory is on the first GPU. There are no pools on the host. */
GS_API cuMemGetDefaultMemPool(CUmemoryPool *p, CUmemLocation *at, CUmemAllocationType type)
{
	if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return at->type == CU_MEM_LOCATION_TYPE_DEVICE ? cuDeviceGetDefaultMemPool(p, at->id)
							       : CUDA_ERROR_NOT_SUPPORTED;
	GS_TRY(gs_enter());
	pthread_mutex_lock(&lock);
	if (!managed && (managed = make(0)))
		managed->own = true;
	*p = managed;
	pthread_mutex_unlock(&lock);
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuMemGetMemPool(CUmemoryPool *p, CUmemLocation *at, CUmemAllocationType type)
{
	return cuMemGetDefaultMemPool(p, at, type);
}

GS_API cuDeviceSetMemPool(CUdevice d, CUmemoryPool p)
{
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&lock);
	current[d] = p;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* Allocations with a pointer of their own, and what the program is told of the
 * memory there is. */
#include "claims.h"
#include "intercept.h"

/* The end of an allocation that gave key, which is not looked at after a
 * failure. False: the driver took more than could be had. */
static bool booked(struct gs_claim *c, CUresult r, uint64_t key, uint64_t bytes)
{
	if (r != CUDA_SUCCESS) {
		gs_claim_abort(c);
		return true;
	}
	if (!gs_claim_commit(c, bytes))
		return false;
	gs_hold(c, key, bytes);
	return true;
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes)
{
	struct gs_claim c;

	GS_WHOLE(cuMemAlloc_v2);
	if (!gs_claim(&c, gs_claim_gpu(), GS_DEVICE, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = gs_real.cuMemAlloc_v2(p, bytes);
	booked(&c, r, r == CUDA_SUCCESS ? *p : 0, bytes);
	return r;
}

CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags)
{
	struct gs_claim c;

	GS_WHOLE(cuMemAllocManaged);
	if (!gs_claim(&c, gs_claim_gpu(), GS_MANAGED, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = gs_real.cuMemAllocManaged(p, bytes, flags);
	booked(&c, r, r == CUDA_SUCCESS ? *p : 0, bytes);
	return r;
}

/* The driver chooses the pitch. It is the width rounded up to 512 bytes on all
 * GPUs so far, and if it is more the rest is asked for afterwards. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element)
{
	struct gs_claim c;
	CUdeviceptr at = 0;
	size_t row = 0;

	GS_WHOLE(cuMemAllocPitch_v2);
	if (!p || !pitch)
		return gs_real.cuMemAllocPitch_v2(p, pitch, width, height, element);
	if (!gs_claim(&c, gs_claim_gpu(), GS_DEVICE, gs_product(width > SIZE_MAX - 511 ? width : (width + 511) & ~(size_t)511, height)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = gs_real.cuMemAllocPitch_v2(&at, &row, width, height, element);
	if (!booked(&c, r, at, gs_product(row, height))) {
		gs_real.cuMemFree_v2(at);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS) {
		*p = at;
		*pitch = row;
	}
	return r;
}

/* A pointer that is not ours (a pool's, an imported one, no pointer at all) is
 * the driver's affair. Ours leaves the table before the driver frees it: as
 * soon as that is done another thread may be given the same address. */
CUresult cuMemFree_v2(CUdeviceptr p)
{
	struct gs_entry e;

	GS_WHOLE(cuMemFree_v2);
	bool held = gs_table_take(&gs_held, p, &e);
	CUresult r = gs_real.cuMemFree_v2(p);
	if (held)
		gs_let_go(&e, r);
	return r;
}

/* The page knows other processes, and may be a moment behind; this process knows
 * itself. */
uint64_t gs_cap_of(int gpu, uint64_t *used)
{
	if (gpu < 0 || gpu >= GS_GPUS || !atomic_load(&gs_counting))
		return 0;
	const struct gs_slot *slot = &atomic_load_explicit(&gs_page, memory_order_acquire)->slot[gpu];
	uint64_t here = gs_client_committed((unsigned)gpu);
	*used = __atomic_load_n(&slot->used, __ATOMIC_RELAXED);
	if (*used < here)
		*used = here;
	return __atomic_load_n(&slot->cap, __ATOMIC_RELAXED);
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
	uint64_t used = 0, cap;

	GS_NEED(cuMemGetInfo_v2);
	CUresult r = gs_real.cuMemGetInfo_v2(left, total);
	if (r != CUDA_SUCCESS || !(cap = gs_cap_of(gs_claim_gpu(), &used)))
		return r;
	uint64_t rest = cap > used ? cap - used : 0;
	if (total && *total > cap)
		*total = cap;
	if (left && *left > rest)
		*left = rest;
	return r;
}

CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device)
{
	uint64_t used, cap;

	GS_NEED(cuDeviceTotalMem_v2);
	CUresult r = gs_real.cuDeviceTotalMem_v2(total, device);
	if (r == CUDA_SUCCESS && (cap = gs_cap_of(gs_gpu_of_device(device), &used)) && *total > cap)
		*total = cap;
	return r;
}

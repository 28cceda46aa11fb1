/* Allocations with a pointer of their own, and what the program is told about its memory. */
#include "wrappers/memory.h"

#include "base/devices.h"
#include "ledger/claims.h"
#include "ledger/growers.h"
#include "session/local.h"
#include "session/sums.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/waits.h"
#include "wrappers/wrapped.h"

/* Ends an allocation. key is ignored after a failure. False: the driver took more
 * than could be had. */
static bool booked(struct gs_claim *c, CUresult r, uint64_t key, uint64_t bytes)
{
	if (r != CUDA_SUCCESS) {
		gs_note_result(r);
		gs_claim_abort(c);
		return true;
	}
	if (!gs_claim_commit(c, bytes))
		return false;
	gs_hold(c, key, bytes);
	return true;
}

/* An address of 32 bits belongs to one context. Another context may have the same one. */
static uint64_t key_of(CUdeviceptr p)
{
	CUcontext context = NULL;

	if (p > UINT32_MAX || !gs_real.cuCtxGetCurrent)
		return p;
	gs_real.cuCtxGetCurrent(&context);
	return p ^ (uint64_t)(uintptr_t)context << 16;
}

/* Defines an allocation by its parameters' types: the first interface's have 32 bits. */
#define ALLOCATE(name, address, size)                                        \
	CUresult name(address *p, size bytes)                                \
	{                                                                    \
		struct gs_claim c;                                           \
                                                                             \
		GS_WHOLE(name);                                              \
		if (!gs_claim(&c, gs_claim_gpu(), GS_DEVICE, bytes))         \
			return CUDA_ERROR_OUT_OF_MEMORY;                     \
		CUresult r = gs_real.name(p, bytes);                         \
		booked(&c, r, r == CUDA_SUCCESS ? key_of(*p) : 0, bytes);    \
		return r;                                                    \
	}
ALLOCATE(cuMemAlloc, CUdeviceptr_v1, unsigned)
ALLOCATE(cuMemAlloc_v2, CUdeviceptr, size_t)

CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags)
{
	struct gs_claim c;

	GS_WHOLE(cuMemAllocManaged);
	if (!gs_claim(&c, gs_claim_gpu(), GS_MANAGED, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = gs_real.cuMemAllocManaged(p, bytes, flags);
	booked(&c, r, r == CUDA_SUCCESS ? key_of(*p) : 0, bytes);
	return gs_shares(r, GS_SHARED_MANAGED);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p)
{
	GS_WHOLE(cuIpcGetMemHandle);
	return gs_shares(gs_real.cuIpcGetMemHandle(handle, p), GS_SHARED_PROCESSES);
}

/* The driver chooses the pitch. It is the width rounded up to 512 bytes on all GPUs
 * so far. If it is more, the rest is asked for afterwards. */
#define ALLOCATE_PITCH(name, address, size, release)                                                               \
	CUresult name(address *p, size *pitch, size width, size height, unsigned element)                          \
	{                                                                                                          \
		struct gs_claim c;                                                                                 \
		address at = 0;                                                                                    \
		size row = 0;                                                                                      \
                                                                                                                   \
		GS_WHOLE(name);                                                                                    \
		if (!p || !pitch)                                                                                  \
			return gs_real.name(p, pitch, width, height, element);                                     \
		if (!gs_claim(&c, gs_claim_gpu(), GS_DEVICE, gs_product(pitched(width), height)))                  \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                           \
		CUresult r = gs_real.name(&at, &row, width, height, element);                                      \
		if (!booked(&c, r, r == CUDA_SUCCESS ? key_of(at) : 0, gs_product(row, height))) {                 \
			gs_real.release(at);                                                                       \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                           \
		}                                                                                                  \
		if (r == CUDA_SUCCESS) {                                                                           \
			*p = at;                                                                                   \
			*pitch = row;                                                                              \
		}                                                                                                  \
		return r;                                                                                          \
	}
static uint64_t pitched(uint64_t width) { return width > UINT64_MAX - 511 ? width : (width + 511) & ~(uint64_t)511; }
ALLOCATE_PITCH(cuMemAllocPitch, CUdeviceptr_v1, unsigned, cuMemFree)
ALLOCATE_PITCH(cuMemAllocPitch_v2, CUdeviceptr, size_t, cuMemFree_v2)

/* A pointer that is not ours (an imported one, no pointer at all) is the
 * driver's affair. Ours leaves the table before the driver frees it: after that,
 * another thread may get the same address. */
#define FREE(name, address)                                              \
	CUresult name(address p)                                         \
	{                                                                \
		struct gs_entry e;                                       \
                                                                         \
		GS_WHOLE(name);                                          \
		gs_note(GS_EVENT_FREE, 0);                               \
		bool held = gs_table_take(&gs_held, key_of(p), &e);      \
		CUresult r = gs_real.name(p);                            \
		if (held)                                                \
			gs_let_go(&e, r);                                \
		return r;                                                \
	}
FREE(cuMemFree, CUdeviceptr_v1)
FREE(cuMemFree_v2, CUdeviceptr)

/* The page knows other processes, and may be a moment behind. This process knows itself. */
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

#define GET_INFO(name, size)                                                       \
	CUresult name(size *left, size *total)                                     \
	{                                                                          \
		uint64_t used = 0, cap;                                            \
                                                                                   \
		GS_NEED(name);                                                     \
		gs_wait_suspended(); /* or the driver would say that it failed */  \
		CUresult r = gs_real.name(left, total);                            \
		GS_ERRNO;                                                          \
		if (r != CUDA_SUCCESS || !(cap = gs_cap_of(gs_claim_gpu(), &used)))\
			return r;                                                  \
		uint64_t rest = cap > used ? cap - used : 0;                       \
		if (total && *total > cap)                                         \
			*total = (size)cap;                                        \
		if (left && *left > rest)                                          \
			*left = (size)rest;                                        \
		return r;                                                          \
	}
GET_INFO(cuMemGetInfo, unsigned)
GET_INFO(cuMemGetInfo_v2, size_t)

#define TOTAL_MEM(name, size)                                                                        \
	CUresult name(size *total, CUdevice device)                                                  \
	{                                                                                            \
		uint64_t used, cap;                                                                  \
                                                                                                     \
		GS_NEED(name);                                                                       \
		CUresult r = gs_real.name(total, device);                                            \
		if (r == CUDA_SUCCESS && (cap = gs_cap_of(gs_gpu_of_device(device), &used)) && *total > cap) \
			*total = (size)cap;                                                          \
		return r;                                                                            \
	}
TOTAL_MEM(cuDeviceTotalMem, unsigned)
TOTAL_MEM(cuDeviceTotalMem_v2, size_t)

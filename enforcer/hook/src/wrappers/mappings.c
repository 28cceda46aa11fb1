/* Memory by handle (cuMemCreate), which is taken until the last handle and the last
 * mapping of it are gone. Imported memory is charged to the process that made it. */
#include <stdlib.h>

#include "base/devices.h"
#include "gate/helper.h"
#include "ledger/admit.h"
#include "ledger/claims.h"
#include "ledger/growers.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/wrapped.h"

struct block {
	struct gs_claim claim;
	uint64_t refs; /* handles' counts and mappings */
};

/* The lock is held over the driver's calls, so that the tables and the driver agree
 * on the mapping of an address. cuMemCreate is slow, and runs without it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gs_table handles = GS_TABLE_INIT; /* bytes: how often it must be released; owner: the block */
static struct gs_table mapped = GS_TABLE_INIT;  /* bytes: of the mapping; owner: the block, NULL if it is not ours */

void gs_forked_mappings(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	gs_table_forked(&handles);
	gs_table_forked(&mapped);
}

static void unref(struct block *b)
{
	if (!b || --b->refs)
		return;
	gs_client_free((unsigned)b->claim.gpu, b->claim.kind, b->claim.bytes);
	free(b);
}

/* Adds one to the count of a handle. If the handle was not known, it becomes b's. */
static void add_handle(uint64_t handle, struct block *b)
{
	struct gs_entry e = {.key = handle};

	if (gs_table_find(&handles, handle, &e))
		b = e.owner;
	if (!b)
		return;
	e.owner = b;
	e.bytes++;
	if (gs_table_put(&handles, e))
		b->refs++;
	else
		atomic_fetch_add(&gs_uncounted, 1);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	struct gs_claim c;
	int gpu = -1;

	GS_WHOLE(cuMemCreate);
	if (prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && atomic_load(&gs_counting)) {
		gpu = gs_gpu_of_device(prop->location.id);
		gs_helper_start(); /* it needs no context */
	}
	if (!gs_claim(&c, gpu, GS_VMM, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = gs_real.cuMemCreate(handle, bytes, prop, flags);
	if (r != CUDA_SUCCESS) {
		gs_claim_abort(&c);
		return r;
	}
	gs_claim_commit(&c, bytes);
	struct block *b = c.gpu < 0 ? NULL : calloc(1, sizeof *b);
	if (c.gpu < 0)
		return r;
	pthread_mutex_lock(&lock);
	if (b) {
		*b = (struct block){.claim = c, .refs = 1};
		add_handle(*handle, b);
		unref(b); /* the handle has it now, or nothing does */
	} else {
		gs_client_free((unsigned)c.gpu, c.kind, bytes);
		atomic_fetch_add(&gs_uncounted, 1);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct gs_entry e;

	GS_WHOLE(cuMemRelease);
	pthread_mutex_lock(&lock);
	CUresult r = gs_real.cuMemRelease(handle);
	if (r == CUDA_SUCCESS && gs_table_take(&handles, handle, &e)) {
		if (--e.bytes)
			gs_table_put(&handles, e);
		unref(e.owner);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	struct gs_entry e = {0};

	GS_WHOLE(cuMemMap);
	pthread_mutex_lock(&lock);
	CUresult r = gs_real.cuMemMap(p, bytes, offset, handle, flags);
	if (r == CUDA_SUCCESS) {
		struct block *b = gs_table_find(&handles, handle, &e) ? e.owner : NULL;
		if (!gs_table_put(&mapped, (struct gs_entry){.key = p, .bytes = bytes, .owner = b,
							     .place = gs_crash_allocated(p, bytes)}))
			atomic_fetch_add(&gs_uncounted, 1);
		else if (b)
			b->refs++;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* One call may unmap several mappings that follow each other. */
CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
	struct gs_entry e;

	GS_WHOLE(cuMemUnmap);
	pthread_mutex_lock(&lock);
	CUresult r = gs_real.cuMemUnmap(p, bytes);
	for (CUdeviceptr at = p; r == CUDA_SUCCESS && at - p < bytes && gs_table_take(&mapped, at, &e); at += e.bytes) {
		gs_crash_freed(e.place);
		unref(e.owner);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

struct within {
	uint64_t address;
	struct block *block;
};

static bool covers(const struct gs_entry *e, void *with)
{
	struct within *w = with;

	if (w->address - e->key < e->bytes)
		w->block = e->owner;
	return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	struct within w = {.address = (uintptr_t)address};
	struct gs_entry e;

	GS_WHOLE(cuMemRetainAllocationHandle);
	pthread_mutex_lock(&lock);
	CUresult r = gs_real.cuMemRetainAllocationHandle(handle, address);
	if (r == CUDA_SUCCESS) {
		if (gs_table_find(&mapped, w.address, &e))
			w.block = e.owner;
		else
			gs_table_sweep(&mapped, covers, &w);
		add_handle(*handle, w.block);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* The driver may return a handle that is ours already. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
	GS_WHOLE(cuMemImportFromShareableHandle);
	pthread_mutex_lock(&lock);
	CUresult r = gs_real.cuMemImportFromShareableHandle(handle, shared, type);
	if (r == CUDA_SUCCESS)
		add_handle(*handle, NULL);
	pthread_mutex_unlock(&lock);
	return gs_shares(r, GS_SHARED_PROCESSES);
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
				      unsigned long long flags)
{
	GS_WHOLE(cuMemExportToShareableHandle);
	return gs_shares(gs_real.cuMemExportToShareableHandle(out, handle, type, flags), GS_SHARED_PROCESSES);
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *props)
{
	GS_WHOLE(cuMulticastCreate);
	return gs_shares(gs_real.cuMulticastCreate(handle, props), GS_SHARED_MULTICAST);
}

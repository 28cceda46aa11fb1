/* Virtual memory: addresses, physical handles that are counted, mappings. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stub.h"

#define PAGE (2ull << 20)

struct physical {
	uint64_t bytes;
	CUdevice device;
	CUcontext ctx; /* with its memory; NULL: another process's, imported */
	unsigned references;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

GS_API cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags f)
{
	(void)p, (void)f;
	GS_TRY(gs_enter());
	*bytes = PAGE;
	return CUDA_SUCCESS;
}

static CUresult make(CUmemGenericAllocationHandle *out, struct physical p)
{
	struct physical *copy = malloc(sizeof *copy);

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*copy = p;
	copy->references = 1;
	*out = (uintptr_t)copy;
	return CUDA_SUCCESS;
}

/* The memory is on the device that the properties name. Host memory is free. */
GS_API cuMemCreate(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *p,
		   unsigned long long flags)
{
	CUcontext c;

	(void)flags;
	GS_TRY(gs_current(&c));
	if (!p || !bytes || bytes % PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return make(h, (struct physical){.bytes = bytes});
	if (p->location.id != c->device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!gs_memory_take(c->g, c->proc, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return make(h, (struct physical){.bytes = bytes, .device = c->device, .ctx = c});
}

static void drop(struct physical *p)
{
	unsigned left;

	pthread_mutex_lock(&lock);
	left = --p->references;
	pthread_mutex_unlock(&lock);
	if (left)
		return;
	if (p->ctx)
		gs_memory_give(p->ctx->g, p->ctx->proc, p->bytes);
	free(p);
}

static void keep(struct physical *p)
{
	pthread_mutex_lock(&lock);
	p->references++;
	pthread_mutex_unlock(&lock);
}

GS_API cuMemRelease(CUmemGenericAllocationHandle h)
{
	GS_TRY(gs_enter());
	if (!h)
		return CUDA_ERROR_INVALID_VALUE;
	drop((struct physical *)(uintptr_t)h);
	return CUDA_SUCCESS;
}

GS_API cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr wish, unsigned long long flags)
{
	(void)align, (void)wish, (void)flags;
	GS_TRY(gs_enter());
	if (!bytes || bytes % PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	*at = gs_address(bytes);
	gs_hold((struct gs_holding){.at = *at, .bytes = bytes, .held = GS_HELD_RESERVED});
	return CUDA_SUCCESS;
}

GS_API cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
	struct gs_holding h;

	(void)bytes;
	GS_TRY(gs_enter());
	return gs_release(at, GS_HELD_RESERVED, &h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GS_API cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	struct physical *p = (struct physical *)(uintptr_t)h;

	GS_TRY(gs_enter());
	if (flags || offset || !p || bytes != p->bytes || at % PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	keep(p);
	gs_hold((struct gs_holding){.at = at, .bytes = bytes, .held = GS_HELD_MAPPED, .of = p});
	return CUDA_SUCCESS;
}

/* The range may hold several mappings, but only whole ones. */
GS_API cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	struct gs_holding h;
	CUdeviceptr end = at + bytes;

	GS_TRY(gs_enter());
	while (at < end) {
		if (!gs_release(at, GS_HELD_MAPPED, &h))
			return CUDA_ERROR_INVALID_VALUE;
		at += h.bytes;
		drop(h.of);
	}
	return CUDA_SUCCESS;
}

GS_API cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *d, size_t count)
{
	(void)at, (void)bytes;
	GS_TRY(gs_enter());
	return d && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GS_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at)
{
	struct gs_holding h;

	GS_TRY(gs_enter());
	if (!gs_release((uintptr_t)at, GS_HELD_MAPPED, &h))
		return CUDA_ERROR_INVALID_VALUE;
	gs_hold(h);
	keep(h.of);
	*out = (uintptr_t)h.of;
	return CUDA_SUCCESS;
}

/* From then on, the process's checkpoints are refused. */
static void shares(void)
{
	gs_client->shares = 1;
}

/* Only descriptors are exported. The importer is charged nothing, and the memory
 * lasts as long as its maker holds it. */
GS_API cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	struct physical *p = (struct physical *)(uintptr_t)h;
	int fd;

	GS_TRY(gs_enter());
	if (type != 1 || flags || !p)
		return CUDA_ERROR_INVALID_VALUE;
	fd = memfd_create("memory", MFD_CLOEXEC);
	if (fd < 0 || write(fd, &p->bytes, sizeof p->bytes) != sizeof p->bytes)
		return CUDA_ERROR_UNKNOWN;
	shares();
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

/* Nobody opens these: they only have the checkpoints refused. */
GS_API cuIpcGetMemHandle(void *handle, CUdeviceptr p)
{
	GS_TRY(gs_enter());
	if (!handle || !p)
		return CUDA_ERROR_INVALID_VALUE;
	shares();
	return CUDA_SUCCESS;
}

GS_API cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	GS_TRY(gs_enter());
	if (!out || !pool || type != 1 || flags)
		return CUDA_ERROR_INVALID_VALUE;
	shares();
	return CUDA_SUCCESS;
}

GS_API cuMulticastCreate(CUmemGenericAllocationHandle *h, const void *props)
{
	GS_TRY(gs_enter());
	if (!h || !props)
		return CUDA_ERROR_INVALID_VALUE;
	shares();
	*h = (uintptr_t)h;
	return CUDA_SUCCESS;
}

GS_API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *handle, CUmemAllocationHandleType type)
{
	struct physical p = {0};

	GS_TRY(gs_enter());
	if (type != 1 || pread((int)(intptr_t)handle, &p.bytes, sizeof p.bytes, 0) != sizeof p.bytes)
		return CUDA_ERROR_INVALID_VALUE;
	shares();
	return make(h, p);
}

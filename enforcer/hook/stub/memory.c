/* Memory: what this process holds, in an arena that all processes share. No byte of
 * it exists. A pointer is a number that nothing else has. Linear memory takes
 * exactly the bytes that were asked for, so that sums come out. */
#include <stdlib.h>

#include "stub.h"

#define BUCKETS 8192
#define PAGE (2ull << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gs_holding *table[BUCKETS];

static struct gs_holding **bucket(CUdeviceptr at)
{
	return &table[at / PAGE % BUCKETS];
}

CUdeviceptr gs_address(uint64_t bytes)
{
	static _Atomic uint64_t next = 0x700000000000;

	return next += (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
}

void gs_hold(struct gs_holding h)
{
	struct gs_holding *copy = malloc(sizeof *copy), **b = bucket(h.at);

	if (!copy)
		abort();
	pthread_mutex_lock(&lock);
	h.next = *b;
	*copy = h;
	*b = copy;
	pthread_mutex_unlock(&lock);
}

bool gs_release(CUdeviceptr at, enum gs_held held, struct gs_holding *out)
{
	struct gs_holding **link = bucket(at), *h;

	pthread_mutex_lock(&lock);
	while (*link && ((*link)->at != at || (*link)->held != held))
		link = &(*link)->next;
	h = *link;
	if (h) {
		*out = *h;
		*link = h->next;
	}
	pthread_mutex_unlock(&lock);
	free(h);
	return h != NULL;
}

static int device_in(const struct gs_holding *h, CUdeviceptr at)
{
	for (; h; h = h->next)
		if (h->held != GS_HELD_ARRAY && at >= h->at && at - h->at < h->bytes)
			return h->ctx ? h->ctx->device : 0;
	return -1;
}

int gs_memory_device(CUdeviceptr at)
{
	pthread_mutex_lock(&lock);
	int device = device_in(*bucket(at), at); /* most callers ask for its beginning */
	for (int i = 0; i < BUCKETS && device < 0; i++)
		device = device_in(table[i], at);
	pthread_mutex_unlock(&lock);
	return device;
}

void gs_memory_forget(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < BUCKETS; i++) {
		for (struct gs_holding **link = &table[i], *h; (h = *link);) {
			if (h->ctx != ctx || (h->held != GS_HELD_LINEAR && h->held != GS_HELD_ARRAY)) {
				link = &h->next;
				continue;
			}
			gs_memory_give(ctx->g, ctx->proc, h->bytes);
			*link = h->next;
			free(h);
		}
	}
	pthread_mutex_unlock(&lock);
}

static CUresult take(uint64_t bytes, enum gs_held held, CUdeviceptr *out)
{
	CUcontext c;

	GS_TRY(gs_current(&c));
	if (!bytes || !out)
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(gs_unsafe());
	if (!gs_memory_take(c->g, c->proc, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = gs_address(bytes);
	gs_hold((struct gs_holding){.at = *out, .bytes = bytes, .held = held, .ctx = c});
	return CUDA_SUCCESS;
}

static CUresult give(CUdeviceptr at, enum gs_held held)
{
	struct gs_holding h;

	if (!gs_release(at, held, &h))
		return CUDA_ERROR_INVALID_VALUE;
	gs_memory_give(h.ctx->g, h.ctx->proc, h.bytes);
	return CUDA_SUCCESS;
}

GS_API cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { return take(bytes, GS_HELD_LINEAR, out); }

GS_API cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
	size_t row = (width + 511) / 512 * 512;

	(void)element;
	if (!pitch)
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(take(row * height, GS_HELD_LINEAR, out));
	*pitch = row;
	return CUDA_SUCCESS;
}

/* It takes device memory at once. The real driver does so at the first touch. */
GS_API cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
	if (flags != 1 && flags != 2)
		return CUDA_ERROR_INVALID_VALUE;
	return take(bytes, GS_HELD_LINEAR, out);
}

extern CUresult cuMemFreeAsync(CUdeviceptr at, CUstream s);

/* Memory of a pool may be freed here too. 0 may be freed any number of times. */
GS_API cuMemFree_v2(CUdeviceptr at)
{
	CUcontext c;

	GS_TRY(gs_current(&c));
	GS_TRY(gs_unsafe());
	if (!at)
		return CUDA_SUCCESS;
	GS_TRY(gs_finish(c));
	return give(at, GS_HELD_LINEAR) ? cuMemFreeAsync(at, NULL) : CUDA_SUCCESS;
}

/* Memory of the host that the GPU sees too, under the same address. */
GS_API cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
	CUcontext c;

	(void)flags;
	GS_TRY(gs_current(&c));
	return at && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GS_API cuMemHostUnregister(void *at)
{
	CUcontext c;

	GS_TRY(gs_current(&c));
	return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GS_API cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags)
{
	CUcontext c;

	GS_TRY(gs_current(&c));
	if (!out || !at || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (uintptr_t)at;
	return CUDA_SUCCESS;
}

struct CUarray_st { CUDA_ARRAY_MEMORY_REQUIREMENTS needs; };
struct CUmipmappedArray_st { CUDA_ARRAY_MEMORY_REQUIREMENTS needs; };

static size_t element(CUarray_format f)
{
	return f == CU_AD_FORMAT_UNSIGNED_INT8 || f == CU_AD_FORMAT_SIGNED_INT8 ? 1
		: f == CU_AD_FORMAT_UNSIGNED_INT32 || f == CU_AD_FORMAT_SIGNED_INT32 || f == CU_AD_FORMAT_FLOAT ? 4 : 2;
}

static size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	size_t bytes = d->Width * element(d->Format) * d->NumChannels;

	if (d->Height)
		bytes *= d->Height;
	if (d->Depth)
		bytes *= d->Depth;
	return (bytes + 65535) / 65536 * 65536;
}

/* An array is held under its handle's number. */
static CUresult make(void **out, size_t bytes)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS *a;
	CUcontext c;

	GS_TRY(gs_current(&c));
	GS_TRY(gs_unsafe());
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!gs_memory_take(c->g, c->proc, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*a = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = bytes, .alignment = 65536};
	*out = a;
	gs_hold((struct gs_holding){.at = (uintptr_t)a, .bytes = bytes, .held = GS_HELD_ARRAY, .ctx = c});
	return CUDA_SUCCESS;
}

static CUresult unmake(void *a)
{
	GS_TRY(gs_enter());
	GS_TRY(give((uintptr_t)a, GS_HELD_ARRAY) ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS);
	free(a);
	return CUDA_SUCCESS;
}

GS_API cuArray3DCreate_v2(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return make((void **)a, array_bytes(d));
}

GS_API cuArrayCreate_v2(CUarray *a, const CUDA_ARRAY_DESCRIPTOR *d)
{
	CUDA_ARRAY3D_DESCRIPTOR all = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};

	return cuArray3DCreate_v2(a, &all);
}

GS_API cuMipmappedArrayCreate(CUmipmappedArray *m, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	CUDA_ARRAY3D_DESCRIPTOR level = *d;
	size_t bytes = 0;

	for (unsigned i = 0; i < levels; i++) {
		bytes += array_bytes(&level);
		level.Width = level.Width > 1 ? level.Width / 2 : 1;
		level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
		level.Depth = level.Depth > 1 ? level.Depth / 2 : level.Depth;
	}
	return make((void **)m, bytes);
}

GS_API cuArrayDestroy(CUarray a) { return unmake(a); }
GS_API cuMipmappedArrayDestroy(CUmipmappedArray m) { return unmake(m); }

GS_API cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray a, CUdevice d)
{
	GS_TRY(gs_device(d));
	*out = a->needs;
	return CUDA_SUCCESS;
}

GS_API cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray m, CUdevice d)
{
	GS_TRY(gs_device(d));
	*out = m->needs;
	return CUDA_SUCCESS;
}

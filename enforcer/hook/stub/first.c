/* A part of the first interface: sizes and addresses have 32 bits. Each context has
 * addresses of its own, and another context may have the same ones. */
#include <stdlib.h>

#include "stub.h"

typedef unsigned CUdeviceptr_v1;
typedef struct { unsigned Width, Height; CUarray_format Format; unsigned NumChannels; } CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct {
	unsigned Width, Height, Depth;
	CUarray_format Format;
	unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice), cuMemAlloc_v2(CUdeviceptr *, size_t),
	cuMemFree_v2(CUdeviceptr),
	cuMemGetInfo_v2(size_t *, size_t *), cuDeviceTotalMem_v2(size_t *, CUdevice),
	cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned),
	cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *),
	cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *),
	cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t),
	cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream),
	cuMemsetD32_v2(CUdeviceptr, unsigned, size_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct low { /* an address of a context, and what it stands for */
	struct low *next;
	CUcontext ctx;
	CUdeviceptr_v1 at;
	CUdeviceptr real;
} *all;

static CUdeviceptr real(CUdeviceptr_v1 at)
{
	CUcontext c = NULL;
	CUdeviceptr found = 1; /* no context's */

	gs_current(&c);
	pthread_mutex_lock(&lock);
	for (struct low *l = all; l; l = l->next)
		if (l->ctx == c && l->at == at) {
			found = l->real;
			break;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

static CUresult name(CUdeviceptr_v1 *out, CUdeviceptr at)
{
	struct low *l = malloc(sizeof *l);

	if (!l)
		abort();
	l->real = at;
	l->at = 1 << 20;
	gs_current(&l->ctx);
	pthread_mutex_lock(&lock);
	for (const struct low *o = all; o; o = o->next)
		if (o->ctx == l->ctx && o->at >= l->at)
			l->at = o->at + (1 << 20);
	l->next = all;
	all = l;
	pthread_mutex_unlock(&lock);
	*out = l->at;
	return CUDA_SUCCESS;
}

GS_API cuCtxCreate(CUcontext *c, unsigned flags, CUdevice d) { return cuCtxCreate_v2(c, flags, d); }

GS_API cuMemAlloc(CUdeviceptr_v1 *out, unsigned bytes)
{
	CUdeviceptr at;

	GS_TRY(cuMemAlloc_v2(&at, bytes));
	return name(out, at);
}

GS_API cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	CUdeviceptr at;
	size_t row;

	GS_TRY(cuMemAllocPitch_v2(&at, &row, width, height, element));
	*pitch = (unsigned)row;
	return name(out, at);
}

GS_API cuMemFree(CUdeviceptr_v1 at) { return cuMemFree_v2(real(at)); }

GS_API cuMemGetInfo(unsigned *left, unsigned *total)
{
	size_t l, t;

	GS_TRY(cuMemGetInfo_v2(&l, &t));
	*left = l > UINT32_MAX ? UINT32_MAX : (unsigned)l;
	*total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	return CUDA_SUCCESS;
}

GS_API cuDeviceTotalMem(unsigned *total, CUdevice d)
{
	size_t t;

	GS_TRY(cuDeviceTotalMem_v2(&t, d));
	*total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	return CUDA_SUCCESS;
}

GS_API cuArrayCreate(CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	return cuArrayCreate_v2(a, &(CUDA_ARRAY_DESCRIPTOR){.Width = d->Width, .Height = d->Height, .Format = d->Format,
							    .NumChannels = d->NumChannels});
}

GS_API cuArray3DCreate(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	return cuArray3DCreate_v2(a, &(CUDA_ARRAY3D_DESCRIPTOR){
		.Width = d->Width, .Height = d->Height, .Depth = d->Depth, .Format = d->Format,
			.NumChannels = d->NumChannels, .Flags = d->Flags});
}

GS_API cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned n) { return cuMemcpyHtoD_v2(real(to), from, n); }
GS_API cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned n, CUstream s)
{
	return cuMemcpyDtoDAsync_v2(real(to), real(from), n, s);
}
GS_API cuMemsetD32(CUdeviceptr_v1 to, unsigned value, unsigned n) { return cuMemsetD32_v2(real(to), value, n); }

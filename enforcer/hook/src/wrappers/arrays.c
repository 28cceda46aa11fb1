/* Arrays and mipmapped arrays. The driver tells the size of only some of them. The
 * rest are charged by an estimate. */
#include "wrappers/arrays.h"

#include "ledger/claims.h"
#include "ledger/growers.h"
#include "wrappers/wrapped.h"

static uint64_t up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Bytes of one texel, after CUarray_format. An unknown format counts 4 bytes a
 * channel, and so does a compressed one, which takes less. */
uint64_t gs_texel(int format, unsigned channels)
{
	switch (format) {
	case 0x01: case 0x08: case 0xb0: /* 8-bit integers, NV12 */
		return channels;
	case 0x02: case 0x09: case 0x10: /* 16-bit integers, half */
		return 2ull * channels;
	default:
		return 4ull * channels;
	}
}

/* The rows are kept in blocks of 64 bytes by 8 rows. */
static uint64_t estimate(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	const uint64_t most = gs_product(UINT64_MAX, 1);
	uint64_t sum = 0, w = d->Width, h = d->Height, n = d->Depth ? d->Depth : 1;
	uint64_t unit = gs_texel(d->Format, d->NumChannels);

	if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0; /* memory is mapped to it later, see mappings.c */
	for (unsigned i = 0; i < levels && i < 32; i++) {
		uint64_t row = gs_product(w >> i ? w >> i : 1, unit);
		uint64_t rows = h ? up(gs_product(h >> i ? h >> i : 1, 1), 8) : 1;
		sum += gs_product(gs_product(up(row, 64), rows), n);
		if (sum > most)
			sum = most;
	}
	return sum;
}

/* The bytes that the array takes, according to the driver; 0: it does not say. */
static uint64_t told(void *array, bool mipmapped)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS m = {0};
	CUdevice device;
	CUresult r = CUDA_ERROR_NOT_FOUND;

	if (!gs_real.cuCtxGetDevice || gs_real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return 0;
	if (!mipmapped && gs_real.cuArrayGetMemoryRequirements)
		r = gs_real.cuArrayGetMemoryRequirements(&m, array, device);
	if (mipmapped && gs_real.cuMipmappedArrayGetMemoryRequirements)
		r = gs_real.cuMipmappedArrayGetMemoryRequirements(&m, array, device);
	return r == CUDA_SUCCESS ? m.size : 0;
}

/* Ends a creation; r is the driver's answer. */
static CUresult created(struct gs_claim *c, CUresult r, void *array, bool mipmapped)
{
	if (r != CUDA_SUCCESS)
		gs_claim_abort(c);
	if (r != CUDA_SUCCESS || c->gpu < 0 || !c->bytes)
		return r;
	uint64_t bytes = told(array, mipmapped);
	if (!bytes)
		bytes = c->bytes;
	if (gs_claim_commit(c, bytes)) {
		gs_hold(c, GS_ARRAY_KEY(array), bytes);
		return r;
	}
	if (mipmapped)
		gs_real.cuMipmappedArrayDestroy(array);
	else
		gs_real.cuArrayDestroy(array);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define CREATE(name, descriptor, depth, flags)                                                           \
	CUresult name(CUarray *array, const descriptor *d)                                               \
	{                                                                                                \
		struct gs_claim c;                                                                       \
		CUarray a = NULL;                                                                        \
                                                                                                         \
		GS_WHOLE(name);                                                                          \
		if (!array || !d)                                                                        \
			return gs_real.name(array, d);                                                   \
		CUDA_ARRAY3D_DESCRIPTOR asked = {d->Width, d->Height, depth, d->Format, d->NumChannels, flags}; \
		if (!gs_claim(&c, gs_claim_gpu(), GS_ARRAY, estimate(&asked, 1)))                        \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                 \
		CUresult r = gs_real.name(&a, d);                                                        \
		r = created(&c, r, a, false);                                                            \
		if (r == CUDA_SUCCESS)                                                                   \
			*array = a;                                                                      \
		return r;                                                                                \
	}
CREATE(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, 0, 0)
CREATE(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, 0, 0)
CREATE(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, d->Depth, d->Flags)
CREATE(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, d->Depth, d->Flags)

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	struct gs_claim c;
	CUmipmappedArray a = NULL;

	GS_WHOLE(cuMipmappedArrayCreate);
	if (!array || !d)
		return gs_real.cuMipmappedArrayCreate(array, d, levels);
	if (!gs_claim(&c, gs_claim_gpu(), GS_ARRAY, estimate(d, levels)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = gs_real.cuMipmappedArrayCreate(&a, d, levels);
	r = created(&c, r, a, true);
	if (r == CUDA_SUCCESS)
		*array = a;
	return r;
}

CUresult cuArrayDestroy(CUarray array)
{
	struct gs_entry e;

	GS_WHOLE(cuArrayDestroy);
	bool held = gs_table_take(&gs_held, GS_ARRAY_KEY(array), &e);
	CUresult r = gs_real.cuArrayDestroy(array);
	if (held)
		gs_let_go(&e, r);
	return r;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct gs_entry e;

	GS_WHOLE(cuMipmappedArrayDestroy);
	bool held = gs_table_take(&gs_held, GS_ARRAY_KEY(array), &e);
	CUresult r = gs_real.cuMipmappedArrayDestroy(array);
	if (held)
		gs_let_go(&e, r);
	return r;
}

/* Copies, each with its bytes and its way. A fill counts as a copy within the GPU.
 *
 * The _ptds and _ptsz names are those that a program calls if it was compiled for a
 * default stream per thread. */
#include "gate/bandwidth.h"
#include "gate/gate.h"
#include "ledger/claims.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/arrays.h"
#include "wrappers/wrapped.h"

/* It is known without a look that the bytes stay within the GPU. */
#define FILL(way) (__builtin_constant_p(way) && (way) == GS_WITHIN)

static void note(const struct gs_copy *c, bool waits)
{
	uint32_t units = gs_note_units(c->bytes, 64);

	if (waits)
		gs_note_wait(GS_EVENT_COPYING, units);
	else
		gs_note(GS_EVENT_COPY, units);
}

/* Defines the wrapper of a copy: its parameters, its arguments, the stream whose
 * capture it could become a part of, its bytes and their way. The way is found out
 * only if it matters, because that may need the driver. A copy within the GPU takes
 * the GPU's time and passes the gate as a launch does. It counts as a launch
 * whenever its way is known without a look, so that a launch means the same at all
 * times. */
#define COPY(name, parameters, arguments, stream, bytes, way, waits) \
	CUresult name parameters                                \
	{                                                       \
		struct gs_copy c;                               \
		struct gs_launch l;                             \
                                                                \
		GS_NEED(name);                                  \
		GS_ERRNO;                                       \
		if (unlikely(gs_copy_enter(&c, stream, bytes))) \
			gs_copy_wait(&c, way);                  \
		bool within = FILL(way) || (gated() && (way) == GS_WITHIN); \
		if (within)                                     \
			gs_gate_enter(&l, stream, false, NULL, NULL); \
		note(&c, waits);                                \
		CUresult r = gs_real.name arguments;            \
		gs_note_result(r);                              \
		if (waits)                                      \
			gs_note(GS_EVENT_COPIED, 0);            \
		if (within)                                     \
			gs_gate_leave(&l, r);                   \
		if (within && !FILL(way))                       \
			gs_gate_uncount(&l);                    \
		gs_copy_leave(&c, r);                           \
		return r;                                       \
	}

/* The same under the names of both default streams. A call that waits for its copy
 * has no stream, and the legacy stream never captures it. */
#define BARE(...) __VA_ARGS__
#define WAITS(name, parameters, arguments, bytes, way)          \
	COPY(name, parameters, arguments, NULL, bytes, way, true) \
	COPY(name##_ptds, parameters, arguments, CU_STREAM_PER_THREAD, bytes, way, true)
#define ASYNC(name, parameters, arguments, bytes, way)                                  \
	COPY(name, (BARE parameters, CUstream s), (BARE arguments, s), s, bytes, way, false) \
	COPY(name##_ptsz, (BARE parameters, CUstream s), (BARE arguments, s), s ? s : CU_STREAM_PER_THREAD, bytes, way, false)
#define BOTH(waits, async, parameters, arguments, bytes, way)   \
	WAITS(waits, parameters, arguments, bytes, way)         \
	ASYNC(async, parameters, arguments, bytes, way)

/* Launches have to look at the page. */
static bool gated(void)
{
	return __atomic_load_n(&atomic_load_explicit(&gs_page, memory_order_acquire)->gated, __ATOMIC_RELAXED);
}

/* ---- how many, and which way ---- */

static uint64_t bytes_2d(const CUDA_MEMCPY2D *p) { return p ? gs_product(p->WidthInBytes, p->Height) : 0; }
static uint64_t bytes_3d(const CUDA_MEMCPY3D *p)
{
	return p ? gs_product(gs_product(p->WidthInBytes, p->Height), p->Depth) : 0;
}

static uint64_t bytes_of_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count)
{
	uint64_t n = 0;

	for (size_t i = 0; to && from && sizes && i < count; i++)
		if (__builtin_add_overflow(n, sizes[i], &n))
			return UINT64_MAX;
	return n;
}

/* The bytes of one element of the extent of a copy. */
static uint64_t unit(const CUDA_MEMCPY3D_BATCH_OP *p)
{
	const CUmemcpy3DOperand *side = p->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? &p->src : &p->dst;
	CUDA_ARRAY3D_DESCRIPTOR d;

	if (side->type != CU_MEMCPY_OPERAND_TYPE_ARRAY || !gs_real.cuArray3DGetDescriptor_v2 ||
	    gs_real.cuArray3DGetDescriptor_v2(&d, side->op.array.array))
		return 1;
	return gs_texel(d.Format, d.NumChannels);
}

static uint64_t bytes_of_boxes(const CUDA_MEMCPY3D_BATCH_OP *p, size_t count)
{
	uint64_t n = 0;

	for (size_t i = 0; p && i < count; i++)
		n = gs_product(n + gs_product(gs_product(gs_product(p[i].width, p[i].height), p[i].depth), unit(&p[i])),
			       1);
	return n;
}

static uint64_t bytes_of_ranges(const CUdeviceptr *at, const size_t *sizes, size_t count)
{
	return bytes_of_batch(at, at, sizes, count);
}

static uint64_t bytes_decompressed(const CUmemDecompressParams *p, size_t count)
{
	uint64_t n = 0;

	for (size_t i = 0; p && i < count; i++)
		n = gs_product(n + gs_product(p[i].dstNumBytes, 1), 1);
	return n;
}

/* The device whose memory lies there; -1: the host's. */
static int device_of(CUdeviceptr p)
{
	int type = 0, device = -1;

	if (!gs_real.cuPointerGetAttribute ||
	    gs_real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) ||
	    type != CU_MEMORYTYPE_DEVICE ||
	    gs_real.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p))
		return -1;
	return device;
}

/* Any pointers. The link is not used only if both belong to one device. The driver
 * is asked, which takes some 100 ns, only if a rate holds. */
static enum gs_way between(CUdeviceptr to, CUdeviceptr from)
{
	int device = device_of(to);

	return device >= 0 && device == device_of(from) ? GS_WITHIN : GS_LINK;
}

/* The driver will refuse a batch that names nothing. */
static enum gs_way between_first(const CUdeviceptr *to, const CUdeviceptr *from, size_t count)
{
	return to && from && count ? between(to[0], from[0]) : GS_LINK;
}

/* One side of a copy in two or three dimensions. */
static bool on_device(int type, CUdeviceptr p)
{
	return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
		(type == CU_MEMORYTYPE_UNIFIED && device_of(p) >= 0);
}

static enum gs_way way(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from)
{
	if (to_type == CU_MEMORYTYPE_UNIFIED && from_type == CU_MEMORYTYPE_UNIFIED)
		return between(to, from);
	return on_device(to_type, to) && on_device(from_type, from) ? GS_WITHIN : GS_LINK;
}

#define SIDES(p) p->dstMemoryType, p->dstDevice, p->srcMemoryType, p->srcDevice
static enum gs_way way_2d(const CUDA_MEMCPY2D *p) { return p ? way(SIDES(p)) : GS_LINK; }
static enum gs_way way_3d(const CUDA_MEMCPY3D *p) { return p ? way(SIDES(p)) : GS_LINK; }
static enum gs_way way_peer(CUcontext to, CUcontext from) { return to == from ? GS_WITHIN : GS_LINK; }
static enum gs_way way_3d_peer(const CUDA_MEMCPY3D *p)
{
	return !p || way_peer(p->dstContext, p->srcContext) == GS_LINK ? GS_LINK : way_3d(p);
}

static int operand_type(const CUmemcpy3DOperand *o)
{
	return o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
}

static enum gs_way way_boxes(const CUDA_MEMCPY3D_BATCH_OP *p, size_t count)
{
	return p && count ? way(operand_type(&p->dst), p->dst.op.ptr.ptr, operand_type(&p->src), p->src.op.ptr.ptr)
			  : GS_LINK;
}

/* ---- the wrappers ---- */

BOTH(cuMemcpy, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n), n, between(to, from))
BOTH(cuMemcpyPeer, cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t n),
      (to, there, from, here, n),
      n, way_peer(there, here))
BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t n), (to, from, n), n, GS_LINK)
BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t n), (to, from, n), n, GS_LINK)
/* Two devices that are peers may have one each. */
BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n), n,
     between(to, from))
BOTH(cuMemcpyHtoA_v2, cuMemcpyHtoAAsync_v2, (CUarray to, size_t at, const void *from, size_t n), (to, at, from, n), n,
     GS_LINK)
BOTH(cuMemcpyAtoH_v2, cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t at, size_t n), (to, from, at, n), n,
     GS_LINK)
WAITS(cuMemcpyDtoA_v2, (CUarray to, size_t at, CUdeviceptr from, size_t n), (to, at, from, n), n, GS_WITHIN)
WAITS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t at, size_t n), (to, from, at, n), n, GS_WITHIN)
WAITS(cuMemcpyAtoA_v2, (CUarray to, size_t at, CUarray from, size_t begin, size_t n), (to, at, from, begin, n), n,
      GS_WITHIN)
BOTH(cuMemcpy2D_v2, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *p), (p), bytes_2d(p), way_2d(p))
WAITS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *p), (p), bytes_2d(p), way_2d(p))
BOTH(cuMemcpy3D_v2, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *p), (p), bytes_3d(p), way_3d(p))
BOTH(cuMemcpy3DPeer, cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D *p), (p), bytes_3d(p), way_3d_peer(p))

/* The first copy of a batch stands for all: a program moves one way at a time.
 * These calls are of CUDA 12.8. Since 13 they lack the place of the failure. */
#define BATCH \
	CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *begin, size_t kinds
#define BATCHED to, from, sizes, count, attributes, begin, kinds
ASYNC(cuMemcpyBatchAsync, (BATCH, size_t *failed), (BATCHED, failed),
      bytes_of_batch(to, from, sizes, count), between_first(to, from, count))
ASYNC(cuMemcpyBatchAsync_v2, (BATCH), (BATCHED), bytes_of_batch(to, from, sizes, count), between_first(to, from, count))

ASYNC(cuMemcpy3DBatchAsync, (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags),
      (count, ops, failed, flags),
      bytes_of_boxes(ops, count), way_boxes(ops, count))
ASYNC(cuMemcpy3DBatchAsync_v2, (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags),
      (count, ops, flags),
      bytes_of_boxes(ops, count), way_boxes(ops, count))

/* Pages that move on request. Those that are already there count too: no call tells
 * which they are. */
ASYNC(cuMemPrefetchAsync, (CUdeviceptr at, size_t n, CUdevice to), (at, n, to), n, GS_LINK)
ASYNC(cuMemPrefetchAsync_v2, (CUdeviceptr at, size_t n, CUmemLocation to, unsigned flags), (at, n, to, flags), n,
      GS_LINK)
ASYNC(cuMemPrefetchBatchAsync,
      (CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, size_t *begin, size_t places,
       unsigned long long flags),
      (at, sizes, count, to, begin, places, flags), bytes_of_ranges(at, sizes, count), GS_LINK)

ASYNC(cuMemBatchDecompressAsync, (CUmemDecompressParams *p, size_t count, unsigned flags, size_t *failed),
      (p, count, flags, failed),
      bytes_decompressed(p, count), GS_WITHIN)

/* Fills: a number of elements, or rows of them. */
BOTH(cuMemsetD8_v2, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t n), (to, value, n), n, GS_WITHIN)
BOTH(cuMemsetD2D8_v2, cuMemsetD2D8Async, (CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
					  size_t height),
      (to, pitch, value, width, height),
      gs_product(width, height), GS_WITHIN)
BOTH(cuMemsetD16_v2, cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t n), (to, value, n),
      gs_product(n, 2), GS_WITHIN)
BOTH(cuMemsetD2D16_v2, cuMemsetD2D16Async,
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
      (to, pitch, value, width, height),
      gs_product(gs_product(width, height), 2), GS_WITHIN)
BOTH(cuMemsetD32_v2, cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t n), (to, value, n), gs_product(n, 4),
     GS_WITHIN)
BOTH(cuMemsetD2D32_v2, cuMemsetD2D32Async, (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height),
      (to, pitch, value, width, height),
      gs_product(gs_product(width, height), 4), GS_WITHIN)

/* ---- of the first interface: one default stream, and one GPU a context ---- */

#define FLAT_v1(p) ((p) ? gs_product((p)->WidthInBytes, (p)->Height) : 0)
#define DEEP_v1(p) ((p) ? gs_product(gs_product((p)->WidthInBytes, (p)->Height), (p)->Depth) : 0)
#define ON_v1(type) ((type) == CU_MEMORYTYPE_DEVICE || (type) == CU_MEMORYTYPE_ARRAY)
#define WAY_v1(p) ((p) && ON_v1((p)->dstMemoryType) && ON_v1((p)->srcMemoryType) ? GS_WITHIN : GS_LINK)
#define WAITS_v1(name, parameters, arguments, bytes, way) \
	COPY(name, parameters, arguments, NULL, bytes, way, true)
#define BOTH_v1(waits, async, parameters, arguments, bytes, way)   \
	WAITS_v1(waits, parameters, arguments, bytes, way)         \
	COPY(async, (BARE parameters, CUstream s), (BARE arguments, s), s, bytes, way, false)

BOTH_v1(cuMemcpyHtoD, cuMemcpyHtoDAsync, (CUdeviceptr_v1 to, const void *from, unsigned n), (to, from, n), n, GS_LINK)
BOTH_v1(cuMemcpyDtoH, cuMemcpyDtoHAsync, (void *to, CUdeviceptr_v1 from, unsigned n), (to, from, n), n, GS_LINK)
BOTH_v1(cuMemcpyDtoD, cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned n), (to, from, n), n,
	GS_WITHIN)
BOTH_v1(cuMemcpyHtoA, cuMemcpyHtoAAsync, (CUarray to, unsigned at, const void *from, unsigned n), (to, at, from, n), n,
	GS_LINK)
BOTH_v1(cuMemcpyAtoH, cuMemcpyAtoHAsync, (void *to, CUarray from, unsigned at, unsigned n), (to, from, at, n), n,
	GS_LINK)
WAITS_v1(cuMemcpyDtoA, (CUarray to, unsigned at, CUdeviceptr_v1 from, unsigned n), (to, at, from, n), n, GS_WITHIN)
WAITS_v1(cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned at, unsigned n), (to, from, at, n), n, GS_WITHIN)
WAITS_v1(cuMemcpyAtoA, (CUarray to, unsigned at, CUarray from, unsigned begin, unsigned n), (to, at, from, begin, n), n,
	 GS_WITHIN)
BOTH_v1(cuMemcpy2D, cuMemcpy2DAsync, (const CUDA_MEMCPY2D_v1 *p), (p), FLAT_v1(p), WAY_v1(p))
WAITS_v1(cuMemcpy2DUnaligned, (const CUDA_MEMCPY2D_v1 *p), (p), FLAT_v1(p), WAY_v1(p))
BOTH_v1(cuMemcpy3D, cuMemcpy3DAsync, (const CUDA_MEMCPY3D_v1 *p), (p), DEEP_v1(p), WAY_v1(p))
WAITS_v1(cuMemsetD8, (CUdeviceptr_v1 to, unsigned char value, unsigned n), (to, value, n), n, GS_WITHIN)
WAITS_v1(cuMemsetD16, (CUdeviceptr_v1 to, unsigned short value, unsigned n), (to, value, n), gs_product(n, 2),
	 GS_WITHIN)
WAITS_v1(cuMemsetD32, (CUdeviceptr_v1 to, unsigned value, unsigned n), (to, value, n), gs_product(n, 4), GS_WITHIN)
WAITS_v1(cuMemsetD2D8, (CUdeviceptr_v1 to, unsigned pitch, unsigned char value, unsigned width, unsigned height),
	 (to, pitch, value, width, height), gs_product(width, height), GS_WITHIN)
WAITS_v1(cuMemsetD2D16, (CUdeviceptr_v1 to, unsigned pitch, unsigned short value, unsigned width, unsigned height),
	 (to, pitch, value, width, height), gs_product(gs_product(width, height), 2), GS_WITHIN)
WAITS_v1(cuMemsetD2D32, (CUdeviceptr_v1 to, unsigned pitch, unsigned value, unsigned width, unsigned height),
	 (to, pitch, value, width, height), gs_product(gs_product(width, height), 4), GS_WITHIN)

/* Copies and fills. No byte of the memory exists, so none is moved. A copy takes
 * its time on the engine of its way, and the caller of one that is not asynchronous
 * waits for it. */
#include "stub.h"

#define MOST (1ull << 47) /* bytes; no address reaches further */

extern CUresult cuStreamSynchronize(CUstream s);

static CUresult copy(CUstream s, enum gs_engine way, bool good, uint64_t bytes, bool waits)
{
	CUgraph graph;

	GS_TRY(gs_stream_of(s, &s));
	if (!good || bytes > MOST)
		return CUDA_ERROR_INVALID_VALUE;
	if (!bytes)
		return CUDA_SUCCESS;
	if (waits)
		GS_TRY(gs_unsafe());
	GS_TRY(gs_capture_of(s, &graph));
	if (graph)
		return gs_graph_add(graph, NULL, gs_copy_ns(way, bytes), 0) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	GS_TRY(gs_put_copy(s, way, bytes));
	return waits ? cuStreamSynchronize(s) : CUDA_SUCCESS;
}

GS_API cuPointerGetAttribute(void *out, CUpointer_attribute what, CUdeviceptr at)
{
	CUcontext c;
	int device;

	GS_TRY(gs_current(&c));
	device = gs_memory_device(at);
	if (!out || device < 0 || (what != CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
				   what != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL))
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)out = what == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : device;
	return CUDA_SUCCESS;
}

static enum gs_engine between(CUdeviceptr to, CUdeviceptr from)
{
	int device = gs_memory_device(to);

	return device >= 0 && device == gs_memory_device(from) ? GS_ENGINE_MEMORY : GS_ENGINE_LINK;
}

static enum gs_engine sides(CUmemorytype to, CUmemorytype from)
{
	return to == CU_MEMORYTYPE_HOST || from == CU_MEMORYTYPE_HOST ? GS_ENGINE_LINK : GS_ENGINE_MEMORY;
}

static uint64_t sum(const size_t *sizes, size_t count)
{
	uint64_t n = 0;

	for (size_t i = 0; sizes && i < count; i++)
		n += sizes[i];
	return n;
}

/* Each call under its names: parameters, way, whether they are good, bytes. */
#define BARE(...) __VA_ARGS__
#define WAITS(name, parameters, way, good, bytes) \
	GS_API name parameters { return copy(NULL, way, good, (good) ? (bytes) : 0, true); } \
	GS_API name##_ptds parameters { return copy(CU_STREAM_PER_THREAD, way, good, (good) ? (bytes) : 0, true); }
#define ASYNC(name, parameters, way, good, bytes) \
	GS_API name(BARE parameters, CUstream s) { return copy(s, way, good, (good) ? (bytes) : 0, false); } \
	GS_API name##_ptsz(BARE parameters, CUstream s) { return copy(GS_PTSZ(s), way, good, (good) ? (bytes) : 0, false); }
#define BOTH(waits, async, parameters, way, good, bytes) \
	WAITS(waits, parameters, way, good, bytes) \
	ASYNC(async, parameters, way, good, bytes)
#define UNUSED __attribute__((unused))

BOTH(cuMemcpy, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t n), between(to, from), to && from, n)
BOTH(cuMemcpyPeer, cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t n),
	there == here ? GS_ENGINE_MEMORY : GS_ENGINE_LINK, to && from && there && here, n)
BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t n), GS_ENGINE_LINK, to && from, n)
BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t n), GS_ENGINE_LINK, to && from, n)
BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t n), between(to, from), to && from,
     n)
BOTH(cuMemcpyHtoA_v2, cuMemcpyHtoAAsync_v2, (CUarray to, UNUSED size_t at, const void *from, size_t n),
	GS_ENGINE_LINK, to && from, n)
BOTH(cuMemcpyAtoH_v2, cuMemcpyAtoHAsync_v2, (void *to, CUarray from, UNUSED size_t at, size_t n),
	GS_ENGINE_LINK, to && from, n)
WAITS(cuMemcpyDtoA_v2, (CUarray to, UNUSED size_t at, CUdeviceptr from, size_t n), GS_ENGINE_MEMORY, to && from, n)
WAITS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, UNUSED size_t at, size_t n), GS_ENGINE_MEMORY, to && from, n)
WAITS(cuMemcpyAtoA_v2, (CUarray to, UNUSED size_t at, CUarray from, UNUSED size_t begin, size_t n),
	GS_ENGINE_MEMORY, to && from, n)

#define PLANE(p) p->WidthInBytes * p->Height
BOTH(cuMemcpy2D_v2, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *p),
     p ? sides(p->dstMemoryType, p->srcMemoryType) : 0, p, PLANE(p))
WAITS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *p), p ? sides(p->dstMemoryType, p->srcMemoryType) : 0, p, PLANE(p))
BOTH(cuMemcpy3D_v2, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *p), p ? sides(p->dstMemoryType, p->srcMemoryType) : 0, p,
	PLANE(p) * p->Depth)
BOTH(cuMemcpy3DPeer, cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *p),
	p && p->dstContext == p->srcContext ? GS_ENGINE_MEMORY : GS_ENGINE_LINK, p, PLANE(p) * p->Depth)

#define BATCH CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, UNUSED void *attributes, \
	UNUSED size_t *begin, UNUSED size_t kinds
ASYNC(cuMemcpyBatchAsync, (BATCH, UNUSED size_t *failed),
      to && from ? between(to[0], from[0]) : 0, to && from && sizes && count, sum(sizes, count))
ASYNC(cuMemcpyBatchAsync_v2, (BATCH),
      to && from ? between(to[0], from[0]) : 0, to && from && sizes && count, sum(sizes, count))

static uint64_t boxes(const CUDA_MEMCPY3D_BATCH_OP *p, size_t count)
{
	uint64_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += p[i].width * p[i].height * p[i].depth;
	return n;
}

static uint64_t unpacked(const CUmemDecompressParams *p, size_t count)
{
	uint64_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += p[i].dstNumBytes;
	return n;
}

ASYNC(cuMemcpy3DBatchAsync, (size_t count, CUDA_MEMCPY3D_BATCH_OP *p, UNUSED size_t *failed,
			     UNUSED unsigned long long flags),
	GS_ENGINE_LINK, p && count, boxes(p, count))
ASYNC(cuMemcpy3DBatchAsync_v2, (size_t count, CUDA_MEMCPY3D_BATCH_OP *p, UNUSED unsigned long long flags),
	GS_ENGINE_LINK, p && count, boxes(p, count))
ASYNC(cuMemPrefetchAsync, (CUdeviceptr at, size_t n, UNUSED CUdevice to), GS_ENGINE_LINK, at, n)
ASYNC(cuMemPrefetchAsync_v2, (CUdeviceptr at, size_t n, UNUSED CUmemLocation to, UNUSED unsigned flags), GS_ENGINE_LINK,
      at, n)
ASYNC(cuMemPrefetchBatchAsync, (CUdeviceptr *at, size_t *sizes, size_t count, CUmemLocation *to, UNUSED size_t *begin,
	UNUSED size_t places, UNUSED unsigned long long flags), GS_ENGINE_LINK, at && sizes && count && to,
	sum(sizes, count))
ASYNC(cuMemBatchDecompressAsync, (CUmemDecompressParams *p, size_t count, UNUSED unsigned flags, UNUSED size_t *failed),
	GS_ENGINE_MEMORY, p && count, unpacked(p, count))

#define FILLS(bits, type) \
	BOTH(cuMemsetD##bits##_v2, cuMemsetD##bits##Async, (CUdeviceptr to, UNUSED type value, size_t n), \
		GS_ENGINE_MEMORY, to, n * bits / 8) \
	BOTH(cuMemsetD2D##bits##_v2, cuMemsetD2D##bits##Async, \
		(CUdeviceptr to, UNUSED size_t pitch, UNUSED type value, size_t width, size_t height), \
		GS_ENGINE_MEMORY, to, width * height * bits / 8)
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

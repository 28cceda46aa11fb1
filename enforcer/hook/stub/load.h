/* The load generator's view of the driver: resolved as programs do it. */
#ifndef GPUSTEWARD_LOAD_H
#define GPUSTEWARD_LOAD_H

#include <stdbool.h>

#include "types.h"

/* Exported name, name for cuGetProcAddress, arguments. */
#define CALLS \
	X(cuInit, cuInit, unsigned) \
	X(cuDeviceGet, cuDeviceGet, CUdevice *, int) \
	X(cuDeviceGetName, cuDeviceGetName, char *, int, CUdevice) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, CUcontext *, CUdevice) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, CUcontext) \
	X(cuModuleLoadData, cuModuleLoadData, CUmodule *, const void *) \
	X(cuModuleGetFunction, cuModuleGetFunction, CUfunction *, CUmodule, const char *) \
	X(cuLaunchKernel, cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
		unsigned, CUstream, void **, void **) \
	X(cuStreamCreate, cuStreamCreate, CUstream *, unsigned) \
	X(cuStreamSynchronize, cuStreamSynchronize, CUstream) \
	X(cuStreamBeginCapture_v2, cuStreamBeginCapture, CUstream, CUstreamCaptureMode) \
	X(cuStreamEndCapture, cuStreamEndCapture, CUstream, CUgraph *) \
	X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long) \
	X(cuGraphLaunch, cuGraphLaunch, CUgraphExec, CUstream) \
	X(cuEventCreate, cuEventCreate, CUevent *, unsigned) \
	X(cuEventRecord, cuEventRecord, CUevent, CUstream) \
	X(cuEventQuery, cuEventQuery, CUevent) \
	X(cuEventSynchronize, cuEventSynchronize, CUevent) \
	X(cuEventElapsedTime, cuEventElapsedTime, float *, CUevent, CUevent) \
	X(cuMemAlloc_v2, cuMemAlloc, CUdeviceptr *, size_t) \
	X(cuMemAllocManaged, cuMemAllocManaged, CUdeviceptr *, size_t, unsigned) \
	X(cuMemAllocAsync, cuMemAllocAsync, CUdeviceptr *, size_t, CUstream) \
	X(cuMemCreate, cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, \
		unsigned long long) \
	X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, CUdeviceptr, const void *, size_t, CUstream) \
	X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, void *, CUdeviceptr, size_t, CUstream) \
	X(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, CUdeviceptr, CUdeviceptr, size_t, CUstream) \
	X(cuMemGetInfo_v2, cuMemGetInfo, size_t *, size_t *)

extern struct calls {
#define X(name, base, ...) CUresult (*name)(__VA_ARGS__);
	CALLS
#undef X
} cu;

extern CUcontext context;
extern CUfunction spin;
extern double per_ns; /* iterations of spin that last one nanosecond */

void resolve(const char *how); /* "link", "dlsym" or "procaddress"; exits where it cannot */
void open_gpu(int ordinal, double rate); /* context and kernel; measures per_ns where rate is 0 */
void check(CUresult r, const char *what); /* exits on an error */
CUgraphExec graph_of(uint64_t iterations, int kernels);
CUresult launch_kernel(uint64_t iterations, CUstream s);

#endif

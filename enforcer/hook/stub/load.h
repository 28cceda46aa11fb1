/* The driver as the load generator and the recipes see it: resolved as programs do it. */
#ifndef GPUSTEWARD_LOAD_H
#define GPUSTEWARD_LOAD_H

#include <stdbool.h>

#include "types.h"

/* Exported name, name for cuGetProcAddress, arguments. */
#define CALLS \
	X(cuInit, cuInit, unsigned) \
	X(cuDeviceGet, cuDeviceGet, CUdevice *, int) \
	X(cuDeviceGetCount, cuDeviceGetCount, int *) \
	X(cuDeviceGetName, cuDeviceGetName, char *, int, CUdevice) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, CUcontext *, CUdevice) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, CUcontext) \
	X(cuModuleLoadData, cuModuleLoadData, CUmodule *, const void *) \
	X(cuModuleGetFunction, cuModuleGetFunction, CUfunction *, CUmodule, const char *) \
	X(cuLaunchKernel, cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
		unsigned, CUstream, void **, void **) \
	X(cuStreamCreate, cuStreamCreate, CUstream *, unsigned) \
	X(cuStreamSynchronize, cuStreamSynchronize, CUstream) \
	X(cuStreamWaitEvent, cuStreamWaitEvent, CUstream, CUevent, unsigned) \
	X(cuStreamWaitValue32_v2, cuStreamWaitValue32, CUstream, CUdeviceptr, uint32_t, unsigned) \
	X(cuStreamWriteValue32_v2, cuStreamWriteValue32, CUstream, CUdeviceptr, uint32_t, unsigned) \
	X(cuLaunchHostFunc, cuLaunchHostFunc, CUstream, CUhostFn, void *) \
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
	X(cuMemFree_v2, cuMemFree, CUdeviceptr) \
	X(cuMemAllocManaged, cuMemAllocManaged, CUdeviceptr *, size_t, unsigned) \
	X(cuMemAllocAsync, cuMemAllocAsync, CUdeviceptr *, size_t, CUstream) \
	X(cuMemCreate, cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, \
		unsigned long long) \
	X(cuMemHostRegister_v2, cuMemHostRegister, void *, size_t, unsigned) \
	X(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer, CUdeviceptr *, void *, unsigned) \
	X(cuMemsetD8_v2, cuMemsetD8, CUdeviceptr, unsigned char, size_t) \
	X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, CUdeviceptr, const void *, size_t, CUstream) \
	X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, void *, CUdeviceptr, size_t, CUstream) \
	X(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, CUdeviceptr, CUdeviceptr, size_t, CUstream) \
	X(cuMemGetInfo_v2, cuMemGetInfo, size_t *, size_t *)

extern struct calls {
#define X(name, base, ...) CUresult (*name)(__VA_ARGS__);
	CALLS
#undef X
} cu;

struct kernels { CUfunction spin, meet, await, tell, fault; };

extern const char *program; /* its name, for messages about errors */
extern CUcontext context;
extern struct kernels kernels;
extern double per_ns; /* iterations of a kernel that last one nanosecond */
extern bool simulated;

void resolve(const char *how); /* "link", "dlsym", "procaddress", or "dlmopen" (a namespace of its own) */
void open_gpu(int ordinal, double rate); /* context and kernel; measures per_ns if rate is 0 */
void check(CUresult r, const char *what); /* exits on an error */
CUgraphExec graph_of(uint64_t iterations, int kernels);
CUresult launch_kernel(uint64_t iterations, CUstream s);

/* Kernels that wait. On a real card each gives up after a minute. */
#define RANKS 64
#define STRIDE 128 /* bytes from one rank's word to the next */

/* Ends when all ranks have begun the one of that number, counted from 1. where is
 * their words, as the GPU sees them; on the simulated driver it is any number. */
CUresult launch_meet(uint64_t where, uint64_t number, uint64_t rank, uint64_t ranks, CUstream s);
CUresult launch_await(CUdeviceptr at, uint64_t value, CUstream s); /* until the 32-bit word is >= value */
CUresult launch_fault(uint64_t iterations, CUdeviceptr at, CUstream s); /* writes there */
CUresult launch_tell(uint64_t iterations, CUdeviceptr at, uint64_t value, CUstream s); /* writes it when it ends */
CUdeviceptr share(void *at, size_t bytes); /* the host's memory, as all GPUs see it */
void load_kernels(struct kernels *k); /* for the current context */

#endif

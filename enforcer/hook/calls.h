/* Every function of the driver that the hook calls, by its exported name.
 *
 * GS_CALL(name, arguments...) is one that is only called; GS_WRAP(...) is one
 * that is also ours: a wrapper of that very name is exported, and dlsym and
 * cuGetProcAddress answer it. Whoever includes this defines GS_CALL, and
 * GS_WRAP if the difference matters. Names without a suffix that had 32-bit
 * pointers (cuMemAlloc, cuMemFree, cuMemGetInfo of CUDA 2) are not here: no
 * 64-bit program can use them. */
#ifndef GS_WRAP
#define GS_WRAP GS_CALL
#endif

/* ---- entry.c ---- */
GS_WRAP(cuInit, unsigned)
GS_WRAP(cuGetProcAddress, const char *, void **, int, uint64_t)
GS_WRAP(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)

/* ---- launch.c ---- */
#define GS_LAUNCH CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **
GS_WRAP(cuLaunchKernel, GS_LAUNCH, void **)
GS_WRAP(cuLaunchKernel_ptsz, GS_LAUNCH, void **)
GS_WRAP(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **, void **)
GS_WRAP(cuLaunchKernelEx_ptsz, const CUlaunchConfig *, CUfunction, void **, void **)
GS_WRAP(cuLaunchCooperativeKernel, GS_LAUNCH)
GS_WRAP(cuLaunchCooperativeKernel_ptsz, GS_LAUNCH)
GS_WRAP(cuLaunch, CUfunction)
GS_WRAP(cuLaunchGrid, CUfunction, int, int)
GS_WRAP(cuLaunchGridAsync, CUfunction, int, int, CUstream)
GS_WRAP(cuGraphLaunch, CUgraphExec, CUstream)
GS_WRAP(cuGraphLaunch_ptsz, CUgraphExec, CUstream)
GS_WRAP(cuStreamBeginCapture, CUstream)
GS_WRAP(cuStreamBeginCapture_ptsz, CUstream)
GS_WRAP(cuStreamBeginCapture_v2, CUstream, int)
GS_WRAP(cuStreamBeginCapture_v2_ptsz, CUstream, int)
GS_WRAP(cuStreamBeginCaptureToGraph, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int)
GS_WRAP(cuStreamBeginCaptureToGraph_ptsz, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int)
GS_WRAP(cuStreamEndCapture, CUstream, CUgraph *)
GS_WRAP(cuStreamEndCapture_ptsz, CUstream, CUgraph *)
GS_WRAP(cuStreamDestroy, CUstream)
GS_WRAP(cuStreamDestroy_v2, CUstream)
#undef GS_LAUNCH

/* ---- contexts.c ---- */
GS_WRAP(cuCtxCreate, CUcontext *, unsigned, CUdevice)
GS_WRAP(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice)
GS_WRAP(cuCtxCreate_v3, CUcontext *, void *, int, unsigned, CUdevice)
GS_WRAP(cuCtxCreate_v4, CUcontext *, void *, unsigned, CUdevice)
GS_WRAP(cuCtxDestroy, CUcontext)
GS_WRAP(cuCtxDestroy_v2, CUcontext)
GS_WRAP(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)
GS_WRAP(cuDevicePrimaryCtxRelease, CUdevice)
GS_WRAP(cuDevicePrimaryCtxRelease_v2, CUdevice)
GS_WRAP(cuDevicePrimaryCtxReset, CUdevice)
GS_WRAP(cuDevicePrimaryCtxReset_v2, CUdevice)

/* ---- memory.c ---- */
GS_WRAP(cuMemAlloc_v2, CUdeviceptr *, size_t)
GS_WRAP(cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned)
GS_WRAP(cuMemAllocManaged, CUdeviceptr *, size_t, unsigned)
GS_WRAP(cuMemFree_v2, CUdeviceptr)
GS_WRAP(cuMemGetInfo_v2, size_t *, size_t *)
GS_WRAP(cuDeviceTotalMem_v2, size_t *, CUdevice)

/* ---- arrays.c ---- */
GS_WRAP(cuArrayCreate_v2, CUarray *, const CUDA_ARRAY_DESCRIPTOR *)
GS_WRAP(cuArray3DCreate_v2, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *)
GS_WRAP(cuArrayDestroy, CUarray)
GS_WRAP(cuMipmappedArrayCreate, CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)
GS_WRAP(cuMipmappedArrayDestroy, CUmipmappedArray)

/* ---- mappings.c ---- */
GS_WRAP(cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)
GS_WRAP(cuMemRelease, CUmemGenericAllocationHandle)
GS_WRAP(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)
GS_WRAP(cuMemUnmap, CUdeviceptr, size_t)
GS_WRAP(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *, void *)
GS_WRAP(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int)

/* ---- pools.c ---- */
GS_WRAP(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream)
GS_WRAP(cuMemAllocAsync_ptsz, CUdeviceptr *, size_t, CUstream)
GS_WRAP(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream)
GS_WRAP(cuMemAllocFromPoolAsync_ptsz, CUdeviceptr *, size_t, CUmemoryPool, CUstream)
GS_WRAP(cuMemFreeAsync, CUdeviceptr, CUstream)
GS_WRAP(cuMemFreeAsync_ptsz, CUdeviceptr, CUstream)
GS_WRAP(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *)
GS_WRAP(cuMemPoolDestroy, CUmemoryPool)
GS_WRAP(cuMemPoolTrimTo, CUmemoryPool, size_t)
GS_WRAP(cuMemPoolSetAttribute, CUmemoryPool, int, void *)

/* ---- graphs.c ---- */
GS_WRAP(cuGraphInstantiate, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)
GS_WRAP(cuGraphInstantiate_v2, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)
GS_WRAP(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)
GS_WRAP(cuGraphInstantiateWithParams, CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *)
GS_WRAP(cuGraphInstantiateWithParams_ptsz, CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *)
GS_WRAP(cuGraphExecUpdate, CUgraphExec, CUgraph, CUgraphNode *, int *)
GS_WRAP(cuGraphExecUpdate_v2, CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *)
GS_WRAP(cuGraphExecDestroy, CUgraphExec)
GS_WRAP(cuGraphUpload, CUgraphExec, CUstream)
GS_WRAP(cuGraphUpload_ptsz, CUgraphExec, CUstream)
GS_WRAP(cuDeviceGraphMemTrim, CUdevice)

/* ---- only called ---- */
GS_CALL(cuDriverGetVersion, int *)
GS_CALL(cuDeviceGet, CUdevice *, int)
GS_CALL(cuDeviceGetCount, int *)
GS_CALL(cuDeviceGetUuid, CUuuid *, CUdevice)
GS_CALL(cuDeviceGetUuid_v2, CUuuid *, CUdevice)
GS_CALL(cuDevicePrimaryCtxGetState, CUdevice, unsigned *, int *)
GS_CALL(cuCtxGetCurrent, CUcontext *)
GS_CALL(cuCtxGetDevice, CUdevice *)
GS_CALL(cuCtxPushCurrent_v2, CUcontext)
GS_CALL(cuCtxPopCurrent_v2, CUcontext *)
GS_CALL(cuStreamGetCtx, CUstream, CUcontext *)
GS_CALL(cuStreamGetDevice, CUstream, CUdevice *)
GS_CALL(cuStreamIsCapturing, CUstream, int *)
GS_CALL(cuStreamIsCapturing_ptsz, CUstream, int *)
GS_CALL(cuThreadExchangeStreamCaptureMode, int *)
GS_CALL(cuEventCreate, CUevent *, unsigned)
GS_CALL(cuEventRecord, CUevent, CUstream)
GS_CALL(cuEventRecord_ptsz, CUevent, CUstream)
GS_CALL(cuEventQuery, CUevent)
GS_CALL(cuEventSynchronize, CUevent)
GS_CALL(cuEventElapsedTime, float *, CUevent, CUevent)
GS_CALL(cuEventDestroy_v2, CUevent)
GS_CALL(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *)
GS_CALL(cuGraphNodeGetType, CUgraphNode, int *)
GS_CALL(cuGraphChildGraphNodeGetGraph, CUgraphNode, CUgraph *)
GS_CALL(cuGraphMemAllocNodeGetParams, CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *)
GS_CALL(cuDeviceGetGraphMemAttribute, CUdevice, int, void *)
GS_CALL(cuArrayGetMemoryRequirements, CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUarray, CUdevice)
GS_CALL(cuMipmappedArrayGetMemoryRequirements, CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUmipmappedArray, CUdevice)
GS_CALL(cuDeviceGetMemPool, CUmemoryPool *, CUdevice)
GS_CALL(cuDeviceGetDefaultMemPool, CUmemoryPool *, CUdevice)
GS_CALL(cuMemPoolGetAttribute, CUmemoryPool, int, void *)

#undef GS_WRAP

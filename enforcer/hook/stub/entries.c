/* The driver's entry points: name, the version that brought it, the function,
 * and its form for per-thread default streams. Later versions come later. */
#include "entry.h"

#define ENTRIES \
	X(cuInit, 2000, cuInit, cuInit) \
	X(cuDriverGetVersion, 2020, cuDriverGetVersion, cuDriverGetVersion) \
	X(cuGetProcAddress, 11030, cuGetProcAddress, cuGetProcAddress) \
	X(cuGetProcAddress, 12000, cuGetProcAddress_v2, cuGetProcAddress_v2) \
	X(cuGetErrorString, 6000, cuGetErrorString, cuGetErrorString) \
	X(cuGetErrorName, 6000, cuGetErrorName, cuGetErrorName) \
	X(cuDeviceGet, 2000, cuDeviceGet, cuDeviceGet) \
	X(cuDeviceGetCount, 2000, cuDeviceGetCount, cuDeviceGetCount) \
	X(cuDeviceGetName, 2000, cuDeviceGetName, cuDeviceGetName) \
	X(cuDeviceGetUuid, 9020, cuDeviceGetUuid, cuDeviceGetUuid) \
	X(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2, cuDeviceGetUuid_v2) \
	X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute, cuDeviceGetAttribute) \
	X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, cuDeviceTotalMem_v2) \
	X(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool) \
	X(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool, cuDeviceGetMemPool) \
	X(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool, cuDeviceSetMemPool) \
	X(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim, cuDeviceGraphMemTrim) \
	X(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute) \
	X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain) \
	X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2) \
	X(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset_v2) \
	X(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState) \
	X(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags_v2) \
	X(cuCtxCreate, 3020, cuCtxCreate_v2, cuCtxCreate_v2) \
	X(cuCtxCreate, 12050, cuCtxCreate_v4, cuCtxCreate_v4) \
	X(cuCtxDestroy, 4000, cuCtxDestroy_v2, cuCtxDestroy_v2) \
	X(cuCtxSetCurrent, 4000, cuCtxSetCurrent, cuCtxSetCurrent) \
	X(cuCtxGetCurrent, 4000, cuCtxGetCurrent, cuCtxGetCurrent) \
	X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2, cuCtxPushCurrent_v2) \
	X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2, cuCtxPopCurrent_v2) \
	X(cuCtxGetDevice, 2000, cuCtxGetDevice, cuCtxGetDevice) \
	X(cuCtxSynchronize, 2000, cuCtxSynchronize, cuCtxSynchronize) \
	X(cuModuleLoadData, 2000, cuModuleLoadData, cuModuleLoadData) \
	X(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx, cuModuleLoadDataEx) \
	X(cuModuleGetFunction, 2000, cuModuleGetFunction, cuModuleGetFunction) \
	X(cuModuleUnload, 2000, cuModuleUnload, cuModuleUnload) \
	X(cuLaunchKernel, 4000, cuLaunchKernel, cuLaunchKernel_ptsz) \
	X(cuLaunchKernelEx, 11060, cuLaunchKernelEx, cuLaunchKernelEx_ptsz) \
	X(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz) \
	X(cuStreamCreate, 2000, cuStreamCreate, cuStreamCreate) \
	X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority, cuStreamCreateWithPriority) \
	X(cuStreamDestroy, 4000, cuStreamDestroy_v2, cuStreamDestroy_v2) \
	X(cuStreamQuery, 2000, cuStreamQuery, cuStreamQuery_ptsz) \
	X(cuStreamSynchronize, 2000, cuStreamSynchronize, cuStreamSynchronize_ptsz) \
	X(cuStreamWaitEvent, 3020, cuStreamWaitEvent, cuStreamWaitEvent_ptsz) \
	X(cuStreamBeginCapture, 10000, cuStreamBeginCapture, cuStreamBeginCapture_ptsz) \
	X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz) \
	X(cuStreamEndCapture, 10000, cuStreamEndCapture, cuStreamEndCapture_ptsz) \
	X(cuStreamIsCapturing, 10000, cuStreamIsCapturing, cuStreamIsCapturing_ptsz) \
	X(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz) \
	X(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz) \
	X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode) \
	X(cuEventCreate, 2000, cuEventCreate, cuEventCreate) \
	X(cuEventRecord, 2000, cuEventRecord, cuEventRecord_ptsz) \
	X(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz) \
	X(cuEventQuery, 2000, cuEventQuery, cuEventQuery) \
	X(cuEventSynchronize, 2000, cuEventSynchronize, cuEventSynchronize) \
	X(cuEventElapsedTime, 2000, cuEventElapsedTime, cuEventElapsedTime) \
	X(cuEventElapsedTime, 12080, cuEventElapsedTime_v2, cuEventElapsedTime_v2) \
	X(cuEventDestroy, 4000, cuEventDestroy_v2, cuEventDestroy_v2) \
	X(cuGraphCreate, 10000, cuGraphCreate, cuGraphCreate) \
	X(cuGraphDestroy, 10000, cuGraphDestroy, cuGraphDestroy) \
	X(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2, cuGraphAddKernelNode_v2) \
	X(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode, cuGraphAddMemAllocNode) \
	X(cuGraphGetNodes, 10000, cuGraphGetNodes, cuGraphGetNodes) \
	X(cuGraphInstantiate, 10000, cuGraphInstantiate, cuGraphInstantiate) \
	X(cuGraphInstantiate, 11000, cuGraphInstantiate_v2, cuGraphInstantiate_v2) \
	X(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) \
	X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) \
	X(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz) \
	X(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2, cuGraphExecUpdate_v2) \
	X(cuGraphExecDestroy, 10000, cuGraphExecDestroy, cuGraphExecDestroy) \
	X(cuGraphLaunch, 10000, cuGraphLaunch, cuGraphLaunch_ptsz) \
	X(cuMemGetInfo, 3020, cuMemGetInfo_v2, cuMemGetInfo_v2) \
	X(cuMemAlloc, 3020, cuMemAlloc_v2, cuMemAlloc_v2) \
	X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2, cuMemAllocPitch_v2) \
	X(cuMemAllocManaged, 6000, cuMemAllocManaged, cuMemAllocManaged) \
	X(cuMemFree, 3020, cuMemFree_v2, cuMemFree_v2) \
	X(cuMemAllocAsync, 11020, cuMemAllocAsync, cuMemAllocAsync_ptsz) \
	X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz) \
	X(cuMemFreeAsync, 11020, cuMemFreeAsync, cuMemFreeAsync_ptsz) \
	X(cuMemPoolCreate, 11020, cuMemPoolCreate, cuMemPoolCreate) \
	X(cuMemPoolDestroy, 11020, cuMemPoolDestroy, cuMemPoolDestroy) \
	X(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo, cuMemPoolTrimTo) \
	X(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute, cuMemPoolGetAttribute) \
	X(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute, cuMemPoolSetAttribute) \
	X(cuMemCreate, 10020, cuMemCreate, cuMemCreate) \
	X(cuMemRelease, 10020, cuMemRelease, cuMemRelease) \
	X(cuMemMap, 10020, cuMemMap, cuMemMap) \
	X(cuMemUnmap, 10020, cuMemUnmap, cuMemUnmap) \
	X(cuMemSetAccess, 10020, cuMemSetAccess, cuMemSetAccess) \
	X(cuMemAddressReserve, 10020, cuMemAddressReserve, cuMemAddressReserve) \
	X(cuMemAddressFree, 10020, cuMemAddressFree, cuMemAddressFree) \
	X(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity, cuMemGetAllocationGranularity) \
	X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle) \
	X(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle, cuMemExportToShareableHandle) \
	X(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle) \
	X(cuArrayCreate, 3020, cuArrayCreate_v2, cuArrayCreate_v2) \
	X(cuArray3DCreate, 3020, cuArray3DCreate_v2, cuArray3DCreate_v2) \
	X(cuArrayDestroy, 2000, cuArrayDestroy, cuArrayDestroy) \
	X(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements, cuArrayGetMemoryRequirements) \
	X(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate, cuMipmappedArrayCreate) \
	X(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy) \
	X(cuMipmappedArrayGetMemoryRequirements, 11060, cuMipmappedArrayGetMemoryRequirements, cuMipmappedArrayGetMemoryRequirements) \
	X(cuStreamGetCtx, 9020, cuStreamGetCtx, cuStreamGetCtx_ptsz) \
	X(cuStreamGetDevice, 12080, cuStreamGetDevice, cuStreamGetDevice_ptsz) \
	X(cuGraphNodeGetType, 10000, cuGraphNodeGetType, cuGraphNodeGetType) \
	X(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams) \
	X(cuGraphUpload, 11010, cuGraphUpload, cuGraphUpload_ptsz)

/* Declared without their arguments: only their addresses count here. */
#define X(name, version, plain, per_thread) extern void plain(void), per_thread(void);
ENTRIES
#undef X

#define X(name, version, plain, per_thread) {#name, version, plain, per_thread},
const struct gs_entry_point gs_entries[] = {ENTRIES};
const size_t gs_entries_count = sizeof gs_entries / sizeof *gs_entries;

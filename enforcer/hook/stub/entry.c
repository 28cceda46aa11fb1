/* cuGetProcAddress, and the errors' names. */
#include <string.h>

#include "entry.h"
#include "stub.h"

#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

/* The newest function of that name that the caller's version knows. */
GS_API cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
	CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult s = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

	if (!name || !out || version < 2000)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	for (size_t i = 0; i < gs_entries_count; i++) {
		if (strcmp(gs_entries[i].name, name))
			continue;
		if (gs_entries[i].version <= version) {
			void (*f)(void) = flags & PER_THREAD ? gs_entries[i].per_thread : gs_entries[i].plain;

			memcpy(out, &f, sizeof f);
			s = CU_GET_PROC_ADDRESS_SUCCESS;
		} else if (s == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) {
			s = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		}
	}
	if (status)
		*status = s;
	return *out || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

GS_API cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags)
{
	return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

static const struct { CUresult code; const char *name, *text; } errors[] = {
	{0, "CUDA_SUCCESS", "no error"},
	{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	{500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult code, const char **out, int text)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) {
			*out = text ? errors[i].text : errors[i].name;
			return CUDA_SUCCESS;
		}
	*out = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

GS_API cuGetErrorName(CUresult code, const char **out) { return describe(code, out, 0); }
GS_API cuGetErrorString(CUresult code, const char **out) { return describe(code, out, 1); }

/* An entry of a newer driver, which no hook knows. */
GS_API cuUnheardOf_v2(void) { return CUDA_SUCCESS; }
GS_API cuUnheardOf_v2_ptsz(void) { return CUDA_SUCCESS; }

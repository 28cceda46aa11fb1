/* The calls by which a program finds the driver and begins with it. */
#include "claims.h"
#include "client.h"
#include "entries.h"
#include "intercept.h"

/* The hook begins with the first successful cuInit of a process, and again with
 * that of a child that was forked before its parent had begun. The helper begins when the
 * process makes a context or takes memory, as the driver's own threads do: a program
 * may ask for the GPUs, and then fork or enter a namespace as one thread. A child of a program
 * that uses CUDA cannot use it, and the driver tells it so. */
CUresult cuInit(unsigned flags)
{
	GS_NEED(cuInit);
	GS_ERRNO;
	CUresult r = gs_real.cuInit(flags);
	if (r == CUDA_SUCCESS && !gs_intercept_off() && !atomic_load_explicit(&gs_counting, memory_order_acquire)) {
		gs_client_start();
		atomic_store_explicit(&gs_counting, true, memory_order_release);
	}
	return r;
}

static void give(const char *name, void **address)
{
	GS_ERRNO;

	if (*address && !gs_intercept_off())
		gs_entry_given(name);
	*address = gs_substitute(*address);
}

CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags)
{
	GS_NEED(cuGetProcAddress);
	CUresult r = gs_real.cuGetProcAddress(name, address, version, flags);
	if (r == CUDA_SUCCESS && address)
		give(name, address);
	return r;
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
	GS_NEED(cuGetProcAddress_v2);
	CUresult r = gs_real.cuGetProcAddress_v2(name, address, version, flags, status);
	if (r == CUDA_SUCCESS && address)
		give(name, address);
	return r;
}

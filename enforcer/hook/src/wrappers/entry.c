/* The call by which a program begins with the driver. */
#include "ledger/claims.h"
#include "session/client.h"
#include "wrappers/forks.h"
#include "wrappers/wrapped.h"

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
		gs_forks_watch();
		gs_client_start();
		atomic_store_explicit(&gs_counting, true, memory_order_release);
	}
	return r;
}

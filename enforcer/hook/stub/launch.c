/* Modules, functions and launches of kernels. */
#include <stdlib.h>
#include <string.h>

#include "stub.h"

#define OTHER_NS 1000 /* of a kernel that is none of those below */

struct CUmod_st { struct CUfunc_st *functions; };

/* Any image will do, and any name is in it. */
GS_API cuModuleLoadData(CUmodule *m, const void *image)
{
	CUcontext c;

	GS_TRY(gs_current(&c));
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	*m = calloc(1, sizeof **m);
	return *m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, CUjit_option *options, void **values)
{
	(void)n, (void)options, (void)values;
	return cuModuleLoadData(m, image);
}

GS_API cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	GS_TRY(gs_enter());
	if (!m || !name || strlen(name) >= sizeof (*f)->name)
		return CUDA_ERROR_INVALID_VALUE;
	*f = calloc(1, sizeof **f);
	if (!*f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	strcpy((*f)->name, name);
	pthread_mutex_lock(&gs_process);
	(*f)->next = m->functions;
	m->functions = *f;
	pthread_mutex_unlock(&gs_process);
	return CUDA_SUCCESS;
}

GS_API cuModuleUnload(CUmodule m)
{
	GS_TRY(gs_enter());
	for (struct CUfunc_st *f = m->functions, *next; f; f = next) {
		next = f->next;
		free(f);
	}
	free(m);
	return CUDA_SUCCESS;
}

/* The kernels that do something. All parameters are u64. The first one is how many
 * nanoseconds of the GPU's time the kernel's own work takes:
 *   spin(ns)                             does nothing else
 *   meet(ns, group, number, rank, count) ends when all ranks of the group, 0 to
 *                                        count - 1, have begun one of that number;
 *                                        number 0: the rank's next; ~0: the rank
 *                                        has left, and the others do not wait for it
 *   collective(ns, group, number, rank, count, lasts, what)
 *                                        the same, and goes on for lasts ns then; those
 *                                        that differ in what never meet
 *   await(ns, address, value)            ends when the 32-bit word is >= value
 *   tell(ns, address, value)             writes the word when it ends
 *   fault(ns, address)                   each later call of the process returns CUDA_ERROR_ILLEGAL_ADDRESS
 * Only spin and collective can be captured; in a graph, a collective does not wait. */
static bool parameters(CUfunction f, const char *name, void **params, uint64_t *out, int n)
{
	if (!params || strcmp(f->name, name))
		return false;
	for (int i = 0; i < n; i++)
		memcpy(&out[i], params[i], sizeof out[i]);
	return true;
}

uint64_t gs_duration(CUfunction f, void **params)
{
	uint64_t ns = OTHER_NS;

	parameters(f, "spin", params, &ns, 1);
	return ns;
}

/* p: the parameters of collective. */
static CUresult meet(CUstream s, const uint64_t *p)
{
	uint64_t group = p[1], rank = p[3], count = p[4];
	int place;

	if (!group || count > GS_STUB_RANKS || rank >= count)
		return CUDA_ERROR_INVALID_VALUE;
	place = gs_meeting(group, count, rank, (unsigned)s->ctx->device, s->ctx->proc);
	if (place < 0)
		return place == GS_NO_MATCH ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	return gs_put_wait(s, GS_WORK_MEET, p[0], (struct gs_wait){(uint32_t)place, (uint32_t)rank, p[2], p[5], p[6]}, NULL);
}

static CUresult launch(CUfunction f, CUstream s, void **params)
{
	CUgraph graph;
	uint64_t p[7] = {0};
	bool collects, meets, spins, tells;

	GS_TRY(gs_stream_of(s, &s));
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	collects = parameters(f, "collective", params, p, 7);
	if (parameters(f, "fault", params, p, 2)) {
		gs_faulted = true;
		return CUDA_SUCCESS;
	}
	meets = parameters(f, "meet", params, p, 5);
	spins = parameters(f, "await", params, p, 3);
	tells = parameters(f, "tell", params, p, 3);
	if (meets || spins || tells)
		GS_TRY(gs_capture_none(s));
	if (spins || tells)
		return gs_put_word(s, spins ? GS_WORK_SPIN : GS_WORK_WRITE, p[0], p[1], GS_AT_LEAST, p[2]);
	GS_TRY(gs_capture_of(s, &graph));
	if (graph)
		return gs_graph_add(graph, f, collects ? p[5] : gs_duration(f, params), 0) ? CUDA_SUCCESS
			: CUDA_ERROR_OUT_OF_MEMORY;
	if (meets || collects)
		return meet(s, p);
	return gs_put(s, GS_WORK_KERNEL, gs_duration(f, params), NULL, (struct gs_point){0});
}

#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define USED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared

GS_API cuLaunchKernel(CUfunction f, GRID, CUstream s, void **params, void **extra)
{
	USED, (void)extra;
	return launch(f, s, params);
}

GS_API cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream s, void **params, void **extra)
{
	USED, (void)extra;
	return launch(f, GS_PTSZ(s), params);
}

GS_API cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream s, void **params)
{
	USED;
	return launch(f, s, params);
}

GS_API cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream s, void **params)
{
	USED;
	return launch(f, GS_PTSZ(s), params);
}

GS_API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	(void)extra;
	return c ? launch(f, c->hStream, params) : CUDA_ERROR_INVALID_VALUE;
}

GS_API cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	(void)extra;
	return c ? launch(f, GS_PTSZ(c->hStream), params) : CUDA_ERROR_INVALID_VALUE;
}

typedef struct {
	CUfunction function;
	unsigned grid[3], block[3], shared;
	CUstream hStream;
	void **kernelParams;
} CUDA_LAUNCH_PARAMS;

/* Each on its stream. They do not begin together here. */
GS_API cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	(void)flags;
	if (!list || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		GS_TRY(launch(list[i].function, list[i].hStream, list[i].kernelParams));
	return CUDA_SUCCESS;
}

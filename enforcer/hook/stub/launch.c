/* Modules, functions and launches of kernels. */
#include <stdlib.h>
#include <string.h>

#include "stub.h"

#define OTHER_NS 1000 /* of a kernel that is not "spin" */

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

/* "spin" runs as many nanoseconds as its first parameter, a u64, says. */
uint64_t gs_duration(CUfunction f, void **params)
{
	uint64_t ns = OTHER_NS;

	if (params && !strcmp(f->name, "spin"))
		memcpy(&ns, params[0], sizeof ns);
	return ns;
}

static CUresult launch(CUfunction f, CUstream s, void **params)
{
	CUgraph graph;

	GS_TRY(gs_stream_of(s, &s));
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	GS_TRY(gs_capture_of(s, &graph));
	if (graph)
		return gs_graph_add(graph, gs_duration(f, params), 0) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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

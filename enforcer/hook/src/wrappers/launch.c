/* Launches, each through the gate, and what else the gate must know of streams.
 *
 * The _ptsz names are those that a program calls if it was compiled for a default
 * stream per thread. */
#include "gate/gate.h"
#include "streams/streams.h"
#include "trace/crash.h"
#include "trace/trace.h"
#include "wrappers/graphs.h"
#include "wrappers/wrapped.h"

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SHAPED gx, gy, gz, bx, by, bz, shared

/* Defines the wrapper of a launch: its parameters, its arguments, its stream. */
#define LAUNCH(name, parameters, arguments, stream, per_thread) \
	CUresult name parameters                                \
	{                                                       \
		struct gs_launch l;                             \
                                                                \
		GS_NEED(name);                                  \
		gs_gate_enter(&l, stream, per_thread, NULL, f); \
		gs_note(GS_EVENT_LAUNCH, gs_note_id(f));        \
		CUresult r = gs_real.name arguments;            \
		gs_note_result(r);                              \
		gs_gate_leave(&l, r);                           \
		return r;                                       \
	}

LAUNCH(cuLaunchKernel, (CUfunction f, SHAPE, CUstream s, void **params, void **extra), (f, SHAPED, s, params, extra), s,
       false)
LAUNCH(cuLaunchKernel_ptsz, (CUfunction f, SHAPE, CUstream s, void **params, void **extra),
       (f, SHAPED, s, params, extra), s, true)
LAUNCH(cuLaunchCooperativeKernel, (CUfunction f, SHAPE, CUstream s, void **params), (f, SHAPED, s, params), s, false)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (CUfunction f, SHAPE, CUstream s, void **params), (f, SHAPED, s, params), s,
       true)
LAUNCH(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),
       (config, f, params, extra),
       config ? config->hStream : NULL, false)
LAUNCH(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),
       (config, f, params, extra),
       config ? config->hStream : NULL, true)
LAUNCH(cuLaunch, (CUfunction f), (f), NULL, false)
LAUNCH(cuLaunchGrid, (CUfunction f, int w, int h), (f, w, h), NULL, false)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int w, int h, CUstream s), (f, w, h, s), s, false)

/* Defines the wrapper of a call that queues a host function. */
#define HOST(name, parameters, arguments, per_thread) \
	CUresult name parameters                      \
	{                                             \
		GS_NEED(name);                        \
		gs_gate_host(s, per_thread);          \
		return gs_real.name arguments;        \
	}

HOST(cuLaunchHostFunc, (CUstream s, CUhostFn f, void *of), (s, f, of), false)
HOST(cuLaunchHostFunc_ptsz, (CUstream s, CUhostFn f, void *of), (s, f, of), true)
HOST(cuLaunchHostFunc_v2, (CUstream s, CUhostFn f, void *of, unsigned mode), (s, f, of, mode), false)
HOST(cuLaunchHostFunc_v2_ptsz, (CUstream s, CUhostFn f, void *of, unsigned mode), (s, f, of, mode), true)
HOST(cuStreamAddCallback, (CUstream s, CUstreamCallback f, void *of, unsigned flags), (s, f, of, flags), false)
HOST(cuStreamAddCallback_ptsz, (CUstream s, CUstreamCallback f, void *of, unsigned flags), (s, f, of, flags), true)

/* The stream's context becomes the current one, which tells the GPU. */
static bool go_to(CUstream s)
{
	CUcontext c;

	return gs_real.cuStreamGetCtx && gs_real.cuCtxPushCurrent_v2 && gs_real.cuCtxPopCurrent_v2 &&
	       gs_real.cuStreamGetCtx(s, &c) == CUDA_SUCCESS && gs_real.cuCtxPushCurrent_v2(c) == CUDA_SUCCESS;
}

static void come_back(bool gone)
{
	CUcontext c;

	if (gone)
		gs_real.cuCtxPopCurrent_v2(&c);
}

/* One kernel for each of several GPUs, which begin together: it waits for one GPU
 * after the other. All but the last are booked as made, without a marker, when the
 * next one is waited for. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	struct gs_launch l;

	GS_WHOLE(cuLaunchCooperativeKernelMultiDevice);
	if (!list || !count)
		return gs_real.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
	for (unsigned i = 0; i < count; i++) {
		bool gone = go_to(list[i].hStream);
		gs_gate_enter(&l, list[i].hStream, false, NULL, list[i].function);
		gs_note(GS_EVENT_LAUNCH, gs_note_id(list[i].function));
		come_back(gone);
	}
	CUresult r = gs_real.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
	bool gone = go_to(list[count - 1].hStream);
	gs_gate_leave(&l, r);
	come_back(gone);
	return r;
}

static CUresult graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream s, bool per_thread)
{
	struct gs_graph_memory m;
	struct gs_launch l;

	gs_gate_enter(&l, s, per_thread, exec, exec);
	gs_note(GS_EVENT_GRAPH, gs_note_id(exec));
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	if (likely(gs_graph_runs(&m, exec))) {
		r = real(exec, s);
		gs_graph_ran(&m, exec, r);
	}
	gs_note_result(r);
	gs_gate_leave(&l, r);
	return r;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream s)
{
	GS_WHOLE(cuGraphLaunch);
	return graph_launch(gs_real.cuGraphLaunch, exec, s, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream s)
{
	GS_WHOLE(cuGraphLaunch_ptsz);
	return graph_launch(gs_real.cuGraphLaunch_ptsz, exec, s, true);
}

/* Defines the wrapper of a call that makes a stream capture. */
#define BEGIN(name, parameters, arguments, per_thread)                     \
	CUresult name parameters                                           \
	{                                                                  \
		GS_WHOLE(name);                                            \
		CUstream of = per_thread && !s ? CU_STREAM_PER_THREAD : s; \
		gs_gate_capture(of, true);                                 \
		CUresult r = gs_real.name arguments;                       \
		if (r != CUDA_SUCCESS)                                     \
			gs_gate_capture(of, false);                        \
		return r;                                                  \
	}

#define INTO CUstream s, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode

BEGIN(cuStreamBeginCapture, (CUstream s), (s), false)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream s), (s), true)
BEGIN(cuStreamBeginCapture_v2, (CUstream s, int mode), (s, mode), false)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream s, int mode), (s, mode), true)
BEGIN(cuStreamBeginCaptureToGraph, (INTO), (s, graph, after, edges, count, mode), false)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, (INTO), (s, graph, after, edges, count, mode), true)

#define ANEW CUstream s, int mode, CUgraph graph, void *callback, void *data
BEGIN(cuStreamBeginRecaptureToGraph, (ANEW), (s, mode, graph, callback, data), false)
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, (ANEW), (s, mode, graph, callback, data), true)
BEGIN(cuStreamBeginCaptureToCig, (CUstream s, void *params), (s, params), false)
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream s, void *params), (s, params), true)

CUresult cuStreamEndCaptureToCig(CUstream s)
{
	GS_WHOLE(cuStreamEndCaptureToCig);
	CUresult r = gs_real.cuStreamEndCaptureToCig(s);
	gs_gate_capture(s, false);
	return r;
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream s)
{
	GS_WHOLE(cuStreamEndCaptureToCig_ptsz);
	CUresult r = gs_real.cuStreamEndCaptureToCig_ptsz(s);
	gs_gate_capture(s ? s : CU_STREAM_PER_THREAD, false);
	return r;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *graph)
{
	GS_WHOLE(cuStreamEndCapture);
	CUresult r = gs_real.cuStreamEndCapture(s, graph);
	gs_gate_capture(s, false);
	return r;
}

CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *graph)
{
	GS_WHOLE(cuStreamEndCapture_ptsz);
	CUresult r = gs_real.cuStreamEndCapture_ptsz(s, graph);
	gs_gate_capture(s ? s : CU_STREAM_PER_THREAD, false);
	return r;
}

/* ---- the names of kernels, as the program asks for them ---- */

CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	GS_WHOLE(cuModuleGetFunction);
	CUresult r = gs_real.cuModuleGetFunction(f, m, name);
	if (r == CUDA_SUCCESS)
		gs_crash_named(gs_note_id(*f), name);
	return r;
}

CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name)
{
	GS_WHOLE(cuLibraryGetKernel);
	CUresult r = gs_real.cuLibraryGetKernel(k, l, name);
	if (r == CUDA_SUCCESS)
		gs_crash_named(gs_note_id(*k), name);
	return r;
}

CUresult cuKernelGetFunction(CUfunction *f, CUkernel k)
{
	GS_WHOLE(cuKernelGetFunction);
	CUresult r = gs_real.cuKernelGetFunction(f, k);
	if (r == CUDA_SUCCESS)
		gs_crash_same(gs_note_id(*f), gs_note_id(k));
	return r;
}

CUresult cuStreamDestroy(CUstream s)
{
	GS_WHOLE(cuStreamDestroy);
	gs_gate_stream_destroyed(s);
	return gs_real.cuStreamDestroy(s);
}

CUresult cuStreamDestroy_v2(CUstream s)
{
	GS_WHOLE(cuStreamDestroy_v2);
	gs_gate_stream_destroyed(s);
	return gs_real.cuStreamDestroy_v2(s);
}

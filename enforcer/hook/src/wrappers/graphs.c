/* Executable graphs: what their memory nodes take. That is booked when a graph is
 * instantiated, uploaded or launched, because the driver may take it at any of
 * these. */
#include "wrappers/graphs.h"

#include <stdlib.h>

#include "base/devices.h"
#include "ledger/claims.h"
#include "ledger/growers.h"
#include "streams/markers.h"
#include "trace/crash.h"
#include "wrappers/wrapped.h"

/* Executable graphs with memory nodes. bytes is what they may take. kind is the
 * number of shrinkages, from 1, at their last launch: while it is the same, their
 * memory is still there. */
static struct gs_table graphs = GS_TABLE_INIT;
static _Atomic uint64_t count; /* of graphs: 0 for most programs */

void gs_forked_graphs(void)
{
	gs_table_forked(&graphs);
	atomic_store(&count, 0);
}

/* The most that the allocation nodes of a graph and of its children ask for. */
static uint64_t asked(CUgraph graph, int depth)
{
	uint64_t sum = 0;
	size_t n = 0;

	if (!gs_real.cuGraphGetNodes || !gs_real.cuGraphNodeGetType || !gs_real.cuGraphMemAllocNodeGetParams ||
	    gs_real.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS || n == 0)
		return 0;
	CUgraphNode *node = calloc(n, sizeof *node);
	if (!node || gs_real.cuGraphGetNodes(graph, node, &n) != CUDA_SUCCESS)
		n = 0;
	for (size_t i = 0; i < n; i++) {
		CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
		CUgraph child;
		int type = -1;
		gs_real.cuGraphNodeGetType(node[i], &type);
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
		    gs_real.cuGraphMemAllocNodeGetParams(node[i], &params) == CUDA_SUCCESS)
			sum = gs_product(sum + gs_product(params.bytesize, 1), 1);
		if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < 8 && gs_real.cuGraphChildGraphNodeGetGraph &&
		    gs_real.cuGraphChildGraphNodeGetGraph(node[i], &child) == CUDA_SUCCESS)
			sum = gs_product(sum + asked(child, depth + 1), 1);
	}
	free(node);
	return sum;
}

static int shrinks_of(const struct gs_grower *g)
{
	return 1 + (int)(g->shrinks & 0xffffff);
}

/* launched is the kind of the graph's entry. */
static bool begin(struct gs_graph_memory *m, uint64_t need, int launched)
{
	m->graphs = gs_growers_lock(m->gpu);
	if (m->graphs->device < 0)
		gs_real.cuCtxGetDevice(&m->graphs->device);
	gs_grower_settle(m->graphs);
	if (gs_grow(&m->claim, m->graphs, launched == shrinks_of(m->graphs) ? 0 : need) ||
	    (gs_growers_trim(m->gpu) && gs_grow(&m->claim, m->graphs, need)))
		return true;
	gs_growers_unlock(m->gpu);
	m->graphs = NULL;
	return false;
}

static bool instantiates(struct gs_graph_memory *m, CUgraph graph)
{
	*m = (struct gs_graph_memory){.gpu = gs_claim_gpu()};
	if (m->gpu < 0 || !(m->bytes = asked(graph, 0)))
		return true;
	return begin(m, m->bytes, 0);
}

static CUresult instantiated(struct gs_graph_memory *m, CUgraphExec *exec, CUresult r)
{
	if (!m->graphs)
		return r;
	bool paid = gs_grew(&m->claim, m->graphs);
	gs_growers_unlock(m->gpu);
	if (r != CUDA_SUCCESS)
		return r;
	if (!paid) {
		gs_real.cuGraphExecDestroy(*exec);
		*exec = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	gs_crash_unlisted();
	if (gs_table_put(&graphs, (struct gs_entry){.key = (uintptr_t)*exec, .bytes = m->bytes, .gpu = m->gpu}))
		atomic_fetch_add(&count, 1);
	else
		atomic_fetch_add(&gs_uncounted, 1);
	return r;
}

bool gs_graph_runs(struct gs_graph_memory *m, CUgraphExec exec)
{
	struct gs_entry e;

	m->graphs = NULL;
	if (likely(!atomic_load_explicit(&count, memory_order_relaxed)) || !gs_table_find(&graphs, (uintptr_t)exec, &e))
		return true;
	m->gpu = e.gpu;
	return begin(m, e.bytes, e.kind);
}

void gs_graph_ran(struct gs_graph_memory *m, CUgraphExec exec, CUresult r)
{
	struct gs_entry e;

	if (likely(!m->graphs))
		return;
	/* The driver launched it, so it cannot be refused any more. What could not
	 * be booked is booked at the next launch, once there is room. */
	gs_grew(&m->claim, m->graphs);
	if (r == CUDA_SUCCESS && gs_table_find(&graphs, (uintptr_t)exec, &e)) {
		e.kind = shrinks_of(m->graphs);
		gs_table_put(&graphs, e);
	}
	gs_growers_unlock(m->gpu);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t room)
{
	struct gs_graph_memory m;

	GS_WHOLE(cuGraphInstantiate);
	if (!instantiates(&m, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&m, exec, gs_real.cuGraphInstantiate(exec, graph, node, log, room));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t room)
{
	struct gs_graph_memory m;

	GS_WHOLE(cuGraphInstantiate_v2);
	if (!instantiates(&m, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&m, exec, gs_real.cuGraphInstantiate_v2(exec, graph, node, log, room));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	struct gs_graph_memory m;

	GS_WHOLE(cuGraphInstantiateWithFlags);
	if (!instantiates(&m, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&m, exec, gs_real.cuGraphInstantiateWithFlags(exec, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	struct gs_graph_memory m;

	GS_WHOLE(cuGraphInstantiateWithParams);
	if (!instantiates(&m, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&m, exec, gs_real.cuGraphInstantiateWithParams(exec, graph, params));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	struct gs_graph_memory m;

	GS_WHOLE(cuGraphInstantiateWithParams_ptsz);
	if (!instantiates(&m, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&m, exec, gs_real.cuGraphInstantiateWithParams_ptsz(exec, graph, params));
}

static CUresult upload(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
	struct gs_graph_memory m;

	if (!gs_graph_runs(&m, exec))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = real(exec, stream);
	gs_graph_ran(&m, exec, r);
	return r;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	GS_WHOLE(cuGraphUpload);
	return upload(gs_real.cuGraphUpload, exec, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	GS_WHOLE(cuGraphUpload_ptsz);
	return upload(gs_real.cuGraphUpload_ptsz, exec, stream);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct gs_entry e;

	GS_WHOLE(cuGraphExecDestroy);
	gs_gate_graph_forget(exec);
	if (atomic_load(&count) && gs_table_take(&graphs, (uintptr_t)exec, &e))
		atomic_fetch_sub(&count, 1);
	return gs_real.cuGraphExecDestroy(exec);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	GS_WHOLE(cuDeviceGraphMemTrim);
	CUresult r = gs_real.cuDeviceGraphMemTrim(device);
	int gpu = atomic_load(&gs_counting) ? gs_gpu_of_device(device) : -1;
	if (gpu >= 0) {
		gs_grower_settle(gs_growers_lock(gpu));
		gs_growers_unlock(gpu);
	}
	return r;
}

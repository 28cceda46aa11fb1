/* Executable graphs: their kernels' names, and what their memory nodes take. That is
 * booked when a graph is instantiated, uploaded or launched, because the driver may
 * take it at any of these. */
#include "wrappers/graphs.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/devices.h"
#include "ledger/claims.h"
#include "ledger/growers.h"
#include "streams/markers.h"
#include "trace/crash.h"
#include "trace/trace.h"
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

#define KINDS 64  /* different kernels of a graph that are counted, the first ones */
#define DEEP 8    /* graphs in each other that are looked into */

/* What the nodes of a graph and of its children do. */
struct contents {
	uint64_t bytes; /* the most that its allocation nodes ask for */
	unsigned nodes; /* that launch kernels */
	unsigned kinds;
	struct kind {
		const void *function, *kernel; /* as the driver tells it: one of them is NULL */
		unsigned nodes;
	} kind[KINDS];
};

static void count_kernel(struct contents *c, CUgraphNode node)
{
	CUDA_KERNEL_NODE_PARAMS p = {0};
	unsigned i = 0;

	c->nodes++;
	if (!gs_real.cuGraphKernelNodeGetParams_v2 || gs_real.cuGraphKernelNodeGetParams_v2(node, &p) != CUDA_SUCCESS)
		return;
	while (i < c->kinds && (c->kind[i].function != p.func || c->kind[i].kernel != p.kern))
		i++;
	if (i == KINDS)
		return;
	if (i == c->kinds)
		c->kind[c->kinds++] = (struct kind){p.func, p.kern, 0};
	c->kind[i].nodes++;
}

static void look_into(struct contents *c, CUgraph graph, int depth)
{
	size_t n = 0;

	if (!gs_real.cuGraphGetNodes || !gs_real.cuGraphNodeGetType || !gs_real.cuGraphMemAllocNodeGetParams ||
	    gs_real.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS || n == 0)
		return;
	CUgraphNode *node = calloc(n, sizeof *node);
	if (!node || gs_real.cuGraphGetNodes(graph, node, &n) != CUDA_SUCCESS)
		n = 0;
	for (size_t i = 0; i < n; i++) {
		CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
		CUgraph child;
		int type = -1;
		gs_real.cuGraphNodeGetType(node[i], &type);
		if (type == CU_GRAPH_NODE_TYPE_KERNEL)
			count_kernel(c, node[i]);
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
		    gs_real.cuGraphMemAllocNodeGetParams(node[i], &params) == CUDA_SUCCESS)
			c->bytes = gs_product(c->bytes + gs_product(params.bytesize, 1), 1);
		if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < DEEP && gs_real.cuGraphChildGraphNodeGetGraph &&
		    gs_real.cuGraphChildGraphNodeGetGraph(node[i], &child) == CUDA_SUCCESS)
			look_into(c, child, depth + 1);
	}
	free(node);
}

/* The id with which a kernel has its name. */
static uint32_t id_of(const struct kind *k)
{
	return gs_note_id(k->kernel && (!k->function || !gs_crash_knows(gs_note_id(k->function))) ? k->kernel
		: k->function);
}

static int more_nodes(const void *a, const void *b)
{
	const struct kind *x = a, *y = b;
	return (x->nodes < y->nodes) - (x->nodes > y->nodes);
}

/* Names the executable graph by its kernels. */
static void name(CUgraphExec exec, struct contents *c)
{
	char text[32 + GS_GRAPH_KERNELS * 20];
	int end = snprintf(text, sizeof text, "graph %u", c->nodes);

	qsort(c->kind, c->kinds, sizeof *c->kind, more_nodes);
	for (unsigned i = 0; i < c->kinds && i < GS_GRAPH_KERNELS; i++)
		end += snprintf(text + end, sizeof text - (size_t)end, " %ux%08x", c->kind[i].nodes, id_of(&c->kind[i]));
	gs_crash_graph(gs_note_id(exec), text);
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

/* A graph that is being instantiated. */
struct instance {
	struct gs_graph_memory memory;
	struct contents contents;
};

static bool instantiates(struct instance *i, CUgraph graph)
{
	struct gs_graph_memory *m = &i->memory;

	*m = (struct gs_graph_memory){.gpu = gs_claim_gpu()};
	i->contents.bytes = i->contents.nodes = i->contents.kinds = 0;
	look_into(&i->contents, graph, 0);
	if (m->gpu < 0 || !(m->bytes = i->contents.bytes))
		return true;
	return begin(m, m->bytes, 0);
}

static CUresult instantiated(struct instance *i, CUgraphExec *exec, CUresult r)
{
	struct gs_graph_memory *m = &i->memory;

	if (r == CUDA_SUCCESS)
		name(*exec, &i->contents);
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
	struct instance i;

	GS_WHOLE(cuGraphInstantiate);
	if (!instantiates(&i, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&i, exec, gs_real.cuGraphInstantiate(exec, graph, node, log, room));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t room)
{
	struct instance i;

	GS_WHOLE(cuGraphInstantiate_v2);
	if (!instantiates(&i, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&i, exec, gs_real.cuGraphInstantiate_v2(exec, graph, node, log, room));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	struct instance i;

	GS_WHOLE(cuGraphInstantiateWithFlags);
	if (!instantiates(&i, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&i, exec, gs_real.cuGraphInstantiateWithFlags(exec, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	struct instance i;

	GS_WHOLE(cuGraphInstantiateWithParams);
	if (!instantiates(&i, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&i, exec, gs_real.cuGraphInstantiateWithParams(exec, graph, params));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	struct instance i;

	GS_WHOLE(cuGraphInstantiateWithParams_ptsz);
	if (!instantiates(&i, graph))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return instantiated(&i, exec, gs_real.cuGraphInstantiateWithParams_ptsz(exec, graph, params));
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

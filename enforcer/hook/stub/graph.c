/* Graphs: a launch runs the sum of the kernels, one after the other. */
#include <stdlib.h>

#include "stub.h"

/* Graphs' memory nodes take from one pool of the device, which keeps what it has
 * until cuDeviceGraphMemTrim. */
static struct { uint64_t used, used_high, reserved, reserved_high; } graph_memory[GS_STUB_GPUS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct CUgraphExec_st {
	uint64_t ns, bytes, claimed;
	size_t count;
	CUcontext ctx; /* the place of its memory; NULL before the first launch */
};

extern uint64_t gs_duration(CUfunction f, void **params);

CUgraphNode gs_graph_add(CUgraph g, CUfunction f, uint64_t ns, uint64_t bytes)
{
	CUgraphNode n = calloc(1, sizeof *n);

	if (!n)
		return NULL;
	n->f = f;
	n->ns = ns;
	n->bytes = bytes;
	pthread_mutex_lock(&lock);
	if (g->last)
		g->last->next = n;
	else
		g->first = n;
	g->last = n;
	g->count++;
	pthread_mutex_unlock(&lock);
	return n;
}

GS_API cuGraphCreate(CUgraph *g, unsigned flags)
{
	GS_TRY(gs_enter());
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	*g = calloc(1, sizeof **g);
	return *g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuGraphDestroy(CUgraph g)
{
	GS_TRY(gs_enter());
	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	for (CUgraphNode n = g->first, next; n; n = next) {
		next = n->next;
		free(n);
	}
	free(g);
	return CUDA_SUCCESS;
}

GS_API cuGraphAddKernelNode_v2(CUgraphNode *n, CUgraph g, const CUgraphNode *deps, size_t count,
	const CUDA_KERNEL_NODE_PARAMS *p)
{
	(void)deps, (void)count;
	GS_TRY(gs_enter());
	*n = gs_graph_add(g, p->func, gs_duration(p->func, p->kernelParams), 0);
	return *n ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API cuGraphKernelNodeGetParams_v2(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *p)
{
	GS_TRY(gs_enter());
	if (!n->f)
		return CUDA_ERROR_INVALID_VALUE;
	*p = (CUDA_KERNEL_NODE_PARAMS){.func = n->f};
	return CUDA_SUCCESS;
}

GS_API cuGraphAddMemAllocNode(CUgraphNode *n, CUgraph g, const CUgraphNode *deps, size_t count,
	CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	(void)deps, (void)count;
	GS_TRY(gs_enter());
	if (!p->bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	*n = gs_graph_add(g, NULL, 0, p->bytesize);
	if (!*n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*n)->at = p->dptr = gs_address(p->bytesize);
	(*n)->device = p->poolProps.location.id;
	return CUDA_SUCCESS;
}

GS_API cuGraphNodeGetType(CUgraphNode n, int *type)
{
	GS_TRY(gs_enter());
	*type = n->bytes ? 10 : 0; /* CU_GRAPH_NODE_TYPE_MEM_ALLOC, _KERNEL */
	return CUDA_SUCCESS;
}

GS_API cuGraphMemAllocNodeGetParams(CUgraphNode n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	GS_TRY(gs_enter());
	if (!n->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*p = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = n->bytes, .dptr = n->at,
		.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, n->device}}};
	return CUDA_SUCCESS;
}

GS_API cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *count)
{
	size_t i = 0;

	GS_TRY(gs_enter());
	if (!nodes) {
		*count = g->count;
		return CUDA_SUCCESS;
	}
	for (CUgraphNode n = g->first; n && i < *count; n = n->next)
		nodes[i++] = n;
	*count = i;
	return CUDA_SUCCESS;
}

static void sum(CUgraphExec x, CUgraph g)
{
	x->ns = x->bytes = 0;
	x->count = g->count;
	for (CUgraphNode n = g->first; n; n = n->next) {
		x->ns += n->ns;
		x->bytes += n->bytes;
	}
}

GS_API cuGraphInstantiateWithFlags(CUgraphExec *x, CUgraph g, unsigned long long flags)
{
	(void)flags;
	GS_TRY(gs_enter());
	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	*x = calloc(1, sizeof **x);
	if (!*x)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sum(*x, g);
	return CUDA_SUCCESS;
}

GS_API cuGraphInstantiate_v2(CUgraphExec *x, CUgraph g, CUgraphNode *error, char *log, size_t length)
{
	(void)error, (void)log, (void)length;
	return cuGraphInstantiateWithFlags(x, g, 0);
}

GS_API cuGraphInstantiate(CUgraphExec *x, CUgraph g, CUgraphNode *error, char *log, size_t length)
{
	return cuGraphInstantiate_v2(x, g, error, log, length);
}

GS_API cuGraphInstantiateWithParams(CUgraphExec *x, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	p->result_out = 0;
	return cuGraphInstantiateWithFlags(x, g, p->flags);
}

GS_API cuGraphInstantiateWithParams_ptsz(CUgraphExec *x, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	return cuGraphInstantiateWithParams(x, g, p);
}

GS_API cuGraphExecUpdate_v2(CUgraphExec x, CUgraph g, CUgraphExecUpdateResultInfo *info)
{
	GS_TRY(gs_enter());
	*info = (CUgraphExecUpdateResultInfo){0};
	if (x->count != g->count) {
		info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		return 910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
	}
	sum(x, g);
	return CUDA_SUCCESS;
}

static void high(CUdevice d)
{
	if (graph_memory[d].used_high < graph_memory[d].used)
		graph_memory[d].used_high = graph_memory[d].used;
	if (graph_memory[d].reserved_high < graph_memory[d].reserved)
		graph_memory[d].reserved_high = graph_memory[d].reserved;
}

/* The first launch takes the memory of the nodes, in pages of 2 MiB. */
static CUresult claim(CUgraphExec x, CUcontext c)
{
	uint64_t bytes = (x->bytes + (2 << 20) - 1) & ~((2ull << 20) - 1), more = 0;
	CUdevice d = c->device;
	CUresult r = CUDA_SUCCESS;

	if (!bytes || x->ctx)
		return r;
	pthread_mutex_lock(&lock);
	if (graph_memory[d].used + bytes > graph_memory[d].reserved)
		more = graph_memory[d].used + bytes - graph_memory[d].reserved;
	if (!gs_memory_take(c->g, c->proc, more)) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		graph_memory[d].reserved += more;
		graph_memory[d].used += bytes;
		x->ctx = c;
		x->claimed = bytes;
		high(d);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

void gs_graphs_forget(CUdevice d)
{
	pthread_mutex_lock(&lock);
	graph_memory[d].used = graph_memory[d].reserved = 0;
	pthread_mutex_unlock(&lock);
}

GS_API cuGraphExecDestroy(CUgraphExec x)
{
	GS_TRY(gs_enter());
	if (!x)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (x->ctx && graph_memory[x->ctx->device].used >= x->claimed)
		graph_memory[x->ctx->device].used -= x->claimed;
	pthread_mutex_unlock(&lock);
	free(x);
	return CUDA_SUCCESS;
}

/* Takes what the first launch would take. */
GS_API cuGraphUpload(CUgraphExec x, CUstream s)
{
	GS_TRY(gs_stream_of(s, &s));
	return claim(x, s->ctx);
}

GS_API cuGraphUpload_ptsz(CUgraphExec x, CUstream s) { return cuGraphUpload(x, GS_PTSZ(s)); }

GS_API cuGraphLaunch(CUgraphExec x, CUstream s)
{
	CUgraph graph;

	GS_TRY(gs_stream_of(s, &s));
	if (!x)
		return CUDA_ERROR_INVALID_VALUE;
	GS_TRY(gs_capture_of(s, &graph));
	if (graph)
		return gs_graph_add(graph, NULL, x->ns, 0) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	GS_TRY(claim(x, s->ctx));
	return gs_put(s, GS_WORK_KERNEL, x->ns, NULL, (struct gs_point){0});
}

GS_API cuGraphLaunch_ptsz(CUgraphExec x, CUstream s) { return cuGraphLaunch(x, GS_PTSZ(s)); }

GS_API cuDeviceGraphMemTrim(CUdevice d)
{
	CUcontext c;

	GS_TRY(gs_device(d));
	GS_TRY(gs_current(&c));
	pthread_mutex_lock(&lock);
	gs_memory_give(&gs_host->gpu[d], c->proc, graph_memory[d].reserved - graph_memory[d].used);
	graph_memory[d].reserved = graph_memory[d].used;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

GS_API cuDeviceGetGraphMemAttribute(CUdevice d, CUgraphMem_attribute a, void *value)
{
	GS_TRY(gs_device(d));
	pthread_mutex_lock(&lock);
	*(cuuint64_t *)value = a == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ? graph_memory[d].used
		: a == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ? graph_memory[d].used_high
		: a == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graph_memory[d].reserved
		: graph_memory[d].reserved_high;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* The memory of executable graphs, for the wrappers that launch and update them. */
#ifndef GPUSTEWARD_GRAPHS_H
#define GPUSTEWARD_GRAPHS_H

#include "ledger/growers.h"

struct gs_graph_memory {
	struct gs_grower *graphs; /* locked, between the two calls; NULL: nothing is to be booked */
	struct gs_claim claim;
	uint64_t bytes;
	int gpu;
};

/* Around an upload or a launch of exec. False: CUDA_ERROR_OUT_OF_MEMORY, and no
 * second call. A program without memory nodes pays one load. */
bool gs_graph_runs(struct gs_graph_memory *m, CUgraphExec exec);
void gs_graph_ran(struct gs_graph_memory *m, CUgraphExec exec, CUresult r);

#endif

/* For the test of the books: a broker that is one cap for all processes, and the
 * parts of the hook that have no say in memory. Only that test includes it. */
#ifndef GPUSTEWARD_TEST_BOOKS_H
#define GPUSTEWARD_TEST_BOOKS_H

#include "run.h"

#include "base/devices.h"
#include "gate/bandwidth.h"
#include "gate/gate.h"
#include "gate/nccl.h"
#include "ledger/admit.h"
#include "ledger/claims.h"
#include "ledger/growers.h"
#include "session/client.h"
#include "session/look.h"
#include "wrappers/wrapped.h"

static struct shared {
	_Atomic uint64_t cap, used, most; /* used is committed and reserved */
	_Atomic uint64_t committed, asked, bad;
	_Atomic uint64_t ready, over;
} *shared;
static struct gs_page page;
_Atomic(struct gs_page *) gs_page = &page;
_Thread_local struct gs_thread *gs_self;
struct gs_thread gs_threads[GS_THREADS];
_Atomic uint64_t gs_generation;
static _Atomic uint64_t destroyed_contexts;
void gs_log(const char *format, ...) { (void)format; }

enum gs_type gs_client_reserve(unsigned gpu, enum gs_kind kind, uint64_t bytes, uint64_t *reservation)
{
	uint64_t used = atomic_load(&shared->used), most;

	CHECK(gpu == 0 && bytes > 0 && kind <= GS_GRAPH);
	atomic_fetch_add(&shared->asked, 1);
	do {
		if (bytes > shared->cap || used > shared->cap - bytes)
			return GS_DENY;
	} while (!atomic_compare_exchange_weak(&shared->used, &used, used + bytes));
	most = atomic_load(&shared->most);
	while (most < used + bytes && !atomic_compare_exchange_weak(&shared->most, &most, used + bytes))
		;
	*reservation = bytes;
	return GS_GRANT;
}

static void give(uint64_t bytes)
{
	if (atomic_fetch_sub(&shared->used, bytes) < bytes)
		atomic_fetch_add(&shared->bad, 1);
}

void gs_client_commit(unsigned gpu, enum gs_kind kind, uint64_t reservation, uint64_t bytes)
{
	(void)gpu, (void)kind;
	if (bytes > reservation)
		atomic_fetch_add(&shared->bad, 1);
	give(reservation - bytes);
	atomic_fetch_add(&shared->committed, bytes);
}

void gs_client_abort(unsigned gpu, uint64_t reservation) { (void)gpu; give(reservation); }

void gs_client_free(unsigned gpu, enum gs_kind kind, uint64_t bytes)
{
	(void)gpu, (void)kind;
	give(bytes);
	if (atomic_fetch_sub(&shared->committed, bytes) < bytes)
		atomic_fetch_add(&shared->bad, 1);
}

uint64_t gs_client_committed(unsigned gpu) { (void)gpu; return shared->committed; }
bool gs_client_look(const CUuuid *u, uint64_t *cap, uint64_t *used) { (void)u, (void)cap, (void)used; return false; }
bool gs_nccl_resolve(void *h, const char *name, void **a) { (void)h, (void)name, (void)a; return false; }
void gs_client_start(void) { gs_gpus.count = 1; }
void gs_helper_start(void) { }
void gs_gate_slow(struct gs_launch *l) { l->entry = NULL; l->crowd = NULL; l->seq = 0; }
void gs_gate_left(struct gs_launch *l, CUresult r) { (void)l, (void)r; }
_Atomic unsigned gs_captures, gs_deep, gs_tickets;
_Atomic uint64_t gs_credits;
bool gs_copy_slow(struct gs_copy *c, CUstream s) { (void)s; c->thread = NULL; return false; }
void gs_copy_wait(struct gs_copy *c, enum gs_way way) { (void)c, (void)way; }
void gs_copy_refused(struct gs_copy *c) { (void)c; }
void gs_gate_stream_destroyed(CUstream s) { (void)s; }
static _Atomic int captures;
void gs_gate_host(CUstream s, bool per_thread) { (void)s, (void)per_thread; }
void gs_gate_capture(CUstream s, bool begins) { (void)s; captures += begins ? 1 : -1; }
void gs_gate_graph_forget(void *exec) { (void)exec; }
void gs_gate_context_created(CUcontext c, int gpu) { (void)c, (void)gpu; }
void gs_gate_context_destroyed(CUcontext c) { CHECK(c); destroyed_contexts++; }
void gs_nccl_context_destroyed(CUcontext c) { (void)c; }
_Atomic(void *) gs_nccl_unmarked;
_Atomic(CUstream) gs_nccl_stream;
void gs_nccl_mark(CUstream s) { (void)s; }

#endif

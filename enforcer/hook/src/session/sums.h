/* The memory that this process holds of each GPU, and is about to take. All but
 * gs_client_committed is under the client's lock. */
#ifndef GPUSTEWARD_SUMS_H
#define GPUSTEWARD_SUMS_H

#include "base/hook.h"

/* The broker allows a session this many reservations. Further threads wait. */
#define GS_RESERVATIONS 64

/* Bytes. Threads without a reservation wait on released, which counts. */
extern struct gs_sums {
	_Atomic uint64_t committed[GS_GPUS];
	uint64_t reserved[GS_GPUS];
	_Atomic uint32_t released;
	unsigned waiting; /* such threads */
	struct gs_reservation {
		bool taken;
		unsigned gpu;
		uint64_t bytes;
		uint64_t number; /* the broker's; 0: it is of the lease */
		uint64_t epoch;  /* of the session that granted it; 0: none */
	} reservation[GS_RESERVATIONS];
} gs_sums;

uint64_t gs_client_committed(unsigned gpu);     /* by this process; from any thread */
void gs_sums_declare(uint64_t held[GS_GPUS]);   /* what is committed */
uint64_t gs_sums_granted(unsigned gpu, uint64_t epoch); /* what is committed, or reserved in that session */

#endif

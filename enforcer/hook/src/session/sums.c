#include "session/sums.h"

struct gs_sums gs_sums;

uint64_t gs_client_committed(unsigned gpu) { return gpu < GS_GPUS ? atomic_load(&gs_sums.committed[gpu]) : 0; }

void gs_sums_declare(uint64_t held[GS_GPUS])
{
	for (unsigned i = 0; i < GS_GPUS; i++)
		held[i] = gs_sums.committed[i];
}

uint64_t gs_sums_granted(unsigned gpu, uint64_t epoch)
{
	uint64_t sum = gs_sums.committed[gpu];

	for (const struct gs_reservation *r = gs_sums.reservation; r < gs_sums.reservation + GS_RESERVATIONS; r++)
		if (r->taken && r->gpu == gpu && r->epoch == epoch)
			sum += r->bytes;
	return sum;
}

void gs_forked_sums(void)
{
	for (unsigned i = 0; i < GS_GPUS; i++) {
		gs_sums.reserved[i] = 0;
		atomic_store(&gs_sums.committed[i], 0);
	}
	for (unsigned i = 0; i < GS_RESERVATIONS; i++)
		gs_sums.reservation[i].taken = false;
	gs_sums.waiting = 0;
}

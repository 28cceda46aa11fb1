#include "base/bucket.h"

#define SECOND 1000000000u
#define KEPT 50 /* the part of a second's bytes that is kept: one in 50, 20 ms */

/* The product of a rate and a time takes more than 64 bits. */
__extension__ typedef unsigned __int128 wide;

void gs_bucket_pour(struct gs_bucket *b, uint64_t rate, uint64_t now)
{
	if (b->rate && now > b->at_ns) {
		wide bytes = (wide)(now - b->at_ns) * b->rate / SECOND;
		int64_t room = (int64_t)(b->asked + b->rate / KEPT - b->given);

		if (room <= 0 || bytes >= (uint64_t)room) {
			b->given += (uint64_t)room;
			b->at_ns = now;
		} else {
			/* The time of a part of a byte is not lost. */
			b->given += (uint64_t)bytes;
			b->at_ns += (uint64_t)(bytes * SECOND / b->rate);
		}
	}
	if (rate != b->rate) {
		b->rate = rate;
		b->at_ns = now;
	}
}

uint64_t gs_bucket_take(struct gs_bucket *b, uint64_t bytes)
{
	uint64_t place = b->asked;

	b->asked += bytes;
	return place;
}

uint64_t gs_bucket_left(const struct gs_bucket *b, uint64_t place)
{
	int64_t debt = (int64_t)(place - b->given);

	if (debt <= 0)
		return 0;
	wide ns = ((wide)(uint64_t)debt * SECOND + b->rate - 1) / b->rate;
	return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

void gs_bucket_return(struct gs_bucket *b, uint64_t bytes)
{
	b->given += bytes;
}

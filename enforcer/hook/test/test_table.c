/* The table of the books, until it can grow no more. It is smaller here. */
#define _GNU_SOURCE
#include "run.h"
#include "base/table.h"

#undef GS_SHARD_MAX
#define GS_SHARD_MAX (1u << 12)
#include "base/table.c"

int main(void)
{
	static struct gs_table t = GS_TABLE_INIT;
	struct gs_entry e;
	uint64_t n = 0, found = 0;

	while (gs_table_put(&t, (struct gs_entry){.key = ++n * 512, .bytes = n}))
		;
	CHECK(n > GS_SHARD_MAX);
	for (uint64_t i = 1; i < n; i += 2) {
		CHECK(gs_table_take(&t, i * 512, &e) && e.bytes == i);
		CHECK(!gs_table_find(&t, i * 512, &e));
	}
	for (uint64_t i = 2; i < n; i += 2)
		found += gs_table_find(&t, i * 512, &e) && e.bytes == i;
	CHECK(found == (n - 1) / 2);
	CHECK(gs_table_put(&t, (struct gs_entry){.key = n * 512}));
	return 0;
}

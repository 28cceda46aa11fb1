#ifndef GPUSTEWARD_STUB_ENTRY_H
#define GPUSTEWARD_STUB_ENTRY_H

#include <stddef.h>

struct gs_entry_point {
	const char *name;
	int version; /* since which it exists, 1000 * major + 10 * minor */
	void (*plain)(void), (*per_thread)(void);
};

extern const struct gs_entry_point gs_entries[];
extern const size_t gs_entries_count;

#endif

/* The handlers of forks: each runs once in each child and none runs in the parent.
 * Their order lets each find what it builds on. */
#define _GNU_SOURCE
#include "wrappers/forks.h"
#include "run.h"


static const char *const parts[] = {
#define NAME(part) #part,
	GS_FORKS(NAME)
};
#define PARTS ((int)(sizeof parts / sizeof *parts))

static const char *ran[2 * PARTS];
static int runs;

#define HANDLER(part) void gs_forked_##part(void) { ran[runs++] = #part; }
GS_FORKS(HANDLER)

static int place_of(const char *part)
{
	for (int i = 0; i < runs; i++)
		if (!strcmp(ran[i], part))
			return i;
	CHECK(!"ran");
	return -1;
}

static void each_ran_once(void)
{
	for (int i = 0; i < PARTS; i++)
		place_of(parts[i]);
	CHECK(runs == PARTS);
}

/* A grandchild runs them again. */
static void forks(int generations)
{
	int status;

	runs = 0;
	pid_t child = fork();
	if (!child) {
		each_ran_once();
		CHECK(place_of("session") < place_of("local")); /* the broker's page is gone before the own one begins */
		CHECK(place_of("sums") < place_of("local"));    /* that page shows the sums */
		CHECK(place_of("local") < place_of("streams")); /* launches go by that page */
		if (generations > 1)
			forks(generations - 1);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0 && runs == 0);
}

int main(void)
{
	gs_forks_watch();
	gs_forks_watch();
	forks(2);
	return 0;
}

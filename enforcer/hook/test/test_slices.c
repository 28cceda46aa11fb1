/* Time slices, over a kernel that is the test itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#include "run.h"

#include "base/clock.h"
#include "base/devices.h"
#include "base/driver.h"
#include "gate/slices.h"
#include "wrappers/forks.h"

struct freed { uint32_t client, parent, object, status; };
struct control { uint32_t client, object, command, flags; uint64_t *us; uint32_t size, status; };
struct alloc { uint32_t client, parent, object, class; const uint32_t *of; uint32_t size, status; };
struct alloc_with_rights {
	uint32_t client, parent, object, class;
	const uint32_t *of;
	void *rights;
	uint32_t size, flags, status;
};
#define FREE _IOWR('F', 0x29, struct freed)
#define CONTROL _IOWR('F', 0x2a, struct control)
#define ALLOC _IOWR('F', 0x2b, struct alloc)
#define ALLOC_WITH_RIGHTS _IOWR('F', 0x2b, struct alloc_with_rights)
#define GROUP 0xa06c
#define SET 0xa06c0103
#define GET 0xa06c0104
#define USUAL 1500
#define MOST 256 /* groups that are noted */

static struct { int calls, fd, returns, error; unsigned long request; void *argument; } last;
static uint64_t slice[2 * MOST];  /* us, by the group's name; 0: nothing was set */
static int gets, sets;
static uint32_t status;           /* what requests are answered */
static void (*within)(void);      /* done by another thread while the kernel is at a request */
static int gpu_only = -1, gpu_making = -1;
static struct gs_page page;

static int kernel(int fd, unsigned long request, ...)
{
	va_list rest;
	struct control *c;
	void *argument;

	va_start(rest, request);
	argument = c = va_arg(rest, void *);
	va_end(rest);
	last.calls++;
	last.fd = fd, last.request = request, last.argument = argument;
	if (last.error) {
		errno = last.error;
		return -1;
	}
	if (request == CONTROL && c->command == GET)
		gets++, *c->us = slice[c->object] ? slice[c->object] : USUAL;
	else if (request == CONTROL && c->command == SET && !status)
		sets++, slice[c->object] = *c->us;
	if (request == CONTROL)
		c->status = status;
	if (request == ALLOC)
		((struct alloc *)argument)->status = status;
	if (request == ALLOC_WITH_RIGHTS)
		((struct alloc_with_rights *)argument)->status = status;
	if (request == FREE)
		((struct freed *)argument)->status = status;
	void (*other)(void) = within;
	within = NULL;
	if (other)
		other();
	return last.returns;
}

void *gs_dlsym(void *handle, const char *name)
{
	CHECK(handle == RTLD_NEXT && !strcmp(name, "ioctl"));
	return (void *)kernel;
}

static uint64_t clock_ns;
uint64_t gs_now(void) { return clock_ns; }
int gs_gpu_only(void) { return gpu_only; }
int gs_gpu_making(void) { return gpu_making; }

static int file(void)
{
	int fd = memfd_create("control", MFD_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static void allocate_of(int fd, uint32_t parent, uint32_t object, uint32_t class, uint32_t engine)
{
	const uint32_t of[] = {0, 0, 0, engine};

	OK(ioctl(fd, ALLOC, &(struct alloc){1, parent, object, class, of, sizeof of, 99}));
}

static void allocate(int fd, uint32_t parent, uint32_t object) { allocate_of(fd, parent, object, GROUP, 1); }

static void release(int fd, uint32_t client, uint32_t object)
{
	OK(ioctl(fd, FREE, &(struct freed){client, 0, object, 99}));
}

/* The page says so, and the helper comes by. */
static void says(unsigned gpu, uint32_t us)
{
	page.slot[gpu].slice_us = us;
	gs_slices_step(&page);
}

static void everything_is_passed_on(void)
{
	static const struct { unsigned long request; int returns, error; } calls[] = {
		{0x5401, 0, ENOTTY}, {0x5401, 7, 0}, {FREE, 0, EBADF}, {CONTROL, 0, EINTR}, {ALLOC, 0, EFAULT},
		{ALLOC_WITH_RIGHTS, 0, EINVAL}, {'F' << 8 | 1, 0, 0}, {~0ul, 3, 0}, {CONTROL | 1ul << 40, 0, ENODEV},
	};

	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		void *argument = calls[i].request == CONTROL ? NULL : (void *)0x1230; /* it cannot be read */
		last.returns = calls[i].returns;
		last.error = calls[i].error;
		errno = 4242;
		CHECK(ioctl(9, calls[i].request, argument) == (calls[i].error ? -1 : calls[i].returns));
		CHECK(errno == (calls[i].error ? calls[i].error : 4242));
		CHECK(last.fd == 9 && last.request == calls[i].request && last.argument == argument);
		CHECK(last.calls == (int)i + 1);
	}
}

static void a_slice_is_tried_set_and_set_back(void)
{
	const uint32_t of[] = {0, 0, 0, 1};
	int fd = file();

	gpu_only = 0;
	allocate(fd, 2, 10);
	OK(ioctl(fd, ALLOC_WITH_RIGHTS, &(struct alloc_with_rights){1, 2, 11, GROUP, of, NULL, sizeof of, 0, 99}));
	says(1, 500); /* of another GPU */
	CHECK(!gets && !sets);
	says(0, 500);
	CHECK(slice[10] == 500 && slice[11] == 500 && gets == 4 && sets == 4 && gs_slices_set(0) == 500);
	last.calls = 0;
	says(0, 500);
	CHECK(!last.calls);
	says(0, 20000); /* it is tried only once */
	CHECK(slice[10] == 20000 && gets == 4 && sets == 6 && gs_slices_set(0) == 20000);
	allocate(fd, 2, 12);
	says(0, 20000);
	CHECK(slice[12] == 20000);
	says(0, 0);
	CHECK(slice[10] == USUAL && slice[11] == USUAL && slice[12] == USUAL && gs_slices_set(0) == 0);
	CHECK(gs_slices_refused(0) == 0 && gs_slices_set(1) == 0);
}

/* What RM says of its own default is half of what the hardware takes. */
static void rms_default_is_set_as_measured(void)
{
	gpu_only = 0;
	allocate(file(), 2, 10);
	slice[10] = 1024;
	says(0, 500);
	says(0, 0);
	CHECK(slice[10] == 2100);
}

static void a_revoked_session_has_the_default(void)
{
	gpu_only = 0;
	allocate(file(), 2, 10);
	says(0, 500);
	page.slot[0].mode = GS_KILL;
	says(0, 500);
	CHECK(slice[10] == USUAL);
}

static void others_are_not_noted(void)
{
	int fd = file();

	gpu_only = 0;
	allocate_of(fd, 2, 10, GROUP, 11);   /* it copies */
	allocate_of(fd, 2, 11, 0xc86f, 1); /* a channel */
	status = 0x1f;
	allocate(fd, 2, 12);
	status = 0;
	OK(ioctl(fd, ALLOC, &(struct alloc){1, 2, 13, GROUP, NULL, 0, 99}));
	allocate(-1, 2, 14);
	last.calls = 0;
	says(0, 500);
	CHECK(!last.calls);
}

/* Which ones are left of 10 and 11, below 2, and 12, below 3. */
static void check_left(bool ten, bool eleven, bool twelve)
{
	memset(slice, 0, sizeof slice);
	says(0, page.slot[0].slice_us + 1);
	CHECK(!slice[10] == !ten && !slice[11] == !eleven && !slice[12] == !twelve);
}

static void allocate_three(int fd)
{
	allocate(fd, 2, 10);
	allocate(fd, 2, 11);
	allocate(fd, 3, 12);
}

static void what_is_freed_is_forgotten(void)
{
	int fd = file();

	gpu_only = 0;
	page.slot[0].slice_us = 500;
	allocate_three(fd);
	release(fd, 2, 10); /* another client's */
	release(fd, 1, 13);
	status = 0x33;
	release(fd, 1, 10);
	status = 0;
	check_left(true, true, true);
	release(fd, 1, 10);
	check_left(false, true, true);
	release(fd, 1, 2);
	check_left(false, false, true);
	release(fd, 1, 1);
	check_left(false, false, false);
	allocate_three(fd);
	allocate_three(fd); /* nobody saw the end of those before */
	sets = 0;
	check_left(true, true, true);
	CHECK(sets == 6);
}

static void allocate_again(void) { allocate(file(), 2, 10); }

static void a_new_group_of_the_same_name_is_not_the_freed_one(void)
{
	int fd = file();

	gpu_only = 0;
	allocate(fd, 2, 10);
	within = allocate_again;
	release(fd, 1, 10);
	check_left(true, false, false);
}

static void a_closed_descriptor_is_left_alone(void)
{
	int fd = file(), other;

	gpu_only = 0;
	allocate(fd, 2, 10);
	close(fd);
	last.calls = 0;
	says(0, 500);
	other = file();
	CHECK(other == fd);
	says(0, 600);
	CHECK(!last.calls && gs_slices_set(0) == 0 && gs_slices_refused(0) == 0);
}

static void a_child_knows_nothing(void)
{
	int ended;

	gpu_only = 0;
	gs_forks_watch();
	allocate(file(), 2, 10);
	says(0, 500);
	pid_t child = fork();
	if (!child) {
		CHECK(gs_slices_set(0) == 0);
		last.calls = 0;
		says(0, 600);
		CHECK(!last.calls);
		allocate(file(), 2, 11);
		says(0, 600);
		CHECK(slice[11] == 600 && slice[10] == 500);
		_exit(0);
	}
	CHECK(waitpid(child, &ended, 0) == child && !ended);
	says(0, 600);
	CHECK(slice[10] == 600);
}

static void a_refusal_is_counted_and_not_repeated(void)
{
	int fd = file();

	gpu_only = 1;
	allocate(fd, 2, 10);
	status = 0x1b;
	says(1, 500);
	CHECK(gs_slices_refused(1) == 1 && gs_slices_refused(0) == 0 && gs_slices_set(1) == 0);
	status = 0;
	last.calls = 0;
	says(1, 600);
	says(1, 0);
	CHECK(!last.calls && gs_slices_refused(1) == 1);
	allocate(fd, 2, 11);
	last.error = EPERM;
	says(1, 600);
	CHECK(gs_slices_refused(1) == 2);
}

static void free_it(void)
{
	release(0, 1, 10);
	status = 0x33; /* there is no such object */
}

static void the_end_of_a_group_is_no_refusal(void)
{
	gpu_only = 0;
	allocate(file(), 2, 10);
	within = free_it; /* while the helper asks */
	says(0, 500);
	CHECK(gs_slices_refused(0) == 0 && gs_slices_set(0) == 0);
}

static void what_the_process_sets_itself_is_the_default(void)
{
	uint64_t own = 2000;
	int fd = file();

	gpu_only = 0;
	allocate(fd, 2, 10);
	OK(ioctl(fd, CONTROL, &(struct control){1, 10, SET, 0, &own, sizeof own, 99}));
	says(0, 500);
	own = 3000;
	OK(ioctl(fd, CONTROL, &(struct control){1, 10, SET, 0, &own, sizeof own, 99}));
	CHECK(slice[10] == 3000);
	says(0, 500);
	CHECK(slice[10] == 500);
	says(0, 0);
	CHECK(slice[10] == 3000);
}

static void set_itself(int fd, uint64_t us)
{
	OK(ioctl(fd, CONTROL, &(struct control){1, 10, SET, 0, &us, sizeof us, 99}));
	gs_slices_step(&page);
}

static void what_the_process_takes_is_told(void)
{
	int fd = file();

	gpu_only = gpu_making = 0;
	clock_ns = 1;
	allocate(fd, 2, 10);
	set_itself(fd, 9000);
	CHECK(gs_slices_own(0) == 0); /* by libcuda, for a new context */
	gpu_making = -1;
	set_itself(fd, 2000);
	CHECK(gs_slices_own(0) == 0);
	set_itself(fd, 8000); /* less than libcuda takes */
	CHECK(gs_slices_own(0) == 0);
	set_itself(fd, 20000);
	CHECK(gs_slices_own(0) == 20000 && gs_slices_own(1) == 0);
	says(0, 500); /* which ends it, until the process does so again */
	CHECK(slice[10] == 500 && gs_slices_own(0) == 20000);
	set_itself(fd, 2000);
	CHECK(gs_slices_own(0) == 0);
	/* Not by libc. */
	slice[10] = 15000;
	gs_slices_step(&page);
	CHECK(gs_slices_own(0) == 0);
	clock_ns += 2 * GS_SECOND;
	gs_slices_step(&page);
	CHECK(gs_slices_own(0) == 15000 && slice[10] == 500);
	release(fd, 1, 10);
	says(0, 600);
	CHECK(gs_slices_own(0) == 0);
}

static void a_group_is_the_gpu_s_on_which_its_context_is_made(void)
{
	int fd = file();

	gpu_making = 3;
	allocate(fd, 2, 10);
	gpu_making = -1;
	allocate(fd, 2, 11); /* by a thread of the driver's */
	says(3, 500);
	CHECK(slice[10] == 500 && !slice[11]);
	gpu_only = 4;
	says(4, 600);
	CHECK(slice[11] == 600 && slice[10] == 500);
}

static void there_is_room_for_so_many(void)
{
	int fd = file(), n = 0;

	gpu_only = 0;
	for (uint32_t i = 10; i < MOST + 20; i++)
		allocate(fd, 2, i);
	says(0, 500);
	for (uint32_t i = 10; i < MOST + 20; i++)
		n += slice[i] == 500;
	CHECK(n == MOST);
	release(fd, 1, 10);
	allocate(fd, 2, MOST + 20);
	says(0, 500);
	CHECK(slice[MOST + 20] == 500);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(everything_is_passed_on),
		TEST(a_slice_is_tried_set_and_set_back),
		TEST(rms_default_is_set_as_measured), TEST(a_revoked_session_has_the_default),
		TEST(others_are_not_noted),
		TEST(what_is_freed_is_forgotten),
		TEST(a_new_group_of_the_same_name_is_not_the_freed_one),
		TEST(a_closed_descriptor_is_left_alone),
		TEST(a_child_knows_nothing),
		TEST(a_refusal_is_counted_and_not_repeated),
		TEST(the_end_of_a_group_is_no_refusal),
		TEST(what_the_process_sets_itself_is_the_default), TEST(what_the_process_takes_is_told),
		TEST(a_group_is_the_gpu_s_on_which_its_context_is_made),
		TEST(there_is_room_for_so_many),
	};

	return RUN_TESTS(tests, argc, argv, NULL);
}

/* The processes that have called cuInit, in the shared file: which ones live, and what
 * checkpoints have made of them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"

#define LOOK 20000000 /* ns; a call that waits looks this often: who should wake it may be dead */

struct gs_client *gs_client;
static const volatile char *state; /* of this process's GPUs, as the driver's library has it mapped */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool at_work[GS_STUB_CLIENTS]; /* a thread of this process is at a checkpoint of that one */

/* Each has two: one of its own, and one for who is at a checkpoint of it. The first byte
 * of the file is that of who makes it, and those after its contents are the GPUs'. */
static off_t byte_of(const struct gs_client *c, bool worker)
{
	off_t slots = GS_STUB_GPUS_MAX * GS_STUB_PROCS;

	return (off_t)sizeof *gs_host + slots + (worker ? GS_STUB_CLIENTS : 0) + (c - gs_host->client);
}

bool gs_client_alive(const struct gs_client *c)
{
	int pid = c->pid;

	return pid && (pid == getpid() || !gs_byte_lock(F_GETLK, F_WRLCK, byte_of(c, false)));
}

/* The entry of an earlier process of the same number, or a free one. A process in another
 * namespace may have that number too. */
static struct gs_client *find(void)
{
	struct gs_client *free = NULL;

	for (struct gs_client *c = gs_host->client; c < gs_host->client + GS_STUB_CLIENTS; c++) {
		if (c->pid == getpid() && gs_byte_lock(F_GETLK, F_WRLCK, byte_of(c, false)))
			return c;
		if (!free && !gs_client_alive(c))
			free = c;
	}
	return free;
}

/* What is mapped there is the descriptor's file: whoever checkpoints this process takes it away. */
static void map(struct gs_client *c)
{
	void *at = MAP_FAILED;

	c->state_fd = memfd_create("state", MFD_CLOEXEC);
	if (c->state_fd >= 0 && !ftruncate(c->state_fd, 1))
		at = mmap(NULL, 1, PROT_READ, MAP_SHARED, c->state_fd, 0);
	if (at != MAP_FAILED)
		state = at;
}

void gs_client_put(const struct gs_client *c, bool there)
{
	char path[48];
	int fd;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", c->pid, c->state_fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	(void)!ftruncate(fd, there);
	close(fd);
}

bool gs_client_open(enum gs_checkpoint checkpoint)
{
	struct gs_client *c;

	if (!gs_byte_lock(F_SETLKW, F_WRLCK, 0))
		return false;
	c = find();
	if (c && gs_byte_lock(F_SETLK, F_WRLCK, byte_of(c, false))) {
		c->pid = 0;
		c->state = GS_RUNNING;
		c->worker = 0;
		c->shares = 0;
		c->checkpoint = checkpoint;
		map(c);
		c->pid = getpid();
		gs_client = c;
	}
	gs_byte_lock(F_SETLK, F_UNLCK, 0);
	return gs_client != NULL;
}

/* The byte's lock is that of all threads of a process: they have at_work among them. */
bool gs_client_begin(struct gs_client *c)
{
	bool *mine = &at_work[c - gs_host->client], begun;

	pthread_mutex_lock(&lock);
	begun = !*mine && gs_byte_lock(F_SETLK, F_WRLCK, byte_of(c, true));
	*mine |= begun;
	pthread_mutex_unlock(&lock);
	if (!begun)
		return false;
	c->worker = 0;
	gs_client_recover(c);
	c->worker = getpid();
	return true;
}

void gs_client_end(struct gs_client *c)
{
	c->worker = 0;
	pthread_mutex_lock(&lock);
	gs_byte_lock(F_SETLK, F_UNLCK, byte_of(c, true));
	at_work[c - gs_host->client] = false;
	pthread_mutex_unlock(&lock);
}

bool gs_client_change(struct gs_client *c, enum gs_state from, enum gs_state to)
{
	uint32_t state = from;

	if (!atomic_compare_exchange_strong(&c->state, &state, to))
		return false;
	syscall(SYS_futex, &c->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return true;
}

/* A process sees no lock of its own: there its number tells. */
void gs_client_recover(struct gs_client *c)
{
	enum gs_state state = c->state;

	if ((state != GS_LOCKING && state != GS_RESTORING) || c->worker == getpid() ||
	    !gs_byte_lock(F_GETLK, F_WRLCK, byte_of(c, true)))
		return;
	gs_client_change(c, state, state == GS_LOCKING ? GS_RUNNING : GS_CHECKPOINTED);
}

bool gs_client_locked(const struct gs_client *c)
{
	uint32_t state = c->state;

	return state != GS_RUNNING && state != GS_FAILED;
}

void gs_client_ask(void)
{
	if (state)
		(void)*state;
}

void gs_client_await(struct gs_client *c, bool cancel)
{
	struct timespec look = {.tv_nsec = LOOK};
	uint32_t state;

	while (gs_client_locked(c)) {
		gs_client_recover(c);
		state = c->state;
		if (state != GS_RUNNING && state != GS_FAILED)
			syscall(SYS_futex, &c->state, FUTEX_WAIT, state, &look, NULL, 0);
		if (cancel)
			pthread_testcancel();
	}
}

uint64_t gs_proc_used(const struct gs_slot_proc *p)
{
	const struct gs_client *c = p->client ? &gs_host->client[p->client - 1] : NULL;

	return c && c->pid == p->pid && c->state == GS_CHECKPOINTED ? 0 : p->used;
}

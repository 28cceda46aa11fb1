// A library that makes a program hostile to who traces it: from SIGUSR2 until the next one, each of
// STORM_THREADS threads does something again and again that stops it for that one. STORM_MODE says what: signal
// itself, start a thread (threads), or halt the program, which a child of it continues (halts).
#define _GNU_SOURCE // for signal() without a reset
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t storms;
static pthread_attr_t small;
static char mode;

static void turn(int signal)
{
	(void)signal;
	storms = !storms;
}

static void none(int signal) { (void)signal; }

static void *nothing(void *unused) { return unused; }

static void blow(void)
{
	pthread_t one;

	if (mode == 'h')
		kill(getpid(), SIGSTOP);
	else if (mode != 't')
		raise(SIGUSR1);
	else if (!pthread_create(&one, &small, nothing, NULL))
		pthread_detach(one);
}

static void *thread(void *unused)
{
	for (;;)
		if (storms)
			blow();
		else
			nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	return unused;
}

__attribute__((constructor)) static void begin(void)
{
	const char *threads = getenv("STORM_THREADS"), *does = getenv("STORM_MODE");
	pid_t parent = getpid();
	pthread_t one;
	sigset_t told;

	mode = does ? *does : 0;
	if (mode == 'h' && !fork()) {
		for (; getppid() == parent; usleep(1000))
			kill(parent, SIGCONT);
		_exit(0);
	}
	signal(SIGUSR1, none);
	signal(SIGUSR2, turn);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (int i = threads ? atoi(threads) : 0; i > 0; i--)
		if (pthread_create(&one, &small, thread, NULL))
			abort();
	sigemptyset(&told); // the program's own threads notice nothing
	sigaddset(&told, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &told, NULL);
}

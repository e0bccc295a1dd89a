/* exit_ways HOW: ends with a code, by a signal, or waits for one. */
#include "check.h"
#include <fcntl.h>
#include <signal.h>

static volatile sig_atomic_t got;

static void on_signal(int signal)
{
	got = signal;
}

static int wait_for_signal(const char *ready)
{
	int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
	sigset_t all, old;
	sigfillset(&all);
	must(sigprocmask(SIG_BLOCK, &all, &old) == 0);
	for (int i = 0; i < 4; i++)
		must(signal(signals[i], on_signal) != SIG_ERR);
	must(close(open(ready, O_CREAT | O_WRONLY, 0600)) == 0);
	while (!got)
		sigsuspend(&old);
	printf("signal %d\n", got);
	return 0;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "0";
	char *base = map(24 * MIB);
	write_pages(base, 0, 24 * 256, 1);
	if (!strcmp(how, "wait"))
		return wait_for_signal(argv[2]);
	puts("about to end");
	fflush(stdout);
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "segv"))
		*(volatile char *)8 = 1;
	if (!strcmp(how, "kill"))
		raise(SIGKILL);
	if (!strcmp(how, "fpe"))
		raise(SIGFPE);
	return atoi(how);
}

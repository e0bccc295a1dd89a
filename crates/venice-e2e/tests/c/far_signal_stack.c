/* Signal handlers that run on a stack in far memory, thousands of times, beside other threads. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t caught, wrong;
static char *base;

static void handler(int signal)
{
	volatile char frame[30000];
	for (size_t i = 0; i < sizeof frame; i += 512)
		frame[i] = (char)(signal + i / 512);
	for (size_t i = 0; i < sizeof frame; i += 512)
		if (frame[i] != (char)(signal + i / 512))
			wrong = 1;
	caught++;
}

static void *churn(void *none)
{
	for (int i = 0; i < 12; i++) {
		push_out();
	}
	return none;
}

int main(void)
{
	stack_t stack = { .ss_sp = map(MIB), .ss_size = MIB };
	must(sigaltstack(&stack, NULL) == 0);
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART };
	must(sigaction(SIGUSR1, &action, NULL) == 0);
	must(sigaction(SIGALRM, &action, NULL) == 0);
	base = map(24 * MIB);
	write_pages(base, 0, 24 * 256, 1);
	pthread_t thread;
	sigset_t alarm;
	sigemptyset(&alarm), sigaddset(&alarm, SIGALRM);
	must(pthread_sigmask(SIG_BLOCK, &alarm, NULL) == 0);
	must(pthread_create(&thread, NULL, churn, NULL) == 0);
	must(pthread_sigmask(SIG_UNBLOCK, &alarm, NULL) == 0);
	struct itimerval every = { { 0, 2000 }, { 0, 2000 } };
	must(setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (int round = 0; round < 6; round++) {
		must(raise(SIGUSR1) == 0);
		check_pages(base, 0, 24 * 256, 1);
	}
	must(pthread_join(thread, NULL) == 0);
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	must(setitimer(ITIMER_REAL, &never, NULL) == 0);
	must(caught >= 6 && !wrong);
	puts("signals: handled on a far stack");
	return 0;
}

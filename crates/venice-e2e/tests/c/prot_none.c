/* Reservations that are opened piece by piece, as collectors do; protection that is enforced. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static void *volatile fault_address;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	fault_address = info->si_addr;
	siglongjmp(back, 1);
}

/* True if writing (or reading) `at` is refused by SIGSEGV at that address. */
static int refused(volatile char *at, int writing)
{
	fault_address = NULL;
	if (sigsetjmp(back, 1) == 0) {
		if (writing)
			*at = 1;
		else
			(void)*at;
		return 0;
	}
	return fault_address == (void *)at;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	must(sigaction(SIGSEGV, &action, NULL) == 0);

	size_t reserved = 8ul << 30, piece = 4 * MIB;
	char *base = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(base != MAP_FAILED);
	must(refused(base + 12345, 0));
	for (int i = 0; i < 12; i++) {
		char *at = base + i * 512 * MIB;
		must(mprotect(at, piece, PROT_READ | PROT_WRITE) == 0);
		check_zero(at, 16 * PAGE);
		write_pages(at, 0, piece / PAGE, i);
		must(refused(at + piece, 1));
	}
	for (int i = 0; i < 12; i++)
		check_pages(base + i * 512 * MIB, 0, piece / PAGE, i);

	/* Read-only: far pages come back, writes are refused, and allowed again later. */
	for (int i = 0; i < 12; i++) {
		char *at = base + i * 512 * MIB;
		must(mprotect(at, piece, PROT_READ) == 0);
		check_pages(at, 0, piece / PAGE, i);
		must(refused(at + 100 * PAGE, 1));
		must(mprotect(at, piece, PROT_READ | PROT_WRITE) == 0);
		write_pages(at, 0, 8, 100 + i);
	}
	/* Closed and opened again without being dropped: the contents stay. */
	must(mprotect(base, piece, PROT_NONE) == 0);
	must(refused(base, 0));
	push_out();
	must(refused(base, 1));
	must(mprotect(base, piece, PROT_READ | PROT_WRITE) == 0);
	check_pages(base, 0, 8, 100);
	check_pages(base, 8, piece / PAGE, 0);

	/* Released as collectors do: by a PROT_NONE mapping over it. */
	must(mmap(base, piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == base);
	must(refused(base, 0));
	must(mprotect(base, piece, PROT_READ | PROT_WRITE) == 0);
	check_zero(base, piece);

	/* The null page and unmapped addresses are still refused. */
	must(refused((char *)8, 0));
	must(munmap(base, reserved) == 0);
	must(refused(base + PAGE, 0));
	puts("prot_none: opened, closed, refused");
	return 0;
}

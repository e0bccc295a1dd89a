/* Handles that another thread is using: a listener whose thread waits in an accept, and memory that
 * a thread reads all the time. Other threads' calls return, and so do those of a forked child. */
#include <err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <venice.h>

enum { LENT_BYTES = 16 << 20, CHILDREN = 200 };

static venice_listener *listener;
static venice_remote *remote;
static atomic_bool is_over;

static void check(venice_status status, const char *what)
{
    if (status != VENICE_OK)
        errx(1, "%s: %s", what, venice_last_error());
}

static void expect(int holds, const char *what)
{
    if (!holds)
        errx(1, "not as expected: %s", what);
}

static void *accept_one(void *nothing)
{
    venice_channel *channel;
    check(venice_accept(listener, -1, &channel), "accept");
    venice_close_channel(channel);
    return nothing;
}

static void *read_memory(void *nothing)
{
    char page[4096];
    while (!is_over)
        check(venice_remote_read(remote, 0, page, sizeof page), "read");
    return nothing;
}

/* Every call of the child fails at once. */
static void run_child(void)
{
    venice_channel *channel;
    char word[8];
    alarm(20);
    if (venice_accept(listener, -1, &channel) != VENICE_INVALID)
        _exit(1);
    if (venice_listener_arm(listener))
        _exit(2);
    if (venice_remote_read(remote, 0, word, sizeof word) != VENICE_INVALID)
        _exit(3);
    _exit(0);
}

int main(int argc, char **argv)
{
    char address[256], lent_address[256];
    venice_channel *channel;
    venice_lent *lent;
    pthread_t accepting, reading;

    expect(argc == 2, "a folder");
    snprintf(address, sizeof address, "shm:%s/talk", argv[1]);
    snprintf(lent_address, sizeof lent_address, "shm:%s/lent", argv[1]);
    check(venice_listen(address, VENICE_MESSAGES, NULL, &listener), "listen");
    check(venice_lend(lent_address, LENT_BYTES, NULL, &lent), "lend");
    check(venice_connect_remote(lent_address, LENT_BYTES, NULL, &remote), "connect to memory");
    pthread_create(&accepting, NULL, accept_one, NULL);
    pthread_create(&reading, NULL, read_memory, NULL);
    usleep(20000);

    alarm(120);
    expect(venice_listener_fd(listener) >= 0, "the descriptor");
    expect(venice_listener_arm(listener), "nothing has come");
    expect(venice_accept(listener, 0, &channel) == VENICE_WOULD_BLOCK, "no caller yet");
    for (int at = 0; at < CHILDREN; at++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            run_child();
        expect(waitpid(child, &status, 0) == child && status == 0, "the child's calls");
    }

    check(venice_connect_channel(address, VENICE_MESSAGES, NULL, &channel), "connect");
    pthread_join(accepting, NULL);
    is_over = true;
    pthread_join(reading, NULL);
    venice_close_channel(channel);
    venice_disconnect_remote(remote);
    venice_end_lent(lent);
    venice_close_listener(listener);
    return 0;
}

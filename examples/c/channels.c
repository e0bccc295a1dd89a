/* Two programs that talk without a rack: a parent that answers, and a child that asks.
 *
 *     cc channels.c $(pkg-config --cflags --libs venice) && ./a.out [KEY]
 *
 * With KEY, 64 hexadecimal digits, they talk over udp too. Every function of channels is used. */
#include <err.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <venice.h>

enum { LONG_BYTES = 1 << 20, LENT_BYTES = 16 << 20 };

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

/* Waits for input on a descriptor. */
static void wait_for(int fd)
{
    struct pollfd one = { .fd = fd, .events = POLLIN };
    expect(poll(&one, 1, 20000) == 1, "the descriptor becomes readable");
}

/* The child: asks, and touches the parent's memory. */
static void ask(const char *address, const char *lent, const venice_channel_options *options)
{
    venice_channel *channel;
    venice_remote *remote;
    char answer[16], word[9] = "";
    size_t len;
    uint64_t old;

    check(venice_connect_channel(address, VENICE_MESSAGES, options, &channel), "connect");
    check(venice_set_timeout(channel, 20000), "time-out");
    check(venice_send(channel, "hello", 5), "send");
    check(venice_recv(channel, answer, sizeof answer, &len), "receive");
    expect(len == 5 && memcmp(answer, "HELLO", 5) == 0, "the answer");
    check(venice_shutdown(channel), "shutdown");

    check(venice_connect_remote(lent, LENT_BYTES, options, &remote), "connect to memory");
    check(venice_remote_read(remote, 64, word, 8), "read");
    expect(strcmp(word, "far away") == 0, "the lender's word");
    check(venice_remote_write(remote, 128, "and back", 8), "write");
    check(venice_remote_fetch_add(remote, 8, 2, &old), "add");
    check(venice_remote_compare_swap(remote, 8, 2, 7, &old), "compare and swap");
    expect(old == 2, "the counter");
    expect(venice_remote_read(remote, LENT_BYTES, word, 1) == VENICE_OUT_OF_RANGE, "the bound");
    venice_disconnect_remote(remote);
    venice_close_channel(channel);
    _exit(0);
}

/* The parent: answers one child, and lends memory. */
static void talk(const char *address, const char *place, const venice_channel_options *options)
{
    venice_listener *listener;
    venice_channel *channel;
    venice_lent *lent;
    char text[16], word[9] = "";
    size_t len;
    uint64_t old;
    int status;

    check(venice_listen(address, VENICE_MESSAGES, options, &listener), "listen");
    check(venice_lend(place, 1, options, &lent), "lend");
    check(venice_lent_write(lent, 64, "far away", 8), "store");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        /* The child cannot use what its parent made. */
        expect(venice_accept(listener, 0, &channel) == VENICE_INVALID, "a clear error");
        char *at = strdup(venice_listener_address(listener));
        char *memory = strdup(venice_lent_address(lent));
        venice_close_listener(listener);
        venice_end_lent(lent);
        ask(at, memory, options);
    }
    for (;;) {
        venice_status accepted = venice_accept(listener, 0, &channel);
        if (accepted != VENICE_WOULD_BLOCK) {
            check(accepted, "accept");
            break;
        }
        if (venice_listener_arm(listener))
            wait_for(venice_listener_fd(listener));
    }
    check(venice_set_timeout(channel, 0), "time-out");
    for (;;) {
        venice_status received = venice_recv(channel, text, sizeof text, &len);
        if (received != VENICE_WOULD_BLOCK) {
            check(received, "receive");
            if (len == 0)
                break;
            for (size_t at = 0; at < len; at++)
                text[at] -= 'a' - 'A';
            check(venice_send(channel, text, len), "answer");
        } else if (venice_arm(channel)) {
            wait_for(venice_channel_fd(channel));
        }
    }
    expect(waitpid(child, &status, 0) == child && status == 0, "the child succeeds");
    check(venice_lent_read(lent, 128, word, 8), "load");
    check(venice_lent_fetch_add(lent, 8, 1, &old), "add");
    check(venice_lent_compare_swap(lent, 8, 8, 0, &old), "compare and swap");
    expect(old == 8, "the counter of both");
    printf("%s: %s\n", venice_listener_address(listener), word);
    venice_close_channel(channel);
    venice_end_lent(lent);
    venice_close_listener(listener);
}

/* A stream of a megabyte from a child that dies without closing. */
static void stream(const char *address)
{
    venice_listener *listener;
    venice_channel *channel;
    char *bytes = calloc(1, LONG_BYTES);
    size_t len, read = 0;

    check(venice_listen(address, VENICE_STREAM, NULL, &listener), "listen");
    expect(venice_accept(listener, -5, &channel) == VENICE_INVALID, "-1 is the lowest time-out");
    pid_t child = fork();
    if (child == 0) {
        check(venice_connect_channel(address, VENICE_STREAM, NULL, &channel), "connect");
        for (size_t at = 0; at < LONG_BYTES; at += len)
            check(venice_stream_write(channel, bytes + at, LONG_BYTES - at, &len), "write");
        pause();
    }
    check(venice_accept(listener, 20000, &channel), "accept");
    for (; read < LONG_BYTES; read += len)
        check(venice_stream_read(channel, bytes, LONG_BYTES, &len), "read");
    kill(child, SIGKILL);
    expect(venice_stream_read(channel, bytes, 1, &len) == VENICE_LOST, "the death is reported");
    waitpid(child, NULL, 0);
    printf("%zu bytes, then: %s\n", read, venice_last_error());
    venice_close_channel(channel);
    venice_close_listener(listener);
    free(bytes);
}

int main(int count, char **words)
{
    venice_channel_options options = VENICE_CHANNEL_OPTIONS;
    char folder[] = "/tmp/channels-XXXXXX", socket[64], memory[64], bytes[64];

    if (mkdtemp(folder) == NULL)
        err(1, "%s", folder);
    snprintf(socket, sizeof socket, "shm:%s/talk", folder);
    snprintf(memory, sizeof memory, "shm:%s/memory", folder);
    snprintf(bytes, sizeof bytes, "shm:%s/bytes", folder);
    talk(socket, memory, NULL);
    stream(bytes);
    options.key = count > 1 ? words[1] : NULL;
    if (options.key != NULL)
        talk("udp:127.0.0.1:0", "udp:127.0.0.1:0", &options);
    rmdir(folder);
    return 0;
}

"""A proxy that gives a memcached a victim store in borrowed memory: what memcached has no room for
is found there, and goes back to memcached.

    venice up
    memcached -m 64 -p 11212 &
    python3 memcached_victim.py --listen 11211 --memcached 11212 --size 1GiB

Clients talk to the proxy as to memcached (text protocol: get, gets, set, delete, stats, version,
quit). memcached does not hand over what it evicts, so every value that is set is put into the
victim store too; a value that memcached no longer has is answered from there.
"""

import argparse
import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor

import venice

CRLF = b"\r\n"
#: memcached's own bound for keys.
LONGEST_KEY = 250


class Memcached:
    """A connection to the memcached behind."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def get(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Flags and value of `key`."""
        self.writer.write(b"get " + key + CRLF)
        found = None
        while (line := await self.reader.readuntil(CRLF)) != b"END\r\n":
            _, _, flags, length = line.split()[:4]
            found = flags, (await self.reader.readexactly(int(length) + 2))[:-2]
        return found

    async def command(self, text: bytes) -> bytes:
        """A command that is answered by one line."""
        self.writer.write(text)
        return await self.reader.readuntil(CRLF)


class VictimProxy:
    """Serves one memcached and one object cache to any number of clients."""

    def __init__(self, cache: venice.ObjectCache, memcached_port: int) -> None:
        self.cache = cache
        self.memcached_port = memcached_port
        self.counts = {"near_hits": 0, "victim_hits": 0, "misses": 0, "sets": 0}
        # Borrowed memory is far: nobody else shall wait for it.
        self.far = ThreadPoolExecutor(4)

    async def _far(self, call, *args):
        return await asyncio.get_running_loop().run_in_executor(self.far, call, *args)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, to its end."""
        near = Memcached(*await asyncio.open_connection("127.0.0.1", self.memcached_port))
        try:
            while line := await reader.readline():
                command, *words = line.split()
                if command == b"quit":
                    break
                writer.write(await self.answer(near, reader, command, words))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            near.writer.close()
            writer.close()

    async def answer(self, near, reader, command: bytes, words: list[bytes]) -> bytes:
        if command in (b"get", b"gets") and words:
            found = [await self.get(near, key, command == b"gets") for key in words]
            return b"".join(found) + b"END\r\n"
        if command == b"set" and len(words) >= 4:
            key, flags, _, length = words[:4]
            value = (await reader.readexactly(int(length) + 2))[:-2]
            return await self.set(near, key, flags, value, words)
        if command == b"delete" and words:
            return await self.delete(near, words[0])
        if command == b"stats":
            counts = [f"STAT {name} {count}\r\n".encode() for name, count in self.counts.items()]
            return b"".join(counts) + b"END\r\n"
        if command == b"version":
            return f"VERSION venice-victim {venice.__version__}\r\n".encode()
        return b"ERROR\r\n"

    async def get(self, near: Memcached, key: bytes, with_cas: bool) -> bytes:
        found = await near.get(key)
        if found is not None:
            self.counts["near_hits"] += 1
        else:
            kept = await self._far(self.cache.get, key)
            if kept is None:
                self.counts["misses"] += 1
                return b""
            self.counts["victim_hits"] += 1
            flags, _, value = kept.partition(b" ")
            found = flags, value
            await near.command(b"set %b %b 0 %d\r\n%b\r\n" % (key, flags, len(value), value))
        flags, value = found
        cas = b" 0" if with_cas else b""
        return b"VALUE %b %b %d%b\r\n%b\r\n" % (key, flags, len(value), cas, value)

    async def set(self, near: Memcached, key, flags, value: bytes, words: list[bytes]) -> bytes:
        if len(key) > LONGEST_KEY or not flags.isdigit():
            return b"CLIENT_ERROR bad command line format\r\n"
        self.counts["sets"] += 1
        # An older value must not come back, whatever happens next.
        if words[2] == b"0":
            await self._far(self.cache.put, key, flags + b" " + value)
        else:
            self.cache.delete(key)  # it expires, which the victim store knows nothing of
        answer = await near.command(b"set " + b" ".join(words[:4]) + CRLF + value + CRLF)
        return b"" if words[4:] == [b"noreply"] else answer

    async def delete(self, near: Memcached, key: bytes) -> bytes:
        was_kept = self.cache.delete(key)
        answer = await near.command(b"delete " + key + CRLF)
        return b"DELETED\r\n" if was_kept else answer


async def run(args: argparse.Namespace, cache: venice.ObjectCache) -> None:
    proxy = VictimProxy(cache, args.memcached)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", args.listen)
    port = server.sockets[0].getsockname()[1]
    print(f"listening at 127.0.0.1:{port}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", type=int, default=11211, help="port of the proxy")
    parser.add_argument("--memcached", type=int, default=11212, help="port of the memcached behind")
    parser.add_argument("--size", default="256MiB", help="memory to borrow")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # give back what was borrowed
    with venice.connect() as rack:
        with rack.object_cache(args.size, purpose="memcached's victims") as cache:
            try:
                asyncio.run(run(args, cache))
            except KeyboardInterrupt:
                pass


if __name__ == "__main__":
    main()

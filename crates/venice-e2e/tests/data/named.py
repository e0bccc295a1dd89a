# Processes of a pool write and read shared memory that they find by its name.
from multiprocessing import get_context, shared_memory

LENGTH = 48 << 20
PARTS = 8
PART = LENGTH // PARTS


def write(name, part):
    memory = shared_memory.SharedMemory(name=name)
    memory.buf[part * PART : (part + 1) * PART] = bytes([part + 1]) * PART
    memory.close()


def is_right(name, part):
    memory = shared_memory.SharedMemory(name=name)
    right = bytes(memory.buf[part * PART : (part + 1) * PART]) == bytes([part + 1]) * PART
    memory.close()
    return right


if __name__ == "__main__":
    for way in ("fork", "spawn"):
        memory = shared_memory.SharedMemory(create=True, size=LENGTH)
        with get_context(way).Pool(3) as pool:
            parts = [(memory.name, part) for part in range(PARTS)]
            pool.starmap(write, parts)
            print(way, pool.starmap(is_right, parts))
        memory.close()
        memory.unlink()

"""A native file in plain memory, which does what servers may: short writes, and stores of others."""


class MemoryFile:
    """As much of ``_native.File`` as files and fetched copies use."""

    def __init__(self, content: bytes = b"", write_bytes_max: int | None = None) -> None:
        self.content = bytearray(content)
        self.write_bytes_max = write_bytes_max
        self.writes: list[tuple[int, bytes]] = []
        self.closed = 0

    def read_into(self, buffer, offset: int) -> int:
        found = self.content[offset : offset + memoryview(buffer).nbytes]
        memoryview(buffer).cast("B")[: len(found)] = found
        return len(found)

    def write_at(self, data, offset: int) -> int:
        sent = bytes(memoryview(data).cast("B"))[: self.write_bytes_max]
        # Writing nothing behind the end extends no file.
        if not sent:
            return 0
        self.content.extend(bytes(max(0, offset + len(sent) - len(self.content))))
        self.content[offset : offset + len(sent)] = sent
        self.writes.append((offset, sent))
        return len(sent)

    def append(self, data) -> tuple[int, int]:
        offset = len(self.content)
        self.content += bytes(data)
        return offset, len(self.content) - offset

    def size(self) -> int:
        return len(self.content)

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def sync(self) -> None: ...

    def close(self) -> None:
        self.closed += 1

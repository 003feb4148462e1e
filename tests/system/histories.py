"""Histories of words that many programs read and write at once, and whether any order of the operations explains them.

A word is a register. A history is *linearizable* when its operations can be put into one order, each at some moment
between its call and its return, in which every read brings what was written last. The search is Wing and Gong's, with
Lowe's memory of what was tried: words are independent of each other, so each is looked at alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Operation:
    """A read or a write of one word. One that has not returned may be done at any time after its call, or never."""

    word: int
    writes: bool
    value: int
    called: int
    returned: float = math.inf

    def __str__(self) -> str:
        what = "write" if self.writes else "read"
        return f"{what} {self.value:#x} of {self.word} {self.called}..{self.returned}"


def unexplained(history: Iterable[Operation], initial: int = 0) -> list[Operation]:
    """Return nothing for a linearizable history; else those of a word from where nothing explains them."""
    for word in sorted({operation.word for operation in history}):
        own = [one for one in history if one.word == word]
        # A reader that has read nothing has seen nothing; and what may be left out, and nobody has read, is.
        found = {one.value for one in own if not one.writes}
        own = [one for one in own if one.returned < math.inf or (one.writes and one.value in found)]
        if left := _left(sorted(own, key=lambda one: one.called), initial):
            return left
    return []


def irregular(history: Iterable[Operation], initial: int = 0) -> list[Operation]:
    """Return reads that no order of the writes explains, each looked at alone.

    A read may bring what is just being written, and a later one what was there before; but nothing that was
    overwritten before it was called.
    """
    operations = list(history)
    wrong = []
    for word in {one.word for one in operations}:
        writes = [one for one in operations if one.writes and one.word == word]
        writes.append(Operation(word, True, initial, -1, -1))
        for read in operations:
            if not read.writes and read.word == word and read.returned < math.inf:
                # The last that surely was before it: what had returned when that was called is overwritten.
                last = max(one.called for one in writes if one.returned < read.called)
                source = [one for one in writes if one.value == read.value and one.called <= read.returned]
                if all(one.returned < last for one in source):
                    wrong.append(read)
    return sorted(wrong, key=lambda one: one.called)


def _left(operations: Sequence[Operation], initial: int) -> list[Operation]:
    """Search an order of all that has returned; return what is left of it where the search got farthest."""
    # What is done: all before a place, and the bits of those from there on. And what the word holds then.
    state = (0, 0, initial)
    tried = {state}
    stack = [state]
    farthest = 0
    while stack:
        first, done, value = stack.pop()
        farthest = max(farthest, first)
        choices = _choices(operations, first, done)
        if all(operations[choice].returned == math.inf for choice in choices):
            return []
        for choice in choices:
            operation = operations[choice]
            if not operation.writes and operation.value != value:
                continue
            state = (*_with(first, done | 1 << (choice - first)), operation.value)
            if state not in tried:
                tried.add(state)
                stack.append(state)
    return list(operations[farthest : farthest + 8])


def _choices(operations: Sequence[Operation], first: int, done: int) -> list[int]:
    """Return those that may be next: none of the others has returned before they were called."""
    choices = []
    soonest = math.inf
    for place in range(first, len(operations)):
        if operations[place].called > soonest:
            break
        if not done >> (place - first) & 1:
            choices.append(place)
            soonest = min(soonest, operations[place].returned)
    return [place for place in choices if operations[place].called <= soonest]


def _with(first: int, done: int) -> tuple[int, int]:
    """Return the same with all that is done at the beginning counted."""
    while done & 1:
        first, done = first + 1, done >> 1
    return first, done


# What a program does that writes a history of its own down, as it happens: it may be killed at any moment. Stores and
# loads are single ones, of eight bytes.
RECORDER = """
import random
def record(path, log, number, count, words, loads, stores, share):
    file = os.open(path, os.O_RDWR)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    view = memoryview(mmap.mmap(file, 0)).cast("Q")
    chance, value = random.Random(number), number << 32
    for _ in range(count):
        word, writes = chance.choice(words), chance.random() < share
        door = chance.choice(stores if writes else loads)
        value += writes
        os.write(out, b"%d %d %d %d " % (word, writes, value, time.monotonic_ns()))
        try:
            if door == "map" and writes:
                view[word // 8] = found = value
            elif door == "map":
                found = view[word // 8]
            elif writes:
                assert os.pwrite(file, (found := value).to_bytes(8, "little"), word) == 8
            else:
                found = int.from_bytes(os.pread(file, 8, word), "little")
        except OSError:
            os.write(out, b"\\n")
        else:
            os.write(out, b"%d %d\\n" % (time.monotonic_ns(), found))
"""


def recorded(log: Path) -> list[Operation]:
    """Return what a program has written down; the last line may have no end."""
    operations = []
    for line in log.read_text().splitlines():
        fields = [int(field) for field in line.split()]
        if len(fields) == 6:
            word, writes, _, called, returned, found = fields
            operations.append(Operation(word, bool(writes), found, called, returned))
        elif len(fields) >= 4 and fields[1]:
            operations.append(Operation(fields[0], True, fields[2], fields[3]))
    return operations

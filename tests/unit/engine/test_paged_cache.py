"""Pages: rows share what they begin with alike, and no row's writing changes what another holds."""

import random

import numpy as np
import pytest
import torch

from learnloop_service.training.engine.weights.kv_cache import KVShape
from learnloop_service.training.engine.weights.paged_cache import PAGE, OutOfPages, PagedCache, pages_of
from learnloop_service.training.engine.weights.shared_prefix import SharedPrefix
from learnloop_service.training.engine.weights.stages import stages_of

CPU = torch.device("cpu")
SHAPE = KVShape(2, 1, 2, torch.float32, CPU, stages_of(2, [CPU, CPU]))


def write(cache: PagedCache, row: int, start: int, tokens: list[int]) -> None:
    cache.hold(row, start, start + len(tokens))
    places = torch.from_numpy(cache.places(row, start, start + len(tokens)))
    for layer in cache.layers:
        for part in layer:
            part[places] = torch.tensor(tokens, dtype=torch.float32)[:, None, None].expand(-1, 1, 2)


def read(cache: PagedCache, row: int, length: int) -> list[int]:
    keys, values = cache.layers[1]
    places = torch.from_numpy(cache.places(row, 0, length))
    assert torch.equal(keys[places], values[places])
    return [int(token) for token in keys[places][:, 0, 0].tolist()]


def test_rows_that_share_pages_do_not_change_one_another() -> None:
    """A thousand random changes of eight conversations, compared with lists of their tokens."""
    draw = random.Random(0)
    cache = PagedCache(SHAPE, 8, 10 * PAGE, 40)
    contents: list[list[int]] = [[] for _ in range(8)]
    for _ in range(1000):
        row, other = draw.sample(range(8), 2)
        match draw.choice(["write", "write", "copy", "swap", "forget", "cut"]):
            case "write":
                new = [draw.randrange(1000) for _ in range(draw.randrange(1, 150))]
                if len(contents[row]) + len(new) > cache.length:
                    continue
                try:
                    write(cache, row, len(contents[row]), new)
                except OutOfPages:
                    cache.forget(row)
                    new, contents[row] = [], []
                contents[row] = contents[row] + new
            case "copy":
                length = draw.randrange(len(contents[row]) + 1)
                cache.copy(row, other, length)
                contents[other] = contents[row][:length]
            case "swap":
                cache.swap(row, other, 0)
                contents[row], contents[other] = contents[other], contents[row]
            case "forget":
                cache.forget(row)
                contents[row] = []
            case "cut":
                contents[row] = contents[row][: draw.randrange(len(contents[row]) + 1)]
        for number, tokens in enumerate(contents):
            assert read(cache, number, len(tokens)) == tokens
    for row in range(8):
        cache.forget(row)
    write(cache, 0, 0, [1] * cache.length)  # every page came back
    assert cache.room([0], 1, 0) == 30


def test_what_is_shared_takes_no_room() -> None:
    cache = PagedCache(SHAPE, 8, 8 * PAGE, 8)
    write(cache, 0, 0, list(range(4 * PAGE)))
    for row in range(1, 8):
        cache.copy(0, row, 4 * PAGE)
    assert cache.room(range(8), 0, 0) == 4
    with pytest.raises(OutOfPages):
        cache.hold(0, 4 * PAGE, 8 * PAGE + 1)
    for row in range(4):
        cache.hold(row, 4 * PAGE, 4 * PAGE + 1)
    with pytest.raises(OutOfPages):
        cache.hold(4, 4 * PAGE, 4 * PAGE + 1)
    lengths = np.full(8, 4 * PAGE)
    assert cache.unready(np.arange(8), lengths).tolist() == [4, 5, 6, 7]


def test_a_shared_prefix_is_what_all_rows_of_a_step_begin_with() -> None:
    cache = PagedCache(SHAPE, 4, 8 * PAGE, 30)
    write(cache, 0, 0, list(range(4 * PAGE)))
    for row, length in ((1, 3 * PAGE), (2, 2 * PAGE + 5)):
        cache.copy(0, row, length)
        write(cache, row, length, list(range(row, row + PAGE)))
    write(cache, 3, 0, [7] * PAGE)

    def shared(*positions: int) -> int:
        prefix = SharedPrefix.of(cache.tables(CPU), torch.tensor(positions))
        assert (
            prefix.table[: int(prefix.tokens) // PAGE].tolist()
            == cache.tables(CPU)[0, : int(prefix.tokens) // PAGE].tolist()
        )
        return int(prefix.tokens)

    assert shared(4 * PAGE - 1, 4 * PAGE - 1, -1, -1) == 3 * PAGE
    assert shared(4 * PAGE - 1, 4 * PAGE - 1, 3 * PAGE, -1) == 2 * PAGE  # a page that is equal in part is not shared
    assert shared(4 * PAGE - 1, 2 * PAGE - 1, -1, -1) == PAGE  # the last token of a row is in its own part
    assert shared(4 * PAGE - 1, 4 * PAGE - 1, -1, PAGE - 1) == 0


def test_the_table_on_the_device_is_always_the_same_and_up_to_date() -> None:
    """A captured graph reads it at a fixed address."""
    cache = PagedCache(SHAPE, 2, 4 * PAGE, 4)
    first = cache.tables(CPU)
    write(cache, 1, 0, list(range(2 * PAGE)))
    tables = cache.tables(CPU)
    assert tables.data_ptr() == first.data_ptr()
    assert (tables[1, : pages_of(2 * PAGE)] > 0).all()
    assert int(tables[0].sum()) == 0

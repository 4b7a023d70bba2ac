"""Places of tokens in three dimensions: text goes on in all three at once, a picture spreads over rows and columns."""

from collections.abc import Sequence

import torch
from torch import Tensor


def gen_mrope_pos_ids(
    places: Tensor, ids: Tensor, merge_size: int, spans: Sequence[tuple[int, int]], grids: Sequence[tuple[int, int, int]]
) -> int:
    """Fill `places` (3, length), int64, for `ids` (at most length): time, row and column of each token. Gives the next place.

    A picture has the ids from `spans[i][0]` to before `spans[i][1]`, and the patches of `grids[i]` (frames, rows, columns), of
    which `merge_size` each way make a token. All its tokens are counted from the place where the text before it ended (two
    pictures with no text between them from the same one); the text after it goes on behind the last of them in any dimension.
    """
    length = places.shape[1]
    known = ids[:length]
    owner = torch.full((length,), -1, dtype=torch.long)
    for number, (first, last) in reversed(list(enumerate(spans))):
        owner[: known.shape[0]][(known >= first) & (known < last)] = number
    base, following, start = 0, 0, 0
    while start < length:
        number = int(owner[start])
        changed = (owner[start:] != number).nonzero()
        end = start + int(changed[0]) if changed.numel() else length
        run = places[:, start:end]
        if number < 0:
            base = following
            run.copy_(torch.arange(base, base + end - start))
            base = following = base + end - start
        else:
            frames, rows, columns = grids[number][0], grids[number][1] // merge_size, grids[number][2] // merge_size
            token = known[start:end] - spans[number][0]
            run[0] = base + (token // columns // rows) % frames
            run[1] = base + (token // columns) % rows
            run[2] = base + token % columns
            following = max(following, int(run.max()) + 1)
        start = end
    return following

"""Damaged copies of the files that klang writes and reads back."""

import json
import random
from typing import Any, Iterator

# What a value of JSON may have become.
OTHERS = (None, True, -1, 10**400, 1.5, "", "x", "\u2581\n", [], [1], {}, {"x": None})


def _places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all values in JSON, the whole first."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], path + (key,))


def _changed(text: str, path: tuple, other: Any) -> bytes:
    """The JSON with another value at a path; `other` is KeyError where it goes."""
    value = json.loads(text)
    if not path:
        return json.dumps(other).encode()
    place = value
    for key in path[:-1]:
        place = place[key]
    if other is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = other
    return json.dumps(value).encode()


def damaged_json(text: str, seed: int, count: int) -> Iterator[bytes]:
    """`count` damaged copies of JSON: values of another kind, missing ones, cuts, other bytes."""
    rng = random.Random(seed)
    places = list(_places(json.loads(text)))
    for _ in range(count):
        way = rng.randrange(8)
        if way < 5:
            yield _changed(text, rng.choice(places), rng.choice(OTHERS))
        elif way == 5:
            yield _changed(text, rng.choice(places[1:]), KeyError)
        elif way == 6:
            yield text.encode()[: rng.randrange(len(text))]
        else:
            content = bytearray(text.encode())
            for _ in range(rng.randint(1, 5)):
                content[rng.randrange(len(content))] = rng.randrange(256)
            yield bytes(content)

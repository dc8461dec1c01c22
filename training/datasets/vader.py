"""Short texts with people's ratings of their mood: the material of the VADER lexicon, from a file that the user has.

The source distribution of vaderSentiment 3.3.2 holds it (``pip download --no-binary :all: --no-deps
vaderSentiment==3.3.2``), as ``additional_resources/hutto_ICWSM_2014.tar.gz``; either file will do.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Final

import numpy as np

from secagg.errors import InvalidParameters
from secagg.training.datasets.prepared import Dealing, dirichlet_partition
from secagg.training.settings.parts import Stream, generator, seed_of

from .prepared import LENGTH, PreparedData, Split, as_tokens, commonest

_INNER: Final = "hutto_ICWSM_2014.tar.gz"
_SOURCES: Final = ("tweets", "movieReviewSnippets", "amazonReviewSnippets")
_CLEAR: Final = 0.5
"""Least distance from neutral of the mean rating of a text that gets a label."""
_WORDS: Final = 5000
_HELD_OUT: Final = 10
"""One text in so many is a test text, whatever the run's seed."""
_FIELDS: Final = 3


def vader(archive: Path | None, dealing: Dealing) -> PreparedData:
    """Read the archive, and deal out its texts to clients."""
    texts, labels = rated_texts(archive)
    order = generator(seed_of(0, Stream.VALIDATION)).permutation(len(texts))
    is_test = np.zeros(len(texts), dtype=np.bool_)
    is_test[order[: len(texts) // _HELD_OUT]] = True
    vocabulary = commonest((text for text, held_out in zip(texts, is_test, strict=True) if not held_out), _WORDS)
    rows = np.stack([vocabulary.row(text) for text in texts])
    train = Split(rows=rows[~is_test], labels=labels[~is_test])
    return PreparedData(
        name="vader",
        classes=2,
        shape=(LENGTH,),
        train=train,
        parts=dirichlet_partition(train.labels, dealing),
        held_out=Split(rows=rows[is_test], labels=labels[is_test]),
        transform=as_tokens,
        vocabulary=vocabulary.size,
    )


def rated_texts(archive: Path | None) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return the texts that are clearly bad (0) or good (1), in lower case."""
    if archive is None or not archive.is_file():
        raise InvalidParameters(
            f"the data set `vader` needs {'a file' if archive is None else f'the file {archive}, which is not there'}: "
            "fetch it with `pip download --no-binary :all: --no-deps vaderSentiment==3.3.2`, and name the downloaded "
            "vaderSentiment-3.3.2.tar.gz as the data's root"
        )
    try:
        lines = _lines(archive.read_bytes())
    except (tarfile.TarError, OSError, EOFError, KeyError, UnicodeDecodeError) as error:
        raise InvalidParameters(
            f"{archive} is neither the source distribution of vaderSentiment 3.3.2 nor its {_INNER} ({error})"
        ) from error
    texts, labels = list[str](), list[int]()
    for line in lines:
        fields = line.split("\t", _FIELDS - 1)
        if len(fields) != _FIELDS:
            continue
        try:
            rating = float(fields[1])
        except ValueError as error:
            raise InvalidParameters(f"{archive}: {fields[1]!r} is not a rating; the archive is damaged") from error
        if abs(rating) >= _CLEAR:
            texts.append(fields[2].lower())
            labels.append(int(rating > 0))
    return texts, np.array(labels, dtype=np.int64)


def _lines(raw: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for name in archive.getnames():
            if name.endswith(_INNER):
                return _lines(_content(archive, name))
        content = (_content(archive, f"hutto_ICWSM_2014/{source}_GroundTruth.txt") for source in _SOURCES)
        return [line for text in content for line in text.decode().splitlines()]


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()

"""Ids -> text as it can be shown: whole characters only, and never the beginning of a stop string.

In: one id at a time. Out: the text that is now certain.
"""

from collections.abc import Iterable, Sequence

from labkit.errors import OutOfRangeError
from labkit.tokenizer import Tokenizer

UNKNOWN = "\ufffd"
"""What an id shows as that the model has and the tokenizer has not, as where a vocabulary is padded to a round size."""


class TextFeed:
    """The text of a growing row.

    >>> feed = TextFeed(Tokenizer.gpt2(), stop=["world"])
    >>> [feed.add(token) for token in Tokenizer.gpt2().encode("Hello, wor")], feed.close()
    (['Hello', ',', ' '], 'wor')

    A character whose bytes are spread over tokens comes with its last byte. What might be the beginning of a stop
    string waits until it is known not to be one; ``found`` is the stop string that ended the text: of several, the one
    that was complete first. An id that the tokenizer does not have shows as U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, *, stop: Sequence[str] = ()) -> None:
        self._decoder = tokenizer.incremental_decoder()
        self._stop = tuple(stop)
        self._held = ""
        self._past = 0  # a stop string that ends within so many of the held characters ends nothing
        self._may_stop = True
        self.found: str | None = None

    def add(self, token: int, *, may_stop: bool = True) -> str:
        """Take one id; the text that is certain now. ``may_stop`` False: a stop string complete by now ends nothing."""
        self._may_stop = may_stop
        return self._take(self._characters(token), over=False)

    def close(self) -> str:
        """The text is over: what was held back, with U+FFFD for a character that never became whole."""
        return self._take(self._decoder.close(), over=True) if self.found is None else ""

    def _characters(self, token: int) -> str:
        try:
            return self._decoder.feed(token)
        except OutOfRangeError:
            return self._decoder.close() + UNKNOWN

    def _take(self, text: str, *, over: bool) -> str:
        self._held += text
        if not self._may_stop:
            self._past = len(self._held)
        complete = [(place + len(stop), place, stop) for stop in self._stop if (place := self._find(stop)) >= 0]
        if complete:
            _, place, self.found = min(complete)
            certain, self._held = self._held[:place], ""
            return certain
        kept = 0 if over else max((_overlap(self._held, stop) for stop in self._stop), default=0)
        released = len(self._held) - kept
        certain, self._held = self._held[:released], self._held[released:]
        self._past = max(0, self._past - released)
        return certain

    def _find(self, stop: str) -> int:
        """Where ``stop`` first stands in the held text and may end it, or -1."""
        return self._held.find(stop, max(0, self._past - len(stop) + 1))


def text_of(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The text of ids, those that the tokenizer does not have as U+FFFD.

    >>> text_of(Tokenizer.gpt2(), [15496, 50300, 995])
    'Hello\ufffd world'
    """
    feed = TextFeed(tokenizer)
    return "".join([*map(feed.add, ids), feed.close()])


def note_unknown(tokenizer: Tokenizer, token: int, where: str) -> str | None:
    """What to say of an id at ``where`` that the tokenizer does not have; None of one that it has.

    >>> note_unknown(Tokenizer.gpt2(), 50300, "new token 3")
    'new token 3: id 50300 is unknown to the tokenizer; it shows as U+FFFD, and so does every such id'
    """
    tokens = tokenizer.vocabulary.tokens
    if token < len(tokens) and tokens[token] is not None:
        return None
    return f"{where}: id {token} is unknown to the tokenizer; it shows as U+FFFD, and so does every such id"


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` might be the beginning of ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
